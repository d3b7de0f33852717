"""Small things that reading any vendor's wire needs: characters cut in half, objects that may be none, JSON text.

Knows no vendor. Pure.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson

from ...core.arguments import depth
from ...schemas import has_big_number, has_many_values

__all__ = [
    "Characters",
    "TooManyValues",
    "WholeObject",
    "as_object",
    "as_objects",
    "count_at",
    "dumped",
    "loads",
    "object_in",
    "size_bytes",
    "start_of",
    "storable",
    "without_half_characters",
]


_MAX_DEPTH = 500
"""Levels of nesting that are read: `json` writes them on every version of Python, and 1,000 on some only."""


class Characters:
    """Text from pieces that may cut a character in half, as JSON escapes of a surrogate pair can."""

    __slots__ = ("_half", "length", "parts")

    def __init__(self) -> None:
        self.parts: list[str] = []
        """What has been added and is whole; a last half of a character is not in it yet."""
        self.length = 0
        """The characters in `parts`."""
        self._half: str = ""

    def add(self, piece: str) -> str:
        """The text that is whole now; half a character waits for the next piece."""
        if self._half or not piece.isascii():
            piece, self._half = self._half + piece, ""
            if "\ud800" <= piece[-1:] <= "\udbff":
                piece, self._half = piece[:-1], piece[-1]
            piece = piece.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        if piece:
            self.parts.append(piece)
            self.length += len(piece)
        return piece

    def whole(self) -> str:
        """All of the text; half a character at the end is a replacement mark."""
        if self._half:
            self.parts.append("\ufffd")
            self._half = ""
        return "".join(self.parts)


class TooManyValues(ValueError):
    """JSON has so many values that it is not read: that would hold the event loop."""


def loads(data: bytes) -> Any:
    """JSON that may end in half a surrogate pair, as a chunk may; integers stay exact.

    Raises `TooManyValues`, and `ValueError` for what is no JSON, or nested deeper than 500 levels.
    """
    if has_many_values(data):
        raise TooManyValues
    value = _loads(data)
    if data.count(b"[") + data.count(b"{") > _MAX_DEPTH and depth(value) > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    return value


def _loads(data: bytes) -> Any:
    if not has_big_number(data):
        with contextlib.suppress(orjson.JSONDecodeError):
            return orjson.loads(data)
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def dumped(value: object) -> str:
    """JSON text of what was read from some; integers over 64 bits and half characters are JSON all the same."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value)


def storable(value: Any) -> Any:
    """What is to be kept, as every JSON writer can write it: itself, but for half characters and larger integers."""
    try:
        orjson.dumps(value)
    except TypeError:
        return orjson.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def object_in(text: str) -> dict[str, Any] | None:
    """The object that a text is the JSON of, or None: of a model that repeats a bracket for ever it is none."""
    if has_many_values(text.encode("utf-8", "surrogatepass")):
        return None
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def start_of(data: bytes) -> str:
    """The start of what could not be read, for an error's text."""
    return repr(data[:80].decode("utf-8", "replace"))


def size_bytes(piece: str) -> int:
    """The size of a piece of text in UTF-8; half a character counts as three."""
    return len(piece) if piece.isascii() else len(piece.encode("utf-8", "surrogatepass"))


class WholeObject:
    """Whether text that comes in pieces is the JSON of an object by now.

    However often that is asked, each piece is looked at once, and the whole is read twice at most: where its brackets
    first balance, and never again once that was no object or more has come. Servers ask for it with each chunk.
    """

    __slots__ = ("_at", "_begun", "_depth", "_escaped", "_found", "_in_string")

    def __init__(self) -> None:
        self._at = 0  # the first piece that was not looked at
        self._begun = False  # a bracket has come
        self._depth = 0
        self._escaped = False  # the last piece ended in a backslash that escapes the next character
        self._in_string = False
        self._found: bool | None = None  # what the text was where its brackets balanced

    def is_whole(self, pieces: Sequence[str]) -> bool:
        """Whether the pieces, which are those of the last time and maybe more, are an object together."""
        while self._at < len(pieces):
            piece = pieces[self._at]
            self._at += 1
            if self._found is None:
                self._look_at(piece)
            elif piece.strip():
                self._found = False
        if self._found is None and self._begun and not self._in_string and self._depth == 0:
            self._found = object_in("".join(pieces)) is not None
        return self._found or False

    def _look_at(self, piece: str) -> None:
        if self._escaped:
            piece, self._escaped = piece[1:], False
        if "\\" in piece:
            piece = piece.replace("\\\\", "")
            self._escaped = piece.endswith("\\")
            piece = piece.replace('\\"', "")
        # Two quotes in a row change nothing for what is around them, whether they open or close.
        parts = piece.replace('""', "").split('"')
        outside = "".join(parts[self._in_string :: 2])
        self._in_string ^= len(parts) % 2 == 0
        opened = outside.count("{") + outside.count("[")
        self._begun = self._begun or opened > 0
        self._depth += opened - outside.count("}") - outside.count("]")


def as_object(value: object) -> Mapping[str, Any]:
    """`value` if it is an object, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def as_objects(value: object) -> list[Mapping[str, Any]]:
    """The objects in a list that are not empty; nothing for what is no list."""
    if not isinstance(value, list):
        return []
    return [found for each in cast("list[object]", value) if (found := as_object(each))]


def count_at(fields: object, name: str) -> int:
    """The count of that name in an object; 0 for what is no positive number of 64 bits, or no object."""
    value = as_object(fields).get(name)
    return value if isinstance(value, int) and 0 < value < 2**63 else 0


def without_half_characters(body: dict[str, Any]) -> dict[str, Any]:
    """The body with a question mark for every lone surrogate, which UTF-8 cannot carry (a text cut inside an emoji)."""
    return json.loads(json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"))
