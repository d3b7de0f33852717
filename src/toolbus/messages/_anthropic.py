"""The conversion of messages to Anthropic Messages-API dictionaries and back.

In this dialect the instructions are outside the list, roles alternate, content consists of blocks, and all results of
a round are in the one user message after it. Pure: no SDK, no I/O.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import orjson

from ..errors import InvalidHistory
from ._model import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    Part,
    SystemMessage,
    TextPart,
    ToolMessage,
    UserMessage,
)
from .wire import (
    MALFORMED,
    IncomingIds,
    OutgoingIds,
    arguments_object,
    arguments_text,
    data_url,
    decoded_text,
    label,
    legal_name,
    list_at,
    mapping_at,
    split_data_url,
    storable,
    text_at,
)

_VENDOR = "anthropic"
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")  # the API refuses such characters in ids of calls
_MAX_NAME_CHARS = 128  # characters; the API refuses longer names of tools
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(;.*)?")
_SOURCES = frozenset({"base64", "url", "text"})  # the sources of images and documents that have a neutral form
_UNKNOWN_TYPE = "application/octet-stream"
_PDF = "application/pdf"  # the only type that the URL of a document may point to

_Block = dict[str, Any]


def _legal_id(wire_id: str) -> str:
    return _ILLEGAL.sub("_", wire_id)


# --------------------------------------------------------------------------------------------------- out


def to_anthropic(messages: Iterable[Message], *, model: str | None = None) -> dict[str, Any]:
    """Return the transcript as `{"system": ..., "messages": [...]}`; `system` only where there are instructions.

    System messages at the start are the instructions, joined by an empty line; a later one is a note, and becomes
    `<system>` text in a user message at the same position. Consecutive messages of one role become one message, so the
    results of one round are one user message that begins with its `tool_result` blocks. Empty text gets no block, since
    the API refuses it; a message without a block is left out. Argument text that is not a JSON object is sent as an
    object that quotes it. Ids follow the same rule as in `to_openai`; characters in ids and names that the API refuses
    are replaced. A result with parts has blocks as its content: its text, then the parts. The media type of a document
    that is neither plain text nor PDF is in its `context`.

    The blocks of a reply that `from_anthropic` or a provider kept in `vendor_data["anthropic"]`, above all thinking
    with its signature, are sent back unchanged and in their order; only empty text, and thinking at the end of the
    message that nothing follows, are left out. With `model`, thinking of another model is left out too: the API checks
    signatures, and refuses those of other servers and models. The dictionaries are fresh, except for kept blocks.
    """
    ids = OutgoingIds(_legal_id)
    system: list[str] = []
    wire: list[dict[str, Any]] = []
    begun = False
    for message in messages:
        if isinstance(message, SystemMessage) and not begun:
            system.append(message.text)
            continue
        begun = True
        role = "assistant" if isinstance(message, AssistantMessage) else "user"
        blocks = (
            _without_last_thinking(_assistant(message, ids, model))
            if isinstance(message, AssistantMessage)
            else _user(message, ids)
        )
        if not blocks:
            continue
        if wire and wire[-1]["role"] == role:
            wire[-1]["content"] += blocks
        else:
            wire.append({"role": role, "content": blocks})
    result: dict[str, Any] = {"messages": [_shortened(each) for each in wire]}
    if text := "\n\n".join(part for part in system if part.strip()):
        result["system"] = text
    return result


def _shortened(message: dict[str, Any]) -> dict[str, Any]:
    """Make the text itself the content of a message with one plain text block, which is shorter and more usual."""
    blocks = message["content"]
    if len(blocks) == 1 and len(blocks[0]) == 2 and blocks[0]["type"] == "text":
        message["content"] = blocks[0]["text"]
    return message


def _text(text: str) -> list[_Block]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _user(message: SystemMessage | UserMessage | ToolMessage, ids: OutgoingIds) -> list[_Block]:
    if isinstance(message, ToolMessage):
        return [_result(message, ids)]
    if isinstance(message, SystemMessage):
        return _text(f"<system>\n{message.text}\n</system>")
    if isinstance(message.content, str):
        return _text(message.content)
    return [block for part in message.content for block in _part(part)]


def _result(message: ToolMessage, ids: OutgoingIds) -> _Block:
    text = message.content
    if message.is_error and not text:
        text = "error"  # the API refuses an error without text
    parts = [block for part in message.parts for block in _part(part)]
    block: _Block = {"type": "tool_result", "tool_use_id": ids.result(message.call_id)}
    block["content"] = _text(text) + parts if parts else text
    if message.is_error:
        block["is_error"] = True
    return block


def _assistant(message: AssistantMessage, ids: OutgoingIds, model: str | None) -> list[_Block]:
    calls: list[_Block] = [
        {
            "type": "tool_use",
            "id": ids.call(call.call_id, call.provider_call_id),
            "name": legal_name(call.name, _MAX_NAME_CHARS),
            "input": arguments_object(call.arguments),
        }
        for call in message.tool_calls
    ]
    kept: Mapping[str, Any] = (message.vendor_data or {}).get(_VENDOR) or {}
    blocks: list[_Block] = kept.get("content") or []
    if model and kept.get("model", model) != model:
        blocks = [block for block in blocks if "thinking" not in block["type"]]
    if not blocks:
        return _text(message.text) + calls
    same_calls = [each.get("name") for each in blocks if each["type"] == "tool_use"] == [call["name"] for call in calls]
    if same_calls and _text_of(blocks) == message.text:
        fresh = iter(calls)
        now = [_current(block, next(fresh)) if block["type"] == "tool_use" else block for block in blocks]
        return [block for block in now if block["type"] != "text" or str(block.get("text") or "").strip()]
    # The message was edited since. Its thinking still goes first, as the API requires of a turn with calls.
    return [block for block in blocks if "thinking" in block["type"]] + _text(message.text) + calls


def _without_last_thinking(blocks: list[_Block]) -> list[_Block]:
    """Return the blocks up to the last that is not thinking: "The final block [...] cannot be `thinking`"."""
    while blocks and "thinking" in blocks[-1]["type"]:
        blocks = blocks[:-1]
    return blocks


def _current(block: _Block, call: _Block) -> _Block:
    """Return a kept call with the id that it has on this wire, and the arguments that the message has now."""
    same = block.get("id") == call["id"] and block.get("input") == call["input"]
    return block if same else {**block, **call}


def _part(part: Part) -> list[_Block]:
    if isinstance(part, TextPart):
        return _text(part.text)
    inline = split_data_url(part.url)
    source: _Block = {"type": "url", "url": part.url}
    if isinstance(part, ImagePart):
        if inline:
            source = {"type": "base64", "media_type": inline[0], "data": inline[1]}
        return [{"type": "image", "source": source}]
    if inline:
        text = decoded_text(inline[1]) if part.media_type.startswith("text/") else None
        source = (
            {"type": "base64", "media_type": part.media_type, "data": inline[1]}
            if text is None
            else {"type": "text", "media_type": "text/plain", "data": text}
        )
    block: _Block = {"type": "document", "source": source}
    if part.name:
        block["title"] = part.name
    if part.media_type != {"url": _PDF, "text": "text/plain"}.get(source["type"], part.media_type):
        block["context"] = part.media_type
    return [block]


# -------------------------------------------------------------------------------------------------- back


def from_anthropic(
    messages: Sequence[Mapping[str, Any]] | Mapping[str, Any], system: str | Sequence[Mapping[str, Any]] | None = None
) -> list[Message]:
    """Return the messages that Messages-API dictionaries represent.

    Takes a message list with a separate `system`, or the dictionary that `to_anthropic` makes. Ids are read as in
    `from_openai`. Consecutive messages of the assistant are one reply, as they are for the API. A user message with
    results becomes one `ToolMessage` for each, then a `UserMessage` with the rest of its content. A reply that has more
    than one text and its calls (thinking, redacted thinking, server tools) keeps all its blocks in
    `vendor_data["anthropic"]["content"]`, and `to_anthropic` sends them back unchanged. The first block of a result is
    its text, if it is a text block; the blocks after it are its parts. A message of role `system` becomes a system
    message at the same position. Not carried over: cache marks, and blocks of a result that are neither text nor image
    nor document (a mark replaces each).

    Raises `InvalidHistory` with the index of a message that has an unknown role, part or a wrongly typed field.
    """
    if isinstance(messages, Mapping):
        if "messages" not in messages:
            raise InvalidHistory(
                0, "a dictionary without messages; pass a list of messages, or the dictionary that to_anthropic makes"
            )
        system = messages.get("system") if system is None else system
        messages = list_at(0, messages.get("messages"), "messages")
    found: list[Message] = []
    if system:
        found.append(SystemMessage(text=_instructions(system)))
    ids = IncomingIds()
    # The blocks, with the index of their message, of the consecutive messages of the assistant.
    reply: list[tuple[int, _Block]] = []
    for index, each in enumerate(messages):
        wire = mapping_at(index, each, "a message")
        role, content = label(wire.get("role")), wire.get("content")
        if role not in {"user", "assistant", "system"}:
            raise InvalidHistory(index, f"role {role!r} is not one of user, assistant, system")
        blocks = _blocks(index, content)
        if role == "assistant":
            reply += [(index, block) for block in blocks]
            if index + 1 == len(messages) or not _is_reply(messages[index + 1]):
                found.append(_assistant_back(reply, ids))
                reply = []
        elif content is None or isinstance(content, str):
            text = content or ""
            found.append(UserMessage(content=text) if role == "user" else SystemMessage(text=text))
        elif role == "system":
            found.append(SystemMessage(text=_text_of(blocks)))
        else:
            found += _user_back(index, blocks, ids)
    return found


def _is_reply(message: object) -> bool:
    return isinstance(message, Mapping) and cast("Mapping[str, Any]", message).get("role") == "assistant"


def _blocks(index: int, content: object) -> list[_Block]:
    if content is None or isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, Sequence):
        raise InvalidHistory(index, f"content must be text or blocks, not {type(content).__name__}")
    return [_block_at(index, block) for block in cast("Sequence[Any]", content)]


def _instructions(system: object) -> str:
    if isinstance(system, str):
        return system
    blocks = [mapping_at(0, block, "a block of system") for block in list_at(0, system, "system")]
    return "\n\n".join(text_at(0, block.get("text"), "a block's text") for block in blocks)


def _block_at(index: int, value: object) -> _Block:
    block = mapping_at(index, value, "a block")
    if not isinstance(block.get("type"), str):
        raise InvalidHistory(index, f"the type of a block must be text, not {label(block.get('type'))!r}")
    if block["type"] == "text":
        text_at(index, block.get("text"), "a block's text")
    return {name: each for name, each in block.items() if name != "cache_control"}


def _text_of(blocks: Sequence[Mapping[str, Any]]) -> str:
    return "".join(str(block.get("text") or "") for block in blocks if block.get("type") == "text")


def _assistant_back(reply: Sequence[tuple[int, Mapping[str, Any]]], ids: IncomingIds) -> AssistantMessage:
    plain = True
    thoughts: list[str] = []
    for position, (index, block) in enumerate(reply):
        kind = block.get("type")
        if kind == "thinking":
            thoughts.append(text_at(index, block.get("thinking"), "thinking"))
        plain = plain and (kind == "tool_use" or (kind == "text" and position == 0 and len(block) == 2))
    return AssistantMessage(
        text=_text_of([block for _, block in reply]),
        tool_calls=ids.calls(_call_back(index, block) for index, block in reply if block.get("type") == "tool_use"),
        reasoning="\n\n".join(each for each in thoughts if each),
        vendor_data=None if plain else {_VENDOR: {"content": [_kept(index, block) for index, block in reply]}},
    )


def _call_back(index: int, block: Mapping[str, Any]) -> tuple[str, str, str]:
    return (
        text_at(index, block.get("id"), "a tool_use's id"),
        text_at(index, block.get("name"), "a tool_use's name"),
        arguments_text(index, mapping_at(index, block.get("input") or {}, "a tool_use's input")),
    )


def _kept(index: int, block: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a block that every store can write: a call has its arguments as text, where they cannot be written."""
    if block.get("type") == "tool_use":
        try:
            orjson.dumps(block)
        except TypeError:
            block = {**block, "input": {MALFORMED: arguments_text(index, block.get("input"))}}
    return storable(index, block)


