"""Text for terminals: without escape sequences, also where a stream cuts them, and cut to a width. Pure.

What a model or a file says must not steer the user's terminal: colours, titles, cursor moves and links are removed, and
so are all other control characters but tab and line break, and those that turn the direction of writing: see
`toolbus.core.plain_text`.
"""

from __future__ import annotations

import json
import re
import textwrap
import unicodedata
from collections.abc import Mapping
from typing import Any

from ...core.plain_text import CSI, DIRECTION, STRING, clean, one_line

__all__ = [
    "Cleaner",
    "arguments_line",
    "cells",
    "clean",
    "cut",
    "duration",
    "escape_json",
    "indented",
    "one_line",
    "visible",
    "visible_json",
    "wrapped",
]

_UNFINISHED = re.compile(rf"(?:{CSI}|{STRING}\x1b?|\x1b[ -/]{{0,8}})\Z")
_LONGEST_VALUE = 400  # characters of one argument that are looked at: no terminal line shows more


class Cleaner:
    """`clean` for text that comes in pieces, where a sequence may be cut anywhere. Holds back some 1,000 characters."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """What can be shown by now."""
        text = self._held + piece
        unfinished = _UNFINISHED.search(text)
        self._held = "" if unfinished is None else text[unfinished.start() :]
        return clean(text if unfinished is None else text[: unfinished.start()])

    def flush(self) -> str:
        """What was held back and turned out to be no whole sequence."""
        held, self._held = self._held, ""
        return clean(held)


def cells(text: str) -> int:
    """How many columns of a terminal `text` takes; at least as many as it really does."""
    if text.isascii():
        return len(text)
    return sum(map(_cells_of, text))


def _cells_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int, mark: str = "…") -> str:
    """`text` if it fits into `width` columns, else its beginning with `mark` behind it."""
    if cells(text) <= width:
        return text
    left = width - cells(mark)
    end = 0
    for character in text:
        left -= _cells_of(character)
        if left < 0:
            break
        end += 1
    return text[:end].rstrip() + mark if width >= cells(mark) else ""


def indented(text: str, width: int, most_lines: int | None = None) -> str:
    """`text` in lines of at most `width` columns, two spaces in front of each; beyond `most_lines` it is cut."""
    room = max(width - 2, 10)
    lines = textwrap.wrap(text, room, max_lines=most_lines, placeholder=" …")
    return "\n".join(f"  {line}" for line in lines)


def wrapped(text: str, width: int) -> list[str]:
    """`text` in rows of at most `width` columns, cut wherever one is full: nothing is left out or changed."""
    if text.isascii():
        return [text[start : start + width] for start in range(0, len(text), width)]
    rows: list[str] = []
    begin = left = 0
    for at, character in enumerate(text):
        left -= _cells_of(character)
        if left < 0:
            rows.append(text[begin:at])
            begin, left = at, width - _cells_of(character)
    return [*rows[1:], text[begin:]]


def arguments_line(arguments: Mapping[str, Any] | str) -> str:
    """A call's arguments on one line: `query="limits" max_results=30`. Text is taken as it is."""
    if isinstance(arguments, str):
        return one_line(arguments[:_LONGEST_VALUE])
    return " ".join(f"{one_line(name)}={_value(value)}" for name, value in arguments.items())


def _value(value: Any) -> str:
    if isinstance(value, str):
        value = one_line(value[:_LONGEST_VALUE])
    written = json.dumps(value, ensure_ascii=False, default=str)
    return one_line(written[:_LONGEST_VALUE])


def duration(seconds: float) -> str:
    """A time for people, at most 9 characters up to an hour."""
    if seconds < 0.9995:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def escape_json(written: str) -> str:
    """JSON text with the characters escaped that JSON allows raw and that steer some terminals. The same value."""
    return re.sub(rf"[\x7f-\x9f{DIRECTION}]", lambda found: f"\\u{ord(found[0]):04x}", written)


def visible(text: str) -> str:
    """`text` with what does not print as it is written as in JSON, so that it is seen: nothing is removed."""
    return text if text.isprintable() else "".join(each if each.isprintable() else _escape(each) for each in text)


def visible_json(value: Any) -> str:
    """`value` as JSON on one line, with all that does not print escaped. It reads back as the same value."""
    return visible(json.dumps(value, ensure_ascii=False, default=str))


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
