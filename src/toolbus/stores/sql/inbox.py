"""The inbox of each request: its inputs from other processes, until its session has taken or refused them.

Each function is one transaction, or is called within one that reads. An input is one row, which stays until its request
is deleted, so that an input that is sent again is recognised.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from ...errors import InboxFull, StoreError
from ...events import Event, decode, encode
from ...storage import MAX_WAITING_INPUTS, InboxReceipt
from .database import Database, Row

__all__ = ["TAKE", "park", "receipt", "send", "settle", "waiting"]

_logger = logging.getLogger("toolbus.store")

TAKE = "UPDATE inbox SET state = 'taken' WHERE request_id = ? AND event_id = ? AND state = 'waiting'"
"""The statement that a step runs for each of its facts that came from the inbox."""

_REQUEST = "SELECT ending, owner <> '' AND lease_until > {now} FROM requests WHERE request_id = ?"
_INPUT = "SELECT state, reason FROM inbox WHERE request_id = ? AND event_id = ?"
_COUNTS = """SELECT coalesce(sum(CASE WHEN state = 'waiting' THEN 1 ELSE 0 END), 0), coalesce(max(position), -1) + 1
 FROM inbox WHERE request_id = ?"""
_SEND = """INSERT INTO inbox (request_id, event_id, position, data, state, reason) VALUES (?, ?, ?, ?, 'waiting', '')
 ON CONFLICT DO NOTHING"""
_WAITING = """SELECT i.request_id, i.event_id FROM inbox i WHERE i.state = 'waiting'
 AND EXISTS (SELECT 1 FROM requests r WHERE r.request_id = i.request_id AND r.owner = ?)
 ORDER BY i.request_id, i.position LIMIT ?"""
_WAKE = "UPDATE requests SET lease_until = 0 WHERE request_id = ? AND owner = '' AND lease_until > 0"
_LOCK = "SELECT 1 FROM requests WHERE request_id = ?"
_ANY = "SELECT 1 FROM inbox WHERE request_id = ? AND state = 'waiting' LIMIT 1"
_PARK = """UPDATE requests SET owner = '', lease_until = {now} + ? WHERE request_id = ? AND epoch = ?
 AND ending IS NULL"""
_MOST_LISTED = 10_000  # waiting inputs of one owner, of which only the ids are read
_DATA = "SELECT data FROM inbox WHERE request_id = ? AND event_id = ?"
_SETTLE = "UPDATE inbox SET state = ?, reason = ? WHERE request_id = ? AND event_id = ? AND state = 'waiting'"


def send(database: Database, event: Event) -> InboxReceipt:
    """See `Inbox.send`."""
    with database.transaction():
        # The request's row is locked, so that two inputs that are sent at once get different positions.
        found = database.one(_REQUEST + database.for_update, (event.request_id,))
        if found is not None and found[0] is None and not database.rows(_INPUT, (event.request_id, event.event_id)):
            waits, position = database.rows(_COUNTS, (event.request_id,))[0]
            if waits >= MAX_WAITING_INPUTS:
                raise InboxFull(f"{MAX_WAITING_INPUTS} inputs wait for request {event.request_id}")
            database.run(_SEND, (event.request_id, event.event_id, position, encode(event)))
            database.run(_WAKE, (event.request_id,))
        return _receipt(database, event.request_id, event.event_id, found)


def receipt(database: Database, request_id: str, event_id: str) -> InboxReceipt:
    """See `Inbox.receipt`."""
    return _receipt(database, request_id, event_id, database.one(_REQUEST, (request_id,)))


def _receipt(database: Database, request_id: str, event_id: str, request: Row | None) -> InboxReceipt:
    if request is None:
        return InboxReceipt(state="unknown")
    found = database.one(_INPUT, (request_id, event_id))
    if found is not None and found[0] != "waiting":
        return InboxReceipt(state=found[0], reason=found[1])
    if request[0] is not None:
        return InboxReceipt(state="ended")
    return InboxReceipt(state="unknown") if found is None else InboxReceipt(state="waiting", is_held=bool(request[1]))


def waiting(database: Database, owner: str, without: Collection[str], limit: int) -> Sequence[Event]:
    """See `Inbox.waiting`. Reads only the inputs that it returns: the others may be large, and are asked for often."""
    if not owner:
        return []
    found: list[Event] = []
    listed = [each for each in database.rows(_WAITING, (owner, _MOST_LISTED)) if each[1] not in without]
    for request_id, event_id in listed[:limit]:
        [[data]] = database.rows(_DATA, (request_id, event_id))
        try:
            found.append(decode(bytes(data)))
        except (StoreError, ValueError) as exc:
            _logger.warning("request %s: input %s in its inbox cannot be read: %s", request_id, event_id, exc)
    return found


def park(database: Database, request_id: str, epoch: int, seconds: float) -> bool:
    """See `Inbox.park`."""
    with database.transaction():
        # The request's row is locked before the inbox is read, so that an input is seen here or finds it parked.
        database.rows(_LOCK + database.for_update, (request_id,))
        waits = bool(database.rows(_ANY, (request_id,)))
        return bool(database.run(_PARK, (0.0 if waits else seconds, request_id, epoch)))


def settle(database: Database, request_id: str, event_id: str, state: str, reason: str) -> None:
    """See `Inbox.settle`."""
    with database.transaction():
        database.run(_SETTLE, (state, reason, request_id, event_id))
