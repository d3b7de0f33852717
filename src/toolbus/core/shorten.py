r"""A shortener for long results that keeps them readable for the model: JSON stays JSON. Pure.

Nothing is lost: the whole result stays in the transcript, and `read_result` pages through it.

Example:
    from toolbus.core.shorten import MIN_CHARS, page, shorten

    log = "\n".join(f"line {number}" for number in range(1_000))
    print(len(shorten(log, MIN_CHARS)) <= MIN_CHARS)  # True
    print("line 0" in page(log, 0, 500))  # True
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeAlias, cast

import orjson

from ..schemas import has_big_number, has_many_values
from ..tool_results import clean

__all__ = ["MIN_CHARS", "page", "shorten"]

MIN_CHARS = 200
"""The lower bound of every cut, in characters: a note on what is missing, and on how to read it, has to fit as well."""

_OPENING = re.compile(r"\s*+[\[{]")
_MARK_CHARS = 32  # a text is not cut where the mark would be as long as the text that it replaces
_STEP_CHARS = 16  # characters by which texts grow for each item by which lists grow
_FINE = 16  # the search ends within a sixteenth of the best size


def shorten(content: str, max_chars: int, call_id: str = "") -> str:
    """Return `content` unchanged if it fits, else at most `max_chars` characters of it (at least `MIN_CHARS`).

    A JSON object or array stays valid JSON. Each list keeps its first items and each object its keys; long texts are
    cut; and where that is not enough, the deepest values are left out first, then keys from the end. A mark at each cut
    says what is missing: a last item "... 488 more items", a text's end "... 90 more characters", a key "..." with
    "5 more keys". The mark at the end says how many characters the whole had. JSON that fits without its white space
    loses only the white space. Any other text keeps its beginning; so does JSON with more than 1,024 levels or 100,000
    values.

    With `call_id` the last mark shows the call of `read_result` that returns the rest, unless the id is too long for
    it. The result is deterministic, and the function never raises. To shorten further, pass the whole content again and
    not a shortened one, whose marks would be counted as items. Costs one reading of `content` (some 50 ms for
    100,000 values), and steps in proportion to `max_chars`.
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
    """Return the page of `content` that begins at character `offset`, after a line with its range and the next offset.

    The page has at most `max_chars` characters with that line (at least `MIN_CHARS`). Past the end, it is one line that
    says so.
    """
    total = len(content)
    if offset >= total:
        return f"There is nothing at offset {offset}: the result has {total} characters."
    limit = max(max_chars, MIN_CHARS) - len(_page_line(total, total, total, last=False))
    until = min(offset + limit, total)
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
    """A number in the digits of the original text."""

    __slots__ = ()


def _read(content: str) -> Any:
    """Return the JSON value in `content`, or None if it is not valid JSON, or has too many values to be read."""
    data = content.encode("utf-8", "surrogatepass")
    if has_many_values(data):
        return None
    if not has_big_number(data):  # Longer numbers are kept as they are written.
        try:
            return orjson.loads(content)
        except orjson.JSONDecodeError:
            pass
    try:  # The standard library's reader accepts lone surrogates, and numbers of any size.
        return json.loads(content, parse_int=_Number, parse_float=_Number, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(word: str) -> None:
    raise ValueError(word)


# -------------------------------------------------------------------------------------------------- writing


class _Box:
    """A list or an object in the form in which it will be written: its first members, and a mark for the others."""

    __slots__ = ("members", "rest", "value")

    def __init__(self, value: _Container) -> None:
        self.value = value
        self.members: list[tuple[str, str | _Box]] = []  # a key with its colon, and the item in written form
        self.rest = len(value)  # the number of members that are left out

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
    """Return the outline of `value` with the most items of each list and characters of each text that fits, or None."""
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
    """Return `value` with the first `grain` items of each list, at least one, and `16 * grain` characters of each text.

    Returns None where the outline is longer than `budget` characters. Costs O(budget), whatever the size of `value`.
    """
    limit, longest = max(1, grain), min(grain * _STEP_CHARS, budget)
    root = _Box(value)
    boxes = deque([root])
    left = budget
    while boxes:
        box = boxes.popleft()
        left -= len("[]")
        for name, item in _members(box.value, limit):
            piece = _piece(item, longest)
            left -= len(name) + len(",")
            if isinstance(piece, str):
                left -= len(piece)
            else:
                boxes.append(piece)
            if left < 0:  # The count may be one comma too high, which is corrected below.
                return None
            box.add(name, piece)
        left += len(",") if box.members and not box.rest else -len(_mark(box.value, box.rest))
        if left < 0:
            return None
    return root


def _head(value: _Container, budget: int) -> _Box:
    """Return the top levels of `value`: level by level, the keys that fit in `budget`, and the first item of lists."""
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
    """Return the length of a list or an object of which only the mark is written."""
    return len("[]") + len(_mark(box.value, len(box.value)))


def _members(value: _Container, limit: int) -> Iterator[tuple[str, Any]]:
    """Yield at most `limit` items of a list with an empty name, or all items of an object with key and colon."""
    if isinstance(value, list):
        for item in islice(value, limit):
            yield "", item
    else:
        for key, item in value.items():
            yield f"{_quoted(key)}:", item


def _piece(item: Any, longest: int) -> str | _Box:
    """Return the written form of a simple item, cut to `longest` characters and a mark, or a box for a container."""
    if isinstance(item, (list, dict)):
        inside = cast("_Container", item)
        return _Box(inside) if inside else str(inside)
    if isinstance(item, _Number):
        return str(item) if len(item) <= longest + _MARK_CHARS else _cut(item, longest, "digits")
    if isinstance(item, str):
        return _quoted(item) if len(item) <= longest + _MARK_CHARS else _cut(item, longest, "characters")
    # Python writes numbers and booleans as JSON does, except for the capital letters of booleans.
    return "null" if item is None else repr(item).lower()


def _cut(text: str, longest: int, what: str) -> str:
    return _quoted(f"{text[:longest]}... {len(text) - longest} more {what}")


def _mark(value: _Container, rest: int, tail: str = "") -> str:
    """Return the last member of a cut container: the number of members left out, and `tail`. Empty without both."""
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
    except TypeError:  # A lone surrogate has to be escaped, as it was in the original JSON.
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
