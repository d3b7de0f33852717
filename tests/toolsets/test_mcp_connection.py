"""Servers that die, stand still, come back and change, while calls run. In virtual time, over both eras in memory."""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, Literal, cast

import anyio
import anyio.lowlevel
import pytest
from mcp import MCPError, types
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from support.mcp_server import ERAS, Caller, Era, FakeMcp, definition, said
from toolbus import Limits, Runtime
from toolbus.events import ToolCallRequested
from toolbus.testing import ScriptedProvider, advance, calls, settle, text, virtual_backends
from toolbus.tools import ToolContext, ToolRegistry
from toolbus.toolsets.mcp import McpServer, McpTools, _lists, _repair, ask_people
from toolbus.toolsets.mcp._repair import Repair
from toolbus.toolsets.mcp._server_errors import reason_of
from toolbus.toolsets.mcp._transport import (
    LastOutput,
    _stderr_pipe,  # pyright: ignore[reportPrivateUsage]
    _watched,  # pyright: ignore[reportPrivateUsage]
)

anyio_backend = virtual_backends()
eras = pytest.mark.parametrize("era", ERAS)


async def hang(_context: Any, _params: Any) -> types.CallToolResult:
    await anyio.sleep_forever()
    raise AssertionError


READS, WRITES = definition("read", read_only_hint=True), definition("write")


# ------------------------------------------------------------------------------------------------- dying


@eras
async def test_a_server_killed_in_the_middle_of_calls_fails_them_and_says_what_is_not_known(era: Era):
    server = FakeMcp([READS, WRITES], hang)
    ended: dict[str, Any] = {}
    async with McpTools([server.named("s", era)]) as mcp, anyio.create_task_group() as group:

        async def call(name: str) -> None:
            ended[name] = await Caller(mcp.registry).failed(name)

        group.start_soon(call, "s__read")
        group.start_soon(call, "s__write")
        await settle()
        assert server.running == 2
        server.kill()
        await settle()
        read, write = ended["s__read"], ended["s__write"]
        assert (read.reason, read.retryable, read.outcome_unknown) == ("error", True, False)
        assert (write.reason, write.retryable, write.outcome_unknown) == ("error", False, True)
        assert "The MCP server 's' went away during the call" in read.error
        assert "it changes nothing, so try again" in read.error
        assert "whether it was carried out is not known" in write.error


@eras
async def test_while_a_server_is_away_its_calls_fail_at_once_and_requests_go_on(era: Era):
    server, other = FakeMcp([WRITES]), FakeMcp([WRITES])
    async with McpTools([server.named("s", era), other.named("o", era)]) as mcp:
        await advance(40)
        server.down = True
        server.kill()
        await advance(60)
        assert [each.connected for each in mcp.status()] == [False, True]
        before = anyio.current_time()
        call = Caller(mcp.registry)
        failed = await call.failed("s__write")
        assert (failed.reason, failed.retryable, failed.outcome_unknown) == ("error", True, False)
        assert failed.error.startswith("The MCP server 's' has been away for 60 s: nobody listens.")
        assert (await call.completed("o__write")).content == "write {}"
        assert anyio.current_time() == before


@eras
async def test_a_server_restarted_between_calls_serves_the_next_one(era: Era):
    server = FakeMcp([WRITES])
    async with McpTools([server.named("s", era)]) as mcp:
        call = Caller(mcp.registry)
        await call.completed("s__write")
        server.kill()
        await advance(0.5)
        assert (await call.completed("s__write")).content == "write {}"
        assert server.connections == 2
        assert mcp.status()[0].seconds < 0.5


async def test_a_server_that_stays_away_is_tried_again_with_growing_waits_of_at_most_8_s(
    caplog: pytest.LogCaptureFixture,
):
    server = FakeMcp([WRITES])
    at: list[float] = []

    def connect() -> Any:
        at.append(anyio.current_time())
        return server.named("x").connect()  # pyright: ignore[reportOptionalCall]

    async with McpTools([McpServer("s", connect=connect)]) as mcp:
        server.down = True
        server.kill()
        await advance(100)
        waits = [after - before for before, after in itertools.pairwise(at)]
        assert all(each <= 8 for each in waits)
        assert waits[0] <= 0.5
        assert min(waits[-5:]) >= 4
        assert 14 < len(at) < 30
        server.down = False
        await advance(8)
        assert mcp.status()[0].connected
        await advance(10)
        server.kill()  # it was well for so long that it is tried again soon
        await advance(0.5)
        assert mcp.status()[0].connected
    assert "MCP server s is away: nobody listens" in caplog.text


