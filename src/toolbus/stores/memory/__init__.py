"""Conversations in this process's memory: the default store. Nothing outlives the process, so it has no journal.

With `journal=True` it has a journal nevertheless, for tests. Knows messages, events and the protocols of
`toolbus.storage`. It must not know files or drivers, nor suspend: sessions that use it wait for nothing.
"""

from __future__ import annotations

from ._store import MemoryStatistics, MemoryStore

__all__ = ["MemoryStatistics", "MemoryStore"]
