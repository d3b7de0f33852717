"""The conversion of messages to those of Vercel's AI SDK and back.

The SDK has messages for models (`ModelMessage`, in version 4 `CoreMessage`) and messages for pages (`UIMessage`). This
module reads and writes the former, as they are since version 5; `_vercel_core` converts those of version 4 from and to
this form, and `_vercel_ui` those for pages. Pure: no SDK, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import orjson

from ..errors import InvalidHistory
from ..schemas import has_many_values
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
from ._openai import FAILURE
from ._vercel_core import current_part, file_url, to_core
from ._vercel_ui import from_ui, is_content, is_only_shown, to_ui
from .wire import (
    IncomingIds,
    OutgoingIds,
    arguments_object,
    arguments_text,
    json_text,
    label,
    list_at,
    mapping_at,
    split_data_url,
    storable,
    text_at,
    written,
)

VercelForm: TypeAlias = Literal["model", "core", "ui"]
"""The messages of Vercel's AI SDK for models since version 5, for models in version 4, or for pages since version 5."""

_VENDOR = "vercel"
_Wire: TypeAlias = dict[str, Any]

# The fields of the parts that a reply expresses by itself, in their order. A reply with other parts keeps all of them.
_PLAIN = {
    "reasoning": {"type", "text"},
    "text": {"type", "text"},
    "tool-call": {"type", "toolCallId", "toolName", "input"},
}
_KEPT = ("file", "reasoning-file", "custom", "tool-result")
_OUTPUTS = ("text", "json", "error-text", "error-json", "execution-denied", "content")
_OF_RESULTS = {  # the types of files in results, with the field of their data
    **dict.fromkeys(("image-data", "file-data", "media", "image", "file"), "data"),
    **dict.fromkeys(("image-url", "file-url"), "url"),
}
_APPROVALS = ("tool-approval-request", "tool-approval-response")


# --------------------------------------------------------------------------------------------------- out


def to_vercel(messages: Iterable[Message], *, form: VercelForm = "model") -> list[dict[str, Any]]:
    """Return the transcript as messages of Vercel's AI SDK.

    "model" are the `ModelMessage`s of version 5 and later (images and files in results need version 6), and "core" the
    `CoreMessage`s of version 4: one dictionary for each message, except that the results of a round are one. "ui" are
    the `UIMessage`s of version 5 and later: a reply with its calls, their results, and the replies after them are one
    message, whose `id` is the `message_id` of its first message, or without one its position.

    A result that is the shortest JSON of an object or a list becomes that value, so that a page can show its fields;
    other results are text. Argument text that is not a JSON object becomes an object that quotes it. Ids follow the
    same rule as in `to_openai`. The parts of a reply that `from_vercel` kept are written back as far as the form has
    them. Not carried over: message ids in the forms for models, `is_error` of a result with images or files whose text
    is not a `{"ok": false}` object.

    The dictionaries are fresh, except for kept parts; nothing is validated (see `toolbus.core.transcript`).
    """
    ids = OutgoingIds(str)
    wire: list[_Wire] = []
    message_ids: list[str] = []
    for message in messages:
        content: Any
        if isinstance(message, ToolMessage):
            if wire and wire[-1]["role"] == "tool":
                wire[-1]["content"].append(_result(message, ids))
                continue
            content = [_result(message, ids)]
        elif isinstance(message, SystemMessage):
            content = message.text
        elif isinstance(message, AssistantMessage):
            parts = [part for part in _reply(message, ids) if form == "ui" or not is_only_shown(part["type"])]
            plain = not parts or parts == [{"type": "text", "text": message.text}]
            content = message.text if plain else parts
        else:
            content = message.content if isinstance(message.content, str) else [_part(part) for part in message.content]
        wire.append({"role": message.role, "content": content})
        message_ids.append(message.message_id)
    return to_ui(wire, message_ids) if form == "ui" else to_core(wire) if form == "core" else wire


