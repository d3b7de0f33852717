"""An MCP server in this process, over streams in memory, that can change, die, hang and send wrong answers.

    server = FakeMcp([definition("add", read_only_hint=True)], answer)
    async with McpTools([server.named("calc")]) as mcp: ...

It is the SDK's own server, so that both eras of the protocol are the real ones. Each connection gets a new server;
`kill` ends it as the death of a process would, and `down = True` refuses new connections.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
from mcp import MCPError, types
from mcp.server import NotificationOptions, Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.memory import create_client_server_memory_streams

from toolbus import Limits, Runtime
from toolbus.events import Event, ToolCallCompleted, ToolCallFailed, ToolCallRequested
from toolbus.testing import ScriptedProvider, calls, text
from toolbus.tools import ToolRegistry
from toolbus.toolsets.mcp import McpServer

Ended = ToolCallCompleted | ToolCallFailed
Answer = Callable[[Any, types.CallToolRequestParams], Awaitable[types.CallToolResult]]
Era = Literal["legacy", "2026-07-28"]
ERAS: tuple[Era, Era] = ("legacy", "2026-07-28")
OBJECT: dict[str, Any] = {"type": "object", "properties": {}}


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds that another process or thread makes true."""
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110 -- nothing in this loop changes it
            await anyio.sleep(0.02)


def definition(
    name: str,
    description: str = "Does something.",
    schema: dict[str, Any] = OBJECT,
    output: dict[str, Any] | None = None,
    **hints: Any,
) -> types.Tool:
    annotations = types.ToolAnnotations.model_validate(hints, by_name=True) if hints else None
    return types.Tool(
        name=name, description=description, input_schema=schema, output_schema=output, annotations=annotations
    )


def said(text: str, **more: Any) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], **more)


async def _echo(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    return said(f"{params.name} {params.arguments}")


class FakeMcp:
    def __init__(self, tools: list[types.Tool], answer: Answer = _echo) -> None:
        self.tools = tools
        self.answer = answer
        self.down = False
        self.deaf = False  # whether it ignores requests
        self.refusal: MCPError | None = None  # its answer to pings
        self.no_list: MCPError | None = None  # its answer to requests for the tools
        self.connections = 0
        self.lists = 0
        self.running = 0  # the number of calls that are in the handler
        self.cancelled = 0  # the number of calls whose handler was cancelled
        self.listened: list[float] = []  # the times at which a stream of changes was opened
        self._bus = InMemorySubscriptionBus()
        self._streams = ListenHandler(self._bus)
        self._scopes: list[anyio.CancelScope] = []
        self._sessions: list[Any] = []

    def named(self, name: str, protocol: Era | Literal["auto"] = "auto", **options: Any) -> McpServer:
        return McpServer(name, connect=self._connection, protocol=protocol, **options)

    def kill(self) -> None:
        for scope in self._scopes:
            scope.cancel()

    @property
    def session(self) -> Any:
        """The newest connection of the older protocol, as the server sees it."""
        return self._sessions[-1]

    def end_streams(self) -> None:
        """End the streams of changes, as a proxy does that keeps none open."""
        self._streams.close()

    async def tell_change(self) -> None:
        """Announce a change of the tools, in the ways of both eras."""
        await self._bus.publish(ToolsListChanged())
        for session in self._sessions:
            await session.send_tool_list_changed()

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[Any]:
        if self.down:
            raise ConnectionRefusedError("nobody listens")
        self.connections += 1
        server = self._server()
        options = server.create_initialization_options(NotificationOptions(tools_changed=True))
        async with (
            create_client_server_memory_streams() as (ours, (reading, writing)),
            anyio.create_task_group() as group,
        ):

            async def serve() -> None:
                with anyio.CancelScope() as scope:
                    self._scopes.append(scope)
                    await server.run(reading, writing, options)
                await reading.aclose()
                await writing.aclose()

            group.start_soon(serve)
            try:
                yield ours
            finally:
                group.cancel_scope.cancel()

    def _server(self) -> Server[Any]:
        async def list_tools(context: Any, _params: Any) -> types.ListToolsResult:
            self.lists += 1
            if self.deaf:
                await anyio.sleep_forever()
            if self.no_list is not None:
                raise self.no_list
            if context.session not in self._sessions and context.protocol_version < "2026":
                self._sessions[:] = [context.session]
            return types.ListToolsResult(tools=list(self.tools))

        async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
            self.running += 1
            try:
                return await self.answer(context, params)
            except anyio.get_cancelled_exc_class():
                self.cancelled += 1
                raise
            finally:
                self.running -= 1

        async def listen(context: Any, params: Any) -> Any:
            self.listened.append(anyio.current_time())
            return await self._streams(context, params)

        server = Server[Any](
            "fake",
            version="1",
            on_list_tools=list_tools,
            on_call_tool=call_tool,
            on_subscriptions_listen=listen,
        )

        async def ping(_context: Any, _params: Any) -> types.EmptyResult:
            if self.deaf:
                await anyio.sleep_forever()
            if self.refusal is not None:
                raise self.refusal
            return types.EmptyResult()

        with contextlib.suppress(ValueError):
            server.add_request_handler("ping", types.RequestParams, ping)
        return server


class Caller:
    """A caller that starts a request for each call of a tool, without approval: `await caller("calc__add", a=1)`."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry
        self.events: list[Event] = []

    async def __call__(self, name: str, /, *, seconds: float = 30.0, **arguments: Any) -> Ended:
        """Make a call with so many seconds, and return the event that ended it."""
        provider = ScriptedProvider([calls((name, arguments)), text("Done.")])
        async with Runtime(
            provider=provider, tools=self._registry, limits=Limits(tool_timeout_seconds=seconds)
        ) as runtime:
            disconnect = runtime.bus.connect(Event, self.events.append)
            await runtime.run("Go.", needs_approval=False)
            disconnect()
        return next(each for each in reversed(self.events) if isinstance(each, ToolCallCompleted | ToolCallFailed))

    async def failed(self, name: str, /, **arguments: Any) -> ToolCallFailed:
        ended = await self(name, **arguments)
        assert isinstance(ended, ToolCallFailed), ended
        return ended

    async def overdue(self, name: str, /, has_arrived: Callable[[], bool], **arguments: Any) -> None:
        """Make a call that ends as one past its deadline does, as soon as the server has it, however slow that is."""
        provider = ScriptedProvider([calls((name, arguments)), text("Done.")])
        async with Runtime(provider=provider, tools=self._registry) as runtime:
            requested = list[ToolCallRequested]()
            runtime.bus.connect(ToolCallRequested, requested.append)
            session = runtime.start("Go.", needs_approval=False)
            await until(lambda: bool(requested) and has_arrived())
            late = ToolCallFailed(
                request_id=session.request_id,
                call_id=requested[0].call_id,
                name=name,
                reason="timeout",
                error="It is late.",
                outcome_unknown=True,
            )
            assert runtime.bus.publish(late), "the call has ended before"
            await session.result()

    async def completed(self, name: str, /, **arguments: Any) -> ToolCallCompleted:
        ended = await self(name, **arguments)
        assert isinstance(ended, ToolCallCompleted), ended
        return ended
