"""Parts of requests that the adapters build alike: fields, text for images that an API refuses, the forced tool."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...errors import ConfigurationError
from ...messages import ImagePart, Message, Part, TextPart, ToolMessage, UserMessage
from ...messages.wire import data_url, split_data_url
from ...protocols import ToolSpec
from ...records import replace

__all__ = ["forced_tool", "given", "map_parts", "shown_image", "with_extra"]

_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})  # Base64ImageSource; OpenAI's are the same
_ALIASES = {"image/jpg": "image/jpeg"}  # a wrong name that much software writes


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def with_extra(body: dict[str, Any], extra: Mapping[str, Any] | None, merged_field: str = "") -> dict[str, Any]:
    """Return the body with the fields of `extra_body` in place of its own; `merged_field` is merged key by key."""
    merged = {**body, **(extra or {})}
    if merged_field in body and isinstance(own := merged[merged_field], Mapping):
        merged[merged_field] = {**body[merged_field], **own}
    return merged


def map_parts(messages: Iterable[Message], shown: Callable[[Part], Part]) -> list[Message]:
    """Return the messages with `shown(part)` for each part of user messages and results; others are unchanged."""
    return [_with_parts(message, shown) for message in messages]


def _with_parts(message: Message, shown: Callable[[Part], Part]) -> Message:
    if isinstance(message, ToolMessage) and message.parts:
        return replace(message, parts=tuple(shown(part) for part in message.parts))
    if isinstance(message, UserMessage) and not isinstance(message.content, str):
        return replace(message, content=tuple(shown(part) for part in message.content))
    return message


def shown_image(part: Part) -> Part:
    """Return the part, or for an image of a type that the vendors refuse, a text that replaces it.

    The media type of an image in the message itself is sent in its correct spelling, without parameters. An image with
    an `http(s):` URL is unchanged, since only the vendor fetches it.
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


_WORDS = frozenset({None, "auto", "none", "required"})


def forced_tool(tools: Sequence[ToolSpec], choice: str | None) -> ToolSpec | None:
    """Return the tool that `tool_choice` names, or None if it does not name one.

    Raises `ConfigurationError` for a tool that is not offered.
    """
    if choice in _WORDS:
        return None
    for tool in tools:
        if tool.name == choice:
            return tool
    names = ", ".join(tool.name for tool in tools)
    raise ConfigurationError(
        f"tool_choice={choice!r} names no tool that is offered ({names}), and is not one of auto, none, required"
    )
