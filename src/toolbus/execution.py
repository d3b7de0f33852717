"""How one handler is run: in its caller's context, in a thread that may be given up, with failures put into words.

Knows anyio and no bus; `toolbus.dispatcher` decides when and reports.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import threading
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, cast

import anyio
import anyio.lowlevel
import anyio.to_thread

from .errors import Denied, InvalidArguments, ToolError, ToolRetry, UnserialisableResult
from .events import FailureReason
from .results import clean

__all__ = [
    "Failure",
    "ReportedFailure",
    "ThreadRun",
    "classify",
    "in_context",
    "is_being_cancelled",
    "is_cancellation",
    "is_keyboard_interrupt",
    "leaves_of",
]

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


class ThreadRun:
    """One sync handler in a thread. The waiter may give it up; the thread tells `on_late` when it ends after that.

    `on_late(value, error)` is called in the thread.
    """

    __slots__ = ("_abandoned", "_began", "_call", "_ended", "_lock", "_on_late")

    def __init__(self, call: Callable[[], Any], on_late: Callable[[Any, BaseException | None], None]) -> None:
        self._call = call
        self._on_late = on_late
        self._lock = threading.Lock()
        self._began = False
        self._ended = False
        self._abandoned = False

    async def wait(self) -> Any:
        """The handler's value. When cancelled, gives the thread up at once."""
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


class Failure:
    """A handler's exception in words. `shown` is whether the text is the author's own, for the model.

    `unknown` is whether the tool may have had its effect all the same.
    """

    __slots__ = ("error", "reason", "retryable", "shown", "unknown")

    def __init__(
        self,
        reason: FailureReason,
        error: str,
        *,
        retryable: bool = False,
        shown: bool = True,
        unknown: bool = False,
    ) -> None:
        self.reason: FailureReason = reason
        self.error = error
        self.retryable = retryable
        self.shown = shown
        self.unknown = unknown


class ReportedFailure(Exception):
    """A handler failed elsewhere, and all that is known of it is this. The text is for the log."""

    def __init__(self, failure: Failure, text: str) -> None:
        super().__init__(text)
        self.failure = failure


def leaves_of(exc: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group, of any depth; of any other exception itself."""
    if isinstance(exc, BaseExceptionGroup):
        for each in cast("BaseExceptionGroup[BaseException]", exc).exceptions:
            yield from leaves_of(each)
    else:
        yield exc


def classify(exc: BaseException) -> Failure:
    """What the model is told of `exc`: the text of a `ToolError`, and a generic sentence of anything else."""
    while isinstance(exc, BaseExceptionGroup):  # a handler's own task group
        inner = cast("BaseExceptionGroup[BaseException]", exc).exceptions
        if len(inner) != 1:
            break
        exc = inner[0]
    if isinstance(exc, ReportedFailure):
        return exc.failure
    with contextlib.suppress(Exception):  # its text may be code of the application's, which fails as well
        if isinstance(exc, InvalidArguments):
            return Failure("invalid_arguments", clean(str(exc)))
        if isinstance(exc, Denied):
            return Failure("denied", clean(str(exc)))
        if isinstance(exc, ToolRetry):
            return Failure("error", clean(str(exc)), retryable=True)
        if isinstance(exc, (ToolError, UnserialisableResult)):
            return Failure("error", clean(str(exc)))
    if not isinstance(exc, Exception) and isinstance(exc, _cancelled_class()):
        return Failure("error", "The tool was cancelled from within.", shown=False)
    return Failure("error", "The tool failed with an internal error.", shown=False)


def _cancelled_class() -> tuple[type[BaseException], ...]:
    """The event loop's class of cancellations; none where no event loop runs, as in a tool's own process."""
    try:
        return (anyio.get_cancelled_exc_class(),)
    except anyio.NoEventLoopError:
        return ()


def is_cancellation(exc: BaseException) -> bool:
    """Whether `exc` is a cancellation and nothing else; trio's own nurseries raise groups of them."""
    cancelled = anyio.get_cancelled_exc_class()
    if isinstance(exc, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", exc).split(cancelled)[1] is None
    return isinstance(exc, cancelled)


def is_keyboard_interrupt(exc: BaseException) -> bool:
    """Whether `exc` is a `KeyboardInterrupt`, or a group with one in it."""
    if isinstance(exc, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", exc).subgroup(KeyboardInterrupt) is not None
    return isinstance(exc, KeyboardInterrupt)


def is_being_cancelled() -> bool:
    """Whether a cancel scope around this task is cancelled, so that a cancellation is the host's and no stray one."""
    return anyio.current_effective_deadline() == -math.inf