def _reply(message: AssistantMessage, ids: OutgoingIds) -> list[_Wire]:
    calls: list[_Wire] = [
        {
            "type": "tool-call",
            "toolCallId": ids.call(call.call_id, call.provider_call_id),
            "toolName": call.name,
            "input": arguments_object(call.arguments),
        }
        for call in message.tool_calls
    ]
    data: Mapping[str, Any] = (message.vendor_data or {}).get(_VENDOR) or {}
    kept: list[_Wire] = data.get("content") or []
    own = [part for part, is_own in _own_calls(kept) if is_own]
    same_calls = [part["toolName"] for part in own] == [call["toolName"] for call in calls]
    text = "".join(part.get("text") or "" for part in kept if part["type"] == "text")
    if kept and same_calls and text == message.text:
        fresh = iter(calls)
        return [{**part, **next(fresh)} if is_own else part for part, is_own in _own_calls(kept)]
    # The message comes from another vendor, or was edited since.
    reasoning = [part for part in kept if part["type"] == "reasoning"]
    if not reasoning and message.reasoning:
        reasoning = [{"type": "reasoning", "text": message.reasoning}]
    said = [{"type": "text", "text": message.text}] if message.text else []
    return [*reasoning, *said, *calls]


def _result(message: ToolMessage, ids: OutgoingIds) -> _Wire:
    parts = (TextPart(text=message.content), *message.parts)
    output: _Wire = {"type": "content", "value": [_result_part(part) for part in parts]}
    if not message.parts:
        value = _value(message.content)
        kind = "text" if isinstance(value, str) else "json"
        output = {"type": f"error-{kind}" if message.is_error else kind, "value": value}
    wire_id = ids.result(message.call_id)
    return {"type": "tool-result", "toolCallId": wire_id, "toolName": message.name, "output": output}


def _value(content: str) -> object:
    """Return the object or the list of which a text is the shortest JSON; any other text unchanged.

    An object that a page would take for the parts of a result stays text.
    """
    if content[:1] not in {"{", "["} or has_many_values(data := content.encode("utf-8", "surrogatepass")):
        return content
    try:
        value = orjson.loads(data)
        return value if written(value) == data and not is_content(value) else content
    except (TypeError, ValueError):
        return content


def _part(part: Part) -> _Wire:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, ImagePart):
        return {"type": "image", "image": part.url}
    name = {"filename": part.name} if part.name else {}
    return {"type": "file", "data": part.url, "mediaType": part.media_type, **name}


def _result_part(part: Part) -> _Wire:
    """Return a part of a result. A result has types of its own for what is in the message, and for what is at a URL."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    kind = "image" if isinstance(part, ImagePart) else "file"
    inline = split_data_url(part.url)
    media_type = part.media_type if isinstance(part, FilePart) else inline[0] if inline else ""
    more = {"mediaType": media_type, "filename": part.name if isinstance(part, FilePart) else ""}
    about = {name: value for name, value in more.items() if value}
    if inline:
        return {"type": f"{kind}-data", "data": inline[1], **about}
    return {"type": f"{kind}-url", "url": part.url, **about}


# -------------------------------------------------------------------------------------------------- back


def from_vercel(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages that messages of Vercel's AI SDK represent.

    Each may be a message for models (`ModelMessage` of version 5 and later, `CoreMessage` of version 4) or one for
    pages (`UIMessage` of version 4 and later), which becomes a reply and its results for each step. A call without a
    result stays without one, even if a person has approved it. Ids are read as in `from_openai`. A JSON result becomes
    its shortest text; a refused call, an error. A reply that has more than its reasoning, one text and its calls
    (files, sources, signatures, tools that the vendor runs, data for a page) keeps all its parts in
    `vendor_data["vercel"]["content"]`, and only `to_vercel` writes them back.

    Not carried over: ids, metadata and provider options of messages, requests and decisions of approval, provider
    options of what is not a reply, the state of streaming, the name of an image.

    Raises `InvalidHistory` with the index of a message that has an unknown role or a wrongly typed field; for a part of
    an unknown type, and for a file that only a vendor's id names, the text has the path of the part.
    """
    ids = IncomingIds()
    found: list[Message] = []
    for index, each in enumerate(messages):
        wire = mapping_at(index, each, "a message")
        for one in (wire,) if wire.get("parts") is None else from_ui(index, wire):
            found += _back(index, one, ids)
    return found


