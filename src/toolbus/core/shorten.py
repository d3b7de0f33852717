"""Long results cut for the model, so that what is left can still be read: JSON stays JSON. Pure.

Nothing is lost by it: the whole result stays in the transcript, and `read_result` pages through it.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeAlias, cast

import orjson

from ..tool_results import clean

__all__ = ["MIN_CHARS", "page", "shorten"]

MIN_CHARS = 200
"""The least that anything is cut to: what is missing, and how to read it, has to fit as well."""

_OPENING = re.compile(r"\s*[\[{]")
_LONG_NUMBER = re.compile(r"\d{19}")  # 2**63 has 19 digits; longer numbers are kept as they are written
_MARK_CHARS = 32  # a text is not cut where the mark would be as long as what it stands for
_STEP_CHARS = 16  # by which texts grow, while lists grow by an item
_FINE = 16  # the search ends within a sixteenth of the best


def shorten(content: str, max_chars: int, call_id: str = "") -> str:
    """`content` as it is where it fits, else at most `max_chars` characters of it; never fewer than `MIN_CHARS`.

    A JSON object or array stays one. Each list keeps its first items and each object its keys; long texts are cut; and
    where that is not enough, what is deepest is left out first, then keys from the end. What is missing is said where
    it is: by a last item "... 488 more items", a text's end "... 90 more characters", a key "..." with "5 more keys".
    The end of the whole tells how many characters there were. JSON that fits without its white space loses that alone.
    Any other text keeps its beginning; so does JSON in more than 1,024 levels.

    With `call_id` the mark says how `read_result` gives the rest, unless the id itself is too long. Deterministic, and
    never raises. Shorten the whole again rather than what was shortened, whose marks would be counted as items. Costs
    one reading of `content` (some 50 ms for each MiB), and steps in proportion to `max_chars`.
    """
    max_chars = max(max_chars, MIN_CHARS)
    if len(content) <= max_chars:
        return content
    if _OPENING.match(content):
        value = _read(content)
        if isinstance(value, (list, dict)):
            return _shortened(cast("_Container", value), max_chars, len(content), _hint(call_id, 0, max_chars))
    total = len(content)
    longest = _hint(call_id, total, max_chars)
    kept = max_chars - len(_text_mark(total, total, longest))
    mark = _text_mark(total - kept, total, longest and _hint(call_id, kept, max_chars))
    return clean(content[:kept]) + mark


def page(content: str, offset: int, max_chars: int) -> str:
    """A part of `content` from character `offset` on, behind a line that says which one and where the next begins.

    At most `max_chars` characters with that line, and never fewer than `MIN_CHARS`. Past the end, the line says so.
    """
    total = len(content)
    if offset >= total:
        return f"There is nothing at offset {offset}: the result has {total} characters."
    most = max(max_chars, MIN_CHARS) - len(_page_line(total, total, total, last=False))
    until = min(offset + most, total)
    return _page_line(offset, until, total, last=until == total) + clean(content[offset:until])


def _page_line(offset: int, until: int, total: int, *, last: bool) -> str:
    follows = "This is the end." if last else f"The next page: offset={until}."
    return f"Characters {offset} to {until} of {total}. {follows}\n"


def _text_mark(missing: int, total: int, hint: str) -> str:
    return f"\n... {missing} of {total} characters are missing{f'; {hint} gives them' if hint else ''}"


def _hint(call_id: str, offset: int, max_chars: int) -> str:
    if not call_id:
        return ""
    hint = f"read_result(call_id={_quoted(call_id)}, offset={offset})"
    return hint if len(_quoted(hint)) <= max_chars // 2 else ""


# -------------------------------------------------------------------------------------------------- reading

_Container: TypeAlias = list[Any] | dict[str, Any]


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


def _read(content: str) -> Any:
    """What `content` says, or None where it is no JSON."""
    if not _LONG_NUMBER.search(content):
        try:
            return orjson.loads(content)
        except orjson.JSONDecodeError:
            pass
    try:  # more patient: lone surrogates, and numbers of any size
        return json.loads(content, parse_int=_Number, parse_float=_Number, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(word: str) -> None:
    raise ValueError(word)


# -------------------------------------------------------------------------------------------------- writing


class _Box:
    """A list or an object as it is going to be written: its first members, and a mark for the others."""

    __slots__ = ("members", "rest", "value")

    def __init__(self, value: _Container) -> None:
        self.value = value
        self.members: list[tuple[str, str | _Box]] = []  # a key with its colon, and what is written of the item
        self.rest = len(value)

    def add(self, name: str, piece: str | _Box) -> None:
        """Write one more member."""
        self.members.append((name, piece))
        self.rest -= 1


def _shortened(value: _Container, max_chars: int, total: int, hint: str) -> str:
    if (whole := _outline(value, max_chars, max_chars)) is not None:
        return _written(whole)
    tail = f"shortened from {total} characters{f'; {hint} gives all of it' if hint else ''}"
    budget = max_chars - len(_mark(value, 0, tail)) - len(",; ")
    return _written(_finest(value, budget) or _head(value, budget), tail)


def _finest(value: _Container, budget: int) -> _Box | None:
    """All parts of `value`, with as many items of each list and characters of each text as fit; None where none do."""
    best = _outline(value, budget, 0)
    if best is None:
        return None
    fits, fails = 0, 1
    while (box := _outline(value, budget, fails)) is not None and fails <= budget:
        best, fits, fails = box, fails, fails * 4
    while fails - fits > 1 + fits // _FINE:
        grain = (fits + fails) // 2
        if (box := _outline(value, budget, grain)) is None:
            fails = grain
        else:
            best, fits = box, grain
    return best


def _outline(value: _Container, budget: int, grain: int) -> _Box | None:
    """`value` with the first `grain` items of each list, at least one, and 16 times as many characters of each text.

    None where that is longer than `budget`. Costs O(budget), however much there is.
    """
    most, longest = max(1, grain), min(grain * _STEP_CHARS, budget)
    root = _Box(value)
    boxes = deque([root])
    left = budget
    while boxes:
        box = boxes.popleft()
        left -= len("[]")
        for name, item in _members(box.value, most):
            piece = _piece(item, longest)
            left -= len(name) + len(",")
            if isinstance(piece, str):
                left -= len(piece)
            else:
                boxes.append(piece)
            if left < 0:  # by a comma too many, at most
                return None
            box.add(name, piece)
        left += len(",") if box.members and not box.rest else -len(_mark(box.value, box.rest))
        if left < 0:
            return None
    return root


def _head(value: _Container, budget: int) -> _Box:
    """What is uppermost in `value`: level by level, each key as long as there is room, and the first item of lists."""
    root = _Box(value)
    boxes = deque([root])
    left = budget - _closed_size(root)
    while boxes:
        box = boxes.popleft()
        closed = _closed_size(box)
        mark_size = closed - len("[]")
        size = len("[]")
        for name, item in _members(box.value, 1):
            piece = _piece(item, 0)
            added = len(name) + len(",") + (len(piece) if isinstance(piece, str) else _closed_size(piece))
            if size + added + (mark_size if box.rest > 1 else 0) - closed > left:
                break
            box.add(name, piece)
            size += added
            if not isinstance(piece, str):
                boxes.append(piece)
        if box.members:
            left -= size + (mark_size if box.rest else 0) - closed
    return root


def _closed_size(box: _Box) -> int:
    """The length of a list or an object of which nothing is written but the mark."""
    return len("[]") + len(_mark(box.value, len(box.value)))


def _members(value: _Container, most: int) -> Iterator[tuple[str, Any]]:
    """The first `most` items of a list, or all keys of an object, written with the colon, and what is at them."""
    if isinstance(value, list):
        for item in islice(value, most):
            yield "", item
    else:
        for key, item in value.items():
            yield f"{_quoted(key)}:", item


def _piece(item: Any, longest: int) -> str | _Box:
    """What is written of an item: a text with at most `longest` characters before its mark, or what is yet to open."""
    if isinstance(item, (list, dict)):
        inside = cast("_Container", item)
        return _Box(inside) if inside else str(inside)
    if isinstance(item, _Number):
        return str(item) if len(item) <= longest + _MARK_CHARS else _cut(item, longest, "digits")
    if isinstance(item, str):
        return _quoted(item) if len(item) <= longest + _MARK_CHARS else _cut(item, longest, "characters")
    return "null" if item is None else repr(item).lower()  # of numbers and truth values, Python's words are JSON's


def _cut(text: str, longest: int, what: str) -> str:
    return _quoted(f"{text[:longest]}... {len(text) - longest} more {what}")


def _mark(value: _Container, rest: int, tail: str = "") -> str:
    """The last member of what is cut: how many others there are. Empty where there is nothing to be said."""
    is_list = isinstance(value, list)
    said = f"{rest} more {'item' if is_list else 'key'}{'' if rest == 1 else 's'}" if rest else ""
    said = f"{said}; {tail}" if said and tail else said or tail
    if not said:
        return ""
    return _quoted(f"... {said}") if is_list else f"{_quoted(_free_key(value))}:{_quoted(said)}"


def _free_key(value: _Container) -> str:
    key, number = "...", 1
    while key in value:
        number += 1
        key = f"... {number}"
    return key


def _quoted(text: str) -> str:
    try:
        return orjson.dumps(text).decode()
    except TypeError:  # a lone surrogate: escaped, as whoever wrote the JSON has done
        return json.dumps(text)


def _written(root: _Box, tail: str = "") -> str:
    written: list[str] = []
    pieces: list[str | _Box] = [root]
    while pieces:
        piece = pieces.pop()
        if isinstance(piece, str):
            written.append(piece)
            continue
        inside: list[str | _Box] = []
        for name, each in piece.members:
            inside += (name, each, ",")
        mark = _mark(piece.value, piece.rest, tail if piece is root else "")
        if mark:
            inside.append(mark)
        elif inside:
            inside.pop()
        opening, closing = "[]" if isinstance(piece.value, list) else "{}"
        pieces += (closing, *reversed(inside), opening)
    return "".join(written)
