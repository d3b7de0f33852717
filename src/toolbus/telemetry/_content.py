"""Messages as the JSON text that OpenTelemetry's conventions for generative AI describe. Data only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from ..core.arguments import parse_arguments
from ..errors import InvalidArguments
from ..messages import AssistantMessage, ImagePart, Message, SystemMessage, TextPart, ToolCall, ToolMessage
from ..protocols import ModelReply

__all__ = ["input_messages", "json_text", "output_messages", "system_instructions"]


def json_text(value: Any) -> str:
    """Return a JSON value as text."""
    return orjson.dumps(value).decode()


def system_instructions(messages: Sequence[Message]) -> str:
    """Return the system message that stands first; "[]" without one."""
    first = messages[0] if messages else None
    return json_text([_text(first.text)] if isinstance(first, SystemMessage) else [])


def input_messages(messages: Sequence[Message]) -> str:
    """Return the messages of a request, without the system message that stands first."""
    begin = 1 if messages and isinstance(messages[0], SystemMessage) else 0
    return json_text([{"role": each.role, "parts": _parts(each)} for each in messages[begin:]])


def output_messages(reply: ModelReply) -> str:
    """Return the one message of a reply."""
    message = reply.message
    return json_text([{"role": message.role, "parts": _parts(message), "finish_reason": reply.finish_reason}])


def _parts(message: Message) -> list[dict[str, Any]]:
    """Return the parts of a message. Of images and files it returns the kind only."""
    if isinstance(message, ToolMessage):
        return [{"type": "tool_call_response", "id": message.call_id, "response": message.content}]
    if isinstance(message, AssistantMessage):
        reasoning = [{"type": "reasoning", "content": message.reasoning}] if message.reasoning else []
        said = [_text(message.text)] if message.text else []
        return [*reasoning, *said, *[_call(each) for each in message.tool_calls]]
    if isinstance(message, SystemMessage) or isinstance(message.content, str):
        return [_text(message.text)]
    return [
        _text(each.text)
        if isinstance(each, TextPart)
        else {"type": "blob", "modality": "image" if isinstance(each, ImagePart) else "file", "content": ""}
        for each in message.content
    ]


def _text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


def _call(call: ToolCall) -> dict[str, Any]:
    try:
        arguments: Any = parse_arguments(call.arguments)
    except InvalidArguments:
        arguments = call.arguments
    return {"type": "tool_call", "id": call.call_id or call.provider_call_id, "name": call.name, "arguments": arguments}
