"""Every store keeps the contract, whatever it keeps things in."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from support.wall_clock import Clock
from toolbus.clock import wall_time_from
from toolbus.storage import Durability
from toolbus.stores.memory import MemoryStore
from toolbus.stores.postgres import PostgresStore
from toolbus.stores.sqlite import SqliteStore
from toolbus.testing import check_store, store_checks

SLOW_DISK_SECONDS = 30.0
"""For a call, where each commit is synced to a disk that all tests share: 80 takes of leases wait for one another.

At 150 ms for a sync the usual four seconds are over, and the contract is not about that.
"""


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    with wall_time_from(clock):
        yield clock


async def test_the_memory_store_keeps_the_contract(clock: Clock) -> None:
    report = await check_store(MemoryStore, reopen=lambda store: store, let_pass=clock.let_pass)
    assert report.passed[:2] == ("histories", "messages")
    assert {"appends", "fencing", "statistics"} < {*report.skipped}


@pytest.mark.guarantee("G20")
async def test_the_memory_store_keeps_the_contract_with_a_journal(clock: Clock) -> None:
    report = await check_store(lambda: MemoryStore(journal=True), reopen=lambda store: store, let_pass=clock.let_pass)
    assert report.passed == tuple(store_checks())


@pytest.mark.guarantee("G20")
@pytest.mark.parametrize(("anyio_backend", "durability"), [("asyncio", "process"), ("trio", "power")])
async def test_the_sqlite_store_keeps_the_contract(
    anyio_backend: str, durability: Durability, tmp_path: Path, clock: Clock
) -> None:
    numbers = count()

    def opened(path: Path) -> SqliteStore:
        return SqliteStore(path, durability=durability, timeout_seconds=SLOW_DISK_SECONDS)

    report = await check_store(
        lambda: opened(tmp_path / f"{next(numbers)}.db"),
        reopen=lambda store: opened(store.path),
        let_pass=clock.let_pass,
        patience_seconds=60,
    )
    assert report.passed == tuple(store_checks())


@pytest.mark.guarantee("G20")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # its threads are those of SQLite's store
@pytest.mark.timeout(300)
async def test_the_postgresql_store_keeps_the_contract(anyio_backend: str, postgres_url: str) -> None:
    numbers = count()

    def opened(schema: str) -> PostgresStore:
        return PostgresStore(postgres_url, schema=schema, timeout_seconds=SLOW_DISK_SECONDS)

    report = await check_store(
        lambda: opened(f"store_{next(numbers)}"), reopen=lambda store: opened(store.schema), patience_seconds=60
    )
    assert report.passed == tuple(store_checks())
