"""The order of the turns of a conversation, when several processes run them: see `JournalStore.take_turn`.

The turn of a conversation is one document. Whoever changes it names the content that it has read, so that of two
processes one succeeds.
"""

from __future__ import annotations

from pymongo.errors import DuplicateKeyError

from ._connection import Document, ServerConnection, moment_of
from ._deleting import DELETED


def take_turn(database: ServerConnection, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
    """See `JournalStore.take_turn`."""
    now = database.now()
    taken = {"request_id": request_id, "owner": owner, "lease_until": moment_of(now + seconds)}
    holder = database.turns.find_one({"_id": conversation_id})
    if holder is not None and _has_turn(database, holder, now):
        if request_id != holder["request_id"] and owner != holder["owner"]:
            return False
    elif _runs_earlier(database, conversation_id, request_id, owner, now):
        return False
    if holder is not None:
        return bool(database.turns.update_one(holder, {"$set": taken}).matched_count)
    try:
        database.turns.insert_one({"_id": conversation_id, **taken})
    except DuplicateKeyError:
        return False  # Another process was faster.
    return True


def _runs(now: float) -> Document:
    """The condition for a request that a process has."""
    return {"ending": "", "owner": {"$ne": ""}, "lease_until": {"$gt": now}}


def _has_turn(database: ServerConnection, holder: Document, now: float) -> bool:
    request_id = {"_id": holder["request_id"]}
    if database.requests.find_one({**request_id, "ending": {"$ne": DELETED}}, {"_id": 1}) is None:
        return holder["lease_until"] > now
    # Another owner, which continues the request, has to take the turn anew.
    runs = {**request_id, **_runs(now), "owner": {"$nin": [""], "$eq": holder["owner"]}}
    return database.requests.find_one(runs, {"_id": 1}) is not None


def _runs_earlier(database: ServerConnection, conversation_id: str, request_id: str, owner: str, now: float) -> bool:
    """Return whether a request of another owner runs in the conversation that has begun before this one."""
    condition = {**_runs(now), "conversation_id": conversation_id, "owner": {"$nin": ["", owner]}}
    own = database.requests.find_one({"_id": request_id}, {"started_at": 1})
    return any(
        each["_id"] != request_id
        and (own is None or (each["started_at"], each["_id"]) < (own["started_at"], request_id))
        for each in database.requests.find(condition, {"started_at": 1})
    )


def return_turn(database: ServerConnection, conversation_id: str, request_id: str) -> None:
    """See `JournalStore.return_turn`."""
    database.turns.delete_one({"_id": conversation_id, "request_id": request_id})


def drop_old_turns(database: ServerConnection, before: float) -> None:
    """Forget the turns that were taken before a moment, of requests that have ended or have never begun."""
    for each in database.turns.find({"lease_until": {"$lt": before}}):
        if database.requests.find_one({"_id": each["request_id"], "ending": ""}, {"_id": 1}) is None:
            database.turns.delete_one(each)
