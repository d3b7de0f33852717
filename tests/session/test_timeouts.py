"""Deadlines of a request, on virtual time: what fires, when, what it says, and what is never lost to it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from toolbus import EventBus, Limits, ToolDispatcher, ToolRegistry, tool
from toolbus.core.transcript import validate
from toolbus.core.turn import CallModel, Elapsed, TurnState
from toolbus.errors import LimitReached, ProviderTimeout
from toolbus.events import (
    Event,
    ModelResponded,
    ModelRetrying,
    RequestCompleted,
    RequestFailed,
    TextDelta,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallRequested,
    ToolCallStarted,
)
from toolbus.messages import AssistantMessage, ToolCall, ToolMessage
from toolbus.protocols import ArgumentsPiece, Delta, Emit, ModelReply, ModelRequest, ReasoningPiece, TextPiece, ToolSpec
from toolbus.session._model_call import ModelCall
from toolbus.testing import Harness, advance, assert_idle, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()

LOOK_UP = ("look_up", {"key": "a"})
TIMED_OUT = '{"ok":false,"reason":"timeout","error":"look_up did not answer in 30 s."}'
ACCURACY = 1e-5  # events carry seconds since the epoch as floats, which are exact to some tenths of a microsecond


def one_call(**options: object) -> Harness:
    return Harness([calls(LOOK_UP), text("Done.")], tools=["look_up"], **options)  # pyright: ignore[reportArgumentType]


def results(harness: Harness) -> list[str]:
    """What the model was told of its calls."""
    return [str(each.content) for each in harness.transcript if isinstance(each, ToolMessage)]


def terminal(harness: Harness) -> list[ToolCallCompleted | ToolCallFailed]:
    return [each for each in harness.events if isinstance(each, (ToolCallCompleted, ToolCallFailed))]


def now() -> float:
    return anyio.current_time()


class SlowProvider:
    """A model that does what a coroutine says before it answers with a text, or with a call."""

    vendor = "slow"

    def __init__(self, work: Callable[[Emit], Awaitable[object]], *, call_first: bool = False) -> None:
        self._work = work
        self._call_first = call_first
        self.asked = 0

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        self.asked += 1
        if self._call_first and self.asked == 1:
            call = ToolCall(name="look_up", arguments="{}", provider_call_id="1")
            return ModelReply(message=AssistantMessage(tool_calls=(call,)))
        await self._work(emit)
        return ModelReply(message=AssistantMessage(text="Done."))


# ----------------------------------------------------------------------------------------------- a tool's deadline


@pytest.mark.guarantee("G10", "G12")
async def test_a_tool_that_never_answers_ends_with_reason_timeout_at_its_deadline():
    async with one_call() as harness:
        session = harness.start("?")
        requested = await harness.expect(ToolCallRequested)
        failed = await harness.expect(ToolCallFailed)
        assert now() == pytest.approx(30, abs=ACCURACY)
        result = await session.result()
        harness.assert_no_pending()
    assert requested.timeout_seconds == 30
    assert (failed.reason, failed.error) == ("timeout", "look_up did not answer in 30 s.")
    assert failed.outcome_unknown
    assert failed.at - requested.at == pytest.approx(30, abs=ACCURACY)
    assert results(harness) == [TIMED_OUT]
    assert (result.outcome, result.text) == ("completed", "Done.")
    await assert_idle(harness.bus)


@pytest.mark.guarantee("G12")
async def test_the_record_of_a_call_that_timed_out_says_how_long_it_was_waited_for():
    async with one_call() as harness:
        result = await harness.start("?").result()
    (record,) = result.tool_calls
    assert (record.ok, record.reason, record.outcome_unknown) == (False, "timeout", True)
    assert record.duration_seconds == pytest.approx(30, abs=ACCURACY)
    assert "look_up in 30.000s: timeout" in result.timeline()


@pytest.mark.guarantee("G12")
async def test_each_call_of_a_round_has_its_own_deadline():
    specs = [ToolSpec(name="quick", timeout_seconds=2), ToolSpec(name="patient", timeout_seconds=70), "usual"]
    script = [calls(("patient", {}), ("usual", {}), ("quick", {})), text("Done.")]
    async with Harness(script, tools=specs, limits=Limits(max_consecutive_errors=9)) as harness:
        session = harness.start("?")
        fired: list[tuple[str, float]] = []
        for _ in range(3):
            failed = await harness.expect(ToolCallFailed, reason="timeout")
            fired.append((failed.name, round(now(), 3)))
        assert fired == [("quick", 2), ("usual", 30), ("patient", 70)]
        assert (await session.result()).outcome == "completed"
    assert [each.name for each in harness.transcript if isinstance(each, ToolMessage)] == ["patient", "usual", "quick"]


@pytest.mark.guarantee("G12")
async def test_a_call_answered_before_its_deadline_does_not_time_out_later():
    async with one_call() as harness:
        session = harness.start("?")
        requested = await harness.expect(ToolCallRequested)
        await advance(29.9)
        assert harness.complete(requested, "found") is True
        assert (await session.result()).outcome == "completed"
        await advance(3600)
    assert results(harness) == ["found"]
    assert harness.seen(ToolCallFailed) == []


@pytest.mark.guarantee("G09")
@pytest.mark.parametrize("answered_first", [True, False])
async def test_a_timeout_of_one_of_two_parallel_calls_keeps_the_siblings_result(answered_first: bool):
    script = [calls(("look_up", {"key": "a"}), ("look_up", {"key": "b"})), text("Done.")]
    async with Harness(script, tools=["look_up"]) as harness:
        session = harness.start("?")
        answered = await harness.expect(ToolCallRequested, arguments={"key": "a" if answered_first else "b"})
        await advance(12)
        harness.complete(answered, "found")
        await settle()
        assert not session.ended
        result = await session.result()
    assert now() == pytest.approx(30, abs=ACCURACY)
    assert result.outcome == "completed"
    assert results(harness) == (["found", TIMED_OUT] if answered_first else [TIMED_OUT, "found"])
    assert [each.ok for each in result.tool_calls] == [answered_first, not answered_first]


@pytest.mark.guarantee("G12")
async def test_a_tool_that_ignores_cancellation_cannot_delay_the_session():
    release = anyio.Event()
    ended: list[float] = []

    @tool
    async def look_up(key: str) -> str:
        """Look up a key, whatever anybody wants."""
        with anyio.CancelScope(shield=True):
            await release.wait()
            ended.append(now())
        return key

    async with one_call() as harness, ToolDispatcher(harness.bus, ToolRegistry([look_up])) as dispatcher:
        session = harness.start("?")
        result = await session.result()
        assert now() == pytest.approx(30, abs=ACCURACY)
        assert dispatcher.statistics().overdue == ("look_up",)
        assert ended == []
        release.set()
        await settle()
        assert dispatcher.statistics().overdue == ()
    assert result.outcome == "completed"
    assert results(harness) == [TIMED_OUT]
    assert len(terminal(harness)) == 1
    await assert_idle(harness.bus)


@pytest.mark.guarantee("G12")
async def test_a_thread_that_hangs_cannot_delay_the_session():
    began, release, reported = threading.Event(), threading.Event(), threading.Event()

    @tool
    def look_up(key: str) -> str:
        """Look up a key, for as long as it takes."""
        began.set()
        release.wait()
        return key

    async with one_call() as harness, ToolDispatcher(harness.bus, ToolRegistry([look_up])) as dispatcher:
        harness.bus.connect(ToolCallLate, lambda _: reported.set())
        session = harness.start("?")
        assert await anyio.to_thread.run_sync(began.wait, 5)
        await advance(30.1, wait_for_threads=False)
        try:
            assert session.ended
            assert dispatcher.statistics().overdue == ("look_up",)
        finally:
            release.set()
        assert await anyio.to_thread.run_sync(reported.wait, 5)
        assert dispatcher.statistics().overdue == ()
    assert [each.content for each in harness.seen(ToolCallLate)] == ["a"]
    assert results(harness) == [TIMED_OUT]


@pytest.mark.guarantee("G14")
async def test_a_call_that_ends_before_its_thread_has_begun_keeps_no_thread_and_never_runs():
    ran: list[str] = []

    @tool
    def look_up(key: str) -> str:
        """Look up a key."""
        ran.append(key)
        return key

    async with one_call() as harness, ToolDispatcher(harness.bus, ToolRegistry([look_up])) as dispatcher:
        harness.bus.connect(ToolCallStarted, lambda _: harness.fail(harness.pending[0], "not needed any more"))
        result = await harness.start("?").result()
        await settle()
        statistics = dispatcher.statistics()
    assert [each.error for each in result.tool_calls] == ["not needed any more"]
    assert (statistics.threads, statistics.overdue) == (0, ())
    assert ran == []


@pytest.mark.guarantee("G12")
async def test_a_deadline_cancels_the_handler_at_once():
    cancelled: list[float] = []

    @tool
    async def look_up(key: str) -> str:
        """Look up a key, and notice a cancellation."""
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(now())
        return key

    async with one_call() as harness, ToolDispatcher(harness.bus, ToolRegistry([look_up])):
        await harness.start("?").result()
        await settle()
        assert cancelled == [pytest.approx(30, abs=ACCURACY)]


# ------------------------------------------------------------------------------------------------ late, or just in time


@pytest.mark.guarantee("G07")
async def test_a_result_after_the_deadline_goes_out_as_late_and_never_enters_the_transcript():
    async with Harness([calls(LOOK_UP), calls(LOOK_UP), text("Done.")], tools=["look_up"]) as harness:
        session = harness.start("?")
        first = await harness.expect(ToolCallRequested)
        second = await harness.expect(ToolCallRequested)
        assert harness.complete(first, "too late") is False
        assert harness.complete(second, "in time") is True
        result = await session.result()
        assert harness.fail(first, "and wrong") is False
    assert results(harness) == [TIMED_OUT, "in time"]
    late = harness.seen(ToolCallLate)
    assert [(each.call_id, each.event_type) for each in late] == [
        (first.call_id, "tool_call_completed"),
        (first.call_id, "tool_call_failed"),
    ]
    assert (late[0].content, late[1].error) == ("too late", "and wrong")
    assert "too late" not in str(result.messages)
    assert len(terminal(harness)) == 2


RACES = [
    pytest.param(-1.0, 0, id="a second before"),
    pytest.param(-1e-3, 0, id="a millisecond before"),
    *[pytest.param(0.0, steps, id=f"at the deadline, {steps} steps later") for steps in range(8)],
    pytest.param(1e-3, 0, id="a millisecond after"),
]


@pytest.mark.guarantee("G06", "G07")
@pytest.mark.parametrize("ready_first", [True, False], ids=["its timer is older", "its timer is younger"])
@pytest.mark.parametrize(("offset", "steps"), RACES)
async def test_a_result_that_races_the_deadline_is_reported_exactly_once(
    monkeypatch: pytest.MonkeyPatch, offset: float, steps: int, ready_first: bool
):
    # A wall clock that shows a whole number makes the moments on both clocks exact, so that they can be the same.
    monkeypatch.setattr("toolbus.clock.time.time", lambda: 1_000_000.0)
    accepted: list[bool] = []
    requested: list[ToolCallRequested] = []

    async def answer() -> None:
        await anyio.sleep_until(30 + offset)
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        accepted.append(harness.complete(requested[0], "found"))

    async with one_call() as harness:
        async with anyio.create_task_group() as group:
            if ready_first:
                group.start_soon(answer)
                await settle()
            harness.start("?")
            requested.append(await harness.expect(ToolCallRequested))
            if not ready_first:
                await settle()
                group.start_soon(answer)
        result = await harness.sessions[0].result()
        harness.assert_no_pending()
    validate(result.messages)
    (ending,) = terminal(harness)
    assert result.outcome == "completed"
    if accepted == [True]:
        assert isinstance(ending, ToolCallCompleted)
        assert results(harness) == ["found"]
        assert harness.seen(ToolCallLate) == []
    else:
        assert accepted == [False]
        assert isinstance(ending, ToolCallFailed)
        assert ending.reason == "timeout"
        assert results(harness) == [TIMED_OUT]
        assert len(harness.seen(ToolCallLate)) == 1
    if offset:
        assert accepted == [offset < 0]
    await assert_idle(harness.bus)


@pytest.mark.guarantee("G06", "G09")
@pytest.mark.parametrize("steps", range(6))
async def test_of_two_calls_due_at_once_an_answer_to_one_at_that_moment_leaves_the_other_its_own_end(
    monkeypatch: pytest.MonkeyPatch, steps: int
):
    monkeypatch.setattr("toolbus.clock.time.time", lambda: 1_000_000.0)
    script = [calls(("look_up", {"key": "a"}), ("look_up", {"key": "b"})), text("Done.")]
    async with Harness(script, tools=["look_up"]) as harness:
        session = harness.start("?")
        first = await harness.expect(ToolCallRequested)
        await anyio.sleep_until(30)
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        accepted = harness.complete(first, "found")
        result = await session.result()
        harness.assert_no_pending()
    validate(result.messages)
    assert [each.call_id for each in sorted(terminal(harness), key=lambda each: each.call_id)] == [
        call.call_id for call in result.tool_calls
    ]
    assert results(harness) == ["found" if accepted else TIMED_OUT, TIMED_OUT]
    assert now() == 30


@pytest.mark.guarantee("G06", "G12")
@pytest.mark.parametrize("steps", range(6))
async def test_a_handler_that_returns_at_its_deadline_is_reported_exactly_once(
    monkeypatch: pytest.MonkeyPatch, steps: int
):
    monkeypatch.setattr("toolbus.clock.time.time", lambda: 1_000_000.0)

    @tool
    async def look_up(key: str) -> str:
        """Look up a key, and take exactly as long as there is."""
        await anyio.sleep_until(30)
        with anyio.CancelScope(shield=True):
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
        return "found"

    async with one_call() as harness, ToolDispatcher(harness.bus, ToolRegistry([look_up])) as dispatcher:
        result = await harness.start("?").result()
        await advance(1)
        assert dispatcher.statistics().running == 0
        assert dispatcher.statistics().overdue == ()
    (ending,) = terminal(harness)
    assert results(harness) == ["found" if isinstance(ending, ToolCallCompleted) else TIMED_OUT]
    validate(result.messages)


# ------------------------------------------------------------------------------------------ the whole request's deadline


@pytest.mark.guarantee("G10")
async def test_the_timeout_of_the_whole_request_ends_it_stopped_and_names_the_limit():
    limits = Limits(timeout_seconds=45, tool_timeout_seconds=20, max_consecutive_errors=9)
    async with Harness(lambda _: calls(LOOK_UP), tools=["look_up"], limits=limits) as harness:
        result = await harness.start("?").result()
        harness.assert_no_pending()
    assert now() == pytest.approx(45, abs=ACCURACY)
    assert (result.outcome, result.reason) == ("stopped", "timeout_seconds=45")
    assert harness.seen(RequestCompleted)[0].reason == "timeout_seconds=45"
    assert [round(each.timeout_seconds, 3) for each in harness.seen(ToolCallRequested)] == [20, 20, 5]
    validate(result.messages)
    with pytest.raises(LimitReached, match="timeout_seconds=45") as raised:
        result.raise_for_outcome()
    assert (raised.value.limit, raised.value.value) == ("timeout_seconds", 45)
    await assert_idle(harness.bus)


@pytest.mark.guarantee("G10", "G12")
async def test_a_calls_deadline_is_cut_to_what_is_left_of_the_request():
    spec = ToolSpec(name="look_up", timeout_seconds=1_000)
    async with Harness([calls(LOOK_UP), text("Done.")], tools=[spec], limits=Limits(timeout_seconds=9)) as harness:
        session = harness.start("?")
        assert (await harness.expect(ToolCallRequested)).timeout_seconds == pytest.approx(9, abs=ACCURACY)
        result = await session.result()
    assert now() == pytest.approx(9, abs=ACCURACY)
    assert (result.outcome, result.reason) == ("stopped", "timeout_seconds=9")


@pytest.mark.guarantee("G10")
async def test_the_request_ends_on_time_while_the_model_is_asked():
    provider = SlowProvider(lambda _: anyio.sleep_forever())
    async with Harness(provider, limits=Limits(timeout_seconds=8)) as harness:
        result = await harness.start("?").result()
    assert now() == pytest.approx(8, abs=ACCURACY)
    assert (result.outcome, result.reason) == ("stopped", "timeout_seconds=8")
    assert harness.seen(RequestFailed) == []


@pytest.mark.guarantee("G10")
async def test_the_requests_deadline_counts_the_rounds_before():
    provider = SlowProvider(lambda _: anyio.sleep_forever(), call_first=True)
    async with Harness(provider, tools=["look_up"], limits=Limits(timeout_seconds=40)) as harness:
        session = harness.start("?")
        requested = await harness.expect(ToolCallRequested)
        await advance(25)
        harness.complete(requested, "found")
        result = await session.result()
    assert now() == pytest.approx(40, abs=ACCURACY)
    assert (result.outcome, result.reason) == ("stopped", "timeout_seconds=40")
    assert results(harness) == ["found"]


@pytest.mark.guarantee("G10")
async def test_results_that_arrive_by_the_requests_end_are_kept_and_the_text_is_the_last_there_was():
    script = [calls(LOOK_UP, ("look_up", {"key": "b"}), text="Let me look.")]
    async with Harness(script, tools=["look_up"], limits=Limits(timeout_seconds=10)) as harness:
        session = harness.start("?")
        harness.complete(await harness.expect(ToolCallRequested), "found")
        result = await session.result()
    assert (result.outcome, result.text) == ("stopped", "Let me look.")
    assert results(harness)[0] == "found"
    validate(result.messages)


# ------------------------------------------------------------------------------------------------- the model's deadlines


@pytest.mark.guarantee("G10")
async def test_a_model_that_never_answers_fails_the_request_with_provider_timeout():
    provider = SlowProvider(lambda _: anyio.sleep_forever())
    async with Harness(provider, limits=Limits(max_model_attempts=1)) as harness:
        result = await harness.start("?").result()
    assert now() == pytest.approx(300, abs=ACCURACY)
    assert (result.outcome, result.reason) == ("failed", "provider_timeout")
    (failed,) = harness.seen(RequestFailed)
    assert failed.retryable
    assert "model_timeout_seconds=300" in failed.error
    assert isinstance(result.error, ProviderTimeout)
    await assert_idle(harness.bus)


@pytest.mark.guarantee("G10")
async def test_a_model_that_answers_just_in_time_is_heard():
    provider = SlowProvider(lambda _: anyio.sleep(299.999))
    async with Harness(provider) as harness:
        assert (await harness.start("?").result()).text == "Done."


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("extra_steps", range(4))
async def test_a_model_that_answers_at_its_deadline_gives_one_ending(monkeypatch: pytest.MonkeyPatch, extra_steps: int):
    monkeypatch.setattr("toolbus.clock.time.time", lambda: 1_000_000.0)

    async def work(_emit: Emit) -> None:
        await anyio.sleep_until(300)
        with anyio.CancelScope(shield=True):
            for _ in range(extra_steps):
                await anyio.lowlevel.checkpoint()

    async with Harness(SlowProvider(work)) as harness:
        result = await harness.start("?").result()
    assert len(harness.seen(RequestCompleted)) + len(harness.seen(RequestFailed)) == 1
    assert len(harness.seen(ModelResponded)) == (result.outcome == "completed")
    assert (result.outcome, result.reason) in {("completed", ""), ("failed", "provider_timeout")}


@pytest.mark.guarantee("G10")
async def test_a_model_that_swallows_its_cancellation_and_answers_late_does_not_hang_the_request():
    async def work(_: Emit) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(375)

    async with Harness(SlowProvider(work)) as harness:
        result = await harness.start("?").result()
    assert now() == pytest.approx(375, abs=ACCURACY)
    assert result.outcome in {"completed", "failed"}


PIECES = [TextPiece("a"), ReasoningPiece("b"), ArgumentsPiece(0, "look_up", "{")]


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("piece", PIECES, ids=["text", "reasoning", "arguments"])
async def test_a_stream_that_stands_still_ends_by_its_idle_limit(piece: Delta):
    async def work(emit: Emit) -> None:
        await anyio.sleep(5)
        emit(piece)
        await anyio.sleep_forever()

    async with Harness(SlowProvider(work), limits=Limits(stream_idle_seconds=7, max_model_attempts=1)) as harness:
        result = await harness.start("?").result()
    assert now() == pytest.approx(12, abs=ACCURACY)
    assert (result.outcome, result.reason) == ("failed", "provider_timeout")
    assert "stream_idle_seconds=7" in str(result.error)


@pytest.mark.guarantee("G10")
def test_a_timer_that_fires_a_hair_early_is_reported_as_the_deadline_for_which_it_was_set():
    """Else the machine would find that its time is not over yet, and the model would be asked again."""
    clock: Any = SimpleNamespace(on_loop=float, loop_time=lambda: 0.0)
    deadlines: list[float] = []
    timer: Any = SimpleNamespace(set=deadlines.append)
    command = CallModel(round=0, message_id="m", offer_tools=True, not_before=0.0, deadline=100.0, provider=0)
    call = ModelCall(EventBus(), TurnState("r"), clock, command, timer, lambda: None)
    assert deadlines == [100.0]
    assert call.elapsed_input(100.0 - 1e-9) == (Elapsed(), 100.0)
    assert call.elapsed_input(100.5) == (Elapsed(), 100.5)


async def test_a_stream_that_keeps_emitting_is_not_idle():
    async def work(emit: Emit) -> None:
        for _ in range(30):
            await anyio.sleep(1.9)
            emit(TextPiece("a"))

    async with Harness(SlowProvider(work), limits=Limits(stream_idle_seconds=3, max_model_attempts=1)) as harness:
        result = await harness.start("?").result()
        assert len(harness.seen(TextDelta)) == 30
    assert now() == pytest.approx(57, abs=ACCURACY)
    assert result.outcome == "completed"


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("gap", [0.05, 0.29, 0.31, 1, 2.65])
async def test_the_idle_limit_is_kept_within_a_tenth_whatever_the_pace_before(gap: float):
    stood_still: list[float] = []

    async def work(emit: Emit) -> None:
        for _ in range(12):
            await anyio.sleep(gap)
            emit(TextPiece("a"))
        stood_still.append(now())
        await anyio.sleep_forever()

    async with Harness(SlowProvider(work), limits=Limits(stream_idle_seconds=3, max_model_attempts=1)) as harness:
        result = await harness.start("?").result()
    assert result.outcome == "failed"
    assert 2.7 - ACCURACY <= now() - stood_still[0] <= 3 + ACCURACY


@pytest.mark.guarantee("G10")
async def test_a_stream_that_has_not_begun_is_not_idle():
    async def work(_: Emit) -> None:
        await anyio.sleep(50)

    async with Harness(SlowProvider(work), limits=Limits(stream_idle_seconds=3, max_model_attempts=1)) as harness:
        assert (await harness.start("?").result()).outcome == "completed"


@pytest.mark.guarantee("G10")
async def test_a_model_may_think_for_minutes_before_its_first_piece():
    provider = SlowProvider(lambda _: anyio.sleep(200))
    async with Harness(provider) as harness:
        result = await harness.start("?").result()
    assert (result.outcome, result.text, provider.asked) == ("completed", "Done.", 1)


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("seconds", [61, 400])
async def test_a_model_that_streams_steadily_is_asked_once_and_heard_to_the_end(seconds: int):
    words = [f"{number} " for number in range(seconds)]
    async with Harness([text("".join(words), words, delays=1)]) as harness:
        session = harness.start("?")
        heard = [piece async for piece in session.text()]
        result = await session.result()
    assert now() == pytest.approx(seconds, abs=ACCURACY)
    assert (result.outcome, result.text, result.rounds) == ("completed", "".join(words), 1)
    assert "".join(heard) == result.text
    assert harness.seen(ModelRetrying) == []


@pytest.mark.guarantee("G10")
async def test_a_stream_that_never_ends_is_bounded_by_the_time_of_the_request():
    async def work(emit: Emit) -> None:
        while True:
            await anyio.sleep(1)
            emit(TextPiece("a"))

    provider = SlowProvider(work)
    async with Harness(provider) as harness:
        result = await harness.start("?").result()
    assert now() == pytest.approx(600, abs=ACCURACY)
    assert (result.outcome, result.reason, provider.asked) == ("stopped", "timeout_seconds=600", 1)


@pytest.mark.guarantee("G10")
async def test_a_piece_that_comes_after_the_time_is_over_begins_no_stream():
    """A provider that still emits while it is cancelled would otherwise change which limit is named."""

    async def work(emit: Emit) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            emit(TextPiece("a"))

    async with Harness(SlowProvider(work), limits=Limits(timeout_seconds=20)) as harness:
        result = await harness.start("?").result()
    assert (result.outcome, result.reason) == ("stopped", "timeout_seconds=20")


@pytest.mark.guarantee("G10")
async def test_a_stream_that_emits_past_the_requests_deadline_ends_stopped():
    async def work(emit: Emit) -> None:
        while True:
            await anyio.sleep(1)
            emit(TextPiece("a"))

    limits = Limits(timeout_seconds=20, stream_idle_seconds=15, max_model_attempts=1)
    async with Harness(SlowProvider(work), limits=limits) as harness:
        result = await harness.start("?").result()
    assert now() == pytest.approx(20, abs=ACCURACY)
    assert (result.outcome, result.reason) == ("stopped", "timeout_seconds=20")


# ------------------------------------------------------------------------------------------------------------ clocks


@pytest.mark.guarantee("G27")
@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0], ids=["back a day", "on a day"])
async def test_a_jump_of_the_wall_clock_neither_hangs_nor_fires_anything(monkeypatch: pytest.MonkeyPatch, jump: float):
    async with one_call() as harness:
        session = harness.start("?")
        requested = await harness.expect(ToolCallRequested)
        await advance(10)
        wall = time.time
        monkeypatch.setattr("toolbus.clock.time.time", lambda: wall() + jump)
        await advance(19)
        assert not session.ended
        failed = await harness.expect(ToolCallFailed)
        assert now() == pytest.approx(30, abs=ACCURACY)
        assert failed.at - requested.at == pytest.approx(30, abs=ACCURACY)
        result = await session.result()
    assert result.duration_seconds == pytest.approx(30, abs=ACCURACY)


@pytest.mark.guarantee("G27")
async def test_listeners_that_come_after_a_jump_of_the_wall_clock_do_not_change_the_bus_clock(
    monkeypatch: pytest.MonkeyPatch,
):
    @tool
    async def look_up(key: str) -> str:
        """Look up a key, slowly."""
        await anyio.sleep(4)
        return key

    async with one_call() as harness, ToolDispatcher(harness.bus, ToolRegistry([look_up])):
        session = harness.start("?")
        await harness.expect(ToolCallRequested)
        await advance(1)
        wall = time.time
        monkeypatch.setattr("toolbus.clock.time.time", lambda: wall() + 86_400)
        async with harness.bus.subscribe():
            result = await session.result()
    assert result.tool_calls[0].duration_seconds == pytest.approx(4, abs=ACCURACY)
    began = harness.events[0].at
    assert all(0 <= each.at - began <= 4 + ACCURACY for each in harness.events)


async def test_every_event_of_a_request_is_stamped_by_one_clock_whoever_published_it():
    drift: dict[str, float] = {}
    async with one_call() as harness:
        session = harness.start("?")
        requested = await harness.expect(ToolCallRequested)
        began = requested.at

        def compare(event: Event) -> None:
            drift[event.type] = round(event.at - began - now(), 3)

        harness.bus.connect(Event, compare)
        await advance(12)
        session.steer("And hurry.")
        session.cancel("enough")
        await session.result()
        await advance(8)
        harness.complete(requested, "late")
        session.cancel("again")
    assert drift.keys() >= {"steering_added", "cancel_requested", "request_cancelled", "tool_call_late"}
    assert {kind: seconds for kind, seconds in drift.items() if seconds} == {}


@pytest.mark.guarantee("G10")
async def test_a_request_of_an_hour_runs_in_milliseconds():
    limits = Limits(timeout_seconds=7_200, tool_timeout_seconds=600, max_consecutive_errors=100, max_rounds=100)
    rounds = iter(range(100))

    def model(_: ModelRequest) -> object:
        number = next(rounds)
        return calls(("look_up", {"key": str(number)})) if number < 6 else text("Done.")

    began = time.process_time()
    async with Harness(model, tools=["look_up"], limits=limits) as harness:  # pyright: ignore[reportArgumentType]
        result = await harness.start("?").result()
    assert now() == pytest.approx(3_600, abs=ACCURACY)
    assert time.process_time() - began < 1
    assert result.outcome == "completed"
    assert len(terminal(harness)) == 6


@pytest.mark.guarantee("G10")
@pytest.mark.repeats("a thousand times")
async def test_a_thousand_requests_time_out_each_at_its_own_moment():
    ended: dict[float, float] = {}
    async with (
        Harness(lambda request: calls(LOOK_UP) if request.round == 0 else text("."), tools=["look_up"]) as harness,
        anyio.create_task_group() as group,
    ):

        async def one(seconds: float) -> None:
            await harness.start("?", limits=Limits(tool_timeout_seconds=seconds)).result()
            ended[seconds] = now()

        for number in range(1, 1001):
            group.start_soon(one, number / 10)
    assert all(math.isclose(moment, seconds, abs_tol=ACCURACY) for seconds, moment in ended.items())
    assert list(ended) == sorted(ended)
    assert len(ended) == 1000
    await assert_idle(harness.bus)


@pytest.mark.guarantee("G12")
async def test_a_timeout_is_reported_in_the_seconds_that_were_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "toolbus.clock.time.time", lambda: 1_795_304_537.7287965
    )  # on which 0.1 cannot be added exactly
    async with one_call(limits=Limits(tool_timeout_seconds=0.1)) as harness:
        await harness.start("?").result()
    assert [each.error for each in harness.seen(ToolCallFailed)] == ["look_up did not answer in 0.1 s."]
