"""The marked fields of a JSON schema, and the search for secret values in text. Pure.

A field is marked if its schema has `writeOnly` or the format `password`: pydantic writes both for `SecretStr` and
`SecretBytes`. A value is found in text as it is, and in the forms that programs give it: escaped for JSON, for a URL or
HTML, as `repr` shows it, in base64 and in hexadecimal.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast
from urllib.parse import quote, quote_plus

import orjson

from ..errors import InvalidArguments
from ..schemas import as_object, cost_of, matcher, way_to

REFERENCE: Final = re.compile(r"secret:[0-9a-f]{16}")
"""The form of a reference, which stands for a secret: 64 bits that reveal nothing about its value."""

MIN_SECRET_CHARS: Final = 4
"""The least number of characters of a value that is searched for: shorter ones, such as "ok", are in any text."""

# The least number of characters of base64 that are searched for: 36 bits, which rarely occur by chance.
_MIN_CODE_CHARS = 6

Scalar: TypeAlias = str | int | float


# ------------------------------------------------------------------------------------------------- marked fields


class Marks:
    """The marks of a JSON schema at one position, and at the positions below it. A graph, since schemas may recur."""

    __slots__ = ("alternatives", "closed", "first", "items", "names", "others", "patterns", "secret")

    def __init__(self) -> None:
        self.secret = False
        self.closed = False  # whether only the named properties are allowed
        self.names: dict[str, Marks] = {}
        # Each entry has the pattern's matcher, its nanoseconds for a character, and the marks of matching properties.
        self.patterns: list[tuple[Callable[[str], bool], int, Marks]] = []
        self.others: Marks | None = None
        self.first: list[Marks] = []  # the positions of a tuple
        self.items: list[Marks] = []
        self.alternatives: list[Marks] = []  # other schemas for the same position


def find_marks(schema: Mapping[str, Any]) -> Marks | None:
    """Return the marks of `schema`, or None if no field is marked. Costs one walk through the schema.

    A position is marked if any of its alternatives is. References within the schema are followed, others are not.
    """
    reader = _Reader(schema)
    marks = reader.read(schema)
    return marks if any(each.secret for each in reader.known.values()) else None


_NO_MARKS = Marks()  # the marks of a position without any, like most positions of a schema
_READ = frozenset({
    "$ref", "additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "dependentSchemas", "else",
    "format", "if", "items", "oneOf", "patternProperties", "prefixItems", "properties", "then", "unevaluatedItems",
    "unevaluatedProperties", "writeOnly",
})  # fmt: skip


class _Reader:
    """One walk through a schema. `known` holds the marks by the identity of their schema, so that a recursion ends."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._compile_ns = 0
        self.known: dict[int, Marks] = {}

    def read(self, schema: Any) -> Marks:
        if not isinstance(schema, Mapping):  # The values true and false are schemas as well.
            return _NO_MARKS
        schema = cast("Mapping[str, Any]", schema)
        if _READ.isdisjoint(schema):
            return _NO_MARKS
        marks = self.known.get(id(schema))
        if marks is not None:
            return marks
        marks = self.known[id(schema)] = Marks()
        marks.secret = schema.get("writeOnly") is True or schema.get("format") == "password"
        marks.names = {name: self.read(each) for name, each in as_object(schema.get("properties")).items()}
        for pattern, each in as_object(schema.get("patternProperties")).items():
            marks.patterns.append((*self._matcher(pattern), self.read(each)))
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
        marks.closed = others is False
        if isinstance(others, Mapping):
            marks.others = self.read(cast("object", others))
        items = schema.get("items")
        marks.first = [self.read(each) for each in (*_list(schema.get("prefixItems")), *_list(items))]
        marks.items = [self.read(schema.get(key)) for key in _FOR_ITEMS if isinstance(schema.get(key), Mapping)]
        for key in ("anyOf", "oneOf", "allOf"):
            marks.alternatives += [self.read(each) for each in _list(schema.get(key))]
        for key in ("if", "then", "else"):
            if key in schema:
                marks.alternatives.append(self.read(schema[key]))
        marks.alternatives += [self.read(each) for each in as_object(schema.get("dependentSchemas")).values()]
        if isinstance(schema.get("$ref"), str):
            marks.alternatives.append(self.read(self._at(schema["$ref"])))
        return marks

    def _matcher(self, pattern: str) -> tuple[Callable[[str], bool], int]:
        """Return a function that matches names in a bounded time, and its nanoseconds for each character.

        A pattern of another dialect, or one that is costly to match, is treated as if it matched everything.
        """
        try:
            cost = cost_of(pattern)
        except ValueError:
            return _anything, 0
        self._compile_ns += cost.compile_ns
        if self._compile_ns > _MAX_COMPILE_NS or cost.match_ns > _MAX_MATCH_NS:
            return _anything, 0
        return matcher(pattern) or _anything, cost.match_ns

    def _at(self, reference: str) -> Any:
        """Return the target of a reference within the schema (RFC 6901), or None for any other reference."""
        try:
            return way_to(reference, self._root)[-1]
        except LookupError:
            return None


