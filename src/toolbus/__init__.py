"""toolbus: an event-driven actor runtime for LLM tool calling on an in-process event bus."""

from .bus import EventBus
from .core.limits import Limits
from .dispatcher import ToolDispatcher
from .errors import ToolError, ToolRetry
from .outcome import RequestResult
from .protocols import ModelSettings
from .results import ToolResult
from .runtime import Runtime
from .session import RequestSession
from .tools import Tool, ToolContext, ToolRegistry, tool

__all__ = [
    "EventBus",
    "Limits",
    "ModelSettings",
    "RequestResult",
    "RequestSession",
    "Runtime",
    "Tool",
    "ToolContext",
    "ToolDispatcher",
    "ToolError",
    "ToolRegistry",
    "ToolResult",
    "ToolRetry",
    "tool",
]
