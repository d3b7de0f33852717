"""The means to run one handler: in its caller's context, or in a thread that may be given up.

Knows anyio. Must not know the bus: the dispatcher decides when a handler runs, and publishes the result.
"""

from __future__ import annotations

import math
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from time import perf_counter
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread

if TYPE_CHECKING:
    from ._schedule import Job

_NO_LIMIT = math.inf
_NONE: tuple[Any, BaseException | None] = (None, None)
_BLOCKING_SECONDS = 0.5  # a step of a handler that takes longer is reported


@types.coroutine
def in_context(
    job: Job,
    coroutine: Coroutine[Any, Any, Any],
    on_wait: Callable[[], None],
    on_blocked: Callable[[Job, float], None],
) -> Generator[Any, Any, Any]:
    """Await `coroutine` in this task, and run every step of it inside the job's context.

    So context variables, such as a trace's current span, reach a handler that runs in a reused task. This works on
    both backends: the task stays the same, only the variables differ. `on_wait` is called before the coroutine waits
    for the first time, and `on_blocked` with the seconds of each step that took too long to share an event loop.
    """
    context, began = job.context, perf_counter()
    try:
        yielded = context.run(coroutine.send, None)
        on_wait()
        while True:
            if (seconds := perf_counter() - began) > _BLOCKING_SECONDS:
                on_blocked(job, seconds)
            try:
                sent = yield yielded
            except BaseException as exc:
                # The event loop throws this, for example a cancellation, at the coroutine.
                began = perf_counter()
                yielded = context.run(coroutine.throw, exc)
            else:
                began = perf_counter()
                yielded = context.run(coroutine.send, sent)
    except StopIteration as stop:
        return stop.value
    finally:
        sent = yielded = None  # They may hold the exception, whose traceback refers to this frame.
        if (seconds := perf_counter() - began) > _BLOCKING_SECONDS:
            on_blocked(job, seconds)


class HandlerNotStarted(BaseException):
    """A signal that a handler may not begin any more, and has not begun. The session answers the call."""


class ThreadRun:
    """One sync handler in a thread, which its waiter may give up.

    `may_begin()` is called in the thread, right before the handler. `on_late_end(value, error)` is called in the thread
    when the handler ends after it was given up.
    """

    __slots__ = ("_abandoned", "_began", "_call", "_ended", "_lock", "_may_begin", "_on_late", "_outcome")

    def __init__(
        self,
        call: Callable[[], Any],
        may_begin: Callable[[], bool],
        on_late_end: Callable[[Any, BaseException | None], None],
    ) -> None:
        self._call = call
        self._may_begin = may_begin
        self._on_late = on_late_end
        self._lock = threading.Lock()
        self._began = False
        self._ended = False
        self._abandoned = False
        self._outcome = _NONE  # until `wait` takes it

    async def wait(self) -> Any:
        """Return the handler's value. A cancellation does not wait for the thread.

        Raises what the handler raises, and `HandlerNotStarted` if the handler may not begin.
        """
        # anyio's own limiter counts waiters and would free a slot too early, so it gets a limiter without a bound.
        limiter = anyio.CapacityLimiter(_NO_LIMIT)
        # Without it, trio begins a thread even in a cancelled scope.
        await anyio.lowlevel.checkpoint_if_cancelled()
        await anyio.to_thread.run_sync(self._run, abandon_on_cancel=True, limiter=limiter)
        (value, error), self._outcome = self._outcome, _NONE
        if error is not None:
            try:
                raise error
            finally:
                del error  # Its traceback refers to this frame: only the garbage collector would free the two.
        return value

    def abandon(self) -> bool:
        """Give the thread up. Returns whether `on_late_end` will be called.

        It will not if the handler has ended, or will never begin.
        """
        with self._lock:
            self._abandoned = not self._ended
            return self._abandoned and self._began

    def _run(self) -> None:
        """Run the handler in the thread, and keep the outcome for `wait`.

        It is not returned: trio refuses a thread that returns a coroutine, some errors break asyncio, and the frames of
        the event loop, to which the traceback of an error refers, would keep it.
        """
        with self._lock:
            # The run may have been given up while it waited for a thread.
            if self._abandoned or not self._may_begin():
                self._outcome = None, HandlerNotStarted()
                return
            self._began = True
        self._outcome = _outcome_of(self._call)
        with self._lock:
            self._ended = True
            late = self._abandoned
        if late:
            self._on_late(*self._outcome)
            self._outcome = _NONE


def _outcome_of(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Return the value of `call`, or else what it raises, to be raised again on the event loop's thread."""
    try:
        return call(), None
    except BaseException as exc:
        return None, exc
