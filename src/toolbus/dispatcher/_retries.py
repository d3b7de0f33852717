"""The decision whether a handler that failed is tried again, and after how many seconds.

Knows tools and exceptions. Waits for nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from ..core.backoff import backoff_seconds
from ..errors import InvalidArguments, ToolError, ToolRetry, UnserializableResult
from ..failures import is_a, leaves_of, log_exception
from ._processes import Kinds, ProcessFailure

if TYPE_CHECKING:
    from ..tools import Tool
    from ._schedule import Job

_logger = logging.getLogger("toolbus.dispatcher")
_FINAL = (ToolRetry, InvalidArguments, UnserializableResult)  # errors that the same call would only repeat


def retry_delay(job: Job, exc: Exception, now: float) -> float | None:
    """Return the seconds to wait before the call's next attempt, or None if there must not be another one.

    That is so when the tool's retries are used up, when its `retry_on` does not match `exc`, and when the wait would
    reach the call's deadline. `now` is on the bus's clock. The same attempt of the same call always waits equally long.
    """
    if job.attempt > job.tool.retries:
        return None
    request = job.request
    delay = backoff_seconds(job.attempt, f"{request.request_id} {request.call_id} {job.attempt}")
    if now + delay >= request.at + request.timeout_seconds:
        return None
    return delay if is_retried(job.tool, exc) else None


def is_retried(tool: Tool, exc: BaseException) -> bool:
    """Return whether `tool` allows another attempt after `exc`. For an exception group, each exception must allow it.

    A group comes from a handler's task group. A `retry_on` function that raises counts as False, and is logged.
    """
    if is_a(exc, ProcessFailure):
        return all(_is_retried(tool, each) for each in cast("ProcessFailure", exc).kinds)
    return all(_is_retried(tool, each) for each in leaves_of(exc))


def _is_retried(tool: Tool, exc: BaseException | Kinds) -> bool:
    if not _is_a(exc, (Exception,)) or _is_a(exc, _FINAL):
        return False
    retry_on = tool.retry_on
    if retry_on is None:
        return not _is_a(exc, (ToolError,))
    if not callable(retry_on):
        return _is_a(exc, retry_on)
    try:
        # `exc` is an exception: tools in processes have no function.
        return bool(retry_on(cast("Exception", exc)))
    except Exception as failed:
        # A fault in the rule must not hide the tool's own failure.
        log_exception(_logger, logging.ERROR, "retry_on of tool %s failed", tool.name, cause=failed, ids={})
        return False


def _is_a(exc: BaseException | Kinds, kinds: tuple[type[BaseException], ...]) -> bool:
    """Return whether `exc` is one of `kinds`; for an exception in another process, by the names of its classes."""
    if issubclass(type(exc), BaseException):
        return is_a(cast("BaseException", exc), kinds)
    return any((each.__module__, each.__qualname__) in cast("Kinds", exc) for each in kinds)
