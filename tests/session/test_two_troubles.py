"""What is left of a request when two things go wrong at once: one ending that is told, and nothing kept alive."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from pydantic import BaseModel, field_validator

from support.slow_journal import SlowJournal, waiting_tool
from toolbus import EventBus, Interceptor, Limits, RequestSession, Tool, ToolContext, ToolDispatcher, tool
from toolbus.errors import LeaseLost, StoreError, StoreUnavailable
from toolbus.events import (
    ApprovalRequested,
    DeadLetter,
    Event,
    ModelResponded,
    RequestCancelled,
    RequestFailed,
    RequestStarted,
    StatusChanged,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallPaused,
    ToolCallRequested,
    ToolCallResumed,
)
from toolbus.messages import ToolMessage, Usage, UserMessage
from toolbus.session import Earlier, Resumed, SessionStart
from toolbus.testing import ScriptedProvider, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()

USED = Usage(output_tokens=7)


class Journal(SlowJournal):
    """That of requests and of those that their tools make."""

    with_sub_requests = True


def waiting(bus: EventBus, journal: Journal | None = None, **options: Any) -> RequestSession:
    """A request whose only call waits for somebody."""
    model = ScriptedProvider([calls(("wait", {}), usage=USED), text("Done.", usage=USED)])
    return RequestSession(bus, model, "hi", tools=[waiting_tool(**options)], journal=journal)


def asking(*tools: Any) -> Tool:
    """A tool that hands its task over, and goes on for ever when that has failed."""

    @tool
    async def desk(context: ToolContext[Any]) -> str:
        """Hand a task over."""
        model = ScriptedProvider([calls(("wait", {}), usage=USED), text("Found.")])
        await context.ask("Wait.", provider=model, tools=tools)
        await anyio.sleep_forever()
        return ""

    return desk


# ------------------------------------------------------------------------------------- cancelled twice by asyncio


@pytest.mark.guarantee("G10", "G31")
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_the_ending_alone_is_reported_when_asyncio_cancels_once_more_while_it_is_written() -> None:
    bus = EventBus()
    session = waiting(bus, Journal("cancel_requested", 2))
    events = session.events()
    task = asyncio.create_task(session.run())
    for _ in range(2):
        await anyio.sleep(1)
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    with anyio.fail_after(30):
        reported = [event.type async for event in events if event.is_fact]
    assert task.cancelled()
    assert reported[-2:] == ["tool_call_requested", "request_cancelled"]
    assert (await session.result()).outcome == "cancelled"


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_request_that_is_left_has_a_result_though_asyncio_cancels_while_its_last_facts_are_written() -> None:
    bus = EventBus()
    requested: list[ToolCallRequested] = []
    bus.connect(ToolCallRequested, requested.append)
    session = waiting(bus, Journal("tool_call_completed", 2))
    task = asyncio.create_task(session.run(release_when_cancelled="for later"))
    await anyio.sleep(1)
    task.cancel()
    bus.publish(requested[0].completed("done"))  # what has come is kept, and written
    await anyio.sleep(1)
    task.cancel()
    await asyncio.wait([task])
    with anyio.fail_after(30):
        result = await session.result()
    assert (result.outcome, result.resumable, result.reason) == ("cancelled", True, "for later")


@pytest.mark.guarantee("G11", "G20")
@pytest.mark.parametrize("failure", [LeaseLost("r", 1), StoreUnavailable("away")], ids=["lost", "away"])
async def test_a_request_that_is_left_asks_a_journal_that_has_refused_something_for_nothing_more(
    failure: StoreError, caplog: pytest.LogCaptureFixture
) -> None:
    class Counting(Journal):
        asked = 0

        async def append(self, request_id: str, seq: int, facts: Sequence[Event]) -> None:
            self.asked += 1
            await super().append(request_id, seq, facts)

    bus, journal = EventBus(), Counting("tool_call_completed", 1, failure)
    requested: list[ToolCallRequested] = []
    bus.connect(ToolCallRequested, requested.append)
    model = ScriptedProvider([calls(("wait", {}), ("wait", {}))])
    session = RequestSession(bus, model, "hi", tools=[waiting_tool()], journal=journal)
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await settle()
        before = journal.asked
        assert session.release("moving")
        bus.publish(requested[0].completed("first"))
        await anyio.sleep(0.5)
        bus.publish(requested[1].completed("second"))  # while the first is refused
        result = await session.result()
    assert (result.outcome, result.resumable, journal.asked - before) == ("cancelled", True, 1)
    assert result.reason == str(failure)
    assert "stops here" in caplog.text


@pytest.mark.guarantee("G10")
async def test_a_request_whose_journal_refuses_that_the_host_has_cancelled_it_ends_once() -> None:
    bus = EventBus()
    heard: list[Event] = []
    bus.connect((RequestCancelled, RequestFailed), heard.append)
    session = waiting(bus, Journal("request_cancelled", 0, OSError("disk full")))
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await settle()
        group.cancel_scope.cancel()
    assert [event.type for event in heard] == ["request_failed"]
    assert (await session.result()).outcome == "failed"


@pytest.mark.guarantee("G16")
async def test_a_request_that_is_left_while_the_host_cancels_its_task_ends() -> None:
    journal = Journal()
    session = waiting(EventBus(), journal)
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await settle()
        assert session.release("for later")
        group.cancel_scope.cancel()
    result = await session.result()
    assert (result.resumable, result.reason) == (False, "the host cancelled the request")
    assert journal.written[-1] == "request_cancelled"


# -------------------------------------------------------------------------------------- listeners and applications


async def test_who_listens_to_a_request_hears_nothing_of_another_that_wanted_its_id() -> None:
    bus = EventBus()
    requested: list[ToolCallRequested] = []
    bus.connect(ToolCallRequested, requested.append)
    first = waiting(bus)
    events = first.events()
    async with anyio.create_task_group() as group:
        group.start_soon(first.run)
        await anyio.sleep(1)
        second = RequestSession(bus, ScriptedProvider([]), "hi", request_id=first.request_id)
        assert (await second.run()).outcome == "failed"
        bus.publish(requested[0].completed("done"))
        reported = [event.type async for event in events if event.is_fact]
    assert reported[-1] == "request_completed"


@pytest.mark.guarantee("G10")
async def test_an_ending_is_told_though_a_receiver_takes_the_program_down() -> None:
    bus = EventBus()
    reported: list[Event] = []

    def leave(_event: ModelResponded) -> None:
        raise SystemExit(3)

    bus.connect(ModelResponded, leave)
    bus.connect(Event, reported.append)
    session = RequestSession(bus, ScriptedProvider([text("Done.")]), "hi")
    with pytest.raises(SystemExit):
        await session.run()
    types = [event.type for event in reported if event.is_fact]
    assert types[-3:] == ["model_responded", "message_appended", "request_completed"]


@pytest.mark.guarantee("G10")
async def test_a_validator_that_takes_an_answer_only_once_is_asked_once() -> None:
    seen: set[int] = set()

    class Booking(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def is_new(cls, number: int) -> int:
            if number in seen:
                raise ValueError("taken")
            seen.add(number)
            return number

    session = RequestSession(EventBus(), ScriptedProvider([text('{"number": 1}')]), "hi", output=Booking)
    result = await session.run()
    assert (result.outcome, result.output) == ("completed", Booking.model_construct(number=1))


@pytest.mark.guarantee("G10")
async def test_a_request_whose_answer_cannot_be_loaded_any_more_has_a_result_that_says_so() -> None:
    class Answer(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def is_in_time(cls, number: int) -> int:
            if over:
                raise ValueError("too late")
            return number

    over: list[bool] = []
    journal = Journal()
    model = ScriptedProvider([calls(("final_answer", {"number": 1}), ("wait", {}))])
    first = RequestSession(EventBus(), model, "hi", tools=[waiting_tool()], journal=journal, output=Answer)
    async with anyio.create_task_group() as group:
        group.start_soon(first.run)
        await anyio.sleep(1)
        first.release("for later")
    over.append(True)
    bus = EventBus()
    bus.connect(ToolCallRequested, lambda requested: bus.publish(requested.completed("waited")))
    session = RequestSession(
        bus, model, "hi", tools=[waiting_tool()], journal=journal, output=Answer, request_id=first.request_id,
        start=SessionStart(resumed=Resumed(facts=journal.facts, history=[])),
    )  # fmt: skip
    with anyio.fail_after(30):
        result = await session.run()
    assert (result.outcome, result.output) == ("completed", None)
    assert result.error is not None
    assert (result.error.code, str(result.error)) == ("invalid_output", "$.number: Value error, too late")


@pytest.mark.parametrize("also_cancelled", [True, False])
@pytest.mark.parametrize("guarded", [True, False])
async def test_a_prompt_that_no_guardrail_has_let_pass_is_not_kept_when_the_host_gives_the_request_up(
    guarded: bool, also_cancelled: bool
) -> None:
    class Slow(Interceptor):
        async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
            await anyio.sleep(5)
            return prompt

    async def prepare() -> Earlier:
        if not guarded:
            await anyio.sleep(5)
        return Earlier()

    journal = Journal()
    interceptors = [Slow()] if guarded else [Interceptor()]
    session = RequestSession(
        EventBus(),
        ScriptedProvider([]),
        "my secret",
        interceptors=interceptors,
        journal=journal,
        start=SessionStart(prepare=prepare),
    )
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.sleep(1)
        if also_cancelled:
            session.cancel("never mind")
        group.cancel_scope.cancel()
    result = await session.result()
    assert result.outcome == "cancelled"
    assert [each.role for each in result.messages] == ([] if guarded else ["user"])
    assert ("my secret" in repr(journal.facts)) is not guarded


@pytest.mark.guarantee("G16")
@pytest.mark.parametrize("what", ["prepare", "on_prompt"])
async def test_a_request_is_cancelled_also_where_that_is_turned_into_an_error_before_it_begins(what: str) -> None:
    async def give_up() -> None:
        try:
            await anyio.sleep(5)
        except BaseException as exc:
            raise OSError("the connection was closed") from exc

    class Guard(Interceptor):
        async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
            await give_up()
            return prompt

    async def prepare() -> Earlier:
        if what == "prepare":
            await give_up()
        return Earlier()

    session = RequestSession(
        EventBus(), ScriptedProvider([]), "hi", interceptors=[Guard()], start=SessionStart(prepare=prepare)
    )
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.sleep(1)
        session.cancel("never mind")
        result = await session.result()
    assert (result.outcome, result.reason) == ("cancelled", "never mind")


# ------------------------------------------------------------------------------------------------ sub-requests


@pytest.mark.parametrize("end", ["broken", "left"])
async def test_a_request_that_breaks_counts_what_its_sub_requests_have_spent_and_keeps_none_alive(end: str) -> None:
    bus = EventBus()
    sessions: list[weakref.ref[Any]] = []
    bus.connect(RequestStarted, lambda event: sessions.append(weakref.ref(bus.arbitration.view(event.request_id))))
    journal = Journal("steering_added", 0, OSError("disk full"))
    model = ScriptedProvider([calls(("desk", {}), usage=USED)])
    async with ToolDispatcher(bus):
        session = RequestSession(bus, model, "hi", tools=[asking(waiting_tool())], journal=journal)
        async with anyio.create_task_group() as group:
            group.start_soon(session.run)
            await anyio.sleep(1)
            session.steer("hurry") if end == "broken" else session.release("for later")
            result = await session.result()
        await settle()
    del session
    gc.collect()
    assert result.resumable is (end == "left")
    assert result.usage.output_tokens == 14
    assert (len(sessions), sessions[1]()) == (2, None)  # the first one is in the traceback of what has broken it


async def test_a_request_that_breaks_counts_what_a_call_has_spent_that_somebody_else_has_answered() -> None:
    bus, requested = EventBus(), list[ToolCallRequested]()
    bus.connect(ToolCallRequested, requested.append)
    journal = Journal("steering_added", 2, OSError("disk full"))
    model = ScriptedProvider([calls(("desk", {}), usage=USED)])
    async with ToolDispatcher(bus):
        session = RequestSession(bus, model, "hi", tools=[asking(waiting_tool())], journal=journal)
        async with anyio.create_task_group() as group:
            group.start_soon(session.run)
            await anyio.sleep(1)
            session.steer("hurry")
            await anyio.sleep(1)  # The write is under way.
            bus.publish(requested[0].completed("It is here."))
            result = await session.result()
    assert (result.outcome, result.usage.output_tokens) == ("failed", 14)
    assert "It is here." in [each.content for each in result.messages if isinstance(each, ToolMessage)]


async def test_a_sub_request_that_breaks_while_it_waits_for_a_person_lets_its_call_go_on() -> None:
    bus = EventBus()
    asked: list[ApprovalRequested] = []
    paused: list[str] = []
    bus.connect(ApprovalRequested, asked.append)
    bus.connect((ToolCallPaused, ToolCallResumed), lambda event: paused.append(event.type))
    journal = Journal("approval_decided", 0, OSError("disk full"))
    model, limits = ScriptedProvider([calls(("desk", {}))]), Limits(timeout_seconds=5)
    async with ToolDispatcher(bus):
        session = RequestSession(
            bus, model, "hi", tools=[asking(waiting_tool(needs_approval=True))], journal=journal, limits=limits
        )
        async with anyio.create_task_group() as group:
            group.start_soon(session.run)
            await anyio.sleep(1)
            bus.publish(asked[0].decided(approved=True))
            with anyio.fail_after(10):
                result = await session.result()
    assert paused == ["tool_call_paused", "tool_call_resumed"]
    assert (result.outcome, result.limit) == ("stopped", "timeout_seconds")


async def test_a_request_that_is_left_hears_nothing_of_sub_requests_that_waited() -> None:
    bus = EventBus()
    letters: list[DeadLetter] = []
    bus.connect(DeadLetter, letters.append)
    model = ScriptedProvider([calls(("desk", {}))])
    async with ToolDispatcher(bus):
        session = RequestSession(bus, model, "hi", tools=[asking(waiting_tool(needs_approval=True))], journal=Journal())
        async with anyio.create_task_group() as group:
            group.start_soon(session.run)
            await anyio.sleep(1)
            session.release("for later")
        await settle()
    assert letters == []


# --------------------------------------------------------------------------------------------------- left, resumed


@pytest.mark.guarantee("G18")
async def test_what_comes_while_the_last_facts_of_a_request_that_is_left_are_written_is_written_too() -> None:
    bus = EventBus()
    requested: list[ToolCallRequested] = []
    bus.connect(ToolCallRequested, requested.append)
    journal = Journal("steering_added", 2)
    session = waiting(bus, journal)
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.sleep(1)
        session.release("for later")
        assert session.steer("hurry")
        await anyio.sleep(1)
        assert bus.publish(requested[0].completed("done"))
        assert session.cancel("never mind")
        result = await session.result()
    assert result.resumable
    assert [fact.type for fact in journal.facts[-3:]] == ["steering_added", "tool_call_completed", "cancel_requested"]


@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("given", [RequestSession.cancel, RequestSession.steer])
async def test_what_comes_before_a_resumed_request_runs_is_written_also_if_it_is_left_at_once(
    given: Callable[[RequestSession, str], bool],
) -> None:
    first, second = Journal(), Journal()
    earlier = waiting(EventBus(), first)
    async with anyio.create_task_group() as group:
        group.start_soon(earlier.run)
        await anyio.sleep(1)
        earlier.release("for later")
    start = SessionStart(resumed=Resumed(facts=first.facts, history=()))
    ids: Any = {"request_id": earlier.request_id, "conversation_id": earlier.conversation_id}
    session = RequestSession(
        EventBus(), ScriptedProvider([]), "hi", tools=[waiting_tool()], journal=second, start=start, **ids
    )
    assert given(session, "not that one")
    assert session.release("closing")
    result = await session.run()
    assert (result.reason, result.resumable, len(second.written)) == ("closing", True, 1)


@pytest.mark.guarantee("G32")
async def test_an_input_that_an_earlier_process_has_taken_is_recorded_for_the_next_one_too() -> None:
    bus, journal = EventBus(), Journal()
    requested: list[ToolCallRequested] = []
    bus.connect(ToolCallRequested, requested.append)
    model = ScriptedProvider([calls(("wait", {}), ("wait", {}))])
    earlier = RequestSession(bus, model, "hi", tools=[waiting_tool()], journal=journal)
    async with anyio.create_task_group() as group:
        group.start_soon(earlier.run)
        await anyio.sleep(1)
        answer = requested[0].completed("first")
        assert earlier.inject(answer)
        words = SteeringAdded(request_id=earlier.request_id, text="faster")
        assert earlier.deliver(words)
        await settle()
        earlier.release("for later")
    start = SessionStart(resumed=Resumed(facts=journal.facts, history=()))
    ids: Any = {"request_id": earlier.request_id, "conversation_id": earlier.conversation_id}
    later = Journal()
    session = RequestSession(
        EventBus(), ScriptedProvider([]), "hi", tools=[waiting_tool()], journal=later, start=start, **ids
    )
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.sleep(1)
        assert session.inject(answer)
        assert session.deliver(words)
        assert await session.recorded(answer)
        session.cancel()
    assert [each.type for each in later.facts if isinstance(each, (ToolCallCompleted, SteeringAdded))] == []


async def test_a_question_that_was_answered_while_a_resumption_is_written_is_not_asked_again() -> None:
    journal = Journal("request_resumed", 2)
    first = waiting(EventBus(), journal, needs_approval=True)
    async with anyio.create_task_group() as group:
        group.start_soon(first.run)
        await anyio.sleep(1)
        first.release("for later")
    bus = EventBus()
    asked: list[ApprovalRequested] = []
    bus.connect(ApprovalRequested, asked.append)
    session = RequestSession(
        bus, ScriptedProvider([text("Done.")]), "hi", tools=[waiting_tool(needs_approval=True)], journal=journal,
        request_id=first.request_id, start=SessionStart(resumed=Resumed(facts=journal.facts, history=[])),
    )  # fmt: skip
    question = next(fact for fact in journal.facts if isinstance(fact, ApprovalRequested))
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.sleep(1)
        by_hand = ToolCallCompleted(
            request_id=first.request_id, call_id=question.call_id, name=question.name, content="by hand"
        )
        assert bus.publish(by_hand)
        assert (await session.result()).ok
    assert asked == []


async def test_nobody_hears_progress_for_the_status_of_a_request_that_was_left() -> None:
    bus = EventBus()
    disconnect: Callable[[], None] = bus.connect(StatusChanged, lambda _event: None)
    session = waiting(bus, Journal())
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.sleep(1)
        assert bus.statistics().receivers > 1
        session.release("for later")
    disconnect()
    assert bus.statistics().receivers == 0


async def test_a_last_answer_that_is_lost_is_paid_for_all_the_same() -> None:
    class Strict(Interceptor):
        async def on_answer(self, text: str, context: ToolContext[Any]) -> str:
            raise ValueError(text)

    bus = EventBus()
    model = ScriptedProvider([calls(("wait", {}), usage=USED), text("Done.", usage=USED)])
    limits = Limits(max_rounds=1, tool_timeout_seconds=1)
    session = RequestSession(bus, model, "hi", tools=[waiting_tool()], interceptors=[Strict()], limits=limits)
    result = await session.run()
    assert (result.outcome, result.limit, result.usage.output_tokens) == ("stopped", "max_rounds", 14)