def _anything(_name: str) -> bool:
    return True


_MAX_COMPILE_NS = 30_000_000  # nanoseconds for all patterns of a schema
# The nanoseconds for a character, with a pattern of some 50 parts. Names of properties need no larger patterns.
_MAX_MATCH_NS = 4_000
_FOR_ITEMS = ("items", "additionalItems", "unevaluatedItems", "contains")


def _list(given: Any) -> list[Any]:
    return cast("list[Any]", given) if isinstance(given, list) else []


def replaced(value: Any, marks: Marks, replace: Callable[[Scalar], Any]) -> Any:
    """Return `value` with `replace(each)` for each text and number at a marked position; itself if nothing is replaced.

    Everything below a marked position is marked, and so are properties that a closed object does not name, which are
    refused anyway. Empty texts and truth values are not secrets. Raises `InvalidArguments` if the search would take too
    long, because the schema and the value may both be untrusted.
    """
    return _Replacing(replace).replaced(value, (marks,), secret=False)


class _Replacing:
    """One walk through a value, which is bounded in time."""

    def __init__(self, replace: Callable[[Scalar], Any]) -> None:
        self._replace = replace
        self._left_ns = _MAX_NS

    def replaced(self, value: Any, given: Iterable[Marks], *, secret: bool) -> Any:
        """Return the value, or the one that replaces it."""
        if value is None or isinstance(value, bool) or value == "":
            return value
        at = list(_all_of(given))
        if not (at or secret):
            return value
        self._spend(_VISIT_NS * (1 + len(at)))
        secret = secret or any(each.secret for each in at)
        if isinstance(value, Mapping):
            return self._object(cast("Mapping[str, Any]", value), at, secret=secret)
        if isinstance(value, (list, tuple)):
            old = cast("list[Any]", value)
            new = [self.replaced(each, _at_index(at, index), secret=secret) for index, each in enumerate(old)]
            return new if any(x is not y for x, y in zip(new, old, strict=True)) else old
        if not secret or not isinstance(value, (str, int, float)):
            return value
        text = str(value)
        self._spend(_SECRET_NS + len(text) * (_CHAR_NS if text.isascii() else _OTHER_CHAR_NS))
        return self._replace(value)

    def _object(self, before: Mapping[str, Any], at: list[Marks], *, secret: bool) -> Mapping[str, Any]:
        is_closed = any(marks.closed for marks in at)
        after: dict[str, Any] = {}
        for name, each in before.items():
            below = [found for marks in at for found in self._below(marks, name)]
            after[name] = self.replaced(each, below, secret=secret or (is_closed and not below))
        return after if any(after[name] is not each for name, each in before.items()) else before

    def _below(self, marks: Marks, name: str) -> list[Marks]:
        found: list[Marks] = []
        for matches, match_ns, each in marks.patterns:
            self._spend(_VISIT_NS + match_ns * len(name))
            if matches(name):
                found.append(each)
        if name in marks.names:
            found.append(marks.names[name])
        if not found and marks.others is not None:
            found.append(marks.others)
        return found

    def _spend(self, nanoseconds: int) -> None:
        self._left_ns -= nanoseconds
        if self._left_ns < 0:
            raise InvalidArguments(
                "it is too big for finding the secrets in it, or its schema has too many alternatives"
            )


_MAX_NS = 40_000_000  # nanoseconds for one value
_VISIT_NS = 1_000  # nanoseconds for one position
# The nanoseconds for making all the forms of a value: for the value, for an ASCII character, for another character.
_SECRET_NS = 38_000
_CHAR_NS = 60
_OTHER_CHAR_NS = 800


