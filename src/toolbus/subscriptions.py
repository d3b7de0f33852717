"""Subscriptions: an async iterator over a bounded buffer, one for each listener that may be slow.

Knows the buffer and anyio; the bus puts events in, and is told when the subscription is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import anyio
import anyio.lowlevel

from .buffers import EventBuffer
from .errors import SubscriptionOverflow

if TYPE_CHECKING:
    from types import TracebackType

    from .events import Event

__all__ = ["Subscription", "SubscriptionStatistics"]

Predicate: TypeAlias = "Callable[[Event], bool]"

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


class Subscription:
    """The events of one listener, in the order of the bus. Made by `EventBus.subscribe`.

        async with bus.subscribe(TextDelta, capacity=100) as events:
            async for event in events: ...

    Listens from entering to leaving the block. Iterating waits for the next event and ends when the subscription is
    closed; cancelling it loses nothing. It gives way to other tasks at least at every 64th event. After an overflow,
    what is inside is delivered and then `SubscriptionOverflow` is raised. For one reader at a time.
    """

    __slots__ = ("_batch", "_buffer", "_closed", "_on_close", "_on_open", "_opened", "_types", "_until", "_wake", "_where", "name")

    def __init__(
        self,
        buffer: EventBuffer,
        *,
        types: frozenset[type[Event]],
        where: Predicate | None,
        until: Predicate | None,
        on_open: Callable[[Subscription], None],
        on_close: Callable[[Subscription], None],
        name: str,
    ) -> None:
        self._buffer = buffer
        self._types = types
        self._where = where
        self._until = until
        self._on_open = on_open
        self._on_close = on_close
        self._wake: anyio.Event | None = None
        self._opened = False
        self._closed = True
        self._batch = 0
        self.name = name

    @property
    def position(self) -> int:
        """The bus position of the newest event that was delivered; 0 before the first."""
        return self._buffer.position

    def wants(self, kind: type[Event]) -> bool:
        """Whether events of `kind` match."""
        return kind in self._types

    def open(self) -> Subscription:
        """Listen from now on. `async with` does this; whoever calls it must call `close`, or wait for the end.

        Opens once: after the end, this and `async with` change nothing, and what is inside can be read.
        """
        if not self._opened:
            self._opened = True
            self._closed = False
            self._on_open(self)
        return self

    def close(self) -> None:
        """Stop listening. What is inside can still be read. Idempotent."""
        if not self._closed:
            self._closed = True
            self._on_close(self)
            if self._wake is not None:
                self._wake.set()

    def offer(self, position: int, event: Event) -> None:
        """Called by the bus for each event; never blocks and never raises."""
        if type(event) in self._types and (self._where is None or self._where(event)):
            if not self._buffer.offer(position, event):
                self.close()
                return
            if self._wake is not None:
                self._wake.set()
        if self._until is not None and self._until(event):
            self.close()

    def receive_nowait(self) -> Event | None:
        """The next event if there is one; None otherwise. Never gives way, so use it to drain in batches."""
        return self._buffer.take()

    async def __aenter__(self) -> Subscription:
        return self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        self._batch += 1
        if self._batch >= _BATCH:
            self._batch = 0
            await anyio.lowlevel.checkpoint()
        while True:
            event = self._buffer.take()
            if event is not None:
                return event
            if self._buffer.failed_at is not None:
                raise SubscriptionOverflow(self._buffer.capacity, self._buffer.failed_at)
            if self._closed:
                raise StopAsyncIteration
            self._batch = 0
            self._wake = anyio.Event()
            try:
                await self._wake.wait()
            finally:
                self._wake = None

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
