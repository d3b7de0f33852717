"""Where conversations and journals are kept. Each module is one store; all pass the same contract.

`from toolbus.stores import SqliteStore`: the names are imported when they are first used, since each needs its driver.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .memory import MemoryStore
    from .mongo import MongoStore
    from .sql import SqlStore
    from .sqlite import SqliteStore

__all__ = ["MemoryStore", "MongoStore", "SqlStore", "SqliteStore"]

_HOMES = {"MemoryStore": "memory", "MongoStore": "mongo", "SqlStore": "sql", "SqliteStore": "sqlite"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{home}", __name__), name)
