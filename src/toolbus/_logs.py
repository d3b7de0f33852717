"""The loggers of toolbus, which are children of `toolbus`, and the text of a record.

Once a request has secrets, a filter on these loggers removes them: see `secrets._log_filter`.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("toolbus.session")

LOGGERS = (
    "toolbus.bus",
    "toolbus.dispatcher",
    "toolbus.handles",
    "toolbus.instrumentation",
    "toolbus.mcp",
    "toolbus.narrator",
    "toolbus.remote",
    "toolbus.runtime",
    "toolbus.session",
    "toolbus.store",
)
"""The loggers that toolbus writes to. A filter works only for the logger that it is on, and not for its children."""


def message_of(record: logging.LogRecord) -> str:
    """Return the message of a record, or both of its parts if the arguments do not fit it. Raises nothing."""
    try:
        return record.getMessage()
    except Exception:
        try:
            return f"{record.msg!r} with {record.args!r}"
        except Exception:
            # An argument's own code has failed, such as that of a database row after its session.
            return f"{record.pathname}:{record.lineno} logs what cannot be shown"
