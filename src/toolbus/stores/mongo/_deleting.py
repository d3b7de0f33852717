"""The deletion of requests and conversations, so that no reader sees half of one.

A request or conversation is first marked as deleted in the one document that all readers read first. Then all that
belongs to it is deleted, and that document last. If the process dies in between, the next deletion continues.
"""

from __future__ import annotations

from collections.abc import Sequence

from ._connection import Document, ServerConnection, prefix_of

DELETED = "deleted"
"""The ending of a request that is being deleted."""

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
    count = size_bytes = 0
    for each in found:
        result = database.requests.update_one(
            {"_id": each["_id"], "ending": each["ending"]}, {"$set": {"ending": DELETED}}
        )
        if result.matched_count:
            count += 1
            size_bytes += each["size_bytes"]
    sweep(database)
    return count, size_bytes


def sweep(database: ServerConnection) -> None:
    """Delete all that belongs to the requests that are marked as deleted, and then their documents."""
    marked, fields = {"ending": DELETED}, {"conversation_id": 1}
    while found := {
        each["_id"]: each["conversation_id"] for each in database.requests.find(marked, fields).limit(_BATCH)
    }:
        for request_id, conversation_id in found.items():
            # Without its request, the turn would look like one of a request that has not begun yet.
            database.turns.delete_one({"_id": conversation_id, "request_id": request_id})
            for collection, prefix in ((database.steps, request_id), (database.inbox, input_prefix(request_id))):
                collection.delete_many({"_id": prefix_of(prefix), "request_id": request_id})
        database.delete_blobs(request_owner(each) for each in found)
        database.requests.delete_many({"_id": {"$in": [*found]}, **marked})


def finish_forgetting(database: ServerConnection, state: Document) -> None:
    """Delete a conversation that is marked as forgotten: requests, large values, messages, and last its document."""
    conversation_id, names = state["_id"], database.names
    ended = database.requests.find(
        {"conversation_id": conversation_id, "ending": {"$ne": ""}}, {"ending": 1, "size_bytes": 1}
    )
    delete_requests(database, [each for each in ended if each["ending"] != DELETED])
    session = {names.session: {"$in": [conversation_id, state["session"]]}}
    large = database.messages.find({**session, f"{names.own}.large": True}, {names.data: 1})
    database.delete_blobs({turn_owner(each[names.data]["toolbus"]["turn"]) for each in large})
    database.messages.delete_many(session)
    database.turns.delete_one({"_id": conversation_id})
    database.conversations.delete_one({"_id": conversation_id, "generation": state["generation"], "forgotten": True})
