"""What the contract suites have in common: how a failure is written down, and the report. Knows no contract."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["Abandoned", "ContractBroken", "ContractReport", "Failure"]


@dataclass(frozen=True, slots=True)
class Failure:
    """What is not as it should be: the check's name, what it looked at, what was expected, and what came."""

    check: str
    what: str
    expected: str
    came: str

    def __str__(self) -> str:
        return f"{self.check}: {self.what}\n    expected: {self.expected}\n    came:     {self.came}"


class Abandoned(Exception):
    """The check cannot go on; why is written down."""


class ContractBroken(AssertionError):
    """A contract is not kept. The text has all that is wrong; so have the `failures`. `who` is what was checked."""

    def __init__(self, failures: Collection[Failure], ran: int, who: str = "provider") -> None:
        broken = len({each.check for each in failures})
        lines = [f"the {who} breaks its contract in {broken} of {ran} checks", *map(str, failures)]
        super().__init__("\n\n".join(lines))
        self.failures = tuple(failures)

    @property
    def checks(self) -> tuple[str, ...]:
        """The names of the checks that failed, in the order in which they ran."""
        return tuple(dict.fromkeys(each.check for each in self.failures))


@dataclass(frozen=True, slots=True)
class ContractReport:
    """Which checks passed, and which were left out: what they are about is said not to be there."""

    passed: tuple[str, ...]
    left_out: tuple[str, ...]
