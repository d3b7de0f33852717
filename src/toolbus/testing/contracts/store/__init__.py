"""The contract of a store as one test: `check_store`.

Knows the seam (`toolbus.storage`), and no store.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import anyio

from .._checks import Check, Checks, ContractReport, run_all, run_check, words_of
from . import _appending, _ending, _histories, _leases, _outliving
from ._bench import CHECKS, EMPTY, JOURNAL, SHARED, Bench, LetPass, MakeStore, Reopen

__all__ = ["LetPass", "MakeStore", "Reopen", "check_store", "store_checks"]

_CHECKS: Checks[Bench] = Checks(
    {
        name: each
        for module in (_histories, _appending, _ending, _leases, _outliving)  # which put their checks into the table
        for name, each in CHECKS.items()
        if each.run.__module__ == module.__name__
    }
)


def store_checks() -> dict[str, str]:
    """All checks of `check_store`: name, and what it holds, in the order in which they run."""
    return _CHECKS.holds()


async def check_store(
    make_store: MakeStore,
    *,
    reopen: Reopen | None = None,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    let_pass: LetPass = anyio.sleep,
    patience_seconds: float = 30.0,
) -> ContractReport:
    """Check that a store keeps the contract of `toolbus.storage.Store`, and where it has one, of `JournalStore`.

        async def test_my_store_keeps_the_contract(tmp_path):
            paths = (tmp_path / f"{number}.db" for number in count())
            await check_store(lambda: MyStore(next(paths)), reopen=lambda store: MyStore(store.path))

    `make_store` is called without arguments and gives a store over data of its own, in which there is nothing, or an
    awaitable of one: one that most checks share, another one after a check that has failed, and one for each of those
    that need an empty one.
    `reopen` is given such a store, and gives another one over the same data, as another process would have it. What
    both give is closed.

    Without `reopen`, the checks about two processes, and about what survives the first, are left out; and for a store
    whose `journal` is None, those about requests. The report says which. `only` runs some checks alone, `without` all
    but some: the names are those of `store_checks()`.

    Nearly all leases last an hour, or run out when they begin. Where time has to pass, `let_pass` is awaited with the
    seconds: in all less than one, of the real ones. Hand in what moves the store's clock, where that is one of your
    own: for stores that ask `toolbus.clock`, that of `toolbus.clock.wall_time_from`. `patience_seconds` bounds a check;
    a store that keeps the contract never needs it, unless its database is slow.

    Faults of disks and networks, and damage to what is stored, are no part of it: how they are made, each store's own
    tests know. All checks run, whatever fails. Raises `ContractBroken`, an `AssertionError` that names each check that
    failed, what was expected and what came; `ConfigurationError` for names of checks that there are not. Works on
    whatever event loop the store does.
    """
    chosen = _CHECKS.chosen(only, without, "store_checks")
    bench = Bench(make_store, reopen, let_pass=let_pass, patience_seconds=patience_seconds)
    try:
        await bench.prepare(own=False)
        lacks = {JOURNAL: bench.store.journal is None, SHARED: reopen is None}
        cannot = {need for need, is_missing in lacks.items() if is_missing}
        await run_all(chosen, bench, cannot, lambda each: _run(each, bench))
    finally:
        bench.name = "closing"
        await _let_go(bench, "the store behind all checks")
    return bench.report("store")


async def _run(check: Check[Bench], bench: Bench) -> bool:
    """Whether it passed. One that failed has done what it likes to the store: the next one gets another."""

    async def prepared(bench: Bench) -> None:
        await bench.prepare(own=EMPTY in check.needs)
        await check.run(bench)
        await bench.clear()

    if await run_check(replace(check, run=prepared), bench, bench.patience_seconds):
        return True
    await _let_go(bench, "the store behind the check")
    return False


async def _let_go(bench: Bench, what: str) -> None:
    try:
        with anyio.move_on_after(bench.patience_seconds) as scope:
            await bench.let_go()
        if scope.cancelled_caught:
            bench.fail(what, "can be closed", f"it was not in {bench.patience_seconds:g} s")
    except Exception as exc:
        bench.fail(what, "can be closed", words_of(exc))
