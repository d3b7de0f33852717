"""A client of requests that run in other processes, for a process without a model: see `Client`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Never, Self

from .._option_checks import POSITIVE, check
from ..bus import EventBus
from ..durability import OptionsFor, StoredRequests, call_store_in_time, journal_of
from ..errors import ConfigurationError
from ..events import new_id
from ..handles import (
    TIMEOUT_SECONDS,
    Authorize,
    Exchange,
    OpenRequest,
    Relay,
    RequestHandle,
    inbox_poll_seconds_of,
    open_requests,
)
from ..messages import Message
from ..providers import resolve
from ..session import RequestOptions, RequestSession, Resumed, SessionStart, merged_options
from ..storage import Store

if TYPE_CHECKING:
    from types import TracebackType


class _NoModel:
    """The provider of requests whose facts are only read."""

    async def respond(self, _request: object, _emit: object) -> Never:
        raise ConfigurationError("a Client runs no requests; resume them with a Runtime")


class Client:
    """Handles to requests that run in other processes, for a process without a model, such as one that gets webhooks.

        async with Client(PostgresStore(url)) as client:
            answer = await client.request(request_id).inject(ToolCallCompleted(...))

    `store` is the one that the runtimes use; the client opens it, and closes it at the end of the block. With the
    `relay` of the runtimes, events come as they happen, and commands are taken at once. Handles look into the store
    every `inbox_poll_seconds` (0.25, or 2 with a relay, in case a message is lost), and a command waits at most
    `timeout_seconds` for the process that runs its request. `options` are as for `Runtime.recall`: options that no
    store keeps, such as `output` types. Works on every event loop that the store works on. Raises `ConfigurationError`
    for a store without a journal.

    Example:
        from toolbus import Runtime
        from toolbus.remote import Client
        from toolbus.stores.memory import MemoryStore
        from toolbus.testing import ScriptedProvider, text

        store = MemoryStore(journal=True)  # between processes: SqliteStore or PostgresStore
        async with Runtime(ScriptedProvider([text("Hello.")]), store=store) as runtime:
            session = runtime.start("Hello?")
            await session.result()
            async with Client(store) as client:  # in a process without a model
                print((await client.request(session.request_id).result()).text)  # Hello.
    """

    def __init__(
        self,
        store: Store,
        *,
        options: OptionsFor | None = None,
        relay: Relay | None = None,
        inbox_poll_seconds: float | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        journal = journal_of(store)
        if journal is None:
            raise ConfigurationError(
                "the store has no journal, so no other process can be reached through it; pass the store of the "
                "runtimes, such as SqliteStore('toolbus.db')"
            )
        self.store = store
        self._seconds = inbox_poll_seconds_of(inbox_poll_seconds, relay)
        self._timeout_seconds = check("timeout_seconds", timeout_seconds, POSITIVE)
        self._exchange = None if relay is None else Exchange(relay, new_id, local=lambda _: None, look=None)
        self._bus = EventBus()  # never entered: no request runs here
        self._stored = StoredRequests(store, journal, self._make, options)

    async def __aenter__(self) -> Self:
        try:
            if (opens := getattr(self.store, "open", None)) is not None:
                await opens()
            if self._exchange is not None:
                await self._exchange.__aenter__()
        except BaseException:
            await self.store.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._exchange is not None:
                await self._exchange.__aexit__(kind, exc, trace)
        finally:
            await self.store.aclose()

    def request(self, request_id: str, *, authorize: Authorize | None = None) -> RequestHandle:
        """Return a handle on a request: see `Runtime.request`."""
        return RequestHandle(
            request_id,
            local=lambda _: None,
            stored=self._stored,
            authorize=authorize,
            seconds=self._seconds,
            timeout_seconds=self._timeout_seconds,
            exchange=self._exchange,
        )

    async def open_requests(
        self, *, conversation_id: str | None = None, prefix: str = "", limit: int = 100
    ) -> Sequence[OpenRequest]:
        """Return the requests that have not ended, with their open questions: see `Runtime.open_requests`."""
        journal = self._stored.journal
        found = journal.requests(conversation_id=conversation_id, prefix=prefix, is_unfinished=True, limit=limit)
        return await open_requests(await call_store_in_time(found), journal, lambda _: None)

    def _make(
        self, messages: Sequence[Message], output: Any, options: RequestOptions, request_id: str, resumed: Resumed
    ) -> RequestSession:
        return RequestSession(
            self._bus,
            _NoModel(),  # pyright: ignore[reportArgumentType]
            messages,
            conversation_id=options.get("conversation_id") or "",
            request_id=request_id,
            output=output,
            start=SessionStart(resumed=resumed),
            **merged_options({}, options, resolve),
        )
