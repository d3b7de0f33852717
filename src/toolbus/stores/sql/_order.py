"""The order of the turns of a conversation, when several processes run them: see `JournalStore.take_turn`.

The row of a conversation's turn names its holder. A request that begins in its turn locks the row (`HOLD`), so that it
either begins before the turn is given to another, or is refused.

Each function is called within a transaction, except `take_all`: turns that are asked for at once share one, since each
commit waits for the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ._database import Database, Rows

_IS_HELD = """(r.lease_until > {now}
 OR EXISTS (SELECT 1 FROM owners o WHERE o.owner = r.owner AND o.lease_until > {now}))"""
# The condition that a process holds the request `r`.
_RUNS = f"r.ending IS NULL AND r.owner <> '' AND {_IS_HELD}"
_LOCK = "SELECT 1 FROM turns WHERE conversation_id = ?"
_HOLDER = """SELECT request_id, owner,
 CASE WHEN EXISTS (SELECT 1 FROM requests r WHERE r.request_id = turns.request_id)
 THEN EXISTS (SELECT 1 FROM requests r WHERE r.request_id = turns.request_id AND r.owner = turns.owner AND {runs})
 ELSE lease_until > {now} END
 FROM turns WHERE conversation_id = ?""".replace("{runs}", _RUNS)
# For each request of another owner: whether a process holds it, and whether it began before this one.
_OTHERS = """SELECT CASE WHEN {held} THEN 1 ELSE 0 END,
 CASE WHEN EXISTS (SELECT 1 FROM requests own WHERE own.request_id = ? AND (own.started_at < r.started_at
 OR (own.started_at = r.started_at AND own.request_id <= r.request_id))) THEN 0 ELSE 1 END
 FROM requests r WHERE r.conversation_id = ? AND r.ending IS NULL
 AND r.owner <> '' AND r.owner <> ?""".replace("{held}", _IS_HELD)
_FENCE = """UPDATE requests SET epoch = epoch + 1, owner = '', lease_until = 0 WHERE request_id IN (
 SELECT r.request_id FROM requests r WHERE r.conversation_id = ? AND r.ending IS NULL
 AND r.owner <> '' AND r.owner <> ? AND NOT {held}{unlocked})""".replace("{held}", _IS_HELD)
_INSERT = """INSERT INTO turns (conversation_id, request_id, owner, lease_until) VALUES (?, ?, ?, {now} + ?)
 ON CONFLICT DO NOTHING"""
_UPDATE = "UPDATE turns SET request_id = ?, owner = ?, lease_until = {now} + ? WHERE conversation_id = ?"
_RENEW = """UPDATE turns SET lease_until = {now} + ?
 WHERE conversation_id = ? AND request_id = ? AND owner = ?"""
HOLD = "UPDATE turns SET lease_until = lease_until WHERE conversation_id = ? AND request_id = ? AND owner = ?"
"""The statement that keeps a turn to the end of the transaction; no row is changed if another request has it by now."""
_RETURN = "DELETE FROM turns WHERE conversation_id = ? AND request_id = ?"
DELETE = Rows("DELETE FROM turns WHERE conversation_id IN (VALUES ", "(?)", ("text",), ")")
"""The statement that deletes the turns of conversations."""
DELETE_OF = Rows(
    "DELETE FROM turns WHERE (conversation_id, request_id) IN"
    " (SELECT r.conversation_id, r.request_id FROM requests r WHERE r.request_id IN (VALUES ",
    "(?)",
    ("text",),
    "))",
)
"""The statement that deletes the turns of requests that are about to be deleted.

Without it, such a turn would look like one of a request that has not begun yet.
"""
_OLD = """DELETE FROM turns WHERE lease_until < ? AND lease_until <= {now}
 AND NOT EXISTS (SELECT 1 FROM requests r WHERE r.request_id = turns.request_id AND r.ending IS NULL)"""


class WantedTurn(NamedTuple):
    """The arguments of `JournalStore.take_turn`."""

    conversation_id: str
    request_id: str
    owner: str
    seconds: float


def take_all(database: Database, wanted: Sequence[WantedTurn]) -> Sequence[bool | Exception]:
    """Take turns in one transaction, and return for each whether it was taken: see `Database.together`."""

    def take_some(some: Sequence[WantedTurn]) -> list[bool]:
        # Each process locks the rows in the same order, to avoid deadlocks.
        taken = {each: take(database, each) for each in sorted({*some})}
        return [taken[each] for each in some]

    return database.together(take_some, wanted)


def take(database: Database, wanted: WantedTurn) -> bool:
    """Take a turn, and return whether it was taken."""
    conversation_id, request_id, owner, seconds = wanted
    if database.for_update:
        # Its own statement: the next one then sees what was committed while this one waited.
        database.rows(_LOCK + database.for_update, (conversation_id,))
    holder = database.one(_HOLDER, (conversation_id,))
    if holder is not None and holder[2]:
        if request_id != holder[0] and owner != holder[1]:
            return False
    else:
        found = database.rows(_OTHERS, (request_id, conversation_id, owner))
        if any(is_held and is_earlier for is_held, is_earlier in found):
            return False
        # The requests whose leases have run out cannot write any more: this turn begins without their messages. If
        # another transaction is writing one of them, the turn waits. This transaction does not wait, because the other
        # one may wait for rows that are locked here.
        expired = sum(not is_held for is_held, _ in found)
        fence = _FENCE.replace("{unlocked}", database.for_update_unlocked)
        if expired and database.run(fence, (conversation_id, owner)) < expired:
            return False
    if holder is None:
        return bool(database.run(_INSERT, wanted))
    return bool(database.run(_UPDATE, (request_id, owner, seconds, conversation_id)))


def renew_turn(database: Database, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
    """See `JournalStore.renew_turn`."""
    return bool(database.run(_RENEW, (seconds, conversation_id, request_id, owner)))


def return_turn(database: Database, conversation_id: str, request_id: str) -> None:
    """See `JournalStore.return_turn`."""
    database.run(_RETURN, (conversation_id, request_id))


def drop_old(database: Database, before: float) -> None:
    """Forget the turns of requests that have ended, or have never begun, and that were taken before a moment."""
    database.run(_OLD, (before,))
