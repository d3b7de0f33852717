"""The contract of a store as one test: `check_store`.

Knows the seam (`toolbus.storage`), and no store.
"""

from __future__ import annotations

from collections.abc import Collection

import anyio

from ...errors import ConfigurationError
from ...execution import leaves_of
from .._contract import Abandoned, ContractBroken, ContractReport
from . import _appending, _ending, _histories, _leases, _outliving
from ._bench import CHECKS, EMPTY, JOURNAL, SHARED, Bench, Check, LetPass, MakeStore, Reopen

__all__ = ["LetPass", "MakeStore", "Reopen", "check_store", "store_checks"]

_CHECKS = {
    name: each
    for module in (_histories, _appending, _ending, _leases, _outliving)  # which put their checks into the table
    for name, each in CHECKS.items()
    if each.run.__module__ == module.__name__
}


def store_checks() -> dict[str, str]:
    """All checks of `check_store`: name, and what it holds, in the order in which they run."""
    return {name: each.holds for name, each in _CHECKS.items()}


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
    awaitable of one: for the first check, after a check that has failed, and for those that need an empty one.
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
    chosen = set(_CHECKS) if only is None else set(only)
    if unknown := (chosen | set(without)) - set(_CHECKS):
        raise ConfigurationError(f"there are no checks {', '.join(sorted(unknown))}: see store_checks()")
    bench = Bench(make_store, reopen, let_pass=let_pass, patience_seconds=patience_seconds)
    passed: list[str] = []
    left_out: list[str] = []
    try:
        await bench.prepare(fresh=False)
        lacks = {JOURNAL: bench.store.journal is None, SHARED: reopen is None}
        for each in _CHECKS.values():
            if each.name not in chosen or each.name in without:
                continue
            if any(lacks.get(need) for need in each.needs):
                left_out.append(each.name)
            elif await _run(each, bench):
                passed.append(each.name)
    finally:
        await bench.let_go()
    if bench.failures:
        raise ContractBroken(bench.failures, len(passed) + len({each.check for each in bench.failures}), "store")
    return ContractReport(tuple(passed), tuple(left_out))


async def _run(check: Check, bench: Bench) -> bool:
    """Whether it passed. Behind one that failed, and one that has had a store of its own, there is no store."""
    before = len(bench.failures)
    bench.name = check.name
    try:
        with anyio.move_on_after(bench.patience_seconds) as scope:
            await bench.prepare(fresh=EMPTY in check.needs)
            await check.run(bench)
            await bench.close_others()
        if scope.cancelled_caught:
            bench.fail("the check", "comes to its end", f"it did not in {bench.patience_seconds:g} s")
    except Abandoned:
        pass
    except BaseException as exc:  # a store may break in any way, and the other checks go on
        if not _is_the_stores(exc):
            raise
        bench.fail("the check", "comes to its end", _words_of(exc))
    passed = len(bench.failures) == before
    if not passed or EMPTY in check.needs:
        await _let_go(bench)
    return passed and len(bench.failures) == before


async def _let_go(bench: Bench) -> None:
    try:
        await bench.let_go()
    except Exception as exc:
        bench.fail("closing the store", "works", _words_of(exc))


def _is_the_stores(exc: BaseException) -> bool:
    """Whether an exception is one that a store may have let through, and no cancellation or interrupt."""
    passing = (anyio.get_cancelled_exc_class(), KeyboardInterrupt)
    return not any(isinstance(each, passing) for each in leaves_of(exc))


def _words_of(exc: BaseException) -> str:
    return "; ".join(f"{type(each).__name__}: {each}" for each in leaves_of(exc))
