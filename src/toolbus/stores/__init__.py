"""Where conversations and journals are kept. Each module is one store; all pass the same contract.

`from toolbus.stores import SqliteStore`: the names are imported when they are first used, since each needs its driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import imported_when_used

if TYPE_CHECKING:
    from .memory import MemoryStore
    from .mongo import MongoStore
    from .postgres import PostgresStore
    from .sqlite import SqliteStore

__all__ = ["MemoryStore", "MongoStore", "PostgresStore", "SqliteStore"]

_HOMES = {"MemoryStore": ".memory", "MongoStore": ".mongo", "PostgresStore": ".postgres", "SqliteStore": ".sqlite"}

__getattr__, __dir__ = imported_when_used(__name__, _HOMES, __all__)
