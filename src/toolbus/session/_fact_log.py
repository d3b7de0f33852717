"""The log lines of a request's facts, which the logger `toolbus.session` gets.

Each line begins with the id of its request or call, and the ids and the application's metadata are extra fields of its
record. The line of an ending has the whole account of the request. Arguments and results are not logged. Knows facts
and the turn's state.
"""

from __future__ import annotations

import logging
from typing import Any

from .._logs import logger
from ..core.turn import TurnState
from ..events import (
    Event,
    ModelRetrying,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RequestResumed,
    RequestStarted,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)

WARNINGS: frozenset[type[Event]] = frozenset({ModelRetrying, RequestFailed, ToolCallFailed})
"""The facts that may have a line while INFO is off."""

LOGGED: frozenset[type[Event]] = WARNINGS | {
    RequestCancelled,
    RequestCompleted,
    RequestResumed,
    RequestStarted,
    ToolCallCompleted,
    ToolCallRequested,
}

# The reasons of failures that people have chosen.
_CHOSEN = frozenset({"cancelled", "denied"})


def log_fact(fact: Event, state: TurnState) -> None:
    """Write the log line of `fact`, whose type is in `LOGGED`; `state` is that of its request."""
    level, request_id = logging.INFO, state.request_id
    match fact:
        case RequestStarted() if fact.parent_call_id:
            text = "request %s started for call %s"
            values: tuple[object, ...] = (request_id, fact.parent_call_id)
        case RequestStarted():
            text, values = "request %s started", (request_id,)
        case RequestResumed():
            text = "request %s is resumed (number %d)"
            values = request_id, fact.resumption
        case ModelRetrying():
            level, text = logging.WARNING, "request %s: the model is asked again in %.1f s, after %s: %s"
            values = request_id, fact.delay_seconds, fact.reason, fact.error
        case ToolCallRequested():
            text = "call %s: tool %s is requested"
            values = fact.call_id, fact.name
        case ToolCallCompleted():
            text = "call %s: tool %s completed in %.3f s"
            values = fact.call_id, fact.name, fact.duration_seconds
        case ToolCallFailed():
            level = logging.INFO if fact.reason in _CHOSEN else logging.WARNING
            text = "call %s: tool %s failed in %.3f s: %s: %s"
            values = fact.call_id, fact.name, fact.duration_seconds, fact.reason, fact.error
        case RequestCompleted() if fact.reason:
            text, values = "request %s %s in %s: %s", (request_id, fact.outcome, _account(fact, state), fact.reason)
        case RequestCompleted():
            text, values = "request %s %s in %s", (request_id, fact.outcome, _account(fact, state))
        case RequestFailed():
            level, text = logging.WARNING, "request %s failed in %s: %s: %s"
            values = request_id, _account(fact, state), fact.reason, fact.error
        case _:
            assert isinstance(fact, RequestCancelled)
            text, values = "request %s was cancelled in %s: %s", (request_id, _account(fact, state), fact.reason)
    extra: dict[str, Any] = {
        "request_id": request_id,
        "conversation_id": state.conversation_id,
        "metadata": state.metadata,
        "call_id": getattr(fact, "call_id", ""),
        "event_id": fact.event_id,
    }
    logger.log(level, text, *values, extra=extra)


def _account(fact: Event, state: TurnState) -> str:
    """Return what the request took, such as "3.2 s, 2 rounds, 4 calls, 812/40 tokens, cost 0.004"."""
    usage = state.usage
    parts = [
        f"{max(0.0, fact.at - state.started_at):.1f} s",
        _counted(len(state.rounds), "round"),
        _counted(state.tool_calls, "call"),
        f"{usage.input_tokens}/{usage.output_tokens} tokens",
    ]
    if state.cost:
        parts.append(f"cost {state.cost:.4g}")  # in the currency of the prices
    return ", ".join(parts)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
