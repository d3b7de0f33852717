r"""A strict reader for the JSON that models write as a call's arguments; its errors are worded to help the model.

It refuses what JSON does not have (NaN, Infinity), what JSON readers disagree on (duplicate keys, lone surrogates,
integers over 64 bits, numbers too large for a double), nesting deeper than 64 levels, and more than 50,000 values or
2,097,152 characters.

Example:
    from toolbus.core.arguments import (
        MAX_CHARS, MAX_DEPTH, MAX_VALUES, depth, encodable, encodable_json, own_arguments, parse_arguments
    )

    print(parse_arguments('{"order": 7}'))  # {'order': 7}
    print(MAX_VALUES, MAX_CHARS, MAX_DEPTH)  # 50000 2097152 64
    print(depth({"lines": [1, 2]}))  # 2
    mine = own_arguments({"lines": [1, 2]})  # a copy that shares nothing with its original
    print(encodable("half \ud83d").isascii(), encodable_json('{"a": 1}'))  # True {"a": 1}
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import orjson

from ..errors import InvalidArguments
from ..schemas import depth, has_big_number, has_many_values

__all__ = [
    "CONTAINERS",
    "CUT_OFF",
    "MAX_CHARS",
    "MAX_DEPTH",
    "MAX_VALUES",
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
"""The finish reasons of replies that may end anywhere, even inside a tool call, with the explanation for the model."""

CONTAINERS = frozenset({dict, list})
"""The types of JSON values that are mutable."""

MAX_DEPTH = 64
"""Levels of nesting that arguments may have (the page on guarantees, *Bad input*); real schemas have fewer than ten."""

MAX_CHARS = 2 * 2**20
"""The most characters of arguments that are read: 128,000 tokens, which is much for a reply, are 0.5 million."""

MAX_VALUES = 50_000
"""The most values of arguments that are read. Reading, checking and copying this many small objects takes 80 ms."""

_Json: TypeAlias = dict[str, Any]
_BIG_NUMBER = re.compile(r"\d{19}")  # 2**63 has 19 digits; shorter integers are read exactly
_SHORT = 2 * MAX_VALUES  # characters; a text up to this length cannot hold more than MAX_VALUES values


def parse_arguments(text: str) -> _Json:
    """Return the JSON object in `text`; an empty text is an empty object, since Anthropic sends it that way.

    Raises `InvalidArguments` with the reason and the position, worded for the model.
    """
    if not text or text.isspace():
        return {}
    if len(text) > MAX_CHARS:
        raise InvalidArguments(f"the arguments have {len(text)} characters; at most {MAX_CHARS} are read")
    data = text.encode("utf-8", "surrogatepass") if len(text) > _SHORT else b""
    if data and has_many_values(data, limit=MAX_VALUES):
        raise InvalidArguments(f"the arguments have more than {MAX_VALUES} values; send them in several calls")
    try:
        value: _Json = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise InvalidArguments(f"the arguments are not valid JSON: {exc}") from None
    if not isinstance(value, dict):  # pyright: ignore[reportUnnecessaryIsInstance] -- a model writes anything
        raise InvalidArguments(f"the arguments must be a JSON object, not {_kind(value)}")
    if text.count("{") + text.count("[") > MAX_DEPTH and depth(value) > MAX_DEPTH:
        raise InvalidArguments(f"the arguments are nested deeper than {MAX_DEPTH} levels")
    # Every member of an object needs one colon, so as many colons as members proves that no key was written twice.
    if text.count(":") != len(value) or (has_big_number(data) if data else _BIG_NUMBER.search(text)):
        _check_slowly(text)
    return value


def own_arguments(arguments: _Json) -> _Json:
    """Return a copy of a JSON object that shares no mutable value with it, at any depth."""
    return {name: _own(each) if type(each) in CONTAINERS else each for name, each in arguments.items()}


def _own(value: Any) -> Any:
    if type(value) is dict:
        return own_arguments(cast("_Json", value))
    return [_own(each) if type(each) in CONTAINERS else each for each in cast("list[Any]", value)]


def encodable(text: str) -> str:
    """Return `text` with each lone surrogate replaced by a question mark, since JSON cannot carry them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def encodable_json(text: str) -> str:
    """Return JSON `text` in a form that can be encoded, with the same meaning.

    A lone surrogate is escaped; strict readers still refuse it.
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _check_slowly(text: str) -> None:
    """Raise `InvalidArguments` for duplicate keys and oversized integers, which only the standard library reports.

    The value that it reads is not used, and no part of it is made, since that takes most of the time.
    """

    def members(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            raise InvalidArguments(f"the arguments have the key {counts.most_common(1)[0][0][:80]!r} twice")

    def integer(digits: str) -> None:
        if len(digits) > 18 and (len(digits) > 20 or not -(2**63) <= int(digits) < 2**64):
            raise InvalidArguments(f"the integer {digits[:24]}... has more than 64 bits; send it as a string")

    json.loads(text, object_pairs_hook=members, parse_int=integer, parse_float=len)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names[type(value)]
