"""The server's tools as the history should treat them.

The server's hints say which tools only look (their older results become a line) and what needs no approval. That the
others do something, and that the result of the login is a secret that has to stay, the client knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import SecretStr

from toolbus import Tool, ToolContext
from toolbus.toolsets.mcp import McpTools

__all__ = ["game_tools"]


def game_tools(mcp: McpTools) -> Iterator[Tool[..., Any]]:
    """All of them: queries as they are, actions to be cut when they are old, the login never."""
    for tool in mcp.registry:
        if tool.name == mcp.name_of("game", "login"):
            yield _login(tool)
        elif tool.spec.kind == "query":
            yield tool
        else:
            yield Tool(tool.name, tool.description, tool.parameters, tool.handler, kind="action")


def _login(tool: Tool[..., Any]) -> Tool[..., Any]:
    async def log_in(*, context: ToolContext[None], **arguments: Any) -> dict[str, Any]:
        answer = await tool.prepare(arguments, context)()
        return {**answer, "session": SecretStr(answer["session"])}  # a reference is all that is told, sent and stored

    return Tool(tool.name, tool.description, tool.parameters, log_in, sensitive_history=True)
