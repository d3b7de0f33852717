"""A watchdog over the event loop: how much CPU time its thread spends, at most, without letting others have a turn."""

from __future__ import annotations

import gc
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel

MOST_SECONDS = 0.1


class Watchdog:
    """`longest` is the most CPU time, in seconds, that has passed between two turns of a task that does nothing."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        while True:
            began = time.thread_time()
            await anyio.lowlevel.checkpoint()
            self.longest = max(self.longest, time.thread_time() - began)


@asynccontextmanager
async def watching() -> AsyncGenerator[Watchdog]:
    """Watch the loop meanwhile. Not with virtual time, in which nothing passes while a task is busy."""
    dog = Watchdog()
    gc.collect()
    gc.disable()  # Collecting what other tests have left is nobody's doing here.
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(dog.watch)
            yield dog
            group.cancel_scope.cancel()
    finally:
        gc.enable()
