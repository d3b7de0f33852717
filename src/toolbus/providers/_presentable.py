"""Words in the place of parts that an API would refuse: one such image is an error for the rest of a conversation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from ..messages import ImagePart, Message, Part, TextPart, ToolMessage, UserMessage

__all__ = ["presentable", "shown_image"]

_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})  # Base64ImageSource; OpenAI's are the same


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
    """The part; for an image of a kind that the vendors refuse, a word. What a URL points to, only they see."""
    if not isinstance(part, ImagePart) or not part.url.startswith("data:"):
        return part
    media_type = re.split("[;,]", part.url[5:], maxsplit=1)[0].lower()
    return part if media_type in _IMAGES else TextPart(text=f"[an image of type {media_type}, not shown]")
