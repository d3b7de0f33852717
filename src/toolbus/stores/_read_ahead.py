"""The reading of large values: many with one query, since each query takes a round trip, and within a bound of bytes.

Knows nothing about databases, and nothing about the content of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

_K = TypeVar("_K")

MAX_VALUES = 500  # that are read together
MAX_BYTES = 16 * 2**20  # a slow disk needs a second for them


class ReadAhead(Generic[_K]):
    """Large values by key.

    `wanted` are the keys in the order in which their values will be needed. `read` gets at most `MAX_VALUES` of them,
    and returns the values of the first ones, at most `MAX_BYTES` or one value (see `fitting`), without those
    that are missing or were changed. Only these are kept, so that a long journal is not in memory twice. A value that
    is not wanted is read by itself, and not kept.
    """

    def __init__(self, read: Callable[[Sequence[_K]], Mapping[_K, bytes]], wanted: Iterable[_K] = ()) -> None:
        self._read = read
        self.wanted = [*wanted]
        self._next = 0
        self._kept: Mapping[_K, bytes] = {}

    def value(self, key: _K, digest: bytes) -> bytes:
        """Return the value of `key`. Raises `KeyError`, with `digest` in its text, if it is missing or was changed."""
        found = self._kept
        if key not in found:
            try:
                self._next = self.wanted.index(key, self._next)
            except ValueError:
                found = self._read([key])
            else:
                found = self._kept = self._read([*dict.fromkeys(self.wanted[self._next : self._next + MAX_VALUES])])
        if key not in found:
            raise KeyError(f"the large text {digest.hex()} is missing, or was changed")
        return found[key]


def fitting(sizes: Iterable[object]) -> int:
    """Return how many of the things with these sizes one call can read or delete in time, at least one."""
    numbers = [size if isinstance(size, int) else 0 for size in sizes]  # A damaged size is not a number.
    return max(1, sum(each <= MAX_BYTES for each in accumulate(numbers)))
