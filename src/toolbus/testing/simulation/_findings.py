"""The findings of a simulation: an invariant that did not hold, with the seed that shows it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

_LISTS = re.compile(r"\[[^\]]*\]")
_IDS = re.compile(r"\bs\d+_\w+")  # ids of a world: s4711_2a, s4711_2a_0_1
_NUMBERS = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?\b")


class Broken(AssertionError):
    """An invariant did not hold. `guarantee` is its number in docs/reference/guarantees.md."""

    def __init__(self, guarantee: str, problem: str) -> None:
        super().__init__(f"{guarantee}: {problem}")
        self.guarantee = guarantee


class SimulationFailed(AssertionError):
    """A seed broke an invariant: running `seed` shows it again; `guarantee` names it. The text has the timeline."""

    def __init__(self, seed: int, guarantee: str, problem: str, timeline: str) -> None:
        super().__init__(
            f"seed {seed} broke {problem}\n"
            f"again: toolbus simulate --seed {seed}, or toolbus.testing.simulation.run_seed({seed})\n{timeline}"
        )
        self.seed = seed
        self.guarantee = guarantee
        self.problem = problem
        self.timeline = timeline

    @property
    def kind(self) -> str:
        """The problem without the parts that differ from seed to seed: ids, numbers and lists."""
        return _NUMBERS.sub("N", _IDS.sub("#", _LISTS.sub("[#]", self.problem)))


@dataclass(slots=True, kw_only=True)
class SeedReport:
    """The results of one seed. `digest` is the same each time; `checks` counts the checks by guarantee."""

    seed: int
    digest: str
    events: int
    requests: int
    virtual_seconds: float
    outcomes: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    checks: Counter[str] = field(default_factory=Counter[str])
