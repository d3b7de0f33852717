"""Conversations in this process's memory: the default store. Nothing outlives the process, so it has no journal.

With `journal=True` it has a journal, for tests. Knows messages, events and the protocols of `toolbus.storage`. It must
not know files or drivers, and its methods must not wait for anything.
"""

from __future__ import annotations

from ._store import MemoryStatistics, MemoryStore

__all__ = ["MemoryStatistics", "MemoryStore"]
