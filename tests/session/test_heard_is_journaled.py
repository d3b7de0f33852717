"""G31: every fact of a journaled request that a listener hears is in its journal, inputs of others included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from support.slow_journal import SlowJournal, waiting_tool
from toolbus import EventBus, RequestSession, ToolContext, ToolRegistry, tool
from toolbus.dispatcher import ToolDispatcher
from toolbus.errors import LeaseLost, StoreUnavailable
from toolbus.events import (
    ApprovalRequested,
    CancelRequested,
    DeadLetter,
    Event,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallPaused,
    ToolCallRequested,
    ToolCallResumed,
)
from toolbus.testing import ScriptedProvider, calls, text, virtual_backends

anyio_backend = virtual_backends()
pytestmark = pytest.mark.guarantee("G31")


class Stage:
    """A request whose one call others answer, with a journal that needs a second for facts of `slow`."""

    def __init__(self, slow: str, failure: Exception | None = None, **options: Any) -> None:
        self.bus = EventBus()
        self.heard: list[Event] = []
        self.bus.connect(Event, self.heard.append)
        self.journal = SlowJournal(slow, 1, failure)
        self.session = RequestSession(
            self.bus,
            ScriptedProvider([calls(("wait", {})), text("Done.")]),
            "hi",
            tools=[waiting_tool(**options)],
            journal=self.journal,
        )

    def the(self, kind: type[Any]) -> Any:
        (event,) = [event for event in self.heard if isinstance(event, kind)]
        return event

    def kinds(self, *wanted: type[Event]) -> list[str]:
        return [event.type for event in self.heard if isinstance(event, wanted)]


async def test_a_pause_that_ends_with_its_call_during_a_write_is_in_the_journal() -> None:
    stage = Stage("tool_call_paused")
    async with anyio.create_task_group() as group:
        group.start_soon(stage.session.run)
        await anyio.sleep(1)
        requested = stage.the(ToolCallRequested)
        ids = {"request_id": requested.request_id, "call_id": requested.call_id}
        stage.bus.publish(ToolCallPaused(**ids))
        await anyio.sleep(0.5)
        for each in (ToolCallResumed(**ids), requested.completed("42")):
            assert stage.bus.publish(each)
    wanted = ["tool_call_paused", "tool_call_resumed", "tool_call_completed"]
    assert [each for each in stage.journal.written if each in wanted] == wanted
    assert stage.kinds(ToolCallPaused, ToolCallResumed, ToolCallCompleted, DeadLetter) == wanted


async def test_a_sub_request_that_ends_with_its_answered_call_does_not_resume_it() -> None:
    """The request above writes something else meanwhile, and does not know yet that its call is over."""
    bus, heard = EventBus(), list[Event]()
    bus.connect(Event, heard.append)

    @tool
    async def desk(context: ToolContext[Any]) -> str:
        """Ask a person."""
        below = ScriptedProvider([calls(("wait", {}))])
        return (await context.ask("?", provider=below, tools=[waiting_tool(needs_approval=True)])).text

    above = ScriptedProvider([calls(("desk", {})), text("Done.")])
    journal = SlowJournal("steering_added", 1)
    async with ToolDispatcher(bus, ToolRegistry([desk])), anyio.create_task_group() as group:
        session = RequestSession(bus, above, "hi", tools=[desk], journal=journal, on_approval="wait")
        group.start_soon(session.run)
        await anyio.sleep(1)
        assert session.steer("hurry")
        await anyio.sleep(0.5)
        (requested,) = [each for each in heard if isinstance(each, ToolCallRequested)]
        assert bus.publish(requested.completed("42"))
        assert (await session.result()).tool_calls[0].content == "42"
    assert [each.type for each in heard if isinstance(each, (ToolCallPaused, ToolCallResumed, DeadLetter))] == [
        "tool_call_paused"
    ]


@pytest.mark.parametrize("how", ["a result", "a failure", "a cancel"])
async def test_what_others_publish_is_heard_after_the_journal_has_it_and_in_its_order(how: str) -> None:
    kind = {"a result": ToolCallCompleted, "a failure": ToolCallFailed, "a cancel": CancelRequested}[how]
    stage = Stage({"a result": "tool_call_completed", "a failure": "tool_call_failed"}.get(how, "cancel_requested"))
    async with anyio.create_task_group() as group:
        group.start_soon(stage.session.run)
        await anyio.sleep(1)
        requested = stage.the(ToolCallRequested)
        said = {
            "a result": requested.completed("42"),
            "a failure": requested.failed("gone"),
            "a cancel": CancelRequested(request_id=stage.session.request_id, reason="enough"),
        }[how]
        assert stage.bus.publish(said) is True
        assert stage.bus.arbitration.is_open(requested.request_id, requested.call_id) is (
            how == "a cancel"
        )  # arbitrated at once
        await anyio.sleep(0.9)
        assert stage.kinds(kind) == []
        await anyio.sleep(0.2)
        assert stage.kinds(kind) == [said.type]
    facts = [event for event in stage.heard if event.is_fact and not event.is_derived]
    assert [fact.event_id for fact in facts] == [fact.event_id for fact in stage.journal.facts]


async def test_a_decision_and_steering_are_heard_as_they_are_journaled() -> None:
    stage = Stage("approval_decided", needs_approval=True)
    async with anyio.create_task_group() as group:
        group.start_soon(stage.session.run)
        await anyio.sleep(1)
        decided = stage.the(ApprovalRequested).decided(approved=True)
        assert stage.bus.publish(decided)
        assert stage.bus.publish(decided) is False  # the first one counts, though it is not written yet
        assert stage.session.steer("hurry")
        assert await stage.session.recorded(decided) is True
        assert "approval_decided" in stage.journal.written
        requested = stage.the(ToolCallRequested)
        assert stage.bus.publish(requested.completed("42"))
    assert [fact.type for fact in stage.heard if fact.is_fact and not fact.is_derived] == stage.journal.written
    assert stage.kinds(SteeringAdded) == ["steering_added"]


async def test_a_late_result_is_heard_after_the_result_that_counted() -> None:
    stage = Stage("tool_call_completed")
    async with anyio.create_task_group() as group:
        group.start_soon(stage.session.run)
        await anyio.sleep(1)
        requested = stage.the(ToolCallRequested)
        assert stage.bus.publish(requested.completed("first"))
        await anyio.sleep(0.5)  # it is being written
        assert stage.bus.publish(requested.completed("second")) is False
        assert stage.bus.publish(requested.failed("third")) is False
    assert stage.kinds(ToolCallCompleted, ToolCallLate) == ["tool_call_completed", "tool_call_late", "tool_call_late"]
    assert [event.event_type for event in stage.heard if isinstance(event, ToolCallLate)] == [
        "tool_call_completed",
        "tool_call_failed",
    ]
    assert (await stage.session.result()).tool_calls[0].content == "first"


async def test_an_input_that_the_request_has_no_use_for_becomes_a_dead_letter() -> None:
    stage = Stage("nothing")
    async with anyio.create_task_group() as group:
        group.start_soon(stage.session.run)
        await anyio.sleep(1)
        requested = stage.the(ToolCallRequested)
        ids = {"request_id": requested.request_id, "call_id": requested.call_id}
        pauses = [ToolCallPaused(**ids) for _ in range(2)]
        assert [stage.bus.publish(each) for each in pauses] == [True, True]
        assert [await stage.session.recorded(each) for each in pauses] == [True, False]
        assert stage.the(DeadLetter).rejected_event_id == pauses[1].event_id
        stage.bus.publish(requested.completed("42"))
    assert stage.kinds(ToolCallPaused) == ["tool_call_paused"]


async def test_what_is_said_while_the_ending_is_written_becomes_a_dead_letter() -> None:
    stage = Stage("request_completed")
    said = SteeringAdded(request_id=stage.session.request_id, text="one more thing")
    recorded: list[bool] = []
    async with anyio.create_task_group() as group:
        group.start_soon(stage.session.run)
        await anyio.sleep(1)
        stage.bus.publish(stage.the(ToolCallRequested).completed("42"))
        await anyio.sleep(0.5)
        assert stage.bus.publish(said)
        recorded.append(await stage.session.recorded(said))
    assert recorded == [False]
    assert stage.the(DeadLetter).rejected_event_id == said.event_id
    assert stage.kinds(SteeringAdded) == []


async def test_a_result_that_comes_while_a_request_is_left_is_written_and_heard() -> None:
    stage = Stage("tool_call_completed")
    async with anyio.create_task_group() as group:
        group.start_soon(stage.session.run)
        await anyio.sleep(1)
        assert stage.session.release("closing")
        assert stage.bus.publish(stage.the(ToolCallRequested).completed("42"))
    assert stage.kinds(ToolCallCompleted) == ["tool_call_completed"]
    assert "tool_call_completed" in stage.journal.written
    assert (await stage.session.result()).resumable


@pytest.mark.parametrize("failure", [LeaseLost("r", 1), StoreUnavailable("away")], ids=["lease lost", "store away"])
async def test_nobody_hears_a_result_that_could_not_be_written(failure: Exception) -> None:
    stage = Stage("tool_call_completed", failure)
    async with anyio.create_task_group() as group:
        group.start_soon(stage.session.run)
        await anyio.sleep(1)
        said = stage.the(ToolCallRequested).completed("42")
        stage.bus.publish(said)
        with pytest.raises(type(failure)):
            await stage.session.recorded(said)
    written = {fact.event_id for fact in stage.journal.facts}
    unwritten = [
        event.type for event in stage.heard if event.is_fact and not event.is_derived and event.event_id not in written
    ]
    assert unwritten == ([] if isinstance(failure, LeaseLost) else ["request_failed"])


async def test_a_late_result_of_a_request_that_ends_here_unwritten_is_heard_all_the_same() -> None:
    stage = Stage("tool_call_completed", StoreUnavailable("away"))
    async with anyio.create_task_group() as group:
        group.start_soon(stage.session.run)
        await anyio.sleep(1)
        requested = stage.the(ToolCallRequested)
        stage.bus.publish(requested.completed("first"))
        await anyio.sleep(0.5)
        stage.bus.publish(requested.completed("second"))
    assert stage.kinds(ToolCallLate) == ["tool_call_late"]


async def test_without_a_journal_what_others_publish_is_heard_at_once_and_recorded_does_not_wait() -> None:
    bus, heard = EventBus(), list[Event]()
    bus.connect(Event, heard.append)
    session = RequestSession(bus, ScriptedProvider([calls(("wait", {})), text("Done.")]), "hi", tools=[waiting_tool()])
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.sleep(1)
        (requested,) = [event for event in heard if isinstance(event, ToolCallRequested)]
        said = requested.completed("42")
        assert bus.publish(said)
        assert heard[-1] is said
        assert await session.recorded(said) is True


class Listing:
    """A journal whose writes take `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.facts: list[Event] = []
        self.seconds = seconds

    async def append(self, request_id: str, seq: int, facts: Sequence[Event]) -> None:
        await anyio.sleep(self.seconds)
        self.facts += facts


async def test_a_reader_who_comes_while_a_step_is_written_hears_each_fact_once() -> None:
    journal = Listing(1)
    session = RequestSession(EventBus(), ScriptedProvider([text("Done.")]), "hi", journal=journal)
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.sleep(1.5)  # the first step is written, and the second is being written
        events = session.events()
        reported = [event.event_id async for event in events if event.is_fact and not event.is_derived]
    assert reported == [fact.event_id for fact in journal.facts]


@pytest.mark.guarantee("G26")
async def test_nobody_else_publishes_the_facts_of_a_request_that_runs() -> None:
    stage = Stage("nothing", needs_approval=True)
    async with anyio.create_task_group() as group:
        group.start_soon(stage.session.run)
        await anyio.sleep(1)
        asked = stage.the(ApprovalRequested)
        forged = ToolCallRequested(
            request_id=asked.request_id,
            call_id=asked.call_id,
            name=asked.name,
            arguments={},
            round=0,
            timeout_seconds=60.0,
            idempotency_key="forged",
        )
        assert stage.bus.publish(forged) is False
        assert stage.kinds(ToolCallRequested) == []
        assert stage.the(DeadLetter).event_type == "tool_call_requested"
        stage.session.cancel()


async def test_whoever_waits_for_the_record_of_an_event_is_not_answered_when_an_earlier_step_is_written() -> None:
    bus, journal = EventBus(), Listing(1)
    model = ScriptedProvider([calls(("wait", {})), text("Done.")])
    session = RequestSession(bus, model, "hi", tools=[waiting_tool()], journal=journal)
    requests: list[ToolCallRequested] = []
    bus.connect(ToolCallRequested, requests.append)
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.sleep(2.5)
        bus.publish(requests[0].completed("42"))
        await anyio.sleep(0.5)  # That is being written.
        said = SteeringAdded(request_id=session.request_id, text="and hurry")
        assert bus.publish(said)
        assert await session.recorded(said) is True
        assert said.event_id in {fact.event_id for fact in journal.facts}
