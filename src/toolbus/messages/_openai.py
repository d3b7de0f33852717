"""The conversion of messages to OpenAI chat-completions dictionaries and back.

The dialect is that of OpenAI and of the servers that imitate its chat completions. Pure: no SDK, no I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import orjson

from ..errors import InvalidHistory
from ..records import replace
from ._mistral import in_mistrals_order, mistral_id
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
    label,
    legal_name,
    list_at,
    mapping_at,
    split_data_url,
    storable,
    text_at,
)

_AUDIO_FORMATS = {"audio/wav": "wav", "audio/mpeg": "mp3"}  # the only two that chat completions accept
_AUDIO_TYPES = {name: media_type for media_type, name in _AUDIO_FORMATS.items()}
_KNOWN = frozenset({"role", "content", "refusal", "tool_calls", "reasoning_content", "reasoning"})
# characters: "Invalid 'messages[2].tool_calls[0].id': string too long". Other vendors' ids are longer.
_MAX_ID_CHARS = 40
# Kimi's models read the ids in the history, and many of their replies are empty if these have another form.
_KIMIS_ID = re.compile(r"functions\.[a-zA-Z0-9_-]{1,64}:\d{1,6}")
_KNOWN_IN_CALL = frozenset({"id", "type", "function", "index"})
_DETAILS = "reasoning_details"  # the field in which OpenRouter returns reasoning with its signatures
_ATTACHED = re.compile(r"\[Result (\d{1,6}) above, of call .*, came with (\d{1,6}) attachments?:\]", re.DOTALL)
_NONE_ATTACHED = "[No attachments came with the results above.]"

FAILURE = '{"ok":false'
"""The beginning of a failure as `toolbus.tool_results` writes it; OpenAI's dialects have no field for a failure."""


def _legal_id(wire_id: str) -> str:
    return wire_id[:_MAX_ID_CHARS]


def _compatible_id(wire_id: str) -> str:
    return wire_id if _KIMIS_ID.fullmatch(wire_id) else _legal_id(wire_id)


# --------------------------------------------------------------------------------------------------- out


def to_openai(
    messages: Iterable[Message],
    *,
    vendor: str = "openai",
    reasoning_field: str | None = None,
    valid_arguments: bool = False,
    mistral_checks: bool = False,
    model: str | None = None,
) -> list[dict[str, Any]]:
    """Return the transcript as chat-completions messages, one dictionary for each message, in order.

    Tool messages of chat completions can hold only text. So the images and files of results are sent in a user message
    of their own, directly after all results of the round, where a line of text names the result that each belongs to;
    `from_openai` reads this message back. A message of the user that looks like such a message gets one in front of it
    that says that no attachments came.

    On the wire, a call has its `provider_call_id` where that is neither empty nor taken by an earlier call nor longer
    than 40 characters, and otherwise its `call_id`; its result has the same id. Characters in names that the API
    refuses are replaced. The extra fields in `vendor_data[vendor]` are merged back. Reasoning is left out, as OpenAI
    requires, unless `reasoning_field` names a field for it ("reasoning_content" for servers that ask for it back).
    `valid_arguments` replaces argument text that is not a JSON object by an object that quotes it, for servers that
    parse the history and refuse it otherwise; Kimi's ids ("functions.NAME:3") may be longer there. `mistral_checks`
    satisfies the checks of Mistral's API: an id has nine letters and digits, a short reply stands between results and a
    message that is not a reply, and a system message that is not at the start becomes `<system>` text of the user. With
    `model`, `reasoning_details` of another model, which OpenRouter needs back, are left out.

    Not carried over: message ids, `is_error` of a result whose content is not a `{"ok": false}` object, the media type
    of a file with an `http(s):` URL.

    The dictionaries are fresh; nothing is validated (see `toolbus.core.transcript`).
    """
    ids = OutgoingIds(mistral_id if mistral_checks else _compatible_id if valid_arguments else _legal_id)
    wire: list[dict[str, Any]] = []
    # The results of the round, until another message comes after them.
    results: list[tuple[str, tuple[Part, ...]]] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            wire_id = ids.result(message.call_id)
            wire.append({"role": "tool", "tool_call_id": wire_id, "content": message.content})
            results.append((wire_id, message.parts))
            continue
        attached = _attachments(results)
        wire += attached
        if isinstance(message, AssistantMessage):
            kept = _kept(message, vendor, model)
            wire.append(_assistant(message, ids, kept, reasoning_field, valid_arguments=valid_arguments))
        elif isinstance(message, UserMessage):
            wire += _user(message, [] if attached else [wire_id for wire_id, _ in results])
        else:
            wire.append({"role": "system", "content": message.text})
        results = []
    wire += _attachments(results)
    return list(in_mistrals_order(wire)) if mistral_checks else wire