def _back(index: int, wire: Mapping[str, Any], ids: IncomingIds) -> list[Message]:
    role, content = label(wire.get("role")), wire.get("content")
    if role == "system":
        return [SystemMessage(text=_joined(index, [part for _, part in _parts(index, content)], "text"))]
    if role == "user":
        files = list_at(index, wire.get("experimental_attachments"), "experimental_attachments")
        if not files and (content is None or isinstance(content, str)):
            return [UserMessage(content=content or "")]
        said = [_part_back(index, path, part) for path, part in _parts(index, content)]
        for each in files:  # version 4 has the files of a page beside its text
            file = mapping_at(index, each, "a file")
            said.append(_file_back(index, "a file", file.get("url"), file.get("contentType"), file.get("name")))
        return [UserMessage(content=tuple(said))]
    if role == "assistant":
        if "toolInvocations" in wire and "parts" not in wire:
            raise InvalidHistory(index, "toolInvocations beside a content have no order; pass the parts of the message")
        return [_reply_back(index, wire, ids)]
    if role == "tool":
        return _results_back(index, wire, ids)
    raise InvalidHistory(index, f"role {role!r} is not one of system, user, assistant, tool")


def _parts(index: int, content: object) -> Iterator[tuple[str, _Wire]]:
    """Yield the parts of a content, in the form of version 5 and later, each with its path."""
    if content is None or isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    for position, part in enumerate(list_at(index, content, "content")):
        yield f"content[{position}]", current_part(index, mapping_at(index, part, "a part"))


def _unknown(index: int, path: str, part: Mapping[str, Any], known: Iterable[str]) -> InvalidHistory:
    return InvalidHistory(index, f"{path} is a part of type {label(part.get('type'))!r}, not one of {', '.join(known)}")


def _reply_back(index: int, wire: Mapping[str, Any], ids: IncomingIds) -> AssistantMessage:
    parts: list[_Wire] = []
    for path, part in _parts(index, wire.get("content")):
        kind = label(part.get("type")) or ""
        if kind not in _PLAIN and kind not in _KEPT and kind not in _APPROVALS and not is_only_shown(kind):
            raise _unknown(index, path, part, (*_PLAIN, *_KEPT, *_APPROVALS))
        if kind not in _APPROVALS and part != {"type": "text", "text": ""}:
            parts.append(part)
    given = [mapping_at(index, each, "a tool call") for each in list_at(index, wire.get("tool_calls"), "tool_calls")]
    parts += [current_part(index, {**each, "type": "tool-call"}) for each in given]
    kinds = [part["type"] for part in parts]
    order = [kind for kind in _PLAIN for each in kinds if each == kind]
    plain = kinds == order and max(kinds.count("reasoning"), kinds.count("text")) < 2
    plain = plain and all(set(part) == _PLAIN[part["type"]] for part in parts)
    return AssistantMessage(
        text=_joined(index, parts, "text"),
        tool_calls=ids.calls(_call_back(index, part) for part, is_own in _own_calls(parts) if is_own),
        reasoning=_joined(index, parts, "reasoning", "\n\n"),
        vendor_data=None if plain else {_VENDOR: {"content": storable(index, parts)}},
    )


def _joined(index: int, parts: Iterable[Mapping[str, Any]], kind: str, between: str = "") -> str:
    texts = (text_at(index, part.get("text"), "a part's text") for part in parts if part.get("type") == kind)
    return between.join(text for text in texts if text)


def _own_calls(parts: Sequence[_Wire]) -> Iterator[tuple[_Wire, bool]]:
    """Yield the parts of a reply, each with whether it is a call of a tool that the vendor does not run itself.

    The vendor has run a call that says so, or whose result is in the reply.
    """
    answered = {label(part.get("toolCallId")) for part in parts if part["type"] == "tool-result"}
    for part in parts:
        by_vendor = part.get("providerExecuted") is True or label(part.get("toolCallId")) in answered
        yield part, part["type"] == "tool-call" and not by_vendor


