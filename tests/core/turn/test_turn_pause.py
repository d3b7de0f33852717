"""A call that runs and waits for a person: its clock and the request's stand still, and both go on by what was left."""

from __future__ import annotations

from typing import Any

import pytest
from turn_driver import TOOLS, Turn, call, completed, failed, of, paused, resumed

from toolbus.core.limits import Limits
from toolbus.core.turn import AwaitCalls, CallModel, Elapsed, apply, pending
from toolbus.errors import ProtocolViolation
from toolbus.events import (
    CancelRequested,
    Event,
    RequestCancelled,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallPaused,
    ToolCallResumed,
    decode,
    encode,
)
from toolbus.protocols import ToolSpec

OFFERED = {**TOOLS, "pay": ToolSpec(name="pay", needs_approval=True), "step": ToolSpec(name="step", sequential=True)}


def running(*names: str, **limits: Any) -> Turn:
    """A turn whose model has called these tools; a call may take 30 seconds, the request 120."""
    turn = Turn(Limits(**limits), tools=OFFERED)
    turn.call(*(call(name) for name in names or ["clock"]))
    return turn


def failures(facts: list[Event]) -> list[tuple[str, str]]:
    return [(each.call_id, each.reason) for each in of(ToolCallFailed, facts)]


def assert_replayed(turn: Turn) -> None:
    """The journal, through JSON, gives the same state and the same command."""
    state = turn.fresh()
    for fact in turn.facts:
        apply(state, decode(encode(fact)))
    assert state == turn.state
    assert pending(state) == turn.command


# ----------------------------------------------------------------------------------------------- the clocks


def test_a_paused_call_and_its_request_have_the_time_left_that_they_had() -> None:
    turn = running()
    turn.now += 10
    turn.pause("r_0_0")
    turn.now += 1_000
    turn.resume("r_0_0")
    assert turn.waiting.deadline == turn.now + 20
    assert turn.state.deadline == turn.state.started_at + 600 + 1_000
    assert failures(turn.elapse()) == [("r_0_0", "timeout")]


def test_the_time_of_the_request_is_not_over_while_a_call_is_paused() -> None:
    turn = running(timeout_seconds=20)
    turn.now += 15
    turn.pause("r_0_0")
    assert turn.elapse(3_000) == []
    turn.step(completed("r_0_0", at=turn.now))
    assert isinstance(turn.command, CallModel)
    assert turn.waiting.deadline == turn.now + 5


def test_a_call_may_be_paused_again_and_again() -> None:
    turn = running()
    for _ in range(3):
        turn.now += 5
        assert [each.call_id for each in of(ToolCallPaused, turn.pause("r_0_0"))] == ["r_0_0"]
        turn.now += 100
        assert [each.call_id for each in of(ToolCallResumed, turn.resume("r_0_0"))] == ["r_0_0"]
    assert turn.waiting.deadline == turn.now + 15
    assert turn.state.deadline == turn.state.started_at + 600 + 300
    assert_replayed(turn)


def test_pauses_that_overlap_each_other_and_an_approval_stop_the_requests_clock_once() -> None:
    turn = running("clock", "clock", "pay")
    turn.now += 10
    turn.pause("r_0_0")  # while the third call waits for its approval since ten seconds
    turn.now += 5
    turn.pause("r_0_1")
    turn.now += 7
    turn.approve("r_0_2")
    turn.now += 3
    turn.resume("r_0_0")
    assert turn.state.waiting == 1
    assert turn.state.open_calls["r_0_0"].deadline == turn.now + 20
    turn.now += 1
    turn.resume("r_0_1")
    assert turn.state.waiting == 0
    assert turn.state.open_calls["r_0_1"].deadline == turn.now + 15
    assert turn.state.deadline == turn.state.started_at + 600 + 26
    assert_replayed(turn)


def test_a_call_beside_a_paused_one_keeps_its_deadline() -> None:
    turn = running("clock", "clock")
    turn.now += 10
    turn.pause("r_0_0")
    assert failures(turn.elapse()) == [("r_0_1", "timeout")]
    assert turn.now == turn.state.started_at + 30
    assert list(turn.state.open_calls) == ["r_0_0"]