def _user(message: UserMessage, bare_results: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a message of the user. `bare_results` are the ids of the results before it, if they have no attachments.

    A line stands between such results and a message that would be read back as their attachments.
    """
    content = message.content
    said = {"role": "user", "content": content if isinstance(content, str) else [_part(part) for part in content]}
    if bare_results and _attached(said, bare_results) is not None:
        yield {"role": "user", "content": [{"type": "text", "text": _NONE_ATTACHED}]}
    yield said


def _attachments(results: Sequence[tuple[str, Sequence[Part]]]) -> list[dict[str, Any]]:
    """Return the user message with the images and files of a round's results; empty if they have none."""
    content: list[dict[str, Any]] = []
    for position, (wire_id, parts) in enumerate(results):
        if parts:
            content += [{"type": "text", "text": _mark(position, wire_id, len(parts))}, *map(_part, parts)]
    return [{"role": "user", "content": content}] if content else []


def _mark(position: int, wire_id: str, count: int) -> str:
    """Return the line before the attachments of one result. It states their number, so that reading is unambiguous."""
    what = "1 attachment" if count == 1 else f"{count} attachments"
    return f"[Result {position + 1} above, of call {json.dumps(wire_id)}, came with {what}:]"


def _kept(message: AssistantMessage, vendor: str, model: str | None) -> Mapping[str, Any]:
    """Return the data that a vendor has to get back with a reply, without the reasoning of another model."""
    kept: Mapping[str, Any] = (message.vendor_data or {}).get(vendor) or {}
    fields: Mapping[str, Any] = kept.get("message") or {}
    if _DETAILS in fields and model and kept.get("model", model) != model:
        return {**kept, "message": {name: each for name, each in fields.items() if name != _DETAILS}}
    return kept


def _assistant(
    message: AssistantMessage,
    ids: OutgoingIds,
    kept: Mapping[str, Any],
    reasoning_field: str | None,
    *,
    valid_arguments: bool,
) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": "assistant", "content": message.text, **(kept.get("message") or {})}
    if reasoning_field and message.reasoning and _DETAILS not in wire:
        wire[reasoning_field] = message.reasoning
    if not message.tool_calls:
        return wire
    if not message.text:
        wire["content"] = None
    calls: list[dict[str, Any]] = []
    for call in message.tool_calls:
        text = parsable(call.arguments) if valid_arguments else call.arguments
        function = {"name": legal_name(call.name), "arguments": text or "{}"}
        wire_id = ids.call(call.call_id, call.provider_call_id)
        calls.append({"id": wire_id, "type": "function", "function": function})
    extras = kept.get("tool_calls") or ()
    # If the numbers differ, the calls were edited, and the extra fields can no longer be assigned to them.
    if len(extras) == len(calls):
        for each, extra in zip(calls, extras, strict=True):
            each.update(extra or {})
    wire["tool_calls"] = calls
    return wire


def parsable(arguments: str) -> str:
    """Return the argument text unchanged, or if it is not a JSON object, an object that quotes it."""
    found = arguments_object(arguments)
    return orjson.dumps(found).decode() if MALFORMED in found else arguments


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, ImagePart):
        return {"type": "image_url", "image_url": {"url": part.url}}
    audio, inline = _AUDIO_FORMATS.get(part.media_type), split_data_url(part.url)
    if audio and inline and not part.name:
        return {"type": "input_audio", "input_audio": {"data": inline[1], "format": audio}}
    file = {"file_data": part.url}
    if part.name:
        file["filename"] = part.name
    return {"type": "file", "file": file}


