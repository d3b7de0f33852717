"""What stores show and search of messages: the same words, whatever they are kept in. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.plain_text import clip
from ..messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage, user_text

__all__ = ["folded", "message_text", "title_of"]

_TITLE_CHARS = 80


def message_text(message: Message) -> str:
    """What a search looks at: the text of a message, or a tool's result; not the arguments of calls."""
    if isinstance(message, UserMessage):
        return user_text(message)
    if isinstance(message, ToolMessage):
        return message.content
    assert isinstance(message, (AssistantMessage, SystemMessage))
    return message.text


def title_of(messages: Iterable[Message]) -> str:
    """The beginning of the first prompt, in one line; empty where there is none."""
    for message in messages:
        if isinstance(message, UserMessage):
            return clip(" ".join(user_text(message).split()), _TITLE_CHARS)
    return ""


def folded(text: str) -> str:
    """The text with its ASCII capitals as small letters: what two texts are compared by, the same in each database."""
    if text.isascii():
        return text.lower()
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")  # bytes know ASCII alone
