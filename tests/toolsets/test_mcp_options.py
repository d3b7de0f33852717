"""What an application says of single tools of an MCP server, and what that means after a crash."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from mcp import types

from support.mcp_server import FakeMcp, definition, said
from support.resuming import Lab, Scene, Wall, cut_off, model, virtual_wall
from toolbus.errors import ConfigurationError
from toolbus.events import ToolCallRequested
from toolbus.testing import advance, calls, text, virtual_backends
from toolbus.toolsets.mcp import McpServer, McpToolOptions, McpTools

anyio_backend = virtual_backends()


@pytest.fixture
def wall() -> Iterator[Wall]:
    with virtual_wall() as wall:
        yield wall


OPTIONS: McpToolOptions = {
    "kind": "action",
    "keep_full_results": True,
    "timeout_seconds": 3,
    "idempotent": True,
    "max_result_chars": 500,
    "status": "Going to {to}",
    "sequential": True,
    "return_direct": True,
    "needs_approval": False,
    "max_concurrency": 1,
    "summarize": str,
}


async def test_what_is_said_of_a_tool_goes_before_its_hints_and_outlives_changes_of_the_list(
    caplog: pytest.LogCaptureFixture,
):
    server = FakeMcp([definition("travel"), definition("look", read_only_hint=True)])
    options: dict[str, McpToolOptions] = {"travel": OPTIONS, "look": {"kind": ""}, "trvel": {"kind": "action"}}
    async with McpTools([server.named("game", timeout_seconds=9, needs_approval=True, tool_options=options)]) as mcp:
        for description in ("Does something.", "Flies to a place."):
            server.tools[0] = definition("travel", description)
            await server.tell_change()
            await advance(1)
            tool = mcp.registry.get("game__travel")
            assert tool is not None
            assert tool.description == description
            for option, value in OPTIONS.items():
                if option != "needs_approval":
                    assert getattr(tool.spec if hasattr(tool.spec, option) else tool, option) == value, option
            # Approval is what was said, until the tool is not as it was pinned.
            assert tool.spec.needs_approval is (description != "Does something.")
        look = mcp.registry.specs["game__look"]
        assert (look.kind, look.timeout_seconds, look.needs_approval, look.idempotent) == ("", 9, True, True)
    reported = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert reported[0] == "MCP server 'game' has no tool 'trvel', which is in its tool_options"
    assert sum("trvel" in each for each in reported) == 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"knd": "action"},
            r"MCP server 'a', tool 't': there is no option knd \(did you mean kind\?\); the options are timeout_seconds, ",
        ),
        ({"retries": 2}, "there is no option retries"),
        ({"kind": "nonsense"}, "MCP server 'a', tool 't': kind is 'nonsense'"),
        ({"timeout_seconds": 0}, "MCP server 'a', tool 't': timeout_seconds is 0"),
        ({"max_result_chars": 5}, "max_result_chars is 5"),
    ],
)
def test_options_that_make_no_sense_are_refused_at_once(options: Any, problem: str):
    with pytest.raises(ConfigurationError, match=problem):
        McpServer("a", command="x", tool_options={"t": options})


@pytest.mark.parametrize("servers", [McpServer("a", command="x"), "a", {"a": 1}, ["a"], [McpServer]])
def test_what_is_not_a_list_of_servers_is_refused_at_once(servers: Any):
    with pytest.raises(ConfigurationError, match=r"servers is .*; pass a list of McpServer"):
        McpTools(servers)


@pytest.mark.guarantee("G19", "G30")
async def test_after_a_crash_a_call_is_sent_again_only_if_its_tool_is_idempotent(wall: Wall):
    sent: list[str] = []

    async def answer(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        sent.append(params.name)
        return said("done")

    server = FakeMcp(
        [
            definition("look", read_only_hint=True),
            definition("put", destructive_hint=False, idempotent_hint=True),
            definition("add", destructive_hint=False),
            definition("told", destructive_hint=False),
        ],
        answer,
    )
    names = ("look", "put", "add", "told")
    async with McpTools([server.named("s", tool_options={"told": {"idempotent": True}})]) as mcp:
        scene = Scene(
            lambda: [model(calls(*[(f"s__{name}", dict[str, Any]()) for name in names]), text("Done."))],
            tools=lambda _lab: list(mcp.registry),
            wall=wall,
        )
        whole = await scene.whole()
        assert sorted(sent) == sorted(names)
        requested = next(
            at
            for at, entry in enumerate(whole.entries, 1)
            if any(isinstance(fact, ToolCallRequested) for fact in entry.facts)
        )
        sent.clear()
        async with scene.runtime(await cut_off(whole, requested), Lab()) as runtime:
            (session,) = await runtime.resume()
            result = await session.result()
    assert sorted(sent) == ["look", "put", "told"]
    assert [(call.name, call.reason) for call in result.tool_calls if not call.ok] == [("s__add", "interrupted")]
