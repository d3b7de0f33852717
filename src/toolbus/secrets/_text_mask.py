"""The search for secret values in text and in JSON. Pure.

A value is found as it is, and in the forms that programs give it: escaped for JSON, for a URL or HTML, as `repr` shows
it, in base64 and in hexadecimal; and one of several lines, such as a key in PEM, line by line. The search works on
UTF-8, in which a form can begin only where a character begins.
"""

from __future__ import annotations

import base64
import html
import json
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, compress, count
from typing import Any, Final, cast
from urllib.parse import quote, quote_plus

import orjson

from ..schemas import has_many_values

MIN_SECRET_CHARS: Final = 4
"""The least number of characters of a value that is searched for: shorter ones, such as "ok", are in any text."""

HIDDEN = "(hidden: it is too long to be searched for secrets)"
"""The text that replaces a text in which the search for secrets would take too long."""

# The least number of characters of base64 that are searched for: 36 bits, which rarely occur by chance.
_MIN_CODE_CHARS = 6
# A value that no escaping changes.
_UNCHANGED = re.compile(r"[A-Za-z0-9_.~-]+")
# What stays as it is in a URL, besides letters, digits and "_.-~": for Python, for Python's paths, for JavaScript's
# encodeURIComponent, for requests, and for httpx and browsers in a query.
_KEPT_IN_URLS = ("", "/", "!'()*", "!#$%&'()*+,/:;=?@[]", "!$%&'()*+,/:;=?@[\\]^`{|}")
# The least number of characters of a line that is searched for by itself, and the most lines of a value.
_MIN_LINE_CHARS, _MAX_LINES = 16, 100
_NUMERIC = re.compile(rb"[0-9.eE+-]+")


def forms_of(value: str) -> frozenset[str]:
    """Return the forms of `value` in text: itself, escaped, in hexadecimal, and in base64 at any offset.

    A value of fewer than `MIN_SECRET_CHARS` characters has no forms. Each long line of a value is a form too, because
    programs indent lines and put numbers before them.
    """
    if len(value) < MIN_SECRET_CHARS:
        return frozenset()
    raw = value.encode()
    forms = {value, raw.hex(), raw.hex().upper()}
    if not _UNCHANGED.fullmatch(value):
        forms |= _escaped(value)
    lines = [each.strip() for each in value.splitlines()[:_MAX_LINES]]
    forms |= {each for each in lines if len(each) >= _MIN_LINE_CHARS}
    for before in range(3):
        # A character of base64 that is shared with a neighbouring byte is left out, because the neighbour is unknown.
        code = base64.b64encode(bytes(before) + raw).decode().rstrip("=")
        last = len(code) - ((before + len(raw)) % 3 != 0)
        code = code[(0, 2, 3)[before] : last]
        if len(code) >= _MIN_CODE_CHARS:
            forms |= {code, code.replace("+", "-").replace("/", "_")}
    return frozenset(forms)


def _escaped(value: str) -> set[str]:
    """Return the forms of `value` in URLs, HTML, XML, Python and JSON, and in a text of JSON in JSON."""
    in_html = html.escape(value)
    forms = {in_html, in_html.replace("&quot;", "&#34;").replace("&#x27;", "&#39;"), html.escape(value, quote=False)}
    forms |= {quote_plus(value), *(quote(value, safe=kept) for kept in _KEPT_IN_URLS)}
    in_json = _in_json(value)
    forms |= in_json.union(*map(_in_json, in_json))
    # In a longer text with both kinds of quotes, `repr` escapes the single ones.
    return forms | {repr(value)[1:-1], repr(f'{value}"')[1:-2], ascii(value)[1:-1], repr(value.encode())[2:-1]}


def _in_json(text: str) -> set[str]:
    return {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}


# ------------------------------------------------------------------------------------------------- the search

_MAX_NS = 30_000_000  # nanoseconds for one search; a result is searched a few times
_LOOKUP_NS = 700  # nanoseconds for a position where a form may be, with its replacement
_MAX_HOLD_NS = 10_000_000  # nanoseconds for the end of one piece

# The groups of long, shorter and the shortest forms: the least length of such a form, the length of a window, and the
# steps at which windows of a text are looked up. The more seldom that is, the faster is the search.
_GROUPS = ((15, 8, 8), (7, 4, 4), (MIN_SECRET_CHARS, 4, 1))
# The nanoseconds for the lookup of a window, and the forms that are searched for one by one in a nanosecond a byte.
_WINDOW_NS, _FORMS_IN_NS = 60, 8


class _TooCostlyError(Exception):
    """The search in a text would take too long."""


