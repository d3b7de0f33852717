"""Helpers for reading any vendor's wire format: characters cut in half, values that may be objects, JSON text.

The module knows no vendor. Pure.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any, cast

import orjson

from ...core.arguments import depth
from ...schemas import as_object, has_big_number, has_many_values

_MAX_DEPTH = 500
"""The levels of nesting that are read: `json` writes 500 on every version of Python, and 1,000 only on some."""


class Characters:
    """A text from pieces that may cut a character in half, as JSON escapes of a surrogate pair can."""

    __slots__ = ("_half", "length", "parts")

    def __init__(self) -> None:
        self.parts: list[str] = []
        """The pieces so far, without half a character at the end."""
        self.length = 0
        """The number of characters in `parts`."""
        self._half: str = ""

    def add(self, piece: str) -> str:
        """Add a piece, and return the text that is whole now; half a character waits for the next piece."""
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
        """Return all of the text; half a character at the end becomes a replacement character."""
        return "".join(self.parts) + ("\ufffd" if self._half else "")


class TooManyValues(ValueError):
    """JSON has so many values that reading it would block the event loop, so it is not read."""


def loads(data: bytes) -> Any:
    """Return the value of JSON text that may have half a surrogate pair, as a chunk may; integers stay exact.

    Raises `TooManyValues`, and `ValueError` or `RecursionError` for text that is not JSON, or has more than 500 levels.
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
    return json.loads(data)


def dumped(value: object) -> str:
    """Return a value that was read from JSON as JSON text, also with integers over 64 bits and half characters."""
    return dumped_with_size(value)[0]


def dumped_with_size(value: object) -> tuple[str, int]:
    """Return what `dumped` does, and its size in UTF-8: measuring a text of megabytes again takes 10 ms."""
    try:
        raw = orjson.dumps(value)
    except TypeError:
        raw = json.dumps(value).encode()
    return raw.decode(), len(raw)


def encoded(value: object) -> bytes:
    """Return a value as JSON in UTF-8, also with integers over 64 bits, and with a question mark for half a character.

    UTF-8 cannot carry half a character. A text that was cut inside an emoji has one at its end, for example.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def storable(value: Any) -> Any:
    """Return a value in a form that every JSON writer can write: half characters and large integers are replaced.

    Raises `ValueError` for an integer that is too large for a float.
    """
    try:
        orjson.dumps(value)
    except TypeError:
        return orjson.loads(encoded(value))
    return value


def object_in(text: str) -> dict[str, Any] | None:
    """Return the object in a JSON text, or None for any other text, such as a bracket that a model repeats for ever."""
    if has_many_values(text.encode("utf-8", "surrogatepass")):
        return None
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def excerpt(data: bytes) -> str:
    """Return the beginning of data that could not be read, for an error's text."""
    return repr(data[:80].decode("utf-8", "replace"))


def size_bytes(piece: str) -> int:
    """Return the size of a piece of text in UTF-8; half a character counts as three bytes."""
    return len(piece) if piece.isascii() else len(piece.encode("utf-8", "surrogatepass"))


class WholeObject:
    """A test of whether text that comes in pieces is, as a whole, the JSON of an object.

    However often `is_whole` is called, each piece is scanned once, and the whole text is read only when its brackets
    first balance. Some streams need the test for every chunk.
    """

    __slots__ = ("_at", "_begun", "_depth", "_escaped", "_found", "_in_string")

    def __init__(self) -> None:
        self._at = 0  # the index of the first piece that was not scanned
        self._begun = False  # whether a bracket has come
        self._depth = 0
        self._escaped = False  # whether the last piece ended in a backslash that escapes the next character
        self._in_string = False
        self._found: bool | None = None  # whether the text was an object when its brackets balanced

    def is_whole(self, pieces: Sequence[str]) -> bool:
        """Return whether the pieces, which are those of the last call and maybe more, are an object together."""
        while self._at < len(pieces):
            piece = pieces[self._at]
            self._at += 1
            if self._found is None:
                self._scan(piece)
            elif piece.strip():
                self._found = False
        if self._found is None and self._begun and not self._in_string and self._depth == 0:
            self._found = object_in("".join(pieces)) is not None
        return self._found or False

    def _scan(self, piece: str) -> None:
        if self._escaped and piece:
            piece, self._escaped = piece[1:], False
        if "\\" in piece:
            piece = piece.replace("\\\\", "")
            self._escaped = piece.endswith("\\")
            piece = piece.replace('\\"', "")
        # Two quotes in a row do not change the state around them, whether they open or close a string.
        parts = piece.replace('""', "").split('"')
        outside = "".join(parts[self._in_string :: 2])
        self._in_string ^= len(parts) % 2 == 0
        opened = outside.count("{") + outside.count("[")
        self._begun = self._begun or opened > 0
        self._depth += opened - outside.count("}") - outside.count("]")


def count_at(fields: object, name: str) -> int:
    """Return the count of a given name in an object; 0 unless it is a positive integer of 53 bits.

    Every reader of JSON reads such a number exactly, and a store can keep the sum of a thousand of them.
    """
    value = as_object(fields).get(name)
    return value if type(value) is int and value in range(2**53) else 0


def without_half_characters(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with a question mark for every half character."""
    return json.loads(encoded(body))
