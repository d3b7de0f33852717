"""A store in MongoDB: the journal, and conversations as documents that other applications read and write too.

Needs the extra `mongo`. Knows the options; documents and driver are in the modules `_mongo_*`, which are imported when
a store is made.
"""

from __future__ import annotations

from ._store import MessageFields, MongoStore

__all__ = ["MessageFields", "MongoStore"]
