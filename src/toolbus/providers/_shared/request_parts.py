"""Parts of requests that the adapters build alike: fields, text for images that an API refuses, the forced tool."""

from __future__ import annotations

import itertools
import mimetypes
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...errors import ConfigurationError
from ...messages import FilePart, ImagePart, Message, Part, SystemMessage, TextPart, ToolMessage, UserMessage
from ...messages.wire import data_url, split_data_url
from ...protocols import ToolSpec
from ...records import replace

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


def in_template_order(messages: Iterable[Message]) -> list[Message]:
    """Return the messages in an order that the chat templates of open models accept.

    Many raise an error for a system message that is not the first ("System message must be at the beginning", Qwen), or
    for two messages of the user in a row ("Conversation roles must alternate", Gemma and Mistral). So the system
    messages at the start become one, a later one becomes `<system>` text of the user, and neighbours are joined.
    """
    groups: list[list[Message]] = []  # the messages that become one
    for each in messages:
        message, before = each, groups[-1][0] if groups else None
        if isinstance(message, SystemMessage) and not isinstance(before, SystemMessage | None):
            message = UserMessage(content=f"<system>\n{message.text}\n</system>")
        if isinstance(message, SystemMessage | UserMessage) and type(message) is type(before):
            groups[-1].append(message)
        else:
            groups.append([message])
    return [group[0] if len(group) == 1 else _joined(group) for group in groups]


def _joined(group: Sequence[Message]) -> Message:
    """Return one message instead of several of the system, or of the user."""
    first = group[0]
    if isinstance(first, SystemMessage):
        return replace(
            first, text="\n\n".join(each.text for each in group if isinstance(each, SystemMessage) and each.text)
        )
    contents = [each.content for each in group if isinstance(each, UserMessage) and each.content]
    texts = [each for each in contents if isinstance(each, str)]
    if len(texts) == len(contents):
        return replace(first, content="\n\n".join(texts))
    parts = ((TextPart(text=each),) if isinstance(each, str) else each for each in contents)
    return replace(first, content=tuple(itertools.chain.from_iterable(parts)))


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


def named_file(part: Part) -> Part:
    """Return the part, or a file in the message itself with a name.

    OpenAI refuses a file without one ("Missing required parameter: '...file.file_id'"). Audio is sent in another form,
    which has no name.
    """
    if not isinstance(part, FilePart) or part.name or not part.url.startswith("data:"):
        return part
    if part.media_type.startswith("audio/"):
        return part
    return replace(part, name=f"file{mimetypes.guess_extension(part.media_type.partition(';')[0]) or ''}")


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
