"""MCP servers whose schemas, or whose results, would hold the event loop of whoever compares them."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import anyio.lowlevel
import orjson
import pytest
from mcp import types

from support.mcp_server import ERAS, Caller, Era, FakeMcp, definition, said
from support.watchdog import MAX_SECONDS, watching
from toolbus.toolsets.mcp import McpTools
from toolbus.toolsets.mcp._repair import Repair

pytestmark = pytest.mark.repeats("it measures CPU time, which tracing multiplies")

OBJECT: dict[str, Any] = {"type": "object"}
LAUGHS = {f"l{i}": {"anyOf": [{"$ref": f"#/$defs/l{i - 1}"}] * 50} for i in range(1, 6)}


def of(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, **more}


BACKTRACKING = of({"type": "string", "pattern": "^(a+)+$"})
UNIQUE = of({"type": "array", "uniqueItems": True})
ALTERNATIVES = of({"$ref": "#/$defs/l5"}, **{"$defs": {"l0": {"type": "string"}, **LAUGHS}})
LEFT_OUT = {
    "alternatives": (ALTERNATIVES, "its alternatives multiply"),
    "remote": (of({"$ref": "http://127.0.0.1:9/schema.json"}), "references must lead within the schema"),
    "look-around": (of({"type": "string", "pattern": "(?=a)a"}), "no look-around"),
    "endless": (of({"$ref": "#/properties/x"}), "it refers to itself without end"),
    "no schema": (of({"type": "text"}), "not a valid JSON schema: $.properties.x.type: 'text'"),
    "big patterns": (of({"pattern": "(?i)" + "[\\x{0}-\\x{10FFFF}]" * 90}), "its patterns are too many, or too long"),
}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("kind", LEFT_OUT)
async def test_a_tool_whose_schema_cannot_be_checked_is_left_out_with_the_reason_and_the_others_remain(
    kind: str, side: str, era: Era, caplog: pytest.LogCaptureFixture
):
    schema, why = LEFT_OUT[kind]
    bad = definition("bad", schema=schema) if side == "input" else definition("bad", output=schema)
    server = FakeMcp([definition("first"), bad, definition("last")])
    async with watching() as dog, McpTools([server.named("s", era)]) as mcp:
        assert set(mcp.registry.specs) == {"s__first", "s__last"}
        assert (await Caller(mcp.registry).completed("s__last")).content == "last {}"
    reported = next(each.getMessage() for each in caplog.records if "left out" in each.getMessage())
    assert reported.startswith("tool 'bad' of MCP server 's' is left out: ")
    assert why in reported
    assert ("in its output schema" in reported) == (side == "output")
    assert dog.longest < MAX_SECONDS


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("schema", "value", "why"),
    [
        (BACKTRACKING, "a" * 28 + "!", '$.x: the value does not match "^(a+)+$"'),
        (UNIQUE, [*({"a": i} for i in range(3_000)), {"a": 1.0}], "the items 1 and 3000 are equal"),
        (of({"pattern": "^[01]*1[01]{20}2"}), "01" * 50_000, "too big for the schema's patterns"),
        (of({"items": {"anyOf": [{"enum": [1.5] * 99}] * 9}}), [2] * 999, "too big for a schema with this many parts"),
    ],
    ids=["pattern", "unique items", "long text", "alternatives"],
)
async def test_a_result_that_would_hold_the_loop_is_a_failed_call_with_a_reason(
    schema: dict[str, Any], value: Any, why: str, era: Era
):
    async def answer(_context: Any, _params: Any) -> types.CallToolResult:
        return said("", structured_content={"x": value})

    server = FakeMcp([definition("do", output=schema, read_only_hint=True)], answer)
    with anyio.fail_after(60):
        async with watching() as dog, McpTools([server.named("s", era)]) as mcp:
            failed = await Caller(mcp.registry).failed("s__do")
    assert (failed.reason, failed.outcome_unknown) == ("error", False)
    assert why in failed.error
    assert failed.error.startswith("The result of 'do' ")
    assert dog.longest < MAX_SECONDS


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize(
    ("schema", "value", "why"),
    [
        (BACKTRACKING, "a" * 28 + "!", '$.x: the value does not match "^(a+)+$"'),
        (UNIQUE, [2**60 + i % 2_999 for i in range(3_000)], "the items 0 and 2999 are equal"),
        (of({"pattern": "^[01]*1[01]{20}2"}), "01" * 50_000, "too big for the schema's patterns"),
    ],
    ids=["pattern", "unique items", "long text"],
)
async def test_arguments_that_would_hold_the_loop_are_refused_with_a_reason(schema: Any, value: Any, why: str):
    server = FakeMcp([definition("do", schema=schema, read_only_hint=True)])
    with anyio.fail_after(60):
        async with watching() as dog, McpTools([server.named("s")]) as mcp:
            failed = await Caller(mcp.registry).failed("s__do", x=value)
    assert failed.reason == "invalid_arguments"
    assert why in failed.error
    assert dog.longest < MAX_SECONDS


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_definitions_with_many_faults_hold_up_nobody(version: str):
    left_out: list[tuple[str, str]] = []
    repair = Repair(lambda tool, why: left_out.append((tool, why)))
    repair.version = lambda: version
    bad = [{"name": f"t{i}", "inputSchema": {"type": "object"}, "icons": [0] * 15_000} for i in range(6)]
    good = {"name": "good", "inputSchema": {"type": "object"}}
    body = {"tools": [*bad, good], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    async with watching() as dog:
        page = await repair.shortened(orjson.dumps({"jsonrpc": "2.0", "id": 1, "result": body}))
    assert left_out == [(f"t{i}", "its definition breaks the protocol: it has 15000 faults") for i in range(6)]
    assert b"toolbus/page" in page
    assert dog.longest < MAX_SECONDS


async def test_many_definitions_are_read_one_by_one_while_others_go_on():
    wide = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(400)}}
    server = FakeMcp([definition("first")])
    turns: list[int] = []  # how many tools there were at each turn of somebody else's
    async with McpTools([server.named("s")]) as mcp, anyio.create_task_group() as group:

        async def look() -> None:
            while True:
                turns.append(len(mcp.registry))
                await anyio.lowlevel.checkpoint()

        server.tools = [definition(f"n{i}", schema=wide, output=wide) for i in range(30)]
        await server.tell_change()
        group.start_soon(look)
        with anyio.fail_after(60):
            while "s__n29" not in mcp.registry:
                await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert len(set(turns)) >= 12  # trio gives turns in any order, so some were missed


async def test_the_secrets_of_a_result_are_found_in_bounded_time_or_it_is_not_shown(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.CRITICAL)
    secret = {"type": "string", "writeOnly": True}
    many = of({"items": secret})
    names = of({"patternProperties": {f"^[01]*1[01]{{{10 + i}}}2": secret for i in range(9)}})

    async def answer(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        value = [f"token-{i:06d}" for i in range(3_000)] if params.name == "many" else {"01" * 20: "a", "2": "token"}
        return said("", structured_content={"x": value})

    tools = [
        definition("many", output=many, read_only_hint=True),
        definition("names", output=names, read_only_hint=True),
    ]
    async with watching() as dog, McpTools([FakeMcp(tools, answer).named("s")]) as mcp:
        failed = await Caller(mcp.registry).failed("s__many")
        assert "token-" not in failed.error
        assert "The result is not shown: it is too big for finding the secrets in it, or its schema" in failed.error
        ended = await Caller(mcp.registry).completed("s__names")
    assert ended.data == {"x": {"01" * 20: "a", "2": "token"}}
    assert dog.longest < MAX_SECONDS
