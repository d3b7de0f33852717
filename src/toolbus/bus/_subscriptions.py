"""The bus's listeners: receivers, which are called inline, and subscriptions, which may be slow.

A subscription is an async iterator over a bounded buffer. Knows the buffer, blinker and anyio. The bus hands events in,
and is called back when a subscription closes and when a listener raises.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableSet, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, cast

import anyio
import anyio.lowlevel
from blinker import ANY, Signal

from ..errors import BusError, SubscriptionOverflow
from ..events import EVENT_TYPES, Event
from ..protocols import ToolSpec
from ._buffer import EventBuffer
from ._cursor import Cursor

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import TypeVar  # with a default, which Python itself has from 3.13 on

    EventT = TypeVar("EventT", bound=Event, default=Event)
    EventT_co = TypeVar("EventT_co", bound=Event, default=Event, covariant=True)
else:
    from typing import TypeVar

    EventT = TypeVar("EventT", bound=Event)
    EventT_co = TypeVar("EventT_co", bound=Event, covariant=True)

Predicate: TypeAlias = "Callable[[Event], bool]"

_TURNS = 32
"""The number of readers that begin to read in one round of the event loop."""

_BATCH = 64
"""The number of events delivered without a checkpoint. A memory stream has one per event, for ten times the cost."""


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
    """Counts of the bus. Peaks are since the bus was made; a receiver counts once for each event type.

    `position` is that of the newest event. `settled_remembered` is the number of settled calls that are remembered,
    `queued_peak` that of events which waited for the end of a delivery. `receiver_failures`, `late_results` and
    `dead_letters` are totals.
    """

    position: int
    mailboxes: int
    mailboxes_peak: int
    open_calls: int
    open_calls_peak: int
    settled_remembered: int
    queued_peak: int
    receivers: int
    receiver_failures: int
    late_results: int
    dead_letters: int
    subscriptions: tuple[SubscriptionStatistics, ...]


class _OrderedIds(MutableSet[Any]):
    """An ordered set in which blinker keeps receivers, so that they are called in the order of connection."""

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


@dataclass(slots=True, eq=False)
class _Connection:
    """A connected receiver. `name` is its name in logs."""

    receiver: Callable[[Any], object]
    name: str
    is_connected: bool = True


class Receivers:
    """The receivers by event type, in the order of connection: see `EventBus.connect`."""

    def __init__(self) -> None:
        self.by_type: dict[type[Event], tuple[_Connection, ...]] = {}
        self._signals: dict[type[Event], _EventSignal] = {}

    def connect(self, kinds: Iterable[type[Event]], receiver: Callable[[Any], object]) -> Callable[[], None]:
        """Call `receiver` for events of exactly these types. Returns the function that disconnects it.

        Raises `TypeError` if the receiver is async, is a tool or cannot be called.
        """
        if not callable(receiver):
            raise TypeError(f"{receiver!r} cannot be called, so it cannot be a receiver")
        if isinstance(getattr(receiver, "spec", None), ToolSpec):
            raise TypeError(f"{receiver!r} is a tool and cannot be a receiver; connect a function that takes an event")
        name = _name_of(receiver)
        if _is_async(receiver):
            raise TypeError(_refusal(name))
        connection: Any = _Connection(receiver, name)  # The type of blinker's receivers says that they are called.

        def disconnect() -> None:
            connection.is_connected = False
            for kind in kinds:
                self._signals[kind].disconnect(connection)
                self._store_receivers(kind)

        for kind in kinds:
            self._signals.setdefault(kind, _EventSignal()).connect(connection, weak=False)
            self._store_receivers(kind)
        return disconnect

    def _store_receivers(self, kind: type[Event]) -> None:
        """Store the receivers of `kind`, so that publishing does not ask the signal at every event (2.5 us)."""
        receivers: Any = tuple(self._signals[kind].receivers_for(ANY))
        if receivers:
            self.by_type[kind] = receivers
        else:
            self.by_type.pop(kind, None)


class Turns:
    """The turns of readers that wait for an event: at most `_TURNS` of them begin to read in one round of the loop.

    Otherwise a round would take as long as all readers together, although each of them is quick. A reader that begins
    hands its turn on at once, and the next one begins in the next round. So a slow reader holds up no other.
    """

    __slots__ = ("_free", "_waiting", "loops")

    def __init__(self) -> None:
        self.loops = 0  # the number of event loops before this one
        self._free = _TURNS
        self._waiting: dict[anyio.Event, None] = {}

    def renew(self) -> None:
        """Begin anew in another event loop. The readers of the last one may not have ended properly."""
        self.loops += 1
        self._free = _TURNS
        self._waiting.clear()

    def wake(self, reader: anyio.Event, loops: int) -> None:
        """Wake a reader, now or in its turn. `loops` is the number when it began to wait."""
        if reader.is_set():
            return
        if loops != self.loops:
            with suppress(RuntimeError):  # Its event loop may be closed.
                reader.set()
        elif self._free:
            self._free -= 1
            reader.set()
        else:
            self._waiting[reader] = None

    def left(self, reader: anyio.Event, loops: int) -> None:
        """Hand on the turn of a reader that waits no longer, because it was woken or cancelled."""
        if loops != self.loops:
            return
        if not reader.is_set():
            self._waiting.pop(reader, None)
        elif self._waiting:
            following = next(iter(self._waiting))
            del self._waiting[following]
            following.set()
        else:
            self._free += 1


class Subscription(Generic[EventT_co]):
    """The events of one listener, in the order of the bus. Made by `EventBus.subscribe`.

        async with bus.subscribe(TextDelta, capacity=100) as events:
            async for event in events: ...

    It listens from entering to leaving the block, once: a subscription that has ended stays ended, even if it is
    entered again. Iterating waits for the next event and stops when the subscription is closed; cancelling it loses
    nothing. It yields to other tasks at least at every 64th event. Iterating a subscription that was never opened
    raises `BusError`, because it would hear nothing.

    After an overflow, the events that are inside are delivered, and then `SubscriptionOverflow` is raised. A `where` or
    `until` that raises is published as `ReceiverFailed`, affects no other listener, and ends the subscription in the
    same way, with a `BusError`. There is one reader: a second task that waits for an event at the same time gets a
    `BusError`.
    """

    __slots__ = (
        "_batch",
        "_buffer",
        "_cursor",
        "_error",
        "_on_close",
        "_on_error",
        "_on_open",
        "_past_events",
        "_past_ids",
        "_reader",
        "_state",
        "_turns",
        "_types",
        "_until",
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
        turns: Turns,
        name: str,
    ) -> None:
        for option, function in (("where", where), ("until", until)):
            if function is not None and (not callable(function) or _is_async(function)):
                raise TypeError(
                    f"{option} is {function!r}; pass a function that is not async and returns True or False"
                )
        self._buffer = buffer
        self._types = types
        self._where = where
        self._until = until
        self._on_open = on_open
        self._on_close = on_close
        self._on_error = on_error
        self._turns = turns
        self._reader: tuple[anyio.Event, int] | None = None  # the reader that waits: see `Turns.wake`
        self._error: BaseException | None = None
        self._state: Literal["new", "open", "ended", "discarded"] = "new"
        self._batch = 0
        self._cursor: Cursor | None = None
        self._past_events: deque[EventT_co] = deque()
        self._past_ids: set[str] = set()  # ids of past events that may come a second time
        self.name = name

    def preceded_by(self, past: Sequence[Event], cursor: Cursor) -> None:
        """Deliver the events of `past` that come after `cursor` before the others.

        An event that is among both is delivered once. Raises what `Cursor.after` raises.
        """
        self._cursor = cursor
        self._past_ids = {event.event_id for event in past}
        self._past_events.extend(cast("EventT_co", event) for event in cursor.after(past) if type(event) in self._types)

    @property
    def cursor(self) -> str:
        """The position after the newest event that was read, for `session.events(after=cursor)` in any process.

        Only the subscription of `session.events()` to all kinds of events from the beginning, or from a cursor, has
        one; for any other, this raises `BusError`.
        """
        if self._cursor is None or len(self._types) < len(EVENT_TYPES):
            raise BusError(f"{self!r} has no cursor; read all events, with session.events() or events(after=cursor)")
        return str(self._cursor)

    @property
    def position(self) -> int:
        """The bus position of the newest event that was delivered; 0 before the first."""
        return self._buffer.position

    def wants(self, kind: type[Event]) -> bool:
        """Return whether events of `kind` match."""
        return kind in self._types

    def open(self) -> Subscription[EventT_co]:
        """Listen from now on. `async with` does this; whoever calls it directly must call `close`, or wait for the end.

        A subscription opens once: after its end, `open` and `async with` change nothing, and the events inside can
        still be read.
        """
        if self._state == "new":
            self._on_open(self)
            self._state = "open"
        return self

    def close(self) -> None:
        """Stop listening. The events inside can still be read. Idempotent."""
        if self._state == "discarded":
            return
        was, self._state = self._state, "ended"
        if was == "open":
            self._on_close(self)
            if self._reader is not None:
                self._turns.wake(*self._reader)

    def offer(self, position: int, event: Event) -> None:
        """Put an event in, if it matches. Only the bus calls this. Never blocks and never raises."""
        try:
            matches = type(event) in self._types and (self._where is None or self._where(event))
            ends = self._until is not None and self._until(event)
        except BaseException as exc:  # No exception may reach the publisher or another listener.
            self._error = exc
            self.close()
            self._on_error(self, event, exc)
            return
        if matches:
            buffer = self._buffer
            ends = not buffer.offer(position, event) or ends
            # The reader waits only while the buffer is empty, so with more than one event inside it is already awake.
            if self._reader is not None and buffer.length <= 1:
                self._turns.wake(*self._reader)
        if ends:
            self.close()

    def receive_nowait(self) -> EventT_co | None:
        """Return the next event, or None if the buffer is empty. It has no checkpoint, so use it to drain in batches.

        Raises the errors of iterating, once all events inside were read.
        """
        event = self._take()
        if event is None:
            self._raise_failure()
        return event

    def _take(self) -> EventT_co | None:
        if self._state == "discarded":
            return None
        event = self._past_events.popleft() if self._past_events else self._take_new()
        if self._cursor is not None and event is not None:
            self._cursor.move(event)
        return event

    def _take_new(self) -> EventT_co | None:
        event = self._buffer.take()
        while self._past_ids and event is not None and event.event_id in self._past_ids:
            self._past_ids.remove(event.event_id)
            event = self._buffer.take()
        return cast("EventT_co | None", event)  # only events of these types were put in

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
        while True:
            event = self._take()
            if event is not None:
                return event
            self._raise_failure()
            if self._state != "open":
                raise StopAsyncIteration
            self._check_single_reader()
            reader, loops = anyio.Event(), self._turns.loops
            self._reader = reader, loops
            try:
                await reader.wait()
            finally:
                self._reader = None
                self._turns.left(reader, loops)

    def _check_single_reader(self) -> None:
        if self._reader is not None:
            raise BusError(f"{self!r} is read by another task already; make a subscription for each task")

    def _raise_failure(self) -> None:
        if self._state == "discarded":
            return
        if self._buffer.failed_at is not None:
            raise SubscriptionOverflow(self._buffer.capacity, self._buffer.failed_at)
        if self._error is not None:
            raise BusError(f"{self!r} has ended, because its `where` or `until` raised an exception") from self._error

    def __repr__(self) -> str:
        return f"<Subscription {self.name!r}, {self._state}>"

    async def aclose(self) -> None:
        """Stop listening and reading, for `contextlib.aclosing`: the events inside are not delivered any more.

        Iterating stops then, also after an overflow.
        """
        self.close()
        self._state = "discarded"

    def statistics(self) -> SubscriptionStatistics:
        """Return the counts so far."""
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


def refuse_coroutine(outcome: object, name: str) -> None:
    """Raise `TypeError` for a coroutine: a lambda around an async function is known as async only after its call."""
    if inspect.iscoroutine(outcome):
        outcome.close()
        raise TypeError(_refusal(name))


def _refusal(name: str) -> str:
    return (
        f"{name} is async, and receivers are called inline; "
        "use `async with bus.subscribe(...) as events:` in a separate task"
    )


def _name_of(receiver: Any) -> str:
    return f"{getattr(receiver, '__module__', '')}.{getattr(receiver, '__qualname__', repr(receiver))}".lstrip(".")


def expand_kinds(kinds: Iterable[type[Event]]) -> tuple[type[Event], ...]:
    """Return the concrete event types of `kinds`; `TypeError` for anything that is not an event type."""
    wanted: dict[type[Event], None] = {}
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Event)):  # pyright: ignore[reportUnnecessaryIsInstance]
            is_tuple = isinstance(kind, tuple)  # pyright: ignore[reportUnnecessaryIsInstance]
            hint = "pass the types in it one by one" if is_tuple else "see toolbus.events"
            raise TypeError(f"{kind!r} is not an event type; {hint}")
        found = dict.fromkeys(each for each in EVENT_TYPES if issubclass(each, kind))
        if not found:  # An application's own subclass is never published.
            raise TypeError(f"{kind.__name__} is not an event type of toolbus.events")
        wanted.update(found)
    return tuple(wanted)


def exception_text(exc: BaseException) -> str:
    """Return an exception as text, even if its `__str__` raises."""
    try:
        return f"{type(exc).__name__}: {exc}"
    except Exception:
        return type(exc).__name__


def is_stray_cancellation(exc: BaseException) -> bool:
    """Return whether an exception is a cancellation that was raised in a function that does not await.

    Nobody can have cancelled such a function: the exception comes, for example, from the result of a cancelled future.
    """
    try:
        return isinstance(exc, anyio.get_cancelled_exc_class())
    except anyio.NoEventLoopError:
        return False