def _all_of(given: Iterable[Marks]) -> Iterator[Marks]:
    """Yield the marks of one position, alternatives of alternatives included, each once."""
    left, seen = list(given), set[int]()
    while left:
        marks = left.pop()
        if id(marks) not in seen:
            seen.add(id(marks))
            left += marks.alternatives
            yield marks


def _at_index(at: Iterable[Marks], index: int) -> Iterator[Marks]:
    for marks in at:
        if index < len(marks.first):
            yield marks.first[index]
        yield from marks.items


def revealed(
    arguments: Mapping[str, Any],
    marks: Marks,
    value_of: Callable[[str], Scalar | None],
    *,
    lenient: bool = False,
) -> dict[str, Any]:
    """Return arguments with the values of the references at marked positions; references elsewhere stay.

    `value_of` returns the value of a reference, or None. For None, `InvalidArguments` is raised with a text for the
    model or, if the call is `lenient`, the reference stays.
    """

    def known(reference: str) -> Scalar:
        value = value_of(reference)
        if value is None and not lenient:
            raise InvalidArguments(
                f"the secret of {reference} is no longer known: it is from another conversation, or from before a "
                "restart; get it again from where it came"
            )
        return reference if value is None else value

    def reveal(value: Scalar) -> Scalar:
        if not isinstance(value, str):
            return value
        if REFERENCE.fullmatch(value):
            return known(value)
        return REFERENCE.sub(lambda found: str(known(found[0])), value)

    return cast("dict[str, Any]", replaced(arguments, marks, reveal))


# ------------------------------------------------------------------------------------------------- values in text


def forms_of(value: str) -> frozenset[str]:
    """Return the forms of `value` in text: itself, escaped, in hexadecimal, and in base64 at any offset.

    A value of fewer than `MIN_SECRET_CHARS` characters has no forms.
    """
    if len(value) < MIN_SECRET_CHARS:
        return frozenset()
    forms = {value, repr(value)[1:-1], quote(value, safe=""), quote(value), quote_plus(value), html.escape(value)}
    escaped = _in_json(value)
    forms |= escaped.union(*map(_in_json, escaped))  # JSON, and JSON in a JSON string
    raw = value.encode()
    forms |= {raw.hex(), raw.hex().upper()}
    for before in range(3):
        # A character of base64 that is shared with a neighbouring byte is left out, because the neighbour is unknown.
        code = base64.b64encode(bytes(before) + raw).decode().rstrip("=")
        last = len(code) - ((before + len(raw)) % 3 != 0)
        code = code[(0, 2, 3)[before] : last]
        if len(code) >= _MIN_CODE_CHARS:
            forms |= {code, code.replace("+", "-").replace("/", "_")}
    return frozenset(forms)


def _in_json(text: str) -> set[str]:
    return {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}


@dataclass(frozen=True, slots=True)
class _Traits:
    """The facts about all forms of a mask: their first characters, the longest length, whether one may be a number."""

    first: set[str]
    longest: int
    has_numbers: bool


