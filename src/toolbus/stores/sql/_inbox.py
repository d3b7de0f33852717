"""The inbox of each request: its inputs from other processes, until its session has taken or refused them.

Each function is called within a transaction, except `send_all`. An input is one row, which stays until its request
is deleted, so that an input that is sent again is recognised. Inputs that are sent at once share a transaction, since
each commit waits for the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence

from ...errors import InboxFull, StoreDamaged, StoreError, ToolbusError
from ...events import Event, decode, encode
from ...storage import MAX_WAITING_INPUTS, InboxReceipt
from .._decisions import receipt_of
from .._encoding import stored
from ..archive import Input
from ._database import Database, Row, Rows

_logger = logging.getLogger("toolbus.store")

TAKE = "UPDATE inbox SET state = 'taken' WHERE request_id = ? AND event_id = ? AND state = 'waiting'"
"""The statement that a step runs for each of its facts that came from the inbox."""

_REQUEST = """SELECT ending, owner <> '' AND (lease_until > {now} OR EXISTS (SELECT 1 FROM owners o
 WHERE o.owner = requests.owner AND o.lease_until > {now})) FROM requests WHERE request_id = ?"""
_INPUT = "SELECT state, reason FROM inbox WHERE request_id = ? AND event_id = ?"
_COUNTS = """SELECT coalesce(sum(CASE WHEN state = 'waiting' THEN 1 ELSE 0 END), 0), coalesce(max(position), -1) + 1
 FROM inbox WHERE request_id = ?"""
_SEND = Rows(
    "INSERT INTO inbox (request_id, event_id, position, data, state, reason) VALUES ",
    "(?, ?, ?, ?, ?, ?)",
    ("text", "text", "whole", "blob", "text", "text"),
)
_WAITING = """SELECT i.request_id, i.position, i.event_id FROM inbox i WHERE i.state = 'waiting'
 AND (i.request_id, i.position) > (?, ?)
 AND EXISTS (SELECT 1 FROM requests r WHERE r.request_id = i.request_id AND r.owner = ?)
 ORDER BY i.request_id, i.position LIMIT ?"""
_WAKE = "UPDATE requests SET lease_until = 0 WHERE request_id = ? AND owner = '' AND lease_until > 0"
LOCK = "SELECT 1 FROM requests WHERE request_id = ?"
_ANY = "SELECT 1 FROM inbox WHERE request_id = ? AND state = 'waiting' LIMIT 1"
_PARK = """UPDATE requests SET owner = '', lease_until = {now} + ? WHERE request_id = ? AND epoch = ?
 AND ending IS NULL"""
_LISTED = 1_000  # waiting inputs of one owner whose ids are read at once
_DATA = "SELECT data FROM inbox WHERE request_id = ? AND event_id = ?"
_ALL = "SELECT event_id, data, state, reason FROM inbox WHERE request_id = ? ORDER BY position"
_SETTLE = "UPDATE inbox SET state = ?, reason = ? WHERE request_id = ? AND event_id = ? AND state = 'waiting'"


def send_all(database: Database, events: Sequence[Event]) -> Sequence[InboxReceipt | Exception]:
    """Send inputs in one transaction: see `Inbox.send`, and `Database.together`."""
    return database.together(lambda some: _Sending(database, some).send(), events)


class _Sending:
    """Inputs that are sent in one transaction."""

    def __init__(self, database: Database, events: Sequence[Event]) -> None:
        self._database = database
        self._events = events
        # By request: how many inputs wait, the next position, and the inputs that are new.
        self._counts: dict[str, list[int]] = {}
        self._new: dict[tuple[str, str], Row] = {}

    def send(self) -> Sequence[InboxReceipt | ToolbusError]:
        database, requests = self._database, dict[str, Row | None]()
        # The requests' rows are locked, in the same order by each process, so that two inputs that are sent at once get
        # different positions, and no two processes wait for each other.
        for request_id in sorted({each.request_id for each in self._events}):
            requests[request_id] = database.one(_REQUEST + database.for_update, (request_id,))
        outcomes = [self._add(each, requests[each.request_id]) for each in self._events]
        if self._new:
            database.insert(_SEND, [*self._new.values()])
            database.run_many(_WAKE, [(each,) for each in sorted({row[0] for row in self._new.values()})])
        return outcomes

    def _add(self, event: Event, request: Row | None) -> InboxReceipt | ToolbusError:
        key = (event.request_id, event.event_id)
        if request is not None and request[0] is None and key not in self._new:
            counts = self._counts.get(event.request_id)
            if counts is None:
                counts = self._counts[event.request_id] = [*self._database.rows(_COUNTS, (event.request_id,))[0]]
            if not self._database.rows(_INPUT, key):
                if counts[0] >= MAX_WAITING_INPUTS:
                    return InboxFull(f"{MAX_WAITING_INPUTS} inputs wait for request {event.request_id}")
                self._new[key] = (*key, counts[1], encode(event), "waiting", "")
                counts[0], counts[1] = counts[0] + 1, counts[1] + 1
        if key in self._new:
            return InboxReceipt(state="waiting", is_held=bool(request and request[1]))
        return _receipt(self._database, *key, request)


def receipt(database: Database, request_id: str, event_id: str) -> InboxReceipt:
    """See `Inbox.receipt`."""
    return _receipt(database, request_id, event_id, database.one(_REQUEST, (request_id,)))


def _receipt(database: Database, request_id: str, event_id: str, request: Row | None) -> InboxReceipt:
    if request is None:
        return InboxReceipt(state="unknown")
    found = database.one(_INPUT, (request_id, event_id)) or ("unknown",)
    return receipt_of(*found, ending=request[0], is_held=bool(request[1]))


def waiting(database: Database, owner: str, only: str, without: Collection[str], limit: int) -> Sequence[Event]:
    """See `Inbox.waiting`. Reads only the inputs that it returns: the others may be large, and are asked for often."""
    if not owner:
        return []
    found: list[Event] = []
    for request_id, event_id in _listed(database, owner, only):
        if len(found) >= limit or only not in {"", request_id}:
            break
        if event_id in without or (request_id, event_id) in database.unreadable:
            continue
        [[data]] = database.rows(_DATA, (request_id, event_id))
        try:
            found.append(decode(stored(data)))
        except (StoreError, ValueError) as exc:
            database.unreadable.add((request_id, event_id))
            _logger.warning("request %s: input %s in its inbox cannot be read: %s", request_id, event_id, exc)
    return found


def _listed(database: Database, owner: str, first: str) -> Iterator[tuple[str, str]]:
    """Yield the requests and ids of an owner's waiting inputs, in order, from those of the request `first` on."""
    last: Row = (first, -1)
    while some := database.rows(_WAITING, (*last, owner, _LISTED)):
        yield from [(request_id, event_id) for request_id, _, event_id in some]
        last = some[-1][:2]


