"""An upper bound on the cost of checking a value against a Python type, known before the check. Pure.

A model writes the value, and pydantic, which compares it with the type, can be neither interrupted nor limited:

1. It makes an error for everything that is wrong, and each error holds the path to its value. A list with 50,000 wrong
   items below a key of 10,000 characters would take 500 MB.
2. It tries each member of a union. Where such a member contains the union again, each level of the value multiplies the
   tries: an expression of 20 levels and 600 bytes takes seconds. A discriminator avoids this.
3. The keys of a mapping, or the items of a set, may be numbers, UUIDs, IPv6 addresses or tuples, and a sender can
   choose 10,000 that have the same hash. Python compares each of them with all others.
4. Some types read a text by a regular expression or by Python code, so 8 MB take half a second.

The bound is read from the JSON schema that pydantic has made of the type, in which `oneOf` is a union with a
discriminator. Validators of the application are not counted.
"""

from __future__ import annotations

import re
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Literal, TypeAlias, cast

from ._allowance import allowance
from ._json_parts import way_to

# The times are measured with pydantic 2.14 and rounded up; tests/schemas/test_typed_cost.py measures them again.
_PROBLEM_NS = 700  # to find, keep and write one problem
_UNKNOWN_NS = 1_200  # the same, for a member that the type does not have
_SLOW_NS = 8_000  # the same, for a type that is read by Python code, and for addresses of the web
_OPTION_CHAR_NS = 2  # for each character of the options that a problem lists
_LEVELS, _CHARS = 4, 100  # levels, and characters of keys, of a path that cost as much as the rest of the problem

_CHAR_NS = 150  # for each character of a text that is read as an address or as a fraction
_SLOW_CHAR_NS = 5_000  # for each character of a regular expression, and of JSON in a text, in which all may be wrong
_PAIR_NS = 100  # to compare two items of tuples that have the same hash
_TEXT_PAIRS = 10  # such pairs that cost as much as a pair of texts: Python code compares UUIDs and addresses

_FREE_NS = 2_000_000
_FREE_BYTES = (8_192, 4_096, 2_048, 1_024, 512, 256, 128, 64, 32, 16)
_FREE_LEVELS = 8  # Each value, and each level of nesting, takes at least two bytes, so 16 bytes have 8 levels.
_ENDLESS = 10**15
_FAST_FORMATS = frozenset({"binary", "date", "date-time", "duration", "time", "uuid"})
_PLAIN_FORMATS = _FAST_FORMATS | {None, "base64", "base64url", "directory-path", "file-path", "password", "path"}
# Texts that may be read as values whose hash a sender can choose. Few integers of up to 19 digits have the same hash.
_NUMBER = r"(?=(?s:.{20}))\s*+[+-]?[\d_.]++(?:[eE][+-]?[\d_]+)?(?:\s*/\s*[\d_]+)?\s*"
_COMPLEX = r"[\s(]*[\d_.eE+-]+[jJ][\s)]*"
_UUID = r"[\da-fA-F]{8}(?:-?[\da-fA-F]{4}){3}-?[\da-fA-F]{12}"
_IPV6 = r"(?=[\da-fA-F:]*?::|(?:[\da-fA-F]*:){6})[\da-fA-F:.]+(?:%[^/]*)?(?:/\d+)?"
_is_number = re.compile(_NUMBER).fullmatch
_is_uuid = re.compile(_UUID, re.ASCII).fullmatch
_has_chosen_hash = re.compile(rf"{_NUMBER}|{_COMPLEX}|\{{?(?:urn:uuid:)?{_UUID}\}}?|{_IPV6}").fullmatch
_RANDOM_HASHES = frozenset({"date", "date-time", "duration", "ipv4", "time"})
_HASHED = sys.hash_info.modulus  # The hash of an integer is its remainder.
_ITEM_BYTES, _KEY_BYTES = 4, 14  # the shortest tuple in a set, and the shortest key whose hash can be chosen
_FEW = 3  # keys of an object, whose comparisons do not count
_OWN = frozenset({"const", "enum", "format", "type"})
_PARTS = {"array": "prefixItems", "object": "properties", "scalar": ""}
_TOO_COSTLY = "$: it cannot be checked, since it is too big, or nested too deeply, for its type; send less"
_UNKNOWN: dict[str, Any] = {"not": {}}  # the schema of a member that the type does not have