def _user_back(index: int, blocks: Sequence[Mapping[str, Any]], ids: IncomingIds) -> list[Message]:
    results: list[Message] = []
    parts: list[Part] = []
    for block in blocks:
        if block.get("type") != "tool_result":
            parts.append(_part_back(index, block))
            continue
        call_id, name = ids.result(text_at(index, block.get("tool_use_id"), "tool_use_id"))
        text, beside = _result_back(index, block.get("content"))
        results.append(
            ToolMessage(call_id=call_id, name=name, content=text, parts=beside, is_error=bool(block.get("is_error")))
        )
    if len(parts) == 1 and results and isinstance(parts[0], TextPart):
        return [*results, UserMessage(content=parts[0].text)]
    return [*results, UserMessage(content=tuple(parts))] if parts else results


def _result_back(index: int, content: object) -> tuple[str, tuple[Part, ...]]:
    if not isinstance(content, Sequence) or isinstance(content, str):
        return text_at(index, content, "a tool_result's content"), ()
    parts = [_result_part(index, _block_at(index, block)) for block in cast("Sequence[Any]", content)]
    if parts and isinstance(parts[0], TextPart):
        return parts[0].text, tuple(parts[1:])
    return "", tuple(parts)


def _result_part(index: int, block: _Block) -> Part:
    kind, source = block.get("type"), block.get("source")
    known = isinstance(source, Mapping) and label(cast("Mapping[str, Any]", source).get("type")) in _SOURCES
    return _part_back(index, block) if kind == "text" or known else TextPart(text=f"[{kind}]")


