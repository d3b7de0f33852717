"""An asyncio event loop whose time is virtual: it stands still while anything can run, and jumps when nothing can.

The module uses only asyncio's public interface: the event loop is given its own selector, and asyncio asks a
selector to wait exactly when nothing is ready, and for how long. That is the one moment in which time may pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from ..errors import ToolbusError

PATIENCE_SECONDS = 5.0
"""Real seconds for which time waits for a working thread: far more than a thread needs in a test, far less than a hang.
"""
_LOOK_AGAIN_SECONDS = 0.001


class VirtualDeadlock(ToolbusError, RuntimeError):
    """Nothing can ever run again in virtual time: no task is ready, and no timer, thread or I/O is left to wait for.

    The message lists the tasks and the line at which each of them waits.

    Example:
        import asyncio

        from toolbus.testing import VirtualDeadlock, VirtualTimeLoop

        def test_what_waits_for_nothing_is_an_error() -> None:
            with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
                try:
                    runner.run(asyncio.Event().wait())
                except VirtualDeadlock as error:
                    print(error.code)
    """

    fault = "caller"
    code = "virtual_deadlock"


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A selector event loop with a virtual clock, for tests: an hour of sleep takes no time.

        anyio.run(main, backend="asyncio", backend_options={"loop_factory": VirtualTimeLoop})

    `time()` begins at 0 and moves only in jumps: when nothing is ready, it jumps to the next timer, exactly and at
    once. While a worker thread runs (`anyio.to_thread`, `run_in_executor`), time stands still, for at most
    `thread_patience_seconds` of real time in which nothing happens; after that the loop no longer waits for the
    thread. I/O that is ready is handled before a jump, but time does not wait for I/O to become ready. When nothing can
    ever run again, `run_until_complete` raises `VirtualDeadlock` instead of hanging.

    Example:
        import asyncio

        from toolbus.testing import VirtualTimeLoop

        def test_an_hour_takes_no_time() -> None:
            with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
                runner.run(asyncio.sleep(3_600))
    """

    def __init__(self, *, thread_patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._virtual_now = 0.0
        self._patience = thread_patience_seconds
        self._timed_out: weakref.WeakSet[Any] = weakref.WeakSet()
        self._executing: set[asyncio.Future[Any]] = set()
        self._idle: list[tuple[asyncio.Future[None], bool]] = []
        # The number of running `advance` calls that do not wait for threads.
        self._not_waiting = 0
        super().__init__(_JumpingSelector(self._wait))

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._virtual_now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Do as asyncio does, but let time stand still until `func` has returned or nobody waits for it any more."""
        future: asyncio.Future[Any] = super().run_in_executor(executor, func, *args)
        self._executing.add(future)
        future.add_done_callback(self._executing.discard)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 -- asyncio's
        """Do as asyncio does, but let time stand still until the executor's threads have ended.

        From Python 3.12 on `asyncio.run` gives the threads 300 seconds, which would pass at once.
        """
        closing: asyncio.Future[None] = self.create_future()
        self._executing.add(closing)
        try:
            await super().shutdown_default_executor(*(() if timeout is None else (timeout,)))
        finally:
            self._executing.discard(closing)

    async def settle(self, *, wait_for_threads: bool = True) -> None:
        """Return once nothing more can run until time passes."""
        future = self.create_future()
        self._idle.append((future, wait_for_threads))
        try:
            await future
        finally:
            with contextlib.suppress(ValueError):
                self._idle.remove((future, wait_for_threads))

    async def advance(self, seconds: float, *, wait_for_threads: bool = True) -> None:
        """Let virtual time pass; return once everything that is due by then has run."""
        moment = self._virtual_now + seconds
        await self.settle(wait_for_threads=wait_for_threads)
        reached = self.create_future()
        timer = self.call_at(moment, reached.set_result, None)
        self._not_waiting += not wait_for_threads
        try:
            await reached
        finally:
            timer.cancel()
            self._not_waiting -= not wait_for_threads
        await self.settle(wait_for_threads=wait_for_threads)

    # ----------------------------------------------------------------------------------- called by the selector

    def _wait(self, poll: _Poll, watched: int, timeout: float | None) -> _Ready:
        """Decide what happens next, and let it happen. The loop has nothing to run until `timeout` (None: never)."""
        working = self._working_threads()
        foreign = timeout is None and _foreign_threads()
        if ready := poll(0):
            return ready
        if self._wake_idle(threads_work=bool(working)):
            return []
        if working:
            # A thread answers before its queue counts it as idle, so its own state has to be read repeatedly.
            patience_ends = time.monotonic() + (0 if self._not_waiting else self._patience)
            while working and time.monotonic() < patience_ends:
                if ready := poll(_LOOK_AGAIN_SECONDS):
                    return ready
                working = self._working_threads()
            self._timed_out.update(working)
            # Somebody may have waited for the threads.
            return []
        if timeout is not None:
            self._virtual_now += timeout
            return []
        # One descriptor is the loop's own pipe. A foreign thread, or one that timed out, may still call this loop.
        if watched > 1 or ((foreign or self._timed_out) and (ready := poll(self._patience))):
            return ready or poll(None)
        raise VirtualDeadlock(f"nothing can run any more at {self._virtual_now:g} s; waiting are:\n{self._waiting()}")

    def _wake_idle(self, *, threads_work: bool) -> bool:
        woken = [each for each in self._idle if not (each[1] and threads_work)]
        for each in woken:
            self._idle.remove(each)
            if not each[0].done():
                each[0].set_result(None)
        return bool(woken)

    def _working_threads(self) -> list[object]:
        """Return the work that runs in threads for this loop, except work that took too long.

        anyio does not publish which of its threads are idle. It hands work to each thread through a `queue.Queue`,
        which knows whether the work it gave out is done. If a later anyio changes that, the loop no longer waits for
        its threads.
        """
        working: list[object] = [future for future in self._executing if not future.done()]
        for thread in threading.enumerate():
            if getattr(thread, "loop", None) is self:
                if getattr(getattr(thread, "queue", None), "unfinished_tasks", 0):
                    working.append(thread)
                else:
                    self._timed_out.discard(thread)
        return [each for each in working if each not in self._timed_out]

    def _waiting(self) -> str:
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        return (
            "\n".join(f"  {task.get_name()} at {suspended_at(task.get_coro())}" for task in tasks) or "  no task at all"
        )


def suspended_at(awaited: Any) -> str:
    """Return the innermost line at which a coroutine is suspended, outside of the packages of event loops."""
    location = "?"
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if location == "?" or package not in {"anyio", "asyncio", "trio"}:
            location = f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_qualname}"
        awaited = awaited.cr_await
    return location


def _foreign_threads() -> bool:
    """Return whether there are threads besides this one and anyio's workers: they may call this loop at any time."""
    return any(
        thread is not threading.current_thread() and not hasattr(thread, "queue") for thread in threading.enumerate()
    )


_Ready = list[tuple[selectors.SelectorKey, int]]
_Poll = Callable[[float | None], _Ready]


class _JumpingSelector(selectors.DefaultSelector):
    """The platform's selector, which waits as `wait(poll, watched, timeout)` decides."""

    def __init__(self, wait: Callable[[_Poll, int, float | None], _Ready]) -> None:
        super().__init__()
        self._wait = wait

    def select(self, timeout: float | None = None) -> _Ready:
        poll = super().select
        if timeout is not None and timeout <= 0:
            return poll(0)
        return self._wait(poll, len(self.get_map()), timeout)