def _call_back(index: int, part: Mapping[str, Any]) -> tuple[str, str, str]:
    return (
        text_at(index, part.get("toolCallId"), "a toolCallId"),
        text_at(index, part.get("toolName"), "a toolName"),
        arguments_text(index, part.get("input"), "the input of a call"),
    )


def _results_back(index: int, wire: Mapping[str, Any], ids: IncomingIds) -> list[Message]:
    content = wire.get("content")
    if content is None or isinstance(content, str):
        about = {
            "toolCallId": wire.get("tool_call_id") or wire.get("toolCallId"),
            "toolName": wire.get("name") or wire.get("toolName"),
        }
        return [_result_back(index, "content", {**about, "output": {"type": "text", "value": content}}, ids)]
    found: list[Message] = []
    for path, part in _parts(index, content):
        if part.get("type") == "tool-result":
            found.append(_result_back(index, path, part, ids))
        elif part.get("type") not in _APPROVALS:
            raise _unknown(index, path, part, ("tool-result", *_APPROVALS))
    return found


def _result_back(index: int, path: str, part: Mapping[str, Any], ids: IncomingIds) -> ToolMessage:
    call_id, name = ids.result(text_at(index, part.get("toolCallId"), "a toolCallId"))
    output = mapping_at(index, part.get("output"), "the output of a result")
    kind, value = label(output.get("type")) or "", output.get("value")
    parts: list[Part] = []
    content = ""
    if kind == "content":
        for at, item in enumerate(list_at(index, value, "the output of a result")):
            parts.append(_result_part_back(index, f"{path}.output[{at}]", mapping_at(index, item, "a part")))
        if parts and isinstance(parts[0], TextPart):
            content = parts[0].text
            del parts[0]
    elif kind == "execution-denied":
        reason = text_at(index, output.get("reason"), "a reason")
        content = f"The call was denied{f': {reason}' if reason else '.'}"
    elif kind in {"text", "error-text"} or (kind in {"json", "error-json"} and isinstance(value, str)):
        content = text_at(index, value, "the output of a result")
    elif kind in {"json", "error-json"}:
        content = json_text(index, value, "the values of a result")
    else:
        raise _unknown(index, f"{path}.output", output, _OUTPUTS)
    return ToolMessage(
        call_id=call_id,
        name=name or text_at(index, part.get("toolName"), "a toolName"),
        content=content,
        parts=tuple(parts),
        is_error=kind in {"error-text", "error-json", "execution-denied"} or content.startswith(FAILURE),
    )


def _result_part_back(index: int, path: str, part: Mapping[str, Any]) -> Part:
    kind = label(part.get("type"))
    if kind == "text":
        return TextPart(text=text_at(index, part.get("text"), "a part's text"))
    if kind not in _OF_RESULTS:
        raise _unknown(index, path, part, ("text", *_OF_RESULTS))
    media_type = part.get("mediaType") or part.get("mimeType") or ("image/*" if "image" in kind else "")
    return _file_back(index, path, part.get(_OF_RESULTS[kind]), media_type, part.get("filename"))


def _part_back(index: int, path: str, part: Mapping[str, Any]) -> Part:
    kind = part.get("type")
    if kind == "text":
        return TextPart(text=text_at(index, part.get("text"), "a part's text"))
    if kind == "image":
        return _file_back(index, path, part.get("image"), part.get("mediaType") or "image/*", "")
    if kind == "file":
        return _file_back(index, path, part.get("data"), part.get("mediaType"), part.get("filename"))
    raise _unknown(index, path, part, ("text", "image", "file"))


def _file_back(index: int, path: str, data: object, media_type: object, name: object) -> Part:
    said = text_at(index, media_type, "a media type")
    url = file_url(data, said)
    if not url:
        raise InvalidHistory(index, f"{path} has neither a URL nor base64; other files cannot be carried")
    if said.partition("/")[0] == "image":
        return ImagePart(url=url)
    inline = split_data_url(url)
    exact = said if "/" in said and not said.endswith("*") else inline[0] if inline else "application/octet-stream"
    return FilePart(url=url, media_type=exact, name=text_at(index, name, "a filename"))
