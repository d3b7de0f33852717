"""One clock for a session: reads like the wall clock, runs like the monotonic one.

Set once against the wall clock, then driven by the event loop's clock alone, so that a jump of the wall clock neither
fires nor delays anything (G27), and virtual time in tests moves it too. Moments can be compared after a restart.
"""

from __future__ import annotations

import time

import anyio

__all__ = ["SessionClock"]


class SessionClock:
    """Seconds since the epoch. Make and use it inside an event loop."""

    __slots__ = ("_offset",)

    def __init__(self) -> None:
        self._offset = time.time() - anyio.current_time()

    def __call__(self) -> float:
        """The present moment."""
        return anyio.current_time() + self._offset

    def on_loop(self, moment: float) -> float:
        """`moment` on the event loop's clock, for deadlines of cancel scopes."""
        return moment - self._offset
