"""The tools of MCP servers, in a registry of toolbus's. Extra `mcp`: the official SDK, which is imported when used.

    async with McpTools([McpServer("time", command="mcp-server-time")]) as mcp, Runtime(..., tools=mcp.registry):
        ...

Knows tools, results and the SDK, both eras of the protocol, and nothing of who calls.
"""

from ._servers import McpServer, McpToolOptions, servers_from
from ._tools import McpStatus, McpTools

__all__ = ["McpServer", "McpStatus", "McpToolOptions", "McpTools", "servers_from"]
