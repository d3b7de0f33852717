"""The watch on an event loop: a thread that finds out what keeps the loop from everything else.

Knows asyncio, trio and the bus. Must not know requests: the dispatcher reports the tools that block the loop.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Generator
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

from ..bus import EventBus
from ..events import LoopBlocked

if TYPE_CHECKING:
    from types import FrameType

_logger = logging.getLogger("toolbus.runtime")
_LOOKS = 4  # in the time that may pass
# A function in C that keeps the interpreter's lock stops this thread as well. The limit is so many times higher then,
# because on a busy machine the thread may be late for other reasons.
_LOCKED = 2
_SUSPENDED = 0.05  # of the time: a process that used less of the CPU did not run at all, so no code was to blame
_MAX_FRAMES = 12  # the innermost functions that are named


@contextlib.contextmanager
def watch_loop(bus: EventBus, seconds: float, blocks: Callable[[], int]) -> Generator[None]:
    """Watch the running event loop in this block. What blocks it for more than `seconds` is logged while it does so.

    A thread asks the loop for a sign of life four times in `seconds`; with 0.5 that takes 0.3 % of a core. The log line
    names the functions that run in the loop's thread. Something that keeps the interpreter's lock, as a regular
    expression does, is logged when it is over, without its name, and so is a time in which the whole process did not
    run. The event is published when the loop works again, unless `blocks()` has grown: then the dispatcher has
    published it, with the name of the tool.
    """
    watch = _LoopWatch(bus, seconds, blocks)
    watch.thread.start()
    try:
        yield
    finally:
        watch.ends.set()


class _LoopWatch:
    def __init__(self, bus: EventBus, seconds: float, blocks: Callable[[], int]) -> None:
        self._bus = bus
        self._seconds = seconds
        self._blocks = blocks
        self._loop_thread = threading.get_ident()
        loop: Any = anyio.lowlevel.current_token().native_token
        self._post: Callable[..., Any] = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
        self._counts = (blocks(), blocks())  # at the last two signs of life
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="toolbus watches the event loop", daemon=True)

    def _watch(self) -> None:
        # The loop may end before the watch on it does: asyncio and trio raise a `RuntimeError` then.
        with contextlib.suppress(RuntimeError):
            before = perf_counter(), process_time()
            while not self.ends.wait(self._seconds / _LOOKS):
                self._look(*before)
                before = perf_counter(), process_time()

    def _look(self, before: float, used: float) -> None:
        """Wait for a sign of life, and report it if that takes too long.

        The last look was at `before`, when the process had used this much time of the CPU.
        """
        alive, began = threading.Event(), perf_counter()
        self._post(self._give_sign, alive)
        if alive.wait(self._seconds):
            if (seconds := perf_counter() - before) > _LOCKED * self._seconds:
                text = "the event loop was blocked for %.1f s, by code that kept the interpreter's lock"
                if process_time() - used < _SUSPENDED * seconds:
                    text = "the event loop stood still for %.1f s: the process was suspended, or the machine is busy"
                _logger.warning(text, seconds)
                self._post(self._publish, seconds, "")
            return
        stack = _stack_of(self._loop_thread)
        _logger.warning("the event loop is blocked for more than %.1f s, by %s", self._seconds, stack)
        while not (alive.wait(self._seconds) or self.ends.is_set()):
            pass
        self._post(self._publish, perf_counter() - began, stack)

    def _give_sign(self, alive: threading.Event) -> None:
        """Show that the event loop works. Called in its thread, as `_publish` is."""
        self._counts = (self._counts[1], self._blocks())
        alive.set()

    def _publish(self, seconds: float, stack: str) -> None:
        """Publish a block that is over, unless the dispatcher has done so since the sign of life before it."""
        if self._counts[0] == self._counts[1] and not self.ends.is_set():
            self._bus.publish(LoopBlocked(at=self._bus.clock(), seconds=seconds, stack=stack))


def _stack_of(thread: int) -> str:
    """Return what a thread runs now as one line, the innermost function first."""
    # The function is private, and documented for debuggers such as this one.
    frame: FrameType | None = sys._current_frames().get(thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    found: list[str] = []
    while frame is not None and len(found) < _MAX_FRAMES:
        code = frame.f_code
        found.append(f"{code.co_name} ({code.co_filename}:{frame.f_lineno})")
        frame = frame.f_back
    return " < ".join(found)
