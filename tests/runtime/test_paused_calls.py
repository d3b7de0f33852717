"""Calls that wait for a person while they run: those of sub-requests, however deep, and those of other executors."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from toolbus import Limits, Runtime, Tool, sub_request_tool, tool
from toolbus.core.transcript import validate
from toolbus.events import (
    ApprovalRequested,
    DeadLetter,
    StatusChanged,
    ToolCallCompleted,
    ToolCallPaused,
    ToolCallRequested,
    ToolCallResumed,
)
from toolbus.testing import ScriptedProvider, advance, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()

HOUR = 3_600
LIMITS = Limits(timeout_seconds=50, tool_timeout_seconds=20, approval_timeout_seconds=2 * HOUR)


@tool(needs_approval=True)
async def remove(path: str) -> str:
    """Remove a file."""
    await anyio.sleep(5)
    return f"{path} is gone"


sign: Tool = Tool("sign", "Have a paper signed.", {"type": "object"}, external=True, validate=lambda _arguments: None)


def calling(name: str, arguments: dict[str, Any]) -> ScriptedProvider:
    """A model that calls this tool, and then answers."""
    return ScriptedProvider(lambda request: text("done") if request.round else calls((name, arguments)))


def desk(name: str, provider: ScriptedProvider, tools: list[Any]) -> Tool:
    return sub_request_tool(name, "Does what it is told.", provider=provider, tools=tools, limits=LIMITS)


def removing_desk(name: str = "desk") -> Tool:
    return desk(name, calling("remove", {"path": "x"}), [remove])


async def test_a_request_and_its_call_outlast_the_hour_that_a_sub_request_waits_for_a_person() -> None:
    asked: list[ApprovalRequested] = []
    reported: list[ToolCallPaused | ToolCallResumed] = []
    async with Runtime(calling("desk", {"task": "go"}), tools=[removing_desk()], limits=LIMITS) as runtime:
        runtime.bus.connect(ApprovalRequested, asked.append)
        runtime.bus.connect((ToolCallPaused, ToolCallResumed), reported.append)
        session = runtime.start("hi")
        await advance(HOUR)
        runtime.bus.publish(asked[0].decided(approved=True))
        result = await session.result()
        assert anyio.current_time() == pytest.approx(HOUR + 5)
    (call,) = result.tool_calls
    assert (result.outcome, call.ok) == ("completed", True)
    assert [type(each) for each in reported] == [ToolCallPaused, ToolCallResumed]
    assert {(each.request_id, each.call_id) for each in reported} == {(result.request_id, call.call_id)}
    validate(result.messages)


async def test_what_waits_two_requests_deep_pauses_each_call_above_it() -> None:
    asked: list[ApprovalRequested] = []
    reported: list[ToolCallPaused | ToolCallResumed] = []
    middle = desk("office", calling("desk", {"task": "go"}), [removing_desk()])
    async with Runtime(calling("office", {"task": "go"}), tools=[middle], limits=LIMITS) as runtime:
        runtime.bus.connect(ApprovalRequested, asked.append)
        runtime.bus.connect((ToolCallPaused, ToolCallResumed), reported.append)
        session = runtime.start("hi")
        await advance(HOUR)
        assert [type(each) for each in reported] == [ToolCallPaused, ToolCallPaused]
        runtime.bus.publish(asked[0].decided(approved=True))
        result = await session.result()
    assert (result.outcome, [call.ok for call in result.tool_calls]) == ("completed", [True])
    assert [type(each) for each in reported[2:]] == [ToolCallResumed, ToolCallResumed]
    assert len({each.request_id for each in reported}) == 2


async def test_after_the_wait_a_sub_request_has_the_time_that_was_left_and_no_more() -> None:
    asked: list[ApprovalRequested] = []

    @tool(needs_approval=True, timeout_seconds=1_000)
    async def hang(path: str) -> None:
        """Never end."""
        await anyio.sleep_forever()

    hanging = desk("desk", calling("hang", {"path": "x"}), [hang])
    async with Runtime(calling("desk", {"task": "go"}), tools=[hanging], limits=LIMITS) as runtime:
        runtime.bus.connect(ApprovalRequested, asked.append)
        session = runtime.start("hi")
        await advance(HOUR)
        runtime.bus.publish(asked[0].decided(approved=True))
        result = await session.result()
        assert anyio.current_time() == pytest.approx(HOUR + 50)
    assert (result.outcome, result.reason) == ("stopped", "timeout_seconds=50")


async def test_a_question_of_a_sub_request_that_nobody_answers_ends_in_its_time() -> None:
    async with Runtime(calling("desk", {"task": "go"}), tools=[removing_desk()], limits=LIMITS) as runtime:
        runtime.bus.connect(ApprovalRequested, lambda _question: None)
        result = await runtime.run("hi")
        assert anyio.current_time() == pytest.approx(2 * HOUR)
    assert (result.outcome, [call.ok for call in result.tool_calls]) == ("completed", [True])


async def test_a_request_is_cancelled_while_its_sub_request_waits_for_a_person() -> None:
    asked: list[ApprovalRequested] = []
    async with Runtime(calling("desk", {"task": "go"}), tools=[removing_desk()], limits=LIMITS) as runtime:
        runtime.bus.connect(ApprovalRequested, asked.append)
        session = runtime.start("hi")
        await advance(HOUR)
        session.cancel("enough")
        result = await session.result()
        await settle()
        assert runtime.bus.publish(asked[0].decided(approved=True)) is False
        assert runtime.bus.statistics().mailboxes == 0
    assert (result.outcome, result.reason) == ("cancelled", "enough")


async def test_the_status_of_a_request_is_waiting_while_its_sub_request_waits_for_a_person() -> None:
    asked: list[ApprovalRequested] = []
    heard: list[StatusChanged] = []
    async with Runtime(calling("desk", {"task": "go"}), tools=[removing_desk()], limits=LIMITS) as runtime:
        runtime.bus.connect(ApprovalRequested, asked.append)
        runtime.bus.connect(StatusChanged, heard.append)
        session = runtime.start("hi")
        await advance(HOUR)
        mine = [each.stage for each in heard if each.request_id == session.request_id]
        assert (mine[-1], mine.count("waiting")) == ("waiting", 1)
        runtime.bus.publish(asked[0].decided(approved=True))
        await advance(1)
        mine = [each.stage for each in heard if each.request_id == session.request_id]
        assert mine[-1] == "executing"
        await session.result()


async def test_an_executor_of_ones_own_pauses_its_call_and_goes_on_with_the_time_that_was_left() -> None:
    requests: list[ToolCallRequested] = []
    stages: list[str] = []
    async with Runtime(calling("sign", {}), tools=[sign], limits=LIMITS) as runtime:
        runtime.bus.connect(ToolCallRequested, requests.append)
        runtime.bus.connect(StatusChanged, lambda event: stages.append(event.stage))
        session = runtime.start("hi")
        await advance(15)
        (requested,) = requests
        ids: dict[str, Any] = {"request_id": requested.request_id, "call_id": requested.call_id}
        assert runtime.bus.publish(ToolCallPaused(**ids))
        await advance(HOUR)
        assert stages[-1] == "waiting"
        assert runtime.bus.publish(ToolCallResumed(**ids))
        await advance(4)
        assert runtime.bus.publish(ToolCallCompleted(**ids, name="sign", content="signed"))
        result = await session.result()
        assert runtime.bus.publish(ToolCallPaused(**ids)) is False
    assert (result.outcome, [call.content for call in result.tool_calls]) == ("completed", ["signed"])
    assert "waiting" not in stages[stages.index("waiting") + 1 :]


async def test_a_call_that_its_executor_has_resumed_times_out_when_what_was_left_is_over() -> None:
    requests: list[ToolCallRequested] = []
    letters: list[DeadLetter] = []
    async with Runtime(calling("sign", {}), tools=[sign], limits=LIMITS) as runtime:
        runtime.bus.connect(ToolCallRequested, requests.append)
        runtime.bus.connect(DeadLetter, letters.append)
        session = runtime.start("hi")
        await advance(15)
        ids: dict[str, Any] = {"request_id": requests[0].request_id, "call_id": requests[0].call_id}
        runtime.bus.publish(ToolCallPaused(**ids))
        await advance(HOUR)
        runtime.bus.publish(ToolCallResumed(**ids))
        (call,) = (await session.result()).tool_calls
        assert anyio.current_time() == pytest.approx(15 + HOUR + 5)
        runtime.bus.publish(ToolCallResumed(**ids))
    assert call.reason == "timeout"
    assert [each.event_type for each in letters] == ["tool_call_resumed"]


async def test_a_call_that_its_executor_forgets_to_resume_times_out_in_the_time_of_an_approval() -> None:
    requests: list[ToolCallRequested] = []
    async with Runtime(calling("sign", {}), tools=[sign], limits=LIMITS) as runtime:

        def pause(requested: ToolCallRequested) -> None:
            requests.append(requested)
            runtime.bus.publish(ToolCallPaused(request_id=requested.request_id, call_id=requested.call_id))

        runtime.bus.connect(ToolCallRequested, pause)
        result = await runtime.run("hi")
        assert anyio.current_time() == pytest.approx(2 * HOUR + 20)
    assert [call.reason for call in result.tool_calls] == ["timeout"]
    assert result.outcome == "completed"
