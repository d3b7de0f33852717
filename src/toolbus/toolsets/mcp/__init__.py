"""The tools of MCP servers, in a tool registry. Needs the extra `mcp`: the official SDK, which is imported when used.

    async with McpTools([McpServer("time", command="mcp-server-time")]) as mcp, Runtime(..., tools=mcp.registry):
        ...

The package knows tools, results, the SDK, and both forms of the protocol: with sessions, and without (from 2026 on). It
must not know the runtime or the model that calls the tools. Its invariants:

1. One task holds each connection, and calls borrow its client. Without this a client of the SDK, which has to be left
   in the task that entered it, could cancel the task of a caller when it breaks.
2. A call whose connection is lost ends at once, and its failure says whether the call may have been carried out.
   Without this a call would wait for its deadline, or a model would repeat a change that was made already.
3. Nothing that a server sends is trusted: definitions are checked and bounded in size, and results are checked in
   bounded time. Without this one server could block the event loop, or hide the tools of the others.
4. A tool whose definition differs from its pin needs approval. Without this a server could offer a harmless tool until
   it is trusted, and then another one of the same name.
5. What a server asks back during a call (elicitation and sampling) is answered for that call, in its conversation, and
   ends with it. Without this a server could ask a person who has nothing to do with the call, or keep asking after it.

Example:
    import json
    import tempfile
    from pathlib import Path

    from toolbus import Runtime
    from toolbus.toolsets.mcp import McpServer, McpStatus, McpTools, servers_from

    path = Path(tempfile.mkdtemp(), "mcp.json")
    path.write_text(json.dumps({"mcpServers": {"files": {"command": "uvx", "args": ["mcp-server-git"]}}}))
    servers: list[McpServer] = servers_from(path)
    servers.append(McpServer("docs", url="http://127.0.0.1:8765/mcp"))
    print([server.name for server in servers])  # ['files', 'docs']

    async def main() -> None:
        async with McpTools(servers) as tools, Runtime("extractive", tools=tools.registry) as runtime:
            statuses: tuple[McpStatus, ...] = tools.status()
            await runtime.run("What has changed since yesterday?")
"""

from ._questions import ask_model, ask_people
from ._servers import McpServer, McpToolOptions, servers_from
from ._tools import McpStatus, McpTools

__all__ = ["McpServer", "McpStatus", "McpToolOptions", "McpTools", "ask_model", "ask_people", "servers_from"]
