"""The changes of leases, and deletions: each function is one transaction on the writer's connection."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import StoreError
from ...storage import WRITE_SECONDS, PruneReport, RequestRecord
from .._threaded_store import fitting
from . import order
from .append import OWN
from .database import Database
from .read import request, salvage, start_of

__all__ = [
    "OLD_CONVERSATIONS",
    "abandon",
    "cut",
    "delete_unused",
    "forget",
    "prune_conversations",
    "prune_requests",
    "release",
    "renew",
    "take",
]

_TAKE = """UPDATE requests SET epoch = epoch + 1, owner = ?, lease_until = {now} + ?
 WHERE request_id = ? AND ending IS NULL AND lease_until <= {now}
 AND NOT EXISTS (SELECT 1 FROM owners o WHERE o.owner = requests.owner AND o.lease_until > {now})"""
_RENEW = """INSERT INTO owners (owner, lease_until) VALUES (?, {now} + ?)
 ON CONFLICT (owner) DO UPDATE SET lease_until = excluded.lease_until
 WHERE owners.lease_until < excluded.lease_until"""
_HELD = "SELECT count(*) FROM requests WHERE owner = ? AND owner <> ''"
# Owners whose lease ended more than a day ago, except those that a request still names, because nobody has taken it.
_GONE = """DELETE FROM owners WHERE lease_until < {now} - 86400
 AND NOT EXISTS (SELECT 1 FROM requests r WHERE r.owner = owners.owner AND r.owner <> '')"""
_RELEASE = "UPDATE requests SET owner = '', lease_until = 0 WHERE request_id = ? AND epoch = ? AND ending IS NULL"
_ABANDON = """UPDATE requests SET ending = 'abandoned', ended_at = {now}, owner = '', lease_until = 0
 WHERE request_id = ? AND epoch = ? AND ending IS NULL"""
_CUT = """UPDATE requests SET next_seq = ?, size_bytes = ?, hash = ?
 WHERE request_id = ? AND epoch = ? AND ending IS NULL"""
OLD_CONVERSATIONS = """FROM conversations c WHERE updated_at < ?
 AND NOT EXISTS (SELECT 1 FROM requests r WHERE r.conversation_id = c.conversation_id
 AND (r.ending IS NULL OR r.ended_at >= ?))
 AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.conversation_id = c.conversation_id AND t.lease_until > {now}
 AND NOT EXISTS (SELECT 1 FROM requests r WHERE r.request_id = t.request_id AND r.ending IS NOT NULL))"""
_HASH = "SELECT hash FROM facts WHERE request_id = ? AND seq = ?"
_SIZES = "SELECT length(data) FROM facts WHERE request_id = ? AND seq < ?"
_DELETE = (
    "DELETE FROM facts WHERE request_id = ?",
    "DELETE FROM inbox WHERE request_id = ?",
    "DELETE FROM agreements WHERE request_id = ?",
    "DELETE FROM requests WHERE request_id = ?",
)
_LOCK_CONVERSATION = "SELECT 1 FROM conversations WHERE conversation_id = ?"
_DELETE_CONVERSATION = (
    "DELETE FROM messages WHERE conversation_id = ?",
    "DELETE FROM conversations WHERE conversation_id = ?",
)
_PIECE = 500  # large texts in one transaction
# The owner "deleted" has the large texts that are left of deleted requests and conversations.
_DELETE_USES = (
    """INSERT INTO blob_uses (owner, digest) SELECT 'deleted', digest FROM blob_uses WHERE owner = ?
 ON CONFLICT DO NOTHING""",
    "DELETE FROM blob_uses WHERE owner = ?",
)
_LEFT = """SELECT u.digest, coalesce(length(b.data), 0) FROM blob_uses u LEFT JOIN blobs b ON b.digest = u.digest
 WHERE u.owner = 'deleted' LIMIT ?"""
_DROP_LEFT = "DELETE FROM blob_uses WHERE owner = 'deleted' AND digest = ?"
_UNUSED = "DELETE FROM blobs WHERE digest = ? AND NOT EXISTS (SELECT 1 FROM blob_uses u WHERE u.digest = blobs.digest)"


# ------------------------------------------------------------------------------------------------- leases


def take(database: Database, request_id: str, owner: str, seconds: float) -> RequestRecord | None:
    """See `JournalStore.take`."""
    with database.transaction():
        # This raises if the row is damaged: the UPDATE would add 1 also to an epoch that is not a number.
        request(database, request_id)
        database.insert(OWN, [(owner,)])
        if not database.run(_TAKE, (owner, seconds, request_id)):
            return None
        return request(database, request_id)


def renew(database: Database, owner: str, seconds: float) -> int:
    """See `JournalStore.renew`. One row is written, however many requests the owner has."""
    if not owner:
        return 0
    with database.transaction():
        database.run(_RENEW, (owner, seconds))
        database.run(_GONE)
        return int(database.rows(_HELD, (owner,))[0][0])


def release(database: Database, request_id: str, epoch: int) -> bool:
    """See `JournalStore.release`."""
    with database.transaction():
        return bool(database.run(_RELEASE, (request_id, epoch)))


def abandon(database: Database, request_id: str, epoch: int) -> bool:
    """See `JournalStore.abandon`."""
    with database.transaction():
        done = bool(database.run(_ABANDON, (request_id, epoch)))
    database.heads.keep([(request_id, None)])
    return done


def cut(database: Database, request_id: str, epoch: int) -> int | None:
    """Delete a request's facts from the first step on that is not whole, and return how many are left.

    Returns None if another process has taken the request since, or if the request has ended.
    """
    with database.transaction():
        found = salvage(database, request_id)
        found.cut_to_a_step()
        seq = len(found.facts)
        last = database.rows(_HASH, (request_id, seq - 1))[0][0] if seq else start_of(database, request_id)
        size_bytes = sum(size for (size,) in database.rows(_SIZES, (request_id, seq)))
        moved = database.run(_CUT, (seq, size_bytes, last, request_id, epoch))
        if moved:
            database.run("DELETE FROM facts WHERE request_id = ? AND seq >= ?", (request_id, seq))
    database.heads.keep([(request_id, None)])
    return seq if moved else None


# ----------------------------------------------------------------------------------------------- deleting


def forget(database: Database, conversation_id: str) -> bool | None:
    """See `Store.forget`. Returns None if there are more requests: call it again then."""
    with database.transaction():
        database.lock_blobs(exclusive=True)
        found = database.rows(
            "SELECT request_id, size_bytes, ending FROM requests WHERE conversation_id = ?", (conversation_id,)
        )
        for request_id, _, ending in found:
            if ending is None:
                raise StoreError(f"conversation {conversation_id!r} has an unfinished request: {request_id}")
        # With the turn, no request begins with the messages that are deleted here.
        if not order.take(database, order.WantedTurn(conversation_id, "", "", WRITE_SECONDS)):
            raise StoreError(f"conversation {conversation_id!r} has a request that is about to begin")
        some = found[: fitting(row[1] for row in found)[0]]
        _delete_requests(database, [row[0] for row in some])
        if len(some) < len(found):
            return None
        there_was = bool(database.rows(_LOCK_CONVERSATION + database.for_update, (conversation_id,)))
        _delete_conversations(database, [conversation_id])
    return bool(found) or there_was


def prune_requests(database: Database, before: float, limit: int) -> PruneReport:
    """Delete at most `limit` requests that ended before the moment `before`."""
    with database.transaction():
        database.lock_blobs(exclusive=True)
        found = database.rows(
            "SELECT request_id, size_bytes FROM requests WHERE ended_at < ? ORDER BY ended_at LIMIT ?", (before, limit)
        )
        if not found:
            return PruneReport()
        count, size_bytes = fitting(size for _, size in found)
        _delete_requests(database, [each for each, _ in found[:count]])
    return PruneReport(requests=count, size_bytes=size_bytes)


def prune_conversations(database: Database, before: float, limit: int) -> PruneReport:
    """Delete at most `limit` conversations that have not changed since `before` and have no newer request."""
    with database.transaction():
        database.lock_blobs(exclusive=True)
        # The rows are locked, so that no turn is added while its conversation is being deleted.
        statement = f"SELECT conversation_id, size_bytes {OLD_CONVERSATIONS} LIMIT ?{database.for_update}"
        found = database.rows(statement, (before, before, limit))
        if not found:
            return PruneReport()
        count, size_bytes = fitting(size for _, size in found)
        _delete_conversations(database, [each for each, _ in found[:count]])
    return PruneReport(conversations=count, size_bytes=size_bytes)


def delete_unused(database: Database) -> bool:
    """Delete some of the large texts that the deletions above have left, and return whether there were any.

    A deletion only gives them to the owner "deleted", in its transaction: so a conversation of many large texts is gone
    for readers at once, and its texts are deleted in transactions that each take a bounded time. If the process dies
    in between, the next deletion continues.
    """
    with database.transaction():
        database.lock_blobs(exclusive=True)
        found = database.rows(_LEFT, (_PIECE,))
        if some := [(digest,) for digest, _ in found[: fitting(size for _, size in found)[0]]]:
            database.run_many(_DROP_LEFT, some)
            database.run_many(_UNUSED, some)
    return bool(found)


def _delete_requests(database: Database, ids: Sequence[str]) -> None:
    if ids:
        _delete_uses(database, [f"request {each}" for each in ids])
        database.run_many(order.DELETE_OF, [(each, each) for each in ids])
        for statement in _DELETE:
            database.run_many(statement, [(each,) for each in ids])


def _delete_conversations(database: Database, ids: Sequence[str]) -> None:
    """Delete conversations whose rows are locked."""
    _delete_uses(database, [f"conversation {each}" for each in ids])
    for statement in (*_DELETE_CONVERSATION, order.DELETE):
        database.run_many(statement, [(each,) for each in ids])


def _delete_uses(database: Database, owners: Sequence[str]) -> None:
    for statement in _DELETE_USES:
        database.run_many(statement, [(each,) for each in owners])
