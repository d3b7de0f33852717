"""The inbox of each request in MongoDB: a document for each input, until its request is deleted.

The server changes one document at a time, so the end of an input's waiting is part of the change that decides: a step
that has taken inputs writes their ids into its request's document (`taken`), by the same update. Their own documents
are marked afterwards; a process that dies in between leaves that to the next step that takes an input, and meanwhile
readers ask the request's document first.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from bson.binary import Binary
from pymongo import ReturnDocument

from ...errors import InboxFull, StoreError
from ...events import Event, decode, encode
from ...storage import MAX_WAITING_INPUTS, InboxReceipt
from ._connection import Document, ServerConnection, moment_of
from ._deleting import DELETED

__all__ = ["mark_taken", "park", "receipt", "send", "settle", "waiting"]

_logger = logging.getLogger("toolbus.store")
_MOST_LISTED = 10_000  # waiting inputs, of which only the ids are read


def send(database: ServerConnection, event: Event) -> InboxReceipt:
    """See `Inbox.send`. Inputs that several processes send at once may exceed the bound by their number."""
    request_id, inbox = event.request_id, database.inbox
    with database.in_time():
        found = _receipt(database, request_id, event.event_id)
        if found.state == "unknown" and database.requests.find_one({"_id": request_id, "ending": ""}, {"_id": 1}):
            if inbox.count_documents({"request_id": request_id, "state": "waiting"}) >= MAX_WAITING_INPUTS:
                raise InboxFull(f"{MAX_WAITING_INPUTS} inputs wait for request {request_id}")
            state = database.requests.find_one_and_update(
                {"_id": request_id, "ending": ""}, {"$inc": {"inputs": 1}}, return_document=ReturnDocument.AFTER
            )
            if state is not None:
                document: Document = {
                    "_id": _id(request_id, event.event_id),
                    "request_id": request_id,
                    "event_id": event.event_id,
                    "position": state["inputs"],
                    "data": Binary(encode(event)),
                    "state": "waiting",
                    "reason": "",
                }
                database.insert(inbox, [document])
            found = _receipt(database, request_id, event.event_id)
        if found.state == "waiting":
            # After the input is there: a process that parks the request parks it first, and then looks for inputs.
            _wake(database, request_id)
        return found


def receipt(database: ServerConnection, request_id: str, event_id: str) -> InboxReceipt:
    """See `Inbox.receipt`."""
    with database.in_time():
        return _receipt(database, request_id, event_id)


def _receipt(database: ServerConnection, request_id: str, event_id: str) -> InboxReceipt:
    # The input is read first: if it is taken meanwhile, the request's document says so.
    found = database.inbox.find_one({"_id": _id(request_id, event_id)}, {"state": 1, "reason": 1})
    request = database.requests.find_one({"_id": request_id}, {"agreed": 0})
    if request is None or request["ending"] == DELETED:
        return InboxReceipt(state="unknown")
    if found is not None and event_id in request.get("taken", ()):
        return InboxReceipt(state="taken")
    if found is not None and found["state"] != "waiting":
        return InboxReceipt(state=found["state"], reason=found["reason"])
    if request["ending"]:
        return InboxReceipt(state="ended")
    if found is None:
        return InboxReceipt(state="unknown")
    is_held = bool(request["owner"]) and request["lease_until"] > database.now()
    return InboxReceipt(state="waiting", is_held=is_held)


def waiting(database: ServerConnection, owner: str, without: Collection[str], limit: int) -> Sequence[Event]:
    """See `Inbox.waiting`. Reads only the inputs that it returns: the others may be large, and are asked for often."""
    if not owner:
        return []
    with database.in_time():
        order = [("request_id", 1), ("position", 1)]
        fields = {"request_id": 1, "event_id": 1}
        listed = [*database.inbox.find({"state": "waiting"}, fields).sort(order).limit(_MOST_LISTED)]
        if not listed:
            return []
        ids = sorted({each["request_id"] for each in listed})
        held = database.requests.find({"_id": {"$in": ids}, "owner": owner, "ending": ""}, {"taken": 1})
        taken = {each["_id"]: each.get("taken", ()) for each in held}
        found: list[Event] = []
        for each in listed:
            request_id, event_id = each["request_id"], each["event_id"]
            if request_id not in taken or event_id in taken[request_id] or event_id in without:
                continue
            if len(found) == limit:
                break
            document = database.inbox.find_one({"_id": each["_id"]})
            try:
                if document is not None:
                    found.append(decode(bytes(document["data"])))
            except (StoreError, ValueError) as exc:
                _logger.warning("request %s: input %s in its inbox cannot be read: %s", request_id, event_id, exc)
        return found


def settle(database: ServerConnection, request_id: str, event_id: str, state: str, reason: str) -> None:
    """See `Inbox.settle`."""
    with database.in_time():
        guard = {"_id": _id(request_id, event_id), "state": "waiting"}
        database.inbox.update_one(guard, {"$set": {"state": state, "reason": reason}})


def mark_taken(database: ServerConnection, request_ids: Sequence[str]) -> None:
    """Mark the inputs that the last steps of these requests have taken. Called within a time limit."""
    for request in database.requests.find({"_id": {"$in": [*request_ids]}}, {"taken": 1}):
        ids = [_id(request["_id"], each) for each in request.get("taken", ())]
        if ids:
            database.inbox.update_many({"_id": {"$in": ids}}, {"$set": {"state": "taken", "reason": ""}})


def park(database: ServerConnection, request_id: str, epoch: int, seconds: float) -> bool:
    """See `Inbox.park`."""
    with database.in_time():
        guard = {"_id": request_id, "epoch": epoch, "ending": ""}
        until = moment_of(database.now() + seconds)
        is_parked = database.requests.update_one(guard, {"$set": {"owner": "", "lease_until": until}}).matched_count
        if is_parked and database.inbox.find_one({"request_id": request_id, "state": "waiting"}, {"_id": 1}):
            _wake(database, request_id)
        return bool(is_parked)


def _wake(database: ServerConnection, request_id: str) -> None:
    """Free a request that is parked."""
    guard = {"_id": request_id, "owner": "", "ending": ""}
    database.requests.update_one(guard, {"$set": {"lease_until": 0.0}})


def _id(request_id: str, event_id: str) -> str:
    return f"{request_id}:{event_id}"
