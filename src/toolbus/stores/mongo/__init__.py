"""A store in MongoDB: the journal, and conversations as documents that other applications read and write too.

Needs the extra `mongo`; the driver is imported when a store is made. The package knows documents, collections and the
driver. It must not know SQL or sessions, and it must not need transactions of the server: without them, only the change
of one document is atomic. So it keeps these invariants:

1. A step is written by one update of its request's document, with the epoch and the next position as its condition.
   Without this two processes could both write a step at one position.
2. A step's own document is inserted before that update, and only steps to which the request's document refers are read.
   Without this a crash between the two writes would leave a request that refers to a missing step.
3. Every write can be repeated: the ids of documents depend only on what is written. Without this a retry after a lost
   reply would write a step or a turn twice.
4. An ending and the messages of its turn are written by the same update, and every reader first moves waiting turns
   into their conversations. Without this a crash after the ending would lose the turn.
5. Everything that is deleted is marked as deleted first. Without this a reader could see half of a request.
"""

from __future__ import annotations

from ._store import MessageFields, MongoStore

__all__ = ["MessageFields", "MongoStore"]
