"""Reading the JSON that models write as a call's arguments: strictly, and with an answer that helps the model.

Refused are what JSON does not have (NaN, Infinity), what readers disagree on (duplicate keys, lone surrogates,
integers over 64 bits, numbers over a double), nesting deeper than 64, and more than 100,000 values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import orjson

from ..errors import InvalidArguments
from ..schemas import MAX_VALUES, has_big_number, has_many_values

__all__ = [
    "CONTAINERS",
    "CUT_OFF",
    "MAX_DEPTH",
    "depth",
    "encodable",
    "encodable_json",
    "own_arguments",
    "parse_arguments",
]

CUT_OFF: Mapping[str, str] = {
    "length": "The reply was cut off by its limit of tokens",
    "content_filter": "The reply was cut off by the provider's content filter",
}
"""The finish reasons of replies that may end anywhere, inside a call too, and what the model is told of them."""

CONTAINERS = frozenset({dict, list})
"""What JSON values can be changed."""

MAX_DEPTH = 64
"""Levels of nesting that arguments may have: the bad-input table's bound; real schemas stay under ten."""

_Json: TypeAlias = dict[str, Any]
_BIG_NUMBER = re.compile(r"\d{19}")  # 2**63 has 19 digits; below that nothing is lost
_SHORT = 2 * MAX_VALUES  # characters; a shorter text has no more values, and is searched in no time


def parse_arguments(text: str) -> _Json:
    """The object that `text` holds; an empty text is an object without members (Anthropic sends it so).

    Raises `InvalidArguments` with the reason and the place, worded for the model.
    """
    if not text or text.isspace():
        return {}
    data = text.encode("utf-8", "surrogatepass") if len(text) > _SHORT else b""
    if data and has_many_values(data):
        raise InvalidArguments(f"the arguments have more than {MAX_VALUES} values; send them in several calls")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise InvalidArguments(f"the arguments are not valid JSON: {exc}") from None
    if not isinstance(value, dict):
        raise InvalidArguments(f"the arguments must be a JSON object, not {_kind(value)}")
    if text.count("{") + text.count("[") > MAX_DEPTH and depth(value) > MAX_DEPTH:
        raise InvalidArguments(f"the arguments are nested deeper than {MAX_DEPTH} levels")
    # Every member has one colon of its own, so as many colons as members proves that no key was written twice.
    if text.count(":") != len(cast("_Json", value)) or (has_big_number(data) if data else _BIG_NUMBER.search(text)):
        _check_slowly(text)
    return cast("_Json", value)


def own_arguments(arguments: _Json) -> _Json:
    """A copy of a JSON object that shares nothing that can be changed with it, at any depth."""
    if CONTAINERS.isdisjoint(map(type, arguments.values())):
        return arguments.copy()
    return {name: _own(each) for name, each in arguments.items()}


def _own(value: Any) -> Any:
    if isinstance(value, dict):
        return own_arguments(cast("_Json", value))
    if isinstance(value, list):
        return [_own(each) for each in cast("list[Any]", value)]
    return value


def encodable(text: str) -> str:
    """`text` without lone surrogates, which no JSON can carry; each becomes a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def encodable_json(text: str) -> str:
    """JSON `text` that can be carried and says the same: a lone surrogate is escaped, and readers still refuse it."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _check_slowly(text: str) -> None:
    """Find duplicate keys and oversized integers with the standard library's reader, which shows them."""

    def members(pairs: list[tuple[str, Any]]) -> _Json:
        found: _Json = {}
        for key, value in pairs:
            if key in found:
                raise InvalidArguments(f"the arguments have the key {key[:80]!r} twice")
            found[key] = value
        return found

    def integer(digits: str) -> int:
        if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
            raise InvalidArguments(f"the integer {digits[:24]}... has more than 64 bits; send it as a string")
        return int(digits)

    json.loads(text, object_pairs_hook=members, parse_int=integer)


def depth(value: Any) -> int:
    """The levels of nesting of a JSON value, counted without recursion."""
    levels = 0
    level: list[Any] = [value]
    while level:
        levels += 1
        inside: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inside.extend(cast("_Json", each).values())
            elif isinstance(each, list):
                inside.extend(cast("list[Any]", each))
        level = [each for each in inside if isinstance(each, (dict, list))]
    return levels


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names[type(value)]
