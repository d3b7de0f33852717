"""An agent as a tool: a request hands a part of its work to a model with its own tools. Knows tools and options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from ..core.limits import Limits
from ..core.output import OutputType
from ..errors import ToolError
from ..protocols import Provider
from ..session import SessionOptions, ToolsLike, check_options, provider_list, tool_source
from ..tool_results import ToolResult
from ..tools import Tool, ToolContext, ToolOptions

if TYPE_CHECKING:
    from ..request_result import RequestResult

__all__ = ["sub_request_tool"]

_PASS_ON_SECONDS = 1.0
_PARAMETERS = ("provider", "tools", "output", "tool_options")


def sub_request_tool(
    name: str,
    description: str,
    *,
    provider: Provider | Sequence[Provider] | None = None,
    tools: ToolsLike = (),
    output: Any = None,
    tool_options: ToolOptions | None = None,
    **options: Unpack[SessionOptions],
) -> Tool:
    """Return a tool `name(task)` that runs a sub-request: see `ToolContext.ask` for the options that it inherits.

    `description` tells the calling model what to hand over. The result is the answer's text, or with `output` its data;
    artifacts and affected names are passed on. A sub-request that was stopped returns its text so far and the reason;
    one that failed is a failed call. The call's deadline is a second after the `timeout_seconds` of `limits`, so that
    it can pass on what was done until then, and 601 seconds without `limits`; at most the time that the request has.
    `tool_options` are those of the tool itself, as `@tool` takes them: `{"background": True, "status": "Asking"}`.
    Raises `ConfigurationError` for wrong options or an `output` that cannot be used.

    Example:
        from toolbus import Runtime, sub_request_tool
        from toolbus.testing import ScriptedProvider, calls, text

        researcher = sub_request_tool("research", "Research a question.", provider=ScriptedProvider([text("Rome.")]))
        model = ScriptedProvider([calls(("research", {"task": "Where is order 7?"})), text("It is in Rome.")])
        async with Runtime(model, tools=[researcher]) as runtime:
            result = await runtime.run("Where is order 7?")
        print(result.tool_calls[0].content)  # {"ok":true,"message":"Rome."}
    """
    check_options(options, SessionOptions, f"sub_request_tool {name!r}", beside=_PARAMETERS)
    limits = options.get("limits") or Limits()
    providers = None if provider is None else provider_list(provider)
    source = tool_source(tools)
    if output is not None:
        # A wrong output type is an error here, and not in a call, where only a model would read it.
        OutputType(output)

    async def ask(task: str, context: ToolContext[Any]) -> ToolResult:
        given: dict[str, Any] = {"provider": providers, "tools": source, "output": output, **options}
        result: RequestResult[Any] = await context.ask(task, **given)
        if result.outcome in ("failed", "cancelled"):
            # The text of the error is for operators: it may have anything in it, such as an address or a key.
            why = result.explanation if result.error else result.reason
            raise ToolError(f"{name} {result.outcome}: {why}") from result.error
        text = result.text if output is None else ""
        if result.outcome == "stopped":
            text = f"{result.text}\n[{result.explanation}]".lstrip()
        return ToolResult(message=text, data=result.output, artifacts=result.artifacts, affected=result.affected)

    own: ToolOptions = {"timeout_seconds": limits.timeout_seconds + _PASS_ON_SECONDS, **(tool_options or {})}
    return Tool(name, description, handler=ask, **own)