async def test_a_server_that_is_away_from_the_start_keeps_nobody_waiting_and_comes_later():
    server = FakeMcp([WRITES])
    server.down = True
    await advance(100)
    async with McpTools([server.named("s")]) as mcp:
        assert anyio.current_time() == 100
        assert mcp.status()[0].seconds == 0
        assert (mcp.status()[0].reason, mcp.status()[0].tools) == ("nobody listens", ())
        server.down = False
        await advance(1)
        assert mcp.status()[0].tools == ("s__write",)


async def test_the_order_of_tools_does_not_depend_on_which_server_is_faster():
    slow, fast = FakeMcp([READS]), FakeMcp([READS])

    @asynccontextmanager
    async def connect() -> AsyncGenerator[Any]:
        await anyio.sleep(1)
        made: Any = slow.named("slow").connect
        async with made() as streams:
            yield streams

    async with McpTools([McpServer("slow", connect=connect), fast.named("fast")]) as mcp:
        assert [each.name for each in mcp.registry] == ["slow__read", "fast__read"]


async def test_a_server_that_does_not_answer_at_the_start_is_given_up_after_the_seconds_for_it():
    server = FakeMcp([WRITES])
    server.deaf = True
    async with McpTools([server.named("s")], connect_seconds=5) as mcp:
        assert anyio.current_time() == 5
        assert mcp.status()[0].reason == "it did not answer within 5 s"


@eras
async def test_a_server_that_stands_still_is_given_up_once_no_call_waits_for_it(era: Era):
    server = FakeMcp([WRITES], hang)
    async with McpTools([server.named("s", era)], ping_seconds=20) as mcp:
        await advance(100)
        assert server.connections == 1
        server.deaf = True
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: Caller(mcp.registry)("s__write", seconds=100))
            await advance(90)
            assert mcp.status()[0].connected  # it may be busy with the call, which has a deadline
            await advance(15)
        await advance(25)
        assert not mcp.status()[0].connected
        assert mcp.status()[0].reason == "it did not answer within 10 s"
        server.deaf = False
        await advance(40)
        assert mcp.status()[0].connected


@eras
async def test_a_server_that_stands_still_is_given_up_even_if_calls_keep_coming(era: Era):
    server = FakeMcp([WRITES], hang)
    async with McpTools([server.named("s", era)], ping_seconds=20) as mcp, anyio.create_task_group() as group:
        server.deaf = True
        for _ in range(16):
            group.start_soon(lambda: Caller(mcp.registry)("s__write", seconds=12))
            await advance(5)
        assert mcp.status()[0].reason == "it did not answer within 10 s"
        server.deaf = False
        await advance(40)
        assert (server.connections, mcp.status()[0].connected) == (3, True)


@eras
async def test_a_server_is_not_given_up_for_a_call_that_was_not_answered_while_it_carries_out_another(era: Era):
    server = FakeMcp([WRITES], hang)
    async with McpTools([server.named("s", era)], ping_seconds=20) as mcp, anyio.create_task_group() as group:
        server.deaf = True
        await Caller(mcp.registry)("s__write", seconds=12)
        group.start_soon(lambda: Caller(mcp.registry)("s__write", seconds=80))
        await advance(70)
        assert (server.connections, mcp.status()[0].connected) == (1, True)


