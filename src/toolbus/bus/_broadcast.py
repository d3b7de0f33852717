"""The broadcast: the delivery of every published event to the receivers and subscriptions that want it.

Knows listeners, the event loop and the clock. Must not know calls: arbitration decides before an event comes here.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel

from ..clock import SessionClock, refuse_elsewhere, running_loop
from ..errors import BusError
from ..events import Event, ReceiverFailed, SubscriptionFull
from ..records import replace
from ._buffer import EventBuffer, Overflow
from ._subscriptions import (
    EventT,
    Receivers,
    Subscription,
    Turns,
    exception_text,
    expand_kinds,
    is_stray_cancellation,
    refuse_coroutine,
)

_logger = logging.getLogger("toolbus.bus")


class Broadcast:
    """The delivery of events to all listeners, in the order of publishing.

    The bus checks each publisher with `check_publisher`. An event that a receiver publishes during a delivery waits in
    a queue until the event that is being delivered has reached every listener.
    """

    def __init__(self, *, max_causal_depth: int, max_queued: int) -> None:
        self.position = 0
        self.queued_peak = 0
        self.receiver_failures = 0
        self.is_delivering = False
        self.token: anyio.lowlevel.EventLoopToken | None = None
        self.thread = 0
        self.clock: SessionClock | None = None  # None until the bus is bound to an event loop
        self._max_depth = max_causal_depth
        self._max_queued = max_queued
        self._connections = Receivers()
        self._receivers = self._connections.by_type
        self._by_type: dict[type[Event], list[Subscription[Any]]] = {}
        self._by_request: dict[str, list[Subscription[Any]]] = {}
        # The subscriptions that also hear sub-requests, by the id of the topmost request.
        self._by_family: dict[str, list[Subscription[Any]]] = {}
        # The requests above each running sub-request, nearest first.
        self.above: dict[str, tuple[str, ...]] = {}
        self._turns = Turns()
        self._queue: deque[tuple[Event, int]] = deque()
        self._depth = 0
        self._fatal: BaseException | None = None

    # ------------------------------------------------------------------------------------------- loop and clock

    def bind(self) -> None:
        """Bind the bus to the event loop that runs now, for its clock and for `publish_threadsafe`.

        Raises `NotRunning` outside of an event loop.
        """
        try:
            token = anyio.lowlevel.current_token()
        except anyio.NoEventLoopError:
            token = running_loop()  # It raises the error that says what to do, and is not called in each request.
        # Tokens of one loop are equal and not identical, since anyio makes a new object each time.
        if token != self.token:
            self.token = token
            self.thread = threading.get_ident()
            self.clock = SessionClock()
            self._turns.renew()

    def check_publisher(self, event: Event) -> None:
        """Raise `BusError` for a publisher in another thread, and for receivers that publish beyond the bounds."""
        if threading.get_ident() != self.thread and self.token is not None:
            refuse_elsewhere(self.token, event.type)
        if self.is_delivering and (self._depth >= self._max_depth or len(self._queue) >= self._max_queued):
            raise BusError(
                f"{event.type} was not published: receivers answer events with events, {self._depth} deep with "
                f"{len(self._queue)} waiting; a receiver answers, directly or indirectly, its own events"
            )

    def envelope_of(self, event: Event) -> dict[str, Any]:
        """Return the fields of an event about `event`: its ids and metadata, and the present time.

        Without an event loop, the time is that of `event`.
        """
        try:
            now = event.at if self.clock is None else self.clock()
        except RuntimeError:  # anyio's NoEventLoopError, or what trio's own clock raises
            now = event.at
        return {
            "request_id": event.request_id,
            "conversation_id": event.conversation_id,
            "parent_id": event.parent_id,
            "at": now,
            "metadata": event.metadata,
        }

    # ------------------------------------------------------------------------------------------------ delivery

    def announce(self, *events: Event) -> None:
        """Deliver each event to every listener, in order and without arbitration.

        Raises, after all listeners were called for all events, an exception of a receiver that is the host's (not an
        `Exception`).
        """
        if self.is_delivering:
            depth = self._depth + 1
            self._queue.extend([(event, depth) for event in events])
            self.queued_peak = max(self.queued_peak, len(self._queue))
            return
        if not self._by_request:
            for event in events:
                if type(event) in self._receivers or type(event) in self._by_type:
                    break
            else:
                self.position += len(events)  # Nobody listens.
                return
        self.is_delivering = True
        try:
            for event in events:
                self._deliver(event)
                if self._queue:
                    self._deliver_answers()
        finally:
            self.is_delivering = False
        if self._fatal is not None:
            fatal, self._fatal = self._fatal, None
            raise fatal

    def _deliver(self, event: Event) -> None:
        self.position = position = self.position + 1
        kind = type(event)
        for each in self._receivers.get(kind, ()):
            if each.is_connected:  # An earlier receiver of this event may have disconnected it.
                try:
                    outcome = each.receiver(event)
                    if outcome is not None:
                        refuse_coroutine(outcome, each.name)
                except BaseException as exc:  # No exception may reach the publisher before all receivers were called.
                    self._listener_failed(each.name, event, exc)
        subscriptions = self._by_type.get(kind)
        if subscriptions:
            for each in tuple(subscriptions):
                each.offer(position, event)
        if self._by_request:
            subscriptions = self._by_request.get(event.request_id)
            if subscriptions:
                for each in tuple(subscriptions):
                    each.offer(position, event)
            if self._by_family:
                for each in self._listening_above(event.request_id):
                    each.offer(position, event)

    def _deliver_answers(self) -> None:
        """Deliver the events that receivers have published meanwhile, and those that answer them."""
        while self._queue:
            answer, self._depth = self._queue.popleft()
            self._deliver(answer)
        self._depth = 0

    def _listening_above(self, request_id: str) -> list[Subscription[Any]]:
        """Return the subscriptions to requests above this one that also hear sub-requests."""
        return [each for above in self.above.get(request_id, ()) for each in self._by_family.get(above, ())]

    def wants(self, kind: type[Event], request_id: str = "") -> bool:
        """Return whether anybody would hear an event of `kind` of that request. If not, it need not be built."""
        if kind in self._receivers or kind in self._by_type:
            return True
        if not self._by_request:
            return False
        if any(each.wants(kind) for each in self._by_request.get(request_id, ())):
            return True
        return bool(self._by_family) and any(each.wants(kind) for each in self._listening_above(request_id))

    # ----------------------------------------------------------------------------------------------- listeners

    def nest(self, request_id: str, parent_id: str) -> None:
        """Let the listeners to the sub-requests of `parent_id` hear this request as well."""
        self.above[request_id] = (parent_id, *self.above.get(parent_id, ()))

    def connect(
        self, kinds: type[EventT] | tuple[type[EventT], ...], receiver: Callable[[EventT], object]
    ) -> Callable[[], None]:
        """See `EventBus.connect`."""
        return self._connections.connect(expand_kinds(kinds if isinstance(kinds, tuple) else (kinds,)), receiver)

    def subscribe(
        self,
        *kinds: type[EventT],
        request_id: str | None,
        sub_requests: bool,
        where: Callable[[Event], bool] | None,
        until: Callable[[Event], bool] | None,
        capacity: int,
        overflow: Overflow,
        name: str,
    ) -> Subscription[EventT]:
        """See `EventBus.subscribe`."""
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
            EventBuffer(capacity, overflow, lambda buffer: self._subscription_full(buffer, name, request_id or "")),
            types=frozenset(wanted),
            where=where,
            until=until,
            on_open=on_open,
            on_close=on_close,
            on_error=lambda subscription, event, exc: self._listener_failed(repr(subscription), event, exc),
            turns=self._turns,
            name=name,
        )

    def close_subscriptions(self, request_id: str) -> None:
        """End the subscriptions to one request that continues elsewhere, since it publishes nothing more here."""
        for each in tuple(self._by_request.get(request_id, ())):
            each.close()

    def count_receivers(self) -> int:
        """Return the number of connected receivers; a receiver counts once for each event type."""
        return sum(map(len, [*self._receivers.values()]))

    def subscriptions(self) -> list[Subscription[Any]]:
        """Return all open subscriptions, each once. May be called from any thread."""
        tables = [*self._by_type.values(), *self._by_request.values()]
        return list({id(each): each for table in tables for each in [*table]}.values())

    def _subscription_full(self, buffer: EventBuffer, name: str, request_id: str) -> None:
        has_ended = buffer.failed_at is not None
        _logger.warning(
            "subscription %r: its reader is too slow for its %d events, so %s",
            name,
            buffer.capacity,
            "it has ended" if has_ended else "signals are dropped",
            extra={"request_id": request_id},
        )
        full = SubscriptionFull(name=name, capacity=buffer.capacity, ended=has_ended)
        self.announce(replace(full, at=self.envelope_of(full)["at"]))

    def _listener_failed(self, name: str, event: Event, exc: BaseException) -> None:
        self.receiver_failures += 1
        if self._fatal is None and not isinstance(exc, Exception) and not is_stray_cancellation(exc):
            self._fatal = exc
        extra = {"request_id": event.request_id, "event_id": event.event_id}
        _logger.error(
            "request %s: receiver %s failed on %s", event.request_id, name, event.type, exc_info=exc, extra=extra
        )
        # A listener to failures that fails itself would cause failures without end.
        if not isinstance(event, ReceiverFailed):
            self.announce(
                ReceiverFailed(
                    **self.envelope_of(event),
                    receiver=name,
                    event_type=event.type,
                    failed_event_id=event.event_id,
                    error=exception_text(exc),
                )
            )
