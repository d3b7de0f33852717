"""The reading of facts, histories and lists, with checks that they are what was written.

Every function is called within a reading transaction, so that the rows of several tables are from the same moment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from ...errors import StoreDamaged, StoreError
from ...messages import Message
from ...storage import ConversationRecord, RequestRecord, StoredFact, StoreStatistics
from .._encoding import (
    UNREADABLE,
    Damage,
    agreed_from,
    chain_start,
    chained,
    conversation_from,
    conversation_start,
    digests_in,
    fact_from,
    has_right_types,
    journal_damaged,
    message_from,
    searchable,
    stored,
)
from .._read_ahead import ReadAhead, fitting
from .._texts import folded
from ..archive import Salvaged
from ._database import Database, Row

_RECORD = """SELECT r.request_id, r.conversation_id, r.epoch, r.owner,
 CASE WHEN o.lease_until > r.lease_until THEN o.lease_until ELSE r.lease_until END, r.started_at, r.ended_at, r.ending,
 r.next_seq, r.size_bytes, a.data FROM requests r LEFT JOIN agreements a ON a.request_id = r.request_id
 LEFT JOIN owners o ON o.owner = r.owner"""
# The requests without an owner, and those of owners whose leases have run out. Each is a range of an index. The plus
# sign keeps planners from reading all unfinished requests in their order, most of which are held or parked.
_FREE = """SELECT e.request_id FROM (
 SELECT request_id, started_at FROM requests WHERE ending IS NULL AND owner = '' AND lease_until <= {now}
 UNION ALL SELECT h.request_id, h.started_at FROM owners d JOIN requests h ON h.owner = d.owner AND h.owner <> ''
 WHERE d.lease_until <= {now} AND h.lease_until <= {now} AND h.ending IS NULL
) e ORDER BY +e.started_at, e.request_id LIMIT ?"""
_ROWS = "SELECT seq, step_end, type, data, hash FROM facts WHERE request_id = ? AND seq >= ? ORDER BY seq"
LISTED = "SELECT conversation_id, title, messages, started_at, updated_at FROM conversations"
# The text is searched only in conversations that match otherwise, so one user's search reads no other user's messages.
_HAS = """EXISTS (SELECT 1 FROM messages m LEFT JOIN blobs b ON b.digest = m.text_blob
 WHERE m.conversation_id = conversations.conversation_id AND m.position >= conversations.first_position AND {find})"""
_COUNTS = """SELECT count(*), count(*) - count(ending), coalesce(sum(next_seq), 0), coalesce(sum(size_bytes), 0)
 FROM requests"""
_MESSAGES = """SELECT position - ?, data, hash, request_id FROM messages WHERE conversation_id = ? AND position >= ?
 ORDER BY position"""
# The rows of a request or conversation whose own row is missing, unless it was deleted.
_LOST = """SELECT 1 FROM {0} WHERE {1}_id = ?
 AND NOT EXISTS (SELECT 1 FROM deleted d WHERE d.kind = '{1}' AND d.id = {1}_id) LIMIT 1"""
_SIZES = "SELECT count(*), coalesce(sum(messages), 0), coalesce(sum(size_bytes), 0) FROM conversations"


class _Blobs:
    """The large texts by digest, each compared with its digest, and read ahead for the rows of `ahead`."""

    def __init__(self, database: Database) -> None:
        # A method of this object would refer to it: only the garbage collector would free the texts.
        self._texts = ReadAhead(partial(_load, database))

    def ahead(self, rows: Iterable[Row], column: int) -> Iterator[Row]:
        """Yield rows, after looking for the texts that they will need. `column` is that of their data."""
        found: list[Row] = []
        failure: Exception | None = None  # It is raised after the rows before it.
        try:
            found.extend(rows)
        except Exception as exc:
            failure = exc
        for row in found:
            with contextlib.suppress(*UNREADABLE):  # reported where the row is read
                self._texts.wanted += digests_in(stored(row[column]))
        yield from found
        if failure is not None:
            raise failure

    def __call__(self, digest: bytes) -> bytes:
        return self._texts.value(digest, digest)


def _load(database: Database, wanted: Sequence[bytes]) -> dict[bytes, bytes]:
    if len(wanted) == 1:
        return _select(database, wanted)
    database.run("SAVEPOINT ahead")
    try:
        found = database.rows(f"SELECT digest, coalesce(length(data), 0) {_among(wanted)}", wanted)
        sizes: dict[bytes, int] = {row[0]: row[1] for row in found}
        return _select(database, wanted[: fitting(sizes.get(each, 0) for each in wanted)])
    except Exception as exc:
        if not isinstance(database.translated(exc), StoreDamaged):
            raise
        # The database cannot read one of them. The damage is reported where that text is needed, and not before.
        database.run("ROLLBACK TO SAVEPOINT ahead")
    return _select(database, wanted[:1])


def _select(database: Database, digests: Sequence[bytes]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for digest, value in database.rows(f"SELECT digest, data {_among(digests)}", digests):
        data = stored(value) if isinstance(value, (bytes, str)) else b""
        if sha256(data).digest() == digest:
            found[digest] = data
    return found


def _among(digests: Sequence[bytes]) -> str:
    return f"FROM blobs WHERE digest IN ({', '.join('?' * len(digests))})"


# ------------------------------------------------------------------------------------------------- facts


def facts(database: Database, request_id: str, start: int) -> Sequence[StoredFact]:
    """See `JournalStore.facts`."""
    found = salvage(database, request_id, start)
    if found.damage is not None:
        raise found.damage
    return found.facts


def salvage(database: Database, request_id: str, start: int = 0) -> Salvaged:
    """Return the facts from position `start` up to the last whole step before the first damage."""
    found = Salvaged()
    try:
        _read_facts(database, request_id, start, found)
    except Damage as exc:
        found.damage = journal_damaged(request_id, exc.seq, str(exc))
        found.damage.__cause__ = exc.__cause__
    except UNREADABLE as exc:
        # The request's own row is damaged: damage to facts raises `Damage`.
        found.damage = journal_damaged(request_id, start + len(found.facts), f"its row cannot be read: {exc}")
    except StoreError as exc:
        # A fact has a form that this version does not know.
        found.damage = exc
    except Exception as exc:
        translated = database.translated(exc)
        if not isinstance(translated, StoreDamaged):
            raise
        found.damage = journal_damaged(request_id, start + len(found.facts), str(translated))
        found.damage.__cause__ = exc
    while found.facts and found.facts[-1].step_end != found.facts[-1].seq:
        found.facts.pop()
    return found


def _read_facts(database: Database, request_id: str, start: int, found: Salvaged) -> None:
    head = database.one(
        "SELECT r.next_seq, r.hash, r.conversation_id, a.data FROM requests r "
        "LEFT JOIN agreements a ON a.request_id = r.request_id WHERE r.request_id = ?",
        (request_id,),
    )
    if head is None:
        if database.rows(_LOST.format("facts", "request"), (request_id,)):
            raise Damage(0, "there are facts, and the request's own row is missing")
        return
    next_seq, last_hash, conversation_id, agreed = head
    if start >= next_seq > 0:
        return
    fetch = _Blobs(database)
    last = _hash_before(database, request_id, start, conversation_id, agreed)
    seq, step_end = start, -1
    for row in fetch.ahead(database.scan(_ROWS, (request_id, start)), 3):
        try:
            data, digest = stored(row[3]), stored(row[4])
            step_end = _check_row(row, data, digest, seq, step_end, last, is_first=seq == start)
            fact = fact_from(data, fetch, f"fact {seq} of request {request_id}")
        except UNREADABLE as exc:
            raise Damage(seq, str(exc.args[0]) if exc.args else "it cannot be read") from exc
        last = digest
        found.facts.append(StoredFact(seq=seq, step_end=step_end, fact=fact))
        seq += 1
    if step_end >= seq:
        raise Damage(seq, f"the step that should end at fact {step_end} is incomplete")
    if seq != next_seq:
        raise Damage(min(seq, next_seq), f"there are {seq} facts, and {next_seq} were written")
    if last != stored(last_hash):
        raise Damage(max(0, seq - 1), "its hash differs from the last hash in the request's row")


def _hash_before(database: Database, request_id: str, start: int, conversation_id: str, agreed: bytes | None) -> bytes:
    if start == 0:
        if agreed is None:
            raise Damage(0, "the request's agreed options are missing")
        return chain_start(request_id, conversation_id, stored(agreed))
    before = database.one("SELECT hash FROM facts WHERE request_id = ? AND seq = ?", (request_id, start - 1))
    if before is None:
        raise Damage(start - 1, "the fact is missing")
    return stored(before[0])


def start_of(database: Database, request_id: str) -> bytes:
    """Return the hash that a request's first fact builds on. Raises `StoreDamaged` if its rows are missing."""
    row = database.one(
        "SELECT r.conversation_id, a.data FROM requests r LEFT JOIN agreements a ON a.request_id = r.request_id "
        "WHERE r.request_id = ?",
        (request_id,),
    )
    if row is None or row[1] is None:
        raise journal_damaged(request_id, 0, "the request's agreed options are missing")
    return chain_start(request_id, row[0], stored(row[1]))


