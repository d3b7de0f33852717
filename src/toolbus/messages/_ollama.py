"""The conversion of messages to Ollama's native chat dictionaries and back.

In this dialect a message has text and a list of bare base64 images, arguments are objects, and calls and results have
no ids. Pure: no SDK, no I/O.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import InvalidHistory
from ._model import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    Part,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from ._openai import FAILURE, written_call
from .wire import (
    IncomingIds,
    arguments_object,
    data_url,
    file_as_text,
    image_type,
    list_at,
    mapping_at,
    split_data_url,
    text_at,
)

# --------------------------------------------------------------------------------------------------- out


def to_ollama(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return the transcript as native chat messages, in order; one dictionary for each message or run of replies.

    A result names the tool of its call, and belongs to its call by position: results have to follow their message
    directly and in call order, as in every valid transcript (see `toolbus.core.transcript`). Consecutive replies become
    one: the server would join them itself, and keep only the calls of the first (ollama: template/template.go,
    collate). Argument text that is not a JSON object is sent as an object that quotes it. Reasoning is sent as
    `thinking`, which models need back between their calls.

    Text parts are joined by line breaks, and images of `data:` URLs are in the list of images. The server fetches no
    URLs and accepts no other files, and one such part in an old turn must not make a conversation unusable: so a text
    file becomes part of the text, and a mark in brackets replaces an image with an `http(s):` URL or another file. Not
    carried over: ids, the position of an image among text parts, its media type, `is_error` of a result whose content
    is not a `{"ok": false}` object.

    The dictionaries are fresh; nothing is validated.
    """
    wire: list[dict[str, Any]] = []
    called: deque[str] = deque()  # the names of the tools whose results come next
    for message in messages:
        if isinstance(message, SystemMessage):
            wire.append({"role": "system", "content": message.text})
        elif isinstance(message, UserMessage):
            parts = (TextPart(text=message.content),) if isinstance(message.content, str) else message.content
            wire.append({"role": "user", **_content(parts)})
        elif isinstance(message, AssistantMessage):
            names = [call.name for call in message.tool_calls]
            if wire and wire[-1]["role"] == "assistant":
                wire[-1] = _joined(wire[-1], _assistant(message))
                called.extend(names)
            else:
                wire.append(_assistant(message))
                called = deque(names)
        else:
            parts = (TextPart(text=message.content), *message.parts)
            name = called.popleft() if called else message.name
            wire.append({"role": "tool", "tool_name": name, **_content(parts)})
    return wire


def _assistant(message: AssistantMessage) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": "assistant", "content": message.text}
    if message.reasoning:
        wire["thinking"] = message.reasoning
    if message.tool_calls:
        wire["tool_calls"] = [
            {"function": {"name": call.name, "arguments": arguments_object(call.arguments)}}
            for call in message.tool_calls
        ]
    return wire


def _joined(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Join two replies: their texts with an empty line between them, their calls one after the other."""
    wire = {**one, **other}
    for name in ("content", "thinking"):
        if texts := [each[name] for each in (one, other) if each.get(name)]:
            wire[name] = "\n\n".join(texts)
    if calls := [*one.get("tool_calls", ()), *other.get("tool_calls", ())]:
        wire["tool_calls"] = calls
    return wire


def _content(parts: Iterable[Part]) -> dict[str, Any]:
    """Return the fields `content` and, where there are images, `images`."""
    texts: list[str] = []
    images: list[str] = []
    for part in parts:
        inline = None if isinstance(part, TextPart) else split_data_url(part.url)
        if isinstance(part, TextPart):
            texts.append(part.text)
        elif isinstance(part, FilePart):
            texts.append(file_as_text(part))
        elif inline and (data := _plain_base64(inline[1])):
            images.append(data)
        else:
            texts.append("[an image that is not valid base64]" if inline else f"[an image at {part.url}]")
    content: dict[str, Any] = {"content": "\n".join(filter(None, texts))}
    if images:
        content["images"] = images
    return content


def _plain_base64(data: str) -> str:
    """Return the base64 if the server can read it; otherwise empty text, since it would refuse the whole request."""
    try:
        return data if base64.b64decode(data, validate=True) else ""
    except ValueError:
        return ""


# -------------------------------------------------------------------------------------------------- back


def from_ollama(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages that native chat dictionaries represent.

    Calls get `call_id`s that are unique in the list. A result belongs to the oldest unanswered call of the newest
    message that has calls: the one with its `tool_call_id`, where a newer server gave one, otherwise the one of its
    `tool_name`, or without a name any. `provider_call_id` is such an id, and mostly empty. A message with images
    becomes parts, the text first; the type of an image is read from its first bytes. `is_error` is true for content
    that is toolbus's own `{"ok":false,...}`.

    Raises `InvalidHistory` with the index of a message that has an unknown role or a wrongly typed field. Orphans and
    missing results are not detected here (see `toolbus.core.transcript`).
    """
    found: list[Message] = []
    calls = _Calls()
    for index, each in enumerate(messages):
        wire = mapping_at(index, each, "a message")
        role, content = wire.get("role"), text_at(index, wire.get("content"), "content")
        if role == "system":
            found.append(SystemMessage(text=content))
        elif role == "user":
            images = _images_back(index, wire)
            text = (TextPart(text=content),) if content else ()
            found.append(UserMessage(content=(*text, *images) if images else content))
        elif role == "assistant":
            thinking = text_at(index, wire.get("thinking"), "thinking")
            found.append(
                AssistantMessage(
                    text=content, tool_calls=calls.begin(index, wire.get("tool_calls")), reasoning=thinking
                )
            )
        elif role == "tool":
            name = text_at(index, wire.get("tool_name") or wire.get("name"), "tool_name")
            call_id, name = calls.result(name, text_at(index, wire.get("tool_call_id"), "tool_call_id"))
            failed = content.startswith(FAILURE)
            images = _images_back(index, wire)
            found.append(ToolMessage(call_id=call_id, name=name, content=content, parts=images, is_error=failed))
        else:
            raise InvalidHistory(index, f"role {role!r} is not one of system, user, assistant, tool")
    return found


class _Calls:
    """The calls of a transcript that is read from front to back, and the unanswered ones among them."""

    __slots__ = ("_ids", "_open")

    def __init__(self) -> None:
        self._ids = IncomingIds()
        self._open: list[ToolCall] = []

    def begin(self, index: int, raw: object) -> tuple[ToolCall, ...]:
        """Return the calls of a message, in call order. Older calls without an answer remain unanswered."""
        if not raw:
            return ()
        calls = [mapping_at(index, each, "a tool call") for each in list_at(index, raw, "tool_calls")]
        made = self._ids.calls(written_call(index, call) for call in calls)
        self._open = [*made]
        return made

    def result(self, name: str, wire_id: str) -> tuple[str, str]:
        """Return the call id and the tool name of a result; for an orphan, `wire_id` and `name` unchanged."""
        for position, call in enumerate(self._open):
            by_id = bool(wire_id and call.provider_call_id)
            if wire_id == call.provider_call_id if by_id else name in {"", call.name}:
                del self._open[position]
                return call.call_id, call.name
        return wire_id, name


def _images_back(index: int, wire: Mapping[str, Any]) -> tuple[ImagePart, ...]:
    texts = [text_at(index, each, "an image") for each in list_at(index, wire.get("images") or (), "images")]
    return tuple(ImagePart(url=data_url(image_type(text) or "image/png", text)) for text in texts)