@eras
async def test_a_check_that_failed_while_a_call_ran_is_made_again_after_it(era: Era):
    async def answer(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name == "read":
            raise MCPError(-32000, "no such session")
        await anyio.sleep(20)
        return said("written")

    server = FakeMcp([READS, WRITES], answer)
    async with McpTools([server.named("s", era)], ping_seconds=1_000) as mcp, anyio.create_task_group() as group:
        group.start_soon(lambda: Caller(mcp.registry).completed("s__write"))
        await settle()
        server.deaf = True
        await Caller(mcp.registry).failed("s__read")
        await advance(19)
        assert mcp.status()[0].connected
        await advance(12)
        assert mcp.status()[0].reason == "it did not answer within 10 s"


@eras
async def test_a_connection_that_cannot_be_left_is_given_up(era: Era):
    server = FakeMcp([WRITES])

    @asynccontextmanager
    async def connect() -> AsyncGenerator[Any]:
        made: Any = server.named("s").connect
        async with made() as streams:
            try:
                yield streams
            finally:
                await anyio.sleep_forever()

    async with McpTools([McpServer("s", connect=connect, protocol=era)]) as mcp:
        server.kill()
        await advance(9.9)
        assert (server.connections, mcp.status()[0].reason) == (1, "the server has ended the connection")
        await advance(0.15)
        assert mcp.status()[0].reason == "the server has ended the connection"
        await advance(1)
        assert (server.connections, mcp.status()[0].connected) == (2, True)


async def test_a_server_is_not_asked_for_its_list_while_a_call_runs():
    server = FakeMcp([WRITES], hang)
    async with McpTools([server.named("s")], ping_seconds=20) as mcp, anyio.create_task_group() as group:
        group.start_soon(lambda: Caller(mcp.registry)("s__write", seconds=100))
        await settle()
        before = server.lists
        await advance(95)
        assert server.lists == before
        await advance(30)
        assert server.lists == before + 1


@pytest.mark.parametrize(
    ("code", "message", "is_lost"),
    [
        (-32000, "Connection closed", True),
        (-32600, "Session terminated", True),
        (-32001, "Session not found", True),
        (-32603, "Server returned an error response", True),
        (-32601, "Method not found", False),
    ],
)
async def test_a_server_that_refuses_a_ping_is_lost_only_if_it_does_not_know_the_connection(
    code: int, message: str, is_lost: bool
):
    server = FakeMcp([WRITES])
    async with McpTools([server.named("s", "legacy")], ping_seconds=20) as mcp:
        await advance(100)
        assert (server.connections, server.lists) == (1, 1), "the list is not read again"
        server.refusal = MCPError(code, message)
        await advance(21)
        server.refusal = None
        await advance(2)
        assert (server.connections, mcp.status()[0].connected) == (1 + is_lost, True)


@pytest.mark.parametrize("protocol", ["auto", *ERAS])
async def test_a_server_without_tools_is_connected(protocol: Era | Literal["auto"]):
    from mcp.server import Server

    async with McpTools([McpServer("s", connect=lambda: Server("empty"), protocol=protocol)], ping_seconds=9) as mcp:
        await advance(20)
        assert (mcp.status()[0].connected, mcp.status()[0].tools) == (True, ())


# -------------------------------------------------------------------------------------- deadlines and cancellation


@pytest.mark.parametrize(("era", "at_once"), [("legacy", 1), ("2026-07-28", 2)])
async def test_calls_run_one_by_one_where_a_question_would_not_say_which_of_them_asks(era: Era, at_once: int):
    server = FakeMcp([WRITES], hang)
    named = server.named("s", era, on_elicitation=ask_people)
    provider = ScriptedProvider([calls(("s__write", {}), ("s__write", {"a": 1}))])
    async with McpTools([named]) as mcp, Runtime(provider=provider, tools=mcp.registry) as runtime:
        session = runtime.start("Go.", needs_approval=False)
        await settle()
        assert server.running == at_once
        session.cancel("enough")


@eras
async def test_a_calls_deadline_cancels_it_on_the_server(era: Era):
    server = FakeMcp([WRITES], hang)
    async with McpTools([server.named("s", era)]) as mcp:
        failed = await Caller(mcp.registry).failed("s__write", seconds=3)
        await settle()
        assert (failed.reason, anyio.current_time()) == ("timeout", 3)
        assert (server.running, server.cancelled) == (0, 1)
        assert mcp.status()[0].connected


@eras
async def test_cancelling_a_request_cancels_its_calls_on_the_server(era: Era):
    server = FakeMcp([WRITES], hang)
    provider = ScriptedProvider([calls(("s__write", {}), ("s__write", {"a": 1}))])
    async with (
        McpTools([server.named("s", era)]) as mcp,
        Runtime(provider=provider, tools=mcp.registry) as runtime,
    ):
        session = runtime.start("Go.", needs_approval=False)
        await settle()
        assert server.running == 2
        session.cancel("enough")
        assert (await session.result()).outcome == "cancelled"
        await settle()
        assert (server.running, server.cancelled) == (0, 2)


async def test_leaving_ends_calls_and_connections_that_hang():
    server = FakeMcp([WRITES], hang)
    mcp = McpTools([server.named("s")])
    async with anyio.create_task_group() as group:
        async with mcp:
            handler = mcp.registry.get("s__write")
            assert handler is not None
            failures: list[str] = []

            async def call() -> None:
                try:
                    await handler(toolbus_context=ToolContext(deps=None))
                except Exception as exc:
                    failures.append(str(exc))

            group.start_soon(call)
            await settle()
            assert server.running == 1
        await settle()
    assert failures == ["it is closing"]
    assert mcp.status() == ()
    async with mcp:  # it may be entered again
        assert mcp.status()[0].connected


async def test_a_cancellation_while_the_first_tools_are_taken_leaves_none_of_them(monkeypatch: pytest.MonkeyPatch):
    async def take(self: Any, prefix: str, *given: Any) -> None:
        if prefix == "second" and "first__read" in registry:
            scope.cancel()
            await anyio.lowlevel.checkpoint()
        await real(self, prefix, *given)

    real, registry = cast("Any", McpTools)._take, ToolRegistry()
    monkeypatch.setattr(McpTools, "_take", take)
    with anyio.CancelScope() as scope:
        async with McpTools([FakeMcp([READS]).named(each) for each in ("first", "second")], registry=registry):
            raise AssertionError
    assert scope.cancelled_caught
    assert len(registry) == 0


async def test_leaving_does_not_wait_for_a_server_that_never_comes():
    server = FakeMcp([WRITES])
    async with McpTools([server.named("s")]):
        server.deaf = True
        server.kill()
        await advance(2)  # a connection is being made
        before = anyio.current_time()
    assert anyio.current_time() == before


# ------------------------------------------------------------------------------------------------- changes


@eras
async def test_a_request_that_runs_sees_a_changed_list_at_its_next_round(era: Era):
    server = FakeMcp([READS])

    async def answer(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        server.tools = [definition("write", destructive_hint=False)]
        await server.tell_change()
        await anyio.sleep(1)
        return said(params.name)

    server.answer = answer
    provider = ScriptedProvider([calls(("s__read", {})), calls(("s__write", {})), text("Done.")])
    async with (
        McpTools([server.named("s", era)]) as mcp,
        Runtime(provider=provider, tools=mcp.registry, limits=Limits(tool_timeout_seconds=9)) as runtime,
    ):
        asked: list[ToolCallRequested] = []
        runtime.bus.connect(ToolCallRequested, asked.append)
        result = await runtime.run("Go.")
    assert [each.name for each in asked] == ["s__read", "s__write"]
    assert [each.ok for each in result.tool_calls] == [True, True]
    assert [[tool.name for tool in request.tools] for request in provider.requests] == [
        ["s__read"],
        ["s__write"],
        ["s__write"],
    ]


@eras
async def test_a_change_that_a_busy_server_could_not_list_in_time_is_read_once_it_can(era: Era):
    server = FakeMcp([READS])

    async def answer(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        await anyio.sleep(40)
        return said(params.name)

    server.answer = answer
    async with (
        McpTools([server.named("s", era)], ping_seconds=1_000) as mcp,
        Runtime(
            provider=ScriptedProvider([calls(("s__read", {})), text("Done.")]),
            tools=mcp.registry,
            limits=Limits(tool_timeout_seconds=90),
        ) as runtime,
    ):
        session = runtime.start("Go.")
        await settle()
        server.deaf, server.tools = True, [definition("write", destructive_hint=False)]
        await server.tell_change()
        await advance(12)
        server.deaf = False
        assert list(mcp.registry.specs) == ["s__read"]
        await advance(15)
        assert list(mcp.registry.specs) == ["s__write"]
        assert (await session.result()).ok


@eras
async def test_a_server_that_cannot_list_its_tools_keeps_its_calls_and_is_asked_again(era: Era):
    server = FakeMcp([READS], hang)
    async with McpTools([server.named("s", era)], ping_seconds=20) as mcp, anyio.create_task_group() as group:
        group.start_soon(lambda: Caller(mcp.registry)("s__read", seconds=60))
        await settle()
        server.no_list, server.tools = MCPError(-32603, "no upstream"), [WRITES]
        await server.tell_change()
        await advance(15)
        assert (server.connections, server.running, mcp.status()[0].connected) == (1, 1, True)
        server.no_list = None
        await advance(10)
        assert [each.name for each in mcp.registry] == ["s__write"]
        await advance(40)


@eras
async def test_a_server_that_tells_of_changes_all_the_time_is_read_four_times_a_second(era: Era):
    server = FakeMcp([READS])
    async with McpTools([server.named("s", era)]):
        before = server.lists
        for _ in range(100):
            await server.tell_change()
            await advance(0.01)
        assert server.lists - before <= 5


@eras
async def test_a_change_that_comes_just_after_a_check_is_read_at_once(era: Era):
    server = FakeMcp([READS])
    async with McpTools([server.named("s", era)], ping_seconds=10) as mcp:
        await advance(10.3)
        server.tools = [WRITES]
        await server.tell_change()
        await advance(0.1)
        assert [each.name for each in mcp.registry] == ["s__write"]


async def test_a_stream_of_changes_that_keeps_ending_is_opened_again_with_growing_waits_and_the_list_read_each_time():
    server = FakeMcp([READS])
    async with McpTools([server.named("s")], ping_seconds=1_000):
        before = server.lists
        for _ in range(1_000):
            server.end_streams()
            await advance(0.1)
        waits = [after - earlier for earlier, after in itertools.pairwise(server.listened)]
        assert waits[0] <= 0.7
        assert 4 <= min(waits[-5:]) <= max(waits) <= 8.2
        assert server.lists - before == len(waits)
        await advance(100)
        opened = len(server.listened)
        server.end_streams()  # it was steady for so long that it is opened again soon
        await advance(0.7)
        assert len(server.listened) == opened + 1


@eras
async def test_a_server_that_dies_is_a_warning_once_for_each_outage(era: Era, caplog: pytest.LogCaptureFixture):
    server = FakeMcp([READS])
    async with McpTools([server.named("s", era)]) as mcp:
        for outages in (1, 2):
            server.kill()
            await settle()
            assert not mcp.status()[0].connected
            warned = [each for each in caplog.records if "MCP server s is away" in each.getMessage()]
            assert [each.levelname for each in warned] == ["WARNING"] * outages
            assert warned[-1].getMessage() == "MCP server s is away: the server has ended the connection"
            await advance(30)
            assert mcp.status()[0].connected


async def test_changes_that_nobody_tells_are_seen_when_it_is_looked_on_the_newer_protocol():
    server = FakeMcp([READS])
    async with McpTools([server.named("s")], ping_seconds=10) as mcp:
        server.tools = [WRITES]
        await advance(11)
        assert [each.name for each in mcp.registry] == ["s__write"]


@eras
async def test_a_changed_tool_of_a_server_that_came_back_is_noticed(era: Era, caplog: pytest.LogCaptureFixture):
    server = FakeMcp([READS])
    async with McpTools([server.named("s", era)]) as mcp:
        server.tools = [definition("read", "Other words.", read_only_hint=True)]
        server.kill()
        await advance(1)
        assert mcp.changed == {"s__read": "its description changed since it was pinned"}
    assert [each.levelno for each in caplog.records if "needs approval" in each.getMessage()] == [logging.WARNING]


async def test_a_list_without_an_end_is_refused():
    pages = 0

    async def more(_context: Any, _params: Any) -> types.ListToolsResult:
        nonlocal pages
        pages += 1
        return types.ListToolsResult(tools=[definition(f"t{pages}")], next_cursor=str(pages))

    from mcp.server import Server

    async with McpTools([McpServer("s", connect=lambda: Server("endless", on_list_tools=more))]) as mcp:
        assert mcp.status()[0].reason == "it lists more than 1000 tools, or on more than 100 pages"
        assert pages == 100


@pytest.mark.parametrize(("pages", "shown"), [([10, 0], 10), ([11, 0], 0), ([11], 0), ([12], 0), ([9, 2], 0)])
async def test_a_server_may_have_as_many_tools_as_the_bound_on_any_number_of_pages(
    pages: list[int], shown: int, monkeypatch: pytest.MonkeyPatch
):
    for module in (_lists, _repair):
        monkeypatch.setattr(module, "MAX_TOOLS", 10)

    async def listed(_context: Any, params: Any) -> types.ListToolsResult:
        page = int(params.cursor) if params is not None and params.cursor else 0
        tools = [definition(f"t{page}_{number}") for number in range(pages[page])]
        return types.ListToolsResult(tools=tools, next_cursor=str(page + 1) if page + 1 < len(pages) else None)

    from mcp.server import Server

    async with McpTools([McpServer("s", connect=lambda: Server("large", on_list_tools=listed))]) as mcp:
        assert len(mcp.status()[0].tools) == shown
        assert bool(mcp.status()[0].reason) is (shown == 0)


async def test_a_server_that_repeats_its_cursor_keeps_the_tools_of_its_pages():
    async def again(_context: Any, params: Any) -> types.ListToolsResult:
        page = "b" if params is not None and params.cursor else "a"
        return types.ListToolsResult(tools=[definition(page)], next_cursor="last")

    from mcp.server import Server

    async with McpTools([McpServer("s", connect=lambda: Server("again", on_list_tools=again))]) as mcp:
        assert mcp.status()[0].tools == ("s__a", "s__b")


@pytest.mark.parametrize(("is_open", "seconds"), [(False, 0.0), (True, 0.5)])
async def test_the_last_words_of_a_program_are_waited_for_only_while_somebody_could_add_to_them(
    is_open: bool, seconds: float
):
    words = LastOutput("s")
    async with _stderr_pipe(words) as writing:
        os.write(writing, b"the key is\nwrong")
        if not is_open:
            os.close(writing)
    assert (str(words), anyio.current_time()) == ("the key is" if is_open else "the key is | wrong", seconds)
    if is_open:
        with pytest.raises(BrokenPipeError):  # Nobody reads there any more.
            os.write(writing, b"x")
        os.close(writing)


async def test_a_server_of_the_sdk_in_this_process_needs_no_transport():
    from mcp.server import MCPServer

    server = MCPServer("calc")

    @server.tool()
    def add(a: int, b: int) -> int:  # pyright: ignore[reportUnusedFunction]
        """Add two numbers."""
        return a + b

    async with McpTools([McpServer("calc", connect=lambda: server)]) as mcp:
        call = Caller(mcp.registry)
        assert (await call.completed("calc__add", a=1, b=2)).data == 3
        assert (await call.failed("calc__add", a="x", b=2)).reason == "invalid_arguments"


@pytest.mark.parametrize(
    ("exceptions", "reason"),
    [
        ([ValueError(""), OSError("gone")], "gone"),
        ([ValueError("")], "ValueError"),
        ([FileNotFoundError(2, "no such file", "server.py")], "there is no server.py"),
    ],
)
def test_the_reason_is_the_first_exception_that_says_something(exceptions: list[Exception], reason: str):
    assert reason_of(ExceptionGroup("group", exceptions)) == reason


async def test_a_list_of_tools_in_a_version_that_is_not_known_is_left_to_the_sdk() -> None:
    tools = [{"name": "look"}]
    item = SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id=1, result={"tools": tools}))
    left_out: list[str] = []
    repair = Repair(lambda tool, _why: left_out.append(tool))
    repair.version = lambda: "1999-01-01"
    assert (await repair(item)).message.result["tools"] is tools
    assert left_out == []


TOOLS: dict[str, Any] = {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}


async def test_a_list_with_a_fault_beside_its_tools_is_left_to_the_sdk_without_them() -> None:
    left_out: list[str] = []
    repair = Repair(lambda tool, _why: left_out.append(tool))
    repair.version = lambda: "2025-11-25"
    item = SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id=1, result={**TOOLS, "nextCursor": 5}))
    result = (await repair(item)).message.result
    assert (result["tools"], result["nextCursor"]) == ([], 5)
    assert left_out == []


