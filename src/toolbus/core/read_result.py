"""`read_result`: the tool with which a model reads the rest of a result that was cut or left out. Pure.

The turn machine answers it from the transcript, which has every result whole. So it works for the calls of every
process and every turn, and with every store.

Example:
    from toolbus.core.read_result import READ_RESULT, read_page, why_unreadable
    from toolbus.messages import AssistantMessage, ToolCall, ToolMessage, UserMessage

    call = ToolCall(name="read_log", arguments='{}', call_id="c1")
    result = ToolMessage(content="a" * 10_000, call_id="c1", name="read_log")
    messages = [UserMessage(content="Read it."), AssistantMessage(tool_calls=(call,)), result]
    print(READ_RESULT.name, repr(why_unreadable(messages, {"call_id": "c1"})))  # read_result ''
    print(len(read_page(messages, {"call_id": "c1"}, 500)) < 1_000)  # True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from ..errors import InvalidArguments
from ..messages import AssistantMessage, Message, ToolMessage
from ..protocols import ToolSpec
from .shorten import page

__all__ = ["READ_RESULT", "read_page", "why_unreadable"]

_NAME = "read_result"
_MAX_LISTED = 20  # the newest results, which a refusal lists


def _check(arguments: Mapping[str, Any]) -> None:
    problems = [f"$.{name}: There is no such argument" for name in arguments if name not in ("call_id", "offset")]
    if not isinstance(arguments.get("call_id"), str):
        problems.append("$.call_id: Input should be a valid string")
    offset = arguments.get("offset", 0)
    if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
        problems.append("$.offset: Input should be a valid integer, at least 0")
    if problems:
        raise InvalidArguments("; ".join(problems))


READ_RESULT = ToolSpec(
    name=_NAME,
    description=(
        "Read the whole of an earlier tool result that was shortened, page by page. "
        "The mark where something is missing names the call_id and, for texts, the offset."
    ),
    parameters={
        "type": "object",
        "properties": {
            "call_id": {"type": "string", "description": "The id that the mark names."},
            "offset": {
                "type": "integer",
                "minimum": 0,
                "default": 0,
                "description": "The character to begin with. Each page tells the next one's.",
            },
        },
        "required": ["call_id"],
        "additionalProperties": False,
    },
    validate=_check,
    status="Reading on in a long result",
    control="read",
    kind="query",
)
"""The tool that a session offers once a result has been shortened for the model."""


def why_unreadable(messages: Sequence[Message], arguments: Mapping[str, Any]) -> str:
    """Return the error for valid arguments that name no result in `messages`; an empty text where there is one."""
    call_id = arguments["call_id"]
    if _find(messages, call_id) is not None:
        return ""
    listed = ", ".join(islice(_readable(messages), _MAX_LISTED))
    newest = f"The newest are: {listed}." if listed else "There is nothing to read yet."
    return f"There is no result of a call {call_id[:80]!r}. {newest}"


def read_page(messages: Sequence[Message], arguments: Mapping[str, Any], max_chars: int) -> str:
    """Return the page that a call of `read_result` asks for; an empty text where there is no such result."""
    found = _find(messages, arguments["call_id"])
    return "" if found is None else page(found.content, arguments.get("offset", 0), max_chars)


def _find(messages: Sequence[Message], call_id: str) -> ToolMessage | None:
    """Return the newest result of a call with that id, ours or its provider's. Costs O(messages)."""
    # Ids in a history from elsewhere are unique only within one reply, so the results are kept for one reply at a time.
    results: dict[str, ToolMessage] = {}
    for message in reversed(messages):
        if isinstance(message, ToolMessage):
            results[message.call_id] = message
        elif results:
            if isinstance(message, AssistantMessage):
                for call in message.tool_calls:
                    if call_id in (call.call_id, call.provider_call_id) and call.call_id in results:
                        return results[call.call_id]
            results.clear()
    return None


def _readable(messages: Sequence[Message]) -> Iterable[str]:
    """Yield a description of each result that can be read, newest first."""
    for message in reversed(messages):
        if isinstance(message, ToolMessage) and message.name != _NAME:
            yield f"{message.call_id!r} ({message.name}, {len(message.content)} characters)"
