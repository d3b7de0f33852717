"""A long result from its tool to the model: sent cut, kept whole, and read to its end over several turns."""

from __future__ import annotations

import json
from typing import Any

from toolbus import Runtime, tool
from toolbus.events import ToolCallCompleted, ToolCallRequested
from toolbus.messages import ToolMessage
from toolbus.protocols import ModelRequest
from toolbus.testing import ScriptedProvider, calls, text
from toolbus.tools import Tool

ROWS = [{"id": number, "name": f"row {number}"} for number in range(300)]
WHOLE = json.dumps(ROWS, separators=(",", ":"))


@tool
async def list_rows() -> list[dict[str, Any]]:
    """List all rows."""
    return ROWS


def tools_of(request: ModelRequest) -> list[str]:
    return [each.name for each in request.tools]


def newest_result(request: ModelRequest) -> str:
    return next(each.content for each in reversed(request.messages) if isinstance(each, ToolMessage))


async def test_a_long_result_is_sent_cut_and_kept_whole_and_can_be_read_to_its_end():
    read = ""

    def look_at(request: ModelRequest) -> None:
        nonlocal read
        newest = request.messages[-1]
        if isinstance(newest, ToolMessage) and newest.name == "read_result":
            assert len(newest.content) <= 4_000
            read += newest.content.partition("\n")[2]

    def read_on(request: ModelRequest) -> Any:
        look_at(request)
        wanted = next(each.call_id for each in request.messages if isinstance(each, ToolMessage))
        return calls(("read_result", {"call_id": wanted, "offset": len(read)}))

    def end(request: ModelRequest) -> Any:
        look_at(request)
        return text("That is all.")

    script = ScriptedProvider([calls(("list_rows", {})), read_on, read_on, read_on, end])
    events: list[ToolCallCompleted] = []
    async with Runtime(script, tools=[list_rows]) as runtime:
        runtime.bus.connect(ToolCallCompleted, events.append)
        result = await runtime.run("All rows, please")
    assert result.outcome == "completed"
    assert read == WHOLE
    sent = newest_result(script.requests[1])
    *head, mark = json.loads(sent)
    assert len(sent) <= 4_000
    assert head == ROWS[: len(head)]
    assert mark.startswith(f"... {300 - len(head)} more items; shortened from {len(WHOLE)} characters; read_result(")
    assert (events[0].content, events[0].data) == (WHOLE, ROWS)
    assert next(each.content for each in result.messages if isinstance(each, ToolMessage)) == WHOLE
    assert [tools_of(each) for each in script.requests[:2]] == [["list_rows"], ["list_rows", "read_result"]]


async def test_what_somebody_else_on_the_bus_has_answered_is_read_in_the_next_turn():
    away: Tool = Tool("away", "Somewhere else.", {"type": "object"}, external=True)

    def read(request: ModelRequest) -> Any:
        wanted = next(each.call_id for each in request.messages if isinstance(each, ToolMessage))
        return calls(("read_result", {"call_id": wanted, "offset": 9_990}))

    script = ScriptedProvider([calls(("away", {})), text("Long."), read, text("It ends so.")])
    async with Runtime(script, tools=[away], max_result_chars=300) as runtime:

        def answer(request: ToolCallRequested) -> None:
            runtime.bus.publish(request.completed("x" * 9_990 + "that's all"))

        runtime.bus.connect(ToolCallRequested, answer)
        first = await runtime.run("Look.")
        second = await runtime.run("And the end?", conversation_id=first.conversation_id)
    assert "read_result(call_id=" in newest_result(script.requests[1])
    assert len(newest_result(script.requests[1])) <= 300
    assert second.tool_calls[0].content == "Characters 9990 to 10000 of 10000. This is the end.\nthat's all"


async def test_short_results_need_no_tool_to_be_read():
    @tool
    async def look() -> str:
        """Look."""
        return "short"

    script = ScriptedProvider([calls(("look", {})), text("Done.")])
    async with Runtime(script, tools=[look]) as runtime:
        await runtime.run("Look.")
    assert [tools_of(each) for each in script.requests] == [["look"], ["look"]]


async def test_a_tool_with_a_bound_of_its_own_is_cut_at_that():
    made = Tool("look", handler=lambda: "x" * 5_000, max_result_chars=500)
    script = ScriptedProvider([calls(("look", {})), text("Done.")])
    async with Runtime(script, tools=[made]) as runtime:
        await runtime.run("Look.")
    assert 400 < len(newest_result(script.requests[1])) <= 500
