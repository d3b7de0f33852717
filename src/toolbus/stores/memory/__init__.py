"""Conversations in this process's memory: the default store. Nothing outlives the process, so it has no journal.

Knows messages and the `Store` protocol. With `journal=True` it has one all the same, for tests.
"""

from __future__ import annotations

from ._store import MemoryStatistics, MemoryStore

__all__ = ["MemoryStatistics", "MemoryStore"]
