"""Ids of events and requests: unique across processes, and reproducible in simulations.

Example:
    from toolbus.events.ids import ids_from, new_id

    print(new_id() == new_id())  # False
    with ids_from("test"):  # the ids of a test or a replay are the same each time
        print(new_id())  # test1
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from itertools import count

__all__ = ["ids_from", "new_id"]

_process_prefix = os.urandom(8).hex()
_next_number = count().__next__


def _reset_prefix() -> None:
    global _process_prefix  # noqa: PLW0603 -- a forked child must not repeat the ids of its parent
    _process_prefix = os.urandom(8).hex()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_reset_prefix)


def new_id() -> str:
    """Return a fresh id, unique across processes: 64 random bits for the process, then a counter. Thread-safe."""
    return f"{_process_prefix}{_next_number():x}"


@contextlib.contextmanager
def ids_from(prefix: str) -> Generator[None]:
    """Make ids of `prefix` and a counter from 1 within this block, for simulations that must be reproducible."""
    global _process_prefix, _next_number
    kept = _process_prefix, _next_number
    _process_prefix, _next_number = prefix, count(1).__next__
    try:
        yield
    finally:
        _process_prefix, _next_number = kept