def inputs(database: Database, request_id: str) -> Sequence[Input | StoreError]:
    """See `Archive.inputs`."""
    found: list[Input | StoreError] = []
    for event_id, data, state, reason in database.rows(_ALL, (request_id,)):
        try:
            found.append((decode(stored(data)), InboxReceipt(state=state, reason=reason)))
        except (StoreError, ValueError) as exc:
            text = f"input {event_id} in the inbox of request {request_id} cannot be read: {exc}"
            found.append(StoreDamaged(text, request_id=request_id))
    return found


def restore(database: Database, request_id: str, inputs: Sequence[Input]) -> None:
    """Write the inputs that another store had of a request, within a transaction."""
    rows = [
        (request_id, event.event_id, position, encode(event), receipt.state, receipt.reason)
        for position, (event, receipt) in enumerate(inputs)
    ]
    if rows:
        database.insert(_SEND, rows)


def park(database: Database, request_id: str, epoch: int, seconds: float) -> bool:
    """See `Inbox.park`."""
    # The request's row is locked before the inbox is read, so that an input is seen here or finds it parked.
    database.rows(LOCK + database.for_update, (request_id,))
    waits = bool(database.rows(_ANY, (request_id,)))
    return bool(database.run(_PARK, (0.0 if waits else seconds, request_id, epoch)))


def settle(database: Database, request_id: str, event_id: str, state: str, reason: str) -> None:
    """See `Inbox.settle`."""
    database.run(_SETTLE, (state, reason, request_id, event_id))
