"""The conversion of messages to items of the OpenAI Responses API and back.

In this dialect a conversation is a flat list of items, and calls, results and reasoning are items of their own. Pure:
no SDK, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

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
from ._openai import FAILURE, parsable
from .response_items import Item, is_reply_item, read_reply, restored_items
from .wire import IncomingIds, OutgoingIds, data_url, label, legal_name, mapping_at, split_data_url, storable, text_at

_MAX_ID_CHARS = 64  # characters; the API refuses a longer call_id
_UNKNOWN_TYPE = "application/octet-stream"
_KEY = "responses"

_Sent: TypeAlias = dict[tuple[str, ...], list[Sequence[Item]]]  # the kept items that are on the wire, by their ids


def _legal_id(wire_id: str) -> str:
    return wire_id[:_MAX_ID_CHARS]


# --------------------------------------------------------------------------------------------------- out


def to_openai_responses(
    messages: Iterable[Message], *, vendor: str = "openai", valid_arguments: bool = False, reasoning: bool = True
) -> list[dict[str, Any]]:
    """Return the transcript as the `input` of the Responses API: a flat list of items, in order.

    A reply becomes its items as the model gave them, where `vendor_data[vendor]` has them: reasoning unchanged and
    before the item that it led to, each message and call with the id of its item. Otherwise a reply becomes its text,
    then its calls. Ids of calls follow the same rule as in `to_openai`, and have at most 64 characters. A result with
    parts becomes a list of content. Reasoning at the end of a reply is left out, since the API refuses reasoning that
    leads to nothing. A reply that occurs twice has its items only the first time, since the API accepts each id once.
    `valid_arguments` is as in `to_openai`. Without `reasoning`, for models that refuse it, a reply that had reasoning
    becomes its text and its calls. Not carried over: message ids, `is_error` of a result whose content is not a
    `{"ok": false}` object, reasoning text without its items, the media type of a file with an `http(s):` URL.

    The dictionaries are fresh, except for kept reasoning; nothing is validated (see `toolbus.core.transcript`).
    """
    ids = OutgoingIds(_legal_id)
    sent: _Sent = {}
    wire: list[dict[str, Any]] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            wire.append(_result(message, ids))
        elif isinstance(message, AssistantMessage):
            kept = _kept(message, vendor, reasoning=reasoning)
            wire += _assistant(message, ids, sent, kept, valid_arguments=valid_arguments)
        elif isinstance(message, UserMessage):
            content = message.content
            parts = content if isinstance(content, str) else [_part(part) for part in content]
            wire.append({"role": "user", "content": parts})
        else:
            wire.append({"role": "system", "content": message.text})
    return wire


def _kept(message: AssistantMessage, vendor: str, *, reasoning: bool) -> Sequence[Item]:
    """Return the items of a reply, or none if its reasoning is not sent: the API would refuse their ids without it."""
    vendor_data: Mapping[str, Any] = (message.vendor_data or {}).get(vendor) or {}
    kept: Sequence[Item] = vendor_data.get(_KEY) or ()
    return kept if reasoning or all(item.get("type") != "reasoning" for item in kept) else ()


def _assistant(
    message: AssistantMessage, ids: OutgoingIds, sent: _Sent, kept: Sequence[Item], *, valid_arguments: bool
) -> list[Item]:
    calls: list[Item] = [
        {
            "type": "function_call",
            "call_id": ids.call(call.call_id, call.provider_call_id),
            "name": legal_name(call.name),
            "arguments": (parsable(call.arguments) if valid_arguments else call.arguments) or "{}",
        }
        for call in message.tool_calls
    ]
    # Equal ids do not prove that a reply occurs twice, since some servers number the items of each reply anew.
    ids_of_items = tuple(str(item.get("id") or "") for item in kept)
    same_ids = sent.setdefault(ids_of_items, [])
    twice = any(ids_of_items) and kept in same_ids
    restored = restored_items(kept, message.text, calls) if kept and not twice else None
    if restored is not None:
        same_ids.append(kept)
        return restored
    # The API does not need a type here, but llama.cpp's converter does: "Cannot determine type of 'item'" (#26394).
    said: Item = {"type": "message", "role": "assistant", "content": message.text}
    return [said, *calls] if message.text or not calls else calls


def _result(message: ToolMessage, ids: OutgoingIds) -> Item:
    output: str | list[dict[str, Any]] = message.content
    if message.parts:
        output = [_part(part) for part in message.parts]
        # Empty text is left out, unless `from_openai_responses` would then read the first part as the text.
        if message.content or isinstance(message.parts[0], TextPart):
            output.insert(0, {"type": "input_text", "text": message.content})
    return {"type": "function_call_output", "call_id": ids.result(message.call_id), "output": output}


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, ImagePart):
        return {"type": "input_image", "image_url": part.url, "detail": "auto"}
    field = "file_data" if split_data_url(part.url) else "file_url"
    return {"type": "input_file", field: part.url, **({"filename": part.name} if part.name else {})}


# -------------------------------------------------------------------------------------------------- back


def from_openai_responses(items: Sequence[Mapping[str, Any]], *, vendor: str = "openai") -> list[Message]:
    """Return the messages that items of the Responses API represent: an `input`, an `output`, or both in a row.

    Consecutive items of the model are one reply: reasoning, a message, calls. A second message, or any item but a call
    after a message without calls, begins a new reply, so consecutive replies stay separate; but a reply without text
    and the one before it become one. Where the items of a reply contain more than its text and calls (ids, reasoning,
    tools that run at the vendor), they are kept in `vendor_data[vendor]` for `to_openai_responses`. Ids and `is_error`
    are read as in `from_openai`.

    Raises `InvalidHistory` with the index of an item that has an unknown role or part or a wrongly typed field, or
    that refers to data on the server (`item_reference`, `file_id`).
    """
    ids = IncomingIds()
    found: list[Message] = []
    reply: list[Mapping[str, Any]] = []
    kinds = set[Any]()  # of the items of the reply
    for index, each in enumerate(items):
        item = mapping_at(index, each, "an item")
        text_at(index, item.get("type"), "an item's type")
        kind = item.get("type", "message")
        begins_anew = "message" in kinds and "function_call" not in kinds and kind != "function_call"
        if reply and (not is_reply_item(item) or begins_anew):
            found.append(_reply_back(index - 1, reply, ids, vendor))
            reply, kinds = [], set[Any]()
        if is_reply_item(item):
            reply.append(item)
            kinds.add(kind)
        elif item.get("type") == "function_call_output":
            found.append(_result_back(index, item, ids))
        else:
            found.append(_message_back(index, item))
    if reply:
        found.append(_reply_back(len(items) - 1, reply, ids, vendor))
    return found


def _reply_back(index: int, items: Sequence[Mapping[str, Any]], ids: IncomingIds, vendor: str) -> AssistantMessage:
    reply = read_reply(items, index)
    return AssistantMessage(
        text=reply.text,
        tool_calls=ids.calls((call.wire_id, call.name, call.arguments) for call in reply.calls),
        reasoning=reply.reasoning,
        vendor_data={vendor: {_KEY: storable(index, reply.kept)}} if reply.kept else None,
    )


def _message_back(index: int, item: Mapping[str, Any]) -> Message:
    role = label(item.get("role"))
    content = item.get("content")
    if item.get("type") == "item_reference":
        raise InvalidHistory(index, "an item_reference refers to data on the server; pass the item itself")
    if role not in {"system", "developer", "user"}:
        raise InvalidHistory(index, f"role {role!r} is not one of system, developer, user, assistant")
    if not isinstance(content, Sequence) or isinstance(content, str):
        text = text_at(index, content, "content")
        return UserMessage(content=text) if role == "user" else SystemMessage(text=text)
    parts = _parts_back(index, cast("Sequence[Any]", content))
    if role == "user":
        return UserMessage(content=parts)
    return SystemMessage(text="".join(part.text for part in parts if isinstance(part, TextPart)))


def _result_back(index: int, item: Mapping[str, Any], ids: IncomingIds) -> ToolMessage:
    call_id, name = ids.result(text_at(index, item.get("call_id"), "call_id"))
    output, parts, content = item.get("output"), (), ""
    if isinstance(output, Sequence) and not isinstance(output, str):
        parts = _parts_back(index, cast("Sequence[Any]", output))
        if parts and isinstance(parts[0], TextPart):
            content, parts = parts[0].text, parts[1:]
    else:
        content = text_at(index, output, "output")
    return ToolMessage(
        call_id=call_id,
        name=name or text_at(index, item.get("name"), "name"),
        content=content,
        parts=parts,
        is_error=content.startswith(FAILURE),
    )


def _parts_back(index: int, content: Sequence[Any]) -> tuple[Part, ...]:
    return tuple(_part_back(index, mapping_at(index, part, "a part")) for part in content)


def _part_back(index: int, part: Mapping[str, Any]) -> Part:
    kind = label(part.get("type"))
    if kind in {"input_text", "text", "output_text"}:
        return TextPart(text=text_at(index, part.get("text"), "a part's text"))
    if kind == "input_image":
        if url := text_at(index, part.get("image_url"), "image_url"):
            return ImagePart(url=url)
        raise InvalidHistory(index, "an image needs image_url; an image that has only a file_id cannot be carried")
    if kind == "input_file":
        name = text_at(index, part.get("filename"), "filename")
        if url := text_at(index, part.get("file_url"), "file_url"):
            return FilePart(url=url, media_type=_UNKNOWN_TYPE, name=name)
        if data := text_at(index, part.get("file_data"), "file_data"):
            inline = split_data_url(data)
            url = data if inline else data_url(_UNKNOWN_TYPE, data)
            return FilePart(url=url, media_type=inline[0] if inline else _UNKNOWN_TYPE, name=name)
        raise InvalidHistory(
            index, "a file needs file_data or file_url; a file that has only a file_id cannot be carried"
        )
    raise InvalidHistory(index, f"a part of type {kind!r} is not one of input_text, input_image, input_file")
