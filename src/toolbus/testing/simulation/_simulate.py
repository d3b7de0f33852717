"""Runs of many seeds, and a report of all of them together."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..._option_checks import check, whole
from ._findings import SeedReport, SimulationFailed
from ._parallel import run_in_processes
from ._run import run_seed


@dataclass(slots=True, kw_only=True)
class SimulationReport:
    """The results of all seeds together. `checks` counts the checks by guarantee; `seconds` is real time.

    `broken` are the seeds that broke an invariant, by the kind of the problem (`SimulationFailed.kind`); their events,
    requests and checks are not counted.
    """

    seeds: int = 0
    seconds: float = 0.0
    events: int = 0
    requests: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    checks: Counter[str] = field(default_factory=Counter[str])
    broken: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    @property
    def seeds_per_second(self) -> float:
        """The number of seeds per second of real time; 0 without seeds."""
        return self.seeds / self.seconds if self.seconds else 0.0

    def add(self, one: SeedReport | SimulationFailed) -> None:
        """Count one more seed."""
        self.seeds += 1
        if isinstance(one, SimulationFailed):
            self.broken.setdefault(one.kind, []).append(one.seed)
            return
        self.events += one.events
        self.requests += one.requests
        self.outcomes += one.outcomes
        self.faults += one.faults
        self.checks += one.checks


def simulate(
    seeds: int,
    *,
    first: int = 0,
    seconds: float | None = None,
    jobs: int = 1,
    keep_going: bool = False,
    on_seed: Callable[[SeedReport | SimulationFailed], object] | None = None,
) -> SimulationReport:
    """Run `seeds` seeds, from `first` on, or as many as `seconds` of real time allow, and raise the first failure.

    With `keep_going` failures are counted instead, in `SimulationReport.broken`. With `jobs` above 1, seeds run on that
    many processes, in any order, and of several failures the lowest seed is raised; the calling program then needs the
    usual `if __name__ == "__main__":`. `on_seed` is called with each seed's report or failure. Raises
    `SimulationFailed`, and `ConfigurationError` for `seeds` or `jobs` below 1.
    """
    check("seeds", seeds, whole(1))
    check("jobs", jobs, whole(1))
    report = SimulationReport()
    began = time.monotonic()
    chosen = range(first, first + seeds)
    if jobs == 1:
        found = _one_by_one(chosen, seconds, keep_going=keep_going)
    else:
        found = run_in_processes(chosen, jobs, seconds, keep_going=keep_going)
    for one in found:
        report.add(one)
        if on_seed is not None:
            on_seed(one)
    report.seconds = time.monotonic() - began
    return report


def _one_by_one(seeds: range, seconds: float | None, *, keep_going: bool) -> Iterator[SeedReport | SimulationFailed]:
    began = time.monotonic()
    for seed in seeds:
        try:
            yield run_seed(seed)
        except SimulationFailed as exc:
            if not keep_going:
                raise
            yield exc
        if seconds is not None and time.monotonic() - began >= seconds:
            return
