"""What a request meets at its edges: people who ask early or late, broken hooks, ids that are taken, slow journals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from toolbus import Denied, EventBus, Interceptor, Limits, RequestSession, Runtime, tool
from toolbus.bus import Mailbox
from toolbus.core.transcript import validate
from toolbus.core.turn import TurnState
from toolbus.errors import (
    ApplicationError,
    ConfigurationError,
    InboxFull,
    NotRunning,
    Overloaded,
    ProviderUnavailable,
    StoreUnavailable,
)
from toolbus.events import (
    ApprovalDecided,
    CancelRequested,
    DeadLetter,
    Event,
    ModelResponded,
    ModelRetrying,
    RequestEnding,
    RequestStarted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import AssistantMessage, Message, UserMessage
from toolbus.protocols import Emit, ModelReply, ModelRequest, TextPiece, ToolSpec
from toolbus.session._start import _apply_again  # pyright: ignore[reportPrivateUsage]
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, assert_idle, calls, error, hang, settle, text, virtual_backends

anyio_backend = virtual_backends()


class Gate:
    """A model that answers with what the user said, once it is let go."""

    vendor = "gate"

    def __init__(self) -> None:
        self.open = anyio.Event()
        self.inside = 0

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        self.inside += 1
        await self.open.wait()
        said = [str(message.content) for message in request.messages if isinstance(message, UserMessage)]
        return ModelReply(message=AssistantMessage(text=" / ".join(said)))


def unavailable(retry_after_seconds: float | None = None) -> Any:
    return error(ProviderUnavailable("overloaded", retryable=True, retry_after_seconds=retry_after_seconds))


@pytest.mark.parametrize("size_bytes", [1, 100, 10**9])
def test_a_resumed_request_is_as_large_as_its_journal_even_before_it_is_written_to(size_bytes: int) -> None:
    state = TurnState("r", limits=Limits(max_journal_bytes=100))
    started = RequestStarted(request_id="r", conversation_id="c", timeout_seconds=9.0)
    _apply_again(state, [started], size_bytes)
    assert (state.facts, state.journal_bytes) == (1, size_bytes)


@pytest.mark.parametrize(
    ("problem", "level"), [(OSError(28, "No space left on device"), "ERROR"), (StoreUnavailable("away"), "WARNING")]
)
async def test_a_store_that_fails_to_remember_costs_its_own_turn_and_nobody_else(
    problem: Exception, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(MemoryStore):
        async def remember(self, conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> None:
            if conversation_id == "bad":
                raise problem
            await super().remember(conversation_id, messages, request_id=request_id)

    gate = Gate()
    async with Runtime(gate, store=Full()) as runtime:
        bad, good = runtime.start("one", conversation_id="bad"), runtime.start("two", conversation_id="good")
        gate.open.set()
        assert (await bad.result()).ok
        assert (await good.result()).ok
        assert (await runtime.run("three", conversation_id="good")).text == "two / three"
    (line,) = [each for each in caplog.records if "this turn is not remembered" in each.getMessage()]
    assert (line.levelname, bool(line.exc_info)) == (level, level == "ERROR")


async def test_steering_that_comes_before_the_start_does_not_jump_the_queue() -> None:
    gate = Gate()
    async with Runtime(gate, max_sessions=1) as runtime:
        first = runtime.start("first", conversation_id="c")
        second = runtime.start("second", conversation_id="c")
        assert second.steer("more")
        elsewhere = runtime.start("elsewhere")
        assert elsewhere.steer("too")
        await anyio.wait_all_tasks_blocked()
        assert gate.inside == 1
        gate.open.set()
        assert (await first.result()).text == "first"
        assert (await second.result()).text == "first / second / more"
        assert (await elsewhere.result()).text == "elsewhere / too"


async def test_steering_without_end_is_refused_and_a_cancel_still_passes() -> None:
    @tool(external=True)
    async def elsewhere() -> str:
        """Answer elsewhere."""
        raise AssertionError

    session = RequestSession(EventBus(), ScriptedProvider([calls(("elsewhere", {}))]), "hi", tools=[elsewhere])
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.wait_all_tasks_blocked()
        assert all(session.steer("more") for _ in range(60))
        await anyio.wait_all_tasks_blocked()  # They have become facts, and wait for the next round.
        assert all(session.steer("more") for _ in range(40))
        with pytest.raises(InboxFull, match=f"100 messages wait for request {session.request_id}"):
            session.steer("more")
        assert all(session.cancel() for _ in range(150))
    assert (await session.result()).outcome == "cancelled"


async def test_steering_from_a_listener_does_not_cut_a_wait_short() -> None:
    bus = EventBus()
    session = RequestSession(bus, ScriptedProvider([unavailable(30), text("late"), text("later")]), "hi")
    bus.connect(ModelRetrying, lambda _event: session.steer("hurry"))
    result = await session.run()
    assert (result.outcome, anyio.current_time() >= 30) == ("completed", True)


async def test_steering_after_the_last_reply_is_refused_and_not_lost_silently() -> None:
    bus = EventBus()
    session = RequestSession(bus, ScriptedProvider([text("done")]), "hi")
    said: list[bool] = []
    bus.connect(ModelResponded, lambda _event: said.append(session.steer("also this")))
    await session.run()
    assert said == [False]


def said_in(messages: Sequence[Message]) -> list[str]:
    return [each.text for each in messages if isinstance(each, UserMessage)]


@pytest.mark.guarantee("G32")
@pytest.mark.parametrize("store", [None, MemoryStore, lambda: MemoryStore(journal=True)])
@pytest.mark.parametrize("end", ["cancel", "failure", "limit"])
async def test_the_next_turn_has_what_a_person_said_while_the_last_one_ended(store: Any, end: str) -> None:
    answer = error(ProviderUnavailable("no")) if end == "failure" else hang()
    asked = ScriptedProvider([answer, text("Rome.")])
    async with Runtime(asked, store=store and store()) as runtime:
        limits = Limits(timeout_seconds=5, max_model_attempts=1)
        session = runtime.start("Where?", conversation_id="k", limits=limits)
        if end != "failure":
            await settle()
        assert session.steer("In Italy.")
        if end == "cancel":
            assert session.cancel()
        result = await session.result()
        assert said_in(result.messages) == ["Where?", "In Italy."]
        await runtime.run("Well?", conversation_id="k")
    assert said_in(asked.requests[-1].messages) == ["Where?", "In Italy.", "Well?"]


@pytest.mark.guarantee("G32")
@pytest.mark.parametrize("has_begun", [True, False])
async def test_what_a_person_said_is_kept_when_the_host_cancels_the_task(has_begun: bool) -> None:
    session = RequestSession(EventBus(), ScriptedProvider([hang()]), "Where?")
    async with anyio.create_task_group() as group:
        if has_begun:
            group.start_soon(session.run)
            await settle()
        else:
            group.start_soon(session.run)
        assert session.steer("In Italy.")
        group.cancel_scope.cancel()
    assert said_in((await session.result()).messages) == ["Where?", "In Italy."]


@pytest.mark.guarantee("G05")
@pytest.mark.parametrize("journal", [True, False])
async def test_what_a_person_said_to_a_request_whose_prompt_is_refused_becomes_a_dead_letter(journal: bool) -> None:
    class Guard(Interceptor):
        async def on_prompt(self, prompt: UserMessage, context: Any) -> UserMessage:
            raise Denied("not here")

    async with Runtime(ScriptedProvider([]), interceptors=[Guard()], store=MemoryStore(journal=journal)) as runtime:
        lost: list[DeadLetter] = []
        runtime.bus.connect(DeadLetter, lost.append)
        session = runtime.start("Where?")
        assert session.steer("In Italy.")
        result = await session.result()
    assert (result.outcome, said_in(result.messages)) == ("failed", [])
    assert [each.event_type for each in lost] == ["steering_added"]


@pytest.mark.guarantee("G32")
async def test_what_a_person_said_is_in_the_transcript_of_a_session_that_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = RequestSession(
        EventBus(), ScriptedProvider([calls(("look", {}))]), "Where?", tools=[ToolSpec(name="look")]
    )
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await settle()

        def broken(*_arguments: Any, **_options: Any) -> Any:
            raise RuntimeError("a bug")

        for said in ("In Italy.", "Or in Spain."):
            assert session.steer(said)
        await settle()
        monkeypatch.setattr("toolbus.session._steps.advance", broken)
        session.cancel()
        result = await session.result()
    assert (result.outcome, said_in(result.messages)) == ("failed", ["Where?", "In Italy.", "Or in Spain."])
    ids = [each.message_id for each in result.messages[-2:]]
    assert ids == [f"{session.request_id}_s0", f"{session.request_id}_s1"]


@pytest.mark.guarantee("G05")
async def test_a_cancellation_that_comes_while_a_session_breaks_is_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus, letters = EventBus(), list[DeadLetter]()
    session = RequestSession(bus, ScriptedProvider([calls(("look", {}))]), "Where?", tools=[ToolSpec(name="look")])
    late = CancelRequested(request_id=session.request_id, reason="too late")
    bus.connect(ToolCallFailed, lambda _event: bus.publish(late))
    bus.connect(DeadLetter, letters.append)

    def broken(*_arguments: Any, **_options: Any) -> Any:
        raise RuntimeError("a bug")

    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await settle()
        monkeypatch.setattr("toolbus.session._steps.advance", broken)
        session.steer("In Italy.")
        assert (await session.result()).outcome == "failed"
    assert [each.rejected_event_id for each in letters] == [late.event_id]


@pytest.mark.guarantee("G10")
async def test_an_approval_out_of_nowhere_harms_nobody() -> None:
    gate, bus = Gate(), EventBus()
    session = RequestSession(bus, gate, "hi")
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.wait_all_tasks_blocked()
        assert bus.publish(ApprovalDecided(request_id=session.request_id, call_id="x", approved=True)) is False
        gate.open.set()
        assert (await session.result()).ok
    await assert_idle(bus)


async def test_a_refused_history_never_enters_the_conversation() -> None:
    gate = Gate()
    gate.open.set()
    async with Runtime(gate) as runtime:
        await runtime.run("one", conversation_id="c")
        refused = await runtime.start("two", conversation_id="c", history=[UserMessage(content="foreign")]).result()
        assert (refused.outcome, refused.duration_seconds) == ("failed", 0)
        assert "not both" in refused.timeline()
        assert (await runtime.run("three", conversation_id="c")).text == "one / three"


class Stammering:
    """Fails after some text, then answers, in pieces or whole."""

    vendor = "stammering"

    def __init__(self, streams: bool) -> None:
        self.streams = streams
        self.calls = 0

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        self.calls += 1
        if self.calls == 1:
            emit(TextPiece("Hel"))
            raise ProviderUnavailable("cut", retryable=True)
        if self.streams:
            emit(TextPiece("Hello"))
        return ModelReply(message=AssistantMessage(text="Hello"))


@pytest.mark.parametrize("streams", [True, False])
async def test_text_begins_anew_when_the_model_is_asked_again(streams: bool) -> None:
    session = RequestSession(EventBus(), Stammering(streams), "hi")
    everything, final = session.text(), session.text(final_only=True)
    await session.run()
    assert [piece async for piece in everything] == ["Hel", "\n\nHello"]
    assert [piece async for piece in final] == ["Hello"]


async def test_a_wait_that_the_request_has_no_time_for_is_spent_on_the_next_provider() -> None:
    providers = [ScriptedProvider([unavailable(700)]), ScriptedProvider([text("from b")])]
    result = await RequestSession(EventBus(), providers, "hi").run()
    assert (result.text, anyio.current_time() < 1) == ("from b", True)


async def test_a_broken_hook_s_exception_is_the_cause_of_the_result_s_error() -> None:
    def broken(_context: object) -> str:
        raise ValueError("mine")

    result = await RequestSession(EventBus(), ScriptedProvider([]), "hi", instructions=broken).run()
    assert isinstance(result.error, ApplicationError)
    assert isinstance(result.error.__cause__, ValueError)


async def test_the_error_of_a_request_is_that_of_its_last_attempt() -> None:
    class FirstLoudThenSilent:
        vendor = "x"
        calls = 0

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            self.calls += 1
            if self.calls == 1:
                raise ProviderUnavailable("first attempt", retryable=True)
            await anyio.sleep_forever()
            raise AssertionError

    limits = Limits(max_model_attempts=2, model_timeout_seconds=1)
    result = await RequestSession(EventBus(), FirstLoudThenSilent(), "hi", limits=limits).run()
    assert (result.reason, str(result.error)) == (
        "provider_timeout",
        "the model did not answer in time (model_timeout_seconds=1)",
    )


async def test_a_request_id_that_is_taken_fails_the_second_request_and_spares_the_first() -> None:
    bus, gate = EventBus(), Gate()
    first, second = (RequestSession(bus, gate, "hi", request_id="r") for _ in range(2))
    async with anyio.create_task_group() as group:
        group.start_soon(first.run)
        await anyio.wait_all_tasks_blocked()
        result = await second.run()
        assert (result.outcome, "mailbox already" in str(result.error)) == ("failed", True)
        gate.open.set()
        assert (await first.result()).ok
    await assert_idle(bus)


async def test_a_cancel_while_the_journal_writes_leaves_no_listener_waiting() -> None:
    class Slow:
        def __init__(self) -> None:
            self.writing = anyio.Event()
            self.written: list[Event] = []

        async def append(self, request_id: str, seq: int, facts: Sequence[Event]) -> None:
            assert seq == len(self.written)
            if any(isinstance(fact, RequestEnding) for fact in facts):
                self.writing.set()
                await anyio.sleep(1)
            self.written.extend(facts)

    bus, journal = EventBus(), Slow()
    session = RequestSession(bus, ScriptedProvider([text("done")]), "hi", journal=journal)
    events = session.events()
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await journal.writing.wait()
        group.cancel_scope.cancel()
    kinds = [event.type async for event in events if event.is_fact and not event.is_derived]
    assert kinds[-1] == "request_completed"
    assert kinds == [event.type for event in journal.written]
    assert (await session.result()).ok


async def test_a_journal_that_never_answers_ends_the_request_in_bounded_time() -> None:
    class Stuck:
        async def append(self, request_id: str, seq: int, facts: Sequence[Event]) -> None:
            await anyio.sleep_forever()

    result = await RequestSession(EventBus(), ScriptedProvider([text("x")]), "hi", journal=Stuck()).run()
    assert (result.outcome, "did not answer in 5 s" in str(result.error)) == ("failed", True)
    assert anyio.current_time() == pytest.approx(5, abs=1e-3)
    validate(result.messages)


async def test_a_journal_that_never_answers_holds_a_cancelled_request_in_bounded_time() -> None:
    class Sticks:
        def __init__(self) -> None:
            self.appends = 0

        async def append(self, request_id: str, seq: int, facts: Sequence[Event]) -> None:
            self.appends += 1
            if self.appends > 1:
                await anyio.sleep_forever()

    journal = Sticks()
    session = RequestSession(EventBus(), ScriptedProvider([hang()]), "hi", journal=journal)
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    result = await session.result()
    assert (result.outcome, "did not answer in 5 s" in str(result.error)) == ("failed", True)
    assert anyio.current_time() == pytest.approx(5, abs=1e-3)
    assert journal.appends == 3, "the last step, and the same once more"


async def test_a_request_from_another_thread_is_refused_with_the_way_to_do_it() -> None:
    async with Runtime(ScriptedProvider([text("from a thread")])) as runtime:
        with pytest.raises(NotRunning, match=r"anyio\.from_thread"):
            await anyio.to_thread.run_sync(runtime.start, "x")
        result = await anyio.to_thread.run_sync(lambda: anyio.from_thread.run(runtime.run, "x"))
        assert result.text == "from a thread"


async def test_the_advice_of_an_overloaded_runtime_knows_nothing_of_idle_hours() -> None:
    gate = Gate()
    gate.open.set()
    async with Runtime(gate, max_sessions=1, max_queued=1) as runtime:
        await runtime.run("one")
        await anyio.sleep(8 * 3600)
        await runtime.run("two")
        gate.open = anyio.Event()
        sessions = [runtime.start("three"), runtime.start("four")]
        with pytest.raises(Overloaded) as caught:
            runtime.start("five")
        assert caught.value.retry_after_seconds == 1
        gate.open.set()
        for session in sessions:
            await session.result()


async def test_options_of_the_wrong_kind_are_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="drain_seconds"):
        Runtime(ScriptedProvider([]), drain_seconds=-1)
    with pytest.raises(ConfigurationError, match="drain_seconds"):
        Runtime(ScriptedProvider([]), drain_seconds=float("nan"))
    async with Runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(ConfigurationError, match="pass Limits"):
            runtime.start("hi", limits={"max_rounds": 3})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="pass Limits"):
        RequestSession(EventBus(), Gate(), "hi", limits={"max_rounds": 3})  # pyright: ignore[reportArgumentType]
    unknown: dict[str, Any] = {"tool": ()}
    with pytest.raises(
        TypeError, match=r"RequestSession: there is no option tool \(did you mean tools\?\); the options are provider, "
    ):
        RequestSession(EventBus(), Gate(), "hi", **unknown)


async def test_a_cancelled_drain_cancels_what_it_waited_for() -> None:
    gate = Gate()
    runtime = Runtime(gate, drain_seconds=1000)
    with anyio.move_on_after(5) as scope:
        async with runtime:
            session = runtime.start("hi")
    assert scope.cancelled_caught
    assert (await session.result()).outcome == "cancelled"
    assert anyio.current_time() < 6


@pytest.mark.guarantee("G06")
async def test_a_result_that_comes_while_its_deadline_fires_is_kept_and_the_next_round_is_not_disturbed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus = EventBus()
    requested: list[ToolCallRequested] = []
    retried: list[ModelRetrying] = []
    bus.connect(ToolCallRequested, requested.append)
    bus.connect(ModelRetrying, retried.append)

    async def wait(_mailbox: Mailbox) -> None:
        try:
            await anyio.sleep_forever()
        finally:  # the deadline's cancellation is being delivered, and somebody answers just now
            assert bus.publish(requested[0].completed("in the nick of time"))

    monkeypatch.setattr(Mailbox, "wait", wait)

    @tool(external=True)
    async def look_up() -> str:  # pyright: ignore[reportReturnType] -- answered on the bus
        """Look up."""

    script = ScriptedProvider([calls(("look_up", {})), text("done")])
    result = await RequestSession(bus, script, "hi", tools=[look_up]).run()
    assert (result.outcome, result.tool_calls[0].content, retried) == ("completed", "in the nick of time", [])
    assert anyio.current_time() == pytest.approx(30, abs=1e-3)


async def test_instructions_that_hang_end_with_their_request_and_log_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def hangs(_context: object) -> str:
        await anyio.sleep_forever()
        raise AssertionError

    limits = Limits(timeout_seconds=5)
    result = await RequestSession(EventBus(), ScriptedProvider([]), "hi", instructions=hangs, limits=limits).run()
    assert (result.outcome, result.reason) == ("stopped", "timeout_seconds=5")
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