# -------------------------------------------------------------------------------------------------- back


def from_openai(messages: Sequence[Mapping[str, Any]], *, vendor: str = "openai") -> list[Message]:
    """Return the messages that chat-completions dictionaries represent.

    A call's `call_id` and `provider_call_id` are its wire id; where that is empty or repeated, the `call_id` gets a
    suffix that makes it unique, and results are paired by position. `developer` counts as `system`. A tool message
    takes its name from its call; `is_error` is true for content that is toolbus's own `{"ok":false,...}`. Its `parts`
    are the images and files in its content, and those that `to_openai` sent after the round. Fields of an assistant
    message that toolbus does not know are kept in `vendor_data[vendor]` for `to_openai`, integers over 64 bits as
    floats.

    Raises `InvalidHistory` with the index of a message that has an unknown role or a wrongly typed field. Orphans
    and missing results are not detected here (see `toolbus.core.transcript`).
    """
    ids = IncomingIds()
    found: list[Message] = []
    # The wire ids of the round's results, until another message comes after them.
    results: list[str] = []
    for index, each in enumerate(messages):
        wire = mapping_at(index, each, "a message")
        role = label(wire.get("role"))
        if role == "tool":
            results.append(text_at(index, wire.get("tool_call_id"), "tool_call_id"))
            found.append(_result_back(index, wire, ids))
            continue
        attached = _attached(wire, results) if results and role == "user" else None
        results, answered = [], len(results)
        if attached is not None:
            for position, parts in attached.items():
                at = len(found) - answered + position
                result = cast("ToolMessage", found[at])
                found[at] = replace(result, parts=result.parts + tuple(_part_back(index, part) for part in parts))
            continue
        if role in {"system", "developer"}:
            found.append(SystemMessage(text=_joined(index, wire.get("content"))))
        elif role == "user":
            found.append(UserMessage(content=_user_content(index, wire.get("content"))))
        elif role == "assistant":
            found.append(_assistant_back(index, wire, ids, vendor))
        else:
            raise InvalidHistory(index, f"role {role!r} is not one of system, developer, user, assistant, tool")
    return found


def _attached(wire: Mapping[str, Any], results: Sequence[str]) -> dict[int, list[Mapping[str, Any]]] | None:
    """Return the attachments in a user message after a round, by the position of their result.

    None stands for an ordinary message of the user. A message has attachments only if all of it is exactly as
    `to_openai` writes it for these results.
    """
    content = wire.get("content")
    if not isinstance(content, list) or len(wire) != 2:
        return None
    parts = [cast("Mapping[str, Any]", part) for part in cast("list[object]", content) if isinstance(part, Mapping)]
    if len(parts) != len(cast("list[object]", content)) or not parts:
        return None
    found: dict[int, list[Mapping[str, Any]]] = {}
    if len(parts) == 1 and parts[0] == {"type": "text", "text": _NONE_ATTACHED}:
        return found
    at, before = 0, -1
    while at < len(parts):
        text = parts[at].get("text")
        mark = _ATTACHED.fullmatch(text) if isinstance(text, str) and len(parts[at]) == 2 else None
        if not mark:
            return None
        position, count = int(mark[1]) - 1, int(mark[2])
        known = before < position < len(results) and count > 0 and text == _mark(position, results[position], count)
        found[position] = parts[at + 1 : at + 1 + count]
        if not known or len(found[position]) != count:
            return None
        at, before = at + 1 + count, position
    return found


def _result_back(index: int, wire: Mapping[str, Any], ids: IncomingIds) -> ToolMessage:
    call_id, name = ids.result(text_at(index, wire.get("tool_call_id"), "tool_call_id"))
    content, parts = wire.get("content"), ()
    if not isinstance(content, str) and isinstance(content, Sequence):
        each = [mapping_at(index, part, "a part") for part in cast("Sequence[Any]", content)]
        content = [part for part in each if part.get("type", "text") == "text"]
        parts = tuple(_part_back(index, part) for part in each if part.get("type", "text") != "text")
    text = _joined(index, content)
    return ToolMessage(
        call_id=call_id,
        name=name or str(wire.get("name") or ""),
        content=text,
        parts=parts,
        is_error=text.startswith(FAILURE),
    )