class TextMask:
    """A set of values that are replaced by their references in text, in all their forms.

    If two forms begin at the same position, the longer one counts. A replacement is not searched again, and references
    stay as they are. Masking costs O(length of the text * forms), without a copy if nothing is found.
    """

    __slots__ = ("_forms", "_of", "_traits")

    def __init__(self) -> None:
        # The references of each form. There may be several, because values such as 12345678 and "12345678" look alike.
        self._forms: dict[str, list[str]] = {}
        self._of: dict[str, frozenset[str]] = {}  # the forms of each reference
        self._traits: _Traits | None = None  # None if they have to be computed again

    def __bool__(self) -> bool:
        return bool(self._forms)

    def add(self, value: str, reference: str) -> None:
        """Search for `value` from now on. The cost does not grow with the number of values."""
        forms = forms_of(value)
        if forms:
            # With its own reference as a form, no other value is found inside the reference.
            forms |= {reference}
            for form in forms:
                known = self._forms.setdefault(form, [])
                if reference in known:
                    known.remove(reference)
                known.append(reference)
            self._of[reference] = self._of.get(reference, frozenset()) | forms
            self._traits = None

    def discard(self, reference: str) -> None:
        """Stop searching for the value of `reference`."""
        for form in self._of.pop(reference, frozenset()):
            self._forms[form].remove(reference)
            if not self._forms[form]:
                del self._forms[form]
        self._traits = None

    @property
    def has_numbers(self) -> bool:
        """True if a value could be (part of) a number."""
        return self._known().has_numbers

    def _known(self) -> _Traits:
        if self._traits is None:
            self._traits = _Traits(
                first={form[0] for form in self._forms},
                longest=max(map(len, self._forms), default=0),
                has_numbers=any(_NUMERIC.fullmatch(form) for form in self._forms),
            )
        return self._traits

    def mask(self, text: str) -> str:
        """Return `text` with references instead of values; itself if there is no value in it."""
        found = self._found(text)
        return self._cut(text, found, len(text))[0] if found else text

    def split(self, text: str) -> tuple[str, str]:
        """Return the masked beginning of `text`, as far as what follows cannot change it, and the unmasked rest."""
        found = self._found(text)
        if not found:
            hold = self._hold(text, 0)
            return text[:hold], text[hold:]
        return self._cut(text, found, None)

    def _found(self, text: str) -> dict[str, int]:
        return {form: text.index(form) for form in tuple(self._forms) if form in text}

    def _cut(self, text: str, found: dict[str, int], hold: int | None) -> tuple[str, str]:
        parts: list[str] = []
        at = 0
        moving = hold is None
        end = self._hold(text, 0) if hold is None else hold
        while found:
            form = min(found, key=lambda each: (found[each], -len(each)))
            start = found[form]
            if start >= end:
                break
            parts += (text[at:start], self._forms[form][-1])
            at = start + len(form)
            if moving and at > end:
                end = self._hold(text, at)
            found = {
                each: where for each, old in found.items() if (where := old if old >= at else text.find(each, at)) >= 0
            }
        parts.append(text[at:end])
        return "".join(parts), text[end:]

    def _hold(self, text: str, at: int) -> int:
        """Return the first position from `at` where a form may begin that the text cuts off; else the text's end."""
        known = self._known()
        for start in range(max(at, len(text) - known.longest + 1), len(text)):
            if text[start] in known.first:
                tail = text[start:]
                if any(form.startswith(tail) and len(form) > len(tail) for form in self._forms):
                    return start
        return len(text)


_NUMERIC = re.compile(r"[0-9.eE+-]+")


class PieceMask:
    """The mask of one text that comes in pieces. The pieces that it returns, joined, are the whole text masked.

    At most the longest form's length is held back, and only while it could be the beginning of a value.
    """

    __slots__ = ("_held", "_mask")

    def __init__(self, mask: TextMask) -> None:
        self._mask = mask
        self._held = ""

    def feed(self, piece: str) -> str:
        """Return the masked text that can be published by now; it may be empty."""
        shown, self._held = self._mask.split(self._held + piece)
        return shown

    def flush(self) -> str:
        """Return the masked rest, when no piece follows."""
        held, self._held = self._held, ""
        return self._mask.mask(held)


def masked_json(value: Any, mask: TextMask) -> Any:
    """Return a JSON value with references instead of values in its texts, names and numbers; itself without any."""
    if isinstance(value, str):
        return masked_content(value, mask)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        if not mask.has_numbers:
            return value
        masked = mask.mask(text := str(value))
        return value if masked is text else masked
    if isinstance(value, Mapping):
        before = cast("Mapping[Any, Any]", value)
        after = {
            mask.mask(name) if isinstance(name, str) else name: masked_json(each, mask) for name, each in before.items()
        }
        same = all(a is b and x is y for (a, x), (b, y) in zip(after.items(), before.items(), strict=False))
        return before if same and len(after) == len(before) else after
    if isinstance(value, (list, tuple)):
        old = cast("list[Any]", value)
        new = [masked_json(each, mask) for each in old]
        return old if all(x is y for x, y in zip(new, old, strict=True)) else new
    return value


def masked_content(text: str, mask: TextMask) -> str:
    """Return `text` masked. JSON stays JSON, and is parsed to find values with unusual escapes."""
    masked = mask.mask(text)
    if (masked is text and "\\" not in text) or text.lstrip()[:1] not in ("{", "["):
        return masked
    try:
        before = orjson.loads(text)
    except orjson.JSONDecodeError:
        return masked
    after = masked_json(before, mask)
    if after is before:
        return masked
    try:
        return mask.mask(orjson.dumps(after).decode())
    except TypeError:  # It has a text that JSON cannot encode.
        return masked
