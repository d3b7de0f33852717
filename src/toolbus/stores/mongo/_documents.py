"""Messages to documents that other applications can read, and their documents to messages. Pure.

A document is one thing that was said: by the user, or by the assistant, with the calls that it made and their results:

    {sessionId, sender: "user" | "assistant" | "tool" | "system", content: text or null, timestamp,
     messageType: "text" | "tool_calls" | "tool_results",
     data: {toolCalls: [{toolCallId, toolName, args}], toolResults: [{toolCallId, toolName, result}],
            toolbus: {turn, generation, position, messages: [JSON, ...], digest, seen, ...}}}

All but `data.toolbus` is for others: what is too long for them is cut there, and large arguments stay text. In it are
the very messages. `digest` is of these; `seen` is of what others see: where that is another one by now, the document
was edited, and what stands there counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, cast

import orjson
from bson.datetime_ms import DatetimeMS
from bson.objectid import ObjectId

from ...messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage, user_text
from .._encoding import searchable
from ._connection import Document, Names

__all__ = [
    "documents_of",
    "expanded",
    "is_edited",
    "milliseconds_of",
    "own_part",
    "place_of",
    "seen_digest",
    "session_ids",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SEEN_CHARS = 2 * 2**20  # of the texts that others see of one document, which may take 16 MiB
_CUT_CHARS = 1_000  # what is left of a text that is too long
_PARSED_CHARS = 256 * 1024  # of arguments and results that they see as values: BSON takes up to 15 times as much
_DEPTH = 50  # of such values: MongoDB takes 100 levels
_WHOLE = 2**63


# ------------------------------------------------------------------------------------------------ to documents


def documents_of(
    names: Names, session: Any, messages: Sequence[Message], *, turn: str, at_milliseconds: int
) -> Iterator[tuple[Document, int, int]]:
    """The documents of a turn, each with the places of its messages in the turn: from the first, up to the last.

    What toolbus keeps beside them has to be put into `data.toolbus`. Their times are a millisecond apart, from
    `at_milliseconds` on; ids and times depend on nothing else, so documents that are made twice are the same.
    """
    first = 0
    for number, group in enumerate(_grouped(messages)):
        at = at_milliseconds + number
        document: Document = {
            "_id": _id_of(turn, number, at),
            names.session: session,
            **_seen_form(names, group),
            names.timestamp: _EPOCH + timedelta(milliseconds=at),
        }
        yield document, first, first + len(group)
        first += len(group)


def _grouped(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Each message, and behind a reply with calls the results that follow it."""
    group: list[Message] = []
    for message in messages:
        if group and isinstance(message, ToolMessage) and _may_take_results(group[0]):
            group.append(message)
            continue
        if group:
            yield group
        group = [message]
    if group:
        yield group


def _may_take_results(message: Message) -> bool:
    return isinstance(message, AssistantMessage) and bool(message.tool_calls)