_Json: TypeAlias = Mapping[str, Any]
_Kind: TypeAlias = Literal["scalar", "array", "object", "character", "pair of items", "pair of keys"]
"""What costs time in a value. A pair is one of items of a set, or keys of a mapping, that may have the same hash."""


class TypedCost:
    """The bound for one type, by the JSON schema of the type.

    A text of up to `free_bytes` needs no `check`: its cost is low whatever is in it. The first `check` finds that size.
    """

    def __init__(self, schema: _Json, *, is_closed: bool = False) -> None:
        """Bound the checks of a type. With `is_closed`, no object of it may have unknown members."""
        self._schema = schema
        self._is_closed = is_closed
        self._costs: dict[tuple[int, int, _Kind, _Kind | None], int] = {}
        self._has_keys = False  # whether a path may contain keys that the model has chosen
        self._has_sets = False
        self.free_bytes = 0

    def check(self, value: Any, size_bytes: int) -> None:
        """Raise `TooCostly`, worded for the model, for a value whose check may take too long.

        `value` is JSON, and `size_bytes` is the size of its text.
        """
        self._read()
        if size_bytes > self.free_bytes:
            allowance.take(self.cost(value), _TOO_COSTLY)

    def cost(self, value: Any) -> int:
        """Return the most nanoseconds that it takes to check a JSON value, and to word what is wrong with it."""
        self._read()
        total = path_chars = 0
        for level, (counts, longest_key) in enumerate(_levels(value, has_sets=self._has_sets, has_keys=self._has_keys)):
            path_chars += longest_key if self._has_keys else 0
            for kind, count in counts.items():
                if count and (cost := self._cost(self._schema, level, kind)):
                    if kind in _PARTS:  # A problem has a path.
                        cost += cost * level // _LEVELS + cost * path_chars // _CHARS
                    total += count * cost
        return total

    def _read(self) -> None:
        if not self.free_bytes:
            self.free_bytes = self._find_free_bytes()

    def _find_free_bytes(self) -> int:
        *worst, deep = [self._highest(level, "array", "object") for level in range(_FREE_LEVELS)]
        if deep:
            return _FREE_BYTES[-1]  # The type may be recursive.
        char, items, keys = [
            max(self._highest(level, kind) for level in range(_FREE_LEVELS))
            for kind in ("character", "pair of items", "pair of keys")
        ]
        for size in _FREE_BYTES:
            path = size // _CHARS if self._has_keys else 0
            total = size // 2 * max(worst) * (1 + len(worst) // _LEVELS + path) + size * char
            total += (size // _ITEM_BYTES) ** 2 // 2 * items + (size // _KEY_BYTES) ** 2 // 2 * keys * _TEXT_PAIRS
            if total <= _FREE_NS:
                return size
        return _FREE_BYTES[-1]

    def _highest(self, level: int, *kinds: _Kind) -> int:
        return max(self._cost(self._schema, level, kind) for kind in kinds)

    def _cost(self, schema: Any, level: int, kind: _Kind, way: _Kind | None = None) -> int:
        """Return the nanoseconds for a value of this kind, so many levels below a value to which `schema` applies.

        `way` is the kind of the upper value, or None for any. What the schema itself costs is only counted at level 0.
        """
        if not isinstance(schema, dict):
            return 0
        if level and way is None:
            return max(self._cost(schema, level, kind, "array"), self._cost(schema, level, kind, "object"))
        given = cast("_Json", schema)
        known = self._costs.get(key := (id(given), level, kind, way))
        if known is None:
            self._costs[key] = 0  # A definition that only refers to itself accepts nothing.
            if level:
                total = max([self._cost(each, level - 1, kind) for each in self._inside(given, way)], default=0)
            else:
                total = _own(given, kind)
            total += sum([self._cost(each, level, kind, way) for each in given.get("anyOf", ())])
            total += max([self._cost(each, level, kind, way) for each in given.get("oneOf", ())], default=0)
            if "$ref" in given:
                total += self._cost(self._target(given["$ref"]), level, kind, way)
            known = self._costs[key] = min(total, _ENDLESS)
        return known

    def _target(self, reference: str) -> Any:
        try:
            return way_to(reference, self._schema)[-1]
        except LookupError:  # An application may replace the schema of a type.
            return None

    def _inside(self, schema: _Json, way: _Kind | None) -> Iterator[Any]:
        """Yield the schemas of the values that are directly inside of an array or object with this schema."""
        self._has_sets = self._has_sets or bool(schema.get("uniqueItems"))
        if way == "array":
            yield from schema.get("prefixItems", ())
            yield schema.get("items")
            return
        yield from schema.get("properties", {}).values()
        yield from schema.get("patternProperties", {}).values()
        more = schema.get("additionalProperties")
        if more is False or (self._is_closed and more is None):
            yield _UNKNOWN
        elif more:
            self._has_keys = True
            yield more


def _own(schema: _Json, kind: _Kind) -> int:
    """Return the nanoseconds for the value itself, of which all members, or all items of a tuple, may be missing."""
    if kind == "character":
        if "contentMediaType" in schema or schema.get("format") == "regex":
            return _SLOW_CHAR_NS
        return 0 if schema.get("format") in _PLAIN_FORMATS else _CHAR_NS
    if kind == "pair of items":
        return _pair_ns(schema.get("items")) if schema.get("uniqueItems") else 0
    if kind == "pair of keys":
        return _pair_ns(schema.get("propertyNames")) if schema.get("additionalProperties") else 0
    if schema is _UNKNOWN:
        return _UNKNOWN_NS
    if _OWN.isdisjoint(schema):
        return 0  # It only contains other schemas.
    missing = len(schema.get(_PARTS[kind], ()))
    options = str(schema["enum"]) if "enum" in schema else ""
    first = _PROBLEM_NS if schema.get("format", "date") in _FAST_FORMATS else _SLOW_NS
    return first + missing * _PROBLEM_NS + len(options) * _OPTION_CHAR_NS


def _pair_ns(schema: Any) -> int:
    return 0 if isinstance(schema, dict) and cast("_Json", schema).get("format") in _RANDOM_HASHES else _PAIR_NS


def _levels(value: Any, *, has_sets: bool, has_keys: bool) -> Iterator[tuple[dict[_Kind, int], int]]:
    """Yield, for each level of a JSON value, what costs time in it, and the length of the longest key that leads to it.

    Pairs of items are only counted if the type has sets, and pairs of keys if it has mappings.
    """
    level: list[Any] = [value]
    longest = 0
    while level:
        types = Counter(map(type, level))
        arrays = cast("list[list[Any]]", [each for each in level if type(each) is list] if types[list] else [])
        objects = cast("list[dict[str, Any]]", [each for each in level if type(each) is dict] if types[dict] else [])
        counts: dict[_Kind, int] = {
            "array": len(arrays),
            "object": len(objects),
            "scalar": len(level) - len(arrays) - len(objects),
            "character": sum(map(len, [each for each in level if type(each) is str])) if types[str] else 0,
            "pair of items": sum(map(_pairs, arrays)) if has_sets else 0,
            "pair of keys": sum(map(_pairs, [each for each in objects if len(each) > _FEW])) if has_keys else 0,
        }
        yield counts, longest
        longest = max(map(len, chain.from_iterable(objects)), default=0)
        level = [*chain.from_iterable(arrays), *chain.from_iterable([each.values() for each in objects])]


def _pairs(values: Iterable[Any]) -> int:
    """Return how many pairs of parts of tuples may have the same hash; a pair of texts counts as several."""
    texts = [each for each in values if type(each) is str and _has_chosen_hash(each)]
    same = Counter(chain.from_iterable(map(_hashes_of, texts)))
    tuples = [len(each) for each in values if type(each) in (list, dict)]
    return (sum(count * count for count in same.values()) * _TEXT_PAIRS + len(tuples) * sum(tuples)) // 2


def _hashes_of(text: str) -> Iterator[int]:
    """Yield what decides on the hash of a text as a number, a UUID or an address; 0 if that takes long to compute."""
    if _is_uuid(text):
        yield int(text.replace("-", ""), 16) % _HASHED
        if not _is_number(text):
            return
    try:
        number = int.from_bytes(socket.inet_pton(socket.AF_INET6, text)) if ":" in text else int(text)
        yield number % _HASHED
    except (OSError, ValueError):
        yield 0
