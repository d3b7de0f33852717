"""The engine that the stores in SQLite and PostgreSQL share.

It knows the tables and the statements, written once in SQL that both dialects take, and the interface of a connection.
It must not know a driver or a dialect: those are in the modules of the two stores.

Example:
    import tempfile
    from pathlib import Path

    from toolbus.stores.sql import DatabaseStore
    from toolbus.stores.sqlite import SqliteStore

    store: DatabaseStore = SqliteStore(Path(tempfile.mkdtemp(), "toolbus.db"))
    print(await store.history("user-1"))  # []
    await store.aclose()
"""

from ._append import MANY
from ._database import Database, Row, Rows
from ._engine import DatabaseStore
from ._schema import FORMAT, bring_up_to_date

__all__ = ["FORMAT", "MANY", "Database", "DatabaseStore", "Row", "Rows", "bring_up_to_date"]
