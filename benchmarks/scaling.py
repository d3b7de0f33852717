"""The cost of a request among many sessions, and of a round late in a long request."""

from __future__ import annotations

from collections.abc import Sequence

from toolbus import Limits

from .plumbing import Effort, Row, alternate, compared, cpu_us, ratio_row, run
from .work import Model, at_once, careful, serially, sessions

MANY, FEW = 10_000, 100
LONG, SHORT = 1_000, 10
# These are the limits that a request of a thousand rounds would reach; the histories are sent whole.
LONG_LIMITS = Limits(max_rounds=LONG + 1, max_tool_calls=10 * LONG, max_facts=100 * LONG, timeout_seconds=3_600)


async def _sessions(effort: Effort) -> list[Row]:
    many, few = effort.of(MANY, least=20), effort.of(20 * FEW, least=2)
    width = min(FEW, max(2, many // 10))

    async with sessions() as one:
        for side in (one, careful):
            await at_once(side, width, width)
        among_many, among_few, careful_many, careful_few = await alternate(
            effort.repeats,
            lambda: cpu_us(at_once(one, many, many), many),
            lambda: cpu_us(at_once(one, few, width), few),
            lambda: cpu_us(at_once(careful, many, many), many),
            lambda: cpu_us(at_once(careful, few, width), few),
        )
    grows, careful_grows = _growth(among_many, among_few), _growth(careful_many, careful_few)
    against = f"among {width:,}"
    return [
        ratio_row(f"request among {many:,} sessions", compared(among_many, among_few), against),
        ratio_row(f"careful loop among {many:,}", compared(careful_many, careful_few), against),
        ratio_row(
            f"growth of a request from {width:,} to {many:,}", compared(grows, careful_grows), "careful loop", goal=1.0
        ),
    ]


def _growth(many: Sequence[float], few: Sequence[float]) -> list[float]:
    """Return how much more each run took with many at once; at least a microsecond, since runs vary."""
    return [max(1.0, more - less) for more, less in zip(many, few, strict=True)]


async def _rounds(effort: Effort) -> list[Row]:
    long, short = effort.of(LONG, least=2 * SHORT), SHORT
    count = max(1, long // short)
    async with sessions(Model(long), limits=LONG_LIMITS) as one, sessions(Model(short), limits=LONG_LIMITS) as other:
        await serially(other, count)
        ours, theirs = await alternate(
            effort.repeats,
            lambda: cpu_us(serially(one, 1), long),
            lambda: cpu_us(serially(other, count), count * short),
        )
    return [ratio_row(f"round of {long:,}", compared(ours, theirs), f"of {short}", goal=1.2)]


def many_sessions(effort: Effort) -> list[Row]:
    """Measure the CPU time of a request among many sessions, against few."""
    return run(_sessions, effort)


def many_rounds(effort: Effort) -> list[Row]:
    """Measure the CPU time of a round in a long request, against a short one."""
    return run(_rounds, effort)
