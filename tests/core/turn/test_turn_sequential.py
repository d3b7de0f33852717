"""Calls of sequential tools run one after another, in call order; their siblings do not wait for them."""

from __future__ import annotations

import pytest
from turn_driver import Turn, call, completed, decided, of

from toolbus.core.limits import Limits
from toolbus.core.turn import CallModel, CallStatus
from toolbus.events import ApprovalRequested, ToolCallCompleted, ToolCallFailed, ToolCallRequested
from toolbus.messages import ToolMessage
from toolbus.protocols import ToolSpec

TOOLS = {
    each.name: each
    for each in (
        ToolSpec(name="step", sequential=True),
        ToolSpec(name="sign", sequential=True, needs_approval=True),
        ToolSpec(name="clock"),
        ToolSpec(name="pay", needs_approval=True),
    )
}


def steps(*names: str, limits: Limits | None = None) -> Turn:
    turn = Turn(limits, tools=TOOLS)
    turn.call(*(call(name, f'{{"n":{place}}}') for place, name in enumerate(names)))
    return turn


def begun(turn: Turn) -> list[str]:
    return [each.call_id for each in of(ToolCallRequested, turn.facts)]


def test_each_begins_when_the_one_before_has_ended_and_parallel_siblings_at_once() -> None:
    turn = steps("step", "clock", "step", "clock", "step")
    assert begun(turn) == ["r_0_0", "r_0_1", "r_0_3"]
    turn.complete("r_0_3")
    assert len(begun(turn)) == 3
    turn.fail("r_0_0")
    assert begun(turn)[3:] == ["r_0_2"]
    turn.complete("r_0_2")
    assert begun(turn)[4:] == ["r_0_4"]
    turn.complete("r_0_4")
    turn.complete("r_0_1")
    assert [each.call_id for each in turn.state.messages if isinstance(each, ToolMessage)] == [
        f"r_0_{place}" for place in range(5)
    ]


def test_tools_that_are_sequential_wait_for_one_another() -> None:
    turn = steps("sign", "step")
    assert begun(turn) == []
    turn.approve("r_0_0")
    assert begun(turn) == ["r_0_0"]
    turn.complete("r_0_0")
    assert begun(turn) == ["r_0_0", "r_0_1"]


def test_a_call_that_is_denied_lets_the_next_one_begin() -> None:
    turn = steps("sign", "sign", "step")
    turn.deny("r_0_0")
    assert [each.call_id for each in of(ApprovalRequested, turn.facts)] == ["r_0_0", "r_0_1"]
    turn.elapse()
    assert begun(turn) == ["r_0_2"]


def test_a_call_that_is_refused_holds_nobody() -> None:
    turn = Turn(tools=TOOLS)
    turn.call(call("step", "{"), call("step"), call("step", "["))
    assert begun(turn) == ["r_0_1"]
    assert [each.call_id for each in of(ToolCallFailed, turn.facts)] == ["r_0_0"]
    turn.complete("r_0_1")
    assert [each.call_id for each in of(ToolCallFailed, turn.facts)] == ["r_0_0", "r_0_2"]
    assert isinstance(turn.command, CallModel)


def test_a_held_call_has_its_whole_time_from_its_own_beginning() -> None:
    turn = steps("step", "step")
    turn.now += 20
    turn.complete("r_0_0")
    assert turn.waiting.deadline == turn.now + 30
    turn.elapse()
    assert [(each.call_id, each.reason) for each in of(ToolCallFailed, turn.facts)] == [("r_0_1", "timeout")]


def test_a_held_call_does_not_begin_when_the_requests_time_is_over() -> None:
    turn = steps("step", "step", limits=Limits(timeout_seconds=20))
    turn.elapse()
    assert begun(turn) == ["r_0_0"]
    assert [(each.call_id, each.reason, each.limit) for each in of(ToolCallFailed, turn.facts)] == [
        ("r_0_0", "timeout", ""),
        ("r_0_1", "limit", "timeout_seconds=20"),
    ]
    assert turn.stopped_by == "timeout_seconds=20"


