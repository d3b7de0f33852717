"""Tools for agents: a function with a name, a description and a JSON schema, and the registry that holds tools.

Knows schemas, secrets' marks and results. Must not know the bus, or what runs a handler; see `toolbus.dispatcher`.

Invariants:

1. The name, schema, options and handler of a tool are checked when the tool is made. What cannot work raises
   `ConfigurationError` there. Otherwise a wrong tool would fail in the middle of a run.
2. A `ToolSpec` does not change, and `ToolRegistry.specs` is a snapshot. A round of a request uses one snapshot.
   Otherwise the model's calls could be judged by other tools than those that the model was shown.
3. A handler gets its own validated copy of the arguments (`Tool.prepare`). Otherwise a handler that changes its
   arguments would change those in the transcript and in events.

Example:
    from toolbus import Runtime
    from toolbus.testing import ScriptedProvider, calls, text
    from toolbus.tools import Isolation, Summarize, Tool, ToolContext, ToolLike, ToolOptions, ToolRegistry
    from toolbus.tools import tool, tool_list

    isolation: Isolation = "thread"
    short: Summarize = lambda order: str(order)[:80]
    options: ToolOptions = {"timeout_seconds": 5, "retries": 2, "idempotent": True, "isolation": isolation}
    options["summarize"] = short

    @tool(**options)
    def get_order(number: int, context: ToolContext[str]) -> str:
        "Get an order of the user."
        return f"order {number} of {context.deps}"

    tools: list[ToolLike] = [get_order, Tool("wait", "Wait for the user.", {"type": "object"}, external=True)]
    registry = ToolRegistry(tool_list(tools))  # `ToolRegistry(tools)` does the same
    model = ScriptedProvider([calls(("get_order", {"number": 7})), text("Here it is.")])
    async with Runtime(model, tools=registry) as runtime:
        result = await runtime.run("Get order 7.", deps="Ann")
    print(result.tool_calls[0].content)  # order 7 of Ann
"""

from __future__ import annotations

from ..tool_results import ToolResult
from ._options import Isolation, Summarize, ToolOptions, check_options
from ._tool import DepsT, Tool, ToolContext, ToolLike, ToolRegistry, tool, tool_list

__all__ = [
    "DepsT",
    "Isolation",
    "Summarize",
    "Tool",
    "ToolContext",
    "ToolLike",
    "ToolOptions",
    "ToolRegistry",
    "ToolResult",
    "check_options",
    "tool",
    "tool_list",
]
