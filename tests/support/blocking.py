"""The time after which the dispatcher reports that a tool has blocked the event loop, which is infinite in tests.

A machine that stands still for two seconds blocks each event loop, and the dispatcher cannot know that it was not the
tool. Tests of the log would find that line among theirs.
"""

from __future__ import annotations

import math

from toolbus.dispatcher import _thread_run

__all__ = ["BLOCKING_SECONDS", "report_nothing"]

BLOCKING_SECONDS = _thread_run._BLOCKING_SECONDS  # pyright: ignore[reportPrivateUsage]
"""The time in applications, for tests that set it again, and whose clock moves only when they say so."""


def report_nothing() -> None:
    _thread_run._BLOCKING_SECONDS = math.inf  # pyright: ignore[reportPrivateUsage]
