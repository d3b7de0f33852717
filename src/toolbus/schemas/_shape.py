"""The shape of a JSON value: the numbers of values and characters at each level, found in one bounded walk. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, cast

from .._option_checks import kind_of
from ..errors import InvalidArguments
from ._json_text import MAX_VALUES

MAX_DEPTH: Final = 64
"""Levels of nesting that a value may have: the same number as for the arguments of a call."""

_CONTAINERS = frozenset({dict, list})
_INFINITE = float("inf")


class TooCostly(InvalidArguments):
    """A value whose check may take too long. The text names the bound that it exceeds."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of values, and of characters of texts and keys, at each level of a value, from the outermost one.

    `is_plain` is whether the library can read the value as it is. It does not take integers over 64 bits in bounded
    time, and its only mappings are dictionaries.
    """

    values: tuple[int, ...]
    chars: tuple[int, ...]
    is_plain: bool


def shape_of(value: Any) -> Shape:
    """Return the shape of a JSON value.

    Raises `TooCostly` for a value that is too big, and `InvalidArguments` for one that is not JSON.
    """
    walk = _Walk()
    values: list[int] = []
    level = [value]
    total = 0
    while level:
        total += len(level)
        if total > MAX_VALUES:
            raise TooCostly(f"$: it cannot be checked, since there are more than {MAX_VALUES} values in it")
        if len(values) > MAX_DEPTH:
            raise TooCostly(f"$: it cannot be checked, since it is nested deeper than {MAX_DEPTH} levels")
        values.append(len(level))
        level = walk.next(level)
    return Shape(tuple(values), tuple(walk.chars[: len(values)]), walk.is_plain)


def depth(value: Any) -> int:
    """Return the number of levels of arrays and objects in a JSON value, counted without recursion."""
    levels = 0
    level: Iterable[Any] = (value,)
    while containers := [each for each in level if type(each) in _CONTAINERS]:
        levels += 1
        inside: list[Any] = [each.values() if type(each) is dict else each for each in containers]
        level = chain.from_iterable(inside)
    return levels


class _Walk:
    """One walk through a value, level by level."""

    def __init__(self) -> None:
        self.chars = [0]
        self.is_plain = True

    def next(self, level: list[Any]) -> list[Any]:
        """Return the values directly inside those of `level`, and count their characters."""
        inside: list[Any] = []
        keys = letters = 0
        for each in level:
            kind = cast("type[Any]", type(each))
            if kind is str:
                letters += len(each)
            elif kind is dict:
                if each:
                    keys += self._keys(each)
                    inside.extend(each.values())
            elif kind is list or kind is tuple:
                inside.extend(each)
            elif kind is int:
                if not -(2**63) <= each < 2**64:
                    self.is_plain = False
            elif kind is float:
                if not -_INFINITE < each < _INFINITE:
                    raise InvalidArguments(f"$: there is a number {each} in it, which JSON does not have")
            elif each is not None and kind is not bool:
                keys += self._other(each, inside)
        self.chars[-1] += letters
        self.chars.append(keys)
        return inside

    def _keys(self, given: Mapping[Any, Any]) -> int:
        try:
            return len("".join(given))
        except TypeError:
            raise InvalidArguments("$: there is a key in it that is not a text, which JSON does not have") from None

    def _other(self, each: Any, inside: list[Any]) -> int:
        """Read a value of a subclass, or a mapping other than a dictionary; return the characters of its keys."""
        self.is_plain = False
        if isinstance(each, Mapping):
            inside.extend(cast("Mapping[Any, Any]", each).values())
            return self._keys(cast("Mapping[Any, Any]", each))
        if isinstance(each, (list, tuple)):
            inside.extend(cast("Iterable[Any]", each))
        elif isinstance(each, str):
            self.chars[-1] += len(each)
        elif not isinstance(each, (int, float)):
            raise InvalidArguments(f"$: there is {kind_of(each)} in it, which JSON does not have")
        return 0
