"""Deletions by age or by conversation, and counts. Knows documents, and the order in which they have to be deleted."""

from __future__ import annotations

from ...errors import StoreError
from ...storage import WRITE_SECONDS, PruneReport, StoreStatistics
from .._read_ahead import fitting
from ._connection import Document, ServerConnection
from ._conversations import finish_pending, settled
from ._deleting import ABSENT, delete_requests, finish_forgetting, sweep
from ._documents import session_ids
from ._order import return_turn, take_turn

_BATCH = 100  # requests that one call deletes
_CONVERSATIONS = 10  # conversations that one call deletes: each takes several commands


def forget(database: ServerConnection, conversation_id: str, marked: list[str]) -> bool:
    """See `Store.forget`. `marked` notes what is about to be deleted, so that a repeated call returns True too."""
    unfinished = database.requests.find_one({"conversation_id": conversation_id, "ending": ""})
    if unfinished is not None:
        raise StoreError(f"conversation {conversation_id!r} has an unfinished request: {unfinished['_id']}")
    # With the turn, no request begins with the messages that are deleted here.
    if not take_turn(database, conversation_id, "", "", WRITE_SECONDS):
        raise StoreError(f"conversation {conversation_id!r} has a request that is about to begin")
    try:
        return _forget_in_turn(database, conversation_id, marked)
    finally:
        return_turn(database, conversation_id, "")


def _forget_in_turn(database: ServerConnection, conversation_id: str, marked: list[str]) -> bool:
    while True:
        with database.ignoring_errors():  # A turn that cannot be added is deleted with the others.
            settled(database, conversation_id)
        state = database.conversations.find_one({"_id": conversation_id})
        if state is None:
            _forget_without_turns(database, conversation_id, marked)
            return bool(marked)
        guard = {name: state[name] for name in ("_id", "generation", "messages", "pending_turn")}
        marked.append(conversation_id)
        if database.conversations.update_one(guard, {"$set": {"forgotten": True}}).matched_count:
            finish_forgetting(database, {**state, "forgotten": True})
            return True


def _forget_without_turns(database: ServerConnection, conversation_id: str, marked: list[str]) -> None:
    """Forget a conversation in which toolbus has written no message."""
    ended = list(database.requests.find({"conversation_id": conversation_id, "ending": {"$nin": ["", *ABSENT]}}))
    names = database.names
    condition: Document = {names.session: {"$in": session_ids(conversation_id)}, f"{names.own}.turn": None}
    if ended or database.messages.find_one(condition) is not None:
        marked.append(conversation_id)
        delete_requests(database, ended)
        database.messages.delete_many(condition)


def prune_requests(database: ServerConnection, before: float) -> PruneReport:
    """Delete some requests that ended before the moment `before`; the result has no requests when none are left."""
    finish_pending(database)
    sweep(database)
    # A turn that is not among the messages yet is in its request's document.
    condition = {"ended_at": {"$gt": 0.0, "$lt": before}, "ending": {"$nin": ["", *ABSENT]}, "has_turn": None}
    found = list(database.requests.find(condition, ["ending", "size_bytes"]).sort("ended_at").limit(_BATCH))
    count, size_bytes = delete_requests(database, found[: fitting(each["size_bytes"] for each in found)])
    return PruneReport(requests=count, size_bytes=size_bytes)


def prune_conversations(database: ServerConnection, before: float, after: str | None) -> tuple[PruneReport, str | None]:
    """Delete some conversations that have not changed since `before` and have no newer request.

    Checks a batch of conversations whose ids come after `after`, and returns the last of these ids, or None if there
    are no more. Keeps a conversation in which another application has written, because toolbus must not delete the
    messages of others.
    """
    condition: Document = {"updated_at": {"$lt": before}, "pending_turn": "", "forgotten": False}
    if after is not None:
        condition["_id"] = {"$gt": after}
    found = list(database.conversations.find(condition).sort("_id").limit(_CONVERSATIONS))
    ids = [each["_id"] for each in found]
    busy = {
        each["conversation_id"]
        for newer in ({"ending": ""}, {"ended_at": {"$gte": before}})
        for each in database.requests.find({"conversation_id": {"$in": ids}, **newer}, ["conversation_id"])
    }
    begins = {"_id": {"$in": ids}, "lease_until": {"$gt": database.now()}}
    busy |= {each["_id"] for each in database.turns.find(begins, ["_id"])}
    done = PruneReport()
    for state in found:
        if state["_id"] in busy or _has_others(database, state):
            continue
        guard = {name: state[name] for name in ("_id", "generation", "messages", "pending_turn", "forgotten")}
        if database.conversations.update_one(guard, {"$set": {"forgotten": True}}).matched_count:
            finish_forgetting(database, {**state, "forgotten": True})
            done.conversations += 1
            done.size_bytes += state["size_bytes"]
    return done, ids[-1] if ids else None


def _has_others(database: ServerConnection, state: Document) -> bool:
    names = database.names
    condition: Document = {names.session: {"$in": session_ids(state["_id"])}, f"{names.own}.turn": None}
    return database.messages.find_one(condition) is not None


def statistics(database: ServerConnection) -> StoreStatistics:
    """Count what toolbus has written."""
    finish_pending(database)
    sums = {"number": {"$sum": 1}, "size_bytes": {"$sum": "$size_bytes"}}
    requests = list(
        database.requests.aggregate(
            [
                {"$match": {"ending": {"$nin": ABSENT}}},
                {"$group": {"_id": "$ending", "facts": {"$sum": "$next_seq"}, **sums}},
            ]
        )
    )
    talks = list(
        database.conversations.aggregate(
            [
                {"$match": {"forgotten": False, "messages": {"$gt": 0}}},
                {"$group": {"_id": "$pending_turn", "messages": {"$sum": "$messages"}, **sums}},
            ]
        )
    )
    return StoreStatistics(
        requests=sum(each["number"] for each in requests),
        unfinished=sum(each["number"] for each in requests if not each["_id"]),
        facts=sum(each["facts"] for each in requests),
        conversations=sum(each["number"] for each in talks),
        messages=sum(each["messages"] for each in talks),
        size_bytes=sum(each["size_bytes"] for each in (*requests, *talks)),
    )
