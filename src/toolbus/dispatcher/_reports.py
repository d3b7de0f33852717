"""The events that are published for a tool call while it runs and when it ends, and the log line of a failure.

Knows the bus and a call. Must not know when the call runs, or in which task.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..events import (
    Event,
    LoopBlocked,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallOverdue,
    ToolCallProgress,
    ToolCallRequested,
    ToolCallRetrying,
    ToolCallStarted,
)
from ..failures import detail_of, is_cancellation, keyboard_interrupt_of, log_exception, raised_at, unread_of
from ..secrets import secrets_of
from ..tool_results import RenderedResult, clean, with_summary, without_data

if TYPE_CHECKING:
    from ..bus import EventBus
    from ..failures import Failure
    from ._schedule import Job

_logger = logging.getLogger("toolbus.dispatcher")


class Reports:
    """The publisher of the calls of one dispatcher. Nothing here suspends; signals are built only if anybody listens.

    For a call whose request is left to another process, a cancellation is not published. While `is_closing`, no other
    failure of such a call is published either, because the closing may have caused it.
    """

    __slots__ = ("_bus", "blocks", "is_closing", "now")

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self.blocks = 0  # how often a handler has blocked the event loop

    def open(self) -> None:
        """Begin to report, on the event loop that runs now: the bus has another clock on each."""
        self.now = self._bus.clock
        self.is_closing = False

    def started(self, job: Job) -> None:
        """Publish that the handler begins, or begins another attempt."""
        request = job.request
        if self._bus.arbitration.wants(ToolCallStarted, request.request_id):
            self._bus.publish(ToolCallStarted(**_envelope(request, self.now()), attempt=job.attempt))

    def retrying(self, job: Job, failure: Failure, cause: BaseException, delay_seconds: float) -> None:
        """Publish and log that an attempt failed, and that another one follows after `delay_seconds`."""
        request = job.request
        words = request.call_id, job.tool.name, job.attempt, delay_seconds, detail_of(cause, secrets_of(job.view).mask)
        message = "call %s: tool %s failed in attempt %d and is tried again in %.2f s: %s"
        _logger.warning(message, *words, extra=_ids_of(request))
        if self._bus.arbitration.wants(ToolCallRetrying, request.request_id):
            self._bus.publish(
                ToolCallRetrying(
                    **_envelope(request, self.now()),
                    attempt=job.attempt,
                    error=failure.error,
                    delay_seconds=delay_seconds,
                )
            )

    def progress(self, job: Job, message: str, done: float | None, total: float | None) -> None:
        """Publish how far the handler is. Nothing is published once the call is settled."""
        request = job.request
        if not job.settled and self._bus.arbitration.wants(ToolCallProgress, request.request_id):
            self._bus.publish(
                ToolCallProgress(
                    **_envelope(request, self.now()),
                    message=clean(message),
                    done=_plain(done),
                    total=_plain(total),
                )
            )

    def completed(self, job: Job, rendered: RenderedResult) -> None:
        """Publish the result of the call."""
        late, now = job.settled, self.now()
        job.settled = True
        if rendered.secrets:
            rendered = secrets_of(job.view).hide(rendered)
        request = job.request
        # The fields are written out, since `_envelope` costs as much as the event itself, and each call has one.
        event = ToolCallCompleted(
            request_id=request.request_id,
            conversation_id=request.conversation_id,
            parent_id=request.parent_id,
            metadata=request.metadata,
            at=now,
            call_id=request.call_id,
            name=request.name,
            content=rendered.content,
            parts=rendered.parts,
            data=rendered.data,
            artifacts=rendered.artifacts,
            affected=rendered.affected,
            duration_seconds=now - job.started_at if job.started_at else 0.0,
            spent=job.spent,
        )
        self._bus.publish(_masked(job, event) if late else event)

    def failed(self, job: Job, failure: Failure, cause: BaseException | None = None) -> None:
        """Publish the failure of the call. A `cause` whose text is not shown to the model is logged."""
        if cause is not None and not failure.shown:
            words = job.request.call_id, job.tool.name, raised_at(cause)
            log_exception(
                _logger, logging.ERROR, "call %s: tool %s failed: %s", *words, cause=cause, ids=_ids_of(job.request)
            )
        late, now = job.settled, self.now()
        job.settled = True
        may_be_why = self.is_closing or (cause is not None and is_cancellation(cause))
        if may_be_why and not late and job.view is not None and job.view.is_released:
            return
        event = ToolCallFailed(
            **_envelope(job.request, now),
            reason=failure.reason,
            error=failure.error,
            detail="" if cause is None else unread_of(cause, secrets_of(job.view).mask, is_shown=failure.shown),
            retryable=failure.retryable,
            outcome_unknown=failure.unknown,
            duration_seconds=now - job.started_at if job.started_at else 0.0,
            spent=job.spent,
        )
        self._bus.publish(_masked(job, event) if late else event, cause=cause)

    def blocked(self, job: Job, seconds: float) -> None:
        """Report that the handler, or an interceptor of its result, has kept the event loop from everything else."""
        self.blocks += 1
        _logger.warning(
            "call %s: tool %s (or an interceptor of its result) blocked the event loop for %.1f s, and with it every "
            "other request; write a slow handler as a plain `def`, which runs in a thread",
            job.request.call_id,
            job.tool.name,
            seconds,
            extra=_ids_of(job.request),
        )
        request = job.request
        if self._bus.arbitration.wants(LoopBlocked, request.request_id):
            self._bus.publish(LoopBlocked(**_envelope(request, self.now()), seconds=seconds))

    def overdue(self, job: Job, seconds: float) -> None:
        """Report that the handler, or its thread, still runs so long after it was cancelled."""
        request, is_thread = job.request, job.run is not None
        words = request.call_id, "thread" if is_thread else "handler", job.tool.name
        _logger.warning("call %s: the %s of tool %s outlives its call", *words, extra=_ids_of(request))
        if self._bus.arbitration.wants(ToolCallOverdue, request.request_id):
            runs_in = "thread" if is_thread else "task"
            self._bus.publish(ToolCallOverdue(**_envelope(request, self.now()), runs_in=runs_in, seconds=seconds))

    def left_open(self, job: Job) -> None:
        """Log that the handler, or an interceptor of its result, has left a cancel scope or a task group open."""
        _logger.error(
            "call %s: tool %s has left a cancel scope or a task group open in the task that ran it, so that task takes "
            "no other call; open a client in the application's lifespan, or with `async with` inside the handler",
            job.request.call_id,
            job.tool.name,
            extra=_ids_of(job.request),
        )

    def refused(self, request: ToolCallRequested, failure: Failure) -> None:
        """Publish the failure of a call that the dispatcher has not claimed."""
        self._bus.publish(
            ToolCallFailed(
                **_envelope(request, self.now()),
                reason=failure.reason,
                error=failure.error,
                retryable=failure.retryable,
            )
        )


def _plain(number: Any) -> float | None:
    """Return a number as one of JSON: a handler may count in decimals, or with NumPy."""
    return number if number is None or type(number) in {int, float} else float(number)


def _masked(job: Job, event: Event) -> Event:
    """Return a late event without secrets: its request may have ended, whose mailbox would have masked them."""
    return secrets_of(job.view).mask(event)


def as_sent(job: Job, rendered: RenderedResult) -> RenderedResult:
    """Return the result with the content that the tool or the request asks for, which may be less than the whole.

    Secrets in it are replaced by references. If `summarize` raises, that is logged and the whole content is sent: the
    tool has done its work, and a failure would deny it.
    """
    tool, view = job.tool, job.view
    if rendered.secrets:
        rendered = secrets_of(view).hide(rendered)
    if tool.summarize is not None:
        try:
            return with_summary(rendered, tool.summarize)
        except BaseException as exc:
            # This is the application's code.
            if keyboard_interrupt_of(exc):
                raise
            ids = _ids_of(job.request)
            words = job.request.call_id, tool.name
            log_exception(_logger, logging.ERROR, "call %s: summarize of tool %s failed", *words, cause=exc, ids=ids)
            return rendered
    include = tool.include_data
    if include is None and view is not None and view.options:
        include = view.options.get("include_data")
    return without_data(rendered) if include is False else rendered


def _envelope(request: ToolCallRequested, at: float) -> dict[str, Any]:
    """Return the fields that all events of a call have in common."""
    return {
        "request_id": request.request_id,
        "conversation_id": request.conversation_id,
        "parent_id": request.parent_id,
        "metadata": request.metadata,
        "at": at,
        "call_id": request.call_id,
        "name": request.name,
    }


def _ids_of(request: ToolCallRequested) -> dict[str, Any]:
    """Return the extra fields of a log record about a call."""
    return {"request_id": request.request_id, "call_id": request.call_id, "metadata": request.metadata}
