"""The log lines of a request's facts, and the loggers of toolbus.

Loggers are children of `toolbus`. Requested and completed calls are logged at INFO, failures and time-outs at WARNING.
The ids and the application's metadata are extra fields of the record. Arguments and results are not logged. Once a
request has secrets, a filter on these loggers removes them: see `secrets._log_filter`.
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

__all__ = ["LEVELS", "LOGGED", "LOGGERS", "WARNINGS", "log_fact", "logger"]

logger = logging.getLogger("toolbus.session")

LOGGERS = (
    "toolbus.bus",
    "toolbus.dispatcher",
    "toolbus.instrumentation",
    "toolbus.mcp",
    "toolbus.narrator",
    "toolbus.runtime",
    "toolbus.session",
    "toolbus.store",
)
"""The loggers that toolbus writes to. A filter works only for the logger that it is on, and not for its children."""


def log_fact(fact: Event, envelope: Mapping[str, Any]) -> None:
    """Write the log line of `fact`, which has a type in `LEVELS`; `envelope` is that of its request."""
    if isinstance(fact, ToolCallFailed):
        _write(fact, envelope, "tool call failed: %s: %s: %s", fact.name, fact.reason, fact.error)
    elif isinstance(fact, RequestFailed):
        _write(fact, envelope, "request failed: %s: %s", fact.reason, fact.error)
    elif isinstance(fact, ToolCallRequested):
        _write(fact, envelope, "tool call requested: %s", fact.name)
    elif isinstance(fact, ToolCallCompleted):
        _write(fact, envelope, "tool call completed: %s in %.3f s", fact.name, fact.duration_seconds)
    elif isinstance(fact, RequestCompleted):
        _write(fact, envelope, "request %s%s", fact.outcome, f": {fact.reason}" if fact.reason else "")
    elif isinstance(fact, RequestCancelled):
        _write(fact, envelope, "request cancelled: %s", fact.reason)


LEVELS: dict[type[Event], int] = {  # the facts that have a log line
    ToolCallRequested: logging.INFO,
    ToolCallCompleted: logging.INFO,
    ToolCallFailed: logging.WARNING,
    RequestCompleted: logging.INFO,
    RequestFailed: logging.WARNING,
    RequestCancelled: logging.INFO,
}

LOGGED = frozenset(LEVELS)
WARNINGS = frozenset(kind for kind, level in LEVELS.items() if level >= logging.WARNING)
"""The facts whose log line is written by default."""


def _write(fact: Event, envelope: Mapping[str, Any], text: str, *values: object) -> None:
    extra: dict[str, Any] = {
        "request_id": envelope["request_id"],
        "conversation_id": envelope["conversation_id"],
        "metadata": envelope["metadata"],
        "call_id": getattr(fact, "call_id", ""),
        "event_id": fact.event_id,
    }
    logger.log(LEVELS[type(fact)], text, *values, extra=extra)
