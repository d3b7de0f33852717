"""The conversion of messages to documents that other applications can read, and of their documents to messages. Pure.

A document is one utterance: of the user, or of the assistant with its tool calls and their results:

    {sessionId, sender: "user" | "assistant" | "tool" | "system", content: text or null, timestamp,
     messageType: "text" | "tool_calls" | "tool_results",
     data: {toolCalls: [{toolCallId, toolName, args}], toolResults: [{toolCallId, toolName, result}],
            toolbus: {turn, generation, position, messages: [JSON, ...], digest, seen, ...}}}

All fields but `data.toolbus` are for other applications: texts that are too long are cut there, and large arguments
stay text. `data.toolbus` has the exact messages. `digest` is the digest of these, and `seen` the digest of the fields
for others: if those fields have another digest now, the document was edited, and its fields count instead.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, cast

import orjson
from bson.datetime_ms import DatetimeMS
from bson.objectid import ObjectId

from ...messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from ...records import replace
from ...schemas import as_object
from .._encoding import searchable
from ._connection import Document, Names

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The characters of all texts for others in one document, which may have at most 16 MiB.
_SEEN_CHARS = 2 * 2**20
# The characters that are left of a text that is too long, and of each text after it.
_CUT_CHARS = 1_000
# The characters of arguments and results that are stored as values: BSON may need 15 times as much for them.
_PARSED_CHARS = 256 * 1024
# The depth of such values: MongoDB allows 100 levels.
_DEPTH = 50
_WHOLE = 2**63


# ------------------------------------------------------------------------------------------------ to documents


def documents_of(
    names: Names, session: Any, messages: Sequence[Message], *, turn: str, at_milliseconds: int
) -> Iterator[tuple[Document, int, int]]:
    """Yield the documents of a turn, each with the range of its messages in the turn: the first, and one past the last.

    The caller adds `data.toolbus`. The documents' times are a millisecond apart, from `at_milliseconds` on. Their ids
    and times depend on nothing but the arguments, so documents that are made twice are the same.
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
    """Yield each message in a group, together with the results that follow it if it is a reply with calls."""
    group: list[Message] = []
    for message in messages:
        first = group[0] if group else None
        if isinstance(message, ToolMessage) and isinstance(first, AssistantMessage) and first.tool_calls:
            group.append(message)
            continue
        if group:
            yield group
        group = [message]
    if group:
        yield group


