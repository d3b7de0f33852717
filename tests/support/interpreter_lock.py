"""How long a piece of work keeps the interpreter's lock at once.

Python code gives the lock away every few milliseconds; a function that is written in C keeps it until it returns,
unless it says otherwise. So the longest call of such a function is what every other thread, and with it the event loop,
may have to wait for. It is measured in CPU time of the thread, so that a busy machine makes no difference.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

MOST_SECONDS = 0.1
"""The bound of the house: nothing that a model, a tool, a server or a file chooses may hold the loop for longer."""


class LongestCall:
    """The longest time that functions in C have taken at once: its CPU time in seconds, and the function's name.

    What such a function calls in Python does not count, since the lock is given away there.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.name = ""
        self._before = 0.0

    def during(self, work: Callable[[], Any]) -> Any:
        """Do `work` in this thread and give what it gives."""
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            return work()
        finally:
            sys.setprofile(before)

    def _note(self, _frame: FrameType, event: str, argument: Any) -> None:
        now = time.thread_time()
        if event in ("c_return", "c_exception") and now - self._before > self.seconds:
            self.seconds, self.name = now - self._before, getattr(argument, "__qualname__", repr(argument))
        self._before = time.thread_time()
