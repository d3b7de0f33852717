"""The work that checks may do on the event loop without a pause. Pure: it is counted by bounds, except for patterns."""

from __future__ import annotations

import threading
from typing import Final

from ._shape import TooCostly

INLINE_NS: Final = 40_000_000
"""The longest work on the event loop without a pause: 40 ms by bounds, which are higher than the real time."""

_TOGETHER = "$: it cannot be checked, since the calls of this reply are too big together; send it again on its own"


class Allowance(threading.local):
    """The work that is left, in nanoseconds.

    Each check may do `INLINE_NS`. Code that makes many checks in a row, or one that may do more, sets `shared_ns` to
    what they may do together, and back to None afterwards.
    """

    shared_ns: int | None = None

    @property
    def left_ns(self) -> int:
        """The work that is left for the next check."""
        return INLINE_NS if self.shared_ns is None else self.shared_ns

    def spend(self, seconds: float) -> None:
        """Subtract work whose time was measured, since it had no good bound."""
        if self.shared_ns is not None:
            self.shared_ns = max(0, self.shared_ns - int(seconds * 1e9))

    def take(self, cost_ns: int, problem: str) -> None:
        """Take the cost of a check. Raises `TooCostly`, with `problem` as its text, where not as much is left."""
        if cost_ns > self.left_ns:
            raise TooCostly(problem if cost_ns > INLINE_NS else _TOGETHER)
        if self.shared_ns is not None:
            self.shared_ns -= cost_ns


allowance = Allowance()
