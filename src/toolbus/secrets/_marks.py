"""Secrets: which fields of a JSON schema are marked, and how values are found again wherever they stand. Pure.

Marked is what a schema calls `writeOnly`, or gives the format `password`: pydantic writes both for `SecretStr` and
`SecretBytes`. A value is found in text as it is, and in the forms that programs give it: escaped for JSON, for a URL or
HTML, as `repr` shows it, in base64 and in hexadecimal.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias, cast
from urllib.parse import quote, quote_plus, unquote

import orjson

from ..errors import InvalidArguments
from ..schemas import cost_of, matcher

__all__ = [
    "REFERENCE",
    "SHORTEST",
    "Marks",
    "PieceMask",
    "TextMask",
    "find_marks",
    "forms_of",
    "masked_content",
    "masked_json",
    "replaced",
    "revealed",
]

REFERENCE: Final = re.compile(r"secret:[0-9a-f]{16}")
"""What stands in the place of a secret: 64 bits that say nothing of it."""

SHORTEST: Final = 4
"""Characters that a value must have to be looked for in text: shorter ones, such as "ok", stand in any."""

_SHORTEST_CODE = 6  # characters of base64 that are looked for: 36 bits, which chance does not write

Scalar: TypeAlias = str | int | float


# ------------------------------------------------------------------------------------------------- marked fields


class Marks:
    """What a JSON schema says of secrets at one place, and at those below it. A graph, since schemas may recur."""

    __slots__ = ("alternatives", "closed", "first", "items", "names", "others", "patterns", "secret")

    def __init__(self) -> None:
        self.secret = False
        self.closed = False  # it takes no properties but those it names
        self.names: dict[str, Marks] = {}
        self.patterns: list[tuple[Callable[[str], bool], int, Marks]] = []  # with the nanoseconds for a character
        self.others: Marks | None = None
        self.first: list[Marks] = []  # the places of a tuple
        self.items: list[Marks] = []
        self.alternatives: list[Marks] = []  # what else is said of the same place


def find_marks(schema: Mapping[str, Any]) -> Marks | None:
    """Where values of `schema` are secret; None where no field is marked. Costs one walk through the schema.

    A place is marked if any of its alternatives is. References within the schema are followed, others are not.
    """
    reader = _Reader(schema)
    marks = reader.read(schema)
    return marks if any(each.secret for each in reader.known.values()) else None


_NO_MARKS = Marks()  # of a place of which nothing is said: most parts of a schema are such
_READ = frozenset({
    "$ref", "additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "dependentSchemas", "else",
    "format", "if", "items", "oneOf", "patternProperties", "prefixItems", "properties", "then", "unevaluatedItems",
    "unevaluatedProperties", "writeOnly",
})  # fmt: skip


class _Reader:
    """One walk. `known` holds what was read, by the identity of the schema, so that a recursion ends."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._compile_ns = 0
        self.known: dict[int, Marks] = {}

    def read(self, schema: Any) -> Marks:
        if not isinstance(schema, Mapping):  # true and false are schemas as well
            return _NO_MARKS
        schema = cast("Mapping[str, Any]", schema)
        if _READ.isdisjoint(schema):
            return _NO_MARKS
        marks = self.known.get(id(schema))
        if marks is not None:
            return marks
        marks = self.known[id(schema)] = Marks()
        marks.secret = schema.get("writeOnly") is True or schema.get("format") == "password"
        marks.names = {name: self.read(each) for name, each in _mapping(schema.get("properties"))}
        for pattern, each in _mapping(schema.get("patternProperties")):
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
        marks.alternatives += [self.read(each) for _, each in _mapping(schema.get("dependentSchemas"))]
        if isinstance(schema.get("$ref"), str):
            marks.alternatives.append(self.read(self._at(schema["$ref"])))
        return marks

    def _matcher(self, pattern: str) -> tuple[Callable[[str], bool], int]:
        """A function that matches names, and what it costs for each character. It never takes long.

        A pattern that is of another dialect, or would be costly to match, is read as if it matched anything.
        """
        try:
            cost = cost_of(pattern)
        except ValueError:
            return _anything, 0
        self._compile_ns += cost.compile_ns
        if self._compile_ns > _MOST_COMPILE_NS or cost.match_ns > _MOST_MATCH_NS:
            return _anything, 0
        return matcher(pattern) or _anything, cost.match_ns

    def _at(self, reference: str) -> Any:
        """What a reference within the schema points to (RFC 6901); nothing, for any other."""
        if not reference.startswith("#"):
            return None
        found: object = self._root
        for part in reference[1:].split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping):
                found = cast("Mapping[str, object]", found).get(name)
            elif isinstance(found, list) and name.isdigit():
                found = dict(enumerate(cast("list[object]", found))).get(int(name))
            else:
                return None
        return found


