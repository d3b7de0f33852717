"""The event bus: arbitration of terminal events, mailboxes, receivers, subscriptions.

`publish` is synchronous and never blocks. Results never travel through a slow listener's queue: the control path is a
session's mailbox, found by dictionary and lossless; receivers are called inline; subscriptions are bounded and may
drop, and say so. The bus knows events and nothing of sessions, tools or models.

Ids stay correct whoever races whom, because the bus arbitrates: a call is opened before anybody can answer it, its
first terminal event settles it, a later one becomes `ToolCallLate`, and one that nobody opened a `DeadLetter`.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import anyio
import anyio.from_thread
import anyio.lowlevel
from blinker import ANY, Signal

from .buffers import EventBuffer, Overflow
from .clock import SessionClock
from .errors import BusError, ConfigurationError
from .events import (
    EVENT_TYPES,
    ApprovalDecided,
    CancelRequested,
    DeadLetter,
    Event,
    ReceiverFailed,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
)
from .mailbox import Mailbox
from .subscriptions import Subscription, SubscriptionStatistics

if TYPE_CHECKING:
    from .protocols import RequestView

__all__ = ["BusStatistics", "EventBus"]

E = TypeVar("E", bound=Event)
_Terminal: TypeAlias = ToolCallCompleted | ToolCallFailed
_Key: TypeAlias = tuple[str, str]

_TERMINAL = frozenset[type[Event]]({ToolCallCompleted, ToolCallFailed})
_ADDRESSED = frozenset[type[Event]]({CancelRequested, SteeringAdded, ApprovalDecided})
_logger = logging.getLogger("toolbus.bus")


class _OrderedIds(MutableSet[Any]):
    """The set that blinker keeps receivers in, with the order of connection."""

    def __init__(self, ids: Iterable[Any] = ()) -> None:
        self._ids = dict.fromkeys(ids)

    def __contains__(self, item: object) -> bool:
        return item in self._ids

    def __iter__(self) -> Iterator[Any]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, value: Any) -> None:
        self._ids[value] = None

    def discard(self, value: Any) -> None:
        self._ids.pop(value, None)

    def copy(self) -> _OrderedIds:
        return _OrderedIds(self._ids)


class _EventSignal(Signal):
    set_class = cast("type[set[Any]]", _OrderedIds)


class EventBus:
    """A broadcast bus inside one event loop.

    `max_settled` is how many settled calls are remembered, to tell a late result from one that nobody asked for.
    `max_causal_depth` bounds how deep receivers may answer events with events, `max_queued` how many of these may
    wait; past either, `publish` raises `BusError`, in the receiver that goes round in circles.

    Not thread-safe but for `publish_threadsafe`. A publisher's events reach every listener in the order of
    publishing; what a receiver publishes is delivered after the event that it was told of.
    """

    def __init__(self, *, max_settled: int = 10_000, max_causal_depth: int = 64, max_queued: int = 10_000) -> None:
        self._max_settled = max_settled
        self._max_depth = max_causal_depth
        self._max_queued = max_queued
        self._position = 0
        self._signals: dict[type[Event], _EventSignal] = {}
        self._receivers: dict[type[Event], tuple[Callable[[Event], None], ...]] = {}  # the signals', in order
        self._by_type: dict[type[Event], list[Subscription]] = {}
        self._by_request: dict[str, list[Subscription]] = {}
        self._mailboxes: dict[str, Mailbox] = {}
        self._open: dict[_Key, Mailbox] = {}
        self._watched: dict[_Key, Callable[[], None]] = {}
        self._settled: set[_Key] = set()
        self._settled_order: deque[_Key] = deque()
        self._queue: deque[tuple[Event, int]] = deque()
        self._delivering = False
        self._depth = 0
        self._token: anyio.lowlevel.EventLoopToken | None = None
        self._thread = 0
        self._clock: SessionClock | None = None
        self._peaks = {"mailboxes": 0, "open_calls": 0, "queued": 0}
        self._failures = 0
        self._late = 0
        self._dead = 0

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
        """Tell everybody. Returns whether the event was accepted.

        False means: a terminal event for a call that was settled before (it goes out as `ToolCallLate`), or an event
        addressed to a call or request that nobody opened (`DeadLetter`). `cause`, the exception behind a failure,
        reaches the session of this process and no listener. Raises `BusError` when receivers publish in circles.
        """
        kind = type(event)
        if self._depth >= self._max_depth or len(self._queue) >= self._max_queued:
            raise BusError(
                f"{event.type} was not published: receivers answer events with events, {self._depth} deep with "
                f"{len(self._queue)} waiting; one of them goes round in a circle"
            )
        if kind in _TERMINAL:
            if not self._settle(cast("_Terminal", event), cause):
                return False
        elif kind in _ADDRESSED:
            mailbox = self._mailboxes.get(event.request_id)
            if mailbox is None:
                self._dead_letter(event, "", "no such request runs here")
                return False
            mailbox.put(event)
        self.announce(event)
        return True

    def publish_threadsafe(self, event: Event) -> bool:
        """`publish`, from any thread; waits until it is done and returns what it returned.

        On the loop's own thread it publishes directly. Raises `BusError` while nothing runs on the bus: it learns its
        loop from a dispatcher, a session or a subscription.
        """
        if threading.get_ident() == self._thread:
            return self.publish(event)
        if self._token is None:
            raise BusError("the bus has no event loop yet: start a Runtime, a dispatcher or a subscription first")
        try:
            return anyio.from_thread.run_sync(self.publish, event, token=self._token)
        except anyio.RunFinishedError as exc:
            raise BusError("the event loop of this bus has ended") from exc

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

    def wants(self, kind: type[Event], request_id: str = "") -> bool:
        """Whether anybody would hear an event of `kind` of that request; if not, it need not be built."""
        if kind in self._receivers or kind in self._by_type:
            return True
        mine = self._by_request.get(request_id)
        return mine is not None and any(each.wants(kind) for each in mine)

    # ------------------------------------------------------------------------------------------- arbitration

    def open_mailbox(self, request_id: str, view: RequestView | None = None) -> Mailbox:
        """The mailbox of a request that begins. `view` is what handlers may see of it."""
        if request_id in self._mailboxes:
            raise BusError(f"request {request_id!r} has a mailbox already")
        if self._token is None:
            self.bind()
        mailbox = self._mailboxes[request_id] = Mailbox(request_id, view)
        self._peaks["mailboxes"] = max(self._peaks["mailboxes"], len(self._mailboxes))
        return mailbox

    def close_mailbox(self, mailbox: Mailbox) -> None:
        """Forget a request that has ended. All its calls are settled by then."""
        self._mailboxes.pop(mailbox.request_id, None)

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
        self._peaks["open_calls"] = max(self._peaks["open_calls"], len(opened))

    def claim(self, request_id: str, call_id: str) -> bool:
        """Settle a call on behalf of its session. False when somebody was first; then their event is in the mailbox."""
        key = (request_id, call_id)
        if self._open.pop(key, None) is None:
            return False
        self._remember(key)
        return True

    def watch(self, request_id: str, call_id: str, settled: Callable[[], None]) -> None:
        """Be told when somebody settles a call that one is running: how an executor learns that it may stop.

        `settled` is called once, inline, before the terminal event is broadcast; it must be quick and not publish.
        """
        self._watched[request_id, call_id] = settled

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
            self._remember(key)
            mailbox.put(event, cause)
            return True
        if key not in self._settled:
            self._dead_letter(event, event.call_id, "no such call is open")
            return False
        self._late += 1
        completed = isinstance(event, ToolCallCompleted)
        self.announce(
            ToolCallLate(
                at=self._now(event),
                request_id=event.request_id,
                conversation_id=event.conversation_id,
                parent_id=event.parent_id,
                metadata=event.metadata,
                call_id=event.call_id,
                name=event.name,
                late=event.type,
                content=event.content if completed else "",
                error="" if completed else event.error,
            )
        )
        return False

    def _now(self, event: Event) -> float:
        """The present moment; where no loop runs, that of the event which is being handled."""
        try:
            return event.at if self._clock is None else self._clock()
        except anyio.NoEventLoopError:
            return event.at

    def _remember(self, key: _Key) -> None:
        settled = self._watched.pop(key, None)
        if settled is not None:
            settled()
        self._settled.add(key)
        self._settled_order.append(key)
        if len(self._settled_order) > self._max_settled:
            self._settled.discard(self._settled_order.popleft())

    def _dead_letter(self, event: Event, call_id: str, reason: str) -> None:
        self._dead += 1
        extra = {"request_id": event.request_id, "call_id": call_id, "event_id": event.event_id}
        _logger.warning("%s was addressed to nobody: %s", event.type, reason, extra=extra)
        self.announce(
            DeadLetter(
                at=self._now(event),
                request_id=event.request_id,
                conversation_id=event.conversation_id,
                metadata=event.metadata,
                letter_type=event.type,
                letter_id=event.event_id,
                call_id=call_id,
                reason=reason,
            )
        )

    # --------------------------------------------------------------------------------------------- listening

    def connect(self, kinds: type[E] | tuple[type[E], ...], receiver: Callable[[E], object]) -> Callable[[], None]:
        """Call `receiver(event)` inline for each event of `kinds`; `Event` means every kind. Returns the disconnect.

        Receivers are called in the order of connection, are held strongly, and must be quick. One that raises becomes
        a `ReceiverFailed` and breaks nobody. An `async def` is refused with `TypeError`: subscribe instead.
        """
        if inspect.iscoroutinefunction(receiver) or inspect.iscoroutinefunction(getattr(receiver, "__call__", None)):  # noqa: B004
            raise TypeError(
                f"{_name_of(receiver)} is async, and receivers are called inline; "
                "use `async with bus.subscribe(...) as events:` in a task of its own"
            )
        wanted = _expand(kinds if isinstance(kinds, tuple) else (kinds,))

        def guarded(event: Event) -> None:
            try:
                receiver(cast("E", event))
            except Exception as exc:  # whatever it raises must not reach the publisher
                self._receiver_failed(receiver, event, exc)

        for kind in wanted:
            self._signals.setdefault(kind, _EventSignal()).connect(guarded, weak=False)
            self._list_receivers(kind)

        def disconnect() -> None:
            for kind in wanted:
                self._signals[kind].disconnect(guarded)
                self._list_receivers(kind)

        return disconnect

    def _list_receivers(self, kind: type[Event]) -> None:
        """Keep who has to be called, so that publishing need not ask the signal (2.5 us) at every event."""
        receivers = tuple(self._signals[kind].receivers_for(ANY))
        if receivers:
            self._receivers[kind] = receivers
        else:
            self._receivers.pop(kind, None)

    def _receiver_failed(self, receiver: Callable[..., object], event: Event, exc: Exception) -> None:
        self._failures += 1
        name = _name_of(receiver)
        extra = {"request_id": event.request_id, "event_id": event.event_id}
        _logger.error("receiver %s failed on %s", name, event.type, exc_info=exc, extra=extra)
        if not isinstance(event, ReceiverFailed):  # else a listener of failures that fails would go on for ever
            self.announce(
                ReceiverFailed(
                    at=self._now(event),
                    request_id=event.request_id,
                    conversation_id=event.conversation_id,
                    metadata=event.metadata,
                    receiver=name,
                    event_type=event.type,
                    failed_event_id=event.event_id,
                    error=f"{type(exc).__name__}: {exc}",
                )
            )

    def subscribe(
        self,
        *kinds: type[Event],
        request_id: str | None = None,
        where: Callable[[Event], bool] | None = None,
        until: Callable[[Event], bool] | None = None,
        capacity: int = 1_000,
        overflow: Overflow = "drop_oldest",
        name: str = "",
    ) -> Subscription:
        """Events through a bounded buffer, for a listener that awaits: see `Subscription`.

        `kinds` are the types wanted (all, when none is given), `request_id` restricts it to one request, which makes
        it free for all others; `where` filters further and must be quick; after an event for which `until` is true
        (of those types, or with `request_id` of any type) it ends. `capacity` is in events. `overflow` says what a full
        buffer does with signals: facts are never dropped, and a buffer full of facts ends the subscription with
        `SubscriptionOverflow`.
        """
        if capacity < 1:
            raise ConfigurationError(f"capacity is {capacity}; a subscription needs at least one place")
        if overflow not in ("drop_oldest", "drop_newest", "coalesce", "disconnect"):
            raise ConfigurationError(
                f"overflow is {overflow!r}; it is drop_oldest, drop_newest, coalesce or disconnect"
            )
        wanted = _expand(kinds or (Event,))

        def lists() -> Iterator[tuple[dict[Any, list[Subscription]], Any]]:
            if request_id is not None:
                yield self._by_request, request_id
            else:
                for kind in wanted:
                    yield self._by_type, kind

        def on_open(subscription: Subscription) -> None:
            self.bind()
            for table, key in lists():
                table.setdefault(key, []).append(subscription)

        def on_close(subscription: Subscription) -> None:
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
            name=name,
        )

    # ------------------------------------------------------------------------------------------------- upkeep

    def bind(self) -> None:
        """Learn the event loop that runs now, for `publish_threadsafe`. Called by whatever starts on the bus."""
        token = anyio.lowlevel.current_token()
        if token != self._token:
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
            receivers=sum(len(signal.receivers) for signal in self._signals.values()),
            receiver_failures=self._failures,
            late=self._late,
            dead_letters=self._dead,
            subscriptions=tuple(each.statistics() for each in subscriptions.values()),
        )


def _expand(kinds: Iterable[type[Event]]) -> tuple[type[Event], ...]:
    """The concrete event types that `kinds` mean."""
    wanted: dict[type[Event], None] = {}
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Event)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{kind!r} is no event type; see toolbus.events")
        wanted.update(dict.fromkeys(each for each in EVENT_TYPES if issubclass(each, kind)))
    return tuple(wanted)


def _name_of(receiver: Any) -> str:
    return f"{getattr(receiver, '__module__', '')}.{getattr(receiver, '__qualname__', repr(receiver))}".lstrip(".")