def test_a_held_call_whose_tool_is_removed_is_refused_when_its_turn_comes() -> None:
    turn = steps("step", "step")
    turn.offer({"clock": TOOLS["clock"]})
    turn.complete("r_0_0")
    assert [each.reason for each in of(ToolCallFailed, turn.facts)] == ["unknown_tool"]


def test_a_call_whose_tool_is_removed_while_it_runs_still_keeps_the_next_one_waiting() -> None:
    turn = steps("step", "sign", "pay")
    turn.offer({name: TOOLS[name] for name in ("sign", "pay")})
    turn.deny("r_0_2")
    assert [each.call_id for each in of(ApprovalRequested, turn.facts)] == ["r_0_2"]
    turn.complete("r_0_0")
    assert [each.call_id for each in of(ApprovalRequested, turn.facts)] == ["r_0_2", "r_0_1"]


def test_held_calls_count_towards_limits_when_their_turn_comes() -> None:
    turn = steps("step", "step", "step", limits=Limits(max_tool_calls=2))
    assert turn.state.tool_calls == 1
    turn.complete("r_0_0")
    assert turn.state.tool_calls == 2
    turn.complete("r_0_1")
    assert [each.limit for each in of(ToolCallFailed, turn.facts)] == ["max_tool_calls=2"]
    assert turn.last_answer_is_asked


def test_held_calls_of_one_reply_that_are_the_same_are_no_repeats() -> None:
    turn = Turn(Limits(max_repeats=1), tools=TOOLS)
    turn.call(call("step"), call("step"), call("step"))
    for number in range(3):
        turn.complete(f"r_0_{number}")
    assert begun(turn) == ["r_0_0", "r_0_1", "r_0_2"]
    assert of(ToolCallFailed, turn.facts) == []


@pytest.mark.guarantee("G06", "G08", "G09")
def test_a_cancel_settles_held_calls_which_had_no_effect_and_keeps_what_is_done() -> None:
    turn = steps("step", "step", "step")
    turn.complete("r_0_0")
    facts = turn.cancel()
    assert [(each.call_id, each.outcome_unknown) for each in of(ToolCallFailed, facts)] == [
        ("r_0_1", True),
        ("r_0_2", False),
    ]
    assert isinstance(turn.state.calls[0].outcome, ToolCallCompleted)
    assert turn.state.unjudged == 0


@pytest.mark.guarantee("G06")
def test_a_result_for_a_held_call_settles_it_and_it_never_begins() -> None:
    turn = steps("step", "step", "step")
    turn.step(completed("r_0_1", "from elsewhere", data={"n": 7}))
    assert turn.state.calls[1].arguments is None
    turn.complete("r_0_0")
    assert begun(turn) == ["r_0_0", "r_0_2"]


def test_what_a_stranger_says_of_limits_in_the_place_of_a_held_call_stops_nothing() -> None:
    turn = steps("step", "step")
    turn.step(ToolCallFailed(request_id="r", call_id="r_0_1", name="step", reason="limit", error="no", limit="quota=1"))
    turn.complete("r_0_0")
    assert turn.state.stop is None


def test_steering_waits_until_held_calls_have_had_their_turn() -> None:
    turn = steps("step", "step")
    turn.steer("Hurry.")
    turn.complete("r_0_0")
    assert turn.roles == ["user", "assistant"]
    turn.complete("r_0_1")
    assert turn.roles == ["user", "assistant", "tool", "tool", "user"]


def test_a_held_call_is_judged_while_another_waits_and_has_the_time_that_was_left() -> None:
    turn = steps("step", "pay", "step", limits=Limits(timeout_seconds=20))
    turn.now += 15
    turn.complete("r_0_0")
    assert begun(turn) == ["r_0_0", "r_0_2"]
    assert of(ToolCallRequested, turn.facts)[-1].timeout_seconds == 20
    assert turn.state.calls[2].status is CallStatus.REQUESTED


def test_a_call_does_not_begin_in_the_step_in_which_the_request_is_ended() -> None:
    turn = steps("step", "step", limits=Limits(on_failure="fail_fast"))
    turn.fail("r_0_0")
    assert begun(turn) == ["r_0_0"]
    assert [each.reason for each in of(ToolCallFailed, turn.facts)] == ["error", "cancelled"]
    assert turn.step(decided("r_0_1")) == []
