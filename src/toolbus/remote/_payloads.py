"""The bodies that do not fit into one message: payloads that the transport keeps, within bounds, few at a time.

All calls, answers and questions of handlers go through here. Knows the transport's payloads. Must not know a broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.lowlevel

from ..schemas import MAX_VALUES, has_many_values
from ._bodies import MAX_BYTES, Reference, larger_than
from ._transport import Full, Key, Payloads

_T = TypeVar("_T")
_MAX_CONCURRENT = 4
"""The payloads that one process reads and writes at the same time; each is in memory meanwhile."""
_logger = logging.getLogger("toolbus.remote")


class TooLarge(Exception):
    """A payload breaks a bound. The text is the bound in words, to follow "it is"."""


class LargeBodies:
    """The payloads of one process. At most four are kept or loaded at a time, and the others wait in order."""

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads
        self._slots = anyio.Semaphore(_MAX_CONCURRENT)

    async def keep(self, key: Key, make: Callable[[], bytes | None]) -> Reference | None:
        """Keep what `make` returns, which is called when a slot is free; None if there is nothing to keep any more.

        Raises `TooLarge`, and `Unavailable`.
        """
        async with self._slots:
            body = make()
            if body is None:
                return None
            _check(body)
            try:
                return await self._payloads.keep(key, body)
            except Full as exc:
                _logger.warning("a payload of call %s was not kept: %s", key[1], exc)
                raise TooLarge("larger than the free space of the broker") from exc

    async def load(self, reference: Reference, read: Callable[[bytes], _T]) -> _T:
        """Return what `read` makes of a payload. Raises `TooLarge`, `Damaged`, `Unavailable`, and errors of `read`."""
        async with self._slots:
            body = await self._payloads.load(reference)
            _check(body)
            await anyio.lowlevel.checkpoint()  # Both the check and `read` take up to 25 ms.
            return read(body)


def _check(body: bytes) -> None:
    if len(body) > MAX_BYTES:
        raise TooLarge(larger_than(MAX_BYTES))
    if has_many_values(body):
        raise TooLarge(f"of more than {MAX_VALUES:,} values")
