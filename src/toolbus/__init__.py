"""toolbus: an event-driven actor runtime for LLM tool calling on an in-process event bus.

The public names, each imported when it is first used: so `import toolbus` costs next to nothing, and the command line
starts without what it does not need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._lazy import imported_when_used

if TYPE_CHECKING:
    from .bus import EventBus
    from .core.compression import Compression
    from .core.limits import Limits
    from .core.prices import Price
    from .dispatcher import ToolDispatcher
    from .errors import Denied, ToolError, ToolRetry
    from .interceptors import Interceptor
    from .outcome import RequestResult
    from .protocols import ModelSettings
    from .results import ToolResult
    from .runtime import Runtime
    from .session import RequestSession
    from .subrequest import subrequest_tool
    from .summarizer import Summarizer
    from .tools import Tool, ToolContext, ToolRegistry, tool

__all__ = [
    "Compression",
    "Denied",
    "EventBus",
    "Interceptor",
    "Limits",
    "ModelSettings",
    "Price",
    "RequestResult",
    "RequestSession",
    "Runtime",
    "Summarizer",
    "Tool",
    "ToolContext",
    "ToolDispatcher",
    "ToolError",
    "ToolRegistry",
    "ToolResult",
    "ToolRetry",
    "subrequest_tool",
    "tool",
]

_HOMES = {
    "Compression": ".core.compression",
    "Summarizer": ".summarizer",
    "Denied": ".errors",
    "Interceptor": ".interceptors",
    "Price": ".core.prices",
    "subrequest_tool": ".subrequest",
    "EventBus": ".bus",
    "Limits": ".core.limits",
    "ModelSettings": ".protocols",
    "RequestResult": ".outcome",
    "RequestSession": ".session",
    "Runtime": ".runtime",
    "Tool": ".tools",
    "ToolContext": ".tools",
    "ToolDispatcher": ".dispatcher",
    "ToolError": ".errors",
    "ToolRegistry": ".tools",
    "ToolResult": ".results",
    "ToolRetry": ".errors",
    "tool": ".tools",
}

__getattr__, __dir__ = imported_when_used(__name__, _HOMES, __all__)
