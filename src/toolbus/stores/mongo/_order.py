"""The order of the turns of a conversation, when several processes run them: see `JournalStore.take_turn`.

The turn of a conversation is one document. The condition of each change is the content that was read before, so only
one of two processes succeeds. Together with its turn a request gets a slot: a document in the collection of requests
that no reader takes for a request, and that the request's first step replaces. A process that takes the turn away
deletes the slot first. So the server decides by one document whether a request begins or has lost its turn.
"""

from __future__ import annotations

from pymongo.errors import DuplicateKeyError
from pymongo.operations import InsertOne

from ._connection import FREE, Document, ServerConnection, moment_of
from ._deleting import ABSENT, COMING


def take_turn(database: ServerConnection, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
    """See `JournalStore.take_turn`."""
    now = database.now()
    taken = {"request_id": request_id, "owner": owner, "lease_until": moment_of(now + seconds)}
    holder = database.turns.find_one({"_id": conversation_id})
    if holder is not None and _has_turn(database, holder, now):
        if request_id != holder["request_id"]:
            if owner != holder["owner"]:
                return False
            _delete_slot(database, holder["request_id"])
    elif not _take_from_others(database, conversation_id, request_id, owner, now):
        return False
    if request_id:
        slot = {"_id": request_id, "conversation_id": conversation_id, "ending": COMING, "started_at": now}
        # A request that continues has its document already.
        database.bulk(database.requests, [InsertOne({**slot, "coming_by": owner})])
    if holder is not None:
        return bool(database.turns.update_one(holder, {"$set": taken}).matched_count)
    try:
        database.turns.insert_one({"_id": conversation_id, **taken})
    except DuplicateKeyError:
        return False  # Another process was faster.
    return True


def renew_turn(database: ServerConnection, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
    """See `JournalStore.renew_turn`."""
    given = {"_id": conversation_id, "request_id": request_id, "owner": owner}
    later = {"$set": {"lease_until": moment_of(database.now() + seconds)}}
    return bool(database.turns.update_one(given, later).matched_count)


def _has_turn(database: ServerConnection, holder: Document, now: float) -> bool:
    """Return whether the holder still has the turn. If its time is over and it has not begun, it cannot begin later."""
    by_id = {"_id": holder["request_id"], "ending": {"$nin": ABSENT}}
    if (request := database.requests.find_one(by_id)) is None:
        if holder["lease_until"] > now:
            return True
        if _delete_slot(database, holder["request_id"]) or (request := database.requests.find_one(by_id)) is None:
            return False
    # Another owner, which continues the request, has to take the turn again.
    return not request["ending"] and request["owner"] == holder["owner"] and request["lease_until"] > now


def _delete_slot(database: ServerConnection, request_id: str) -> bool:
    """Delete the slot of a request, so that it cannot begin. Returns False if it has begun, or had none."""
    return bool(database.requests.delete_one({"_id": request_id, "ending": COMING}).deleted_count)


def _take_from_others(
    database: ServerConnection, conversation_id: str, request_id: str, owner: str, now: float
) -> bool:
    """End the leases of other owners in a conversation that have run out, so that they cannot write any more.

    Returns False if a request of another owner runs that has begun before this one, or one of them has just written.
    """
    others: Document = {"conversation_id": conversation_id, "ending": "", "owner": {"$nin": ["", owner]}}
    own = database.requests.find_one({"_id": request_id, "ending": ""}, ["started_at"])
    out: list[str] = []
    for each in database.requests.find(others, ["started_at", "lease_until"]):
        if each["lease_until"] <= now:
            out.append(each["_id"])
        elif each["_id"] != request_id and (
            own is None or (each["started_at"], each["_id"]) < (own["started_at"], request_id)
        ):
            return False
    if not out:
        return True
    fenced = {"$set": FREE, "$inc": {"epoch": 1}}
    ran_out = {**others, "_id": {"$in": out}, "lease_until": {"$lte": now}}
    return database.requests.update_many(ran_out, fenced).matched_count == len(out)


def return_turn(database: ServerConnection, conversation_id: str, request_id: str) -> None:
    """See `JournalStore.return_turn`."""
    _delete_slot(database, request_id)
    database.turns.delete_one({"_id": conversation_id, "request_id": request_id})


def drop_old_turns(database: ServerConnection, before: float) -> None:
    """Forget the turns that were taken before a moment, of requests that have ended or have never begun."""
    for each in database.turns.find({"lease_until": {"$lt": min(before, database.now())}}):
        if database.requests.find_one({"_id": each["request_id"], "ending": ""}, ["_id"]) is None:
            _delete_slot(database, each["request_id"])
            database.turns.delete_one(each)
    # A process that died while it took a turn has left the slot.
    for each in database.requests.find({"ending": COMING, "started_at": {"$lt": before}}):
        given = {"_id": each["conversation_id"], "request_id": each["_id"]}
        if database.turns.find_one(given, ["_id"]) is None:
            _delete_slot(database, each["_id"])
