"""The request session: one actor for one request.

It performs what the turn machine (`core.turn`) decides and decides nothing itself: it calls the model, opens calls on
the bus, waits with one timer, writes facts to the journal before it publishes them. It is the only writer of its
request's facts. It knows the bus, and no runtime, dispatcher or vendor.
"""

from __future__ import annotations

from ._context_window import ContextWindow
from ._inputs import (
    Instructions,
    MessagesLike,
    ToolsLike,
    provider_list,
    read_messages,
    read_prompt,
    shown,
    tool_registry,
    tool_source,
)
from ._options import OnBusy, RequestOptions, SessionOptions, check_options, check_word, merged_options
from ._session import RequestSession
from ._snapshot import SessionSnapshot
from ._start import Earlier, Resumed, SessionStart
from ._view import SessionView

__all__ = [
    "ContextWindow",
    "Earlier",
    "Instructions",
    "MessagesLike",
    "OnBusy",
    "RequestOptions",
    "RequestSession",
    "Resumed",
    "SessionOptions",
    "SessionSnapshot",
    "SessionStart",
    "SessionView",
    "ToolsLike",
    "check_options",
    "check_word",
    "merged_options",
    "provider_list",
    "read_messages",
    "read_prompt",
    "shown",
    "tool_registry",
    "tool_source",
]