def test_a_sequential_call_behind_a_paused_one_waits_for_it_and_has_its_own_time() -> None:
    turn = running("step", "step", timeout_seconds=40, max_repeats=9)
    turn.pause("r_0_0")
    turn.now += 1_000
    turn.step(completed("r_0_0", at=turn.now))
    assert turn.waiting.deadline == turn.now + 30
    assert turn.state.deadline == turn.now + 40


@pytest.mark.guarantee("G27")
@pytest.mark.parametrize("at", [0.0, 1_000_005.0, 9e12], ids=["behind", "within", "ahead"])
def test_a_pause_is_timed_by_the_sessions_clock_and_by_no_executors(at: float) -> None:
    turn = running()
    turn.now += 10
    turn.step(paused("r_0_0", at=at))
    turn.now += 1_000
    turn.step(resumed("r_0_0", at=at))
    assert [each.at for each in turn.facts[-2:]] == [turn.now - 1_000, turn.now]
    assert turn.waiting.deadline == turn.now + 20
    assert turn.state.deadline == turn.state.started_at + 600 + 1_000


# ------------------------------------------------------------------------------------------------ its bounds


@pytest.mark.guarantee("G10")
def test_a_pause_that_nobody_ends_is_bounded_by_the_approvals_time_and_what_was_left() -> None:
    turn = running(approval_timeout_seconds=60)
    turn.now += 10
    turn.pause("r_0_0")
    assert turn.waiting.deadline == turn.now + 60 + 20
    assert turn.elapse(79.999) == []
    facts = turn.elapse(0.001)
    assert failures(facts) == [("r_0_0", "timeout")]
    assert of(ToolCallFailed, facts)[0].outcome_unknown
    assert turn.state.waiting == 0
    assert turn.state.deadline == turn.state.started_at + 600 + 80
    assert isinstance(turn.command, CallModel)


def test_a_call_that_is_overdue_when_it_is_paused_has_no_time_left_afterwards() -> None:
    turn = running()
    turn.now += 31  # before anybody has noticed
    turn.pause("r_0_0")
    turn.now += 100
    turn.resume("r_0_0")
    assert turn.waiting.deadline == turn.now
    assert failures(turn.elapse(0)) == [("r_0_0", "timeout")]


def test_a_pause_that_is_noticed_to_be_over_late_is_no_time_of_the_requests() -> None:
    """As for a question that nobody answers: the clock stands still until the machine itself goes on."""
    turn = running(approval_timeout_seconds=60)
    turn.now += 10
    turn.pause("r_0_0")
    assert failures(turn.elapse(90)) == [("r_0_0", "timeout")]  # due after 80
    assert turn.state.deadline == turn.state.started_at + 600 + 90


@pytest.mark.guarantee("G06")
def test_a_second_pause_or_resume_means_nothing() -> None:
    turn = running()
    assert turn.resume("r_0_0") == []
    turn.pause("r_0_0")
    before = turn.waiting.deadline
    turn.now += 50
    assert turn.pause("r_0_0") == []
    assert turn.waiting.deadline == before
    assert len(turn.step(resumed("r_0_0"), resumed("r_0_0"))) == 1
    assert (turn.state.waiting, turn.waiting.deadline) == (0, turn.now + 30)


def test_a_pause_and_its_end_in_one_step_change_no_clock() -> None:
    turn = running()
    turn.now += 10
    assert len(turn.step(paused("r_0_0"), resumed("r_0_0"))) == 2
    assert turn.waiting.deadline == turn.now + 20
    assert turn.state.deadline == turn.state.started_at + 600


@pytest.mark.parametrize("call_id", ["r_0_0", "r_0_2", "r_0_9", ""], ids=["asked", "held", "unknown", "none"])
def test_only_a_call_that_runs_can_be_paused(call_id: str) -> None:
    turn = running("pay", "step", "step")
    before = turn.waiting.deadline
    assert turn.step(paused(call_id), resumed(call_id)) == []
    assert turn.waiting.deadline == before


