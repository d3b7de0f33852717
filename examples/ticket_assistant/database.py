"""The collection of messages as another application reads and writes it, through MongoDB's own driver."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from bson.objectid import ObjectId
from pymongo import ASCENDING, MongoClient

__all__ = ["documents", "write_old_conversation"]


def documents(url: str, database: str, conversation_id: str) -> list[dict[str, Any]]:
    """Return the documents of a conversation in order. Blocks. Raises `PyMongoError`."""
    with MongoClient[dict[str, Any]](url) as client:
        ids = [conversation_id, *([ObjectId(conversation_id)] if ObjectId.is_valid(conversation_id) else [])]
        found = client[database]["messages"].find({"sessionId": {"$in": ids}})
        return list(found.sort([("timestamp", ASCENDING), ("_id", ASCENDING)]))


def write_old_conversation(url: str, database: str) -> str:
    """Write a turn as an earlier application would have: calls, results and answer in one document.

    Its tools had other names and arguments. Returns the conversation's id. Blocks. Raises `PyMongoError`.
    """
    session, at = ObjectId(), datetime(2025, 6, 1, 12, tzinfo=UTC)
    ticket = {"id": "AAD-7", "summary": "Sign-in loops on the staging system", "created": "2024-11-05"}
    call = {"toolCallId": "id1", "toolName": "jira_fetchTickets"}
    said: list[dict[str, Any]] = [
        {"sender": "user", "content": "Show me tickets for project AAD.", "messageType": "text", "data": None},
        {
            "sender": "assistant",
            "content": "Here is ticket AAD-7: Sign-in loops on the staging system.",
            "messageType": "tool_calls",
            "data": {
                "toolCalls": [{**call, "args": {"projectKey": "AAD"}}],
                "toolResults": [{**call, "result": [ticket]}],
            },
        },
    ]
    with MongoClient[dict[str, Any]](url) as client:
        client[database]["messages"].insert_many(
            {"sessionId": session, "timestamp": at + timedelta(seconds=place), **each}
            for place, each in enumerate(said)
        )
    return str(session)
