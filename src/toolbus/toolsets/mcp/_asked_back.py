"""A server's requests to the client during a call (elicitation and sampling): their call, and the application's answer.

Comments and names here call them questions that the server asks back.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
from pydantic import ValidationError

from ...errors import ToolbusError
from ...failures import log_exception
from ...tool_results import clean
from ...tools import ToolContext

if TYPE_CHECKING:
    import mcp

_logger = logging.getLogger("toolbus.mcp")


@dataclass(slots=True, eq=False)
class RunningCall:
    """A running call: its scope, and those of the questions that its server asks back."""

    context: ToolContext[Any]
    began: float = field(default_factory=anyio.current_time)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    questions: set[anyio.CancelScope] = field(default_factory=set[anyio.CancelScope])


RUNNING: ContextVar[RunningCall | None] = ContextVar("the call of an MCP tool that runs in this task", default=None)


async def agreed_to_visit(ask: Any, exc: mcp.MCPError) -> bool:
    """Return whether an error of the older protocol asks people to visit addresses first, and they agree to it.

    `ask` is the callback for what a server asks people, or None.
    """
    import mcp  # noqa: PLC0415 -- an extra

    if ask is None or exc.code != mcp.types.URL_ELICITATION_REQUIRED:
        return False
    try:
        visits = mcp.UrlElicitationRequiredError.from_error(exc.error).elicitations
    except (ValidationError, AttributeError, TypeError):
        # The data of the error is something else, and the model reads it.
        return False
    for each in visits:
        answer = await ask(None, each)
        if getattr(answer, "action", "") != "accept":
            return False
    return True


def answering(
    server: str,
    callback: Callable[[ToolContext[Any], Any], Awaitable[Any]] | None,
    calls: Callable[[], Collection[RunningCall]],
) -> Any:
    """Return the SDK's callback for what the server asks back, or None for what is not offered to servers.

    `server` is the server's name, and `calls` returns its running calls.
    """
    if callback is None:
        return None

    async def answer(_context: Any, params: Any) -> Any:
        from mcp import types  # noqa: PLC0415 -- an extra

        running = _asking(calls())
        if running is None:
            why = f"the question does not say which call it is about, and {len(calls())} calls run"
            why = why if RUNNING.get() is None else "the call has ended"
            return types.ErrorData(code=types.INVALID_REQUEST, message=why)
        # With the older protocol this is not the call's own task, so the call has to cancel it.
        with anyio.CancelScope() as scope:
            running.questions.add(scope)
            try:
                return await callback(running.context, params)
            except ToolbusError as exc:
                why = clean(str(exc))[:2_000]
            except Exception as exc:
                ids = {"request_id": running.context.request_id, "call_id": running.context.call_id}
                text, words = "call %s: MCP server %s was not answered", (ids["call_id"], server)
                log_exception(_logger, logging.ERROR, text, *words, cause=exc, ids=ids)
                why = "the client failed to answer"
            finally:
                running.questions.discard(scope)
            return types.ErrorData(code=types.INVALID_REQUEST, message=why)
        return types.ErrorData(code=types.INVALID_REQUEST, message="the call has ended")

    return answer


def _asking(calls: Collection[RunningCall]) -> RunningCall | None:
    """Return the call for which the server asks back; None if that cannot be known.

    With the newer protocol, the question is a part of the answer to the call. With the older one it comes by
    itself, and a guess could ask the wrong person.
    """
    running = RUNNING.get()
    if running is None and len(calls) == 1:
        return next(iter(calls))
    # Over HTTP, the stream of a call that was cancelled stays open, and may bring a question.
    return running if running in calls else None
