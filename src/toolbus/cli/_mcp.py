"""MCP servers for the command: the tools of the servers that a file names. Needs the extra `mcp`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from ..tools import Tool, ToolRegistry
from ._log_lines import MCP_SDK, silenced, warnings_shown
from ._terminal.screen import Screen

if TYPE_CHECKING:
    from ..toolsets.mcp import McpTools


def mcp_tools(files: Sequence[str], registry: ToolRegistry) -> McpTools | None:
    """Return a context manager that adds the tools of the files' servers to `registry`, or None without a file.

    Raises `ConfigurationError`.
    """
    if not files:
        return None
    from ..toolsets.mcp import McpTools, servers_from  # noqa: PLC0415 -- an extra

    return McpTools([server for file in files for server in servers_from(file)], registry=registry)


def tools_with(files: Sequence[str], registry: ToolRegistry, screen: Screen) -> tuple[list[Tool], bool]:
    """Return all tools, those of the files' servers included, and whether all servers could be reached.

    Raises `ConfigurationError`.
    """
    with warnings_shown(screen, "toolbus.mcp"), silenced(*MCP_SDK):
        mcp = mcp_tools(files, registry)
        if mcp is None:
            return list(registry), True

        async def look() -> tuple[list[Tool], bool]:
            async with mcp:
                return list(registry), all(each.connected for each in mcp.status())

        return anyio.run(look)
