"""Text for terminals: escape sequences removed, even where a stream splits them, and lines cut to a width. Pure.

The text of a model or a file must not control the user's terminal. Colours, titles, cursor moves and links are removed,
and so are all other control characters except tab and line break, and characters that change the writing direction:
see `toolbus.core.plain_text`.
"""

from __future__ import annotations

import json
import re
import textwrap
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...core.plain_text import CSI, DIRECTION, STRING, clean, one_line

_UNFINISHED = re.compile(rf"(?:{CSI}|{STRING}\x1b?|\x1b[ -/]{{0,8}})\Z")
_MAX_VALUE_CHARS = 400  # characters of one argument that are examined; no terminal line shows more
_MAX_LINE_CHARS = 10_000  # characters of all arguments together after which no more are examined
# Characters that most fonts show as nothing, although they count as printable: fillers and variation selectors.
_UNSEEN = re.compile(
    r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


class Cleaner:
    """`clean` for text that arrives in pieces, where a sequence may be split anywhere.

    At most about 1,000 characters are held back.
    """

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """Return the text that can be shown so far."""
        text = self._held + piece
        unfinished = _UNFINISHED.search(text)
        self._held = "" if unfinished is None else text[unfinished.start() :]
        return clean(text if unfinished is None else text[: unfinished.start()])

    def flush(self) -> str:
        """Return the held-back text, which turned out not to be a complete sequence."""
        held, self._held = self._held, ""
        return clean(held)


def cells(text: str) -> int:
    """Return the number of terminal columns that `text` takes; the estimate is never too small."""
    if text.isascii():
        return len(text)
    return sum(map(_cells_of, text))


def _cells_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int, mark: str = "…") -> str:
    """Return `text` if it fits into `width` columns, else its beginning followed by `mark`."""
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


def padded(rows: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Yield the rows of a table with each text as wide as its column, so that the columns stand below each other."""
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield [text + " " * (width - cells(text)) for text, width in zip(row, widths, strict=True)]


def indented(text: str, width: int, max_lines: int | None = None) -> str:
    """Return `text` in lines of at most `width` columns, each indented by two spaces, cut after `max_lines`."""
    columns = max(width - 2, 10)
    if not text.isascii():
        # A wide character counts as two: a mark, which clean text does not contain, and itself. A line may break
        # between them, so one column is left free.
        text = "".join(f"\0{each}" if _cells_of(each) == 2 else each for each in text)
        columns -= 1
    lines = textwrap.wrap(text, columns, max_lines=max_lines, placeholder=" …")
    return "\n".join(f"  {line}" for line in lines).replace("\0", "")


def wrapped(text: str, width: int) -> list[str]:
    """Return `text` in rows of at most `width` columns, broken wherever a row is full, with nothing left out."""
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
    """Return a call's arguments on one line: `query="limits" max_results=30`. Text is shown as it is."""
    if isinstance(arguments, str):
        return one_line(arguments[:_MAX_VALUE_CHARS])
    pairs: list[str] = []
    left = _MAX_LINE_CHARS
    for name, value in arguments.items():
        pairs.append(f"{one_line(name[:_MAX_VALUE_CHARS])}={_value(value)}")
        left -= len(pairs[-1])
        if left < 0:
            break
    return " ".join(pairs)


def _value(value: Any) -> str:
    if isinstance(value, str):
        value = one_line(value[:_MAX_VALUE_CHARS])
    written = json.dumps(value, ensure_ascii=False, default=str)
    return one_line(written[:_MAX_VALUE_CHARS])


def duration(seconds: float) -> str:
    """Format a duration for display, in at most 9 characters up to an hour."""
    if seconds < 0.9995:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def counted(number: int, what: str) -> str:
    """Return a number with the noun of what it counts: "1 fact", "1,000 facts"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def escape_json(written: str) -> str:
    """Escape characters of a JSON text that JSON allows raw and that control some terminals. The value is the same."""
    return re.sub(rf"[\x7f-\x9f{DIRECTION}]", lambda found: f"\\u{ord(found[0]):04x}", written)


def visible(text: str) -> str:
    """Return `text` with characters that cannot be seen escaped as in JSON: nothing is removed."""
    shown = text if text.isprintable() else "".join(each if each.isprintable() else _escape(each) for each in text)
    return _UNSEEN.sub(lambda found: _escape(found[0]), shown)


def visible_json(value: Any) -> str:
    """Return `value` as JSON on one line, with what cannot be seen escaped. It parses back to the same value."""
    return visible(json.dumps(value, ensure_ascii=False, default=str))


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
