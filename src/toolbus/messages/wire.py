"""What the wire forms share: ids for the wire and back, argument text as an object, data URLs.

Knows no vendor's dialect; `_openai` and `_anthropic` do. Pure.
"""

from __future__ import annotations

import base64
import json
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import unquote_to_bytes

import orjson

from ..errors import InvalidHistory
from ..schemas import has_big_number, has_many_values
from ._model import FilePart

__all__ = [
    "MALFORMED",
    "IncomingIds",
    "OutgoingIds",
    "arguments_object",
    "arguments_text",
    "data_url",
    "decoded_text",
    "file_as_text",
    "legal_name",
    "list_at",
    "mapping_at",
    "of_vendor",
    "split_data_url",
    "text_at",
    "word",
]

MALFORMED = "_malformed_arguments"
"""The key under which argument text that is no JSON object goes where a dialect wants an object."""

_ILLEGAL_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_SURELY_WRITTEN = 200  # brackets, and so at most as many levels of nesting


class OutgoingIds:
    """The ids that calls and results carry on the wire, for one transcript read from front to back.

    A call keeps its `provider_call_id` unless that is empty, illegal in the dialect, or taken by an earlier call:
    then it is its `call_id`. The first holder of a repeated id keeps it, so what was sent once stays as it was when
    the transcript grows, and the provider's prompt cache stays valid.
    """

    __slots__ = ("_legal", "_taken", "_waiting")

    def __init__(self, legal: Callable[[str], str]) -> None:
        """`legal` maps an id to itself, or to the nearest one that the dialect takes."""
        self._legal = legal
        self._taken: set[str] = set()
        self._waiting: dict[str, list[str]] = {}

    def call(self, call_id: str, provider_call_id: str) -> str:
        """The wire id of the next call."""
        wire = provider_call_id
        if not wire or wire in self._taken or self._legal(wire) != wire:
            wire = self._legal(call_id) if call_id else ""
        if not wire or wire in self._taken:
            wire = _unused(wire, self._taken, self._legal)
        self._taken.add(wire)
        self._waiting.setdefault(call_id, []).append(wire)
        return wire

    def result(self, call_id: str) -> str:
        """The wire id of a result: that of its oldest unanswered call, or of nothing known, the id as it is."""
        waiting = self._waiting.get(call_id)
        return waiting.pop(0) if waiting else self._legal(call_id)


class IncomingIds:
    """From wire ids to call ids that are unique in the transcript.

    The first call with a wire id has it as its `call_id`; repeated and empty ones get a suffix. A result belongs
    to the oldest unanswered call of its id in the newest message that calls, so repeated ids pair by position; else to
    the oldest unanswered call of its id before that.
    """

    __slots__ = ("_older", "_open", "_seen", "_taken")

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._open: dict[str, deque[tuple[str, str]]] = {}
        self._older: dict[str, deque[tuple[str, str]]] = {}
        self._seen: dict[str, tuple[str, str]] = {}

    def begin(self) -> None:
        """A new message that calls: what is unanswered before it has to wait."""
        for wire_id, unanswered in self._open.items():
            self._older.setdefault(wire_id, deque()).extend(unanswered)
        self._open = {}

    def call(self, wire_id: str, name: str) -> str:
        """Return an id of its own for a call: its wire id, unless an earlier call has that."""
        call_id = wire_id
        if not call_id or call_id in self._taken:
            call_id = _unused(call_id, self._taken)
        self._taken.add(call_id)
        self._open.setdefault(wire_id, deque()).append((call_id, name))
        self._seen[wire_id] = (call_id, name)
        return call_id

    def result(self, wire_id: str) -> tuple[str, str]:
        """Call id and tool name of a result; the wire id and an empty name for an orphan."""
        waiting = self._open.get(wire_id) or self._older.get(wire_id)
        return waiting.popleft() if waiting else self._seen.get(wire_id, (wire_id, ""))


def _unused(stem: str, taken: set[str], legal: Callable[[str], str] = str) -> str:
    """An id that is not taken, made of `stem` and a number; of a stem that is too long for both, its beginning."""
    stem = stem or "call"
    number = len(taken)
    while True:
        suffix = f"_{number}"
        made = stem[: len(legal(stem + suffix)) - len(suffix)] + suffix
        if made not in taken:
            return made
        number += 1


