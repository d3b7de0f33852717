"""What all figures share: sides that take turns, medians with their spread, and the rows of the table.

Knows nothing of toolbus. A figure is a function that is given an `Effort` and returns its `Row`s.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import anyio

Unit: TypeAlias = Literal["times", "ms", "KiB", "GiB"]
Side: TypeAlias = Callable[[], Awaitable[float]]


@dataclass(frozen=True)
class Effort:
    """How much is measured: the runs of each side, and which share of the full number of requests each has."""

    repeats: int = 7
    share: float = 1.0

    def of(self, count: int, *, least: int = 1) -> int:
        """`count` at full effort; never fewer than `least`."""
        return max(least, round(count * self.share))


FULL = Effort()
QUICK = Effort(repeats=3, share=0.2)


@dataclass(frozen=True)
class Goal:
    """What a figure has to reach: at most `bound`, or with `at_least` no less than that, in the row's unit."""

    bound: float
    at_least: bool = False

    def is_met(self, value: float) -> bool:
        """Whether this value reaches it."""
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(frozen=True)
class Row:
    """One line of the table.

    `value` is what the goal is about, a ratio unless `unit` says otherwise, with the `lowest` and the `highest` of its
    runs; None where there is none, and `remark` says why. `ours` and `against` are for people: "412 us".
    """

    name: str
    ours: str
    against: str
    value: float | None = None
    lowest: float = 0.0
    highest: float = 0.0
    unit: Unit = "times"
    goal: Goal | None = None
    remark: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without a goal, or without a value."""
        return None if self.goal is None or self.value is None else self.goal.is_met(self.value)


Figure: TypeAlias = Callable[[Effort], list[Row]]


@dataclass(frozen=True)
class Compared:
    """Two sides, each by its median, and the median, lowest and highest ratio of their neighbouring runs."""

    ours: float
    theirs: float
    ratio: float
    lowest: float
    highest: float


def compared(ours: Sequence[float], theirs: Sequence[float]) -> Compared:
    """How many times as much as `theirs` are `ours`? Both in the order of their runs."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return Compared(
        statistics.median(ours), statistics.median(theirs), statistics.median(ratios), min(ratios), max(ratios)
    )


async def alternate(repeats: int, *sides: Side) -> list[list[float]]:
    """Run all sides in turn, so often; what each returned, by side and in order.

    Every other time the turns go backwards: a machine that becomes slower slows nobody more than another.
    """
    found: list[list[float]] = [[] for _ in sides]
    for repeat in range(repeats):
        turns = list(zip(sides, found, strict=True))
        for side, figures in turns if repeat % 2 == 0 else reversed(turns):
            figures.append(await side())
    return found


async def cpu_us(work: Awaitable[Any], count: int) -> float:
    """The CPU time that `work` takes, in microseconds for each of `count`. What was left before is collected first."""
    gc.collect()
    started = time.process_time()
    await work
    return (time.process_time() - started) / count * 1e6


def ratio_row(name: str, figures: Compared, against: str, *, goal: float | None = None, remark: str = "") -> Row:
    """A row of times in microseconds, as a ratio."""
    return Row(
        name,
        shown_us(figures.ours),
        f"{against}, {shown_us(figures.theirs)}",
        figures.ratio,
        figures.lowest,
        figures.highest,
        goal=None if goal is None else Goal(goal),
        remark=remark,
    )


def shown(value: float) -> str:
    """A number with three digits that count, or all before its point."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def shown_us(microseconds: float) -> str:
    """A time in the unit that suits it."""
    if microseconds >= 10_000:
        return f"{shown(microseconds / 1_000)} ms"
    return f"{shown(microseconds)} us" if microseconds >= 1 else f"{shown(microseconds * 1_000)} ns"


def run(figure: Callable[..., Awaitable[list[Row]]], *arguments: Any, backend: str = "asyncio") -> list[Row]:
    """The rows of an async figure, in an event loop of its own."""
    return anyio.run(figure, *arguments, backend=backend)
