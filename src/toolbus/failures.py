"""Exceptions of handlers and hooks, which may be anything, as failure texts for the model and as log lines.

No function in this module raises, whatever the exception's own code does. Must not know the bus.

Example:
    from toolbus.errors import ToolError
    from toolbus.failures import classify, is_a, leaves_of, only_member, unread_of

    failure = classify(ToolError("There is no order 7."))
    print(failure.reason, failure.error)  # error There is no order 7.
    group = ExceptionGroup("two", [KeyError("a"), OSError("disk full")])
    print([is_a(each, OSError) for each in leaves_of(group)])  # [False, True]
    single = only_member(ExceptionGroup("one", [OSError("disk full")]))
    print(unread_of(single, is_shown=False))  # OSError: disk full
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from types import TracebackType
from typing import Any, cast

import anyio

from ._open_scopes import asyncio_task
from .errors import Denied, InvalidArguments, LimitReached, ToolError, ToolRetry, UnserializableResult
from .events import FailureReason
from .tool_results import clean

__all__ = [
    "Failure",
    "ReportedFailure",
    "classify",
    "detail_of",
    "is_a",
    "is_being_cancelled",
    "is_cancellation",
    "keyboard_interrupt_of",
    "leaves_of",
    "line_of",
    "log_exception",
    "only_member",
    "passes",
    "raised_at",
    "unread_of",
    "words_of",
]


@dataclass(slots=True)
class Failure:
    """The failure of a call, as text for the model. `shown` says whether the text is the handler author's own.

    `unknown` says whether the tool may have had its effect nevertheless.
    """

    reason: FailureReason
    error: str
    _: KW_ONLY
    retryable: bool = False
    shown: bool = True
    unknown: bool = False


class ReportedFailure(Exception):
    """The failure of a handler elsewhere, of which nothing else is known. The texts are for the log.

    `raised` says in a few words what happened, like `raised_at` there; by default, it is `text`.
    """

    def __init__(self, failure: Failure, text: str, raised: str = "") -> None:
        super().__init__(text)
        self.failure = failure
        self.raised = raised or text


def leaves_of(exc: BaseException) -> Iterator[BaseException]:
    """Iterate over the exceptions in a group, at any depth, in order and each once; or over a single exception.

    A group may be nested deeper than Python can recurse, contain the same group several times, and have a `derive` that
    raises. So groups are neither split nor walked by recursion, and methods that their class overrides are not called.
    """
    todo, seen = [exc], set[int]()
    while todo:
        each = todo.pop()
        if id(each) not in seen:
            seen.add(id(each))
            if members := members_of(each):
                todo.extend(reversed(members))
            else:
                yield each


def members_of(exc: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions directly in a group; for any other exception, nothing."""
    return _members(exc) if is_a(exc, BaseExceptionGroup) else ()


def only_member(exc: BaseException) -> BaseException:
    """Return the exception in a group of one, which comes from a task group of the application; any other as it is."""
    while len(members := members_of(exc)) == 1:
        exc = members[0]
    return exc


_members: Callable[[BaseException], tuple[BaseException, ...]] = cast("Any", BaseExceptionGroup).exceptions.__get__


