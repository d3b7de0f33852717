"""What a handler has raised, which may be anything: in words for the model, and as a line in the log.

Nothing in here raises, whatever the exception's own code does. Knows no bus.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import anyio

from .errors import Denied, InvalidArguments, ToolError, ToolRetry, UnserialisableResult
from .events import FailureReason
from .tool_results import clean

__all__ = [
    "Failure",
    "ReportedFailure",
    "classify",
    "is_a",
    "is_being_cancelled",
    "is_cancellation",
    "keyboard_interrupt_of",
    "leaves_of",
    "log_exception",
    "passes",
    "words_of",
]


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
    """The exceptions in a group, of any depth, in order and each once; of any other exception itself.

    A group may be nested deeper than Python can recurse, hold a group in many places, and have a `derive` that raises.
    So it is neither split nor walked by recursion, and what its class has overridden is not asked.
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
    """What is in a group; nothing of any other exception."""
    return _members(exc) if is_a(exc, BaseExceptionGroup) else ()


_members: Callable[[BaseException], tuple[BaseException, ...]] = cast("Any", BaseExceptionGroup).exceptions.__get__


def is_a(exc: BaseException, kinds: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    """`isinstance` by the class that Python itself goes by: an instance's `__class__` may be code that raises."""
    return issubclass(type(exc), kinds)


def classify(exc: BaseException) -> Failure:
    """What the model is told of `exc`: the text of a `ToolError`, and a generic sentence of anything else."""
    while len(members := members_of(exc)) == 1:  # a handler's own task group
        exc = members[0]
    if is_a(exc, ReportedFailure):
        return cast("ReportedFailure", exc).failure
    if is_a(exc, _IN_WORDS) and (words := _text_of(exc)) is not None:
        reason = "invalid_arguments" if is_a(exc, InvalidArguments) else "denied" if is_a(exc, Denied) else "error"
        return Failure(reason, words, retryable=is_a(exc, ToolRetry))
    if not is_a(exc, Exception) and is_a(exc, _cancelled_class()):
        return Failure("error", "The tool was cancelled from within.", shown=False)
    return Failure("error", "The tool failed with an internal error.", shown=False)


_IN_WORDS = (InvalidArguments, Denied, ToolError, UnserialisableResult)
_MAX_TEXT_CHARS = 100_000  # characters of an exception's text; a longer one would be copied over and over


def words_of(exc: BaseException) -> str:
    """The class and the text of an exception, whatever is wrong with them."""
    words, name = _text_of(exc), _name_of(type(exc))
    return f"{name}: {words}" if words else name


def _text_of(exc: BaseException) -> str | None:
    """The text that its author wrote. None where that is code of the application's that fails as well."""
    try:
        words = str.__str__(str(exc))
    except BaseException:
        return None
    if (more := len(words) - _MAX_TEXT_CHARS) > 0:
        words = f"{words[:_MAX_TEXT_CHARS]}... ({more:,} more characters)"
    return clean(words)


def _cancelled_class() -> tuple[type[BaseException], ...]:
    """The event loop's class of cancellations; none where no event loop runs, as in a tool's own process."""
    try:
        return (anyio.get_cancelled_exc_class(),)
    except anyio.NoEventLoopError:
        return ()


def is_cancellation(exc: BaseException) -> bool:
    """Whether `exc` is a cancellation and nothing else; trio's own nurseries raise groups of them."""
    cancelled = anyio.get_cancelled_exc_class()
    return all(is_a(each, cancelled) for each in leaves_of(exc))


def keyboard_interrupt_of(exc: BaseException) -> BaseException | None:
    """`exc` if it is a `KeyboardInterrupt`; of a group the first one in it."""
    return next((each for each in leaves_of(exc) if is_a(each, KeyboardInterrupt)), None)


def is_being_cancelled() -> bool:
    """Whether a cancel scope around this task is cancelled, so that a cancellation is the host's and no stray one."""
    return anyio.current_effective_deadline() == -math.inf


def passes(exc: BaseException) -> bool:
    """Whether what the application's code has raised in a request's task is for the host of that task.

    A cancellation is, if somebody has cancelled the task; a stray one, such as the result of a cancelled future, is
    a failure like any other. So is everything else but what ends a program.
    """
    if is_a(exc, Exception):
        return False
    leaves = tuple(leaves_of(exc))
    if any(is_a(each, (KeyboardInterrupt, SystemExit, GeneratorExit)) for each in leaves):
        return True
    cancelled = anyio.get_cancelled_exc_class()
    return any(is_a(each, cancelled) for each in leaves) and (is_being_cancelled() or _is_cancelled_by_asyncio())


def _is_cancelled_by_asyncio() -> bool:
    """Whether asyncio itself was asked to cancel this task, as by its time-outs: anyio knows only of its own scopes."""
    import asyncio  # noqa: PLC0415 -- not before an event loop runs: it takes a tenth of the time of toolbus's import

    try:
        task = asyncio.current_task()
    except RuntimeError:  # another event loop runs
        return False
    return task is not None and task.cancelling() > 0


# ------------------------------------------------------------------------------------------------- the log

_MAX_EXCEPTIONS = 1_000
_MAX_DEPTH = 100
_MAX_CHARS = 1_000_000


def log_exception(
    logger: logging.Logger, level: int, message: str, *words: object, cause: BaseException, ids: Mapping[str, Any]
) -> None:
    """Log a line with the traceback of an exception that may be anything; without, where that cannot be made.

    Never raises: the application's handlers of log records get that exception, and it may hold any code.
    """
    if not logger.isEnabledFor(level):
        return
    try:
        if _can_be_printed(cause):
            logger.log(level, message, *words, exc_info=cause, extra=ids)
            return
    except Exception:  # noqa: S110 -- of the exception's own code, or of a handler that fails by it
        pass
    message += " (%s, which cannot be printed)"
    with contextlib.suppress(Exception):
        logger.log(level, message, *words, _name_of(type(cause)), extra=ids)


def _can_be_printed(exc: BaseException) -> bool:
    """Whether a traceback of `exc` has a size that can be borne. Goes where `traceback` goes, which knows no bound."""
    todo, seen, count, characters = [(exc, 0)], set[int](), 0, 0
    while todo:
        each, depth = todo.pop()
        seen.add(id(each))
        count += 1
        characters += sum(len(item) for item in (*_args(each), *getattr(each, "__notes__", ())) if type(item) in _SIZED)
        if count > _MAX_EXCEPTIONS or depth > _MAX_DEPTH or characters > _MAX_CHARS:
            return False
        todo += [(member, depth + 1) for member in members_of(each)]  # each time that it comes by one
        todo += [(why, depth + 1) for why in (_cause(each), _context(each)) if why is not None and id(why) not in seen]
    return True


_SIZED = frozenset({str, bytes, bytearray, list, tuple, dict, set, frozenset})
_name_of: Callable[[type[BaseException]], str] = type.__dict__["__name__"].__get__
_args: Callable[[BaseException], tuple[Any, ...]] = cast("Any", BaseException).args.__get__
_cause: Callable[[BaseException], BaseException | None] = cast("Any", BaseException).__cause__.__get__
_context: Callable[[BaseException], BaseException | None] = cast("Any", BaseException).__context__.__get__
