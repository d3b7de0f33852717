"""Tools for agents: a function with a name, a description and a JSON schema, and the registry that holds tools.

Knows schemas, secrets' marks and results. Must not know the bus, or what runs a handler; see `toolbus.dispatcher`.

Invariants:

1. The name, schema, options and handler of a tool are checked when the tool is made. What cannot work raises
   `ConfigurationError` there. Otherwise a wrong tool would fail in the middle of a run.
2. A `ToolSpec` does not change, and `ToolRegistry.specs` is a snapshot. A round of a request uses one snapshot.
   Otherwise the model's calls could be judged by other tools than those that the model was shown.
3. A handler gets its own validated copy of the arguments (`Tool.prepare`). Otherwise a handler that changes its
   arguments would change those in the transcript and in events.
"""

from __future__ import annotations

from ..tool_results import ToolResult
from ._options import Isolation, Summarize, ToolOptions, check_options
from ._tool import Tool, ToolContext, Toolish, ToolRegistry, tool

__all__ = [
    "Isolation",
    "Summarize",
    "Tool",
    "ToolContext",
    "ToolOptions",
    "ToolRegistry",
    "ToolResult",
    "Toolish",
    "check_options",
    "tool",
]