def is_a(exc: BaseException, kinds: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    """Return whether `exc` is one of `kinds`, by its real type: `isinstance` reads `__class__`, which may raise."""
    return issubclass(type(exc), kinds)


def classify(exc: BaseException) -> Failure:
    """Return the failure that the model reads: the text of a `ToolError` or a limit, or else a generic sentence."""
    exc = only_member(exc)
    if is_a(exc, ReportedFailure):
        return cast("ReportedFailure", exc).failure
    if is_a(exc, _IN_WORDS) and (words := _text_of(exc)) is not None:
        reason = "invalid_arguments" if is_a(exc, InvalidArguments) else "denied" if is_a(exc, Denied) else "error"
        words = words or ("The call was denied." if reason == "denied" else "The tool failed.")
        return Failure(reason, words, retryable=is_a(exc, ToolRetry))
    if not is_a(exc, Exception) and is_a(exc, _cancelled_class()):
        return Failure("error", "The tool was cancelled from within.", shown=False)
    return Failure("error", "The tool failed with an internal error.", shown=False)


_IN_WORDS = (InvalidArguments, Denied, LimitReached, ToolError, UnserializableResult)
_MAX_DETAIL_CHARS = 1_000
_MAX_LINE_CHARS = 200
_MAX_TEXT_CHARS = 100_000  # of an exception's text; a longer text would be copied again and again


def words_of(exc: BaseException) -> str:
    """Return the class name and the text of an exception, even if its own code fails."""
    words, name = _text_of(exc), _name_of(type(exc))
    return f"{name}: {words}" if words else name


def raised_at(exc: BaseException) -> str:
    """Return the class of an exception, the first one in a group, and its line: "KeyError at /app/tools.py:14"."""
    first = next(leaves_of(exc), exc)
    if is_a(first, ReportedFailure):
        return cast("ReportedFailure", first).raised
    line = line_of(first) or line_of(exc)
    return f"{_name_of(type(first))} at {line}" if line else _name_of(type(first))


def detail_of(exc: BaseException, mask: Callable[[str], str] = str) -> str:
    """Return the class, the text and the line of an exception, the first one in a group, on one line for operators.

    `mask` returns a text without secrets: on one line, and cut, they could not be found any more.
    """
    first = next(leaves_of(exc), exc)
    if is_a(first, ReportedFailure):
        return _on_one_line(mask(cast("ReportedFailure", first).raised))
    words = _on_one_line(mask(words_of(first)))
    line = (line_of(first) or line_of(exc))[-_MAX_LINE_CHARS:]
    return f"{words} at {line}" if line else words


def unread_of(exc: BaseException, mask: Callable[[str], str] = str, *, is_shown: bool) -> str:
    """Return the detail of the exception whose text the model does not read: `exc`, or the cause of a shown one."""
    unread = _cause(only_member(exc)) if is_shown else exc
    return "" if unread is None else detail_of(unread, mask)


def _on_one_line(text: str) -> str:
    return " ".join(text.split())[: _MAX_DETAIL_CHARS - _MAX_LINE_CHARS]


_TOOLBUS, _STANDARD_LIBRARY = (os.path.dirname(each) + os.sep for each in (__file__, os.__file__))  # noqa: PTH120


def line_of(exc: BaseException) -> str:
    """Return "file:line" of the innermost frame that is the application's, or "" if there is no such frame.

    An application that is itself an installed package cannot be distinguished from a library. If all frames are in
    installed packages, the outermost one counts, which is a handler's own.
    """
    found, trace = "", _trace(exc)
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        is_installed = "site-packages" in file or "dist-packages" in file
        is_ours = file.startswith((_TOOLBUS, "<frozen")) or (file.startswith(_STANDARD_LIBRARY) and not is_installed)
        if not is_ours and (not is_installed or not found):
            found = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _text_of(exc: BaseException) -> str | None:
    """Return the text of an exception, or None if the exception's own code raises while it makes the text."""
    try:
        words = str.__str__(str(exc))
    except BaseException:
        return None
    if (more := len(words) - _MAX_TEXT_CHARS) > 0:
        words = f"{words[:_MAX_TEXT_CHARS]}... ({more:,} more characters)"
    return clean(words)


def _cancelled_class() -> tuple[type[BaseException], ...]:
    """Return the event loop's class of cancellations; nothing if no event loop runs, as in a tool's own process."""
    try:
        return (anyio.get_cancelled_exc_class(),)
    except anyio.NoEventLoopError:
        return ()


def is_cancellation(exc: BaseException) -> bool:
    """Return whether `exc` is a cancellation, or a group that holds only cancellations, as trio's nurseries raise."""
    cancelled = anyio.get_cancelled_exc_class()
    return all(is_a(each, cancelled) for each in leaves_of(exc))


def keyboard_interrupt_of(exc: BaseException) -> BaseException | None:
    """Return `exc` if it is a `KeyboardInterrupt`, the first one in a group, or None."""
    return next((each for each in leaves_of(exc) if is_a(each, KeyboardInterrupt)), None)


def is_being_cancelled() -> bool:
    """Return whether a cancel scope around this task is cancelled: if not, a cancellation in it is a stray one."""
    return anyio.current_effective_deadline() == -math.inf


def passes(exc: BaseException) -> bool:
    """Return whether an exception of the application's code in a request's task has to pass to the host of that task.

    An exception that ends a program has to pass, and so does a cancellation if the task was cancelled. A stray
    cancellation, such as the result of a cancelled future, is a failure like any other exception.
    """
    if is_a(exc, Exception):
        return False
    leaves = tuple(leaves_of(exc))
    if any(is_a(each, (KeyboardInterrupt, SystemExit, GeneratorExit)) for each in leaves):
        return True
    cancelled = anyio.get_cancelled_exc_class()
    return any(is_a(each, cancelled) for each in leaves) and (is_being_cancelled() or _is_cancelled_by_asyncio())


def _is_cancelled_by_asyncio() -> bool:
    """Return whether asyncio itself cancels this task, for example by a time-out. anyio knows only its own scopes."""
    task = asyncio_task()
    return task is not None and task.cancelling() > 0


# ------------------------------------------------------------------------------------------------- the log

_MAX_EXCEPTIONS = 1_000
_MAX_DEPTH = 100
_MAX_CHARS = 1_000_000


def log_exception(
    logger: logging.Logger, level: int, message: str, *words: object, cause: BaseException, ids: Mapping[str, Any]
) -> None:
    """Log a line with the traceback of any exception, unless it cannot be formatted or has only lines of toolbus.

    Never raises, although the application's log handlers get the exception, which may have any code.
    """
    if not logger.isEnabledFor(level):
        return
    try:
        if is_a(cause, ReportedFailure) and str(cause) == cast("ReportedFailure", cause).raised:
            logger.log(level, message, *words, extra=ids)
            return
        if _can_be_printed(cause):
            logger.log(level, message, *words, exc_info=cause, extra=ids)
            return
    except Exception:  # noqa: S110 -- raised by the exception's own code, or by a log handler because of it
        pass
    message += " (%s, which cannot be printed)"
    with contextlib.suppress(Exception):
        logger.log(level, message, *words, _name_of(type(cause)), extra=ids)


def _can_be_printed(exc: BaseException) -> bool:
    """Return whether the traceback of `exc` has an acceptable size.

    The walk visits the same exceptions as the `traceback` module, which has no bound.
    """
    todo, seen, count, characters = [(exc, 0)], set[int](), 0, 0
    while todo:
        each, depth = todo.pop()
        seen.add(id(each))
        count += 1
        characters += sum(len(item) for item in (*_args(each), *getattr(each, "__notes__", ())) if type(item) in _SIZED)
        if count > _MAX_EXCEPTIONS or depth > _MAX_DEPTH or characters > _MAX_CHARS:
            return False
        # `traceback` prints a repeated member again.
        todo += [(member, depth + 1) for member in members_of(each)]
        todo += [(why, depth + 1) for why in (_cause(each), _context(each)) if why is not None and id(why) not in seen]
    return True


_SIZED = frozenset({str, bytes, bytearray, list, tuple, dict, set, frozenset})
_name_of: Callable[[type[BaseException]], str] = type.__dict__["__name__"].__get__
_trace: Callable[[BaseException], TracebackType | None] = cast("Any", BaseException).__traceback__.__get__
_args: Callable[[BaseException], tuple[Any, ...]] = cast("Any", BaseException).args.__get__
_cause: Callable[[BaseException], BaseException | None] = cast("Any", BaseException).__cause__.__get__
_context: Callable[[BaseException], BaseException | None] = cast("Any", BaseException).__context__.__get__