def _anything(_name: str) -> bool:
    return True


_MOST_COMPILE_NS = 30_000_000  # for all patterns of a schema
_MOST_MATCH_NS = 4_000  # for a character, with a pattern of some 50 parts; names of properties need no more
_FOR_ITEMS = ("items", "additionalItems", "unevaluatedItems", "contains")


def _mapping(given: Any) -> Iterable[tuple[str, Any]]:
    return cast("Mapping[str, Any]", given).items() if isinstance(given, Mapping) else ()


def _list(given: Any) -> list[Any]:
    return cast("list[Any]", given) if isinstance(given, list) else []


def replaced(value: Any, marks: Marks, replace: Callable[[Scalar], Any]) -> Any:
    """`value` with `replace(each)` for each text and number at a marked place; itself where nothing is replaced.

    Below a marked place all is marked, and so is what a closed object does not name, which is refused anyway. Empty
    texts and truth values are no secrets. Raises `InvalidArguments` where the places are too many to be looked at: the
    schema and the value may both be a stranger's.
    """
    return _Replacing(replace).replaced(value, (marks,), secret=False)


class _Replacing:
    """One walk through a value, which ends when it has taken as long as it may."""

    def __init__(self, replace: Callable[[Scalar], Any]) -> None:
        self._replace = replace
        self._left_ns = _MOST_NS

    def replaced(self, value: Any, given: Iterable[Marks], *, secret: bool) -> Any:
        """The value, or another one in its place."""
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
            new = [self.replaced(each, _at_place(at, place), secret=secret) for place, each in enumerate(old)]
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


_MOST_NS = 40_000_000  # for one value
_VISIT_NS = 1_000
_SECRET_NS, _CHAR_NS, _OTHER_CHAR_NS = 25_000, 60, 800  # for all the forms in which a value may stand in a text


def _all_of(given: Iterable[Marks]) -> Iterator[Marks]:
    """What is said of one place, alternatives of alternatives included, each once."""
    left, seen = list(given), set[int]()
    while left:
        marks = left.pop()
        if id(marks) not in seen:
            seen.add(id(marks))
            left += marks.alternatives
            yield marks


def _at_place(at: Iterable[Marks], place: int) -> Iterator[Marks]:
    for marks in at:
        if place < len(marks.first):
            yield marks.first[place]
        yield from marks.items


def revealed(
    arguments: Mapping[str, Any],
    marks: Marks,
    value_of: Callable[[str], Scalar | None],
    *,
    lenient: bool = False,
) -> dict[str, Any]:
    """Arguments with the values in the place of the references at marked places; elsewhere references stay.

    `value_of` gives the value behind a reference, or None: then `InvalidArguments` is raised, worded for the model, or
    where it is `lenient`, the reference stays.
    """

    def known(reference: str) -> Scalar:
        value = value_of(reference)
        if value is None and not lenient:
            raise InvalidArguments(
                f"the secret behind {reference} is no longer known: it is of another conversation, or of a time "
                "before a restart; get it once more from where it came"
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
    """How `value` may stand in a text: itself, escaped, in base64 (wherever in what was encoded), in hexadecimal.

    None for a value of fewer than `SHORTEST` characters.
    """
    if len(value) < SHORTEST:
        return frozenset()
    forms = {value, repr(value)[1:-1], quote(value, safe=""), quote(value), quote_plus(value), html.escape(value)}
    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], orjson.dumps(value).decode()[1:-1]}
    forms |= escaped | {json.dumps(each)[1:-1] for each in escaped}  # JSON, and JSON in a text of JSON's
    raw = value.encode()
    forms |= {raw.hex(), raw.hex().upper()}
    for before in range(3):
        # Of what stands beside the value in a group of three bytes, the characters that it shares are left out.
        code = base64.b64encode(bytes(before) + raw).decode().rstrip("=")
        last = len(code) - ((before + len(raw)) % 3 != 0)
        code = code[(0, 2, 3)[before] : last]
        if len(code) >= _SHORTEST_CODE:
            forms |= {code, code.replace("+", "-").replace("/", "_")}
    return frozenset(forms)


