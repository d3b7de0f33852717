"""Every store keeps the contract, whatever it keeps things in."""

from __future__ import annotations

import pytest

from toolbus.clock import wall_time_from
from toolbus.stores.memory import MemoryStore
from toolbus.testing import check_store, store_checks


class Clock:
    """Seconds since the epoch, which pass when they are let pass."""

    def __init__(self) -> None:
        self.now = 1_750_000_000.0

    def __call__(self) -> float:
        return self.now

    async def let_pass(self, seconds: float) -> None:
        self.now += seconds


async def test_the_memory_store_keeps_the_contract() -> None:
    clock = Clock()
    with wall_time_from(clock):
        report = await check_store(MemoryStore, reopen=lambda store: store, let_pass=clock.let_pass)
    assert report.passed[:2] == ("histories", "messages")
    assert {"appends", "fencing", "statistics"} < {*report.left_out}


@pytest.mark.guarantee("G20")
async def test_the_memory_store_keeps_the_contract_with_a_journal() -> None:
    clock = Clock()
    with wall_time_from(clock):
        report = await check_store(
            lambda: MemoryStore(journal=True), reopen=lambda store: store, let_pass=clock.let_pass
        )
    assert report.passed == tuple(store_checks())