class _Group:
    """Forms of similar length, and where a text may have them.

    A few forms are searched for one by one. The positions of many are found by an index, in a time that does not grow
    with their number. It has the windows of `size` bytes at the first `step` offsets of each form: wherever a text has
    the form, exactly one of them begins at a multiple of `step`.
    """

    __slots__ = ("_discarded", "_forms", "_index", "_size", "_step", "least")

    def __init__(self, least: int, size: int, step: int) -> None:
        self.least, self._size, self._step = least, size, step
        self._forms: set[bytes] = set()
        # The offsets and the lengths of forms by their windows, also of some forms that were discarded; None while the
        # forms are searched for one by one.
        self._index: dict[int, list[tuple[int, int]]] | None = None
        self._discarded = 0  # forms, since the index was made

    @property
    def byte_ns(self) -> int:
        """The nanoseconds that the search takes for each byte of a text."""
        return len(self._forms) // _FORMS_IN_NS if self._index is None else _WINDOW_NS // self._step

    def add(self, form: bytes) -> None:
        """Search for `form` from now on."""
        self._forms.add(form)
        if self._index is not None:
            self._enter(form, self._index)
        elif self.byte_ns > _WINDOW_NS // self._step:
            self._make_index()

    def discard(self, form: bytes) -> None:
        """Stop searching for `form`; it may still be a candidate."""
        self._forms.discard(form)
        self._discarded += 1
        if self._index is not None and self._discarded > len(self._forms):
            self._make_index()

    def _make_index(self) -> None:
        self._index, self._discarded = {}, 0
        for each in self._forms:
            self._enter(each, self._index)

    def _enter(self, form: bytes, index: dict[int, list[tuple[int, int]]]) -> None:
        for offset in range(self._step):
            window = int.from_bytes(form[offset : offset + self._size], sys.byteorder)
            entry = (offset, len(form))
            if (entries := index.get(window)) is None:
                index[window] = [entry]
            elif entry not in entries:
                entries.append(entry)

    def candidates(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield the starts and the lengths of forms that may be in `data`."""
        if self._index is None:
            for form in self._forms:
                start = data.find(form)
                while start >= 0:
                    yield start, len(form)
                    start = data.find(form, start + 1)
            return
        for shift in range(0, self._size, self._step):
            end = len(data) - (len(data) - shift) % self._size
            windows = memoryview(data)[shift:end].cast("Q" if self._size == 8 else "I")
            for number in compress(count(), map(self._index.__contains__, windows)):
                for offset, length in self._index[windows[number]]:
                    if (start := shift + number * self._size - offset) >= 0:
                        yield start, length


@dataclass(slots=True)
class _Beginnings:
    """The forms, their first `MIN_SECRET_CHARS` bytes, and the length of the longest; also some that were discarded."""

    forms: list[bytes] = field(default_factory=list[bytes])
    heads: set[bytes] = field(default_factory=set[bytes])
    longest: int = 0
    is_sorted: bool = False
    discarded: int = 0  # values

    def add(self, forms: Iterable[bytes]) -> None:
        """Add forms, which are put into order when they are needed: that is quick if most are in order."""
        for each in forms:
            self.forms.append(each)
            self.heads.add(each[:MIN_SECRET_CHARS])
            self.longest = max(self.longest, len(each))
        self.is_sorted = False

    def have(self, tail: bytes) -> bool:
        """Return whether a form begins with `tail`."""
        if not self.is_sorted:
            self.forms.sort()
            self.is_sorted = True
        place = bisect_right(self.forms, tail)
        return place < len(self.forms) and self.forms[place].startswith(tail)


class TextMask:
    """A set of values that are replaced by their references in text, in all their forms.

    If two forms begin at the same position, the longer one counts. A replacement is not searched again, and references
    stay as they are. Masking costs O(length of the text), however many values there are, without a copy of the text if
    nothing is found. A text is replaced by `HIDDEN` if so much in it looks like a value that the search would take too
    long: in a text of 4 MB if there are many values, and in one of 400 kB if many of them have fewer than 7 characters.
    """

    __slots__ = ("_beginnings", "_forms", "_groups", "_numeric", "_of")

    def __init__(self) -> None:
        # The references of each form. There may be several, because values such as 12345678 and "12345678" look alike.
        self._forms: dict[bytes, list[str]] = {}
        self._of: dict[str, frozenset[bytes]] = {}  # the forms of each reference
        self._numeric: set[bytes] = set()  # the forms that may be (part of) a number
        self._groups = [_Group(*each) for each in _GROUPS]
        self._beginnings: _Beginnings | None = None  # None if they have to be computed again

    def __bool__(self) -> bool:
        return bool(self._forms)

    def add(self, value: str, reference: str) -> None:
        """Search for `value` from now on. The cost does not grow with the number of values."""
        if not (written := forms_of(value)):
            return
        # With its own reference as a form, no other value is found inside the reference.
        forms = frozenset([form.encode() for form in (*written, reference)])
        if self._beginnings is not None:
            self._beginnings.add([form for form in forms if form not in self._forms])
        for form in forms:
            known = self._forms.setdefault(form, [])
            if not known:
                self._group_of(form).add(form)
            if reference in known:
                known.remove(reference)
            known.append(reference)
            if _NUMERIC.fullmatch(form):
                self._numeric.add(form)
        self._of[reference] = self._of.get(reference, frozenset()) | forms

    def discard(self, reference: str) -> None:
        """Stop searching for the value of `reference`."""
        for form in self._of.pop(reference, frozenset()):
            self._forms[form].remove(reference)
            if not self._forms[form]:
                del self._forms[form]
                self._group_of(form).discard(form)
                self._numeric.discard(form)
        if (known := self._beginnings) is not None:
            known.discarded += 1
            if known.discarded > len(self._of):
                self._beginnings = None

    @property
    def has_numbers(self) -> bool:
        """True if a value could be (part of) a number."""
        return bool(self._numeric)

    def mask(self, text: str) -> str:
        """Return `text` with references instead of values; itself if there is no value in it."""
        try:
            return self.mask_all([text])[0]
        except _TooCostlyError:
            return HIDDEN

    def mask_all(self, texts: list[str]) -> list[str]:
        """Mask all texts in one search. Returns the list itself if there is no value in them.

        Raises `_TooCostlyError` if that would take too long.
        """
        # No text has this byte in UTF-8, and so no form has it.
        data = b"\xff".join([_encoded(text) for text in texts])
        if not (found := self._found(data)):
            return texts
        masked = map(_decoded, self._cut(data, found, len(data))[0].split(b"\xff"))
        return [before if before == after else after for before, after in zip(texts, masked, strict=True)]

    def split(self, text: str) -> tuple[str, str]:
        """Return the masked beginning of `text`, as far as what follows cannot change it, and the unmasked rest.

        Raises `_TooCostlyError` if that would take too long.
        """
        data = _encoded(text)
        if (end := self._hold(data, 0)) == 0:
            return "", text
        found = self._found(data)
        if not found and end == len(data):
            return text, ""
        shown, rest = self._cut(data, found, end)
        return _decoded(shown), _decoded(rest)

    def _found(self, data: bytes) -> list[tuple[int, int]]:
        """Return the start and the negative length of each form in `data`, in order, the longest of a start first."""
        read_ns = len(data) * sum([each.byte_ns for each in self._groups])
        left_ns = _MAX_NS - read_ns
        found: list[tuple[int, int]] = []
        for start, length in chain.from_iterable(each.candidates(data) for each in self._groups if left_ns > 0):
            left_ns -= _LOOKUP_NS + length
            if left_ns <= 0:
                break
            if data[start : start + length] in self._forms:
                found.append((start, -length))
        if left_ns <= 0:
            raise _TooCostlyError
        return sorted(found)

    def _group_of(self, form: bytes) -> _Group:
        return next(each for each in self._groups if len(form) >= each.least)

    def _cut(self, data: bytes, found: list[tuple[int, int]], end: int) -> tuple[bytes, bytes]:
        """Return the masked text up to `end`, or to the end of a form that begins before it, and the rest."""
        parts: list[bytes] = []
        at = 0
        for start, negative in found:
            if start >= end:
                break
            if start >= at:
                stop = start - negative
                parts += (data[at:start], self._forms[data[start:stop]][-1].encode())
                at = stop
                if at > end:
                    end = self._hold(data, at)
        parts.append(data[at:end])
        return b"".join(parts), data[end:]

    def _hold(self, data: bytes, at: int) -> int:
        """Return the first position from `at` where a form may begin that the text cuts off; else the text's end.

        An earlier position is returned if the search would take too long.
        """
        if (known := self._beginnings) is None:
            known = self._beginnings = _Beginnings()
            known.add(self._forms)
        left_ns = _MAX_HOLD_NS
        for start in range(max(at, len(data) - known.longest + 1), len(data)):
            left_ns -= 100
            if data[start : start + MIN_SECRET_CHARS] in known.heads or start > len(data) - MIN_SECRET_CHARS:
                tail = data[start:]
                left_ns -= 2_000 + len(tail)
                if known.have(tail):
                    return start
            if left_ns < 0:
                return start
        return len(data)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


class PieceMask:
    """The mask of one text that comes in pieces. The pieces that it returns, joined, are the whole text masked.

    At most the longest form's length is held back, and usually only while it could be the beginning of a value. If a
    piece would take too long, it is `HIDDEN`, and nothing follows: the next pieces may begin with the rest of a value.
    """

    __slots__ = ("_held", "_mask")

    def __init__(self, mask: TextMask) -> None:
        self._mask = mask
        self._held: str | None = ""  # None after a piece that was hidden

    def feed(self, piece: str) -> str:
        """Return the masked text that can be published by now; it may be empty."""
        if self._held is None:
            return ""
        try:
            shown, self._held = self._mask.split(self._held + piece)
        except _TooCostlyError:
            shown, self._held = HIDDEN, None
        return shown

    def flush(self) -> str:
        """Return the masked rest, when no piece follows."""
        held, self._held = self._held or "", ""
        return self._mask.mask(held)


# ------------------------------------------------------------------------------------------------- JSON

# In one value, the most texts that are parsed as JSON, and the most values in them: either takes some 40 ms.
_MAX_TEXTS = 4_000
_MAX_VALUES = 50_000
# The most levels of JSON in texts of JSON. Each level doubles the backslashes that are written, however it was read.
_MAX_LEVELS = 6


def masked_json(value: Any, mask: TextMask) -> Any:
    """Return a JSON value with references instead of values in its texts, names and numbers; itself without any.

    JSON in a text is masked as `masked_content` does it.
    """
    try:
        return _masked_json(value, mask, 0)
    except (_TooCostlyError, RecursionError):
        return {"hidden": HIDDEN} if isinstance(value, Mapping) else HIDDEN


def masked_content(text: str, mask: TextMask) -> str:
    """Return `text` masked. JSON stays JSON, and is parsed to find values with unusual escapes."""
    try:
        return _masked_texts([text], mask, 0)[0]
    except (_TooCostlyError, RecursionError):
        return HIDDEN


def _masked_json(value: Any, mask: TextMask, level: int) -> Any:
    texts: list[str] = []
    _add_texts(value, texts, mask)
    masked = _masked_texts(texts, mask, level)
    left = iter(masked)
    return value if masked is texts else _with_texts(value, lambda _: next(left), mask)


def _masked_texts(texts: list[str], mask: TextMask, level: int) -> list[str]:
    masked = mask.mask_all(texts)
    written = [
        index
        for index, (before, after) in enumerate(zip(texts, masked, strict=True))
        if (after is not before or "\\" in before) and before.lstrip()[:1] in ("{", "[")
    ]
    if not written:
        return masked
    read_bytes = [_encoded(texts[index]) for index in written[:_MAX_TEXTS]]
    if level >= _MAX_LEVELS or len(written) > _MAX_TEXTS or has_many_values(*read_bytes, limit=_MAX_VALUES):
        raise _TooCostlyError
    read: dict[int, Any] = {}
    for index in written:
        with suppress(orjson.JSONDecodeError):
            read[index] = orjson.loads(texts[index])
    hidden: list[Any] = _masked_json(before := list(read.values()), mask, level + 1)
    after: dict[int, str] = {}
    for index, old, new in zip(read, before, hidden, strict=True):
        if new is not old:
            with suppress(TypeError):  # It has a text that JSON cannot encode.
                after[index] = orjson.dumps(new).decode()
    masked_again = dict(zip(after, mask.mask_all(list(after.values())), strict=True))
    return [masked_again.get(index, each) for index, each in enumerate(masked)] if after else masked


def _add_texts(value: Any, texts: list[str], mask: TextMask) -> None:
    """Add each text, name and number of a JSON value to `texts`, in order."""
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, Mapping):
        for name, each in cast("Mapping[Any, Any]", value).items():
            if isinstance(name, str):
                texts.append(name)
            _add_texts(each, texts, mask)
    elif isinstance(value, (list, tuple)):
        for each in cast("list[Any]", value):
            _add_texts(each, texts, mask)
    elif mask.has_numbers and isinstance(value, (int, float)) and not isinstance(value, bool):
        texts.append(str(value))


def _with_texts(value: Any, put: Callable[[str], str], mask: TextMask) -> Any:
    """Return a JSON value with `put(text)` for each text, name and number; itself if all stay as they are.

    The order is that of `_add_texts`.
    """
    if isinstance(value, str):
        return put(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return value if not mask.has_numbers or (shown := put(text := str(value))) == text else shown
    if isinstance(value, Mapping):
        before = cast("Mapping[Any, Any]", value)
        after = {
            put(name) if isinstance(name, str) else name: _with_texts(each, put, mask) for name, each in before.items()
        }
        same = all(a is b and x is y for (a, x), (b, y) in zip(after.items(), before.items(), strict=False))
        return before if same and len(after) == len(before) else after
    if isinstance(value, (list, tuple)):
        old = cast("list[Any]", value)
        new = [_with_texts(each, put, mask) for each in old]
        return old if all(x is y for x, y in zip(new, old, strict=True)) else new
    return value
