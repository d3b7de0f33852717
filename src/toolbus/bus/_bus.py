"""The event bus: arbitration of terminal events, mailboxes, receivers, subscriptions.

`publish` is synchronous and never blocks. Results never travel through a slow listener's queue: the control path is a
session's mailbox, found by dictionary and lossless; receivers are called inline; subscriptions are bounded and may
drop, and say so. The bus knows events and nothing of sessions, tools or models.

Ids stay correct whoever races whom, because the bus arbitrates: a call is opened before anybody can answer it, its
first terminal event settles it, a later one becomes `ToolCallLate`, and one that nobody opened a `DeadLetter`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import anyio
import anyio.from_thread
import anyio.lowlevel

from ..clock import SessionClock, loop_runs, refuse_elsewhere
from ..errors import BusError, ConfigurationError
from ..events import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    DeadLetter,
    Event,
    ReceiverFailed,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallPaused,
    ToolCallResumed,
)
from ._buffer import EventBuffer, Overflow
from ._mailbox import Mailbox
from ._subscriptions import (
    BusStatistics,
    EventT,
    Receivers,
    Subscription,
    expand_kinds,
    is_stray_cancellation,
    words_of,
)

if TYPE_CHECKING:
    from ..protocols import LateResults, RequestView

__all__ = ["BusStatistics", "EventBus"]

_Terminal: TypeAlias = ToolCallCompleted | ToolCallFailed
_Key: TypeAlias = tuple[str, str]

_TERMINAL = frozenset[type[Event]]({ToolCallCompleted, ToolCallFailed})
_ADDRESSED = frozenset[type[Event]]({CancelRequested, SteeringAdded, ApprovalDecided, ToolCallPaused, ToolCallResumed})
_PAUSES = (ToolCallPaused, ToolCallResumed)
_logger = logging.getLogger("toolbus.bus")


def _ids(request_id: str, call_id: str) -> dict[str, str]:
    """The extra fields of a log record about a call."""
    return {"request_id": request_id, "call_id": call_id}


class EventBus:
    """A broadcast bus inside one event loop.

    `max_settled` is how many settled calls are remembered, to tell a late result from one that nobody asked for.
    `max_causal_depth` bounds how deep receivers may answer events with events, `max_queued` how many of these may
    wait; past either, `publish` raises `BusError`, in the receiver that goes round in circles. Bounds below 1 (for
    `max_settled`, below 0) raise `ConfigurationError`.

    Not thread-safe but for `publish_threadsafe`. A publisher's events reach every listener in the order of
    publishing; what a receiver publishes is delivered after the event that it was told of.
    """

    def __init__(self, *, max_settled: int = 10_000, max_causal_depth: int = 64, max_queued: int = 10_000) -> None:
        if min(max_settled + 1, max_causal_depth, max_queued) < 1:
            raise ConfigurationError(f"{max_settled=}, {max_causal_depth=}, {max_queued=}: a bound is too low")
        self._max_settled = max_settled
        self._max_depth = max_causal_depth
        self._max_queued = max_queued
        self._position = 0
        self._connections = Receivers(self._listener_failed)
        self._receivers = self._connections.by_type
        self._by_type: dict[type[Event], list[Subscription[Any]]] = {}
        self._by_request: dict[str, list[Subscription[Any]]] = {}
        self._by_family: dict[str, list[Subscription[Any]]] = {}  # those that hear sub-requests too, by the topmost one
        self._above: dict[str, tuple[str, ...]] = {}  # sub-requests that run, and all above them, nearest first
        self._mailboxes: dict[str, Mailbox] = {}
        self._open: dict[_Key, Mailbox] = {}
        self._questions: set[_Key] = set()  # calls that wait for a person
        self._watched: dict[_Key, Callable[[], None]] = {}
        self._settled: dict[_Key, LateResults] = {}
        self._settled_order: deque[_Key] = deque()
        self._queue: deque[tuple[Event, int]] = deque()
        self._delivering = False
        self._depth = 0
        self._token: anyio.lowlevel.EventLoopToken | None = None
        self._thread = 0
        self._clock: SessionClock | None = None
        self._peaks = {"mailboxes": 0, "open_calls": 0, "queued": 0}
        self._failures = self._late = self._dead = 0
        self._fatal: BaseException | None = None

    # ------------------------------------------------------------------------------------------- publishing

    @property
    def clock(self) -> SessionClock:
        """The clock of everything on this bus, set when the bus first meets its event loop."""
        if self._clock is None:
            self._clock = SessionClock()
        return self._clock

    @property
    def position(self) -> int:
        """How many events were published: the newest one's position, dense from 1."""
        return self._position

    def publish(self, event: Event, *, cause: BaseException | None = None) -> bool:
        """Arbitrate an event and broadcast it. Returns whether it was accepted.

        False means: a terminal event for a call that was settled before (it goes out as `ToolCallLate`), an event
        addressed to a call or request that nobody opened, or a fact that only the session of a running request may
        publish (`DeadLetter`). True means arbitrated, not durable: what is addressed to a request with a journal is
        broadcast by its session, after the append (G31); `session.recorded(event)` waits for that. `cause`, the
        exception behind a failure, reaches the session of this process and no listener. Raises `BusError` when
        receivers publish in circles and in another thread than its loop's, and what a receiver raised that is the
        host's, after all listeners were called.
        """
        if threading.get_ident() != self._thread and self._token is not None:
            refuse_elsewhere(self._token, event.type)
        kind = type(event)
        if self._delivering and (self._depth >= self._max_depth or len(self._queue) >= self._max_queued):
            raise BusError(
                f"{event.type} was not published: receivers answer events with events, {self._depth} deep with "
                f"{len(self._queue)} waiting; one of them goes round in a circle"
            )
        mailbox = self._mailboxes.get(event.request_id)
        if mailbox is not None and mailbox.told is not None:
            event = mailbox.told(event)
        if kind in _TERMINAL:
            if not self._settle(cast("_Terminal", event), cause):
                return False
        elif kind in _ADDRESSED:
            if mailbox is None:
                return self.dead_letter(event, "no such request runs here")
            if isinstance(event, ApprovalDecided):
                if (key := (event.request_id, event.call_id)) not in self._questions:
                    return self.dead_letter(event, "no approval is open")  # nobody asked, or somebody has answered
                self._questions.remove(key)
            elif isinstance(event, _PAUSES) and not self.is_open(event.request_id, event.call_id):
                return self.dead_letter(event, "no such call is open")
            mailbox.put(event)
        elif mailbox is not None and mailbox.publishes_facts and event.is_fact:
            return self.dead_letter(event, "only the session of a running request publishes its facts")
        else:
            self.announce(event)
            return True
        if mailbox is None or not mailbox.publishes_inputs:
            self.announce(event)
        return True

    def publish_threadsafe(self, event: Event) -> bool:
        """`publish`, from any thread; waits until it is done and returns what it returned.

        On the loop's own thread it publishes directly. Raises `BusError` before something runs on the bus (it learns
        its loop from a dispatcher, a session or a subscription), and after the loop has ended.
        """
        if self._token is None:
            raise BusError("the bus has no event loop yet: start a Runtime, a dispatcher or a subscription first")
        try:
            if threading.get_ident() != self._thread:
                return anyio.from_thread.run_sync(self.publish, event, token=self._token)
            if loop_runs(self._token):
                return self.publish(event)
        except anyio.RunFinishedError:
            pass
        raise BusError(f"the event loop of this bus has ended; {event.type} was not published")

    def announce_all(self, events: Sequence[Event]) -> None:
        """`announce`, event by event, and all of them whatever it raises."""
        if not (self._by_request or self._delivering):
            kinds = {*map(type, events)}
            if kinds.isdisjoint(self._receivers) and kinds.isdisjoint(self._by_type):
                self._position += len(events)  # nobody to tell
                return
        told = 0
        try:
            for event in events:
                told += 1
                self.announce(event)
        except BaseException:  # the host's: nobody else would tell the others
            self.announce_all(events[told:])
            raise

    def announce(self, event: Event) -> None:
        """Broadcast without arbitration: for sessions, which have claimed what they say. Use `publish`."""
        if self._delivering:
            self._queue.append((event, self._depth + 1))
            self._peaks["queued"] = max(self._peaks["queued"], len(self._queue))
            return
        kind = type(event)
        if kind not in self._receivers and kind not in self._by_type and not self._by_request:
            self._position += 1  # nobody to tell
            return
        self._delivering = True
        try:
            self._deliver(event)
            while self._queue:
                event, self._depth = self._queue.popleft()
                self._deliver(event)
        finally:
            self._delivering = False
            self._depth = 0
        if self._fatal is not None:
            fatal, self._fatal = self._fatal, None
            raise fatal

    def _deliver(self, event: Event) -> None:
        self._position = position = self._position + 1
        kind = type(event)
        for receiver in self._receivers.get(kind, ()):
            receiver(event)
        subscriptions = self._by_type.get(kind)
        if subscriptions:
            for each in tuple(subscriptions):
                each.offer(position, event)
        if self._by_request:
            subscriptions = self._by_request.get(event.request_id)
            if subscriptions:
                for each in tuple(subscriptions):
                    each.offer(position, event)
            if self._by_family and self._above:
                for each in self._listening_above(event.request_id):
                    each.offer(position, event)

    def _listening_above(self, request_id: str) -> list[Subscription[Any]]:
        """The subscriptions to requests above this one that hear their sub-requests."""
        return [each for above in self._above.get(request_id, ()) for each in self._by_family.get(above, ())]

    def wants(self, kind: type[Event], request_id: str = "") -> bool:
        """Whether anybody would hear an event of `kind` of that request; if not, it need not be built."""
        if kind in self._receivers or kind in self._by_type:
            return True
        if self._by_request and any(each.wants(kind) for each in self._by_request.get(request_id, ())):
            return True
        return bool(self._by_family) and any(each.wants(kind) for each in self._listening_above(request_id))

    # ------------------------------------------------------------------------------------------- arbitration

    def open_mailbox(self, request_id: str, view: RequestView | None = None, *, parent_id: str = "") -> Mailbox:
        """The mailbox of a request that begins. `view` is what handlers may see of it.

        `parent_id` is the request for one of whose calls it works; who listens to that one's sub-requests hears it.
        """
        if request_id in self._mailboxes:
            raise BusError(f"request {request_id!r} has a mailbox already")
        if not self._mailboxes:  # a bus moves to another loop only when it is idle
            self.bind()
        mailbox = self._mailboxes[request_id] = Mailbox(request_id, view)
        if parent_id:
            self._above[request_id] = (parent_id, *self._above.get(parent_id, ()))
        self._peaks["mailboxes"] = max(self._peaks["mailboxes"], len(self._mailboxes))
        return mailbox

    def close_mailbox(self, mailbox: Mailbox) -> None:
        """Forget a request that has ended. Calls that it leaves open count as settled: a result comes too late now."""
        if self._mailboxes.get(mailbox.request_id) is mailbox:
            del self._mailboxes[mailbox.request_id]
            self._above.pop(mailbox.request_id, None)
        if mailbox.open_calls:
            for key in [key for key, owner in self._open.items() if owner is mailbox]:
                self.claim(*key)

    def view(self, request_id: str) -> RequestView | None:
        """What handlers may see of a request that runs in this process."""
        mailbox = self._mailboxes.get(request_id)
        return None if mailbox is None else mailbox.view

    def open_calls(self, mailbox: Mailbox, call_ids: Iterable[str]) -> None:
        """Expect one terminal event for each of these calls. All calls of a round are opened before one is told."""
        opened = self._open
        request_id = mailbox.request_id
        for call_id in call_ids:
            opened[request_id, call_id] = mailbox
            mailbox.open_calls += 1
        self._peaks["open_calls"] = max(self._peaks["open_calls"], len(opened))

    def open_approval(self, mailbox: Mailbox, question: ApprovalRequested) -> None:
        """Expect one `ApprovalDecided` for this call: the first one counts, a later one becomes `DeadLetter`."""
        self._questions.add((mailbox.request_id, question.call_id))
        if not self.wants(ApprovalRequested, mailbox.request_id):
            ids = _ids(mailbox.request_id, question.call_id)
            _logger.warning("%s waits for approval, and nobody listens for ApprovalRequested", question.name, extra=ids)

    def claim(self, request_id: str, call_id: str) -> bool:
        """Settle a call on behalf of its session. False when somebody was first; then their event is in the mailbox."""
        key = (request_id, call_id)
        mailbox = self._open.pop(key, None)
        if mailbox is None:
            return False
        mailbox.open_calls -= 1
        self._remember(key, mailbox)
        return True

    def watch(self, request_id: str, call_id: str, settled: Callable[[], None]) -> bool:
        """Take a call on. `settled` is called when somebody else settles it, so that the executor can stop.

        False when the call is not to be run here: another executor has taken it on, it is settled already, or nobody
        opened it on this bus, so that its request was forged or came from elsewhere (the log says so). `settled` is
        called once, inline, before the terminal event is broadcast; it must be quick and not publish. What it raises
        is logged.
        """
        key = (request_id, call_id)
        if key in self._watched or key not in self._open:
            if key not in self._watched and key not in self._settled:
                _logger.warning("call %s was not run: no session here has opened it", call_id, extra=_ids(*key))
            return False
        self._watched[key] = settled
        return True

    def unwatch(self, request_id: str, call_id: str) -> None:
        """Do not be told any more. Idempotent."""
        self._watched.pop((request_id, call_id), None)

    def is_open(self, request_id: str, call_id: str) -> bool:
        """Whether the call still waits for its terminal event."""
        return (request_id, call_id) in self._open

    def _settle(self, event: _Terminal, cause: BaseException | None) -> bool:
        key = (event.request_id, event.call_id)
        mailbox = self._open.pop(key, None)
        if mailbox is not None:
            mailbox.open_calls -= 1
            mailbox.put(event, cause)
            self._remember(key, mailbox)
            return True
        how = self._settled.get(key)
        if how is None:
            return self.dead_letter(event, "no such call is open")
        self._late += 1
        if how == "drop":
            return False
        completed = isinstance(event, ToolCallCompleted)
        late = ToolCallLate(
            **self._envelope(event),
            call_id=event.call_id,
            name=event.name,
            late=event.type,
            content=event.content if completed else "",
            parts=event.parts if completed else (),
            error="" if completed else event.error,
            for_next_turn=how == "next_turn",
        )
        mailbox = self._mailboxes.get(event.request_id)
        if mailbox is None or not mailbox.holds(late):
            self.announce(late)
        return False

    def _envelope(self, event: Event) -> dict[str, Any]:
        """What an event about `event` takes over: its ids, and the present moment; without a loop, that of `event`."""
        try:
            now = event.at if self._clock is None else self._clock()
        except RuntimeError:  # anyio's NoEventLoopError, or what trio's own clock says
            now = event.at
        return {
            "request_id": event.request_id,
            "conversation_id": event.conversation_id,
            "parent_id": event.parent_id,
            "at": now,
            "metadata": event.metadata,
        }

    def _remember(self, key: _Key, mailbox: Mailbox) -> None:
        if self._questions:
            self._questions.discard(key)
        if mailbox.publishes_inputs:
            mailbox.unpublished.add(key[1])
        self._settled[key] = mailbox.late
        self._settled_order.append(key)
        if len(self._settled_order) > self._max_settled:
            self._settled.pop(self._settled_order.popleft(), None)
        if (settled := self._watched.pop(key, None)) is not None:
            try:
                settled()
            except Exception:  # an executor's fault must not lose the result that its call was settled with
                _logger.exception("the watch on call %s failed", key[1], extra=_ids(*key))

    def dead_letter(self, event: Event, reason: str) -> Literal[False]:
        """Announce that `event` was not accepted, and log it. For sessions: inputs that came too late to matter."""
        self._dead += 1
        call_id: str = getattr(event, "call_id", "")
        extra = {**_ids(event.request_id, call_id), "event_id": event.event_id}
        _logger.warning("%s was not accepted: %s", event.type, reason, extra=extra)
        self.announce(
            DeadLetter(
                **self._envelope(event),
                letter_type=event.type,
                letter_id=event.event_id,
                call_id=call_id,
                reason=reason,
            )
        )
        return False

    # --------------------------------------------------------------------------------------------- listening

    def connect(
        self, kinds: type[EventT] | tuple[type[EventT], ...], receiver: Callable[[EventT], object]
    ) -> Callable[[], None]:
        """Call `receiver(event)` inline for each event of `kinds`; `Event` means every kind. Returns the disconnect.

        Receivers are called in the order of connection, are held strongly, and must be quick. One that raises becomes
        a `ReceiverFailed` and breaks nobody. An `async def` is refused with `TypeError`: subscribe instead. One that is
        connected while an event is delivered hears the next one; one that is disconnected then is not called any more.
        """
        return self._connections.connect(expand_kinds(kinds if isinstance(kinds, tuple) else (kinds,)), receiver)

    def _listener_failed(self, name: str, event: Event, exc: BaseException) -> None:
        self._failures += 1
        if self._fatal is None and not isinstance(exc, Exception) and not is_stray_cancellation(exc):
            self._fatal = exc
        extra = {"request_id": event.request_id, "event_id": event.event_id}
        _logger.error("receiver %s failed on %s", name, event.type, exc_info=exc, extra=extra)
        if not isinstance(event, ReceiverFailed):  # else a listener of failures that fails would go on for ever
            self.announce(
                ReceiverFailed(
                    **self._envelope(event),
                    receiver=name,
                    event_type=event.type,
                    failed_event_id=event.event_id,
                    error=words_of(exc),
                )
            )

    def subscribe(
        self,
        *kinds: type[EventT],
        request_id: str | None = None,
        sub_requests: bool = False,
        where: Callable[[Event], bool] | None = None,
        until: Callable[[Event], bool] | None = None,
        capacity: int = 1_000,
        overflow: Overflow = "drop_oldest",
        name: str = "",
    ) -> Subscription[EventT]:
        """Events through a bounded buffer, for a listener that awaits: see `Subscription`.

        `kinds` are the types wanted (all, when none is given), `request_id` restricts it to one request, which makes
        it free for all others, or with `sub_requests` to that one and those that its tools make; `where` filters
        further and must be quick; after an event for which `until` is true (of those types, or with `request_id` of
        any type) it ends. `capacity` is in events. `overflow` says what a full buffer does with signals: facts are
        never dropped, and a buffer full of facts ends the subscription with `SubscriptionOverflow`.
        """
        wanted = expand_kinds(kinds or (Event,))

        def lists() -> Iterator[tuple[dict[Any, list[Subscription[Any]]], Any]]:
            if request_id is not None:
                yield self._by_request, request_id
                if sub_requests:
                    yield self._by_family, request_id
            else:
                for kind in wanted:
                    yield self._by_type, kind

        def on_open(subscription: Subscription[Any]) -> None:
            self.bind()
            for table, key in lists():
                table.setdefault(key, []).append(subscription)

        def on_close(subscription: Subscription[Any]) -> None:
            for table, key in lists():
                table[key].remove(subscription)
                if not table[key]:
                    del table[key]

        return Subscription(
            EventBuffer(capacity, overflow),
            types=frozenset(wanted),
            where=where,
            until=until,
            on_open=on_open,
            on_close=on_close,
            on_error=lambda subscription, event, exc: self._listener_failed(repr(subscription), event, exc),
            name=name,
        )

    def close_subscriptions(self, request_id: str) -> None:
        """End those that listen to one request which goes on elsewhere: nothing more of it is to be heard here."""
        for each in tuple(self._by_request.get(request_id, ())):
            each.close()

    # ------------------------------------------------------------------------------------------------- upkeep

    def bind(self) -> None:
        """Learn the event loop that runs now, for `publish_threadsafe`. Called by whatever starts on the bus."""
        token = anyio.lowlevel.current_token()
        if token != self._token:  # equal, not identical: anyio makes a new object each time
            self._token = token
            self._thread = threading.get_ident()
            self._clock = SessionClock()

    def statistics(self) -> BusStatistics:
        """Depths, peaks and losses. Costs O(listeners)."""
        tables = (*self._by_type.values(), *self._by_request.values())
        subscriptions = {id(each): each for table in tables for each in table}
        return BusStatistics(
            position=self._position,
            mailboxes=len(self._mailboxes),
            mailboxes_peak=self._peaks["mailboxes"],
            open_calls=len(self._open),
            open_calls_peak=self._peaks["open_calls"],
            settled_remembered=len(self._settled),
            queued_peak=self._peaks["queued"],
            receivers=sum(map(len, self._receivers.values())),
            receiver_failures=self._failures,
            late=self._late,
            dead_letters=self._dead,
            subscriptions=tuple(each.statistics() for each in subscriptions.values()),
        )