async def test_only_the_definitions_of_the_two_newest_lists_are_kept() -> None:
    repair = Repair(lambda _tool, _why: None)
    repair.version = lambda: "2025-11-25"
    pages: list[Any] = []
    for _ in range(4):
        result = (await repair(SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id=1, result=TOOLS)))).message.result
        pages.append(SimpleNamespace(meta=result["_meta"], tools=[]))
    assert [len(repair.tools_of(each)) for each in reversed(pages)] == [1, 1, 0, 0]


def test_a_definition_may_have_64_kib() -> None:
    assert _repair.too_large("x" * (65_536 - 2)) == ""
    assert _repair.too_large("x" * (65_536 - 1)) == "its definition has 65537 bytes; at most 65536 are allowed"


ANSWER: dict[str, Any] = {"jsonrpc": "2.0", "id": 7, "result": {}}


@pytest.mark.parametrize(
    ("parts", "answers"),
    [
        ([ANSWER], True),
        ([json.dumps(ANSWER)], True),
        (["a log line", ANSWER], True),
        (["[" * 100_000, ANSWER], True),
        ([3, ANSWER], True),
        ([{**ANSWER, "method": "ping"}, ANSWER], True),
        ([{"jsonrpc": "2.0", "id": 7}, ANSWER], True),
        ([{**ANSWER, "jsonrpc": "1.0"}, ANSWER], True),
        ([{**ANSWER, "id": None}, {**ANSWER, "id": [7]}], False),
    ],
)
async def test_a_message_that_cannot_be_read_ends_the_call_that_any_part_of_the_message_answers(
    parts: list[Any], answers: bool
) -> None:
    problems: Any = [{"type": "missing", "loc": (), "input": each} for each in parts]
    error = ValidationError.from_exception_data("message", problems)
    found = await Repair(lambda _tool, _why: None)(error)
    if not answers:
        assert found is error
        return
    assert (found.message.id, found.message.error.message) == (7, "Failed to parse it: Field required")


