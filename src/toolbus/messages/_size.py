"""The size of messages in memory, for bounds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from ._model import AssistantMessage, Message, Part, SystemMessage, ToolMessage

# The bytes of a message's objects, and of the references to them in lists, measured on CPython 3.11.
_OVERHEAD_BYTES = 400
# The bytes of each character in a text that is not ASCII, at most.
_MAX_BYTES_OF_CHARACTER = 4
# The bytes of a value in a vendor's data, without its text.
_VALUE_BYTES = 60


def size_of(messages: Iterable[Message]) -> int:
    """Estimate the bytes of messages. Helper functions are called only for what most messages do not have."""
    size = 0
    for message in messages:
        size += _OVERHEAD_BYTES
        if isinstance(message, ToolMessage):
            text = message.content
            if message.parts:
                size += _of_parts(message.parts)
        elif isinstance(message, AssistantMessage):
            text = message.text
            size += len(message.reasoning) * _MAX_BYTES_OF_CHARACTER
            for call in message.tool_calls:
                size += _OVERHEAD_BYTES + len(call.arguments) * (
                    1 if call.arguments.isascii() else _MAX_BYTES_OF_CHARACTER
                )
            if message.vendor_data:
                size += _of_data(message.vendor_data)
        elif isinstance(message, SystemMessage):
            text = message.text
        elif isinstance(message.content, str):
            text = message.content
        else:
            text = ""
            size += _of_parts(message.content)
        size += len(text) * (1 if text.isascii() else _MAX_BYTES_OF_CHARACTER)
    return size


def _of_parts(parts: Sequence[Part]) -> int:
    return sum(_of_text(getattr(part, "text", "") or getattr(part, "url", "")) for part in parts)


def _of_text(text: str) -> int:
    return len(text) if text.isascii() else len(text) * _MAX_BYTES_OF_CHARACTER


def _of_data(data: object) -> int:
    """Estimate the bytes of JSON without recursion, because a server may nest it deeper than Python calls functions."""
    size = 0
    left = [data]
    while left:
        value = left.pop()
        size += _VALUE_BYTES
        if isinstance(value, str):
            size += _of_text(value)
        elif isinstance(value, Mapping):
            fields = cast("Mapping[Any, Any]", value)
            left += fields
            left += fields.values()
        elif isinstance(value, (list, tuple)):
            left += cast("Sequence[Any]", value)
    return size