def _part_back(index: int, block: Mapping[str, Any]) -> Part:
    kind = block.get("type")
    if kind == "text":
        return TextPart(text=text_at(index, block.get("text"), "a block's text"))
    if kind not in {"image", "document"}:
        raise InvalidHistory(index, f"a block of type {kind!r} is not one of text, image, document, tool_result")
    source = mapping_at(index, block.get("source"), f"the source of a {kind}")
    media_type = text_at(index, source.get("media_type"), "media_type")
    if source.get("type") == "url":
        url = text_at(index, source.get("url"), "a source's url")
        media_type = _PDF  # of a document; an image keeps none
    elif source.get("type") == "base64":
        url = data_url(media_type or _UNKNOWN_TYPE, text_at(index, source.get("data"), "a source's data"))
    elif source.get("type") == "text":
        text = text_at(index, source.get("data"), "a source's data")
        url = data_url(media_type, base64.b64encode(text.encode("utf-8", "replace")).decode())
    else:
        raise InvalidHistory(index, f"a source of type {source.get('type')!r} is not one of base64, url, text")
    if kind == "image":
        return ImagePart(url=url)
    context = block.get("context")
    if isinstance(context, str) and _MEDIA_TYPE.fullmatch(context):
        media_type = context
        if source.get("type") == "text":
            url = data_url(context, url.partition(",")[2])
    return FilePart(
        url=url, media_type=media_type or _UNKNOWN_TYPE, name=text_at(index, block.get("title"), "a document's title")
    )
