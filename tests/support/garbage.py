"""A count of the objects that a piece of code leaves to the garbage collector."""

from __future__ import annotations

import gc
import logging
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

import pytest

FRAMES_KNOW_THEIR_CALLERS = pytest.mark.skipif(
    sys.version_info >= (3, 12),
    reason="the frame of a coroutine that has raised refers to its caller's, which knows the result with the exception",
)
"""The mark of tests that later versions of Python cannot pass, since more frames refer to each other there."""


@contextmanager
def garbage() -> Generator[Counter[str]]:
    """Count, at the end of the block, the objects of toolbus that the block has left to the garbage collector."""
    found = Counter[str]()
    gc.collect()
    gc.disable()
    logging.disable()  # pytest keeps the records, and with them the exceptions
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        of_toolbus = [each for each in map(type, gc.garbage) if each.__module__.startswith("toolbus.")]
        found.update(each.__qualname__ for each in of_toolbus if not each.__module__.startswith("toolbus.testing."))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        logging.disable(logging.NOTSET)
        gc.enable()
