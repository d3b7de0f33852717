"""Two keywords of JSON schemas that replace the library's own: `pattern`, under a time limit, and `uniqueItems`.

The library limits the time of neither. Once the time for patterns is used up, no text matches any more, and the caller
has to ask `Meter.is_over`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from ._patterns import cost_of

_MAX_SECONDS = 0.03  # for all texts of one value
_MAX_TEXT_NS = 20_000_000  # for one of them, which cannot be interrupted


class Meter(threading.local):
    """A meter of the time that the patterns of one schema take, for each thread that checks a value with it."""

    def __init__(self) -> None:
        self.is_over = False
        self._began = self._deadline = 0.0

    def start(self, max_seconds: float) -> None:
        """Start the time for a new value, of which `max_seconds` may be used."""
        self.is_over = False
        self._began = time.thread_time()
        self._deadline = self._began + min(max_seconds, _MAX_SECONDS)

    def used_seconds(self) -> float:
        """Return the time since the start."""
        return time.thread_time() - self._began

    def keyword(self, matches: Mapping[str, Callable[[str], bool]]) -> type[Any]:
        """Return the class of the keyword `pattern`. `matches` has a function for each pattern."""
        meter = self

        class Pattern:
            def __init__(self, _parent: object, pattern: object, _path: object) -> None:
                self._pattern = str(pattern)
                self._match_ns = cost_of(self._pattern).match_ns
                self._matches = matches[self._pattern]

            def validate(self, instance: Any) -> None:
                """Raise `ValueError` with a message for a text that does not match."""
                if not isinstance(instance, str):
                    return
                if not meter.is_over:
                    may_take = len(instance) * self._match_ns
                    meter.is_over = may_take > _MAX_TEXT_NS or time.thread_time() > meter._deadline
                if meter.is_over or not self._matches(instance):
                    raise ValueError(f'the value does not match "{self._pattern}"')

        return Pattern


class UniqueItems:
    """The keyword `uniqueItems` in linear time: items are compared as texts, whose hashes an attacker cannot predict.

    The library's own keyword takes quadratic time if many items have the same hash, as integers above 2**53 may.
    """

    def __init__(self, _parent: object, value: object, _path: object) -> None:
        self._is_wanted = value is True

    def validate(self, instance: Any) -> None:
        """Raise `ValueError` with a message for a list with equal items."""
        if not self._is_wanted or not isinstance(instance, (list, tuple)):
            return
        seen: dict[str, int] = {}
        for number, item in enumerate(cast("list[Any]", instance)):
            try:
                first = seen.setdefault(json.dumps(_comparable(item), sort_keys=True), number)
            except OverflowError:
                continue
            if first != number:
                raise ValueError(f"the items {first} and {number} are equal, and each may occur only once")


def _comparable(value: Any) -> Any:
    """Return a value in which equal numbers have one form: in JSON, 1 and 1.0 are equal.

    Raises `OverflowError` for a float of 2**63 or more: it may stand for an integer of which it lacks some digits.
    """
    if isinstance(value, float) and value.is_integer():
        if abs(value) >= 2**63:
            raise OverflowError
        return int(value)
    if isinstance(value, dict):
        return {name: _comparable(each) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_comparable(each) for each in cast("list[Any]", value)]
    return value
