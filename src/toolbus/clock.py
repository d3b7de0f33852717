"""The clock of a session: it shows the wall clock's time, and runs like the monotonic clock.

It is set once by the wall clock, and then driven only by the event loop's clock. So a jump of the wall clock neither
fires nor delays a deadline (G27), and virtual time in tests moves this clock too. Its times can be compared after a
restart.

Example:
    import anyio

    from toolbus.clock import SessionClock, loop_runs, running_loop, wall_time_from

    async def main() -> None:
        with wall_time_from(lambda: 1_767_265_200.0):  # for tests and simulations
            clock = SessionClock()
        print(loop_runs(running_loop()))  # True

    anyio.run(main)
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Generator
from typing import Any

import anyio
import anyio.lowlevel

from ._timers import Timers
from .errors import BusError, NotRunning

__all__ = ["SessionClock", "loop_runs", "refuse_elsewhere", "running_loop", "wall_time_from"]

_wall_times: list[Callable[[], float]] = [time.time]


def wall_time() -> float:
    """Return the seconds since the epoch, by the clock of the innermost `wall_time_from`; by default, `time.time`."""
    return _wall_times[-1]()


@contextlib.contextmanager
def wall_time_from(clock: Callable[[], float]) -> Generator[None]:
    """Use `clock` as the wall clock in this block: for simulations, whose times have to be the same in each run."""
    _wall_times.append(clock)
    try:
        yield
    finally:
        _wall_times.remove(clock)


class SessionClock:
    """A clock that returns seconds since the epoch when it is called. Make and use it inside an event loop.

    Making it elsewhere raises `NotRunning`.
    """

    __slots__ = ("_offset", "loop_time", "timers")

    def __init__(self) -> None:
        self.loop_time = _loop_clock()
        self.timers = Timers(self.loop_time)
        self._offset = wall_time() - self.loop_time()

    def __call__(self) -> float:
        """Return the present time in seconds since the epoch."""
        return self.loop_time() + self._offset

    def on_loop(self, moment: float) -> float:
        """Return `moment` on the event loop's clock, for deadlines of cancel scopes."""
        return moment - self._offset


def _loop_clock() -> Callable[[], float]:
    """Return the running loop's clock; if possible one that does not look up the loop at each reading (0.5 us).

    asyncio's own loops read `time.monotonic`: then the loop's time lies between two readings of `time.monotonic`. In a
    trio task it is trio's clock, which has an offset, or stands still in tests. Any other loop of asyncio has its own
      clock.
    """
    token, before = running_loop(), time.monotonic()
    now = anyio.current_time()
    if before <= now <= time.monotonic():
        return time.monotonic
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
        return trio.current_time
    loop: Any = token.native_token
    return loop.time


def running_loop() -> anyio.lowlevel.EventLoopToken:
    """Return the token of the event loop that runs here. Raises `NotRunning` if none does."""
    try:
        return anyio.lowlevel.current_token()
    except anyio.NoEventLoopError:
        raise NotRunning(
            "no event loop runs here; call this in an async function or in a notebook, and not from a bare callback "
            "of asyncio, such as that of loop.call_soon"
        ) from None


def loop_runs(token: anyio.lowlevel.EventLoopToken) -> bool:
    """Return whether an event loop runs in this thread, also in a bare callback of asyncio, where anyio cannot say."""
    try:
        anyio.lowlevel.current_token()
    except anyio.NoEventLoopError:
        is_running = getattr(token.native_token, "is_running", None)
        return is_running is not None and is_running()
    return True


def refuse_elsewhere(token: anyio.lowlevel.EventLoopToken, what: str) -> None:
    """Raise `BusError` while the loop of `token` runs in another thread: an event published here could not wake it.

    `what` is the type of the event, for the text. Trio raises an error itself; asyncio would process the event at its
    next timer, which may be the call's deadline.
    """
    is_running = getattr(token.native_token, "is_running", None)
    if is_running is not None and is_running():
        raise BusError(
            f"{what} was published in another thread than that of the bus's event loop; use publish_threadsafe there, "
            "or call the method of a session with anyio.from_thread.run_sync"
        )