def _check_row(row: Row, data: bytes, digest: bytes, seq: int, step_end: int, before: bytes, *, is_first: bool) -> int:
    """Raise unless this row belongs at `seq`. Return the position of the last fact of its step."""
    if row[0] != seq:
        raise Damage(seq, "the fact is missing")
    if chained(before, seq, row[1], data) != digest:
        raise Damage(seq, "the fact, or the one before it, is not what was written")
    if row[1] < seq or (not is_first and step_end >= seq and row[1] != step_end):
        raise Damage(seq, "the steps overlap")
    return row[1]


# ----------------------------------------------------------------------------------------------- requests


def record_of(database: Database, row: Row) -> RequestRecord:
    """Return a request's record from its row. Raises `StoreDamaged` if the row or the agreed options are unreadable."""
    record = _without_agreed(row)
    try:
        record.agreed = {} if row[10] is None else dict(agreed_from(stored(row[10]), _Blobs(database)))
    except UNREADABLE as exc:
        raise journal_damaged(row[0], 0, f"the request's agreed options cannot be read: {exc}") from exc
    return record


def _without_agreed(row: Row) -> RequestRecord:
    record = RequestRecord(
        request_id=row[0],
        conversation_id=row[1],
        epoch=row[2],
        owner=row[3],
        lease_until=row[4],
        started_at=row[5],
        ended_at=row[6],
        ending=row[7],
        fact_count=row[8],
        size_bytes=row[9],
    )
    if not has_right_types(record):
        raise journal_damaged(row[0], 0, "its row cannot be read")
    return record


