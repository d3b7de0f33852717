"""The handle on one request, in this process or in another one: see `RequestHandle`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar, Unpack, overload

import anyio

from .._option_checks import NOT_BLANK, POSITIVE, TEXT, check
from ..bus import Cursor, EventT, TextStream
from ..clock import wall_time
from ..core.approval import question_of
from ..durability import ReadAlong, StoredRequests, call_store_in_time
from ..errors import BusError, ConfigurationError, DecodeError, NotAuthorized, StoreError, UnknownRequest
from ..events import (
    ApprovalRequested,
    CancelRequested,
    Event,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    decode,
    encode,
)
from ..records import replace
from ..request_result import RequestResult
from ..secrets import GivenSecrets, NamedSecret
from ..session import EventsOptions, RequestSession
from ..storage import Inbox, InboxReceipt, JournalStore, RequestRecord
from ._events import RequestEvents
from ._exchange import Exchange, LiveEvents
from ._record import record_of
from ._relay import Relay

CommandStatus: TypeAlias = Literal["done", "ended", "queued", "unknown"]
"""The answer to a command.

"done": it is a fact of the request, in the journal if there is one. "ended": the request, or the question or call that
the command is for, has ended, and the command has no effect. "queued": it is durable, and takes effect when the request
is taken over, or as soon as the process that runs the request takes it; for a request that has not begun, it waits with
the request, and is as durable. "unknown": there is no such request.
"""

Authorize: TypeAlias = Callable[[Event], bool | Awaitable[bool]]
"""A function, sync or async, that returns whether the present user may give this command to its request."""

TIMEOUT_SECONDS = 5.0
"""The time in which a command to another process has to become a fact, unless stated otherwise."""
_MAX_BYTES = 8 * 2**20
_MAX_MESSAGES = 20  # that are read together, because each may have `_MAX_BYTES`


def inbox_poll_seconds_of(given: float | None, relay: Relay | None) -> float:
    """Return how often the store is asked: with a relay, only in case that a message is lost."""
    if given is None:
        return 0.25 if relay is None else 2.0
    return check("inbox_poll_seconds", given, POSITIVE)


_E1 = TypeVar("_E1", bound=Event)
_E2 = TypeVar("_E2", bound=Event)
_E3 = TypeVar("_E3", bound=Event)


class RequestHandle:
    """A handle on the request `request_id`, which may run in this process, in another one, or have ended.

        handle = runtime.request(request_id, authorize=lambda command: user.may_decide(command.request_id))
        for question in await handle.pending_approvals():
            answer = await handle.approve(question, by=user.name)  # "done", "ended", "queued" or "unknown"

    Made by `Runtime.request` and `toolbus.remote.Client.request`; costs nothing until it is used, and needs no closing.
    Where the request runs is looked up at each use, so a handle stays valid while its request moves. Each command is
    checked by `authorize`, if there is one: with anything but True it raises `NotAuthorized`, and the request does not
    see it. A command waits at most 5 seconds (`timeout_seconds` of a `Client`) to become a fact. After that it is in
    the inbox, and "queued": a request whose model is asked takes it after the reply. A message to such a request in
    this process is "queued" at once. Where there is no inbox, the wait has no limit. Cancelling the wait takes nothing
    back.

    Commands to a request in another process need a store with an inbox, such as `SqliteStore` or `PostgresStore`; for
    any other store they raise `ConfigurationError`. They raise `StoreError` if the store fails, and `InboxFull`.
    """

    def __init__(
        self,
        request_id: str,
        *,
        local: Callable[[str], RequestSession | None],
        stored: StoredRequests | None,
        authorize: Authorize | None,
        seconds: float,
        timeout_seconds: float = TIMEOUT_SECONDS,
        exchange: Exchange | None = None,
        secrets: Sequence[NamedSecret] = (),
    ) -> None:
        self.request_id = check("request_id", request_id, TEXT)
        self._local = local
        self._stored = stored
        self._authorize = authorize
        self._seconds = seconds
        self._timeout_seconds = timeout_seconds
        self._exchange = exchange
        self._secrets = secrets

    def __repr__(self) -> str:
        where = "elsewhere" if self._session() is None else "here"
        return f"<RequestHandle {self.request_id!r}, {where}>"

    # ------------------------------------------------------------------------------------------------ watching

    # mypy joins the types of a variadic call into their base, so the first few are written out.
    @overload
    def events(self, a: type[_E1], b: type[_E2], /, **options: Unpack[EventsOptions]) -> RequestEvents[_E1 | _E2]: ...
    @overload
    def events(
        self, a: type[_E1], b: type[_E2], c: type[_E3], /, **options: Unpack[EventsOptions]
    ) -> RequestEvents[_E1 | _E2 | _E3]: ...
    @overload
    def events(self, *kinds: type[EventT], **options: Unpack[EventsOptions]) -> RequestEvents[EventT]: ...
    def events(
        self, *kinds: type[Any], after: str = "", capacity: int = 1_000, sub_requests: bool = False
    ) -> RequestEvents[Any]:
        """Return the request's events, in order, from its beginning to its ending, also while it moves.

        `kinds` and `after` are as for `RequestSession.events`; `after="now"` begins with what comes next. `capacity`
        and `sub_requests` hold while the request runs here: see `RequestEvents` for what comes from another process.
        """
        cursor = None if after == "now" else Cursor.read(self.request_id, after) if after else Cursor(self.request_id)
        return RequestEvents(
            self.request_id,
            self._session,
            self._read_along,
            cursor,
            kinds,
            capacity=capacity,
            sub_requests=sub_requests,
            seconds=self._seconds,
            join=None if self._exchange is None else partial(self._join, self._exchange),
        )

    def text(self, *, final_only: bool = False) -> TextStream:
        """Stream the model's text from the beginning of the request: see `RequestSession.text`.

        Without a relay, the text of a request in another process comes reply by reply, once each is complete.
        """
        return TextStream(self.events(*TextStream.kinds), final_only=final_only)

    async def has_ended(self) -> bool:
        """Return whether the request has ended.

        Raises `UnknownRequest` if neither this process nor the store has the request; `StoreError` if that fails.
        """
        return (await self.record()).ending is not None

    async def record(self) -> RequestRecord:
        """Return the record of the request, with its conversation and its ending, if it has ended.

        That of a request that runs here has no lease. Raises `UnknownRequest` and `StoreError`.
        """
        if (session := self._session()) is not None:
            return record_of(session)
        if (found := await self._requests().record(self.request_id)) is None:
            raise UnknownRequest(f"the store has no request {self.request_id!r}")
        return found

    async def pending_approvals(self) -> tuple[ApprovalRequested, ...]:
        """Return the questions that a person has still to answer, in the order of asking.

        Those of sub-requests are included. Empty for a request that has ended. Raises `UnknownRequest`, and the errors
        of `RequestEvents`.
        """
        session = self._session()
        # While a request is left here, the session has no questions any more, and the store has them already.
        if session is not None and not (self._stored is not None and session.snapshot().view.is_released):
            return session.pending_approvals
        reads = self._read_along()
        await reads.read()
        return () if reads.has_ended else reads.questions

    async def pending_messages(self) -> tuple[SteeringAdded, ...]:
        """Return the messages of `steer` that the request has not taken yet, in the order of sending.

        Of a request in another process, at most 20, and only those that are in its inbox. Empty for a request that has
        ended, or that no process runs now. Raises `UnknownRequest` and `StoreError`.
        """
        if (session := self._session()) is not None:
            return session.pending_messages
        stored, record = self._requests(), await self.record()
        if record.ending is not None or not isinstance(stored.journal, Inbox):
            return ()
        reading = stored.journal.waiting(record.owner, request_id=self.request_id, limit=_MAX_MESSAGES)
        found = [each for each in await call_store_in_time(reading) if isinstance(each, SteeringAdded)]
        return tuple([replace(each, conversation_id=record.conversation_id) for each in found])

    async def result(self) -> RequestResult[Any]:
        """Wait for the end, wherever it comes, and return the result: see `RequestSession.result`.

        A result from the journal lacks the exceptions of handlers. Raises `UnknownRequest`; `StoreError`, also for a
        request that was abandoned; and what `Runtime.recall` raises.
        """
        while True:
            if (session := self._session()) is not None:
                result = await session.result()
                if self._stored is None or not result.resumable:
                    return result
            stored = self._requests()
            record = await stored.record(self.request_id)
            if record is None and session is None:
                raise UnknownRequest(f"the store has no request {self.request_id!r}")
            if record is not None and record.ending is not None:
                found = await stored.recall(self.request_id)
                if found is None:
                    raise StoreError(
                        f"request {self.request_id} was abandoned: it could not continue, or its ending could not be "
                        "written"
                    )
                return found
            if self._exchange is None:
                await anyio.sleep(self._seconds)
            else:
                async for _ in self.events(RequestCompleted, RequestFailed, RequestCancelled):
                    pass

    # ---------------------------------------------------------------------------------------------- commands

    async def cancel(self, reason: str = "") -> CommandStatus:
        """Ask the request to end as `cancelled`."""
        check("reason", reason, TEXT)
        return await self._command(CancelRequested(request_id=self.request_id, reason=reason, at=wall_time()))

    async def steer(self, text: str) -> CommandStatus:
        """Add a user message at the next round boundary. Raises `ConfigurationError` for an empty one."""
        check("text", text, NOT_BLANK)
        return await self._command(SteeringAdded(request_id=self.request_id, text=text, at=wall_time()))

    async def approve(
        self,
        question: ApprovalRequested,
        *,
        arguments: dict[str, Any] | None = None,
        by: str = "",
        reason: str = "",
        remember: bool = False,
    ) -> CommandStatus:
        """Let the call of one of `pending_approvals` run: see `RequestSession.approve`. The first decision counts."""
        return await self._command(
            question_of(question).decided(approved=True, arguments=arguments, by=by, reason=reason, remember=remember)
        )

    async def deny(
        self, question: ApprovalRequested, *, by: str = "", reason: str = "", remember: bool = False
    ) -> CommandStatus:
        """Deny the call of one of `pending_approvals`. The model reads `reason`."""
        return await self._command(
            question_of(question).decided(approved=False, by=by, reason=reason, remember=remember)
        )

    async def inject(self, answer: Event) -> CommandStatus:
        """Answer a call of an `external` tool, of this request or a sub-request: see `RequestSession.inject`.

        The same event may be given again, in any process: it counts once, and the answer is "done". If the request has
        ended, the answer to a call of a background tool is "queued" for the next turn of its conversation, with a store
        that has a journal. Raises `BusError` for what cannot be an answer to a call of the request.
        """
        if not isinstance(answer, (ToolCallCompleted, ToolCallFailed)):
            kind = type(answer).__name__
            raise BusError(f"the {kind} is refused: only a ToolCallCompleted or a ToolCallFailed may come from outside")
        return await self._command(answer)

    async def _command(self, command: Event) -> CommandStatus:
        if self._authorize is not None:
            allowed = self._authorize(command)
            if (await allowed if inspect.isawaitable(allowed) else allowed) is not True:
                raise NotAuthorized(f"this {command.type} was not authorized")
        session = self._session()
        answer = await (self._send(command) if session is None else self._give(session, command))
        if answer == "ended" and self._stored is not None and isinstance(command, (ToolCallCompleted, ToolCallFailed)):
            is_kept = await self._stored.keep_late(await self._masked(self._stored, command))
            return "queued" if is_kept else answer
        return answer

    async def _give(self, session: RequestSession, command: Event) -> CommandStatus:
        """Give a command to the session in this process, and wait until it is recorded, or durable in the inbox."""
        is_taken = session.deliver(command)
        # A refusal, too, waits until the journal has its reason. A sub-request has no journal.
        if (is_taken or not session.ended) and self._stored is not None and command.request_id == self.request_id:
            passed_on = () if is_taken else (StoreError,)  # The next process may take what this one has refused.
            view = session.snapshot().view
            waits_for_reply = isinstance(command, SteeringAdded) and view.model_call is not None
            seconds = 0 if waits_for_reply and not view.is_stopping else self._timeout_seconds
            with anyio.move_on_after(seconds) as scope, suppress(*passed_on):
                is_taken = await session.recorded(command)
            if scope.cancelled_caught:
                inbox = self._stored.journal
                if isinstance(inbox, Inbox):
                    # So far it is only in this process's memory. The reader of the inbox finds it taken later.
                    receipt = await call_store_in_time(inbox.send(view.secrets.mask(command)))
                    # The store does not know a request that has not begun, which is only in memory itself.
                    if receipt.state == "waiting" or (receipt.state == "unknown" and not session.is_accepted):
                        return "queued"
                is_taken = await session.recorded(command)
        if is_taken:
            return "done"
        return "ended" if not session.snapshot().view.is_released else await self._send(command)

    async def _send(self, command: Event) -> CommandStatus:
        """Put a command into the inbox, and wait until the process that runs the request has taken it."""
        if self._stored is None:  # Only this process could know the request.
            return "unknown"
        journal = self._stored.journal
        if command.request_id != self.request_id:
            # A sub-request has no record in the store: its question is answered through the request above it.
            command = replace(command, request_id=self.request_id)
        command = await self._masked(self._stored, command)
        try:
            written = encode(command)
            if len(written) <= _MAX_BYTES:
                decode(written)  # The process that takes it has to read it.
        except DecodeError as exc:
            raise BusError(f"this {command.type} is refused: {exc}") from exc
        except TypeError as exc:
            raise BusError(f"this {command.type} is refused: it is not JSON: {exc}") from exc
        if len(written) > _MAX_BYTES:
            raise ConfigurationError(f"this {command.type} has over {_MAX_BYTES:,} bytes; pass a shorter one")
        if not isinstance(journal, Inbox):
            record = await self._stored.record(self.request_id)
            if record is None:
                return "unknown"
            if record.ending is not None:
                return await self._ended(journal, command)
            raise ConfigurationError(
                f"request {self.request_id} does not run here, and {type(journal).__name__} has no inbox for commands "
                "to other processes; use SqliteStore, PostgresStore or MongoStore"
            )
        receipt = await call_store_in_time(journal.send(command))
        with anyio.move_on_after(self._timeout_seconds):
            while receipt.state == "waiting" and receipt.is_held:
                await self._settled(command)
                receipt = await call_store_in_time(journal.receipt(command.request_id, command.event_id))
        answer = _answer(receipt)
        return await self._ended(journal, command) if answer == "ended" else answer

    async def _masked(self, stored: StoredRequests, command: EventT) -> EventT:
        """Return a command without the secrets that this process was given: the store keeps it."""
        if not self._secrets:
            return command
        record = await stored.record(self.request_id)
        conversation_id = "" if record is None else record.conversation_id
        return GivenSecrets(self._secrets, self.request_id, conversation_id).mask(command)

    async def _ended(self, journal: JournalStore, command: Event) -> CommandStatus:
        """Return "done" for a command that an ended request has among its facts, and otherwise "ended"."""
        facts = await call_store_in_time(journal.facts(self.request_id))
        return "done" if any(each.fact.event_id == command.event_id for each in facts) else "ended"

    async def _settled(self, command: Event) -> None:
        """Wait until the owner of the request says that it has settled an input, but no longer than `seconds`."""
        with anyio.move_on_after(self._seconds):
            if self._exchange is None:
                await anyio.sleep_forever()
            else:
                owner = await self._owner()
                try:
                    settled = await self._exchange.ask_to_look(owner, command.event_id)
                    await settled.wait()
                finally:
                    self._exchange.forget(command.event_id)

    async def _join(self, exchange: Exchange, after: str, facts_only: bool) -> LiveEvents | None:  # noqa: FBT001
        """Return the events after a cursor from the process that runs the request, if it can be asked."""
        return await exchange.join(await self._owner(), self.request_id, after, facts_only=facts_only)

    async def _owner(self) -> str:
        """Return the address of the process that runs the request, or an empty text if none does."""
        record = await self._requests().record(self.request_id)
        return "" if record is None else record.owner

    # --------------------------------------------------------------------------------------------- the request

    def _session(self) -> RequestSession | None:
        return self._local(self.request_id)

    def _requests(self) -> StoredRequests:
        if self._stored is None:
            raise UnknownRequest(f"no request {self.request_id!r} runs here, and the store has no journal")
        return self._stored

    def _read_along(self) -> ReadAlong:
        return ReadAlong(self._requests(), self.request_id)


def _answer(receipt: InboxReceipt) -> CommandStatus:
    match receipt.state:
        case "taken":
            return "done"
        case "waiting":
            return "queued"
        case "unknown":
            return "unknown"
        case _:
            if receipt.reason:
                raise BusError(receipt.reason)
            return "ended"
