"""Many seeds, and what they did together."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ...errors import ConfigurationError
from ._findings import SeedReport
from ._parallel import run_in_processes
from ._run import run_seed

__all__ = ["SimulationReport", "simulate"]


@dataclass(slots=True, kw_only=True)
class SimulationReport:
    """What all seeds together did. `checks` counts invariants checked, by guarantee; `seconds` are real."""

    seeds: int = 0
    seconds: float = 0.0
    events: int = 0
    requests: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    checks: Counter[str] = field(default_factory=Counter[str])

    @property
    def seeds_per_second(self) -> float:
        """Of real time; 0 for none."""
        return self.seeds / self.seconds if self.seconds else 0.0

    def add(self, one: SeedReport) -> None:
        """Count one more seed."""
        self.seeds += 1
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
    on_seed: Callable[[SeedReport], object] | None = None,
) -> SimulationReport:
    """Run so many seeds, from `first` on, or as many as `seconds` of real time allow; the first failure is raised.

    With `jobs` above 1, on so many processes: then the order is any, and of several failures the lowest seed is told. A
    program that calls this needs the usual `if __name__ == "__main__":` then. `on_seed` is told of each seed. Raises
    `SimulationFailed`, and `ConfigurationError` for numbers below 1.
    """
    if min(seeds, jobs) < 1:
        raise ConfigurationError(f"seeds is {seeds} and jobs {jobs}; each must be at least 1")
    report = SimulationReport()
    began = time.monotonic()
    chosen = range(first, first + seeds)
    for one in _one_by_one(chosen, seconds) if jobs == 1 else run_in_processes(chosen, jobs, seconds):
        report.add(one)
        if on_seed is not None:
            on_seed(one)
    report.seconds = time.monotonic() - began
    return report


def _one_by_one(seeds: range, seconds: float | None) -> Iterator[SeedReport]:
    began = time.monotonic()
    for seed in seeds:
        yield run_seed(seed)
        if seconds is not None and time.monotonic() - began >= seconds:
            return
