"""Whether a handler that failed is tried again, and after how long. Knows tools and exceptions; waits for nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from .core.retry import backoff_seconds
from .errors import InvalidArguments, ToolError, ToolRetry, UnserialisableResult

if TYPE_CHECKING:
    from .scheduling import Job
    from .tools import Tool

__all__ = ["is_retried", "retry_delay"]

_logger = logging.getLogger("toolbus.dispatcher")
_FINAL = (ToolRetry, InvalidArguments, UnserialisableResult)  # the same call would only fail in the same way


def retry_delay(job: Job, exc: Exception, now: float) -> float | None:
    """Seconds to wait before the call's next attempt; None when there is none to be.

    `now` is on the bus's clock. None when the tool's retries are used up, when its `retry_on` does not match `exc`, and
    when the wait would reach the call's deadline. Equal places in equal requests wait equally long.
    """
    if job.attempt > job.tool.retries:
        return None
    request = job.request
    delay = backoff_seconds(job.attempt, f"{request.request_id} {request.call_id} {job.attempt}")
    if now + delay >= request.at + request.deadline:
        return None
    return delay if is_retried(job.tool, exc) else None


def is_retried(tool: Tool[..., Any], exc: BaseException) -> bool:
    """Whether `tool` allows another attempt after `exc`. Of a group (a handler's task group), after each one in it.

    A `retry_on` function that raises counts as False, and is logged.
    """
    return all(_is_retried(tool, each) for each in _leaves(exc))


def _is_retried(tool: Tool[..., Any], exc: BaseException) -> bool:
    if not isinstance(exc, Exception) or isinstance(exc, _FINAL):
        return False
    retry_on = tool.retry_on
    if retry_on is None:
        return not isinstance(exc, ToolError)
    if isinstance(retry_on, tuple):
        return isinstance(exc, retry_on)
    try:
        return bool(retry_on(exc))
    except Exception:  # a fault in the rule must not hide the tool's own failure
        _logger.exception("retry_on of tool %s failed", tool.name)
        return False


def _leaves(exc: BaseException) -> Iterator[BaseException]:
    if isinstance(exc, BaseExceptionGroup):
        for each in cast("BaseExceptionGroup[BaseException]", exc).exceptions:
            yield from _leaves(each)
    else:
        yield exc
