"""Draining: no new requests, a grace for those that run, and nothing lost of what is done."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from endings.ended_well import listen
from toolbus import Runtime, Tool, tool
from toolbus.core.transcript import validate
from toolbus.errors import NotRunning
from toolbus.events import ApprovalDecided, ApprovalRequested, RequestCancelled, ToolCallCompleted
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, advance, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()


@tool
async def quick() -> str:
    """Answer at once."""
    return "done"


@tool(timeout_seconds=100)
async def slow(seconds: float) -> str:
    """Answer after a while."""
    await anyio.sleep(seconds)
    return f"{seconds:g} s"


def working(seconds: float) -> ScriptedProvider:
    return ScriptedProvider([calls(("quick", {}), ("slow", {"seconds": seconds})), text("All done.")])


@pytest.mark.guarantee("G18")
async def test_while_it_drains_no_request_begins_and_those_that_run_have_their_grace() -> None:
    async with (
        Runtime(tools=[quick, slow], provider=ScriptedProvider([])) as runtime,
        anyio.create_task_group() as group,
    ):
        session = runtime.start("go", provider=working(5))
        await settle()
        group.start_soon(lambda: runtime.drain(timeout_seconds=10))
        await settle()
        with pytest.raises(NotRunning, match="is closing"):
            runtime.start("too late")
        await advance(5)
        assert (await session.result()).text == "All done."


@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("begun", [False, True])
async def test_without_a_journal_a_request_that_is_left_is_cancelled(*, begun: bool) -> None:
    async with Runtime(tools=[quick, slow], provider=ScriptedProvider([])) as runtime:
        heard = listen(runtime.bus)
        session = runtime.start("go", provider=working(5))
        if begun:
            await settle()
        assert session.release("moving")
        result = await session.result()
    assert (result.outcome, result.reason, result.resumable) == ("cancelled", "moving", False)
    assert isinstance(heard[-1], RequestCancelled)


@pytest.mark.guarantee("G18")
async def test_requests_that_take_longer_than_the_grace_to_leave_are_counted_once() -> None:
    store = MemoryStore(journal=True)
    journal: Any = store.journal
    append = journal.append

    async def append_late(entry: Any) -> Any:
        await anyio.sleep(1)
        return await append(entry)

    asking: Tool = Tool("ask", handler=quick.handler, needs_approval=True)
    model = ScriptedProvider(lambda _request: calls(("ask", {})))
    async with Runtime(model, tools=[asking], store=store, on_approval="wait") as runtime:
        sessions = [runtime.start("go") for _ in range(2)]
        await settle()
        journal.append = append_late
        for each in sessions:
            each.steer("Quickly!")
        assert await runtime.drain(timeout_seconds=0) == 2


@pytest.mark.guarantee("G18")
async def test_what_does_not_end_in_its_grace_keeps_what_is_done_and_its_conversation() -> None:
    store = MemoryStore()
    completed: list[ToolCallCompleted] = []
    async with Runtime(ScriptedProvider([]), tools=[quick, slow], store=store) as runtime:
        runtime.bus.connect(ToolCallCompleted, completed.append)
        running = runtime.start("go", provider=working(50), conversation_id="c")
        waiting = runtime.start("and then?", provider=working(1), conversation_id="c")
        await settle()
        assert await runtime.drain(timeout_seconds=10) == 2
        assert running.ended
        assert waiting.ended
        first, second = await running.result(), await waiting.result()
        remembered = await store.history("c")
    assert [(each.outcome, each.reason) for each in (first, second)] == [("cancelled", "the runtime is closing")] * 2
    assert [(call.name, call.ok) for call in first.tool_calls] == [("quick", True), ("slow", False)]
    assert [event.name for event in completed] == ["quick"]
    # The second turn has never begun, so it leaves nothing.
    assert [*remembered] == first.messages
    assert [message.role for message in remembered] == ["user", "assistant", "tool", "tool"]
    validate(remembered)


@pytest.mark.guarantee("G18")
async def test_leaving_the_block_drains_and_a_grace_of_zero_waits_for_nothing() -> None:
    async with Runtime(ScriptedProvider([]), tools=[quick, slow], drain_seconds=0) as runtime:
        session = runtime.start("go", provider=working(50))
        await settle()
    assert (await session.result()).outcome == "cancelled"
    with pytest.raises(NotRunning, match="is not running"):
        runtime.start("after")


@tool(needs_approval=True)
async def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


def asking(*more: tuple[str, dict[str, float]]) -> ScriptedProvider:
    return ScriptedProvider([calls(("pay", {"euros": 5}), *more), text("All done.")])


@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_a_request_that_only_waits_for_a_person_is_left_at_once(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "toolbus.runtime")
    more: list[tuple[str, dict[str, float]]] = [("slow", {"seconds": 3})] if when == "meanwhile" else []
    async with Runtime(asking(*more), tools=[pay, slow], store=MemoryStore(journal=True), drain_seconds=60) as runtime:
        runtime.bus.connect(ApprovalRequested, lambda _: None)
        session, began = runtime.start("Pay."), anyio.current_time()
        await settle()
        async with anyio.create_task_group() as group:
            group.start_soon(runtime.drain)
            await settle()
            if when == "meanwhile":
                assert not session.ended
                await advance(3)
        assert (session.ended, anyio.current_time() - began) == (True, 3 if more else 0)
    result = await session.result()
    assert (result.outcome, result.resumable) == ("cancelled", True)
    assert [each.getMessage() for each in caplog.records if each.name == "toolbus.runtime"] == [
        "1 request was left for resume"
    ]


@pytest.mark.guarantee("G18")
@pytest.mark.parametrize(("journal", "seconds"), [(False, 50), (True, 0)])
async def test_what_is_not_left_for_resume_is_not_reported_as_left(
    journal: bool, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "toolbus.runtime")
    store = MemoryStore(journal=journal)
    async with Runtime(working(seconds), tools=[quick, slow], store=store, drain_seconds=10) as runtime:
        session = runtime.start("go")
        await settle()
    assert (await session.result()).outcome == ("completed" if journal else "cancelled")
    assert [each.getMessage() for each in caplog.records if each.name == "toolbus.runtime"] == []


@pytest.mark.guarantee("G18")
async def test_without_a_journal_a_person_has_the_whole_grace() -> None:
    async with Runtime(asking(), tools=[pay], drain_seconds=60) as runtime:
        runtime.bus.connect(ApprovalRequested, lambda _: None)
        session = runtime.start("Pay.")
        await settle()
        async with anyio.create_task_group() as group:
            group.start_soon(runtime.drain)
            await advance(30)
            (asked,) = session.snapshot().view.state.open_calls
            runtime.bus.publish(ApprovalDecided(request_id=session.request_id, call_id=asked, approved=True))
        assert (await session.result()).text == "All done."