def request(database: Database, request_id: str) -> RequestRecord | None:
    """See `JournalStore.request`."""
    row = database.one(f"{_RECORD} WHERE r.request_id = ?", (request_id,))
    return None if row is None else record_of(database, row)


def requests(
    database: Database,
    conversation_id: str | None,
    prefix: str,
    is_unfinished: bool,  # noqa: FBT001 -- see `ThreadedStore`
    limit: int,
) -> Sequence[RequestRecord]:
    """See `JournalStore.requests`."""
    conditions: list[str] = ["r.ending IS NULL"] if is_unfinished else ["1 = 1"]
    values: list[Any] = []
    if conversation_id is not None:
        conditions.append("r.conversation_id = ?")
        values.append(conversation_id)
    if prefix:
        conditions.append("substr(r.conversation_id, 1, ?) = ?")
        values += [len(prefix), prefix]
    where = " AND ".join(conditions)
    order = "ORDER BY r.started_at DESC, r.request_id DESC"
    # The agreed options of the other requests, which may be long, are not read.
    newest = f"SELECT r.request_id FROM requests r WHERE {where} {order} LIMIT ?"  # noqa: S608 -- constants of ours
    statement = f"{_RECORD} JOIN ({newest}) f ON f.request_id = r.request_id {order}"
    return [_listed(database, row) for row in database.rows(statement, (*values, max(0, limit)))]


