"""A watchdog over the event loop: the most CPU time that its thread spends without running other tasks."""

from __future__ import annotations

import gc
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager

import anyio
import anyio.lowlevel
from anyio.abc import TaskStatus

MAX_SECONDS = 0.1
ATTEMPTS = 10  # so many times some work may be measured until it is fast enough


@contextmanager
def undisturbed() -> Generator[None]:
    """Turn the garbage collector off. Tests that measure are marked `repeats`, so that they are not traced."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def cpu_seconds(work: Callable[[], object], *, below: float = MAX_SECONDS, attempts: int = ATTEMPTS) -> float:
    """The CPU time, in seconds, that this thread needs for some work: the best of several attempts.

    Whatever else the machine does only adds to the time, and can double it. The first attempt that takes less than `below`
    is the last one, so that work which is fast enough is done only once.
    """
    best = float("inf")
    with undisturbed():
        for _ in range(attempts):
            began = time.thread_time()
            work()
            best = min(best, time.thread_time() - began)
            if best < below:
                break
    return best


class Watchdog:
    """`longest` is the most CPU time, in seconds, that has passed between two turns of a task that does nothing."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self, *, task_status: TaskStatus[None]) -> None:
        task_status.started()
        while True:
            began = time.thread_time()
            await anyio.lowlevel.checkpoint()
            self.longest = max(self.longest, time.thread_time() - began)


@asynccontextmanager
async def watching() -> AsyncGenerator[Watchdog]:
    """Watch the loop in this block. It does not work with virtual time, which stands still while a task is busy."""
    dog = Watchdog()
    with undisturbed():
        async with anyio.create_task_group() as group:
            await group.start(dog.watch)  # A block that never waits is measured, too.
            yield dog
            await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
