"""The parts that the contract suites share: checks by name, the code that runs them, recorded failures, the report.

The module knows no contract.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar

import anyio
import orjson

from ...bus import EventBus
from ...errors import ConfigurationError
from ...failures import detail_of, leaves_of
from ..census import Census

_MAX_SHOWN_CHARS = 400  # of an actual value, in a report
MAX_WAITS = 20
"""The largest number of successive waits in one check."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One violation: the check's name, what it looked at, what was expected, and what came."""

    check: str
    what: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.check}: {self.what}\n    expected: {self.expected}\n    got:      {self.got}"


class Abandoned(Exception):
    """The check cannot continue; the reason is recorded as a failure."""


class ContractBroken(AssertionError):
    """A contract is broken. The text and `failures` hold every violation; `who` names the object that was checked."""

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
    """The checks that passed, and those that were left out because the object is declared to lack what they need."""

    passed: tuple[str, ...]
    skipped: tuple[str, ...]


# -------------------------------------------------------------------------------------------------- recording


@dataclass(eq=False)
class Ledger:
    """The findings so far: failures, and the checks that passed or were left out. `name` is the running check."""

    name: str = field(default="", init=False)
    failures: list[Failure] = field(default_factory=list[Failure], init=False)
    passed: list[str] = field(default_factory=list[str], init=False)
    skipped: list[str] = field(default_factory=list[str], init=False)

    def fail(self, what: str, expected: object, got: object) -> None:
        """Record a failure."""
        self.failures.append(Failure(self.name, what, shown(expected), shown(got)))

    def give_up(self, what: str, expected: object, got: object) -> NoReturn:
        """Record a failure after which the check cannot continue, and end the check."""
        self.fail(what, expected, got)
        raise Abandoned

    def expect(self, what: str, expected: object, got: object) -> None:
        """Record a failure unless the two values are equal."""
        if expected != got:
            self.fail(what, expected, got)

    def require(self, what: str, expected: str, got: object, *, ok: bool) -> None:
        """Record a failure unless `ok`."""
        if not ok:
            self.fail(what, expected, got)

    def report(self, who: str) -> ContractReport:
        """Return the findings about `who`. Raises `ContractBroken` if there are failures."""
        if self.failures:
            raise ContractBroken(self.failures, len(self.passed) + len({each.check for each in self.failures}), who)
        return ContractReport(tuple(self.passed), tuple(self.skipped))


async def expect_exceptions_pass(ledger: Ledger, block: AbstractAsyncContextManager[object]) -> None:
    """Record a failure unless an exception of the block comes out of the block unchanged, and not in a group."""
    raised = LookupError("of the block")

    async def use() -> None:
        async with block:
            raise raised

    try:
        await use()
    except Exception as exc:  # any exception may come out, and that is checked here
        ledger.require("what comes out", repr(raised), exc, ok=exc is raised)
    else:
        ledger.fail("what comes out", raised, "nothing: it was swallowed")


async def expect_nothing_left(ledger: Ledger, census: Census, *buses: EventBus) -> None:
    """Record a failure for what is there since the census was made, and for what `buses` still have."""
    try:
        await census.assert_nothing_left(*buses)
    except AssertionError as exc:
        ledger.fail("tasks, threads, processes and subscriptions", "none left", str(exc))


def shown(value: object) -> str:
    """Return a value as text for a report, at most `_MAX_SHOWN_CHARS` characters of it."""
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}... ({len(text)} characters)"


# ------------------------------------------------------------------------------------------------- the checks' table

LedgerT = TypeVar("LedgerT", bound=Ledger)
Run: TypeAlias = Callable[[LedgerT], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Check(Generic[LedgerT]):
    """One check: its name, the promise that it checks, the features that it needs, and the function that runs it."""

    name: str
    holds: str
    needs: frozenset[str]
    run: Run[LedgerT]


class Checks(dict[str, Check[LedgerT]]):
    """The checks of a contract by name, in the order in which they run."""

    def check(self, name: str, *needs: str) -> Callable[[Run[LedgerT]], Run[LedgerT]]:
        """Register a function as a check. Its docstring states the promise that it checks."""

        def add(run: Run[LedgerT]) -> Run[LedgerT]:
            self[name] = Check(name, " ".join((run.__doc__ or "").split()), frozenset(needs), run)
            return run

        return add

    def of(self, *modules: ModuleType) -> Checks[LedgerT]:
        """Return the checks of these modules, in this order. A module registers its checks when it is imported."""
        names = [module.__name__ for module in modules]
        return Checks({each.name: each for name in names for each in self.values() if each.run.__module__ == name})

    def holds(self) -> dict[str, str]:
        """Return the promise of each check, by the check's name."""
        return {name: each.holds for name, each in self.items()}

    def chosen(self, only: Collection[str] | None, without: Collection[str], listed_by: str) -> list[Check[LedgerT]]:
        """Return the checks that are to run. Raises `ConfigurationError` for names of checks that do not exist."""
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
    """Run the checks one after the other, whatever fails, except those that need a feature in `cannot`."""
    for each in checks:
        if each.needs & cannot:
            ledger.skipped.append(each.name)
        elif await run_one(each):
            ledger.passed.append(each.name)


async def run_check(check: Check[LedgerT], ledger: LedgerT, seconds: float) -> bool:
    """Run a check, for at most `seconds`, record how it breaks, and return whether it passed."""
    before = len(ledger.failures)
    ledger.name = check.name
    try:
        with anyio.move_on_after(seconds) as scope:
            await check.run(ledger)
        if scope.cancelled_caught:
            ledger.fail("the check", "finishes", f"it did not in {seconds:g} s")
    except Abandoned:
        pass
    except BaseException as exc:  # the object may break in any way, and the other checks still run
        if is_ours(exc):
            raise
        ledger.fail("the check", "comes to its end", words_of(exc))
    return len(ledger.failures) == before


def json_or_text(text: str) -> Any:
    """Return the value of a JSON text; any other text unchanged."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def is_ours(exc: BaseException) -> bool:
    """Return whether an exception is a cancellation or an interrupt that the checked object has not caused."""
    passing = (anyio.get_cancelled_exc_class(), KeyboardInterrupt)
    return any(isinstance(each, passing) for each in leaves_of(exc))


def words_of(exc: BaseException) -> str:
    """Return an exception in words, with its line in the checked code; for a group, all exceptions in it."""
    return "; ".join(map(detail_of, leaves_of(exc)))
