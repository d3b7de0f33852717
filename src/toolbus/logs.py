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

__all__ = ["LEVELS", "WARNINGS", "log_fact", "logger"]

logger = logging.getLogger("toolbus.session")


def log_fact(fact: Event, envelope: Mapping[str, Any]) -> None:
    """Write the line of `fact`, which is of a type in `LEVELS`; `envelope` is that of its request."""
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


LEVELS: dict[type[Event], int] = {  # the facts that have a line
    ToolCallRequested: logging.INFO,
    ToolCallCompleted: logging.INFO,
    ToolCallFailed: logging.WARNING,
    RequestCompleted: logging.INFO,
    RequestFailed: logging.WARNING,
    RequestCancelled: logging.INFO,
}

WARNINGS = frozenset(kind for kind, level in LEVELS.items() if level >= logging.WARNING)
"""Those whose line is written by default."""


def _tell(fact: Event, envelope: Mapping[str, Any], text: str, *values: object) -> None:
    extra: dict[str, Any] = {
        "request_id": envelope["request_id"],
        "conversation_id": envelope["conversation_id"],
        "metadata": envelope["metadata"],
        "call_id": getattr(fact, "call_id", ""),
        "event_id": fact.event_id,
    }
    logger.log(LEVELS[type(fact)], text, *values, extra=extra)
