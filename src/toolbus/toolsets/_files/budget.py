"""The budget of one call: seconds, and names in directory listings. Knows nothing about files or tools.

Every loop over names, bytes, lines or rules calls `over`, so that a call ends in time for a tree of any shape, even if
nothing in it matches.
"""

from __future__ import annotations

from time import monotonic


class Budget:
    """The bounds of one call; the time runs from the moment when the budget is made. Used by one thread."""

    def __init__(self, *, seconds: float, names: int) -> None:
        self._seconds = seconds
        self._ends = monotonic() + seconds
        self._names = names
        self._names_left = names
        self.stopped = ""
        """The reason why something was left out, as a clause for the result; empty if nothing was left out."""

    def over(self) -> bool:
        """Return whether the time is over. Cheap enough for every iteration of a loop."""
        if monotonic() <= self._ends:
            return False
        self.stopped = f"stopped after {self._seconds:g} seconds"
        return True

    def take_name(self) -> bool:
        """Count one more name of a directory, and return whether it may be processed."""
        if self._names_left > 0:
            self._names_left -= 1
            return True
        self.stopped = self.stopped or f"stopped after {self._names} names of files and directories"
        return False
