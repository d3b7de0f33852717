"""How much one call may still look at: seconds, and names in listings. Knows nothing of files or tools.

Every loop over names, bytes, lines or rules asks `over`, so that a tree of any shape ends in time, also where nothing
in it is what was asked for.
"""

from __future__ import annotations

from time import monotonic

__all__ = ["Budget"]


class Budget:
    """The bounds of one call, which begin to count when it is made. Used by one thread."""

    def __init__(self, *, seconds: float, names: int) -> None:
        self._seconds = seconds
        self._ends = monotonic() + seconds
        self._names = names
        self._names_left = names
        self.stopped = ""
        """Why something was left out, as a clause for the result. Empty while nothing was."""

    def over(self) -> bool:
        """Whether the time is over. Cheap enough for every turn of a loop."""
        if monotonic() <= self._ends:
            return False
        self.stopped = f"stopped after {self._seconds:g} seconds"
        return True

    def take_name(self) -> bool:
        """Whether one more name of a directory may be looked at."""
        if self._names_left > 0:
            self._names_left -= 1
            return True
        self.stopped = self.stopped or f"stopped after {self._names} names of files and directories"
        return False
