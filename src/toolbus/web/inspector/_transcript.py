"""The stored transcript, compared with the messages that the model gets: the changes by compression. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from ...messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage
from ._shown import shown_json, shown_text

MAX_MESSAGES = 200
"""The number of messages of one view; the oldest are left out beyond it."""
_TEXT_CHARS = 3_000
_MAX_CALLS = 50

Fate: TypeAlias = Literal["whole", "shortened", "omitted", "new", "added"]
"""The fate of a message: sent as it is, with a shorter text, not at all, not yet, or sent without being stored."""


def transcript(stored: Sequence[Message], sent: Sequence[Message] | None, *, count: int) -> dict[str, Any]:
    """Return the messages as JSON values, each with its `fate`, and with the text as `sent` where that differs.

    `stored` is the end of a transcript of `count` messages. With `sent` None, what was sent is not known, and no
    message has a fate. Messages are matched by their ids; results by their calls.
    """
    newest = stored[-MAX_MESSAGES:]
    if sent is None:
        rows = [_shown(message) for message in newest]
    else:
        known = {_key(each): each for each in sent if _key(each)}
        rows = [_row(message, known, sent) for message in newest]
    for row in reversed(rows):  # What came after the newest message that was sent is not left out.
        if row.get("fate") != "omitted":
            break
        row["fate"] = "new"
    if sent is not None:
        own = {_key(each) for each in stored if _key(each)}
        texts = {each.text for each in stored}
        added = [each for each in sent if _key(each) not in own and each.text not in texts]
        rows = [{**_shown(each), "fate": "added"} for each in added[:MAX_MESSAGES]] + rows
    counts = {fate: sum(row.get("fate") == fate for row in rows) for fate in ("shortened", "omitted", "added")}
    return {
        "messages": rows,
        "earlier": max(0, count - MAX_MESSAGES),
        "is_known": sent is not None,
        "changes": counts,
    }


def _row(message: Message, known: dict[str, Message], sent: Sequence[Message]) -> dict[str, Any]:
    row = _shown(message)
    there = known.get(_key(message)) if _key(message) else next((each for each in sent if each == message), None)
    if there is None:
        return {**row, "fate": "omitted"}
    if there.text == message.text:
        return {**row, "fate": "whole"}
    text = there.text
    return {**row, "fate": "shortened", "sent": shown_text(text, _TEXT_CHARS), "sent_omitted": _omitted(text)}


def _key(message: Message) -> str:
    return f"call {message.call_id}" if isinstance(message, ToolMessage) else message.message_id


def _omitted(text: str) -> int:
    """Return the number of characters that are not shown."""
    return max(0, len(text) - _TEXT_CHARS)


def _shown(message: Message) -> dict[str, Any]:
    text = message.text
    row: dict[str, Any] = {"role": message.role, "text": shown_text(text, _TEXT_CHARS), "omitted": _omitted(text)}
    if isinstance(message, ToolMessage):
        row |= {"name": shown_text(message.name, 80), "call_id": message.call_id, "is_error": message.is_error}
    elif isinstance(message, AssistantMessage):
        row["reasoning"] = shown_text(message.reasoning, _TEXT_CHARS)
        row["interrupted"] = message.interrupted
        row["calls"] = [
            {"name": shown_text(each.name, 80), "call_id": each.call_id, "arguments": _arguments(each.arguments)}
            for each in message.tool_calls[:_MAX_CALLS]
        ]
    parts = message.content if isinstance(message, UserMessage) else getattr(message, "parts", ())
    if not isinstance(parts, str) and not isinstance(message, SystemMessage):
        row["parts"] = [each.type for each in parts if each.type != "text"]
    return row


def _arguments(text: str) -> str:
    return shown_text(str(shown_json(text)), 1_000)
