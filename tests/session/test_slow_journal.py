"""What happens while a journal writes, or fails to: found by the seeded simulation, and held here by hand."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import anyio.lowlevel
import pytest

from support.slow_journal import SlowJournal, waiting_tool
from toolbus import Budget, Compression, EventBus, Limits, RequestSession
from toolbus.events import (
    ApprovalRequested,
    DeadLetter,
    Event,
    MessageAppended,
    RequestCancelled,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import AssistantMessage, Message, Usage, UserMessage
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.testing import ScriptedProvider, calls, hang, settle, text, virtual_backends

anyio_backend = virtual_backends()


class SlowModel:
    """Answers after a second."""

    vendor = "slow"

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        await anyio.sleep(1)
        return await ScriptedProvider([text("an answer")]).respond(request, emit)


@pytest.mark.guarantee("G16")
@pytest.mark.parametrize("limits", [Limits(), Limits(model_timeout_seconds=1, max_model_attempts=1)])
async def test_a_cancel_counts_that_comes_while_what_was_said_before_is_written(limits: Limits) -> None:
    bus = EventBus()
    model = SlowModel() if limits == Limits() else ScriptedProvider([hang()])
    session = RequestSession(bus, model, "hi", journal=SlowJournal("steering_added", 0.5), limits=limits)
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.sleep(0.9)
        assert session.steer("hurry")  # written at 1 s, when the model has answered or not, until 1.5 s
        await anyio.sleep(0.3)
        assert session.cancel("never mind")
        result = await session.result()
    assert (result.outcome, result.reason) == ("cancelled", "never mind")


class Silent(SlowJournal):
    """A journal that never answers the first write of a fact of `kind`, and takes it when it is repeated."""

    is_repeated = False

    async def append(self, request_id: str, seq: int, facts: Sequence[Event]) -> None:
        assert seq == len(self.facts)
        if not self.is_repeated and any(fact.type == self.kind for fact in facts):
            self.is_repeated = True
            await anyio.sleep_forever()
        self.facts += facts


@pytest.mark.guarantee("G11", "G31")
@pytest.mark.parametrize(
    "kind", ["request_started", "history_compressed", "tool_call_requested", "tool_call_completed", "request_completed"]
)
async def test_a_write_that_had_no_answer_is_repeated_before_anything_else_begins(kind: str) -> None:
    journal, bus = Silent(kind), EventBus()
    before: list[str] = []

    class Model:
        vendor = "slow"

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            before.append(journal.written[-1])
            await anyio.sleep(20)
            reply = text("an answer") if request.round else calls(("wait", {}))
            return await ScriptedProvider([reply]).respond(request, emit)

    def answer(event: ToolCallRequested) -> None:
        before.append(journal.written[-1])
        bus.publish(event.completed("done"))

    bus.connect(ToolCallRequested, answer)
    history: list[Message] = []
    for number in range(20):
        history += [UserMessage(content=f"question {number} " * 30), AssistantMessage(text="answer " * 60)]
    messages, compression = [*history, UserMessage(content="hi")], Compression(max_context_tokens=1_000)
    session = RequestSession(bus, Model(), messages, tools=[waiting_tool()], journal=journal, compression=compression)
    result = await session.run()
    assert result.ok
    assert before == ["history_compressed", "tool_call_requested", "round_started"]
    assert anyio.current_time() == pytest.approx(44.5, abs=0.1)


class Late(SlowJournal):
    """A journal whose first write of a fact of `kind` cannot be cut short, and ends after its time."""

    is_late = False

    async def append(self, request_id: str, seq: int, facts: Sequence[Event]) -> None:
        if not self.is_late and any(fact.type == self.kind for fact in facts):
            self.is_late = True
            with anyio.CancelScope(shield=True):
                await anyio.sleep(4.7)
        await anyio.lowlevel.checkpoint()
        self.facts += facts


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("journal", [Silent, Late])
async def test_a_reply_is_not_asked_for_again_if_a_write_that_it_waits_for_had_no_answer(
    journal: type[SlowJournal],
) -> None:
    asked: list[int] = []

    class Model:
        vendor = "slow"

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            asked.append(request.round)
            await anyio.sleep(1)
            return await ScriptedProvider([text("an answer")]).respond(request, emit)

    session = RequestSession(EventBus(), Model(), "hi", journal=journal("steering_added"))
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.sleep(0.9)
        assert session.steer("hurry")  # written at 1 s, and by a journal that is silent once more at 5.5 s
        await anyio.sleep(0.9)
        assert session.steer("please")
        result = await session.result()
    assert result.ok
    assert asked == [0, 1], "the second time for what was said"


@pytest.mark.guarantee("G16")
@pytest.mark.parametrize("journal", [Silent, Late])
async def test_no_call_begins_after_a_cancel_that_came_during_a_write_without_an_answer(
    journal: type[SlowJournal],
) -> None:
    class Model:
        vendor = "slow"

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            await anyio.sleep(1)
            return await ScriptedProvider([calls(("wait", {}))]).respond(request, emit)

    bus, requested = EventBus(), list[Event]()
    bus.connect(ToolCallRequested, requested.append)
    session = RequestSession(bus, Model(), "hi", tools=[waiting_tool()], journal=journal("steering_added"))
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.sleep(0.9)
        assert session.steer("hurry")
        await anyio.sleep(0.9)
        assert session.cancel()
        result = await session.result()
    assert (result.outcome, result.rounds, requested) == ("cancelled", 1, [])


async def test_a_reply_is_counted_although_its_request_is_given_up_while_an_input_before_it_is_written() -> None:
    used = Usage(input_tokens=9, output_tokens=2)

    class Model:
        vendor = "slow"

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            await anyio.sleep(1)
            return await ScriptedProvider([text("an answer", usage=used)]).respond(request, emit)

    budget = Budget(max_tokens=1_000)
    session = RequestSession(EventBus(), Model(), "hi", journal=Silent("steering_added"), budget=budget)
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.sleep(0.9)
        assert session.steer("hurry")  # written at 1 s, and once more at 5.5 s
        await anyio.sleep(1)
        group.cancel_scope.cancel()
    result = await session.result()
    assert (result.outcome, result.usage, budget.tokens) == ("cancelled", used, 11)
    assert result.text == "an answer"


@pytest.mark.guarantee("G31")
async def test_nobody_hears_how_a_call_ended_that_the_journal_did_not_take() -> None:
    bus = EventBus()
    reported: list[Event] = []
    bus.connect((ToolCallRequested, ToolCallFailed), reported.append)
    journal = SlowJournal("cancel_requested", 1, OSError("disk full"))
    session = RequestSession(
        bus, ScriptedProvider([calls(("wait", {}))]), "hi", tools=[waiting_tool()], journal=journal
    )
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.sleep(1)
        session.cancel()
        result = await session.result()
    assert result.outcome == "failed"
    assert [event.type for event in reported] == ["tool_call_requested"]
    assert [call.reason for call in result.tool_calls] == ["cancelled"]
    assert bus.statistics().open_calls == 0


@pytest.mark.guarantee("G11")
async def test_no_call_that_is_not_written_begins_when_the_host_gives_a_request_up() -> None:
    bus = EventBus()
    reported: list[Event] = []
    asked: list[ApprovalRequested] = []
    letters: list[DeadLetter] = []
    bus.connect(DeadLetter, letters.append)
    bus.connect(ToolCallRequested, reported.append)
    bus.connect(ApprovalRequested, asked.append)
    journal = SlowJournal("nothing", 0)
    tools = [waiting_tool(needs_approval=True)]
    session = RequestSession(bus, ScriptedProvider([calls(("wait", {}))]), "hi", tools=tools, journal=journal)
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.sleep(1)
        group.cancel_scope.cancel()
        bus.publish(asked[0].decided(approved=True))
    result = await session.result()
    assert result.outcome == "cancelled"
    assert [letter.event_type for letter in letters] == ["approval_decided"]
    assert [event.type for event in reported] == [each for each in journal.written if each == "tool_call_requested"]
    assert [call.reason for call in result.tool_calls] == ["cancelled"]


@pytest.mark.guarantee("G06")
async def test_a_journal_that_fails_is_the_reason_also_where_a_result_had_ended_the_request() -> None:
    bus = EventBus()
    bus.connect(ToolCallRequested, lambda event: bus.publish(event.failed("no")))
    journal = SlowJournal("request_completed", 0, OSError("disk full"))
    model, limits = ScriptedProvider([calls(("wait", {}))]), Limits(on_failure="fail_fast")
    session = RequestSession(bus, model, "hi", tools=[waiting_tool()], journal=journal, limits=limits)
    result = await session.run()
    assert (result.outcome, str(result.error)) == ("failed", "OSError: disk full")
    assert bus.statistics().open_calls == 0


@pytest.mark.guarantee("G18")
async def test_a_request_that_ends_before_it_can_be_left_is_not_to_be_resumed() -> None:
    bus = EventBus()
    heard: list[Event] = []
    bus.connect(RequestCancelled, heard.append)
    written = anyio.Event()

    class Gate(SlowJournal):
        async def append(self, request_id: str, seq: int, facts: Sequence[Event]) -> None:
            if any(isinstance(fact, ApprovalRequested) for fact in facts):
                await written.wait()
            else:
                await anyio.lowlevel.checkpoint()  # The write of the ending is cut short, and repeated.
            await super().append(request_id, seq, facts)

    session = RequestSession(
        bus, ScriptedProvider([calls(("wait", {}))]), "hi", tools=[waiting_tool(needs_approval=True)], journal=Gate()
    )
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await settle()
        written.set()  # The session runs on in this moment, until its next write.
        session.cancel("never mind")
        assert session.release("closing")
        result = await session.result()
    assert [event.type for event in heard] == ["request_cancelled"]
    assert (result.outcome, result.reason, result.resumable) == ("cancelled", "never mind", False)
    assert not session.snapshot().view.is_released


@pytest.mark.guarantee("G31")
@pytest.mark.parametrize("how", ["cancelled", "left"])
async def test_whoever_follows_the_messages_hears_those_of_calls_that_may_not_begin_any_more(how: str) -> None:
    bus = EventBus()
    requested: list[Event] = []
    messages: list[Message] = []
    bus.connect(ToolCallRequested, requested.append)
    bus.connect(MessageAppended, lambda event: messages.append(event.message))
    journal = SlowJournal("tool_call_requested", 1)
    model = ScriptedProvider([calls(("nowhere", {}), ("wait", {}))])
    session = RequestSession(bus, model, "hi", tools=[waiting_tool(background=True)], journal=journal)
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.sleep(0.5)
        if how == "left":
            assert session.release("closing")
        else:
            group.cancel_scope.cancel()
    result = await session.result()
    assert "tool_call_requested" in journal.written
    assert requested == []
    assert [message.role for message in messages[:4]] == ["user", "assistant", "tool", "tool"]
    assert messages == result.messages
