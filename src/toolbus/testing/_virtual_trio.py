"""Virtual time on trio: its own virtual clock, and an instrument that makes it wait for worker threads.

The module imports trio, so `virtual_time` imports it only when it is used.
"""

from __future__ import annotations

import time

from trio import current_time
from trio.abc import Instrument
from trio.lowlevel import Task, current_clock, current_statistics
from trio.testing import MockClock, active_thread_count, wait_all_tasks_blocked

from ._virtual_loop import PATIENCE_SECONDS

_THREAD_POLL_SECONDS = 0.0005


class ThreadWatch(Instrument):
    """An instrument that keeps a clock from jumping while a thread works that somebody waits for.

    trio's clock jumps when all tasks have been blocked for `autojump_threshold` real seconds; the instrument raises the
    threshold while there are such threads.
    """

    def __init__(self, clock: MockClock) -> None:
        self._clock = clock

    def after_task_step(self, task: Task) -> None:
        """Check whether threads work now; only a step of a task can change that."""
        del task
        threshold = PATIENCE_SECONDS if active_thread_count() else 0.0
        if self._clock.autojump_threshold != threshold:
            self._clock.autojump_threshold = threshold


def new_clock() -> MockClock:
    """Return a clock at 0 that jumps as soon as all tasks are blocked."""
    return MockClock(autojump_threshold=0)


def is_virtual() -> bool:
    """Return whether the clock of this run is virtual."""
    return isinstance(current_clock(), MockClock)


async def advance(seconds: float, *, wait_for_threads: bool) -> None:
    """Implement `virtual_time.advance`."""
    clock = current_clock()
    assert isinstance(clock, MockClock)
    moment = current_time() + seconds
    while True:
        await settle(wait_for_threads=wait_for_threads)
        ahead = moment - current_time()
        if ahead <= 0:
            return
        clock.jump(max(0.0, min(ahead, current_statistics().seconds_to_next_deadline)))


async def settle(*, wait_for_threads: bool) -> None:
    """Implement `virtual_time.settle`."""
    patience_ends = time.monotonic() + PATIENCE_SECONDS
    while True:
        await wait_all_tasks_blocked()
        if not wait_for_threads or not active_thread_count() or time.monotonic() > patience_ends:
            return
        time.sleep(_THREAD_POLL_SECONDS)  # noqa: ASYNC251 -- all tasks are blocked; this lets the threads run
