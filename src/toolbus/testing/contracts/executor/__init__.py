"""The contract of an executor as one test: `check_executor`.

The package knows the protocol (`toolbus.protocols.ToolExecutor`), the bus, the tools of `contract_tools`, and no
executor.

Invariants:

1. The checks reach handlers only through calls, and through the notes that the handlers make under keys. So an executor
   that runs tools on another machine passes the same checks.
2. Each check has its own bus. On a shared bus, a call that one check leaves would be answered in the next.

Example:
    from toolbus import ToolDispatcher
    from toolbus.testing.contracts.executor import check_executor, executor_checks

    print(len(executor_checks()) > 10)  # True

    async def test_my_executor_keeps_the_contract() -> None:
        await check_executor(ToolDispatcher)
"""

from __future__ import annotations

from collections.abc import Collection
from typing import get_args

from ....errors import ConfigurationError
from ...contract_tools import CONTRACT_TOOLS
from .._checks import MAX_WAITS, Check, ContractReport, run_all, run_check
from . import _answering, _running, _stopping, _taking
from ._bench import BOUND, CHECKS, TWO_AT_ONCE, Bench, Lack, MakeExecutor

__all__ = ["CONTRACT_TOOLS", "Lack", "check_executor", "executor_checks"]

_CHECKS = CHECKS.of(_answering, _taking, _running, _stopping)


def executor_checks() -> dict[str, str]:
    """Return the promise of each check of `check_executor`, by the check's name, in the order in which they run."""
    return _CHECKS.holds()


async def check_executor(
    make_executor: MakeExecutor,
    *,
    lacks: Collection[Lack] = (),
    elsewhere: bool = False,
    max_concurrency: int | None = None,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    patience_seconds: float = 10.0,
    quiet_seconds: float = 0.05,
) -> ContractReport:
    """Check that an executor keeps the contract of `toolbus.protocols.ToolExecutor`.

        async def test_my_executor_keeps_the_contract():
            await check_executor(lambda bus, tools: MyExecutor(bus, tools))

    `make_executor` is called with a bus and `CONTRACT_TOOLS`, and returns an async context manager that runs the calls
    of these tools that are requested on the bus. Each check makes at least one executor. If tools run on
    another machine, register `toolbus.testing.contract_tools.CONTRACT_TOOLS` there, and pass `elsewhere=True`: then the
    suite asks by calls for the notes of the handlers. `max_concurrency` is the number of handlers that run at once, if
    there is a bound.

    `lacks` names missing features, and the checks that need them are left out: "sync" (handlers that are not async),
    "context" (handlers with a `ToolContext`), "progress" (progress that handlers report), "notes" (the handlers of one
    executor share no memory, for example because they run in several processes), "sharing" (a second executor on the
    same bus). `only` runs only the named checks, and `without` leaves the named ones out; `executor_checks()` lists
    the names. `patience_seconds` bounds every wait for an event that has to come; an executor that keeps the
    contract never needs it. `quiet_seconds` is how long the suite listens for events that must not come.

    All checks run, whatever fails. Raises `ContractBroken`, an `AssertionError` that names each check that failed, what
    was expected and what came; `ConfigurationError` for names of checks or lacks that do not exist. Works on asyncio
    and trio; takes no time in virtual time, and about a second in real time.
    """
    chosen = _CHECKS.chosen(only, without, "executor_checks")
    if unknown := set(lacks) - set(get_args(Lack)):
        raise ConfigurationError(f"an executor may lack {', '.join(get_args(Lack))}, not {', '.join(sorted(unknown))}")
    cannot = _cannot(lacks, elsewhere=elsewhere, max_concurrency=max_concurrency)
    bench = Bench(
        make_executor,
        elsewhere=elsewhere,
        max_concurrency=max_concurrency,
        patience_seconds=patience_seconds,
        quiet_seconds=quiet_seconds,
    )

    async def run_one(each: Check[Bench]) -> bool:
        try:
            return await run_check(each, bench, MAX_WAITS * bench.patience_seconds)
        finally:
            bench.clear()

    await run_all(chosen, bench, cannot, run_one)
    return bench.report("executor")


def _cannot(lacks: Collection[Lack], *, elsewhere: bool, max_concurrency: int | None) -> set[str]:
    cannot: set[str] = set(lacks)
    if "context" in cannot:
        cannot.add("progress")
    if max_concurrency is None:
        cannot.add(BOUND)
    if max_concurrency == 1:
        cannot.add(TWO_AT_ONCE)
        if elsewhere:  # the call for the notes would wait for the call that it asks about
            cannot.add("notes")
    return cannot
