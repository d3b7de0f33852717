"""Messages as the JSON text that OpenTelemetry's conventions for generative AI describe, bounded in size. Data only."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from ..core.arguments import parse_arguments
from ..errors import InvalidArguments
from ..messages import AssistantMessage, ImagePart, Message, SystemMessage, TextPart, ToolCall, ToolMessage
from ..protocols import ModelReply
from ._texts import clean

MAX_CHARS = 100_000
"""The characters of one attribute, and of all texts in it. A span is kept until it is exported, with 2,047 others."""

_MAX_TEXT_CHARS = 20_000


def cut_text(text: str) -> str:
    """Return a text, cut to `MAX_CHARS`."""
    return clean(text, MAX_CHARS)


def arguments_text(arguments: Any) -> str:
    """Return arguments as JSON; if they are too long, as the beginning of it."""
    return cut_text(_json(arguments))


def system_instructions(messages: Sequence[Message]) -> str:
    """Return the system message that stands first; "[]" without one."""
    first = messages[0] if messages else None
    return _json([_text(first.text)] if isinstance(first, SystemMessage) else [])


def input_messages(messages: Sequence[Message]) -> tuple[str, int]:
    """Return the messages of a request, without the system message that stands first, and how many are left out.

    The earliest ones are left out, if all of them have more than `MAX_CHARS` characters.
    """
    begin = 1 if messages and isinstance(messages[0], SystemMessage) else 0
    ids = {
        call.call_id: _id_of(call)
        for each in messages
        if isinstance(each, AssistantMessage)
        for call in each.tool_calls
    }
    found: list[dict[str, Any]] = []
    left = MAX_CHARS
    for at in range(len(messages) - 1, begin - 1, -1):
        parts = _parts(messages[at], ids)
        left -= _size(parts)
        if left < 0 and found:
            break
        found.append({"role": messages[at].role, "parts": parts})
    return _json(found[::-1]), len(messages) - begin - len(found)


def output_messages(reply: ModelReply) -> str:
    """Return the one message of a reply."""
    message = reply.message
    return _json([{"role": message.role, "parts": _parts(message, {}), "finish_reason": reply.finish_reason}])


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # Arguments may have half of a surrogate pair, or an integer of more than 64 bits.
        return json.dumps(value, default=repr)


def _size(parts: Sequence[dict[str, Any]]) -> int:
    """Return the characters of the texts and the arguments in parts, which are what grows."""
    return sum(len(each if isinstance(each, str) else _json(each)) for part in parts for each in part.values())


def _parts(message: Message, ids: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the parts of a message, of images and files the kind only. `ids` are those of calls in spans."""
    if isinstance(message, ToolMessage):
        call_id = ids.get(message.call_id) or clean(message.call_id)
        return [{"type": "tool_call_response", "id": call_id, "response": _cut(message.content)}]
    if isinstance(message, AssistantMessage):
        reasoning = [{"type": "reasoning", "content": _cut(message.reasoning)}] if message.reasoning else []
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
    return {"type": "text", "content": _cut(content)}


def _cut(text: str) -> str:
    return clean(text, _MAX_TEXT_CHARS)


def _call(call: ToolCall) -> dict[str, Any]:
    arguments: Any = _cut(call.arguments)
    if arguments == call.arguments:
        with contextlib.suppress(InvalidArguments):
            arguments = parse_arguments(call.arguments)
    return {"type": "tool_call", "id": _id_of(call), "name": clean(call.name), "arguments": arguments}


def _id_of(call: ToolCall) -> str:
    """Return the id of a call as the span of its tool has it."""
    return clean(call.provider_call_id or call.call_id)
