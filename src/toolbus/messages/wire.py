"""Helpers that the wire forms share: ids on the wire, argument text as an object, data URLs.

The module knows no vendor's dialect; `_openai` and its siblings do. Pure.

Example:
    from toolbus.messages.wire import arguments_object, data_url, legal_name, split_data_url

    print(arguments_object('{"order": 7}'), legal_name("get order"))  # {'order': 7} get_order
    print(split_data_url(data_url("image/png", "iVBORw0K")))  # ('image/png', 'iVBORw0K')
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import unquote_to_bytes

import orjson

from ..errors import InvalidHistory
from ..schemas import has_big_number, has_many_values
from ._model import FilePart, ToolCall

__all__ = [
    "MALFORMED",
    "IncomingIds",
    "OutgoingIds",
    "arguments_object",
    "arguments_text",
    "data_url",
    "decoded_text",
    "file_as_text",
    "image_type",
    "json_text",
    "label",
    "legal_name",
    "list_at",
    "mapping_at",
    "split_data_url",
    "storable",
    "text_at",
    "written",
]

MALFORMED = "_malformed_arguments"
"""The key that quotes argument text which is not a JSON object, in dialects that require an object."""

# The first characters of base64, for the image types that both OpenAI and Anthropic accept.
_IMAGES = {
    re.compile("iVBORw0KGgo"): "image/png",
    re.compile("/9j/"): "image/jpeg",
    re.compile("R0lGOD"): "image/gif",
    re.compile("UklGR.{6}XRUJQ"): "image/webp",
}
_ILLEGAL_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
# With at most this number of brackets, a value has fewer levels of nesting than orjson can write.
_SAFE_BRACKETS = 200


class OutgoingIds:
    """The ids that calls and results carry on the wire, for one transcript read from front to back.

    A call keeps its `provider_call_id` as its wire id, unless that is empty, illegal in the dialect, or taken by an
    earlier call: then the wire id is the `call_id`. The first call with a repeated id keeps that id, so what was sent
    once does not change when the transcript grows, and the provider's prompt cache stays valid.
    """

    __slots__ = ("_legal", "_taken", "_waiting")

    def __init__(self, legal: Callable[[str], str]) -> None:
        """Take `legal`, which maps an id to itself, or to the nearest id that the dialect accepts."""
        self._legal = legal
        self._taken: set[str] = set()
        self._waiting: dict[str, list[str]] = {}

    def call(self, call_id: str, provider_call_id: str) -> str:
        """Return the wire id of the next call."""
        wire = provider_call_id
        if not wire or wire in self._taken or self._legal(wire) != wire:
            wire = self._legal(call_id) if call_id else ""
        if not wire or wire in self._taken:
            wire = _unused(wire, self._taken, self._legal)
        self._taken.add(wire)
        self._waiting.setdefault(call_id, []).append(wire)
        return wire

    def result(self, call_id: str) -> str:
        """Return the wire id of a result: that of its oldest unanswered call, or without one, its own `call_id`."""
        waiting = self._waiting.get(call_id)
        return waiting.pop(0) if waiting else self._legal(call_id)


class IncomingIds:
    """The call ids, unique in the transcript, of the wire ids in a list that is read from front to back.

    The first call with a wire id has it as its `call_id`; repeated and empty ids get a suffix. A result belongs to the
    oldest unanswered call with its id in the newest message that has calls, so repeated ids are paired by position;
    without one, it belongs to the oldest unanswered call with its id before that message.
    """

    __slots__ = ("_older", "_open", "_seen", "_taken")

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._open: dict[str, deque[tuple[str, str]]] = {}
        self._older: dict[str, deque[tuple[str, str]]] = {}
        self._seen: dict[str, tuple[str, str]] = {}

    def calls(self, written: Iterable[tuple[str, str, str]]) -> tuple[ToolCall, ...]:
        """Return the calls of a message, each from its wire id, its tool's name and its argument text.

        They are answered before older unanswered ones.
        """
        calls = list(written)
        if calls:
            for wire_id, unanswered in self._open.items():
                self._older.setdefault(wire_id, deque()).extend(unanswered)
            self._open = {}
        return tuple(self._call(*each) for each in calls)

    def _call(self, wire_id: str, name: str, arguments: str) -> ToolCall:
        call_id = wire_id
        if not call_id or call_id in self._taken:
            call_id = _unused(call_id, self._taken)
        self._taken.add(call_id)
        self._open.setdefault(wire_id, deque()).append((call_id, name))
        self._seen[wire_id] = (call_id, name)
        return ToolCall(name=name, arguments=arguments or "{}", call_id=call_id, provider_call_id=wire_id)

    def result(self, wire_id: str) -> tuple[str, str]:
        """Return the call id and the tool name of a result; the wire id and an empty name for an orphan."""
        waiting = self._open.get(wire_id) or self._older.get(wire_id)
        return waiting.popleft() if waiting else self._seen.get(wire_id, (wire_id, ""))


def _unused(stem: str, taken: set[str], legal: Callable[[str], str] = str) -> str:
    """Return an id that is not taken, made of `stem` and a number. A stem that is too long for both is cut."""
    stem = stem or "call"
    suffixes = (f"_{number}" for number in itertools.count(len(taken)))
    made = (legal(stem[: len(legal(stem + suffix)) - len(suffix)] + suffix) for suffix in suffixes)
    return next(each for each in made if each not in taken)


def legal_name(name: str, longest: int = 64) -> str:
    """Return the name of a tool in the form that APIs accept: of at most `longest` letters, digits, "_" and "-".

    A model may call a tool that does not exist, by any name, and the name must not make the conversation unusable.
    """
    return _ILLEGAL_IN_NAMES.sub("_", name)[:longest] or "_"


def arguments_object(text: str) -> dict[str, Any]:
    """Return the argument text as an object that any JSON writer can write, without loss.

    Empty text becomes `{}`. Text that is not a JSON object, is nested deeper than `written` allows, or has more values
    than toolbus reads, is kept unchanged under `MALFORMED`, so that the model sees the text that it wrote together with
    the error message.
    """
    if not text.strip():
        return {}
    data = text.encode("utf-8", "surrogatepass")
    try:
        value = None if has_many_values(data) else orjson.loads(data)
        if data.count(b"[") + data.count(b"{") > _SAFE_BRACKETS:
            # orjson reads more levels than it writes, and the standard library's limit depends on Python's version.
            written(value)
        if value is not None and has_big_number(data):
            value = json.loads(text)
    except (TypeError, ValueError):
        value = None
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    return {MALFORMED: text.encode("utf-8", "replace").decode()}


def written(value: object) -> bytes:
    """Return the JSON of a value in a message. Raises `TypeError` beyond 246 levels, since 8 more are around it."""
    return orjson.dumps([[[[[[[[value]]]]]]]])[8:-8]


def arguments_text(index: int, value: object, what: str = "a call's arguments") -> str:
    """Return arguments, which must be text or an object, as text. None becomes empty text.

    Text that `arguments_object` quoted is restored. Raises `InvalidHistory`.
    """
    if not isinstance(value, Mapping):
        return text_at(index, value, what)
    value = cast("Mapping[str, Any]", value)
    return str(value[MALFORMED]) if list(value) == [MALFORMED] else json_text(index, value, "a tool call's arguments")


def json_text(index: int, value: object, what: str) -> str:
    """Return the shortest JSON of a value. Raises `InvalidHistory`."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # integers over 64 bits and lone surrogates are JSON all the same
        pass
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidHistory(index, f"{what} are not valid JSON: {exc}") from exc


