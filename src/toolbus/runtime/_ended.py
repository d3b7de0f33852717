"""The sessions that have ended and can still be asked for, within bounds. Knows sessions, and has no timer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import anyio

from ..messages import size_of

if TYPE_CHECKING:
    from ..session import RequestSession, SessionSnapshot

__all__ = ["EndedSessions"]

_MAX_SESSIONS = 10_000
_MAX_BYTES = 64 * 2**20
# Of a session, for each fact and beside its messages: three rounds of two calls take 19 KB on CPython 3.11.
_FACT_BYTES = 500


class EndedSessions:
    """The sessions that ended in the last `seconds`; at most 10,000, and 64 MiB of transcripts and facts.

    Those that ended first are dropped first: when another one ends, or when one is asked for. A session that was left
    for another process has not ended, and is not kept.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._bytes = 0
        self._kept: OrderedDict[str, tuple[RequestSession, float, int]] = OrderedDict()  # with its moment and bytes

    def add(self, session: RequestSession, found: SessionSnapshot) -> None:
        """Keep a session that has just ended, with its inner state; one that was left is not kept."""
        if found.result is None or found.result.resumable:
            return
        size = size_of(found.view.state.messages) + _FACT_BYTES * found.view.state.facts
        self._kept[session.request_id] = (session, anyio.current_time(), size)
        self._bytes += size
        self._drop_old()

    def get(self, request_id: str) -> RequestSession | None:
        """Return the session of a request that has ended, if it is still kept."""
        self._drop_old()
        found = self._kept.get(request_id)
        return None if found is None else found[0]

    def __iter__(self) -> Iterator[RequestSession]:
        self._drop_old()
        return iter([session for session, _, _ in self._kept.values()])

    def clear(self) -> None:
        """Drop all of them."""
        self._kept.clear()
        self._bytes = 0

    def _drop_old(self) -> None:
        before = anyio.current_time() - self._seconds
        while self._kept:
            _, moment, size = next(iter(self._kept.values()))
            if moment > before and len(self._kept) <= _MAX_SESSIONS and self._bytes <= _MAX_BYTES:
                return
            self._kept.popitem(last=False)
            self._bytes -= size
