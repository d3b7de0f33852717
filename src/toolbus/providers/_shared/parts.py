"""Words in the place of parts that an API would refuse: one such image is an error for the rest of a conversation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from ...messages import ImagePart, Message, Part, TextPart, ToolMessage, UserMessage
from ...messages.wire import data_url, split_data_url

__all__ = ["presentable", "shown_image"]

_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})  # Base64ImageSource; OpenAI's are the same
_ALIASES = {"image/jpg": "image/jpeg"}  # a name that is no type, and that much software writes


def presentable(messages: Iterable[Message], shown: Callable[[Part], Part]) -> list[Message]:
    """The messages with `shown(part)` for each part of users and results. Others are passed on as they are."""
    return [_presentable(message, shown) for message in messages]


def _presentable(message: Message, shown: Callable[[Part], Part]) -> Message:
    if isinstance(message, ToolMessage) and message.parts:
        return replace(message, parts=tuple(shown(part) for part in message.parts))
    if isinstance(message, UserMessage) and not isinstance(message.content, str):
        return replace(message, content=tuple(shown(part) for part in message.content))
    return message


def shown_image(part: Part) -> Part:
    """The part; for an image of a kind that the vendors refuse, a word. What a URL points to, only they see.

    The media type of an image in the message itself goes in its one right spelling, without parameters.
    """
    if not isinstance(part, ImagePart) or not part.url.startswith("data:"):
        return part
    said = re.split("[;,]", part.url[5:], maxsplit=1)[0].lower()
    media_type = _ALIASES.get(said, said)
    if media_type not in _IMAGES:
        return TextPart(text=f"[an image of type {media_type}, not shown]")
    if part.url.startswith(f"data:{media_type};base64,"):
        return part
    inline = split_data_url(part.url)
    return ImagePart(url=data_url(media_type, inline[1])) if inline else part
