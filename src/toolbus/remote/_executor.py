"""The executor in the sessions' process: it sends the calls of one pool to a transport, and publishes the answers."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import TypeVar, cast

import anyio
import msgspec

from ..bus import EventBus
from ..errors import DecodeError
from ..events import (
    Event,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    Spent,
    TerminalEvent,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallProgress,
    ToolCallRequested,
    ToolCallRetrying,
    ToolCallStarted,
    decode,
)
from ..failures import is_being_cancelled
from ..messages import Message
from ..protocols import RequestView
from ..records import replace
from ..session import SessionView
from ..tools import ToolRegistry
from ._bodies import Reference, call_body, large_call, larger_than, reference_in
from ._payloads import LargeBodies, TooLarge
from ._questions import Answering, is_question_message
from ._transport import Damaged, Key, NotTaken, SessionLink, Unavailable

_What = TypeVar("_What")
SIGNALS = (ToolCallStarted, ToolCallProgress, ToolCallRetrying)
_ANSWER_SECONDS = 2.0
_RETRY_SECONDS = 0.2
_LOOK_SECONDS = 1.0
_ALL_LOOKS = 10
"""Answers of resumed calls go to the node that asked first, so these calls are looked up in every pass, and all others
in every tenth, in case a live answer was lost."""
_LOST_SECONDS = 0.1
"""A call that the broker did not take fails this long before its deadline. Otherwise it would end as a time-out."""
_MAX_REQUESTS = 10_000
"""The most requests that are remembered to delete their calls: a request that continues elsewhere never ends here."""
_ENDINGS = (RequestCompleted, RequestFailed, RequestCancelled)
_LEAVE_SECONDS = 2.0
"""The time in which workers are asked to stop when the executor is left."""
_logger = logging.getLogger("toolbus.remote")


class _Open(msgspec.Struct, eq=False):
    """One call that a worker has to answer."""

    requested: ToolCallRequested
    view: RequestView | None
    messages: Sequence[Message] | None = None  # the transcript, if it is sent along
    may_run_twice: bool = False
    is_sent: bool = False
    is_again: bool = False  # the broker may have taken the call before
    since: float = math.inf  # The broker may have taken the call after this time, and lost it if it keeps less.
    unsure_at: float = -math.inf  # when it was last unknown whether the broker has the call, on the loop's clock
    payload: Reference | None = None  # the call as it is kept, if it does not fit into a message
    is_loading: bool = False  # its answer is known, and is read now
    spent: Spent | None = None  # what the questions of its handler have used up


class _Kept(msgspec.Struct):
    """The things beside answers that the broker may keep of a request: they are deleted at the request's end.

    The broker keeps no calls if each was sent once and answered by its worker, which has given up the lease before.
    """

    calls: bool = False
    payloads: bool = False


class RemoteExecutor:
    """The calls of one pool on one bus. `connect` opens the transport for as long as the executor is entered."""

    def __init__(
        self,
        bus: EventBus,
        tools: ToolRegistry,
        pool: str,
        connect: Callable[[], AbstractAsyncContextManager[SessionLink]],
        on_cancelled: Callable[[], object],
    ) -> None:
        self._bus = bus
        self._tools = tools
        self._pool = pool
        self._connect = connect
        self._on_cancelled = on_cancelled
        self._open: dict[Key, _Open] = {}
        self._settled: dict[Key, _Open] = {}  # the calls to stop, once their terminal events are published
        self._requests: dict[str, _Kept] = {}  # requests of which the broker keeps something, the oldest first
        self._reconnected = False
        self._asking, self._asked_at = anyio.Lock(), -math.inf  # for the time since which the broker keeps calls
        self._unsent: deque[Key] = deque()
        self._some_unsent = anyio.Event()
        self._closes = self._is_away = False

    async def __aenter__(self) -> None:
        async with AsyncExitStack() as stack:
            self._link = await stack.enter_async_context(self._connect())
            stack.callback(self._close)  # after the tasks have ended, and before the link does
            self._group = await stack.enter_async_context(anyio.create_task_group())
            self._large = LargeBodies(self._link.payloads)
            self._answering = Answering(
                self._group,
                self._large,
                lambda: self._link.max_bytes,
                self._tell,
                view_of=self._view_of,
                spent=self._on_spent,
                keeps=lambda key: self._note(key[0], payloads=True),
            )
            self._link.listen(self._on_heard, self._on_reconnected)
            self._group.start_soon(self._send)
            self._group.start_soon(self._look)
            stack.callback(self._bus.connect(ToolCallRequested, self._on_requested))
            stack.callback(self._bus.connect((ToolCallCompleted, ToolCallFailed), self._on_published))
            stack.callback(self._bus.connect(_ENDINGS, self._on_request_ended))
            self._stack = stack.pop_all()

    async def __aexit__(self, *exc_info: object) -> None:
        try:
            if self._open and is_being_cancelled():
                self._on_cancelled()
            for key, call in [*self._open.items()]:
                # `_stop_settled` stops the worker; a request that is left is answered where it continues.
                if not _is_left(call):
                    failed = call.requested.failed("The executor was closed.", reason="cancelled", outcome_unknown=True)
                    self._bus.publish(self._with_spent(key, call, failed))
                else:
                    self._bus.arbitration.unwatch(*key)
            self._open.clear()
            self._stop_settled()
        finally:
            self._group.cancel_scope.cancel()
            # The task group's exit must not see the host's exception: it would be wrapped in a group.
            await self._stack.aclose()

    def _close(self) -> None:
        self._closes = True

    # --------------------------------------------------------------------------------------------- the bus

    def _on_requested(self, requested: ToolCallRequested) -> None:
        key = (requested.request_id, requested.call_id)
        view = self._bus.arbitration.view(requested.request_id)
        tool = view.tools.get(requested.name) if view is not None and isinstance(view.tools, ToolRegistry) else None
        tool = tool or self._tools.get(requested.name)
        if tool is None or tool.spec.pool != self._pool:
            return
        own = None if view is None else view.calls.get(requested.call_id)
        if own is not None and own.requested_at is None:
            # The session has not requested this call: it waits for an approval, or for its turn.
            return
        if self._bus.arbitration.watch(*key, partial(self._on_settled, key)):
            messages = view.messages if view is not None and tool.needs_transcript else None
            call = _Open(requested, view, messages, may_run_twice=tool.spec.idempotent, is_again=requested.resumed)
            self._open[key] = call
            if not self._link.carries(key):
                self._publish(key, too_large(requested, "The ids of the call are", "too long for the broker"))
                return
            # The process that has run a resumed request before may have kept payloads, too.
            self._note(requested.request_id, calls=requested.resumed, payloads=requested.resumed)
            if requested.resumed:
                call.unsure_at = anyio.current_time()
                call.since = view.state.started_at if isinstance(view, SessionView) else math.inf
            self._put(key)

    def _on_settled(self, key: Key) -> None:
        """Give up a call that was settled elsewhere: by a deadline, a cancellation or another answer."""
        if (call := self._open.pop(key, None)) is None:
            return  # It was settled here.
        self._answering.settle(key)
        if not _is_left(call):
            self._settled[key] = call
            # The broker may be away when the call should be deleted, and back when its marks are deleted.
            self._note(key[0], calls=True)

    def _on_published(self, event: TerminalEvent) -> None:
        """Stop the worker of a call that was settled elsewhere.

        With a journal, an outcome is broadcast after its append. Before, another process may have taken the request
        over, and wait for what would be deleted.
        """
        if (call := self._settled.pop(key := (event.request_id, event.call_id), None)) is not None:
            self._group.start_soon(self._stop, call, key)

    def _stop_settled(self, request_id: str = "") -> None:
        """Stop the workers of calls whose outcomes will not be published, by default of all requests."""
        for key, call in [each for each in self._settled.items() if request_id in ("", each[0][0])]:
            del self._settled[key]
            if not _is_left(call):
                self._group.start_soon(self._stop, call, key)

    def _on_request_ended(self, event: Event) -> None:
        # With a journal, an ending is broadcast after its append, too: nobody needs the broker's copies of answers any
        # more, unless the request failed here because of its store.
        kept, view = self._requests.pop(event.request_id, None), self._bus.arbitration.view(event.request_id)
        self._stop_settled(event.request_id)
        if kept is not None and not (view is not None and view.is_released):
            # A process that was suspended and replaced may still send a call that has run: its mark stays.
            was_resumed = isinstance(view, SessionView) and view.state.resumptions > 0
            kinds = {"calls_too": kept.calls, "payloads_too": kept.payloads, "never_again": was_resumed}
            self._group.start_soon(self._quietly, partial(self._link.forget, **kinds), event.request_id)

    def _note(self, request_id: str, *, calls: bool = False, payloads: bool = False) -> None:
        """Note that the broker keeps something of a request. What nobody deletes, the broker deletes after days."""
        kept = self._requests.setdefault(request_id, _Kept())
        kept.calls, kept.payloads = kept.calls or calls, kept.payloads or payloads
        if len(self._requests) > _MAX_REQUESTS:
            del self._requests[next(iter(self._requests))]

    # ------------------------------------------------------------------------------------------ the transport

    def _put(self, key: Key) -> None:
        self._unsent.append(key)
        self._some_unsent.set()

    async def _send(self) -> None:
        """Write calls in their order, and wait for none of their acknowledgements."""
        while True:
            await self._some_unsent.wait()
            self._some_unsent = anyio.Event()
            while self._unsent:
                key = self._unsent.popleft()
                call = self._open.get(key)
                if call is not None and call.is_again:
                    self._group.start_soon(self._find_or_write, key, call)
                elif call is not None:
                    await self._write(key, call)

    async def _find_or_write(self, key: Key, call: _Open) -> None:
        """Write a call that the broker may have had before, unless it has lost the call, which must not run twice.

        The answer of a resumed call is reported instead, if there is one. Workers look for those of other calls.
        """
        try:
            with anyio.fail_after(self._timeout(call)):
                if call.requested.resumed and await self._found(key):
                    return
                was_lost = not call.may_run_twice and call.since < await self._kept_since(call.unsure_at)
        except (Unavailable, TimeoutError) as exc:
            self._on_sent(key, call, Unavailable(str(exc) or "the broker did not answer in time"))
            return
        if self._open.get(key) is not call:
            return
        if was_lost:
            text = "The broker has lost the call meanwhile, and nobody knows whether the call had its effect."
            self._settled[key] = call  # It may still run, or be in the driver's buffer.
            self._publish(key, call.requested.failed(text, reason="interrupted", outcome_unknown=True))
        else:
            await self._write(key, call)

    async def _kept_since(self, moment: float) -> float:
        """Return the time since which the broker keeps calls, as known at `moment` on the loop's clock or later.

        The broker is asked once for all calls that wait: there may be thousands after it was away.
        """
        async with self._asking:
            if self._asked_at < moment:
                asked_at = anyio.current_time()
                await self._link.kept_since()
                self._asked_at = asked_at
            return self._link.known_since

    async def _write(self, key: Key, call: _Open) -> None:
        try:
            body = call_body(call.requested, call.messages)
        except TypeError as exc:
            # For example, the metadata of the request has a value that is not JSON.
            self._publish(key, call.requested.failed(f"The call cannot be sent to a worker: {exc}.", reason="error"))
            return
        if len(body) <= self._link.max_bytes:
            await self._post(key, call, body)
        else:
            # The calls after this one do not wait for it.
            self._group.start_soon(partial(self._write_large, call), key)

    async def _write_large(self, call: _Open, key: Key) -> None:
        def body() -> bytes | None:
            return call_body(call.requested, call.messages) if self._open.get(key) is call else None

        self._note(key[0], payloads=True)
        why = ""
        try:
            with anyio.fail_after(self._timeout(call)):
                call.payload = await self._large.keep(key, body)
        except TooLarge as exc:
            why = str(exc)
        except (Unavailable, TimeoutError) as exc:
            self._on_sent(key, call, NotTaken(str(exc) or "the broker did not keep its payload in time"))
            return
        head = b"" if call.payload is None else large_call(call.requested, call.payload)
        if len(head) > self._link.max_bytes:
            why = larger_than(self._link.max_bytes)
        if self._open.get(key) is not call:
            await self._drop(call, key)
        elif why:
            what = "The arguments of the call are" if call.messages is None else "The call with its transcript is"
            self._publish(key, too_large(call.requested, what, why))
        else:
            await self._post(key, call, head)

    async def _post(self, key: Key, call: _Open, body: bytes) -> None:
        left, seconds = self._left(call.requested), min(_ANSWER_SECONDS, self._timeout(call))
        if not call.is_again:
            call.since = self._link.known_since
        await self._link.send(key, body, left, partial(self._on_sent, key, call), seconds=seconds, again=call.is_again)

    def _timeout(self, call: _Open) -> float:
        """Return the seconds until it is time to report that the broker has not taken a call."""
        left = self._left(call.requested)
        return max(0.0, left - min(_LOST_SECONDS, left / 2))

    def _on_sent(self, key: Key, call: _Open, outcome: bool | Unavailable) -> None:  # noqa: FBT001 -- `Then`
        is_open = self._open.get(key) is call
        if self._closes:
            return
        if isinstance(outcome, Unavailable):
            if is_open:
                self._note(key[0], calls=True)
                if not self._is_away:
                    _logger.warning("call %s was not sent yet: %s", key[1], outcome)
                self._is_away = True
                call.unsure_at = anyio.current_time()
                call.is_again = call.is_again or not isinstance(outcome, NotTaken)
                self._group.start_soon(self._send_again, key)
        else:
            self._is_away, call.is_sent = False, True
            if not is_open and not _is_left(call) and key not in self._settled:
                # The call was settled while it was sent.
                self._group.start_soon(self._stop, call, key)

    async def _send_again(self, key: Key) -> None:
        """Send a call after a moment. If its deadline is near, it ends as `lost` instead."""
        call = self._open.get(key)
        if call is None:
            return
        if (pause := min(_RETRY_SECONDS, self._left(call.requested) - _LOST_SECONDS)) > 0:
            await anyio.sleep(pause)
            self._put(key)
            return
        text = "The call could not be delivered: the broker of its worker did not answer."
        # The broker may have taken the call without saying so, or take it now, from the driver's buffer.
        self._settled[key] = call
        self._publish(key, call.requested.failed(text, reason="lost", outcome_unknown=True))

    def _left(self, requested: ToolCallRequested) -> float:
        return requested.at + requested.timeout_seconds - self._bus.clock()

    async def _found(self, key: Key) -> bool:
        body = await self._link.find(key)
        if body is not None and key in self._open:
            self._note(key[0], calls=True)
            self._on_heard(body)
        call = self._open.get(key)
        return call is None or call.is_loading

    async def _look(self) -> None:
        """Look for answers that were sent to another node, or while the connection was away."""
        passes = 0
        while True:
            await anyio.sleep(_LOOK_SECONDS)
            passes += 1
            self._answering.look()
            # No outcome will be published for a call whose request was left after the call was settled.
            self._settled = {key: call for key, call in self._settled.items() if not _is_left(call)}
            every, self._reconnected = self._reconnected or passes % _ALL_LOOKS == 0, False
            for key, call in [*self._open.items()]:
                if (call.is_sent or call.is_again) and (every or call.requested.resumed):
                    try:
                        await self._found(key)
                    except Unavailable:
                        self._reconnected = True
                        break

    def _on_reconnected(self) -> None:
        self._reconnected = True

    def _on_heard(self, body: bytes) -> None:
        try:
            reference = reference_in(body)
            if is_question_message(body):
                self._answering.hear(body)
            elif reference is None:
                self._on_event(decode(body))
            elif (call := self._open.get(reference.key)) is not None and not call.is_loading:
                call.is_loading = True
                self._note(reference.request, payloads=True)
                self._group.start_soon(partial(self._load, call), reference)
        except DecodeError as exc:
            _logger.warning("an answer of the pool %r was not accepted: %s", self._pool, exc)

    async def _load(self, call: _Open, reference: Reference) -> None:
        """Read an answer that is kept as a payload. The first answer counts, so one that cannot be read is lost."""
        key, event = reference.key, None
        error = "The call ran, but its result was lost: the broker does not have what the worker has kept."
        failed = call.requested.failed(error, reason="lost", outcome_unknown=True)
        try:
            event = await self._large.load(reference, decode)
        except TooLarge as exc:
            failed = too_large(call.requested, "The call ran, but its result is", str(exc), ran=True)
        except (Damaged, DecodeError) as exc:
            _logger.warning("the answer of call %s was lost: %s", key[1], exc)
        except Unavailable as exc:
            _logger.debug("the answer of call %s was not read yet: %s", key[1], exc)
            self._reconnected = True
            return
        finally:
            call.is_loading = False
        if event is not None and self._open.get(key) is call:
            self._on_event(event)
        if self._open.get(key) is call:
            self._publish(key, failed)

    def _on_event(self, event: Event) -> None:
        key = (event.request_id, getattr(event, "call_id", ""))
        call = self._open.get(key)
        if call is None:
            return
        requested = call.requested
        if not isinstance(event, (*SIGNALS, ToolCallCompleted, ToolCallFailed)) or (
            getattr(event, "name", requested.name) != requested.name
        ):
            _logger.warning("an answer to call %s was not accepted: it is %s, or of another tool", key[1], event.type)
            return
        # Only the ids of the call count; everything else of the envelope is the request's own.
        event = cast(
            "Event",
            replace(
                event,
                conversation_id=requested.conversation_id,
                parent_id=requested.parent_id,
                metadata=requested.metadata,
            ),
        )
        if isinstance(event, TerminalEvent):
            if isinstance(event, ToolCallFailed) and event.reason == "interrupted":
                # The worker that was lost may have kept a part of its answer.
                self._note(key[0], payloads=True)
            self._publish(key, event)
        else:
            self._bus.publish(event)

    def _publish(self, key: Key, event: TerminalEvent) -> None:
        call = self._open[key]
        event = self._with_spent(key, call, event)
        del self._open[key]
        self._bus.publish(event)
        if call.payload is not None:
            self._group.start_soon(partial(self._drop, call), key)

    def _with_spent(self, key: Key, call: _Open, event: TerminalEvent) -> TerminalEvent:
        """End the questions of a call, and return its answer with what they have used up."""
        self._answering.settle(key)
        return event if call.spent is None else replace(event, spent=call.spent)

    def _view_of(self, key: Key) -> RequestView | None:
        call = self._open.get(key)
        return None if call is None else call.view

    def _on_spent(self, key: Key, spent: Spent) -> None:
        if (call := self._open.get(key)) is not None:
            call.spent = spent if call.spent is None else call.spent + spent

    async def _tell(self, worker: str, line: bytes) -> None:
        try:
            await self._link.tell(worker, line)
        except Unavailable as exc:
            _logger.debug("an answer to a worker was lost, and is sent again when it asks: %s", exc)

    async def _stop(self, call: _Open, key: Key) -> None:
        await self._quietly(partial(self._link.stop, never_again=call.requested.resumed), key)
        if (kept := self._requests.get(key[0])) is not None and kept.payloads:
            await self._quietly(self._link.payloads.drop, key)

    async def _drop(self, call: _Open, key: Key) -> None:
        """Delete the payload of a call that is settled; that of its answer stays until the request ends."""
        if call.payload is not None:
            await self._quietly(partial(self._link.payloads.drop, digest=call.payload.digest), key)

    @staticmethod
    async def _quietly(function: Callable[[_What], Awaitable[None]], what: _What) -> None:
        try:
            # Workers are asked to stop also while the host is cancelled.
            with anyio.move_on_after(_LEAVE_SECONDS, shield=True):
                await function(what)
        except Unavailable as exc:
            kept = f"call {what[1]}" if isinstance(what, tuple) else f"request {what}"
            _logger.warning("the broker keeps what it has of %s: %s", kept, exc)


def _is_left(call: _Open) -> bool:
    return call.view is not None and call.view.is_released


def too_large(requested: ToolCallRequested, what: str, why: str, *, ran: bool = False) -> ToolCallFailed:
    """Return the failure, with the reason `limit`, of a call with a part that is too large.

    `what` and `why` form its sentence: "The arguments of the call are" "larger than ...".
    """
    return replace(requested.failed(f"{what} {why}.", reason="limit", outcome_unknown=ran), limit=why)
