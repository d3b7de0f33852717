"""The end of a test that hangs in such a way that pytest-timeout cannot end it.

The signal of pytest-timeout raises in the main thread, the next time that Python runs there, and no longer after a
test's first failure. That is not enough for code that holds the interpreter's lock, for a test that swallows the
exception, and for fixtures that cannot be undone while the event loop still runs the test. Its other method is a
thread: virtual time would assume that the thread may call the loop, and the thread also needs the interpreter's lock.

So each limit is followed by a second one, half as long again, at which C code prints the stacks of all threads and ends
the process. pytest-xdist names the test, starts another process and continues. Programs that fixtures have started end
by themselves (`guarded_process`).
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Generator
from types import FrameType
from typing import Any

import pytest

_stderr = pytest.StashKey[int]()
_LAST_SECONDS = 30.0  # the time for pytest and coverage after the last test
_MIN_GRACE_SECONDS = 2.0
_limit = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    # In tests, standard error is another one, which is captured.
    config.stash[_stderr] = os.dup(2 if sys.__stderr__ is None else sys.__stderr__.fileno())


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the process even if a test has left a thread.

    A worker of pytest-xdist waits here until all others are done, for as long as they need, and is ended by pytest-xdist.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _end_process_after(_LAST_SECONDS, config)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:
    """Set the second limit with the first, which names the test as soon as it is over."""
    item.stash[_limit] = settings.timeout
    _end_process_after(settings.timeout + _grace(settings.timeout), item.config)
    found = yield
    raises = signal.getsignal(signal.SIGALRM)

    def name_and_raise(number: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True
        os.write(item.config.stash[_stderr], f"\n{item.nodeid} has run for {settings.timeout:g} s\n".encode())
        if callable(raises):
            raises(number, frame)

    if callable(raises):
        signal.signal(signal.SIGALRM, name_and_raise)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_timeout_cancel_timer() -> Generator[None, object, object]:
    faulthandler.cancel_dump_traceback_later()
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Set a limit again after a failure: pytest has removed all limits, and still has to undo the fixtures."""
    if isinstance(node, pytest.Item) and _limit in node.stash:
        _end_process_after(_grace(node.stash[_limit]), node.config)


def _grace(limit: float) -> float:
    """The seconds in which a test may end after its limit is over."""
    return max(limit / 2, _MIN_GRACE_SECONDS)


def _end_process_after(seconds: float, config: pytest.Config) -> None:
    faulthandler.dump_traceback_later(seconds, file=config.stash[_stderr], exit=True)
