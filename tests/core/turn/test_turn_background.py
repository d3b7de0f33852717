"""The turn machine: a background call gives a ticket at once, and its result wakes the request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from turn_driver import TOOLS, Turn, call, completed, failed, of, paused, replied, resumed

from toolbus.core.limits import Limits
from toolbus.core.turn import AwaitCalls, CallModel, Finish, Phase, Resume
from toolbus.core.turn._repeats import is_repeat  # pyright: ignore[reportPrivateUsage]
from toolbus.events import (
    ApprovalRequested,
    Event,
    MessageAppended,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RoundStarted,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import ImagePart, SystemMessage, ToolMessage
from toolbus.protocols import ToolSpec
from toolbus.toolsets.control import task_complete

pytestmark = pytest.mark.guarantee("G33")

DAY = 86_400.0
RENDER = ToolSpec(name="render", background=True, timeout_seconds=4 * DAY)
OUTSIDE = ToolSpec(name="outside", background=True, external=True, timeout_seconds=4 * DAY)
PURE = ToolSpec(name="pure", background=True, idempotent=True)
ALL = {**TOOLS, "render": RENDER, "outside": OUTSIDE, "pure": PURE, "task_complete": task_complete.spec}


def started(*names: str, limits: Limits | None = None, **agreed: Any) -> Turn:
    """A request whose first reply has made these calls."""
    turn = Turn(limits, tools=ALL, **agreed)
    turn.step(replied("", *(call(name, '{"n":1}') for name in names or ("render",))))
    return turn


def notes(turn: Turn) -> list[str]:
    return [each.text for each in turn.state.messages if isinstance(each, SystemMessage)]


def tickets(turn: Turn) -> list[bool]:
    return [
        each.content.startswith("The call runs in the background.")
        for each in turn.state.messages
        if isinstance(each, ToolMessage)
    ]


def test_the_model_gets_a_ticket_at_once_and_continues() -> None:
    turn = started()
    assert isinstance(turn.command, CallModel)
    assert (turn.roles, tickets(turn)) == (["user", "assistant", "tool"], [True])
    [requested] = of(ToolCallRequested, turn.facts)
    assert (requested.background, requested.timeout_seconds) == (True, 4 * DAY)
    assert of(RoundStarted, turn.facts)[-1].call_outcomes[0].ok


def test_a_call_that_gave_a_ticket_each_time_is_a_repeat_even_if_its_results_differ() -> None:
    turn = started(limits=Limits(max_repeats=2))
    turn.step(completed("r_0_0", "first"))
    turn.step(replied("", call("render", '{"n":1}')))
    turn.step(completed("r_1_0", "second"))
    assert of(ToolCallFailed, turn.facts) == []
    turn.step(replied("", call("render", '{"n":1}')))
    assert [each.limit for each in of(ToolCallFailed, turn.facts)] == ["max_repeats=2"]


@pytest.mark.parametrize(
    ("read", "repeats"), [("tt", True), ("rr", True), ("tr", False), ("rt", False), ("t", False), ("ts", False)]
)
def test_a_call_is_a_repeat_if_the_model_has_read_the_same_each_time(read: str, repeats: bool) -> None:
    """A ticket, a result, or another result."""
    same = call("render", '{"n":1}')
    earlier = [
        SimpleNamespace(
            call=same,
            arguments={"n": 1},
            outcome=ToolCallCompleted(request_id="r", call_id="c", name="render", content=each),
            has_ticket=each == "t",
        )
        for each in read
    ]
    rounds = [SimpleNamespace(calls=calls) for calls in (*([each] for each in earlier), [])]
    state: Any = SimpleNamespace(limits=Limits(max_repeats=2), rounds=rounds)
    assert is_repeat(state, same, {"n": 1}) is repeats


def test_listeners_hear_the_ticket_after_the_request_that_completes_the_round() -> None:
    turn = started("clock", "render", "render")
    assert turn.appended(turn.facts)[-1].message.role == "assistant"  # the clock has not answered yet
    facts = turn.complete("r_0_0")
    assert [each.message.role for each in turn.appended(facts)] == ["tool"] * 3
    assert tickets(turn) == [False, True, True]
    alone = started("render")
    heard = [each.message.role for each in alone.appended(alone.facts)]
    assert heard == ["user", "assistant", "tool"]
    alone.reply("It is under way.")
    facts = alone.complete("r_0_0")
    assert [each.message.role for each in alone.appended(facts)] == ["system"]


def test_after_an_answer_the_request_waits_and_the_result_begins_another_round() -> None:
    turn = started()
    turn.reply("It is under way.")
    command = turn.command
    assert isinstance(command, AwaitCalls)
    assert [*command.calls] == ["r_0_0"]
    assert turn.state.phase is Phase.READY
    turn.now += 3 * DAY  # far beyond the request's time
    facts = turn.complete("r_0_0", content="film.mp4")
    assert [type(each) for each in facts] == [ToolCallCompleted, MessageAppended, RoundStarted]
    assert notes(turn) == ['A call in the background has ended. render({"n":1}) gave: film.mp4']
    turn.reply("The film is ready.")
    assert turn.ending.text == "The film is ready."
    assert turn.ending.outcome == "completed"


def test_the_clock_of_the_request_stands_still_only_while_it_waits() -> None:
    turn = started(limits=Limits(timeout_seconds=10))
    turn.now += 4
    turn.reply("It is under way.")
    turn.now += DAY
    turn.complete("r_0_0")
    assert isinstance(turn.waiting, CallModel)
    assert turn.waiting.deadline == pytest.approx(turn.now + 6)


def test_a_result_that_comes_early_takes_the_place_of_the_ticket() -> None:
    turn = started("render", "clock")
    turn.complete("r_0_0", content="at once")
    turn.complete("r_0_1")
    assert tickets(turn) == [False, False]
    turn.reply("Done.")
    assert (turn.ending.outcome, notes(turn)) == ("completed", [])


def test_a_result_while_the_model_is_asked_is_read_before_the_request_ends() -> None:
    turn = started()
    assert [type(each) for each in turn.complete("r_0_0", content="film.mp4")] == [ToolCallCompleted]
    assert isinstance(turn.command, CallModel)
    facts = turn.reply("It is under way.")
    assert [type(each) for each in facts[1:]] == [MessageAppended, RoundStarted]
    turn.reply("The film is ready.")
    assert isinstance(turn.command, Finish)


def test_a_result_that_comes_twice_counts_once() -> None:
    turn = started()
    turn.reply("It is under way.")
    first, second = completed("r_0_0", content="first"), completed("r_0_0", content="second")
    facts = turn.step(first, second, first)
    assert of(ToolCallCompleted, facts) == [first]
    turn.reply("Done.")
    assert turn.step(second) == []
    assert [each.endswith("first") for each in notes(turn)] == [True]


def test_each_result_wakes_the_request_and_it_ends_after_the_last_one() -> None:
    turn = started("render", "outside")
    turn.reply("Both are under way.")
    turn.complete("r_0_1")
    assert isinstance(turn.command, CallModel)
    turn.reply("One is there.")
    assert isinstance(turn.command, AwaitCalls)
    turn.fail("r_0_0")
    assert [each.partition("ended. ")[2].partition("(")[0] for each in notes(turn)] == ["outside", "render"]
    assert '"error":"broken"' in notes(turn)[1]
    turn.reply("Both are there.")
    assert turn.ending.text == "Both are there."


def test_a_person_who_steers_is_answered_while_the_call_runs() -> None:
    turn = started()
    turn.reply("It is under way.")
    turn.steer("How long will it take?")
    assert turn.roles[-1] == "user"
    assert isinstance(turn.command, CallModel)
    turn.reply("Three days.")
    assert isinstance(turn.command, AwaitCalls)
    assert [*turn.state.open_calls] == ["r_0_0"]


def test_its_own_deadline_ends_it_and_the_model_reads_why() -> None:
    turn = started("pure", limits=Limits(background_timeout_seconds=DAY))
    turn.reply("It is under way.")
    assert turn.waiting.deadline == turn.now + DAY
    facts = turn.elapse()
    assert [each.reason for each in of(ToolCallFailed, facts)] == ["timeout"]
    assert "did not answer in 86400 s" in notes(turn)[0]
    assert isinstance(turn.command, CallModel)


def test_a_call_that_needs_approval_gets_its_ticket_when_it_is_approved() -> None:
    turn = Turn(tools={"render": ToolSpec(name="render", background=True, needs_approval=True)})
    facts = turn.call(call("render"))
    assert of(ApprovalRequested, facts)
    assert turn.roles[-1] == "assistant"
    facts = turn.approve("r_0_0")
    assert tickets(turn) == [True]
    assert isinstance(turn.command, CallModel)


# --------------------------------------------------------------------------------------------- the end


def ended_early(turn: Turn, facts: list[Event], kind: type[Event]) -> None:
    """The call is given up, and noted, before the ending; the transcript stays valid (the driver checks it)."""
    assert isinstance(facts[-1], kind)
    [given_up] = of(ToolCallFailed, facts)
    assert (given_up.reason, given_up.outcome_unknown) == ("cancelled", True)
    assert given_up.error == f"The request {'was cancelled' if kind is RequestCancelled else 'has ended'}."
    assert len(notes(turn)) == 1
    assert not turn.state.open_calls


@pytest.mark.parametrize("when", ["asked", "waiting"])
def test_a_cancel_gives_the_call_up(when: str) -> None:
    turn = started()
    if when == "waiting":
        turn.reply("It is under way.")
    ended_early(turn, turn.cancel(), RequestCancelled)


def test_a_model_that_fails_gives_the_call_up() -> None:
    turn = started()
    ended_early(turn, turn.break_model(retryable=False), RequestFailed)


def test_the_end_of_the_requests_time_gives_the_call_up() -> None:
    turn = started(limits=Limits(timeout_seconds=10))
    turn.now += 10
    ended_early(turn, turn.elapse(0), RequestCompleted)
    assert turn.stopped_by == "timeout_seconds=10"


def test_a_call_that_ends_the_request_gives_it_up() -> None:
    turn = started()
    ended_early(turn, turn.call(call("task_complete", '{"answer":"enough"}')), RequestCompleted)
    assert turn.ending.text == "enough"


def test_a_result_that_has_come_is_in_the_transcript_of_a_request_that_fails() -> None:
    turn = started("render", "outside")
    turn.complete("r_0_0", content="film.mp4")
    turn.break_model(retryable=False)
    assert "gave: film.mp4" in notes(turn)[0]
    assert len(notes(turn)) == 2


def test_at_a_limit_the_last_answer_comes_after_all_results() -> None:
    turn = started("render", "outside", limits=Limits(max_rounds=2))
    turn.reply("Both are under way.")
    turn.complete("r_0_0")
    assert isinstance(turn.command, AwaitCalls)
    turn.complete("r_0_1")
    assert turn.last_answer_is_asked
    assert len(notes(turn)) == 2
    turn.reply("Both are there.")
    assert (turn.stopped_by, turn.ending.text) == ("max_rounds=2", "Both are there.")


def test_talking_to_a_request_that_waits_does_not_use_up_its_rounds() -> None:
    turn = started("render", limits=Limits(max_rounds=2))
    turn.reply("It is under way.")
    for number in range(5):
        turn.steer(f"Number {number}?")
        assert isinstance(turn.command, CallModel)
        assert of(RoundStarted, turn.facts)[-1].tools_offered
        turn.reply("Not yet.")
        assert isinstance(turn.command, AwaitCalls)
    turn.complete("r_0_0")
    turn.reply("It is there.")
    assert (turn.ending.outcome, turn.ending.text) == ("completed", "It is there.")


def test_what_a_person_asks_for_meanwhile_is_bounded_as_a_turn_is() -> None:
    turn = started("render", limits=Limits(max_rounds=2))
    turn.reply("It is under way.")
    turn.steer("What time is it?")
    for number in range(2):
        turn.step(replied("", call("clock", f'{{"n":{number}}}')))
        turn.complete(f"r_{number + 2}_0")
    assert turn.last_answer_is_asked
    turn.reply("Late.")
    assert turn.stopped_by == "max_rounds=2"


def test_with_fail_fast_a_failure_in_the_background_ends_the_request() -> None:
    turn = started("render", "outside", limits=Limits(on_failure="fail_fast"))
    turn.reply("Both are under way.")
    facts = turn.step(failed("r_0_0"))
    assert [each.reason for each in of(ToolCallFailed, facts)] == ["error", "cancelled"]
    assert turn.stopped_by == "on_failure=fail_fast"


# ----------------------------------------------------------------------------------------- another process


@pytest.mark.guarantee("G19")
@pytest.mark.parametrize("name", ["outside", "pure"])
@pytest.mark.parametrize("phase", [Phase.MODEL, Phase.READY, Phase.TOOLS])
def test_after_a_restart_it_is_requested_again_and_keeps_its_deadline(phase: Phase, name: str) -> None:
    turn = started(name, limits=Limits(background_timeout_seconds=4 * DAY))
    if phase is Phase.READY:
        turn.reply("It is under way.")
    elif phase is Phase.TOOLS:
        turn.call()
    for _ in range(3):
        turn.now += 20
        facts = turn.step(Resume())
        [again] = [each for each in of(ToolCallRequested, facts) if each.call_id == "r_0_0"]
        assert (again.resumed, again.background) == (True, True)
        assert again.at + again.timeout_seconds == pytest.approx(turn.facts[0].at + 4 * DAY)
        if phase is not Phase.TOOLS:
            assert turn.state.phase is phase
    assert tickets(turn)[0]


@pytest.mark.guarantee("G19")
@pytest.mark.parametrize("phase", [Phase.MODEL, Phase.READY])
def test_after_a_restart_a_call_that_may_not_run_twice_is_interrupted_and_noted(phase: Phase) -> None:
    turn = started()
    if phase is Phase.READY:
        turn.reply("It is under way.")
    facts = turn.step(Resume())
    assert [each.reason for each in of(ToolCallFailed, facts)] == ["interrupted"]
    if phase is Phase.MODEL:
        turn.reply("It is under way.")
    assert "The process ended while render ran" in notes(turn)[0]
    assert isinstance(turn.command, CallModel)


def test_a_pause_of_the_call_does_not_stop_the_clock_of_the_request() -> None:
    turn = started(limits=Limits(timeout_seconds=100, approval_timeout_seconds=50))
    until = turn.waiting.deadline
    turn.step(paused("r_0_0"))
    assert (turn.state.waiting, turn.waiting.deadline) == (0, until)
    deadline = turn.state.open_calls["r_0_0"].deadline
    assert deadline == turn.now + 50 + 4 * DAY
    turn.now += 10
    turn.step(resumed("r_0_0"))
    assert turn.state.open_calls["r_0_0"].deadline == pytest.approx(turn.now + 4 * DAY)
    turn.step(paused("r_0_0"))
    turn.step(Resume())
    assert turn.state.waiting == 0


def test_after_a_restart_a_paused_call_has_the_time_that_it_had_left() -> None:
    turn = started("outside", limits=Limits(timeout_seconds=9 * DAY, background_timeout_seconds=4 * DAY))
    turn.now += 2 * DAY
    turn.pause("r_0_0")
    turn.now += 100
    [again] = of(ToolCallRequested, turn.step(Resume()))
    assert again.timeout_seconds == pytest.approx(2 * DAY)


def test_a_note_says_what_it_leaves_out() -> None:
    turn = Turn(tools=ALL)
    turn.call(call("render", f'{{"script":"{"x" * 5_000}"}}'))
    turn.reply("It is under way.")
    picture = ImagePart(url="data:image/png;base64,aGk=")
    turn.step(completed("r_0_0", content="y" * 500_000, parts=(picture,)))
    [note] = notes(turn)
    assert note.endswith("(images and files left out: 1)")
    assert len(note) < 60_000