def _id_of(turn: str, number: int, at_milliseconds: int) -> ObjectId:
    """An id that is as old as the document says, and the same whenever it is made."""
    seconds = max(0, at_milliseconds // 1_000) & 0xFFFF_FFFF
    return ObjectId(seconds.to_bytes(4) + sha256(f"{turn}:{number}".encode("utf-8", "replace")).digest()[:8])


def _seen_form(names: Names, group: Sequence[Message]) -> Document:
    """What others see of a message, and of the results behind it."""
    room = _Room()
    first = group[0]
    calls: list[Document] = []
    content: str | None = None
    sender, kind = first.role, "text"
    if isinstance(first, UserMessage):
        content = room.text(user_text(first))
    elif isinstance(first, SystemMessage):
        content = room.text(first.text)
    elif isinstance(first, AssistantMessage):
        content = room.text(first.text) if first.text.strip() else None
        for call in first.tool_calls:
            args = room.value(call.arguments or "{}")
            calls.append({"toolCallId": searchable(call.call_id), "toolName": searchable(call.name), "args": args})
    results = [_seen_result(each, room) for each in group if isinstance(each, ToolMessage)]
    if calls or results:
        kind = "tool_calls" if calls else "tool_results"
    data: Document = {}
    if calls:
        data["toolCalls"] = calls
    if results:
        data["toolResults"] = results
    return {names.sender: sender, names.content: content, names.kind: kind, names.data: data}


def _seen_result(message: ToolMessage, room: _Room) -> Document:
    result = {
        "toolCallId": searchable(message.call_id),
        "toolName": searchable(message.name),
        "result": room.value(message.content, (dict, list)),
    }
    return {**result, "isError": True} if message.is_error else result


class _Room:
    """How much text there may be for others in one document."""

    def __init__(self) -> None:
        self._left = _SEEN_CHARS
        self._parsed_left = _PARSED_CHARS

    def text(self, text: str) -> str:
        if len(text) > self._left:
            text = f"{text[:_CUT_CHARS]} ... ({len(text)} characters; toolbus has the whole)"
        self._left = max(0, self._left - len(text))
        return searchable(text)

    def value(self, text: str, kinds: type | tuple[type, ...] = object) -> Any:
        """The value of a JSON text that is short and harmless; of any other, the text."""
        if len(text) <= min(self._left, self._parsed_left):
            try:
                value: Any = orjson.loads(text)
            except ValueError:
                return self.text(text)
            if isinstance(value, kinds) and _is_harmless(value):
                self._left -= len(text)
                self._parsed_left -= len(text)
                return value
        return self.text(text)


def _is_harmless(value: Any, depth: int = 0) -> bool:
    """Whether every version of MongoDB takes it as it is, and no query mistakes it for an operator."""
    if depth > _DEPTH:
        return False
    if isinstance(value, dict):
        mapping = cast("dict[str, Any]", value)
        names_fit = all(name and name[0] != "$" and "." not in name and "\0" not in name for name in mapping)
        return names_fit and all(_is_harmless(each, depth + 1) for each in mapping.values())
    if isinstance(value, list):
        return all(_is_harmless(each, depth + 1) for each in cast("list[Any]", value))
    if isinstance(value, str):
        return "\0" not in value
    return not isinstance(value, int) or -_WHOLE <= value < _WHOLE


# ------------------------------------------------------------------------------------------- what is ours


def own_part(names: Names, document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What toolbus has added to a document; None for another application's."""
    own = _mapping(_mapping(document.get(names.data)).get("toolbus"))
    return own if own and isinstance(own.get("turn"), str) else None


def seen_digest(names: Names, document: Mapping[str, Any]) -> str:
    """A digest of what others see of a document."""
    data = _mapping(document.get(names.data))
    seen: list[Any] = [document.get(names.sender), document.get(names.content)]
    for field, keys in (("toolCalls", ("toolCallId", "toolName", "args")), ("toolResults", _RESULT)):
        listed = _sequence(data.get(field))
        seen.append([[_mapping(each).get(key) for key in keys] for each in listed])
    return sha256(_json(seen).encode()).hexdigest()[:32]


_RESULT = ("toolCallId", "toolName", "result", "isError")


def is_edited(names: Names, document: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether another application has changed what it sees of a document of ours."""
    return seen_digest(names, document) != own.get("seen")


def session_ids(conversation_id: str) -> list[Any]:
    """What a conversation may be called by other applications: the text, or the ObjectId or number that it is of."""
    ids: list[Any] = [conversation_id]
    if ObjectId.is_valid(conversation_id):
        ids.append(ObjectId(conversation_id))
    if conversation_id.isascii() and conversation_id.isdigit() and str(int(conversation_id[:20])) == conversation_id:
        ids += [int(conversation_id)] if int(conversation_id) < _WHOLE else []
    return ids


def milliseconds_of(value: Any) -> float:
    """A time as another application may have written it, since the epoch; 0 for what is none."""
    if isinstance(value, datetime):
        return (value.replace(tzinfo=value.tzinfo or UTC) - _EPOCH) / timedelta(milliseconds=1)
    if isinstance(value, DatetimeMS):
        return float(int(value))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if value == value else 0.0  # noqa: PLR0124 -- not a number is not itself
    if isinstance(value, str):
        try:
            return milliseconds_of(datetime.fromisoformat(value))
        except ValueError:
            return 0.0
    return 0.0


def place_of(names: Names, document: Mapping[str, Any]) -> tuple[float, str]:
    """What documents are sorted by: their time, then their id. Without a time it is that of the ObjectId."""
    written, own_id = document.get(names.timestamp), document.get("_id")
    if written is None and isinstance(own_id, ObjectId):
        written = own_id.generation_time
    return milliseconds_of(written), str(own_id)


# ------------------------------------------------------------------------------------------- from documents


def expanded(names: Names, document: Mapping[str, Any], *, is_ours: bool = False) -> list[Message]:
    """The messages of a document that another application has written.

    One with calls, results and a text is a whole turn: the text is what was said in the end. With calls alone it is
    what was said before them, and so it is in a document of ours that was edited (`is_ours`). Results are put in call
    order; one whose call is not in the document belongs to one before it. Senders other than user, assistant and
    tool are nobody whom a model should hear: the application itself leaves them out.
    """
    sender = document.get(names.sender)
    data = _mapping(document.get(names.data))
    text = _text_of(document.get(names.content))
    own_id = str(document.get("_id", ""))
    if sender == "user":
        return [UserMessage(content=text, message_id=own_id)] if text.strip() else []
    if sender not in ("assistant", "tool"):
        return []
    calls = [call for call in map(_call_from, _sequence(data.get("toolCalls"))) if call is not None]
    calls = [_with_id(call, f"{own_id}-{place}") for place, call in enumerate(calls)]
    results = _results_in(data, calls)
    if sender == "tool" and not results and text.strip():
        results = _results_in({"toolResults": [{**data, "result": text}]}, calls)
        text = ""
    if calls and (is_ours or not results):
        return [AssistantMessage(text=text, tool_calls=tuple(calls), message_id=own_id), *results]
    said: list[Message] = [AssistantMessage(tool_calls=tuple(calls), message_id=own_id)] if calls else []
    said += results
    if sender == "assistant" and text.strip():
        said.append(AssistantMessage(text=text, message_id=f"{own_id}-text" if calls else own_id))
    return said


def _call_from(value: Any) -> ToolCall | None:
    call = _mapping(value)
    name = _first(call, "toolName", "name")
    if not isinstance(name, str):
        return None
    args = _first(call, "args", "arguments", "input")
    arguments = args if isinstance(args, str) else _json({} if args is None else args)
    return ToolCall(name=name, arguments=arguments, call_id=_id_text(_first(call, "toolCallId", "id")))


def _with_id(call: ToolCall, made: str) -> ToolCall:
    if not call.call_id:
        call.call_id = made
    return call


def _results_in(data: Mapping[str, Any], calls: Sequence[ToolCall]) -> list[ToolMessage]:
    """The results of a document: those of its calls in call order, then the others. One without an id goes by name."""
    left = list(calls)
    found: list[ToolMessage] = []
    for value in _sequence(data.get("toolResults")):
        result = _mapping(value)
        if not result:
            continue
        name, call_id = _first(result, "toolName", "name"), _id_text(_first(result, "toolCallId", "id"))
        of = next((each for each in left if each.call_id == call_id or (not call_id and each.name == name)), None)
        if of is not None:
            left.remove(of)
        found.append(
            ToolMessage(
                call_id=call_id or (of.call_id if of else ""),
                name=name if isinstance(name, str) else (of.name if of else ""),
                content=_result_text(_first(result, "result", "output")),
                is_error=result.get("isError") is True,
            )
        )
    order = {call.call_id: place for place, call in reversed([*enumerate(calls)])}
    return sorted(found, key=lambda each: order.get(each.call_id, len(order)))


def _result_text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _text_of(content: Any) -> str:
    """The text of a content: as it is, of its parts, or as JSON."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts: list[Any] = cast("list[Any]", content) if isinstance(content, list) else [content]
    texts = [_mapping(part).get("text") for part in parts]
    if all(isinstance(text, str) for text in texts):
        return "\n".join(cast("list[str]", texts))
    return _json(content)


def _first(mapping: Mapping[str, Any], *keys: str) -> Any:
    return next((mapping[key] for key in keys if mapping.get(key) is not None), None)


def _id_text(value: Any) -> str:
    return "" if value is None else str(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> Iterable[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else ()


def _json(value: Any) -> str:
    """A value of a document as JSON: ids and dates as text, what JSON has not as it is written in Python."""
    try:
        return orjson.dumps(value, default=_plain, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):
        return orjson.dumps(searchable(repr(value))).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, DatetimeMS):
        return int(value)
    return value.hex() if isinstance(value, bytes) else str(value)
