"""The answers to the questions of a request by the application's `on_approval`, and the denial where nobody answers.

Knows the bus. A decision from here is published like that of any other listener, so it becomes a fact in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from types import TracebackType

import anyio
import anyio.abc

from .._logs import logger
from .._option_checks import shown
from ..bus import EventBus
from ..core.approval import ApprovalHook
from ..events import ApprovalDecided, ApprovalRequested, Event, ToolCallCompleted, ToolCallFailed
from ..failures import log_exception

_NOBODY = (
    "nobody can be asked. The application has to give on_approval=, listen for ApprovalRequested, or set "
    "on_approval='wait' and decide on pending_approvals"
)
_ABOUT_CALLS = (ApprovalRequested, ApprovalDecided, ToolCallCompleted, ToolCallFailed)


def deny(question: ApprovalRequested, reason: str) -> ApprovalDecided:
    """Return the denial of a question that could not be answered for this reason."""
    return question.decided(approved=False, by="toolbus", reason=reason)


def deny_unheard(question: ApprovalRequested) -> ApprovalDecided:
    """Return the denial of a question that nobody can answer, and log what the application has to do."""
    ids = {"request_id": question.request_id, "call_id": question.call_id}
    logger.warning("call %s: tool %s is denied: %s", question.call_id, question.name, _NOBODY, extra=ids)
    return deny(question, _NOBODY)


class ApprovalAnswers:
    """The calls of `on_approval` for one request: each question is answered in its own task.

    A call of the function is cancelled when its question needs no answer any more. Entered and left by the session's
    task.
    """

    __slots__ = ("_bus", "_group", "_hook", "_open")

    def __init__(self, bus: EventBus, hook: ApprovalHook) -> None:
        self._bus = bus
        self._hook = hook
        self._group: anyio.abc.TaskGroup | None = None
        self._open: dict[str, anyio.CancelScope] = {}  # by call id

    @property
    def is_entered(self) -> bool:
        """True once questions can be answered."""
        return self._group is not None

    async def __aenter__(self) -> None:
        self._group = await anyio.create_task_group().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._group is not None
        self._group.cancel_scope.cancel()
        return await self._group.__aexit__(kind, value, trace)

    def take(self, facts: Iterable[Event]) -> None:
        """Ask the questions among published facts, and give up those that are settled."""
        assert self._group is not None
        for fact in facts:
            if isinstance(fact, _ABOUT_CALLS):
                if (asked := self._open.pop(fact.call_id, None)) is not None:
                    asked.cancel()
                if isinstance(fact, ApprovalRequested):
                    self._open[fact.call_id] = scope = anyio.CancelScope()
                    self._group.start_soon(self._answer, fact, scope)

    async def _answer(self, question: ApprovalRequested, scope: anyio.CancelScope) -> None:
        with scope:
            try:
                decided = _decision(question, await self._hook(question))
            except Exception as exc:  # A bug in the application must not let a call run, or wait, unanswered.
                ids = {"request_id": question.request_id, "call_id": question.call_id}
                message, words = "call %s: on_approval failed, so tool %s is denied", (question.call_id, question.name)
                log_exception(logger, logging.ERROR, message, *words, cause=exc, ids=ids)
                decided = deny(question, "the application's on_approval failed")
            self._bus.publish(decided)


def _decision(question: ApprovalRequested, answer: object) -> ApprovalDecided:
    """Return the decision that the application's function has returned. Raises `TypeError` for anything else."""
    if isinstance(answer, ApprovalDecided):
        return answer
    if isinstance(answer, bool):
        return question.decided(approved=answer)
    raise TypeError(f"on_approval returned {shown(answer)}; return True, False or question.decided(...)")
