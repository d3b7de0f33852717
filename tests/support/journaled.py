"""A store in memory with a journal, and a hook for tests before each append."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

import anyio

from toolbus.storage import Entry, JournalStore, Store
from toolbus.stores.memory import MemoryStore


class JournaledStore(MemoryStore):
    """A store that awaits `before(entry)` before each append. If `before` raises, the append fails with its error."""

    def __init__(self, before: Callable[[Entry], Awaitable[object]] | None = None) -> None:
        super().__init__(journal=True)
        self.before = before
        self.entries: list[Entry] = []
        journal: Any = self.journal
        append = journal.append

        async def after(entry: Entry) -> int:
            if self.before is not None:
                await self.before(entry)
            self.entries.append(entry)
            return await append(entry)

        journal.append = after


@contextmanager
def late_answers(store: Store, seconds: float) -> Generator[None]:
    """Let the journal answer each append `seconds` after it was written: meanwhile its session has published nothing."""
    there: Any = store.journal
    append = there.append

    async def late(entry: Entry) -> int:
        size_bytes = await append(entry)
        await anyio.sleep(seconds)
        return size_bytes

    there.append = late
    try:
        yield
    finally:
        there.append = append


def journal_of(store: Store) -> JournalStore:
    """The journal of a store that has one."""
    assert store.journal is not None
    return store.journal
