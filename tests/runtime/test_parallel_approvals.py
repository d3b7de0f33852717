"""Approvals of calls of one reply, over the bus: each decision is for its own call, in whatever order they come."""

from __future__ import annotations

import anyio
import pytest

from toolbus import EventBus, Limits, Runtime, tool
from toolbus.core.transcript import validate
from toolbus.events import ApprovalDecided, ApprovalRequested, DeadLetter, ToolCallRequested, ToolCallStarted
from toolbus.messages import ToolMessage
from toolbus.testing import ScriptedProvider, advance, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()


@tool(destructive=True)
async def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


@tool
async def look(path: str) -> str:
    """Look at a file, which needs nobody's approval."""
    await anyio.sleep(1)
    return f"saw {path}"


@pytest.mark.guarantee("G06", "G08", "G26")
async def test_two_calls_that_are_approved_in_reverse_order_run_as_they_are_approved_and_answer_in_call_order() -> None:
    script = [calls(("delete", {"path": "a"}), ("delete", {"path": "b"}), ("look", {"path": "c"})), text("Done.")]
    async with Runtime(ScriptedProvider(script), tools=[delete, look]) as runtime:
        asked: list[ApprovalRequested] = []
        requested: list[ToolCallRequested] = []
        dead: list[DeadLetter] = []
        runtime.bus.connect(ApprovalRequested, asked.append)
        runtime.bus.connect(ToolCallRequested, requested.append)
        runtime.bus.connect(DeadLetter, dead.append)
        session = runtime.start("Tidy up.")
        await settle()
        assert [event.arguments for event in asked] == [{"path": "a"}, {"path": "b"}]
        assert [event.name for event in requested] == ["look"], "what needs no approval does not wait for the others"
        await advance(3_000)
        assert runtime.bus.publish(asked[1].decided(approved=True, arguments={"path": "B"}, by="Ann"))
        await settle()
        assert [event.arguments for event in requested[1:]] == [{"path": "B"}]
        assert not runtime.bus.publish(asked[1].decided(approved=False)), "a decision is taken once"
        assert runtime.bus.publish(asked[0].decided(approved=False, by="Ben", reason="keep it"))
        result = await session.result()
    assert result.ok
    results = [message for message in result.messages if isinstance(message, ToolMessage)]
    assert [(message.is_error, message.content) for message in results[1:]] == [(False, "deleted B"), (False, "saw c")]
    assert results[0].is_error
    assert "Ben denied the call: keep it" in results[0].content
    assert [letter.event_type for letter in dead] == ["approval_decided"]
    validate(result.messages)


@pytest.mark.guarantee("G17")
async def test_a_call_that_is_approved_and_given_up_in_one_step_never_begins_though_the_bus_has_forgotten_it() -> None:
    script, began = [calls(("delete", {"path": "a"}), ("delete", {"path": "b"}))], list[ToolCallStarted]()
    async with Runtime(ScriptedProvider(script), tools=[delete], bus=EventBus(max_settled=0)) as runtime:
        asked: list[ApprovalRequested] = []
        runtime.bus.connect(ApprovalRequested, asked.append)
        runtime.bus.connect(ToolCallStarted, began.append)
        session = runtime.start("Tidy up.", limits=Limits(on_failure="fail_fast"))
        await settle()
        assert runtime.bus.publish(asked[0].decided(approved=True))
        assert runtime.bus.publish(asked[1].decided(approved=False))
        result = await session.result()
        await settle()
    assert [call.reason for call in result.tool_calls] == ["cancelled", "denied"]
    assert began == []


@pytest.mark.guarantee("G26")
async def test_a_decision_from_elsewhere_counts_by_its_ids_alone() -> None:
    script = [calls(("delete", {"path": "a"})), text("Done.")]
    async with Runtime(ScriptedProvider(script), tools=[delete]) as runtime:
        session = runtime.start("Tidy up.")
        asked: list[ApprovalRequested] = []
        runtime.bus.connect(ApprovalRequested, asked.append)
        await settle()
        (question,) = asked
        stray = ApprovalDecided(request_id=question.request_id, call_id="another", approved=True)
        assert not runtime.bus.publish(stray)
        assert runtime.bus.publish(
            ApprovalDecided(request_id=question.request_id, call_id=question.call_id, approved=True)
        )
        assert (await session.result()).tool_calls[0].content == "deleted a"