def _id_of(turn: str, number: int, at_milliseconds: int) -> ObjectId:
    """Return an ObjectId with the document's time, which depends only on the arguments."""
    seconds = max(0, at_milliseconds // 1_000) & 0xFFFF_FFFF
    return ObjectId(seconds.to_bytes(4) + sha256(f"{turn}:{number}".encode("utf-8", "replace")).digest()[:8])


def _seen_form(names: Names, group: Sequence[Message]) -> Document:
    """Return the fields for other applications of a message and the results after it."""
    budget = _TextBudget()
    first = group[0]
    calls: list[Document] = []
    content: str | None = None
    sender, kind = first.role, "text"
    if isinstance(first, (UserMessage, SystemMessage)):
        content = budget.text(first.text)
    elif isinstance(first, AssistantMessage):
        content = budget.text(first.text) if first.text.strip() else None
        for call in first.tool_calls:
            args = budget.value(call.arguments or "{}")
            calls.append({"toolCallId": budget.text(call.call_id), "toolName": budget.text(call.name), "args": args})
    results = [_seen_result(each, budget) for each in group if isinstance(each, ToolMessage)]
    if calls or results:
        kind = "tool_calls" if calls else "tool_results"
    data: Document = {}
    if calls:
        data["toolCalls"] = calls
    if results:
        data["toolResults"] = results
    return {names.sender: sender, names.content: content, names.kind: kind, names.data: data}


def _seen_result(message: ToolMessage, budget: _TextBudget) -> Document:
    result = {
        "toolCallId": budget.text(message.call_id),
        "toolName": budget.text(message.name),
        "result": budget.value(message.content, (dict, list)),
    }
    return {**result, "isError": True} if message.is_error else result


class _TextBudget:
    """The amount of text for other applications that is left for one document."""

    def __init__(self) -> None:
        self._left = _SEEN_CHARS
        self._parsed_left = _PARSED_CHARS

    def text(self, text: str) -> str:
        if len(text) > max(self._left, _CUT_CHARS):
            text = f"{text[:_CUT_CHARS]} ... ({len(text)} characters; toolbus has the whole text)"
        self._left = max(0, self._left - len(text))
        return searchable(text)

    def value(self, text: str, kinds: type | tuple[type, ...] = object) -> Any:
        """Return the value of a JSON text if it is short and harmless, else the text itself."""
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
    """Return whether every version of MongoDB stores the value unchanged, and no query takes it for an operator."""
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


# -------------------------------------------------------------------------------------- toolbus's own part


def own_part(names: Names, document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the part that toolbus has added to a document; None for a document of another application."""
    own = as_object(as_object(document.get(names.data)).get("toolbus"))
    return own if own and isinstance(own.get("turn"), str) else None


def seen_digest(names: Names, document: Mapping[str, Any]) -> str:
    """Return a digest of a document's fields for other applications."""
    data = as_object(document.get(names.data))
    seen: list[Any] = [document.get(names.sender), document.get(names.content)]
    for field, keys in (("toolCalls", ("toolCallId", "toolName", "args")), ("toolResults", _RESULT)):
        listed = _sequence(data.get(field))
        seen.append([[as_object(each).get(key) for key in keys] for each in listed])
    return sha256(_json(seen).encode()).hexdigest()[:32]


_RESULT = ("toolCallId", "toolName", "result", "isError")


def is_edited(names: Names, document: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Return whether another application has changed its fields of a document of toolbus."""
    return seen_digest(names, document) != own.get("seen")


def session_ids(conversation_id: str) -> list[Any]:
    """Return the ids that other applications may use for a conversation: the text, and its ObjectId or number."""
    ids: list[Any] = [conversation_id]
    if ObjectId.is_valid(conversation_id):
        ids.append(ObjectId(conversation_id))
    if conversation_id.isascii() and conversation_id.isdigit() and str(int(conversation_id[:20])) == conversation_id:
        ids += [int(conversation_id)] if int(conversation_id) < _WHOLE else []
    return ids


def conversation_id_of(names: Names, document: Mapping[str, Any]) -> str:
    """Return the text for the session of a document. Some drivers write each number as one with a fraction."""
    session = document.get(names.session)
    return str(int(session) if isinstance(session, float) and session.is_integer() else session)


def milliseconds_of(value: Any) -> float:
    """Return the milliseconds since the epoch of a time in any form that applications use; 0 if it is not a time."""
    if isinstance(value, datetime):
        return (value.replace(tzinfo=value.tzinfo or UTC) - _EPOCH) / timedelta(milliseconds=1)
    if isinstance(value, DatetimeMS):
        return float(int(value))
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value):
        return float(value)
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return milliseconds_of(datetime.fromisoformat(value))
    return 0.0


def sort_key_of(names: Names, document: Mapping[str, Any]) -> tuple[float, str]:
    """Return the key by which documents are sorted: their time, or else that of their ObjectId, and then their id."""
    written, own_id = document.get(names.timestamp), document.get("_id")
    if written is None and isinstance(own_id, ObjectId):
        written = own_id.generation_time
    return milliseconds_of(written), str(own_id)


# ------------------------------------------------------------------------------------------- from documents


def expanded(names: Names, document: Mapping[str, Any], *, is_ours: bool = False) -> list[Message]:
    """Return the messages of a document that another application has written.

    A document with calls, results and a text is a whole turn, and its text is the final reply. In a document with calls
    and no results, the text was said before the calls; so it was in an edited document of toolbus (`is_ours`). Results
    are returned in call order; a result whose call is not in the document belongs to an earlier document. Senders other
    than user, assistant and tool are left out, because a model should not read them; the application leaves them out
    too.
    """
    sender = document.get(names.sender)
    data = as_object(document.get(names.data))
    text = _text_of(document.get(names.content))
    own_id = str(document.get("_id", ""))
    if sender == "user":
        return [UserMessage(content=text, message_id=own_id)] if text.strip() else []
    if sender not in ("assistant", "tool"):
        return []
    calls = [call for call in map(_call_from, _sequence(data.get("toolCalls"))) if call is not None]
    calls = [replace(call, call_id=call.call_id or f"{own_id}-{index}") for index, call in enumerate(calls)]
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
    call = as_object(value)
    name = _first(call, "toolName", "name")
    if not isinstance(name, str):
        return None
    args = _first(call, "args", "arguments", "input")
    arguments = args if isinstance(args, str) else _json({} if args is None else args)
    return ToolCall(name=name, arguments=arguments, call_id=_id_text(_first(call, "toolCallId", "id")))


def _results_in(data: Mapping[str, Any], calls: Sequence[ToolCall]) -> list[ToolMessage]:
    """Return the results of a document: those of its calls in call order, then the others.

    A result without an id is matched to a call by its name.
    """
    left = list(calls)
    found: list[ToolMessage] = []
    for value in _sequence(data.get("toolResults")):
        result = as_object(value)
        if not result:
            continue
        name, call_id = _first(result, "toolName", "name"), _id_text(_first(result, "toolCallId", "id"))
        of = next((each for each in left if each.call_id == call_id or (not call_id and each.name == name)), None)
        if of is not None:
            left.remove(of)
        output = _first(result, "result", "output")
        found.append(
            ToolMessage(
                call_id=call_id or (of.call_id if of else ""),
                name=name if isinstance(name, str) else (of.name if of else ""),
                content=output if isinstance(output, str) else _json(output),
                is_error=result.get("isError") is True,
            )
        )
    order = {call.call_id: index for index, call in reversed([*enumerate(calls)])}
    return sorted(found, key=lambda each: order.get(each.call_id, len(order)))


def _text_of(content: Any) -> str:
    """Return the text of a message's content: the content itself, the joined texts of its parts, or its JSON."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts: list[Any] = cast("list[Any]", content) if isinstance(content, list) else [content]
    texts = [as_object(part).get("text") for part in parts]
    if all(isinstance(text, str) for text in texts):
        return "\n".join(cast("list[str]", texts))
    return _json(content)


def _first(mapping: Mapping[str, Any], *keys: str) -> Any:
    return next((mapping[key] for key in keys if mapping.get(key) is not None), None)


def _id_text(value: Any) -> str:
    return "" if value is None else str(value)


def _sequence(value: Any) -> Iterable[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else ()


def _json(value: Any) -> str:
    """Return a value of a document as JSON, with ids and dates as text. BSON has no value that this cannot write."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_SORT_KEYS).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, DatetimeMS):
        return int(value)
    return value.hex() if isinstance(value, bytes) else str(value)
