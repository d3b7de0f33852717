"""The contract of a store as one test: `check_store`.

The package knows the protocol (`toolbus.storage`), and no store.

Invariants:

1. Every write, read and lease goes through the protocol, with ids that the suite makes up. So the checks hold for every
   database, and most of them can share one store.
2. A second process is another store over the same data (`reopen`). Two stores share no memory, so a fact that one of
   them only remembers is missing in the other.
3. After a check that fails, the next check gets another store. Damaged data would fail checks that have nothing to do
   with them.

Example:
    from toolbus.stores.memory import MemoryStore
    from toolbus.testing.contracts.store import MakeStore, check_store, store_checks

    make: MakeStore = lambda: MemoryStore(journal=True)
    report = await check_store(make, only={"histories", "messages"})  # in a test: all of them
    print(len(store_checks()) > 10, report.passed)  # True ('histories', 'messages')
"""

from __future__ import annotations

from collections.abc import Collection

import anyio

from ....records import replace
from ....storage import Inbox
from .._checks import Check, ContractReport, run_all, run_check, words_of
from . import _appending, _ending, _histories, _inbox, _leases, _order, _persistence
from ._bench import CHECKS, EMPTY, INBOX, JOURNAL, SHARED, Bench, LetPass, MakeStore, Reopen

__all__ = ["LetPass", "MakeStore", "Reopen", "check_store", "store_checks"]

_CHECKS = CHECKS.of(_histories, _appending, _ending, _leases, _order, _inbox, _persistence)


def store_checks() -> dict[str, str]:
    """Return the promise of each check of `check_store`, by the check's name, in the order in which they run."""
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
    """Check that a store keeps the contract of `toolbus.storage.Store`, and of `JournalStore` if it has a journal.

        async def test_my_store_keeps_the_contract(tmp_path):
            paths = (tmp_path / f"{number}.db" for number in count())
            await check_store(lambda: MyStore(next(paths)), reopen=lambda store: MyStore(store.path))

    `make_store` is called without arguments and returns an empty store with its own data, or an awaitable of one.
    Most checks share one store; a new one is made after a check that has failed, and for each check that needs an empty
    store. `reopen` is given such a store, and returns another one over the same data, as another process would open it.
    The suite closes the stores that both return.

    Some checks are left out, and the report names them: without `reopen`, the checks about two processes and about data
    that the first process leaves; for a store without a `journal`, the checks about requests; for a journal that is not
    an `Inbox`, the checks about inputs. `only` runs only the named checks, and `without` leaves the named ones out;
    `store_checks()` lists the names.

    Nearly all leases last an hour, or run out when they begin. If time has to pass, the suite awaits `let_pass` with a
    number of seconds, less than one second in all; by default it sleeps in real time. If the store has its own clock,
    pass a function that moves it; for stores that use `toolbus.clock`, see `toolbus.clock.wall_time_from`.
    `patience_seconds` bounds a check; a store that keeps the contract never needs it, unless its database is slow.

    Faults of disks and networks, and damage to stored data, are not covered: each store's own tests know how to cause
    them. All checks run, whatever fails. Raises `ContractBroken`, an `AssertionError` that names each check that
    failed, what was expected and what came; `ConfigurationError` for names of checks that do not exist. Works on every
    event loop that the store works on.
    """
    chosen = _CHECKS.chosen(only, without, "store_checks")
    bench = Bench(make_store, reopen, let_pass=let_pass, patience_seconds=patience_seconds)
    try:
        await bench.prepare(own=False)
        journal = bench.store.journal
        lacks = {JOURNAL: journal is None, INBOX: not isinstance(journal, Inbox), SHARED: reopen is None}
        cannot = {need for need, is_missing in lacks.items() if is_missing}
        await run_all(chosen, bench, cannot, lambda each: _run(each, bench))
    finally:
        bench.name = "closing"
        await _close_stores(bench, "the store after all checks")
    return bench.report("store")


async def _run(check: Check[Bench], bench: Bench) -> bool:
    """Run a check and return whether it passed. After a failure the next check gets another store."""

    async def prepared(bench: Bench) -> None:
        await bench.prepare(own=EMPTY in check.needs)
        await check.run(bench)
        await bench.clear()

    if await run_check(replace(check, run=prepared), bench, bench.patience_seconds):
        return True
    await _close_stores(bench, "the store after the check")
    return False


async def _close_stores(bench: Bench, what: str) -> None:
    try:
        with anyio.move_on_after(bench.patience_seconds) as scope:
            await bench.close_all()
        if scope.cancelled_caught:
            bench.fail(what, "can be closed", f"it was not in {bench.patience_seconds:g} s")
    except Exception as exc:
        bench.fail(what, "can be closed", words_of(exc))
