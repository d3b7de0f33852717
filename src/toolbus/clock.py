"""One clock for a session: reads like the wall clock, runs like the monotonic one.

Set once against the wall clock, then driven by the event loop's clock alone, so that a jump of the wall clock neither
fires nor delays anything (G27), and virtual time in tests moves it too. Moments can be compared after a restart.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Generator

import anyio
import anyio.lowlevel

from .errors import BusError

__all__ = ["SessionClock", "loop_runs", "refuse_elsewhere", "wall_time_from"]

_wall_times: list[Callable[[], float]] = [time.time]


def wall_time() -> float:
    """Seconds since the epoch, by the newest clock that was given."""
    return _wall_times[-1]()


@contextlib.contextmanager
def wall_time_from(clock: Callable[[], float]) -> Generator[None]:
    """In this block the wall clock is `clock`: for simulations, whose moments have to be the same each time."""
    _wall_times.append(clock)
    try:
        yield
    finally:
        _wall_times.remove(clock)


class SessionClock:
    """Seconds since the epoch. Make and use it inside an event loop."""

    __slots__ = ("_offset", "loop_time")

    def __init__(self) -> None:
        self.loop_time = _loop_clock()
        self._offset = wall_time() - self.loop_time()

    def __call__(self) -> float:
        """The present moment."""
        return self.loop_time() + self._offset

    def on_loop(self, moment: float) -> float:
        """`moment` on the event loop's clock, for deadlines of cancel scopes."""
        return moment - self._offset


def _loop_clock() -> Callable[[], float]:
    """The running loop's clock, without asking which loop runs at each reading (0.5 us) where that can be told.

    asyncio's own loops read `time.monotonic`: then the loop's time lies between two readings of it. In a task of
    trio's it is trio's, which has an offset, or stands still in tests. Any other loop's is asked through anyio.
    """
    before = time.monotonic()
    now = anyio.current_time()
    if before <= now <= time.monotonic():
        return time.monotonic
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
        return trio.current_time
    return anyio.current_time


def loop_runs(token: anyio.lowlevel.EventLoopToken) -> bool:
    """Whether an event loop runs in this thread. Asked by a bare callback of asyncio, anyio does not know."""
    try:
        anyio.lowlevel.current_token()
    except anyio.NoEventLoopError:
        is_running = getattr(token.native_token, "is_running", None)
        return is_running is not None and is_running()
    return True


def refuse_elsewhere(token: anyio.lowlevel.EventLoopToken, what: str) -> None:
    """Raise `BusError` while the loop of `token` runs in another thread: what is published here would not wake it.

    Trio says so itself; asyncio would find the event at its next timer, which may be the call's deadline.
    """
    is_running = getattr(token.native_token, "is_running", None)
    if is_running is not None and is_running():
        raise BusError(
            f"{what} was published in another thread than the bus's event loop; use publish_threadsafe there"
        )
