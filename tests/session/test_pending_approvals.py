"""The open questions of one request and of all: what a page reads that is loaded later than they were asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from toolbus import Limits, Runtime, ToolRegistry, sub_request_tool, tool
from toolbus.errors import BusError
from toolbus.events import ApprovalDecided, ApprovalRequested, DeadLetter
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, advance, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()


@tool(needs_approval=True)
async def remove(path: str) -> str:
    """Remove a file."""
    return f"{path} is gone"


def removing(*paths: str) -> ScriptedProvider:
    """A model that removes these files at once, and then answers."""
    wanted = [("remove", {"path": path}) for path in paths or ("a",)]
    return ScriptedProvider(lambda request: text("done") if request.round else calls(*wanted))


def paths(questions: Sequence[ApprovalRequested]) -> list[str]:
    return [each.arguments["path"] for each in questions]


async def test_a_page_answers_what_it_finds_and_what_is_answered_leaves_the_list_at_once() -> None:
    async with Runtime(removing("a", "b", "c"), tools=[remove], on_approval="wait") as runtime:
        session = runtime.start("Remove all.")
        assert session.pending_approvals == ()
        await advance(7)
        assert paths(session.pending_approvals) == ["a", "b", "c"]
        first, second, third = session.pending_approvals
        assert (first.request_id, first.name, first.arguments) == (session.request_id, "remove", {"path": "a"})
        assert runtime.bus.clock() - first.at == 7
        assert runtime.bus.publish(second.decided(approved=False, reason="it is mine"))
        assert session.pending_approvals == (first, third)
        await settle()
        assert session.pending_approvals == (first, third)
        assert not runtime.bus.publish(second.decided(approved=True))
        for question in session.pending_approvals:
            runtime.bus.publish(question.decided(approved=True))
        result = await session.result()
        assert session.pending_approvals == ()
    assert [call.ok for call in result.tool_calls] == [True, False, True]


async def test_the_session_takes_the_decision_that_comes_first_and_no_second_one() -> None:
    decided: list[ApprovalDecided] = []
    async with Runtime(removing("a", "b"), tools=[remove], on_approval="wait") as runtime:
        runtime.bus.connect(ApprovalDecided, decided.append)
        session = runtime.start("Remove both.")
        await settle()
        first, second = session.pending_approvals
        assert session.approve(first, arguments={"path": "c"}, by="Ada")
        assert not session.deny(first)
        assert session.deny(second, by="Ada", reason="it is mine")
        assert not session.approve(second)
        result = await session.result()
        assert not session.approve(first)
    one, other = result.tool_calls
    assert one.content == "c is gone"
    assert (other.reason, other.error) == ("denied", "Ada denied the call: it is mine")
    assert [(each.approved, each.remember) for each in decided] == [(True, False), (False, False)]


async def test_a_session_decides_for_its_sub_requests_and_for_no_other_request() -> None:
    desk = sub_request_tool("desk", "Does what it is told.", provider=removing("deep"), tools=[remove])
    top = ScriptedProvider(lambda request: text("done") if request.round else calls(("desk", {"task": "go"})))
    async with Runtime(top, tools=[desk, remove], on_approval="wait") as runtime:
        session, other = runtime.start("Remove it."), runtime.start("Remove it.", provider=removing("x"))
        await settle()
        (question,) = session.pending_approvals
        assert not other.approve(question)
        assert not other.deny(question)
        assert session.pending_approvals == (question,)
        assert session.approve(question)
        assert (await session.result()).ok
        other.cancel()


@pytest.mark.guarantee("G05")
async def test_a_decision_on_a_question_that_is_not_open_does_not_vanish() -> None:
    dead: list[DeadLetter] = []
    async with Runtime(removing("a", "b"), tools=[remove], on_approval="wait") as runtime:
        runtime.bus.connect(DeadLetter, dead.append)
        session = runtime.start("Remove both.")
        await settle()
        first, second = session.pending_approvals
        assert (session.approve(first, by="Ada"), session.deny(first, by="Bo")) == (True, False)
        assert not session.deliver(first.decided(approved=True, by="Cy"))  # as one from another process
        session.approve(second)
        await session.result()
    assert [(each.event_type, each.call_id) for each in dead] == [("approval_decided", first.call_id)] * 2


async def test_an_approval_does_not_cover_a_tool_that_has_changed_since_the_question() -> None:
    @tool(needs_approval=True, name="remove")
    async def removes_for_ever(path: str) -> str:
        """Remove a file for ever."""
        return f"{path} is gone for ever"

    registry = ToolRegistry([remove])
    async with Runtime(removing(), tools=registry, on_approval="wait") as runtime:
        session = runtime.start("Remove it.")
        await settle()
        (old,) = session.pending_approvals
        registry.replace(removes_for_ever)
        session.approve(old)
        await settle()
        (new,) = session.pending_approvals
        assert new.definition != old.definition
        session.approve(old)
        await settle()
        (new,) = session.pending_approvals
        assert session.approve(new)
        assert (await session.result()).tool_calls[0].content == "a is gone for ever"


async def test_the_questions_of_all_requests_come_in_the_order_of_asking() -> None:
    async with Runtime(removing("a"), tools=[remove], on_approval="wait") as runtime:
        one = runtime.start("Remove it.", provider=removing("x"))
        await advance(1)
        other = runtime.start("Remove it.", provider=removing("y"))
        await advance(1)
        assert paths(runtime.pending_approvals()) == ["x", "y"]
        assert (paths(one.pending_approvals), paths(other.pending_approvals)) == (["x"], ["y"])
        one.cancel()
        await settle()
        assert paths(runtime.pending_approvals()) == ["y"]
    assert runtime.pending_approvals() == ()


async def test_a_request_waits_for_the_questions_of_its_sub_requests() -> None:
    desk = sub_request_tool("desk", "Does what it is told.", provider=removing("deep"), tools=[remove])
    office = ScriptedProvider(lambda request: text("done") if request.round else calls(("desk", {"task": "go"})))
    building = sub_request_tool("office", "Has a desk.", provider=office, tools=[desk])
    top = ScriptedProvider(lambda request: text("done") if request.round else calls(("office", {"task": "go"})))
    async with Runtime(top, tools=[building, remove], on_approval="wait") as runtime:
        session, other = runtime.start("Remove it."), runtime.start("Remove it.", provider=removing("x"))
        await settle()
        (question,) = session.pending_approvals
        assert question.arguments == {"path": "deep"}
        assert question.request_id != session.request_id
        assert paths(other.pending_approvals) == ["x"]
        runtime.bus.publish(question.decided(approved=True))
        assert (await session.result()).ok


async def test_a_question_that_has_expired_is_not_open() -> None:
    limits = Limits(approval_timeout_seconds=5)
    async with Runtime(removing(), tools=[remove], on_approval="wait", limits=limits) as runtime:
        session = runtime.start("Remove a.")
        await advance(4)
        assert len(session.pending_approvals) == 1
        await advance(2)
        assert session.pending_approvals == ()


async def test_a_question_that_is_asked_again_is_the_newest_one() -> None:
    @tool(needs_approval=True, name="remove")
    async def removes_for_ever(path: str) -> str:
        """Remove a file for ever."""
        return f"{path} is gone for ever"

    registry = ToolRegistry([remove])
    async with Runtime(removing("a", "b"), tools=registry, on_approval="wait") as runtime:
        session = runtime.start("Remove both.")
        await settle()
        registry.replace(removes_for_ever)
        runtime.bus.publish(session.pending_approvals[0].decided(approved=True))
        await settle()
        assert paths(session.pending_approvals) == ["b", "a"]


@pytest.mark.guarantee("G26")
async def test_a_question_is_open_again_where_its_request_is_resumed() -> None:
    store = MemoryStore(journal=True)
    async with Runtime(removing(), tools=[remove], store=store) as runtime:
        session = runtime.start("Remove a.")
        await settle()
        before = runtime.pending_approvals()
        session.release("the host goes down")
        await session.result()
        assert runtime.pending_approvals() == ()
    async with Runtime(removing(), tools=[remove], store=store) as runtime:
        (resumed,) = (await runtime.resume()).sessions
        await settle()
        assert resumed.pending_approvals == before
        runtime.bus.publish(before[0].decided(approved=True))
        assert (await resumed.result()).ok


async def test_an_open_question_shows_no_secret() -> None:
    async with Runtime(
        removing("hunter2-token"), tools=[remove], on_approval="wait", secrets=["hunter2-token"]
    ) as runtime:
        session = runtime.start("Remove it.")
        await settle()
        (question,) = session.pending_approvals
        assert "hunter2" not in str(question)


async def test_the_id_of_a_call_is_no_question() -> None:
    async with Runtime(removing("a"), tools=[remove], on_approval="wait", store=MemoryStore(journal=True)) as runtime:
        session = runtime.start("Remove it.")
        await settle()
        [question] = session.pending_approvals
        wrong: Any = question.call_id
        handle = runtime.request(session.request_id)
        for decide in (session.approve, session.deny):
            with pytest.raises(BusError, match="is not a question; pass one of pending_approvals"):
                decide(wrong)
        for answer in (handle.approve, handle.deny):
            with pytest.raises(BusError, match="is not a question; pass one of pending_approvals"):
                await answer(wrong)
        assert session.deny(question)
