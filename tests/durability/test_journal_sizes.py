"""What operators learn of journals: their steps are counted, and one that is nearly full makes one warning."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from toolbus import Limits, Runtime
from toolbus.errors import StoreUnavailable
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, calls, text, virtual_backends

anyio_backend = virtual_backends()


async def look(n: int) -> str:
    """Look."""
    return f"page {n}"


async def run(store: MemoryStore, **limits: Any) -> Any:
    """The statistics of the runtime after a request of four rounds."""
    steps = [*[calls(("look", {"n": n})) for n in range(3)], text("Done.")]
    async with Runtime(ScriptedProvider(steps), tools=[look], store=store) as runtime:
        assert (await runtime.run("Look.", limits=Limits(**limits))).ok
        return runtime.statistics()


class Counted:
    """A slow store in memory that notes the size of the journal after each step, and refuses later ones on demand."""

    def __init__(self) -> None:
        self.store = MemoryStore(journal=True)
        self.sizes: list[int] = []
        self.is_away = False
        journal: Any = self.store.journal
        self._append = journal.append
        journal.append = self.append

    async def append(self, entry: Any) -> Any:
        if self.is_away and entry.seq:
            raise StoreUnavailable("it is away")
        await anyio.sleep(0.25)
        self.sizes.append(await self._append(entry))
        return self.sizes[-1]


async def test_the_steps_that_a_store_takes_and_refuses_are_counted() -> None:
    counted = Counted()
    found = await run(counted.store)
    assert (found.appends, found.append_failures) == (len(counted.sizes), 0)
    assert found.append_seconds == pytest.approx(0.25 * len(counted.sizes))
    counted.is_away = True
    async with Runtime(ScriptedProvider([text("Done.")]), store=counted.store) as runtime:
        assert not (await runtime.start("Look.").result()).ok
        found = runtime.statistics()
    assert (found.appends, found.append_failures) == (1, 1)


async def test_a_journal_that_is_nearly_full_of_facts_or_of_bytes_makes_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    counted = Counted()
    await run(counted.store)
    assert caplog.messages == []
    assert counted.store.journal is not None
    [record] = await counted.store.journal.requests()
    for limits in ({"max_facts": record.fact_count + 2}, {"max_journal_bytes": counted.sizes[-1] + 1}):
        caplog.clear()
        await run(MemoryStore(journal=True), **limits)
        [warning] = caplog.messages
        assert ", ".join(f"{name}={value}" for name, value in limits.items()) in warning