class TextMask:
    """Replaces values by their references in text, in whatever form they stand there.

    Where two begin at the same place, the longer one counts; what was replaced is not looked at again, and references
    stay as they are. Costs O(length of the text * forms), without a copy where nothing is found.
    """

    __slots__ = ("_first", "_forms", "_longest", "_numbers", "_of", "_stale")

    def __init__(self) -> None:
        self._forms: dict[
            str, list[str]
        ] = {}  # the references of each: values may look alike, as 12345678 and "12345678"
        self._of: dict[str, frozenset[str]] = {}
        self._stale = False  # whether the others are to be found out again
        self._first: set[str] = set()
        self._longest = 0
        self._numbers = False

    def __bool__(self) -> bool:
        return bool(self._forms)

    def add(self, value: str, reference: str) -> None:
        """Look for `value` from now on. Costs nothing that grows with the number of values."""
        forms = forms_of(value)
        if forms:
            forms |= {reference}  # so that no other value is found inside of it
            for form in forms:
                known = self._forms.setdefault(form, [])
                if reference in known:
                    known.remove(reference)
                known.append(reference)
            self._of[reference] = self._of.get(reference, frozenset()) | forms
            self._stale = True

    def discard(self, reference: str) -> None:
        """Look for the value behind `reference` no more."""
        for form in self._of.pop(reference, frozenset()):
            self._forms[form].remove(reference)
            if not self._forms[form]:
                del self._forms[form]
        self._stale = True

    @property
    def longest(self) -> int:
        """The characters of the longest form."""
        self._look()
        return self._longest

    @property
    def has_numbers(self) -> bool:
        """Whether a value could be (part of) a number."""
        self._look()
        return self._numbers

    def _look(self) -> None:
        if self._stale:
            self._stale = False
            self._first = {form[0] for form in self._forms}
            self._longest = max(map(len, self._forms), default=0)
            self._numbers = any(_NUMERIC.fullmatch(form) for form in self._forms)

    def mask(self, text: str) -> str:
        """`text` with references in the place of values; itself where there is none."""
        found = self._found(text)
        return self._cut(text, found, len(text))[0] if found else text

    def split(self, text: str) -> tuple[str, str]:
        """`text`, masked, as far as it cannot matter what follows; and the rest of it, as it is."""
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
            place = found[form]
            if place >= end:
                break
            parts += (text[at:place], self._forms[form][-1])
            at = place + len(form)
            if moving and at > end:
                end = self._hold(text, at)
            found = {
                each: where for each, old in found.items() if (where := old if old >= at else text.find(each, at)) >= 0
            }
        parts.append(text[at:end])
        return "".join(parts), text[end:]

    def _hold(self, text: str, at: int) -> int:
        """Where the first form may begin, from `at` on, of which the end is still to come; else the text's end."""
        for place in range(max(at, len(text) - self.longest + 1), len(text)):
            if text[place] in self._first:
                tail = text[place:]
                if any(form.startswith(tail) and len(form) > len(tail) for form in self._forms):
                    return place
        return len(text)


_NUMERIC = re.compile(r"[0-9.eE+-]+")


class PieceMask:
    """Masks a text that comes in pieces. At most the longest form's length is held back, and only while it matters.

    What has come out, joined, is what `TextMask.mask` makes of the whole.
    """

    __slots__ = ("_held", "_mask")

    def __init__(self, mask: TextMask) -> None:
        self._mask = mask
        self._held = ""

    def feed(self, piece: str) -> str:
        """What can be told now; empty for nothing."""
        shown, self._held = self._mask.split(self._held + piece)
        return shown

    def flush(self) -> str:
        """The rest, when no piece follows."""
        held, self._held = self._held, ""
        return self._mask.mask(held)


def masked_json(value: Any, mask: TextMask) -> Any:
    """A JSON value with references in the place of values in its texts, names and numbers; itself without any."""
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
    """`text` masked; if it is JSON it stays JSON, and is read for values that are escaped as nobody would."""
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
    except TypeError:  # texts that JSON cannot carry
        return masked
