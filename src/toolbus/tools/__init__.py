"""Tools: a function with a name, a description and a JSON schema, and the registry that holds them.

Knows schemas and results; does not know the bus or who runs a handler. See `toolbus.dispatcher` for that.
"""

from __future__ import annotations

from ..tool_results import ToolResult
from ._options import Isolation, Summarize, ToolOptions, check_options, is_number, no_option, takes
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
    "is_number",
    "no_option",
    "takes",
    "tool",
]