async def as_it_is(item: str) -> str:
    return item


async def test_the_end_of_a_servers_stream_is_reported_and_reaches_the_client() -> None:
    put, stream = anyio.create_memory_object_stream[str](1)
    put.close()
    ended: list[str] = []
    async with _watched(nullcontext((stream, None)), lambda: ended.append("end"), as_it_is) as (reading, _):
        with pytest.raises(anyio.EndOfStream):
            await reading.receive()
        with pytest.raises(StopAsyncIteration):
            await anext(reading)
    stream.close()
    assert ended == ["end", "end"]


async def test_each_item_that_a_client_reads_is_repaired() -> None:
    async def loud(item: str) -> str:
        return item.upper()

    put, stream = anyio.create_memory_object_stream[str](2)
    for each in ("one", "two"):
        put.send_nowait(each)
    put.close()
    async with _watched(nullcontext((stream, None)), lambda: None, loud) as (reading, _), reading:
        assert [await reading.receive(), await anext(reading)] == ["ONE", "TWO"]


async def test_the_stream_that_a_client_reads_is_closed_and_has_the_context_of_what_was_sent() -> None:
    put, stream = anyio.create_memory_object_stream[str](1)
    sent: Any = SimpleNamespace(last_context="that of the call", aclose=stream.aclose)
    async with _watched(nullcontext((sent, None)), lambda: None, as_it_is) as (reading, _):
        assert reading.last_context == "that of the call"
        await reading.aclose()
    with pytest.raises(anyio.BrokenResourceError):
        put.send_nowait("more")
    put.close()
    put, stream = anyio.create_memory_object_stream[str](1)
    put.close()
    async with _watched(nullcontext((stream, None)), lambda: None, as_it_is) as (reading, _), reading as entered:
        assert entered is reading
    with pytest.raises(anyio.ClosedResourceError):
        await stream.receive()
