"""What is told of a tool call while it runs and when it ends: events on the bus, and the log's line behind a failure.

Knows the bus and a call, and nothing of who runs it or when.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from .._records import maker
from ..events import (
    Event,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallProgress,
    ToolCallRequested,
    ToolCallRetrying,
    ToolCallStarted,
)
from ..failures import is_cancellation, keyboard_interrupt_of, log_exception
from ..secrets import secrets_of
from ..tool_results import Rendered, clean, with_summary, without_data

if TYPE_CHECKING:
    from ..bus import EventBus
    from ..failures import Failure
    from ._schedule import Job

__all__ = ["Reports", "as_sent", "ids_of", "logger"]

_completed = maker(ToolCallCompleted)
logger = logging.getLogger("toolbus.dispatcher")


class Reports:
    """Tells of the calls of one dispatcher on its bus. Nothing here suspends; signals are built if anybody listens.

    Of a call whose request is left, no cancellation is told, nor while it `is_closing` any failure: that may be why.
    """

    __slots__ = ("_bus", "is_closing")

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self.is_closing = False

    def started(self, job: Job) -> None:
        """The handler begins, or begins again."""
        request = job.request
        if self._bus.arbitration.wants(ToolCallStarted, request.request_id):
            self._bus.publish(ToolCallStarted(**_envelope(request, self._bus.clock()), attempt=job.attempt))

    def retrying(self, job: Job, failure: Failure, cause: BaseException, delay_seconds: float) -> None:
        """An attempt failed, and another one follows after the wait. The cause goes to the log."""
        message = "tool %s failed in attempt %d and is tried again in %.2f s"
        words = job.tool.name, job.attempt, delay_seconds
        log_exception(logger, logging.WARNING, message, *words, cause=cause, ids=ids_of(job.request))
        request = job.request
        if self._bus.arbitration.wants(ToolCallRetrying, request.request_id):
            self._bus.publish(
                ToolCallRetrying(
                    **_envelope(request, self._bus.clock()),
                    attempt=job.attempt,
                    error=failure.error,
                    delay_seconds=delay_seconds,
                )
            )

    def progress(self, job: Job, message: str, done: float | None, total: float | None) -> None:
        """The handler says how far it is. Not told once the call is settled."""
        request = job.request
        if not job.settled and self._bus.arbitration.wants(ToolCallProgress, request.request_id):
            self._bus.publish(
                ToolCallProgress(
                    **_envelope(request, self._bus.clock()),
                    message=clean(message),
                    done=done,
                    total=total,
                )
            )

    def completed(self, job: Job, rendered: Rendered) -> None:
        """Answer the call with a result."""
        late, now = job.settled, self._leave(job)
        if rendered.secrets:
            rendered = secrets_of(job.view).hide(rendered)
        request = job.request
        event = _completed(  # written out, as `_envelope` in a dictionary costs as much as the event: each call has one
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
        self._bus.publish(_told_late(job, event) if late else event)

    def failed(self, job: Job, failure: Failure, cause: BaseException | None = None) -> None:
        """Answer the call with a failure. A `cause` whose words are not for the model goes to the log."""
        if cause is not None and not failure.shown:
            name, ids = job.tool.name, ids_of(job.request)
            log_exception(logger, logging.ERROR, "tool %s failed", name, cause=cause, ids=ids)
        late, now = job.settled, self._leave(job)
        may_be_why = self.is_closing or (cause is not None and is_cancellation(cause))
        if may_be_why and not late and job.view is not None and job.view.is_left:
            return
        event = ToolCallFailed(
            **_envelope(job.request, now),
            reason=failure.reason,
            error=failure.error,
            retryable=failure.retryable,
            outcome_unknown=failure.unknown,
            duration_seconds=now - job.started_at if job.started_at else 0.0,
            spent=job.spent,
        )
        self._bus.publish(_told_late(job, event) if late else event, cause=cause)

    def left_open(self, job: Job) -> None:
        """The handler, or an interceptor of its result, has left a cancel scope or a task group open."""
        logger.error(
            "tool %s has left a cancel scope or a task group open in the task that ran it, so that task takes no other "
            "call; open a client in the application's lifespan, or with `async with` inside the handler",
            job.tool.name,
            extra=ids_of(job.request),
        )

    def refused(self, request: ToolCallRequested, failure: Failure) -> None:
        """Answer a call that nobody here has taken on."""
        self._bus.publish(
            ToolCallFailed(
                **_envelope(request, self._bus.clock()),
                reason=failure.reason,
                error=failure.error,
                retryable=failure.retryable,
            )
        )

    def _leave(self, job: Job) -> float:
        """Forget a call that is about to be answered; give the present moment."""
        job.settled = True
        self._bus.arbitration.unwatch(*job.key)
        return self._bus.clock()


def _told_late(job: Job, event: Event) -> Event:
    """What comes after its request, whose mailbox would have seen to secrets, may be gone."""
    return secrets_of(job.view).mask(event)


def as_sent(job: Job, rendered: Rendered) -> Rendered:
    """The result with the content that the tool or the request asks for, where that is not the whole.

    Secrets in it are references from here on.

    A `summarize` that fails is logged and leaves the whole: the tool has done its work, and a failure would deny it.
    """
    tool, view = job.tool, job.view
    if rendered.secrets:
        rendered = secrets_of(view).hide(rendered)
    if tool.summarize is not None:
        try:
            return with_summary(rendered, tool.summarize)
        except BaseException as exc:  # the application's code
            if keyboard_interrupt_of(exc):
                raise
            ids = ids_of(job.request)
            log_exception(logger, logging.WARNING, "summarize of tool %s failed", tool.name, cause=exc, ids=ids)
            return rendered
    include = tool.include_data
    if include is None and view is not None and view.options:
        include = view.options.get("include_data")
    return without_data(rendered) if include is False else rendered


def _envelope(request: ToolCallRequested, at: float) -> dict[str, Any]:
    """What all events of a call have in common."""
    return {
        "request_id": request.request_id,
        "conversation_id": request.conversation_id,
        "parent_id": request.parent_id,
        "metadata": request.metadata,
        "at": at,
        "call_id": request.call_id,
        "name": request.name,
    }


def ids_of(request: ToolCallRequested) -> dict[str, Any]:
    """The extra fields of a log record about a call."""
    return {"request_id": request.request_id, "call_id": request.call_id, "metadata": request.metadata}
