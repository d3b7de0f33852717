"""The marked fields of a JSON schema, and the values in them. Pure.

A field is marked if its schema has `writeOnly` or the format `password`: pydantic writes both for `SecretStr` and
`SecretBytes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias, cast

from ..errors import InvalidArguments
from ..schemas import as_object, cost_of, matcher, way_to

REFERENCE: Final = re.compile(r"secret:[0-9a-f]{16}")
"""The form of a reference, which stands for a secret: 64 bits that reveal nothing about its value."""

Scalar: TypeAlias = str | int | float


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
_CHAR_NS = 150
_OTHER_CHAR_NS = 1_000


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
