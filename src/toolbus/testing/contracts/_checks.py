"""What the contract suites have in common: checks by name, how they are run, what is written down, the report.

Knows no contract.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import anyio

from ...errors import ConfigurationError
from ...failures import leaves_of

__all__ = [
    "Abandoned",
    "Check",
    "Checks",
    "ContractBroken",
    "ContractReport",
    "Failure",
    "Ledger",
    "hold_exceptions_pass",
    "is_ours",
    "run_all",
    "run_check",
    "shown",
    "words_of",
]

_SHOWN = 400  # characters of what came, in a report


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
        verb = "break their" if who.endswith("s") else "breaks its"
        lines = [f"the {who} {verb} contract in {broken} of {ran} checks", *map(str, failures)]
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


# ------------------------------------------------------------------------------------------------- writing down


class Ledger:
    """What has been found so far: failures, and which checks passed or were left out. `name` is the one that runs."""

    def __init__(self) -> None:
        self.name = ""
        self.failures: list[Failure] = []
        self.passed: list[str] = []
        self.left_out: list[str] = []

    def fail(self, what: str, expected: object, came: object) -> None:
        """Write a failure down."""
        self.failures.append(Failure(self.name, what, shown(expected), shown(came)))

    def expect(self, what: str, expected: object, came: object) -> None:
        """Write a failure down unless the two are equal."""
        if expected != came:
            self.fail(what, expected, came)

    def require(self, what: str, expected: str, came: object, *, ok: bool) -> None:
        """Write a failure down unless `ok`."""
        if not ok:
            self.fail(what, expected, came)

    def report(self, who: str) -> ContractReport:
        """What has been found of `who`. Raises `ContractBroken` where anything is wrong."""
        if self.failures:
            raise ContractBroken(self.failures, len(self.passed) + len({each.check for each in self.failures}), who)
        return ContractReport(tuple(self.passed), tuple(self.left_out))


async def hold_exceptions_pass(ledger: Ledger, block: AbstractAsyncContextManager[object]) -> None:
    """Write a failure down unless an exception of the block's own comes out of it as it is, in no group."""
    raised = LookupError("of the block")

    async def use() -> None:
        async with block:
            raise raised

    try:
        await use()
    except Exception as exc:  # what it is, is the question
        ledger.require("what comes out", repr(raised), exc, ok=exc is raised)
    else:
        ledger.fail("what comes out", raised, "nothing: it was swallowed")


def shown(value: object) -> str:
    """A value for a report."""
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


# ------------------------------------------------------------------------------------------------- the checks' table

LedgerT = TypeVar("LedgerT", bound=Ledger)
Run: TypeAlias = Callable[[LedgerT], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Check(Generic[LedgerT]):
    """One check: what it is called, what it holds, what it needs of what is checked, and how it goes."""

    name: str
    holds: str
    needs: frozenset[str]
    run: Run[LedgerT]


class Checks(dict[str, Check[LedgerT]]):
    """The checks of a contract by name, in the order in which they run."""

    def check(self, name: str, *needs: str) -> Callable[[Run[LedgerT]], Run[LedgerT]]:
        """Put a function among the checks. Its docstring says what it holds."""

        def add(run: Run[LedgerT]) -> Run[LedgerT]:
            self[name] = Check(name, " ".join((run.__doc__ or "").split()), frozenset(needs), run)
            return run

        return add

    def holds(self) -> dict[str, str]:
        """Name, and what it holds, of each."""
        return {name: each.holds for name, each in self.items()}

    def chosen(self, only: Collection[str] | None, without: Collection[str], listed_by: str) -> list[Check[LedgerT]]:
        """Those that are to run. Raises `ConfigurationError` for names that there are not."""
        wanted = set(self) if only is None else set(only)
        if unknown := (wanted | set(without)) - set(self):
            raise ConfigurationError(f"there are no checks {', '.join(sorted(unknown))}: see {listed_by}()")
        return [each for each in self.values() if each.name in wanted and each.name not in without]


async def run_all(
    checks: Iterable[Check[LedgerT]],
    ledger: LedgerT,
    cannot: AbstractSet[str],
    run_one: Callable[[Check[LedgerT]], Awaitable[bool]],
) -> None:
    """Run them one after the other, whatever fails, but for those that need what what is checked `cannot`."""
    for each in checks:
        if each.needs & cannot:
            ledger.left_out.append(each.name)
        elif await run_one(each):
            ledger.passed.append(each.name)


async def run_check(check: Check[LedgerT], ledger: LedgerT, seconds: float) -> bool:
    """Run a check, for so long at most, and write down how it breaks: whether it passed."""
    before = len(ledger.failures)
    ledger.name = check.name
    try:
        with anyio.move_on_after(seconds) as scope:
            await check.run(ledger)
        if scope.cancelled_caught:
            ledger.fail("the check", "comes to its end", f"it did not in {seconds:g} s")
    except Abandoned:
        pass
    except BaseException as exc:  # what is checked may break in any way, and the other checks go on
        if is_ours(exc):
            raise
        ledger.fail("the check", "comes to its end", words_of(exc))
    return len(ledger.failures) == before


def is_ours(exc: BaseException) -> bool:
    """Whether an exception is a cancellation or interrupt, and none that what is checked has let through."""
    passing = (anyio.get_cancelled_exc_class(), KeyboardInterrupt)
    return any(isinstance(each, passing) for each in leaves_of(exc))


def words_of(exc: BaseException) -> str:
    """An exception in words; of a group, all that are in it."""
    return "; ".join(f"{type(each).__name__}: {each}" for each in leaves_of(exc))