def _assistant_back(index: int, wire: Mapping[str, Any], ids: IncomingIds, vendor: str) -> AssistantMessage:
    calls = [mapping_at(index, each, "a tool call") for each in list_at(index, wire.get("tool_calls"), "tool_calls")]
    extras = [{key: value for key, value in call.items() if key not in _KNOWN_IN_CALL} or None for call in calls]
    kept: dict[str, Any] = {}
    # Replies that an SDK dumped have many empty fields, which servers refuse when they are sent back.
    if message := {key: value for key, value in wire.items() if key not in _KNOWN and value not in (None, [])}:
        kept["message"] = message
    if any(extras):
        kept["tool_calls"] = extras
    return AssistantMessage(
        text=_joined(index, wire.get("content")) or text_at(index, wire.get("refusal"), "refusal"),
        tool_calls=ids.calls(written_call(index, call) for call in calls),
        reasoning=text_at(index, wire.get("reasoning_content") or wire.get("reasoning"), "reasoning")
        or _thoughts(index, wire.get("content")),
        vendor_data={vendor: storable(index, kept)} if kept else None,
    )


def written_call(index: int, call: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the id, the name and the argument text of a call of a function: see `IncomingIds.calls`."""
    function = mapping_at(index, call.get("function"), "a tool call's function")
    return (
        text_at(index, call.get("id"), "a tool call's id"),
        text_at(index, function.get("name"), "a function's name"),
        arguments_text(index, function.get("arguments"), "a function's arguments"),
    )


def _joined(index: int, content: object) -> str:
    if isinstance(content, str) or not isinstance(content, Sequence):
        return text_at(index, content, "content")
    parts = [mapping_at(index, part, "a part") for part in cast("Sequence[Any]", content)]
    return "".join(text_at(index, part.get("text") or part.get("refusal"), "a part's text") for part in parts)


def _thoughts(index: int, content: object) -> str:
    """Return the reasoning that Mistral's models put among the parts of their content."""
    if isinstance(content, str) or not isinstance(content, Sequence):
        return ""
    parts = [mapping_at(index, part, "a part") for part in cast("Sequence[Any]", content)]
    return "".join(_joined(index, part.get("thinking")) for part in parts if part.get("type") == "thinking")


def _user_content(index: int, content: object) -> str | tuple[Part, ...]:
    if isinstance(content, str) or not isinstance(content, Sequence):
        return text_at(index, content, "content")
    return tuple(_part_back(index, mapping_at(index, part, "a part")) for part in cast("Sequence[Any]", content))


def _part_back(index: int, part: Mapping[str, Any]) -> Part:
    kind = part.get("type")
    if kind == "text":
        return TextPart(text=text_at(index, part.get("text"), "a part's text"))
    if kind == "image_url":
        image: Any = part.get("image_url")
        url = image if isinstance(image, str) else mapping_at(index, image, "image_url").get("url")
        if found := text_at(index, url, "image_url.url"):
            return ImagePart(url=found)
        raise InvalidHistory(index, "an image needs a url")
    if kind == "input_audio":
        audio = mapping_at(index, part.get("input_audio"), "input_audio")
        name = str(audio.get("format"))
        media_type = _AUDIO_TYPES.get(name, f"audio/{name}")
        return FilePart(url=data_url(media_type, text_at(index, audio.get("data"), "audio")), media_type=media_type)
    if kind == "file":
        file = mapping_at(index, part.get("file"), "file")
        if url := text_at(index, file.get("file_data"), "file_data"):
            inline = split_data_url(url)
            media_type = inline[0] if inline else "application/octet-stream"
            return FilePart(url=url, media_type=media_type, name=text_at(index, file.get("filename"), "filename"))
        raise InvalidHistory(index, "a file part needs file_data; a file that has only a file_id cannot be carried")
    raise InvalidHistory(index, f"a part of type {kind!r} is not one of text, image_url, input_audio, file")
