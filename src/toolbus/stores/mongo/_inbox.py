"""The inbox of each request in MongoDB: a document for each input, until its request is deleted.

The server changes one document at a time. So the update of the request's document by which a step is written also takes
its inputs: it writes their ids into that document (`taken`). Their own documents are marked afterwards; a process that
dies in between leaves that to the next step that takes an input, and meanwhile readers ask the request's document
first.
"""

from __future__ import annotations

import logging
from collections.abc import Collection as Ids
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from bson.binary import Binary
from pymongo import ReturnDocument
from pymongo.collection import Collection

from ...errors import InboxFull, StoreError
from ...events import Event, decode, encode
from ...storage import MAX_WAITING_INPUTS, InboxReceipt
from .._decisions import receipt_of
from .._encoding import UNREADABLE
from ._connection import FREE, Document, ServerConnection, is_own_fault, moment_of
from ._deleting import ABSENT, input_prefix

_logger = logging.getLogger("toolbus.store")
_LISTED = 1_000  # waiting inputs whose requests are looked up at once


def send_all(database: ServerConnection, events: Sequence[Event]) -> Sequence[InboxReceipt | Exception]:
    """Send inputs together: see `Inbox.send`. Return the receipt of each, or its error.

    Inputs that several processes send at once may exceed the bound by their number.
    """
    try:
        return _send(database, events)
    except Exception as exc:
        if not is_own_fault(exc):
            raise
        if len(events) == 1:
            return [database.translated(exc)]
        # One of the inputs cannot be sent, and must not make the others fail.
        return [outcome for each in events for outcome in send_all(database, [each])]


def _send(database: ServerConnection, events: Sequence[Event]) -> Sequence[InboxReceipt | Exception]:
    with database.in_time():
        known = _receipts(database, [(each.request_id, each.event_id) for each in events])
        new: dict[tuple[str, str], Event] = {}
        full = dict[tuple[str, str], InboxFull]()
        free = _free_slots(database, [each.request_id for each in events if known[_key(each)].state == "unknown"])
        for event in events:
            key = _key(event)
            if known[key].state != "unknown" or event.request_id not in free or key in new:
                continue
            if len([each for each in new if each[0] == event.request_id]) >= free[event.request_id]:
                full[key] = InboxFull(f"{MAX_WAITING_INPUTS} inputs wait for request {event.request_id}")
            else:
                new[key] = event
        _insert(database, [*new.values()])
        # This follows the inserts, because a process that parks a request parks it first, and then looks for inputs.
        # An input that was there already may come from a process that died before it woke the request.
        _wake(database, sorted({each.request_id for each in events}))
        found = {**known, **_receipts(database, [*new])} if new else known
        return [full.get(_key(each)) or found[_key(each)] for each in events]


def _key(event: Event) -> tuple[str, str]:
    return event.request_id, event.event_id


def _free_slots(database: ServerConnection, request_ids: Sequence[str]) -> dict[str, int]:
    """Return how many more inputs may wait for each of these requests that has begun and not ended."""
    if not request_ids:
        return {}
    among: Document = {"$in": sorted({*request_ids})}
    running = [each["_id"] for each in database.requests.find({"_id": among, "ending": ""}, ["_id"])]
    free = dict.fromkeys(running, MAX_WAITING_INPUTS)
    for each in database.inbox.find({"state": "waiting", "request_id": among}, ["request_id"]):
        if each["request_id"] in free:
            free[each["request_id"]] -= 1
    return free


def _insert(database: ServerConnection, events: Sequence[Event]) -> None:
    """Insert new inputs, each with a position in its request, unless the request has ended meanwhile."""
    by_request: dict[str, list[Event]] = {}
    for each in events:
        by_request.setdefault(each.request_id, []).append(each)
    documents: list[Document] = []
    for request_id, some in by_request.items():
        state = database.requests.find_one_and_update(
            {"_id": request_id, "ending": ""},
            {"$inc": {"inputs": len(some)}},
            ["inputs"],
            return_document=ReturnDocument.AFTER,
        )
        if state is None:
            continue
        for position, event in enumerate(some, state["inputs"] - len(some)):
            documents.append(
                {
                    "_id": _id(request_id, event.event_id),
                    "request_id": request_id,
                    "event_id": event.event_id,
                    "position": position,
                    "data": Binary(encode(event)),
                    "state": "waiting",
                    "reason": "",
                }
            )
    database.insert(database.inbox, documents)


def receipt(database: ServerConnection, request_id: str, event_id: str) -> InboxReceipt:
    """See `Inbox.receipt`."""
    return _receipts(database, [(request_id, event_id)])[request_id, event_id]


def _receipts(database: ServerConnection, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], InboxReceipt]:
    """Return the states of inputs by their requests and ids."""
    fields = ("ending", "owner", "lease_until", "taken")
    # The inputs are read first: if one is taken meanwhile, its request's document says so.
    inputs = {each["_id"]: each for each in _found(database.inbox, [_id(*each) for each in keys], ("state", "reason"))}
    requests = {each["_id"]: each for each in _found(database.requests, [each[0] for each in keys], fields)}
    now = database.now()
    return {key: _receipt(key[1], inputs.get(_id(*key)), requests.get(key[0]), now) for key in keys}


