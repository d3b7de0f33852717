"""The common parts of all figures: sides that take turns, medians with their spread, and the rows of the table.

This module knows nothing of toolbus. A figure is a function that takes an `Effort` and returns its `Row`s.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import anyio

Unit: TypeAlias = Literal["times", "ms", "KiB", "MiB", "GiB"]
Side: TypeAlias = Callable[[], Awaitable[float]]


@dataclass(frozen=True)
class Effort:
    """The amount of work: the number of runs of each side, and the share of the full number of requests in each run."""

    repeats: int = 7
    share: float = 1.0

    def of(self, count: int, *, least: int = 1) -> int:
        """`count` at full effort; never fewer than `least`."""
        return max(least, round(count * self.share))


FULL = Effort()
QUICK = Effort(repeats=3, share=0.2)


@dataclass(frozen=True)
class Goal:
    """The goal of a figure, in the row's unit: at most `bound`, or, with `at_least`, no less than that."""

    bound: float
    at_least: bool = False

    def is_met(self, value: float) -> bool:
        """Return whether this value reaches the goal."""
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(frozen=True)
class Row:
    """One line of the table.

    `value` is compared with the goal: a ratio unless `unit` says otherwise, with the `lowest` and the `highest` of its
    runs. If it is None, `remark` says why. `ours` and `against` are for people: "412 us".
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
        """True if the goal is reached; None without a goal, or without a value."""
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
    """Compare two sides, both in the order of their runs: `ours` as a multiple of `theirs`."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return Compared(
        statistics.median(ours), statistics.median(theirs), statistics.median(ratios), min(ratios), max(ratios)
    )


def measured(
    name: str, values: Sequence[float], unit: Unit, goal: Goal | None, *, against: str = "-", remark: str = ""
) -> Row:
    """Return the row of a figure that is not a ratio: its median in `unit`, with the lowest and the highest value."""
    median = statistics.median(values)
    return Row(name, f"{shown(median)} {unit}", against, median, min(values), max(values), unit, goal, remark)


async def alternate(repeats: int, *sides: Side) -> list[list[float]]:
    """Run all sides in turn, so often, and return their results, by side and in order.

    Every second time, the order is reversed, so that a machine that becomes slower affects all sides alike.
    """
    found: list[list[float]] = [[] for _ in sides]
    for repeat in range(repeats):
        turns = list(zip(sides, found, strict=True))
        for side, figures in turns if repeat % 2 == 0 else reversed(turns):
            figures.append(await side())
    return found


async def cpu_us(work: Awaitable[Any], count: int) -> float:
    """The CPU time of `work` in microseconds, divided by `count`. Earlier garbage is collected first."""
    gc.collect()
    started = time.process_time()
    await work
    return (time.process_time() - started) / count * 1e6


def ratio_row(name: str, figures: Compared, against: str, *, goal: float | None = None, remark: str = "") -> Row:
    """A row with the ratio of two times in microseconds."""
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
    """A number with three significant digits, or all digits before its decimal point."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def shown_us(microseconds: float) -> str:
    """A time in a suitable unit."""
    if microseconds >= 10_000:
        return f"{shown(microseconds / 1_000)} ms"
    return f"{shown(microseconds)} us" if microseconds >= 1 else f"{shown(microseconds * 1_000)} ns"


def run(figure: Callable[..., Awaitable[list[Row]]], *arguments: Any, backend: str = "asyncio") -> list[Row]:
    """Run an async figure in an event loop of its own, and return its rows."""
    return anyio.run(figure, *arguments, backend=backend)
