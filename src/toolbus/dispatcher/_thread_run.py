"""How one handler is run: in its caller's context, or in a thread that may be given up.

Knows anyio and no bus; `toolbus.dispatcher` decides when and reports.
"""

from __future__ import annotations

import contextvars
import math
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread

__all__ = ["NotBegun", "ThreadRun", "in_context"]

_NO_LIMIT = math.inf


@types.coroutine
def in_context(
    context: contextvars.Context, coroutine: Coroutine[Any, Any, Any], on_wait: Callable[[], None]
) -> Generator[Any, Any, Any]:
    """Await `coroutine` in this task with every step of it inside `context`.

    So context variables, such as a trace's current span, reach a handler that runs in a reused task. Works on both
    backends: the task stays the same, only the variables differ. `on_wait` is called before it waits the first time.
    """
    try:
        yielded = context.run(coroutine.send, None)
        on_wait()
        while True:
            try:
                sent = yield yielded
            except BaseException as exc:  # thrown in by the loop, cancellation included: the coroutine's
                yielded = context.run(coroutine.throw, exc)
            else:
                yielded = context.run(coroutine.send, sent)
    except StopIteration as stop:
        return stop.value


class NotBegun(BaseException):
    """A handler may not begin any more, and has not. It is no failure: whoever said so answers the call."""


class ThreadRun:
    """One sync handler in a thread. The waiter may give it up; the thread tells `on_late` when it ends after that.

    `may_begin()` is called in the thread, right before the handler is, and `on_late(value, error)` is called there too.
    """

    __slots__ = ("_abandoned", "_began", "_call", "_ended", "_lock", "_may_begin", "_on_late")

    def __init__(
        self,
        call: Callable[[], Any],
        may_begin: Callable[[], bool],
        on_late: Callable[[Any, BaseException | None], None],
    ) -> None:
        self._call = call
        self._may_begin = may_begin
        self._on_late = on_late
        self._lock = threading.Lock()
        self._began = False
        self._ended = False
        self._abandoned = False

    async def wait(self) -> Any:
        """The handler's value. When cancelled, gives the thread up at once. Raises `NotBegun` if it may not begin."""
        # anyio's own limiter counts waiters and would free a place too early, so it gets one without a bound.
        limiter = anyio.CapacityLimiter(_NO_LIMIT)
        await anyio.lowlevel.checkpoint_if_cancelled()  # trio begins a thread all the same
        value, error = await anyio.to_thread.run_sync(self._run, abandon_on_cancel=True, limiter=limiter)
        if error is not None:
            raise error
        return value

    def abandon(self) -> bool:
        """Give the thread up. False when `on_late` will not be called: it has ended, or it will never begin."""
        with self._lock:
            self._abandoned = not self._ended
            return self._abandoned and self._began

    def _run(self) -> tuple[Any, BaseException | None]:
        """The outcome as data: trio refuses a thread's bare coroutine, and asyncio is torn by some exceptions."""
        with self._lock:
            if self._abandoned:  # while it waited for a thread
                return None, None
            if not self._may_begin():
                return None, NotBegun()
            self._began = True
        value: Any = None
        error: BaseException | None = None
        try:
            value = self._call()
        except BaseException as exc:  # carried over to the loop's side and raised there, whatever it is
            error = exc
        with self._lock:
            self._ended = True
            late = self._abandoned
        if late:
            self._on_late(value, error)
        return value, error
