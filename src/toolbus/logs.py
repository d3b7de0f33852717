"""What toolbus writes to the standard library's logging, and nothing else.

Loggers are children of `toolbus`. Requested and completed calls are told at INFO, failures and time-outs at WARNING;
the ids and the application's metadata are extra fields of the record. Arguments and results are not logged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from .events import (
    Event,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)

__all__ = ["is_logged", "log_fact"]

_logger = logging.getLogger("toolbus.session")


def is_logged(kind: type[Event]) -> bool:
    """Whether a fact of this type has a line, and somebody wants lines of its level."""
    level = _LEVELS.get(kind)
    return level is not None and _logger.isEnabledFor(level)


def log_fact(fact: Event, envelope: Mapping[str, Any]) -> None:
    """Write the line of `fact`, for which `is_logged` holds; `envelope` is that of its request."""
    if isinstance(fact, ToolCallFailed):
        _tell(fact, envelope, "tool call failed: %s: %s: %s", fact.name, fact.reason, fact.error)
    elif isinstance(fact, RequestFailed):
        _tell(fact, envelope, "request failed: %s: %s", fact.reason, fact.error)
    elif isinstance(fact, ToolCallRequested):
        _tell(fact, envelope, "tool call requested: %s", fact.name)
    elif isinstance(fact, ToolCallCompleted):
        _tell(fact, envelope, "tool call completed: %s in %.3f s", fact.name, fact.duration_seconds)
    elif isinstance(fact, RequestCompleted):
        _tell(fact, envelope, "request %s%s", fact.outcome, f": {fact.reason}" if fact.reason else "")
    elif isinstance(fact, RequestCancelled):
        _tell(fact, envelope, "request cancelled: %s", fact.reason)


_LEVELS: dict[type[Event], int] = {
    ToolCallRequested: logging.INFO,
    ToolCallCompleted: logging.INFO,
    ToolCallFailed: logging.WARNING,
    RequestCompleted: logging.INFO,
    RequestFailed: logging.WARNING,
    RequestCancelled: logging.INFO,
}


def _tell(fact: Event, envelope: Mapping[str, Any], text: str, *values: object) -> None:
    extra: dict[str, Any] = {
        "request_id": envelope["request_id"],
        "conversation_id": envelope["conversation_id"],
        "metadata": envelope["metadata"],
        "call_id": getattr(fact, "call_id", ""),
        "event_id": fact.event_id,
    }
    _logger.log(_LEVELS[type(fact)], text, *values, extra=extra)
