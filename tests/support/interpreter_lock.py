"""The longest time for which a piece of work holds the interpreter's lock.

Python code releases the lock every few milliseconds; a function that is written in C holds it until it returns, unless
it releases it explicitly. So every other thread, and the event loop, may have to wait for the longest call of such a
function. It is measured in CPU time of the thread, so that a busy machine makes no difference.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

MAX_SECONDS = 0.1
"""The bound of toolbus: nothing that a model, a tool, a server or a file chooses may hold the loop for longer."""


class LongestCall:
    """The longest uninterrupted time in a C function: its CPU time in seconds, and the function's name.

    Python code that such a function calls does not count, since it releases the lock.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.name = ""
        self._before = 0.0

    def during(self, work: Callable[[], Any]) -> Any:
        """Run `work` in this thread, and return its result."""
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
