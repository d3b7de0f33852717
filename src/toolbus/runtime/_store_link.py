"""The link between a runtime and its store: the journal writer, the leases, what other processes send, and parking.

Knows durability and handles. Must not know how requests are admitted or begun.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from .._option_checks import POSITIVE, check, or_none
from ..durability import InboxReader, OnStoreFailure, inbox_of, journal_writer_of
from ..errors import ConfigurationError, StoreError
from ..handles import Exchange, Relay, inbox_poll_seconds_of
from ..session import RequestSession
from ..storage import WRITE_SECONDS, Store

if TYPE_CHECKING:
    import anyio.abc


class StoreLink:
    """A runtime's side of its store. The options are those of `Runtime`; `session` finds a request that runs here.

    `writer` is None for a store without a journal, and `exchange` without a relay. Raises `ConfigurationError` for
    options that the store cannot serve.
    """

    def __init__(
        self,
        store: Store,
        session: Callable[[str], RequestSession | None],
        *,
        lease_seconds: float,
        on_failure: OnStoreFailure,
        relay: Relay | None,
        inbox_poll_seconds: float | None,
        park_after_seconds: float | None,
    ) -> None:
        self.store = store
        self.writer = writer = journal_writer_of(store, lease_seconds, on_failure)
        self.inbox_poll_seconds = inbox_poll_seconds_of(inbox_poll_seconds, relay)
        inbox = inbox_of(store)
        self._park_seconds = check("park_after_seconds", park_after_seconds, or_none(POSITIVE))
        if park_after_seconds is not None and inbox is None:
            raise ConfigurationError(
                "park_after_seconds needs a store with an inbox, through which an answer wakes a parked request; "
                "use SqliteStore, PostgresStore or MongoStore"
            )
        self._reader = None if inbox is None or writer is None else InboxReader(inbox, writer, self.inbox_poll_seconds)
        self.exchange: Exchange | None = None
        if relay is not None:
            if writer is None or self._reader is None:
                raise ConfigurationError(
                    "relay needs a store that processes share; use SqliteStore, PostgresStore or MongoStore"
                )
            self.exchange = Exchange(relay, lambda: writer.owner, local=session, look=self._reader.look)
        self._session = session
        self._tasks: anyio.CancelScope | None = None

    async def open(self) -> None:
        """Open the store, so that its faults are raised at the start. One that cannot be opened is closed."""
        if (opens := getattr(self.store, "open", None)) is None:
            return
        try:
            await opens()
        except BaseException:
            with (
                suppress(StoreError),  # The first error says what is wrong.
                anyio.CancelScope(shield=True, deadline=anyio.current_time() + WRITE_SECONDS),
            ):
                await self.store.aclose()
            raise

    def serve(self, group: anyio.abc.TaskGroup, may_be_parked: Callable[[], Collection[str]]) -> None:
        """Begin to renew the leases, to give requests what other processes have sent, and to park those that wait.

        `may_be_parked` returns the ids of the requests that may be parked now.
        """
        if self.writer is None:
            return
        self.writer.open()
        self._tasks = anyio.CancelScope()
        group.start_soon(self._serve, self._tasks, may_be_parked)

    def stop(self) -> None:
        """Stop what `serve` has begun."""
        if self._tasks is not None:
            self._tasks.cancel()

    async def _serve(self, scope: anyio.CancelScope, may_be_parked: Callable[[], Collection[str]]) -> None:
        assert self.writer is not None
        with scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.writer.run)
                if self._reader is not None:
                    tasks.start_soon(self._reader.run)
                    if self._park_seconds is not None:
                        tasks.start_soon(self._park_what_waits, self._park_seconds, self._reader, may_be_parked)

    async def _park_what_waits(
        self, seconds: float, reader: InboxReader, may_be_parked: Callable[[], Collection[str]]
    ) -> None:
        """Park the requests in which nothing has happened for `seconds`, and for which no input waits.

        Otherwise, with fewer `seconds` than the inbox takes to be read, a request would be parked again before it gets
        the input for which it was continued.
        """
        since: dict[str, tuple[int, float]] = {}
        while True:
            await anyio.sleep(seconds / 2)
            now, before, since = anyio.current_time(), since, {}
            for request_id in [*may_be_parked()]:
                if facts := self._waits_at(request_id):
                    seen, began = before.get(request_id, (0, now))
                    since[request_id] = facts, began if seen == facts else now
                    if since[request_id][1] <= min(now - seconds, reader.looked_at):
                        self._park(request_id)

    def _waits_at(self, request_id: str) -> int:
        """Return the number of facts of a request that waits for inputs; 0 for any other."""
        session = self._session(request_id)
        view = None if session is None else session.snapshot().view
        return 0 if view is None or not view.waits_for_inputs else view.state.facts

    def _park(self, request_id: str) -> None:
        # A variable of the loop that calls this would keep the session alive until the loop runs again.
        if (session := self._session(request_id)) is not None:
            session.park()
