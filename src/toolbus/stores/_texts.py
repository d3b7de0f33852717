"""The text of messages that stores show and search, the same in every store. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.plain_text import clip
from ..messages import Message, UserMessage

_TITLE_CHARS = 80


def title_of(messages: Iterable[Message]) -> str:
    """Return the beginning of the first prompt, in one line; an empty text if there is no prompt."""
    for message in messages:
        if isinstance(message, UserMessage):
            return clip(" ".join(message.text.split()), _TITLE_CHARS)
    return ""


def folded(text: str) -> str:
    """Return the text with its ASCII capitals in lower case, so that texts compare the same way in each database."""
    if text.isascii():
        return text.lower()
    # `bytes.lower` changes only ASCII letters.
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")
