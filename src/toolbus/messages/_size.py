"""The size of messages in memory, for bounds. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ._model import AssistantMessage, Message, SystemMessage, ToolMessage

__all__ = ["size_of"]

# The bytes of a message's objects, and of the references to them in lists, measured on CPython 3.11.
_OVERHEAD_BYTES = 400
# The bytes of each character in a text that is not ASCII, at most.
_WIDEST = 4


def size_of(messages: Iterable[Message]) -> int:
    """Estimate the bytes of messages. This is one pass without helper functions, because it runs for every request."""
    size = 0
    for message in messages:
        size += _OVERHEAD_BYTES
        if isinstance(message, ToolMessage):
            text = message.content
        elif isinstance(message, AssistantMessage):
            text = message.text
            size += len(message.reasoning) * _WIDEST
            for call in message.tool_calls:
                size += _OVERHEAD_BYTES + len(call.arguments) * (1 if call.arguments.isascii() else _WIDEST)
        elif isinstance(message, SystemMessage):
            text = message.text
        elif isinstance(message.content, str):
            text = message.content
        else:
            text = "".join(getattr(part, "text", "") or getattr(part, "url", "") for part in message.content)
        size += len(text) * (1 if text.isascii() else _WIDEST)
    return size
