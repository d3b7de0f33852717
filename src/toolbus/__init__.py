"""toolbus: an event-driven actor runtime for agents and LLM tool calling, on an in-process event bus.

This package exports the public names and must not import their modules itself: each is imported when it is first used.
So `import toolbus` takes almost no time, and the command line does not load modules that it does not need.

Example:
    from toolbus import Runtime, tool
    from toolbus.testing import ScriptedProvider, calls, text

    @tool
    def add(a: int, b: int) -> int:
        "Add two numbers."
        return a + b

    model = ScriptedProvider([calls(("add", {"a": 2, "b": 3})), text("It is 5.")])  # in production: "anthropic:..."
    async with Runtime(model, tools=[add]) as runtime:
        result = await runtime.run("What is 2 + 3?")
    print(result.text)  # It is 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._lazy import imported_when_used

if TYPE_CHECKING:
    from ._version import __version__
    from .bus import EventBus
    from .core.compression import Compression
    from .core.limits import Budget, Limits
    from .core.prices import Price
    from .dispatcher import ToolDispatcher
    from .errors import Denied, ToolError, ToolRetry
    from .interceptors import Interceptor
    from .messages import ImagePart, UserMessage
    from .protocols import ModelSettings
    from .providers.summarizer import Summarizer
    from .request_result import RequestResult
    from .runtime import Runtime
    from .session import RequestSession
    from .stores.sqlite import SqliteStore
    from .tool_results import ToolResult
    from .tools import Tool, ToolContext, ToolRegistry, tool
    from .toolsets.sub_request import sub_request_tool

__all__ = [
    "Budget",
    "Compression",
    "Denied",
    "EventBus",
    "ImagePart",
    "Interceptor",
    "Limits",
    "ModelSettings",
    "Price",
    "RequestResult",
    "RequestSession",
    "Runtime",
    "SqliteStore",
    "Summarizer",
    "Tool",
    "ToolContext",
    "ToolDispatcher",
    "ToolError",
    "ToolRegistry",
    "ToolResult",
    "ToolRetry",
    "UserMessage",
    "__version__",
    "sub_request_tool",
    "tool",
]

_MODULES = {
    "._version": ["__version__"],
    ".bus": ["EventBus"],
    ".core.compression": ["Compression"],
    ".core.limits": ["Budget", "Limits"],
    ".core.prices": ["Price"],
    ".dispatcher": ["ToolDispatcher"],
    ".errors": ["Denied", "ToolError", "ToolRetry"],
    ".interceptors": ["Interceptor"],
    ".messages": ["ImagePart", "UserMessage"],
    ".protocols": ["ModelSettings"],
    ".providers.summarizer": ["Summarizer"],
    ".request_result": ["RequestResult"],
    ".runtime": ["Runtime"],
    ".session": ["RequestSession"],
    ".stores.sqlite": ["SqliteStore"],
    ".tool_results": ["ToolResult"],
    ".tools": ["Tool", "ToolContext", "ToolRegistry", "tool"],
    ".toolsets.sub_request": ["sub_request_tool"],
}

if not TYPE_CHECKING:  # A type checker would take every name that is spelt wrong.
    __getattr__, __dir__ = imported_when_used(__name__, _MODULES)