def unfinished(database: Database, limit: int) -> Sequence[RequestRecord]:
    """See `JournalStore.unfinished`."""
    statement = f"{_RECORD} JOIN ({_FREE}) f ON f.request_id = r.request_id ORDER BY r.started_at, r.request_id"
    return [_listed(database, row) for row in database.rows(statement, (max(0, limit),))]


def _listed(database: Database, row: Row) -> RequestRecord:
    """Return a request's record, without the agreed options if they are damaged, or with only the ids if its row is.

    So the other requests can be resumed; taking the damaged one raises `StoreDamaged`.
    """
    try:
        return record_of(database, row)
    except StoreDamaged:
        with contextlib.suppress(StoreDamaged):
            return _without_agreed(row)
        request_id, conversation_id = (each if isinstance(each, str) else "" for each in row[:2])
        return RequestRecord(request_id=request_id, conversation_id=conversation_id)


# ------------------------------------------------------------------------------------------ conversations


def history(database: Database, conversation_id: str) -> Sequence[Message]:
    """See `Store.history`. Raises `StoreDamaged`; its text names the first message that is not what was written."""
    return [message for _, message in turns(database, conversation_id)]


def turns(database: Database, conversation_id: str) -> Sequence[tuple[str, Message]]:
    """Return the messages of a conversation, each with the id of the request that wrote it: see `history`."""
    head = database.one(
        "SELECT messages, hash, first_position FROM conversations WHERE conversation_id = ?", (conversation_id,)
    )
    if head is None:
        if database.rows(_LOST.format("messages", "conversation"), (conversation_id,)):
            raise conversation_damaged(conversation_id, 0)
        return []
    found: list[tuple[str, Message]] = []
    fetch, last = _Blobs(database), conversation_start(conversation_id)
    rows = database.rows(_MESSAGES, (head[2], conversation_id, head[2]))
    for position, value, digest, request_id in fetch.ahead(rows, 1):
        seq = len(found)
        try:
            data = stored(value)
            last = chained(last, seq, seq, data)
            if position != seq or last != stored(digest):
                raise conversation_damaged(conversation_id, seq)
            message = message_from(data, fetch, f"message {seq} of conversation {conversation_id!r}")
        except UNREADABLE as exc:
            raise conversation_damaged(conversation_id, seq) from exc
        found.append((request_id, message))
    if len(found) != head[0] or last != stored(head[1]):
        raise conversation_damaged(conversation_id, len(found))
    return found


def conversation_damaged(conversation_id: str, position: int) -> StoreDamaged:
    """Return the error for a message that is not what was written."""
    return StoreDamaged(
        f"conversation {conversation_id!r} is damaged at message {position}: it is not what was written"
    )


def conversations(database: Database, search: str, prefix: str, limit: int) -> Sequence[ConversationRecord]:
    """See `Store.conversations`."""
    conditions: list[str] = []
    values: list[Any] = []
    if search:
        conditions.append(_HAS)
        values.append(folded(searchable(search)))
    if prefix:
        conditions.append("substr(conversation_id, 1, ?) = ?")
        values += [len(prefix), prefix]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    rows = database.rows(f"{LISTED}{where} ORDER BY updated_at DESC, conversation_id LIMIT ?", (*values, max(0, limit)))
    return [conversation_from(row) for row in rows]


def statistics(database: Database) -> StoreStatistics:
    """Count what the store holds."""
    requests, open_requests, written, size_bytes = database.rows(_COUNTS)[0]
    talks, messages, messages_size = database.rows(_SIZES)[0]
    return StoreStatistics(
        requests=requests,
        unfinished=open_requests,
        facts=int(written),
        conversations=talks,
        messages=int(messages),
        size_bytes=int(size_bytes + messages_size),
    )
