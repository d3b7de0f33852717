"""The deletion of requests and conversations in steps of which no reader sees half.

A request or conversation is first marked as deleted in the one document that all readers read first. Then all that
belongs to it is deleted, and that document last. If the process dies in between, the next deletion continues.
"""

from __future__ import annotations

from collections.abc import Sequence

from pymongo.operations import DeleteMany, UpdateOne

from ._blobs import delete_blobs
from ._connection import Document, ServerConnection, prefix_of
from ._documents import session_ids

DELETED = "deleted"
"""The ending of a request that is being deleted."""

COMING = "coming"
"""The ending of a slot: the document of a request that has its turn and has not begun yet. See `_order`."""

ABSENT = [DELETED, COMING]
"""The endings of documents that are not requests for readers."""

_BATCH = 100


def request_owner(request_id: str) -> str:
    """Return the owner of the large values of a request's facts."""
    return f"request {request_id}"


def turn_owner(turn_id: str) -> str:
    """Return the owner of the large values of a turn."""
    return f"turn {turn_id}"


def input_prefix(request_id: str) -> str:
    """Return the beginning of the ids of a request's inputs, which ends at the first colon of such an id."""
    return request_id.replace("%", "%25").replace(":", "%3A")


def delete_requests(database: ServerConnection, found: Sequence[Document]) -> tuple[int, int]:
    """Delete ended requests, and return their number and bytes, without those that another process has deleted."""
    marks = [UpdateOne({"_id": each["_id"], "ending": each["ending"]}, {"$set": {"ending": DELETED}}) for each in found]
    count = database.bulk(database.requests, marks)
    sweep(database)
    return count, sum(each["size_bytes"] for each in found) * count // len(found) if found else 0


def sweep(database: ServerConnection) -> None:
    """Delete all that belongs to the requests that are marked as deleted, and then their documents.

    One command deletes what many requests have in a collection, since a majority of servers has to confirm each.
    """
    marked, fields = {"ending": DELETED}, ["conversation_id"]
    while found := {
        each["_id"]: each["conversation_id"] for each in database.requests.find(marked, fields).limit(_BATCH)
    }:
        # Without its request, the turn would look like one of a request that has not begun yet.
        among = {"_id": {"$in": [*found.values()]}, "request_id": {"$in": [*found]}}
        database.turns.delete_many(among)
        for collection, prefix in ((database.steps, str), (database.inbox, input_prefix)):
            conditions = [{"_id": prefix_of(prefix(each)), "request_id": each} for each in found]
            database.bulk(collection, [DeleteMany(each) for each in conditions])
        delete_blobs(database, map(request_owner, found))
        database.requests.delete_many({"_id": {"$in": [*found]}, **marked})


def finish_forgetting(database: ServerConnection, state: Document) -> None:
    """Delete a conversation that is marked as forgotten: requests, large values, messages, and last its document.

    First all that belongs to it is listed. Without this a process that is slow would delete what has the same
    conversation's id and was written after another process had finished.
    """
    conversation_id, names = state["_id"], database.names
    fields = ["ending", "size_bytes", "has_turn", "first"]
    ended = [*database.requests.find({"conversation_id": conversation_id, "ending": {"$nin": ["", *ABSENT]}}, fields)]
    session = {names.session: {"$in": session_ids(conversation_id)}}
    messages = [each["_id"] for each in database.messages.find(session, ["_id"])]
    large = [*database.messages.find({**session, f"{names.own}.large": True}, [names.data])]
    marked = {"_id": conversation_id, "generation": state["generation"], "forgotten": True}
    if database.conversations.find_one(marked, ["_id"]) is None:
        return
    # Turns that are not among the messages: of requests, whose first steps name them, and the one being added.
    turns = {each["first"] for each in ended if "has_turn" in each} | {*filter(None, [state["pending_turn"]])}
    delete_requests(database, ended)
    turns |= {each[names.data]["toolbus"]["turn"] for each in large}
    delete_blobs(database, map(turn_owner, turns))
    database.messages.delete_many({"_id": {"$in": messages}})
    database.conversations.delete_one(marked)