def _found(collection: Collection[Document], ids: Sequence[str], fields: Iterable[str]) -> Iterable[Document]:
    return collection.find({"_id": {"$in": sorted({*ids})}}, [*fields])


def _receipt(event_id: str, found: Document | None, request: Document | None, now: float) -> InboxReceipt:
    if request is None or request["ending"] in ABSENT:
        return InboxReceipt(state="unknown")
    if found is not None and event_id in request.get("taken", ()):
        return InboxReceipt(state="taken")
    state, reason = ("unknown", "") if found is None else (found["state"], found["reason"])
    is_held = bool(request["owner"]) and request["lease_until"] > now
    return receipt_of(state, reason, ending=request["ending"], is_held=is_held)


def waiting(database: ServerConnection, owner: str, only: str, without: Ids[str], limit: int) -> Sequence[Event]:
    """See `Inbox.waiting`. Reads only the inputs that it returns: the others may be large, and are asked for often."""
    found: list[Event] = []
    if not owner:
        return found
    condition: Document = {"state": "waiting", **({"request_id": only} if only else {})}
    listed = database.inbox.find(condition, ["request_id", "event_id"]).sort(["request_id", "position"])
    # Most of them may be for requests of other processes, or of none.
    while len(found) < limit and (some := [*islice(listed, _LISTED)]):
        found += islice(_of(database, owner, some, without), limit - len(found))
    return found


def _of(database: ServerConnection, owner: str, listed: Sequence[Document], without: Ids[str]) -> Iterator[Event]:
    """Yield those of the waiting inputs that are for requests of `owner`."""
    among = _found(database.requests, [each["request_id"] for each in listed], ("owner", "ending", "taken"))
    running = {each["_id"]: each for each in among if not each["ending"]}
    _delete_left(database, [each for each in listed if each["request_id"] not in running])
    taken = {each["_id"]: each.get("taken", ()) for each in running.values() if each["owner"] == owner}
    for each in listed:
        request_id, event_id = each["request_id"], each["event_id"]
        if request_id not in taken or event_id in taken[request_id] or event_id in without:
            continue
        if each["_id"] in database.unreadable:
            continue
        document = database.inbox.find_one({"_id": each["_id"]})
        try:
            if document is not None:
                yield decode(bytes(document["data"]))
        except (StoreError, *UNREADABLE) as exc:
            database.unreadable.add(each["_id"])
            _logger.warning("request %s: input %s in its inbox cannot be read: %s", request_id, event_id, exc)


def _delete_left(database: ServerConnection, left: Sequence[Document]) -> None:
    """Delete the inputs that requests had not taken when they ended, so that lists of waiting inputs do not grow."""
    if left:
        mark_taken(database, sorted({each["request_id"] for each in left}))
        database.inbox.delete_many({"_id": {"$in": [each["_id"] for each in left]}, "state": "waiting"})


def settle(database: ServerConnection, request_id: str, event_id: str, state: str, reason: str) -> None:
    """See `Inbox.settle`."""
    guard = {"_id": _id(request_id, event_id), "state": "waiting"}
    database.inbox.update_one(guard, {"$set": {"state": state, "reason": reason}})


def mark_taken(database: ServerConnection, request_ids: Sequence[str]) -> None:
    """Mark the inputs that the last steps of these requests have taken. Called within a time limit."""
    if not request_ids:
        return
    for request in database.requests.find({"_id": {"$in": [*request_ids]}}, ["taken"]):
        ids = [_id(request["_id"], each) for each in request.get("taken", ())]
        if ids:
            database.inbox.update_many({"_id": {"$in": ids}}, {"$set": {"state": "taken", "reason": ""}})


def park(database: ServerConnection, request_id: str, epoch: int, seconds: float) -> bool:
    """See `Inbox.park`."""
    guard = {"_id": request_id, "epoch": epoch, "ending": ""}
    until = moment_of(database.now() + seconds)
    # An input that was taken and not marked does not wait, and would wake the request each time that it is parked.
    mark_taken(database, [request_id])
    is_parked = database.requests.update_one(guard, {"$set": {"owner": "", "lease_until": until}}).matched_count
    if is_parked and database.inbox.find_one({"request_id": request_id, "state": "waiting"}, ["_id"]):
        _wake(database, [request_id])
    return bool(is_parked)


def _wake(database: ServerConnection, request_ids: Sequence[str]) -> None:
    """Free those of the requests that are parked and have inputs."""
    among: Document = {"$in": [*request_ids]}
    waits = database.inbox.find({"state": "waiting", "request_id": among}, ["request_id"])
    guard = {"_id": {"$in": sorted({each["request_id"] for each in waits})}, "owner": "", "ending": ""}
    database.requests.update_many(guard, {"$set": FREE})


def _id(request_id: str, event_id: str) -> str:
    return f"{input_prefix(request_id)}:{event_id}"
