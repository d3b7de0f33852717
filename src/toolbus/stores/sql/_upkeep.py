"""The changes of leases, and deletions: each function is called within a transaction on the writer's connection."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ...errors import StoreError
from ...storage import WRITE_SECONDS, PruneReport, RequestRecord
from .._encoding import conversation_start
from .._read_ahead import fitting
from . import _order
from ._append import BEGIN_CONVERSATION, OWN
from ._database import Database, Row, Rows
from ._read import request, salvage, start_of

_TAKE = """UPDATE requests SET epoch = epoch + 1, owner = ?, lease_until = {now} + ?
 WHERE request_id = ? AND ending IS NULL AND lease_until <= {now}
 AND NOT EXISTS (SELECT 1 FROM owners o WHERE o.owner = requests.owner AND o.lease_until > {now})"""
_RENEW = """INSERT INTO owners (owner, lease_until) VALUES (?, {now} + ?)
 ON CONFLICT (owner) DO UPDATE SET lease_until = excluded.lease_until
 WHERE owners.lease_until < excluded.lease_until"""
_HELD = "SELECT request_id FROM requests WHERE owner = ? AND owner <> ''"
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
_LOCK_CONVERSATION = "SELECT conversation_id, size_bytes FROM conversations WHERE conversation_id = ?"
# The owner "deleted" has the large texts that are left of deleted requests and conversations.
_TEXTS_LEFT = """SELECT u.digest, coalesce(length(b.data), 0) FROM blob_uses u LEFT JOIN blobs b ON b.digest = u.digest
 WHERE u.owner = 'deleted' LIMIT ?"""
_MAX_LISTED = 100  # requests and conversations whose rows are deleted in one transaction
_MAX_ROWS = 1_000
_MAX_TEXTS = 500
# A row takes about as long as the bytes that are added for it here.
_LISTED = "SELECT kind, id, below, size_bytes + below * 16384 FROM deleted LIMIT ?"


def _among(head: str, column: str, tail: str = "", kind: str = "text") -> Rows:
    """Return a statement for the rows whose `column` is among the values that it gets."""
    return Rows(f"{head} WHERE {column} IN (VALUES ", "(?)", (kind,), f"){tail}")


def _listing(kind: str, table: str, position: str) -> Rows:
    """Return the statement that lists requests or conversations in the table `deleted`, each by (id, id, bytes)."""
    return Rows(
        "INSERT INTO deleted (kind, id, below, size_bytes) VALUES ",
        f"('{kind}', ?, (SELECT coalesce(max({position}) + 1, 0) FROM {table} WHERE {kind}_id = ?), ?)",  # noqa: S608
        ("text", "text", "whole"),
        " ON CONFLICT (kind, id) DO UPDATE SET below = excluded.below,"
        " size_bytes = deleted.size_bytes + excluded.size_bytes",
    )


_LIST_REQUESTS = _listing("request", "facts", "seq")
_LIST_CONVERSATIONS = _listing("conversation", "messages", "position")
_DELETE_REQUESTS = (
    _order.DELETE_OF,
    _among("DELETE FROM inbox", "request_id"),
    _among("DELETE FROM requests", "request_id"),
)
_DELETE_CONVERSATIONS = (_order.DELETE, _among("DELETE FROM conversations", "conversation_id"))
_DELETE_USES = (
    _among(
        "INSERT INTO blob_uses (owner, digest) SELECT 'deleted', digest FROM blob_uses",
        "owner",
        " ON CONFLICT DO NOTHING",
    ),
    _among("DELETE FROM blob_uses", "owner"),
)
_ROWS_LEFT = {
    "request": "SELECT seq, length(data) FROM facts WHERE request_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?",
    "conversation": """SELECT position, length(data) FROM messages WHERE conversation_id = ? AND position < ?
 ORDER BY position DESC LIMIT ?""",
}
_DELETE_ROWS = {
    "request": "DELETE FROM facts WHERE request_id = ? AND seq >= ? AND seq < ?",
    "conversation": "DELETE FROM messages WHERE conversation_id = ? AND position >= ? AND position < ?",
}
_SHORTEN = "UPDATE deleted SET below = ? WHERE kind = ? AND id = ?"
_DELETE_AGREED = _among("DELETE FROM agreements", "request_id")
_UNLIST = {kind: _among("DELETE FROM deleted", f"kind = '{kind}' AND id") for kind in _DELETE_ROWS}
_DELETE_TEXTS = (
    _among("DELETE FROM blob_uses", "owner = 'deleted' AND digest", kind="blob"),
    _among(
        "DELETE FROM blobs",
        "digest",
        " AND NOT EXISTS (SELECT 1 FROM blob_uses u WHERE u.digest = blobs.digest)",
        kind="blob",
    ),
)


# ------------------------------------------------------------------------------------------------- leases


def take(database: Database, request_id: str, owner: str, seconds: float) -> RequestRecord | None:
    """See `JournalStore.take`."""
    # This raises if the row is damaged: the UPDATE would add 1 also to an epoch that is not a number.
    request(database, request_id)
    database.insert(OWN, [(owner,)])
    if not database.run(_TAKE, (owner, seconds, request_id)):
        return None
    return request(database, request_id)


def renew(database: Database, owner: str, seconds: float) -> Collection[str]:
    """See `JournalStore.renew`. One row is written, however many requests the owner has."""
    if not owner:
        return ()
    database.run(_RENEW, (owner, seconds))
    database.run(_GONE)
    return [request_id for (request_id,) in database.rows(_HELD, (owner,))]


def release(database: Database, request_id: str, epoch: int) -> bool:
    """See `JournalStore.release`."""
    return bool(database.run(_RELEASE, (request_id, epoch)))


def abandon(database: Database, request_id: str, epoch: int) -> bool:
    """See `JournalStore.abandon`."""
    database.heads.keep([(request_id, None)])
    return bool(database.run(_ABANDON, (request_id, epoch)))


def cut(database: Database, request_id: str, epoch: int) -> int | None:
    """Delete a request's facts from the first step on that is not whole, and return how many are left.

    Returns None if another process has taken the request since, or if the request has ended.
    """
    database.heads.keep([(request_id, None)])
    seq = len(salvage(database, request_id).facts)
    last = database.rows(_HASH, (request_id, seq - 1))[0][0] if seq else start_of(database, request_id)
    size_bytes = sum(size for (size,) in database.rows(_SIZES, (request_id, seq)))
    if not database.run(_CUT, (seq, size_bytes, last, request_id, epoch)):
        return None
    database.run("DELETE FROM facts WHERE request_id = ? AND seq >= ?", (request_id, seq))
    return seq


# ----------------------------------------------------------------------------------------------- deleting


def forget(database: Database, conversation_id: str) -> bool:
    """See `Store.forget`."""
    database.lock("deleted")
    database.lock("blobs")
    found = database.rows(
        "SELECT request_id, size_bytes, ending FROM requests WHERE conversation_id = ?", (conversation_id,)
    )
    for request_id, _, ending in found:
        if ending is None:
            raise StoreError(f"conversation {conversation_id!r} has an unfinished request: {request_id}")
    # With the turn, no request begins with the messages that are deleted here.
    if not _order.take(database, _order.WantedTurn(conversation_id, "", "", WRITE_SECONDS)):
        raise StoreError(f"conversation {conversation_id!r} has a request that is about to begin")
    _delete_requests(database, [row[:2] for row in found])
    # Its row is locked, so that no turn is added until the commit. A conversation that is not there gets one.
    begins = [(conversation_id, conversation_start(conversation_id))]
    there_was = not database.insert(BEGIN_CONVERSATION, begins)
    _delete_conversations(database, database.rows(_LOCK_CONVERSATION + database.for_update, (conversation_id,)))
    return bool(found) or there_was


def prune_requests(database: Database, before: float, limit: int) -> PruneReport:
    """Delete at most `limit` requests that ended before the moment `before`."""
    database.lock("deleted")
    database.lock("blobs")
    found = database.rows(
        "SELECT request_id, size_bytes FROM requests WHERE ended_at < ? ORDER BY ended_at LIMIT ?", (before, limit)
    )
    return PruneReport(requests=len(found), size_bytes=_delete_requests(database, found))


def prune_conversations(database: Database, before: float, limit: int) -> PruneReport:
    """Delete at most `limit` conversations that have not changed since `before` and have no newer request."""
    database.lock("deleted")
    database.lock("blobs")
    # The rows are locked, so that no turn is added while its conversation is being deleted.
    statement = f"SELECT conversation_id, size_bytes {OLD_CONVERSATIONS} LIMIT ?{database.for_update}"
    found = database.rows(statement, (before, before, limit))
    return PruneReport(conversations=len(found), size_bytes=_delete_conversations(database, found))


def _delete_requests(database: Database, found: Sequence[Row]) -> int:
    """Delete requests, given by their ids and sizes, and return their bytes."""
    return _delete(database, "request", found, _LIST_REQUESTS, _DELETE_REQUESTS)


def _delete_conversations(database: Database, found: Sequence[Row]) -> int:
    """Delete conversations whose rows are locked, given by their ids and sizes, and return their bytes."""
    return _delete(database, "conversation", found, _LIST_CONVERSATIONS, _DELETE_CONVERSATIONS)


def _delete(database: Database, kind: str, found: Sequence[Row], listing: Rows, deletions: Iterable[Rows]) -> int:
    # A damaged size is not a number.
    sizes = {each: size if isinstance(size, int) else 0 for each, size in found}
    if sizes:
        database.insert(listing, [(each, each, size) for each, size in sizes.items()])
        _run_all(database, _DELETE_USES, [f"{kind} {each}" for each in sizes])
        _run_all(database, deletions, [*sizes])
    return sum(sizes.values())


def _run_all(database: Database, statements: Iterable[Rows], values: Sequence[str | bytes]) -> None:
    for statement in statements if values else ():
        database.insert(statement, [(each,) for each in values])


def delete_some(database: Database) -> bool:
    """Delete some of what the deletions above have left, and return whether there may be more.

    A deletion is one short transaction. It only deletes the own row of a request or conversation, lists its id in the
    table `deleted`, and gives its large texts to the owner "deleted". So it is gone for readers at once. Its facts or
    messages, and the large texts, are deleted here, in transactions that each take a bounded time. If the process dies
    in between, the next deletion continues.

    A conversation with the same id may begin meanwhile: its messages have later positions. A request with the same id
    may not: its agreed options, which are deleted last, are in the way.
    """
    database.lock("deleted")
    return _delete_rows(database) or _delete_texts(database)


def _delete_rows(database: Database) -> bool:
    listed = database.rows(_LISTED, (_MAX_LISTED,))
    whole = listed[: fitting(each[3] for each in listed)]
    if len(whole) == 1:
        # It may be too large for one transaction.
        kind, each, below, _ = whole[0]
        found = database.rows(_ROWS_LEFT[kind], (each, below, _MAX_ROWS))
        count = fitting(size for _, size in found)
        if count < len(found) or count == _MAX_ROWS:
            # From the end, so that no piece passes over what the pieces before have deleted.
            cut = found[count - 1][0]
            database.run(_DELETE_ROWS[kind], (each, cut, below))
            database.run(_SHORTEN, (cut, kind, each))
            return True
    for kind, statement in _DELETE_ROWS.items():
        if some := [(each[1], 0, each[2]) for each in whole if each[0] == kind]:
            database.run_many(statement, some)
            database.insert(_UNLIST[kind], [(each,) for each, *_ in some])
    _run_all(database, [_DELETE_AGREED], [each[1] for each in whole if each[0] == "request"])
    return bool(listed)


def _delete_texts(database: Database) -> bool:
    database.lock("blobs")
    found = database.rows(_TEXTS_LEFT, (_MAX_TEXTS,))
    _run_all(database, _DELETE_TEXTS, [digest for digest, _ in found[: fitting(size for _, size in found)]])
    return bool(found)
