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
from typing import Any, NamedTuple

from support.watchdog import ATTEMPTS, MAX_SECONDS


class LongestCall(NamedTuple):
    """The longest uninterrupted time in a C function: its CPU time in seconds, and the function's name.

    Python code that such a function calls does not count, since it releases the lock.
    """

    seconds: float
    name: str


def longest_call(work: Callable[[], object], *, below: float = MAX_SECONDS) -> LongestCall:
    """Return the longest call during some work: the shortest of those of several attempts, as `watchdog.cpu_seconds` does."""
    best = LongestCall(float("inf"), "")
    for _ in range(ATTEMPTS):
        best = min(best, _measured(work))
        if best.seconds < below:
            break
    return best


def _measured(work: Callable[[], object]) -> LongestCall:
    longest = LongestCall(0.0, "")
    began = 0.0
    now = time.thread_time

    def note(_frame: FrameType, event: str, argument: Any) -> None:
        nonlocal longest, began
        if event in ("c_call", "return"):
            began = now()
        elif event != "call" and (seconds := now() - began) > longest.seconds:
            longest = LongestCall(seconds, getattr(argument, "__qualname__", repr(argument)))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return longest
