"""Time that a test does not wait for: a deadline may be so long that a machine which stands still does not reach it."""

from __future__ import annotations

import asyncio
from typing import Any

import trio

__all__ = ["skip"]


def skip(seconds: float) -> None:
    """Move the clock of the running event loop forward, so that each deadline within `seconds` has passed."""
    try:
        clock: Any = trio.lowlevel.current_clock()
    except RuntimeError:  # This is asyncio's loop.
        loop: Any = asyncio.get_running_loop()
        time = loop.time
        loop.time = lambda: time() + seconds
    else:
        object.__setattr__(clock, "offset", clock.offset + seconds)  # Its class is frozen.
