"""The operations of a database for an archive: list everything piece by piece, find faults, and restore.

Each function is called within a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import groupby

from ...errors import StoreError
from ...events import Event
from ...messages import Message
from ...storage import ConversationRecord, Entry, RequestRecord, StoredFact
from .._encoding import conversation_from, searchable, stored, turn_of, written
from ..archive import Input
from . import _inbox
from ._append import remember, restore
from ._database import Database
from ._read import LISTED

_PAGE = 500
_SHOWN = 20  # faults of one kind
_ORPHANS = {
    "facts of request {!r}, which is not in the journal": """SELECT DISTINCT f.request_id FROM facts f
 WHERE NOT EXISTS (SELECT 1 FROM requests r WHERE r.request_id = f.request_id)
 AND NOT EXISTS (SELECT 1 FROM deleted d WHERE d.kind = 'request' AND d.id = f.request_id) LIMIT ?""",
    "messages of conversation {!r}, which is not in the list": """SELECT DISTINCT m.conversation_id FROM messages m
 WHERE NOT EXISTS (SELECT 1 FROM conversations c
 WHERE c.conversation_id = m.conversation_id AND c.first_position <= m.position)
 AND NOT EXISTS (SELECT 1 FROM deleted d
 WHERE d.kind = 'conversation' AND d.id = m.conversation_id AND d.below > m.position) LIMIT ?""",
    "times of another type in the row of conversation {!r}": """SELECT conversation_id FROM conversations
 WHERE NOT (started_at < 1e99 AND updated_at < 1e99) LIMIT ?""",
    "large texts of {!r} that are missing": """SELECT DISTINCT u.owner FROM blob_uses u
 WHERE NOT EXISTS (SELECT 1 FROM blobs b WHERE b.digest = u.digest) LIMIT ?""",
}
_TIMES = (
    "UPDATE requests SET started_at = ?, ended_at = ?, ending = ?, owner = '', lease_until = 0 WHERE request_id = ?"
)


def request_ids(database: Database, after: str) -> Sequence[str]:
    """Return some ids of requests that come after the id `after`, in the order of ids."""
    rows = database.rows(
        "SELECT request_id FROM requests WHERE request_id > ? ORDER BY request_id LIMIT ?", (after, _PAGE)
    )
    return [row[0] for row in rows]


def conversation_records(database: Database, after: str | None) -> Sequence[ConversationRecord]:
    """Return some conversations after the id `after`, in the order of ids; from the first on with None."""
    return [
        conversation_from(row)
        for row in database.rows(
            f"{LISTED} WHERE conversation_id > ? OR ? = 1 ORDER BY conversation_id LIMIT ?",
            (after or "", int(after is None), _PAGE),
        )
    ]


def faults(database: Database) -> Sequence[str]:
    """Return the faults outside of requests and conversations: rows without an owner, large texts that changed."""
    found: list[str] = [*database.own_faults(_SHOWN)]
    for text, statement in _ORPHANS.items():
        found += [f"there are {text}".format(row[0]) for row in database.rows(statement, (_SHOWN,))]
    after = b""
    while page := database.rows("SELECT digest FROM blobs WHERE digest > ? ORDER BY digest LIMIT ?", (after, _PAGE)):
        for (digest,) in page:
            # One at a time: each may have many megabytes.
            row = database.one("SELECT data FROM blobs WHERE digest = ?", (digest,))
            if row is not None and sha256(stored(row[0])).digest() != stored(digest):
                found.append(f"the large text {stored(digest).hex()} is not what was written")
        after = stored(page[-1][0])
    return found


def restore_request(
    database: Database, record: RequestRecord, facts: Sequence[StoredFact], inputs: Sequence[Input]
) -> None:
    """Write a request as another store had it, without a lease. Raises `StoreError` if the store has it already."""
    entries = [written(each) for each in _entries(record, facts)]
    begun = entries[0].begun if entries else None
    if begun is None:
        raise StoreError(f"request {record.request_id} cannot be restored: its first facts are missing")
    # The agreed options of a deleted request are the last of its rows: see `_upkeep.delete_some`.
    if database.rows("SELECT 1 FROM agreements WHERE request_id = ?", (record.request_id,)):
        raise StoreError(f"request {record.request_id} is in the store already")
    restore(database, entries, begun)
    _inbox.restore(database, record.request_id, inputs)
    database.run(_TIMES, (record.started_at, record.ended_at, record.ending, record.request_id))


def _entries(record: RequestRecord, facts: Sequence[StoredFact]) -> Sequence[Entry]:
    """Return the whole steps of a request as entries."""
    entries: list[Entry] = []
    step: list[Event] = []
    for each in facts:
        step.append(each.fact)
        if each.seq == each.step_end:
            entry = Entry(
                request_id=record.request_id,
                conversation_id=record.conversation_id,
                epoch=record.epoch,
                seq=each.seq + 1 - len(step),
                facts=step,
                agreed=record.agreed,
            )
            entries.append(entry)
            step = []
    return entries


def restore_conversation(database: Database, record: ConversationRecord, turns: Sequence[tuple[str, Message]]) -> None:
    """Write a conversation as another store had it. Raises `StoreError` if the store has it already."""
    conversation_id = record.conversation_id
    written_turns = [
        turn_of(conversation_id, [message for _, message in of_it], request_id=request_id)
        for request_id, of_it in groupby(turns, key=lambda each: each[0])
    ]
    # A conversation without messages is replaced, because `import_from` cannot see it before it writes.
    if database.rows("SELECT 1 FROM conversations WHERE conversation_id = ? AND messages > 0", (conversation_id,)):
        raise StoreError(f"conversation {conversation_id!r} is in the store already")
    remember(database, written_turns or [turn_of(conversation_id, ())])
    database.run(
        "UPDATE conversations SET title = ?, started_at = ?, updated_at = ? WHERE conversation_id = ?",
        (searchable(record.title), record.started_at, record.updated_at, conversation_id),
    )
