"""The stores of conversations and request journals: in memory, in SQLite, in PostgreSQL and in MongoDB.

Each module implements `Store` and, where its data outlives the process, `JournalStore` (`toolbus.storage`). A store
knows messages, events and its driver. It must not know sessions, runtimes or buses, and no store knows another. The
class names are imported from their modules at first use, because each module needs its own driver.

Every store keeps these invariants. `toolbus.testing.check_store` tests the first four; the fifth has tests of its own:

1. What a call has written is as durable as the store promises when the call returns, because a session performs the
   effects of a fact after its append. Without this a crash could leave a tool call that was made and is in no journal.
2. A step is written whole or not at all, also under cancellation, because a request is resumed after a whole step.
   Without this a resumed request would start from a state that never existed.
3. The epoch of the lease and the position of the step are checked in the same transaction as the write. Without this a
   process that was stopped for longer than its lease could write into a request that another process has resumed.
4. A request's ending and the messages of its turn become visible to readers of the store together. Without this a
   conversation could lack a turn whose request has ended.
5. Facts and messages from a database are compared with their hashes when they are read, and `StoreDamaged` names the
   first that differs. Without this a damaged row would become a model's history, or the state of a resumed request.
   The only exception is a message in MongoDB that another application has edited: then the edited text is used.
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

_MODULES = {
    ".memory": ["MemoryStore"],
    ".mongo": ["MongoStore"],
    ".postgres": ["PostgresStore"],
    ".sqlite": ["SqliteStore"],
}

if not TYPE_CHECKING:  # A type checker would take every name that is spelt wrong.
    __getattr__, __dir__ = imported_when_used(__name__, _MODULES)
