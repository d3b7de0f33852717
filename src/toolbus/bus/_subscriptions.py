"""The bus's listeners: receivers, which are called inline, and subscriptions, which may be slow.

A subscription is an async iterator over a bounded buffer. Knows the buffer, blinker and anyio; the bus hands events
in, and is told when a subscription is closed and what a listener raised.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableSet, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, cast

import anyio
import anyio.lowlevel
from blinker import ANY, Signal

from ..errors import BusError, SubscriptionOverflow
from ..events import EVENT_TYPES, Event
from ._buffer import EventBuffer

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import TypeVar  # with a default, which Python itself has from 3.13 on

    EventT = TypeVar("EventT", bound=Event, default=Event)
    EventT_co = TypeVar("EventT_co", bound=Event, default=Event, covariant=True)
else:
    from typing import TypeVar

    EventT = TypeVar("EventT", bound=Event)
    EventT_co = TypeVar("EventT_co", bound=Event, covariant=True)

__all__ = [
    "BusStatistics",
    "EventT",
    "Receivers",
    "Subscription",
    "SubscriptionStatistics",
    "expand_kinds",
    "is_stray_cancellation",
    "words_of",
]

Predicate: TypeAlias = "Callable[[Event], bool]"
Past: TypeAlias = "Callable[[], Awaitable[Sequence[Event]]]"

_BATCH = 64
"""Events delivered without giving way to other tasks. A memory stream gives way at each, for ten times the price."""


@dataclass(slots=True, frozen=True)
class SubscriptionStatistics:
    """Counts in events: `matched` = `delivered` + `merged` + `dropped` + `buffered`. `peak` is of `buffered`."""

    name: str
    capacity: int
    buffered: int
    peak: int
    matched: int
    delivered: int
    merged: int
    dropped: int


@dataclass(slots=True, frozen=True)
class BusStatistics:
    """What the bus holds and has seen. Peaks are since the bus was made; a receiver counts once for each event type."""

    position: int
    mailboxes: int
    mailboxes_peak: int
    open_calls: int
    open_calls_peak: int
    settled_remembered: int
    queued_peak: int
    receivers: int
    receiver_failures: int
    late: int
    dead_letters: int
    subscriptions: tuple[SubscriptionStatistics, ...]


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


class Receivers:
    """Who is called inline, by event type, in the order of connection: `EventBus.connect` says how.

    `on_error(name, event, exception)` is told what one of them raised, in the middle of a delivery: it must not raise.
    """

    def __init__(self, on_error: Callable[[str, Event, BaseException], None]) -> None:
        self.by_type: dict[type[Event], tuple[Callable[[Event], None], ...]] = {}
        self._signals: dict[type[Event], _EventSignal] = {}
        self._on_error = on_error

    def connect(self, kinds: Iterable[type[Event]], receiver: Callable[[Any], object]) -> Callable[[], None]:
        """Call `receiver` for events of just these types. Returns the disconnect. `TypeError` where it is async."""
        if not callable(receiver):
            raise TypeError(f"{receiver!r} cannot be called, so it cannot be a receiver")
        name = _name_of(receiver)
        if _is_async(receiver):
            raise TypeError(_refusal(name))
        on_error = self._on_error
        connected = True

        def guarded(event: Event) -> None:
            if not connected:  # by an earlier receiver of this event
                return
            try:
                outcome = receiver(event)
                if outcome is not None:
                    _refuse_coroutine(outcome, name)
            except BaseException as exc:  # whatever it raises must not reach the publisher before all were told
                on_error(name, event, exc)

        def disconnect() -> None:
            nonlocal connected
            connected = False
            for kind in kinds:
                self._signals[kind].disconnect(guarded)
                self._list(kind)

        for kind in kinds:
            self._signals.setdefault(kind, _EventSignal()).connect(guarded, weak=False)
            self._list(kind)
        return disconnect

    def _list(self, kind: type[Event]) -> None:
        """Keep who has to be called, so that publishing need not ask the signal (2.5 us) at every event."""
        receivers = tuple(self._signals[kind].receivers_for(ANY))
        if receivers:
            self.by_type[kind] = receivers
        else:
            self.by_type.pop(kind, None)


class Subscription(Generic[EventT_co]):
    """The events of one listener, in the order of the bus. Made by `EventBus.subscribe`.

        async with bus.subscribe(TextDelta, capacity=100) as events:
            async for event in events: ...

    Listens from entering to leaving the block, once: what has ended stays ended, also if it is entered after that.
    Iterating waits for the next event and ends when the subscription is closed; cancelling it loses nothing. It gives
    way to other tasks at least at every 64th event. One that was never opened would hear nothing: a `BusError`.

    After an overflow, what is inside is delivered and then `SubscriptionOverflow` is raised. A `where` or `until` that
    raises becomes a `ReceiverFailed`, breaks no other listener and ends the subscription in the same way, with a
    `BusError`. So does a second task that would wait for an event at the same time: there is one reader.
    """

    __slots__ = (
        "_batch",
        "_buffer",
        "_early",
        "_error",
        "_on_close",
        "_on_error",
        "_on_open",
        "_past",
        "_state",
        "_told",
        "_types",
        "_until",
        "_wake",
        "_where",
        "name",
    )

    def __init__(
        self,
        buffer: EventBuffer,
        *,
        types: frozenset[type[Event]],
        where: Predicate | None,
        until: Predicate | None,
        on_open: Callable[[Subscription[Any]], None],
        on_close: Callable[[Subscription[Any]], None],
        on_error: Callable[[Subscription[Any], Event, BaseException], None],
        name: str,
    ) -> None:
        self._buffer = buffer
        self._types = types
        self._where = where
        self._until = until
        self._on_open = on_open
        self._on_close = on_close
        self._on_error = on_error
        self._wake: anyio.Event | None = None
        self._error: BaseException | None = None
        self._state: Literal["new", "open", "ended"] = "new"
        self._batch = 0
        self._past: Past | None = None
        self._early: deque[EventT_co] = deque()
        self._told: set[str] = set()  # what is in the past and may come a second time
        self.name = name

    def preceded_by(self, past: Past) -> None:
        """Deliver the events of `past` first, which is awaited by the first reading, and what is among them once.

        What `past` raises, that reading raises, and the next one asks again.
        """
        self._past = past

    @property
    def position(self) -> int:
        """The bus position of the newest event that was delivered; 0 before the first."""
        return self._buffer.position

    def wants(self, kind: type[Event]) -> bool:
        """Whether events of `kind` match."""
        return kind in self._types

    def open(self) -> Subscription[EventT_co]:
        """Listen from now on. `async with` does this; whoever calls it must call `close`, or wait for the end.

        Opens once: after the end, this and `async with` change nothing, and what is inside can be read.
        """
        if self._state == "new":
            self._on_open(self)
            self._state = "open"
        return self

    def close(self) -> None:
        """Stop listening. What is inside can still be read. Idempotent."""
        was, self._state = self._state, "ended"
        if was == "open":
            self._on_close(self)
            if self._wake is not None:
                self._wake.set()

    def offer(self, position: int, event: Event) -> None:
        """Called by the bus for each event; never blocks and never raises."""
        try:
            matches = type(event) in self._types and (self._where is None or self._where(event))
            ends = self._until is not None and self._until(event)
        except BaseException as exc:  # whatever it is, it is neither the publisher's nor another listener's
            self._error = exc
            self.close()
            self._on_error(self, event, exc)
            return
        if matches:
            buffer = self._buffer
            ends = not buffer.offer(position, event) or ends
            if self._wake is not None and buffer.length <= 1:  # else it is woken: it waits while there is nothing
                self._wake.set()
        if ends:
            self.close()

    def receive_nowait(self) -> EventT_co | None:
        """The next event if there is one; None otherwise. Never gives way, so use it to drain in batches.

        Raises what iterating raises, once all that is inside was read.
        """
        if self._early:
            return self._early.popleft()
        event = self._take()
        if event is None:
            self._raise_failure()
        return event

    def _take(self) -> EventT_co | None:
        event = self._buffer.take()
        while self._told and event is not None and event.event_id in self._told:
            self._told.remove(event.event_id)
            event = self._buffer.take()
        return cast("EventT_co | None", event)  # nothing else was put there

    async def __aenter__(self) -> Subscription[EventT_co]:
        return self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Subscription[EventT_co]:
        return self

    async def __anext__(self) -> EventT_co:
        if self._state == "new":
            raise BusError(f"{self!r} hears nothing yet; enter it first: async with bus.subscribe(...) as events")
        self._batch += 1
        if self._batch >= _BATCH:
            self._batch = 0
            await anyio.lowlevel.checkpoint()
        if self._past is not None:
            await self._read_past(self._past)
        if self._early:
            return self._early.popleft()
        while True:
            event = self._take()
            if event is not None:
                return event
            self._raise_failure()
            if self._state != "open":
                raise StopAsyncIteration
            self._check_alone()
            self._batch = 0
            self._wake = anyio.Event()
            try:
                await self._wake.wait()
            finally:
                self._wake = None

    async def _read_past(self, past: Past) -> None:
        self._check_alone()
        self._wake = anyio.Event()  # so that nobody else reads meanwhile
        try:
            told = await past()
        finally:
            self._wake = None
        self._past, self._told = None, {event.event_id for event in told}
        self._early.extend(cast("EventT_co", event) for event in told if type(event) in self._types)

    def _check_alone(self) -> None:
        if self._wake is not None:
            raise BusError(f"{self!r} is read by another task already; subscribe once for each")

    def _raise_failure(self) -> None:
        if self._buffer.failed_at is not None:
            raise SubscriptionOverflow(self._buffer.capacity, self._buffer.failed_at)
        if self._error is not None:
            raise BusError(f"{self!r} has ended, since its where or until raised") from self._error

    def __repr__(self) -> str:
        return f"<Subscription {self.name!r}, {self._state}>"

    async def aclose(self) -> None:
        """`close`, for `contextlib.aclosing`."""
        self.close()

    def statistics(self) -> SubscriptionStatistics:
        """Counts so far."""
        buffer = self._buffer
        return SubscriptionStatistics(
            name=self.name,
            capacity=buffer.capacity,
            buffered=buffer.length,
            peak=buffer.peak,
            matched=buffer.offered,
            delivered=buffer.taken,
            merged=buffer.merged,
            dropped=buffer.dropped,
        )


def _is_async(receiver: Any) -> bool:
    called = receiver.func if isinstance(receiver, functools.partial) else receiver
    either = (called, getattr(called, "__call__", None))  # noqa: B004 -- an object may be called by an async method
    return any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in either)


def _refuse_coroutine(outcome: object, name: str) -> None:
    """A lambda around something async, say, cannot be known before it is called."""
    if inspect.iscoroutine(outcome):
        outcome.close()
        raise TypeError(_refusal(name))


def _refusal(name: str) -> str:
    return (
        f"{name} is async, and receivers are called inline; "
        "use `async with bus.subscribe(...) as events:` in a task of its own"
    )


def _name_of(receiver: Any) -> str:
    return f"{getattr(receiver, '__module__', '')}.{getattr(receiver, '__qualname__', repr(receiver))}".lstrip(".")


def expand_kinds(kinds: Iterable[type[Event]]) -> tuple[type[Event], ...]:
    """The concrete event types that `kinds` mean."""
    wanted: dict[type[Event], None] = {}
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Event)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{kind!r} is no event type; see toolbus.events")
        found = dict.fromkeys(each for each in EVENT_TYPES if issubclass(each, kind))
        if not found:  # a class of one's own, which nobody can publish
            raise TypeError(f"{kind.__name__} is no event type of toolbus.events")
        wanted.update(found)
    return tuple(wanted)


def words_of(exc: BaseException) -> str:
    """An exception for people, whatever is wrong with it."""
    try:
        return f"{type(exc).__name__}: {exc}"
    except Exception:  # its __str__ is broken as well
        return type(exc).__name__


def is_stray_cancellation(exc: BaseException) -> bool:
    """A stray one, such as the result of a cancelled future: nobody can cancel what does not await."""
    try:
        return isinstance(exc, anyio.get_cancelled_exc_class())
    except anyio.NoEventLoopError:
        return False