def legal_name(name: str) -> str:
    """A tool's name as OpenAI's and others' APIs take it: a model may call what there is not, by any name."""
    return _ILLEGAL_IN_NAMES.sub("_", name)[:64] or "_"


def arguments_object(text: str) -> dict[str, Any]:
    """The argument text as an object that any JSON writer can write; nothing is lost.

    Empty text is `{}`. Text that is no JSON object, is nested deeper than the 254 levels that orjson writes, or has
    more values than are read, stands as it is under `MALFORMED`, so that the model sees what it wrote when its error
    message comes back.
    """
    if not text.strip():
        return {}
    data = text.encode("utf-8", "surrogatepass")
    try:
        value = None if has_many_values(data) else orjson.loads(data)
        if data.count(b"[") + data.count(b"{") > _SURELY_WRITTEN:
            # orjson reads more levels than it writes. How many the standard library takes differs by Python's version.
            orjson.dumps(value)
        if value is not None and has_big_number(data):
            value = json.loads(text)
    except (TypeError, ValueError):
        value = None
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    return {MALFORMED: text.encode("utf-8", "replace").decode()}


def arguments_text(index: int, value: Mapping[str, Any]) -> str:
    """An object as argument text: what `arguments_object` quoted is itself again. Raises `InvalidHistory`."""
    if list(value) == [MALFORMED]:
        return str(value[MALFORMED])
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # integers over 64 bits, lone surrogates: JSON all the same
        pass
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidHistory(index, f"a tool call's arguments are no JSON: {exc}") from exc


def of_vendor(index: int, value: Any) -> Any:
    """What a message keeps for its vendor, as every store can write it: itself, but for integers over 64 bits.

    Each is the nearest float, as most readers of JSON have it (RFC 8259, 6.), and as of a reply that has just come.
    Raises `InvalidHistory` for one that no float is near to.
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
        raise InvalidHistory(index, "an integer has more than 308 digits, which no number of JSON's has") from None


def data_url(media_type: str, data: str) -> str:
    """A `data:` URL of base64 text."""
    return f"data:{media_type};base64,{data}"


def split_data_url(url: str) -> tuple[str, str] | None:
    """Media type and base64 text of a `data:` URL; None for any other URL."""
    if not url.startswith("data:"):
        return None
    head, _, body = url[5:].partition(",")
    if head.endswith(";base64"):
        return head[: -len(";base64")] or "text/plain", body
    return head or "text/plain", base64.b64encode(unquote_to_bytes(body.encode("utf-8", "replace"))).decode()


def decoded_text(data: str) -> str | None:
    """Base64 of UTF-8 text as that text, or None where it is neither."""
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError:  # of either; base64 with other letters in it is a plain one
        return None


def file_as_text(part: FilePart) -> str:
    """A file as a model that takes none reads it: a text as it is, of another one a mark that says what was there."""
    name = f" {part.name}" if part.name else ""
    inline = split_data_url(part.url)
    text = decoded_text(inline[1]) if inline and part.media_type.startswith("text/") else None
    if text is not None:
        return f"[file{name}]\n{text}\n[end of file{name}]"
    return f"[a file{name} of type {part.media_type}{'' if inline else f' at {part.url}'}]"


def word(value: object) -> str | None:
    """A role or a type as what it is looked up by; of what is no text, words for people: nothing is called so."""
    return value if value is None or isinstance(value, str) else repr(value)[:80]


def list_at(index: int, value: object, what: str) -> Sequence[Any]:
    """`value`, which must be a list; None is an empty one. Raises `InvalidHistory`."""
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise InvalidHistory(index, f"{what} must be a list, not {type(value).__name__}")
    return cast("Sequence[Any]", value)


def mapping_at(index: int, value: object, what: str) -> Mapping[str, Any]:
    """`value`, which must be an object. Raises `InvalidHistory`."""
    if not isinstance(value, Mapping):
        raise InvalidHistory(index, f"{what} must be an object, not {type(value).__name__}")
    return cast("Mapping[str, Any]", value)


def text_at(index: int, value: object, what: str) -> str:
    """`value`, which must be text; None is empty. Raises `InvalidHistory`."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidHistory(index, f"{what} must be text, not {type(value).__name__}")
    return value
