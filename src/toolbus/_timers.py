"""Timers that cancel scopes: many of them behind one timer of the event loop.

A deadline of an `anyio.CancelScope` costs a timer of the loop each time it is set. Nearly all deadlines of requests are
moved to a later time before they pass, and here that costs one assignment: the loop's timer looks at the deadline again
when it fires. Knows asyncio, trio and anyio. Must not know what is timed.
"""

from __future__ import annotations

import contextvars
import heapq
import math
import sys
from collections.abc import Callable
from itertools import count
from typing import Any

import anyio
import anyio.lowlevel

EARLY_SECONDS = 0.05
"""A deadline may fire so much too early, by the resolution of the event loop's clock."""

_MIN_STALE = 1_000  # Fewer stale entries than this stay in the heap until their time comes.


class Timer:
    """One deadline on the loop's clock, which may be moved. When it passes, `scope` is cancelled."""

    __slots__ = ("_timers", "deadline", "looked_at", "scope")

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self.looked_at = math.inf  # the earliest time at which `Timers` looks at the deadline
        self.deadline = math.inf
        self.scope: anyio.CancelScope | None = None

    def set(self, deadline: float) -> None:
        """Move the deadline. One that has passed cancels the scope at once."""
        self.deadline = deadline
        if deadline < self.looked_at:
            self._timers.put(self, deadline)

    def close(self) -> None:
        """Switch the timer off for good, and let go of the scope. To be called once."""
        is_queued = self.looked_at < math.inf
        self.deadline, self.looked_at, self.scope = math.inf, -math.inf, None
        if is_queued:
            self._timers.note_stale()


class Timers:
    """The timers of one event loop. `now` is the loop's clock. To be made and used in the loop's thread.

    `new_scope` makes a cancel scope in half the time of `anyio.CancelScope`, and `new_event` an event in a quarter of
    that of `anyio.Event`: those look for the loop each time, and initialise what they have made a second time.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.new_scope: type[anyio.CancelScope] = type(anyio.CancelScope())
        self.new_event: type[anyio.Event] = type(anyio.Event())
        self._now = now
        # The number keeps the order of entries with equal times, and timers from being compared.
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = count()
        self._stale = 0  # at most so many entries of the heap are of closed or moved timers
        self._armed_at = math.inf
        loop: Any = anyio.lowlevel.current_token().native_token
        self._alarm = _AsyncioAlarm(loop, self._ring) if hasattr(loop, "call_at") else _TrioAlarm(self._ring)

    def timer(self) -> Timer:
        """Return a timer that is off."""
        return Timer(self)

    def put(self, timer: Timer, deadline: float) -> None:
        """Look at a timer at `deadline`, earlier than it would be looked at. Only timers call this."""
        if deadline <= self._now():
            self._fire(timer)
            return
        was_queued = timer.looked_at < math.inf
        timer.looked_at = deadline
        heapq.heappush(self._heap, (deadline, next(self._numbers), timer))
        if was_queued:
            self.note_stale()
        if deadline < self._armed_at:
            self._armed_at = deadline
            self._alarm.set(deadline)

    def note_stale(self) -> None:
        """Note a stale entry of the heap: its timer is closed, or is looked at earlier. Costs O(1) on average."""
        self._stale += 1
        if self._stale > _MIN_STALE and self._stale * 2 > len(self._heap):
            self._heap = [each for each in self._heap if each[2].looked_at == each[0]]
            heapq.heapify(self._heap)
            self._stale = 0

    def _ring(self) -> None:
        # A loop may ring by the resolution of its clock too early.
        moment = max(self._armed_at, self._now())
        self._armed_at = math.inf
        while self._heap and self._heap[0][0] <= moment:
            queued, _, timer = heapq.heappop(self._heap)
            if timer.looked_at != queued:
                continue  # It was moved to an earlier time, and has another entry.
            timer.looked_at = math.inf
            if timer.deadline <= moment:
                self._fire(timer)
            else:
                timer.set(timer.deadline)
        if self._heap and self._heap[0][0] < self._armed_at:
            self._armed_at = self._heap[0][0]
            self._alarm.set(self._armed_at)

    def _fire(self, timer: Timer) -> None:
        timer.deadline = math.inf
        if timer.scope is not None:
            timer.scope.cancel()


class _AsyncioAlarm:
    """Calls `ring` at one moment on an asyncio loop's clock."""

    def __init__(self, loop: Any, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: Any = None

    def set(self, moment: float) -> None:
        """Ring at `moment`, and not at the moment that was set before."""
        if self._handle is not None:
            self._handle.cancel()
        # In the context of the caller, the timer would keep alive what a request's context holds.
        self._handle = self._loop.call_at(moment, self._ring, context=contextvars.Context())


class _TrioAlarm:
    """Calls `ring` at one moment on trio's clock, from a system task, which ends when nothing is set any more."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._moment = math.inf
        self._sleep: anyio.CancelScope | None = None

    def set(self, moment: float) -> None:
        """Ring at `moment`, and not at the moment that was set before."""
        self._moment = moment
        if self._sleep is None:
            self._sleep = anyio.CancelScope()
            sys.modules["trio"].lowlevel.spawn_system_task(self._wait)
        self._sleep.deadline = moment

    async def _wait(self) -> None:
        while self._moment < math.inf:
            assert self._sleep is not None
            with self._sleep:
                await anyio.sleep_forever()
            self._moment, self._sleep = math.inf, anyio.CancelScope()
            self._ring()
            self._sleep.deadline = self._moment
        self._sleep = None
