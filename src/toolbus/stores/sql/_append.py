"""The writing of entries and turns: many in one transaction, each whole or not at all.

Knows `Database` and the encoded entries, and neither threads nor drivers. Both dialects take the statements.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import count

from ...errors import LeaseLost, StoreDamaged, StoreError, TurnLost
from .._decisions import begun_already, refusal_of
from .._encoding import Begun, Head, Turn, Written, chain_start, chained, conversation_start
from . import _inbox, _order
from ._database import Database, Row, Rows
from ._read import conversation_damaged

_BEGIN = Rows(
    "INSERT INTO requests (request_id, conversation_id, epoch, owner, lease_until, started_at, next_seq, size_bytes,"
    " hash) VALUES ",
    "(?, ?, ?, ?, {now} + ?, {now}, 0, 0, ?)",
    ("text", "text", "whole", "text", "real", "blob"),
)
OWN = Rows(
    "INSERT INTO owners (owner, lease_until) VALUES ",
    "(?, {now})",
    ("text",),
    " ON CONFLICT (owner) DO UPDATE SET lease_until = excluded.lease_until"
    " WHERE owners.lease_until < excluded.lease_until",
)
"""The statement that makes an owner known before it holds a lease, so that its requests are found when it has died.

Its row is locked until the end of the transaction, so that it is not deleted meanwhile.
"""
_AGREE = Rows("INSERT INTO agreements (request_id, data) VALUES ", "(?, ?)", ("text", "blob"))
MOVE = """UPDATE requests SET next_seq = ?, size_bytes = ?, hash = ?
 WHERE request_id = ? AND epoch = ? AND next_seq = ? AND ending IS NULL"""
END = """UPDATE requests SET next_seq = ?, size_bytes = ?, hash = ?, ending = ?, ended_at = {now}, owner = '',
 lease_until = 0 WHERE request_id = ? AND epoch = ? AND next_seq = ? AND ending IS NULL"""
_FACTS = Rows(
    "INSERT INTO facts (request_id, seq, step_end, type, data, hash) VALUES ",
    "(?, ?, ?, ?, ?, ?)",
    ("text", "whole", "whole", "text", "blob", "blob"),
)
_BLOBS = Rows("INSERT INTO blobs (digest, data) VALUES ", "(?, ?)", ("blob", "blob"), " ON CONFLICT DO NOTHING")
_USES = Rows("INSERT INTO blob_uses (owner, digest) VALUES ", "(?, ?)", ("text", "blob"), " ON CONFLICT DO NOTHING")
_HEAD = "SELECT epoch, next_seq, size_bytes, hash, ending FROM requests WHERE request_id = ?"
BEGIN_CONVERSATION = Rows(
    "INSERT INTO conversations (conversation_id, title, started_at, updated_at, first_position, messages, size_bytes,"
    " hash) VALUES ",
    "(?, '', {now}, {now}, 0, 0, 0, ?)",
    ("text", "blob"),
    " ON CONFLICT DO NOTHING",
)
"""The statement that inserts conversations without messages, each by its id and `conversation_start`, if it is new."""
# The messages of a deleted conversation with the same id may not all be deleted yet: see `_upkeep.delete_some`. They
# are looked for when the new conversation has its row, so that no other process adds any.
_TAIL = """SELECT CASE WHEN messages > 0 THEN first_position
 ELSE (SELECT coalesce(max(position) + 1, 0) FROM messages m WHERE m.conversation_id = c.conversation_id) END,
 messages, size_bytes, hash FROM conversations c WHERE conversation_id = ?"""
_MESSAGES = Rows(
    "INSERT INTO messages (conversation_id, position, request_id, data, hash, text, text_blob) VALUES ",
    "(?, ?, ?, ?, ?, ?, ?)",
    ("text", "whole", "text", "blob", "blob", "text", "blob"),
)
GROW = """UPDATE conversations SET first_position = ?, messages = ?, size_bytes = ?, hash = ?, updated_at = {now},
 title = CASE WHEN title = '' THEN ? ELSE title END WHERE conversation_id = ?"""


def _for_many(statement: str, *types: str) -> tuple[str, Rows]:
    """Return a statement that changes one row, and the same one for many rows, each with values of these types."""
    numbers = count(1)
    change, condition = re.sub(r"\?", lambda _: f"v.column{next(numbers)}", statement).split(" WHERE ")
    row = f"({', '.join('?' * len(types))})"
    return statement, Rows(f"{change} FROM (VALUES ", row, types, f") AS v WHERE {condition}")


_GUARDED = ("text", "whole", "whole")
MANY = dict(
    [
        _for_many(_order.HOLD, "text", "text", "text"),
        _for_many(MOVE, "whole", "whole", "blob", *_GUARDED),
        _for_many(END, "whole", "whole", "blob", "text", *_GUARDED),
        _for_many(GROW, "whole", "whole", "whole", "blob", "text", "text"),
    ]
)
"""The statements above that change many rows at a time, for databases that have UPDATE with FROM."""


class _Refused(Exception):
    """A guard of a group did not hold for one of its entries. It is not known yet for which one."""


def append_all(database: Database, entries: Sequence[Written]) -> Sequence[int | StoreError]:
    """Write entries in one transaction. Return for each the bytes of its request's journal now, or the error.

    Raises an error that concerns all entries, such as a full disk; then none is written.
    """
    try:
        with database.transaction():
            group = _Group(database, entries)
            group.write()
    except Exception as exc:
        if not _concerns_one(database, exc):
            raise
        return _one_by_one(database, entries)
    database.heads.keep(group.heads)
    return group.outcomes


def _concerns_one(database: Database, exc: Exception) -> bool:
    """Return whether one entry of a group cannot be written, and the others can."""
    return isinstance(exc, (_Refused, StoreDamaged)) or database.is_own_fault(exc)


def _one_by_one(database: Database, entries: Sequence[Written]) -> Sequence[int | StoreError]:
    """Write the entries that can be written, still in one transaction, each in its own savepoint."""
    outcomes: dict[int, int | StoreError] = {}
    heads: list[tuple[str, Head | None]] = []
    with database.transaction():
        # They lock conversations in the same order as a group does, to avoid deadlocks.
        for position, entry in sorted(enumerate(entries), key=lambda each: each[1].conversation_id):
            database.run("SAVEPOINT entry")
            try:
                group = _Group(database, [entry])
                group.write()
            except Exception as exc:
                if not _concerns_one(database, exc):
                    raise
                database.run("ROLLBACK TO SAVEPOINT entry")
                heads.append((entry.request_id, None))
                outcomes[position] = _refusal(database, entry, exc)
            else:
                heads += group.heads
                outcomes[position] = group.outcomes[0]
            database.run("RELEASE SAVEPOINT entry")
    database.heads.keep(heads)
    return [outcomes[position] for position in range(len(entries))]


def _refusal(database: Database, entry: Written, exc: Exception) -> StoreError:
    """Return the reason why an entry is not written: from the journal of its request, or else from the driver."""
    if not isinstance(exc, _Refused):
        error = database.translated(exc)
        if entry.begun is not None and _has_request(database, entry.request_id):
            return begun_already(entry.request_id)
        error = error if isinstance(error, StoreError) else StoreError(f"the entry cannot be written: {exc}")
        if error is not exc:
            error.__cause__ = exc
        return error
    if entry.begun is not None:
        has_begun = _has_request(database, entry.request_id)
        return begun_already(entry.request_id) if has_begun else TurnLost(entry.request_id)
    try:
        _head_of(database, entry)
    except StoreError as error:
        return error
    return StoreError(f"request {entry.request_id} cannot be written, for an unknown reason")


def _has_request(database: Database, request_id: str) -> bool:
    try:
        # The agreed options of a deleted request are the last of its rows: see `_upkeep.delete_some`.
        return bool(database.rows("SELECT 1 FROM agreements WHERE request_id = ?", (request_id,)))
    except Exception as exc:
        if not database.is_own_fault(exc):
            raise
        # The database cannot take the id as a text, so it has no such request.
        return False


def _head_of(database: Database, entry: Written) -> Head:
    """Return the end of a request's journal from the database, if `entry` may be written there.

    Raises `LeaseLost`, and `StoreError` for a request that has ended.
    """
    found = database.one(_HEAD, (entry.request_id,))
    if found is None:
        raise LeaseLost(entry.request_id, entry.epoch)
    epoch, next_seq, size_bytes, last, ending = found
    if (refusal := refusal_of(entry, epoch=epoch, ending=ending, next_seq=next_seq)) is not None:
        raise refusal
    return Head(epoch, next_seq, size_bytes, bytes(last))


class _Group:
    """The rows of a group of entries, table by table, so that each table takes one statement for all of them."""

    def __init__(self, database: Database, entries: Sequence[Written]) -> None:
        self.outcomes: list[int | StoreError] = []
        self.heads: list[tuple[str, Head | None]] = []
        self._database = database
        self._held: list[tuple[str, str, str]] = []
        self._begun: list[Row] = []
        self._agreed: list[Row] = []
        self._moved: list[Row] = []
        self._ended: list[Row] = []
        self._facts: list[Row] = []
        self._blobs: dict[bytes, bytes] = {}
        self._uses: list[tuple[str, bytes]] = []
        self._turns: list[Turn] = []
        self._received: list[Row] = []
        for entry in entries:
            try:
                self._add(entry, self._head(entry))
            except StoreError as exc:
                self.outcomes.append(exc)

    def _head(self, entry: Written) -> Head:
        if entry.begun is not None:
            return self._begin(entry, entry.begun)
        head = self._database.heads.get(entry.request_id)
        if head is None or head.epoch != entry.epoch or head.seq != entry.seq:
            head = _head_of(self._database, entry)
        return head

    def _begin(self, entry: Written, begun: Begun) -> Head:
        start = chain_start(entry.request_id, entry.conversation_id, begun.agreed)
        ids = (entry.request_id, entry.conversation_id, entry.epoch)
        if begun.has_turn:
            self._held.append((entry.conversation_id, entry.request_id, begun.owner))
        self._begun.append((*ids, begun.owner, begun.lease_seconds, start))
        self._agreed.append((entry.request_id, begun.agreed))
        return Head(entry.epoch, 0, 0, start)

    def _add(self, entry: Written, head: Head) -> None:
        request_id, head = entry.request_id, self._add_facts(entry, head)
        guard = (request_id, entry.epoch, entry.seq)
        if entry.ending is None:
            self._moved.append((head.seq, head.size_bytes, head.hash, *guard))
            self.heads.append((request_id, head))
        else:
            self._ended.append((head.seq, head.size_bytes, head.hash, entry.ending, *guard))
            self.heads.append((request_id, None))
            if entry.turn is not None:
                self._turns.append(entry.turn)
        self.outcomes.append(head.size_bytes)

    def _add_facts(self, entry: Written, head: Head) -> Head:
        request_id, seq, last, add = entry.request_id, entry.seq, head.hash, self._facts.append
        step_end = seq + len(entry.rows) - 1
        for kind, data in entry.rows:
            last = chained(last, seq, step_end, data)
            add((request_id, seq, step_end, kind, data, last))
            seq += 1
        if entry.blobs:
            self._blobs.update(entry.blobs)
            self._uses += [(f"request {request_id}", digest) for digest in entry.blobs]
        if entry.received:
            self._received += [(request_id, event_id) for event_id in entry.received]
        return Head(entry.epoch, seq, head.size_bytes + entry.size_bytes, last)

    def add_all(self, entries: Sequence[Written], begun: Begun) -> None:
        """Add all steps of one request that another store has written; they move the end of its journal once."""
        first = entries[0]
        head = self._begin(first, begun)
        for entry in entries:
            head = self._add_facts(entry, head)
        self._moved.append((head.seq, head.size_bytes, head.hash, first.request_id, first.epoch, 0))

    def write(self) -> None:
        """Write the group within a transaction. Raises `_Refused` if a guard does not hold for one of the entries."""
        database = self._database
        # Each process takes its locks in the same order, to avoid deadlocks: large values, turns, requests,
        # conversations.
        for turn in self._turns:
            self._blobs.update(turn.blobs)
            self._uses += [(f"conversation {turn.conversation_id}", digest) for digest in turn.blobs]
        _write_blobs(database, self._blobs, self._uses)
        if self._held and database.run_many(_order.HOLD, sorted(self._held)) != len(self._held):
            raise _Refused
        if self._begun:
            if owners := sorted({row[3] for row in self._begun if row[3]}):
                database.insert(OWN, [(each,) for each in owners])
            database.insert(_BEGIN, self._begun)
            database.insert(_AGREE, self._agreed)
        for statement, rows in ((MOVE, self._moved), (END, self._ended)):
            if rows and database.run_many(statement, rows) != len(rows):
                raise _Refused
        if self._received:
            database.run_many(_inbox.TAKE, self._received)
        if self._facts:
            database.insert(_FACTS, self._facts)
        if self._turns:
            _write_turns(database, self._turns)


def restore(database: Database, entries: Sequence[Written], begun: Begun) -> None:
    """Write all steps of one request that another store has written, within a transaction."""
    group = _Group(database, [])
    group.add_all(entries, begun)
    group.write()


def remember(database: Database, turns: Sequence[Turn], request_id: str = "") -> None:
    """Write turns that are in no journal, within a transaction; with `request_id`, only if this request is there."""
    if request_id:
        # With its row locked, nobody deletes the request, or its conversation. Deletions take the locks in this order.
        database.lock("blobs", exclusive=False)
        if not database.rows(_inbox.LOCK + database.for_update, (request_id,)):
            return
    blobs: dict[bytes, bytes] = {}
    uses: set[tuple[str, bytes]] = set()
    for turn in turns:
        blobs.update(turn.blobs)
        uses.update((f"conversation {turn.conversation_id}", digest) for digest in turn.blobs)
    _write_blobs(database, blobs, uses)
    _write_turns(database, turns)


def _write_blobs(database: Database, blobs: dict[bytes, bytes], uses: Iterable[tuple[str, bytes]]) -> None:
    if blobs:
        database.lock("blobs", exclusive=False)
        database.insert(_BLOBS, sorted(blobs.items()))
        database.insert(_USES, sorted(uses))


def _tail(database: Database, conversation_id: str) -> tuple[int, int, int, bytes, str]:
    """Return the end of a conversation, which is locked until the end of the transaction, and no title."""
    while (found := database.one(_TAIL + database.for_update, (conversation_id,))) is None:
        # The row was there, and another process has deleted it since.
        database.insert(BEGIN_CONVERSATION, [(conversation_id, conversation_start(conversation_id))])
    *numbers, last = found
    if not (all(isinstance(each, int) for each in numbers) and isinstance(last, bytes)):
        raise conversation_damaged(conversation_id, 0)
    first, messages, size_bytes = numbers
    return first, messages, size_bytes, last, ""


def _write_turns(database: Database, turns: Sequence[Turn]) -> None:
    """Add turns to the ends of their conversations, in their order."""
    ids = sorted({turn.conversation_id for turn in turns})
    database.insert(BEGIN_CONVERSATION, [(each, conversation_start(each)) for each in ids])
    tails = {each: _tail(database, each) for each in ids}
    rows: list[Row] = []
    for turn in turns:
        first, seq, size_bytes, last, title = tails[turn.conversation_id]
        for data, text, text_blob in turn.messages:
            last = chained(last, seq, seq, data)
            rows.append((turn.conversation_id, first + seq, turn.request_id, data, last, text, text_blob))
            seq += 1
        tails[turn.conversation_id] = (first, seq, size_bytes + turn.size_bytes, last, title or turn.title)
    if rows:
        database.insert(_MESSAGES, rows)
    database.run_many(GROW, [(*tails[each], each) for each in ids])
