"""The loggers of toolbus, which are children of `toolbus`.

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