def storable(index: int, value: Any) -> Any:
    """Return `value`, kept for a vendor, in a form that every store can write: integers over 64 bits become floats.

    Each becomes the nearest float, as most readers of JSON read it (RFC 8259, section 6), and as in a reply that has
    just arrived. Raises `InvalidHistory` for an integer that is too large for a float.
    """
    try:
        orjson.dumps(value)
    except TypeError:
        return _with_floats(index, value)
    return value


def _with_floats(index: int, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_floats(index, each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_with_floats(index, each) for each in cast("Sequence[Any]", value)]
    if type(value) is not int or -(2**63) <= value < 2**64:
        return value
    try:
        return float(value)
    except OverflowError:
        raise InvalidHistory(index, "an integer has more than 308 digits, too many for a number in JSON") from None


def data_url(media_type: str, data: str) -> str:
    """Return a `data:` URL of base64 text."""
    return f"data:{media_type};base64,{data}"


def image_type(data: str) -> str:
    """Return the media type of an image that is given as base64, by its first bytes; empty for any other data."""
    return next((kind for begins, kind in _IMAGES.items() if begins.match(data)), "")


def split_data_url(url: str) -> tuple[str, str] | None:
    """Return the media type and the base64 text of a `data:` URL; None for any other URL."""
    if not url.startswith("data:"):
        return None
    head, _, body = url[5:].partition(",")
    if head.endswith(";base64"):
        return head[: -len(";base64")] or "text/plain", body
    return head or "text/plain", base64.b64encode(unquote_to_bytes(body.encode("utf-8", "replace"))).decode()


def decoded_text(data: str) -> str | None:
    """Return the text that base64 of UTF-8 encodes, or None where `data` is not base64 or its bytes are not UTF-8."""
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError:  # errors of base64 and of UTF-8 are both of this class
        return None


def file_as_text(part: FilePart) -> str:
    """Return a file as text, for models that do not accept files: its text, or for other files a mark that names it."""
    name = f" {part.name}" if part.name else ""
    inline = split_data_url(part.url)
    text = decoded_text(inline[1]) if inline and part.media_type.startswith("text/") else None
    if text is not None:
        return f"[file{name}]\n{text}\n[end of file{name}]"
    return f"[a file{name} of type {part.media_type}{'' if inline else f' at {part.url}'}]"


def label(value: object) -> str | None:
    """Return a role or a type as a key for look-ups. A value that is not a string becomes text that matches nothing."""
    return value if value is None or isinstance(value, str) else repr(value)[:80]


def list_at(index: int, value: object, what: str) -> Sequence[Any]:
    """Return `value`, which must be a list; None becomes an empty one. Raises `InvalidHistory`."""
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise InvalidHistory(index, f"{what} must be a list, not {type(value).__name__}")
    return cast("Sequence[Any]", value)


def mapping_at(index: int, value: object, what: str) -> Mapping[str, Any]:
    """Return `value`, which must be an object. Raises `InvalidHistory`."""
    if type(value) is not dict and not isinstance(value, Mapping):  # The first question takes a tenth of the time.
        raise InvalidHistory(index, f"{what} must be an object, not {type(value).__name__}")
    return cast("Mapping[str, Any]", value)


def text_at(index: int, value: object, what: str) -> str:
    """Return `value`, which must be text; None becomes empty text. Raises `InvalidHistory`."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidHistory(index, f"{what} must be text, not {type(value).__name__}")
    return value
