"""Deletes requests and conversations, so that what is half deleted is never half seen.

What is to go is marked in the one document that all readers look at first; then what belongs to it is deleted, and that
document last. Where the process dies in between, whoever comes next deletes the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from ._connection import Document, ServerConnection, prefix_of

__all__ = ["DELETED", "delete_requests", "finish_forgetting", "request_owner", "sweep", "turn_owner"]

DELETED = "deleted"
"""The ending of a request that is about to be gone."""

_BATCH = 100


def request_owner(request_id: str) -> str:
    """Whose the large values of a request's facts are."""
    return f"request {request_id}"


def turn_owner(turn_id: str) -> str:
    """Whose the large values of a turn are."""
    return f"turn {turn_id}"


def delete_requests(database: ServerConnection, found: Sequence[Document]) -> tuple[int, int]:
    """Delete requests that have ended: how many, and their bytes. Of two who do it at once, each counts its own."""
    count = size_bytes = 0
    for each in found:
        told = database.requests.update_one(
            {"_id": each["_id"], "ending": each["ending"]}, {"$set": {"ending": DELETED}}
        )
        if told.matched_count:
            count += 1
            size_bytes += each["size_bytes"]
    sweep(database)
    return count, size_bytes


def sweep(database: ServerConnection) -> None:
    """Delete what belongs to requests that are marked as gone, and then their marks."""
    while found := [each["_id"] for each in database.requests.find({"ending": DELETED}, {"_id": 1}).limit(_BATCH)]:
        for request_id in found:
            database.steps.delete_many({"_id": prefix_of(request_id), "request_id": request_id})
        database.delete_blobs(request_owner(each) for each in found)
        database.requests.delete_many({"_id": {"$in": found}, "ending": DELETED})


def finish_forgetting(database: ServerConnection, state: Document) -> None:
    """Delete a conversation that is marked as forgotten: requests, large values, messages, and its own document."""
    conversation_id, names = state["_id"], database.names
    ended = database.requests.find(
        {"conversation_id": conversation_id, "ending": {"$ne": ""}}, {"ending": 1, "size_bytes": 1}
    )
    delete_requests(database, [each for each in ended if each["ending"] != DELETED])
    session = {names.session: {"$in": [conversation_id, state["session"]]}}
    large = database.messages.find({**session, f"{names.own}.large": True}, {names.data: 1})
    database.delete_blobs({turn_owner(each[names.data]["toolbus"]["turn"]) for each in large})
    database.messages.delete_many(session)
    database.conversations.delete_one({"_id": conversation_id, "generation": state["generation"], "forgotten": True})
