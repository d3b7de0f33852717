"""CPU time of a request in toolbus, against the loop that a careful engineer writes by hand.

`python -m benchmarks --only cpu trio`. Both sides run in one process, in turn.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from .plumbing import Effort, Row, alternate, compared, cpu_us, ratio_row, run
from .work import (
    One,
    at_once,
    at_once_on_trio,
    careful,
    careful_on_anyio,
    careful_on_trio,
    heard_bus,
    requests,
    serially,
    sessions,
)

REQUESTS = 1_000
HEARD = ", one listener on every type"


async def _row(
    name: str,
    made: AbstractAsyncContextManager[One],
    work: Callable[[One, int], Awaitable[None]],
    by_hand: One,
    effort: Effort,
    goal: float | None = None,
) -> Row:
    count = effort.of(REQUESTS, least=2)
    async with made as one:
        # The first runs start workers, build schemas, and let the interpreter specialise its bytecode.
        for side in (one, by_hand):
            await work(side, effort.of(200))
        ours, theirs = await alternate(
            effort.repeats, lambda: cpu_us(work(one, count), count), lambda: cpu_us(work(by_hand, count), count)
        )
    against = "careful loop" if by_hand is careful else "careful loop on trio"
    return ratio_row(name, compared(ours, theirs), against, goal=goal)


async def ratio_to_careful(
    name: str, made: AbstractAsyncContextManager[One], effort: Effort, goal: float | None = None
) -> Row:
    """Compare requests, 100 at once, with the careful loop."""
    return await _row(name, made, at_once, careful, effort, goal)


@asynccontextmanager
async def _loop_on_anyio() -> AsyncGenerator[One]:
    yield careful_on_anyio


async def _on_asyncio(effort: Effort) -> list[Row]:
    return [
        await ratio_to_careful("session, 100 at once", sessions(), effort, 1.6),
        await ratio_to_careful(f"session, 100 at once{HEARD}", sessions(bus=heard_bus()), effort, 2.3),
        await _row("session, one after the other", sessions(), serially, careful, effort),
        await ratio_to_careful("Runtime.run, 100 at once", requests(), effort, 1.8),
        await ratio_to_careful(f"Runtime.run, 100 at once{HEARD}", requests(bus=heard_bus()), effort),
        await ratio_to_careful("Runtime.start, 100 at once", requests(started=True), effort),
        await ratio_to_careful("the careful loop written with anyio, 100 at once", _loop_on_anyio(), effort),
    ]


async def _on_trio(effort: Effort) -> list[Row]:
    return [
        await _row("session on trio, 100 at once", sessions(), at_once_on_trio, careful_on_trio, effort, 1.4),
        await _row("Runtime.run on trio, 100 at once", requests(), at_once_on_trio, careful_on_trio, effort),
    ]


def cpu(effort: Effort) -> list[Row]:
    """Measure the CPU time of a request on asyncio."""
    return run(_on_asyncio, effort)


def on_trio(effort: Effort) -> list[Row]:
    """Measure the CPU time of a request on trio."""
    return run(_on_trio, effort, backend="trio")
