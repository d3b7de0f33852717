"""`EventBus`, the public interface of the bus: publishing and listening."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypedDict, TypeVar, Unpack, overload

import anyio
import anyio.from_thread

from .._option_checks import shown
from ..clock import SessionClock, loop_runs
from ..errors import BusError, ConfigurationError
from ..events import EVENT_TYPES, Event, ToolCallCompleted, ToolCallFailed
from ._arbitration import ADDRESSED, Arbitration
from ._broadcast import Broadcast
from ._buffer import Overflow
from ._subscriptions import BusStatistics, EventT, Subscription

_E1 = TypeVar("_E1", bound=Event)
_E2 = TypeVar("_E2", bound=Event)
_E3 = TypeVar("_E3", bound=Event)


class _Listening(TypedDict, Generic[EventT], total=False):
    """The options of `EventBus.subscribe`, for its overloads."""

    request_id: str | None
    sub_requests: bool
    where: Callable[[EventT], bool] | None
    until: Callable[[Event], bool] | None
    capacity: int
    overflow: Overflow
    name: str


_UNADDRESSED = frozenset[type[Event]](EVENT_TYPES) - ADDRESSED


class EventBus:
    """An event bus inside one event loop.

    `max_settled` is the number of settled calls that are remembered, to distinguish a late result from one for an
    unknown call. `max_causal_depth` bounds how deep receivers may answer events with events, and `max_queued` how many
    of these events may wait. Beyond either bound, `publish` raises `BusError` in the receiver, which probably answers
    its own events. Bounds below 1 (for `max_settled`, below 0) raise `ConfigurationError`.

    Only `publish_threadsafe` may be called from other threads. A publisher's events reach every listener in the order
    of publishing; an event that a receiver publishes is delivered after the event that the receiver was called with.

    Sessions and executors also use `arbitration`: it opens calls and decides which event answers each of them.
    """

    def __init__(self, *, max_settled: int = 10_000, max_causal_depth: int = 64, max_queued: int = 10_000) -> None:
        if min(max_settled + 1, max_causal_depth, max_queued) < 1:
            raise ConfigurationError(f"{max_settled=}, {max_causal_depth=}, {max_queued=}: a bound is too low")
        self._broadcast = Broadcast(max_causal_depth=max_causal_depth, max_queued=max_queued)
        self.arbitration = Arbitration(self._broadcast, max_settled=max_settled)
        """The interface for sessions and executors."""

    @property
    def clock(self) -> SessionClock:
        """The clock of everything on this bus, set when the bus is first bound to an event loop."""
        broadcast = self._broadcast
        if broadcast.clock is None:
            broadcast.clock = SessionClock()
        return broadcast.clock

    def publish(self, event: Event, *, cause: BaseException | None = None) -> bool:
        """Arbitrate an event and broadcast it. Returns whether it was accepted.

        False means one of four things: the call of a terminal event was settled before (the event is published as
        `ToolCallLate`); nobody opened the call or request that the event is addressed to; only the session of the
        running request may publish the fact (both are published as `DeadLetter`); or the answer of a call that no
        executor runs, or an input, cannot be used, since a field has a wrong type or a value that a journal cannot keep
        (the call fails, and an input is published as `DeadLetter`). True means arbitrated, not durable: an event that
        is addressed to a request with a journal is broadcast by its session, after the append (G31);
        `session.recorded(event)` waits for that. `cause`, the exception that led to a failure, reaches the session in
        this process and no listener.

        Raises `BusError` if receivers answer events with events beyond the bounds, and in another thread than that of
        the event loop; `TypeError` for an object that is not an event. After all listeners were called, raises an
        exception of a receiver that is the host's, such as KeyboardInterrupt.
        """
        broadcast = self._broadcast
        if broadcast.is_delivering or (threading.get_ident() != broadcast.thread and broadcast.token is not None):
            broadcast.check_publisher(event)
        arbitration = self.arbitration
        if isinstance(event, (ToolCallCompleted, ToolCallFailed)):
            return arbitration.accept_terminal(event, cause)
        if type(event) in _UNADDRESSED:
            mailbox = arbitration.mailboxes.get(event.request_id)
            # Most signals need no decision and no masking; they are broadcast at once.
            if mailbox is None or (mailbox.masked is None and not (mailbox.publishes_facts and event.is_fact)):
                broadcast.announce(event)
                return True
        elif not isinstance(event, Event):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{shown(event)} is not an event; publish an instance of a class of toolbus.events")
        return arbitration.accept(event)

    def publish_threadsafe(self, event: Event) -> bool:
        """Call `publish` from any thread, wait until it is done, and return its result.

        On the event loop's own thread it publishes directly. Raises `BusError` while the bus has no event loop (a
        dispatcher, a session or a subscription binds it to one), and after the loop has ended.
        """
        token = self._broadcast.token
        if token is None:
            raise BusError("the bus has no event loop yet: start a Runtime, a dispatcher or a subscription first")
        try:
            if threading.get_ident() != self._broadcast.thread:
                return anyio.from_thread.run_sync(self.publish, event, token=token)
            if loop_runs(token):
                return self.publish(event)
        except anyio.RunFinishedError:
            pass
        raise BusError(f"the event loop of this bus has ended; {event.type} was not published")

    # mypy joins the types in a tuple, or of a variadic call, into their base, so the first few are written out.
    @overload
    def connect(self, kinds: type[EventT], receiver: Callable[[EventT], object]) -> Callable[[], None]: ...
    @overload
    def connect(
        self, kinds: tuple[type[_E1], type[_E2]], receiver: Callable[[_E1 | _E2], object]
    ) -> Callable[[], None]: ...
    @overload
    def connect(
        self, kinds: tuple[type[_E1], type[_E2], type[_E3]], receiver: Callable[[_E1 | _E2 | _E3], object]
    ) -> Callable[[], None]: ...
    @overload
    def connect(self, kinds: tuple[type[EventT], ...], receiver: Callable[[EventT], object]) -> Callable[[], None]: ...
    def connect(self, kinds: Any, receiver: Callable[[Any], object]) -> Callable[[], None]:
        """Call `receiver(event)` inline for each event of `kinds`, a type or a tuple of them; `Event` means every type.

        Returns a function that disconnects the receiver. Receivers are called in the order of connection, are held
        strongly, and must be quick. An exception in one is published as `ReceiverFailed` and does not affect the
        others. An `async def` is refused with `TypeError`: subscribe instead. A `Tool` is refused too. A receiver that
        is connected while an event is delivered hears the next event; one that is disconnected during a delivery is not
        called again.
        """
        return self._broadcast.connect(kinds, receiver)

    @overload
    def subscribe(
        self, a: type[_E1], b: type[_E2], /, **options: Unpack[_Listening[_E1 | _E2]]
    ) -> Subscription[_E1 | _E2]: ...
    @overload
    def subscribe(
        self, a: type[_E1], b: type[_E2], c: type[_E3], /, **options: Unpack[_Listening[_E1 | _E2 | _E3]]
    ) -> Subscription[_E1 | _E2 | _E3]: ...
    @overload
    def subscribe(self, *kinds: type[EventT], **options: Unpack[_Listening[EventT]]) -> Subscription[EventT]: ...
    def subscribe(
        self,
        *kinds: type[Any],
        request_id: str | None = None,
        sub_requests: bool = False,
        where: Callable[[Any], bool] | None = None,
        until: Callable[[Event], bool] | None = None,
        capacity: int = 1_000,
        overflow: Overflow = "drop_oldest",
        name: str = "",
    ) -> Subscription[Any]:
        """Return a subscription: events through a bounded buffer, for a listener that awaits. See `Subscription`.

        `kinds` are the event types; without any, all types. `request_id` restricts the subscription to one request, so
        that it costs nothing for the others; with `sub_requests` also to the requests that its tools start. `where`
        filters further and must be quick. The subscription ends after an event for which `until` is true: an event of
        those types, or with `request_id` of any type.

        `capacity` is in events. `overflow` is the treatment of signals by a full buffer: see `Overflow`. Facts are
        never dropped; a buffer full of facts ends the subscription with `SubscriptionOverflow`.
        """
        return self._broadcast.subscribe(
            *kinds,
            request_id=request_id,
            sub_requests=sub_requests,
            where=where,
            until=until,
            capacity=capacity,
            overflow=overflow,
            name=name,
        )

    def statistics(self) -> BusStatistics:
        """Return the depths, peaks and losses of the bus, from any thread. Costs O(listeners)."""
        broadcast, arbitration = self._broadcast, self.arbitration
        return BusStatistics(
            position=broadcast.position,
            mailboxes=len(arbitration.mailboxes),
            mailboxes_peak=arbitration.mailboxes_peak,
            open_calls=arbitration.count_open_calls(),
            open_calls_peak=arbitration.open_calls_peak,
            settled_remembered=arbitration.count_settled(),
            queued_peak=broadcast.queued_peak,
            receivers=broadcast.count_receivers(),
            receiver_failures=broadcast.receiver_failures,
            late_results=arbitration.late,
            dead_letters=arbitration.dead_letters,
            subscriptions=tuple(each.statistics() for each in broadcast.subscriptions()),
        )