def test_a_settled_call_is_paused_no_more() -> None:
    turn = running()
    assert of(ToolCallPaused, turn.step(completed("r_0_0", at=turn.now), paused("r_0_0"))) == []
    assert isinstance(turn.command, CallModel)
    assert turn.pause("r_0_0") == []


def test_a_journal_in_which_a_call_is_paused_out_of_turn_is_refused() -> None:
    turn = running("pay", "clock")
    with pytest.raises(ProtocolViolation, match="'r_0_0' cannot be paused"):
        apply(turn.state, paused("r_0_0", at=turn.now))
    with pytest.raises(ProtocolViolation, match="'r_0_1' cannot be resumed"):
        apply(turn.state, resumed("r_0_1", at=turn.now))
    apply(turn.state, paused("r_0_1", at=turn.now))
    with pytest.raises(ProtocolViolation, match="'r_0_1' cannot be paused"):
        apply(turn.state, paused("r_0_1", at=turn.now))


# ----------------------------------------------------------------------------------------------- its endings


@pytest.mark.guarantee("G06")
@pytest.mark.parametrize(
    ("at", "stood_still"), [(0.0, 0), (1_000_050.0, 50), (9e12, 3_630)], ids=["behind", "within", "ahead"]
)
def test_a_result_settles_a_paused_call_whatever_its_clock_says(at: float, stood_still: float) -> None:
    turn = running()
    turn.pause("r_0_0")
    turn.now += 100
    turn.step(completed("r_0_0", at=at))
    assert isinstance(turn.state.calls[0].outcome, ToolCallCompleted)
    assert turn.state.calls[0].remaining_seconds is None
    assert turn.state.waiting == 0
    assert turn.state.deadline == turn.state.started_at + 600 + stood_still
    assert turn.resume("r_0_0") == []
    assert isinstance(turn.command, CallModel)
    assert_replayed(turn)


def test_a_result_of_one_paused_call_leaves_the_clock_still_for_the_other() -> None:
    turn = running("clock", "clock")
    turn.pause("r_0_0", "r_0_1")
    turn.now += 100
    turn.step(completed("r_0_0", at=turn.now))
    assert turn.state.waiting == 1
    assert turn.elapse(400) == []
    turn.resume("r_0_1")
    assert turn.waiting.deadline == turn.now + 30
    assert turn.state.deadline == turn.state.started_at + 600 + 500


def test_a_cancel_while_a_call_is_paused_gives_it_up_and_ends_the_request() -> None:
    turn = running("clock", "clock")
    turn.pause("r_0_0")
    turn.now += 100
    facts = turn.step(CancelRequested(request_id="r", reason="enough"), resumed("r_0_1"), paused("r_0_1"))
    assert failures(facts) == [("r_0_0", "cancelled"), ("r_0_1", "cancelled")]
    assert all(each.outcome_unknown for each in of(ToolCallFailed, facts))
    assert isinstance(turn.state.ending, RequestCancelled)
    assert turn.state.waiting == 0
    assert_replayed(turn)


def test_a_failure_that_ends_the_request_gives_up_a_paused_sibling() -> None:
    turn = running("clock", "clock", on_failure="fail_fast")
    turn.pause("r_0_1")
    turn.now += 100
    facts = turn.step(failed("r_0_0", at=turn.now))
    assert failures(facts) == [("r_0_0", "error"), ("r_0_1", "cancelled")]
    assert turn.stopped_by == "on_failure=fail_fast"
    assert turn.state.waiting == 0
    assert_replayed(turn)


def test_a_request_that_was_paused_can_be_resumed_from_its_journal_meanwhile() -> None:
    turn = running("clock", "pay")
    turn.now += 10
    turn.pause("r_0_0")
    assert_replayed(turn)
    turn.now += 100
    turn.deny("r_0_1")
    assert_replayed(turn)
    turn.resume("r_0_0")
    assert_replayed(turn)
    assert isinstance(turn.command, AwaitCalls)
    assert turn.step(Elapsed()) == []
