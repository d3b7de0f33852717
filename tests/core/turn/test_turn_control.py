"""Tools that the turn machine answers itself: the end of the task, and the plan."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from turn_driver import TOOLS, Turn, call, failed, of

from toolbus.core.limits import Limits
from toolbus.core.turn import AwaitCalls, CallModel, plan_in, plan_text
from toolbus.events import (
    ApprovalRequested,
    PlanChanged,
    PlanStep,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from toolbus.protocols import ToolSpec
from toolbus.toolsets.control import give_up, task_complete, update_plan

OFFERED: Mapping[str, ToolSpec] = {
    **TOOLS,
    **{each.spec.name: each.spec for each in (task_complete, give_up, update_plan)},
}
COMPLETE = call("task_complete", '{"answer":"It is noon."}')
GIVE_UP = call("give_up", '{"reason":"there is no clock"}')
PLAN = call("update_plan", '{"steps":[{"text":"look","status":"active"},{"text":"tell"}]}')


# --------------------------------------------------------------------------------------------------- endings


def test_the_model_completes_the_task_and_its_answer_is_the_text() -> None:
    turn = Turn(tools=OFFERED)
    turn.reply("Let me say it.", COMPLETE)
    assert (turn.ending.outcome, turn.ending.reason, turn.ending.text) == ("completed", "", "It is noon.")
    assert turn.roles == ["user", "assistant", "tool"]


def test_the_model_gives_up_and_the_request_is_stopped_with_its_reason() -> None:
    turn = Turn(tools=OFFERED)
    turn.reply("I cannot see.", GIVE_UP)
    assert turn.stopped_by == "there is no clock"
    assert turn.ending.text == "I cannot see."


def test_a_control_call_is_put_on_no_bus_and_to_nobody() -> None:
    turn = Turn(tools=OFFERED, needs_approval=True)
    turn.call(PLAN)
    assert of(ToolCallRequested, turn.facts) == of(ApprovalRequested, turn.facts) == []
    (done,) = of(ToolCallCompleted, turn.facts)
    assert (done.content, done.call_id) == ('{"ok":true}', "r_0_0")
    assert turn.state.rounds[0].calls[0].arguments == done.data


def test_siblings_of_the_ending_call_are_waited_for() -> None:
    turn = Turn(tools=OFFERED)
    turn.call(call(), COMPLETE)
    assert isinstance(turn.command, AwaitCalls)
    turn.fail("r_0_0")
    assert (turn.ending.outcome, turn.ending.text) == ("completed", "It is noon.")


@pytest.mark.parametrize(("calls", "outcome"), [((COMPLETE, GIVE_UP), "completed"), ((GIVE_UP, COMPLETE), "stopped")])
def test_the_first_of_two_ending_calls_counts(calls: tuple[ToolCall, ToolCall], outcome: str) -> None:
    turn = Turn(tools=OFFERED)
    turn.call(*calls)
    assert turn.ending.outcome == outcome


@pytest.mark.parametrize("arguments", ["{}", '{"answer":""}', '{"answer":1}', "{"])
def test_an_ending_call_that_is_invalid_ends_nothing(arguments: str) -> None:
    turn = Turn(tools=OFFERED)
    turn.call(call("task_complete", arguments))
    assert isinstance(turn.command, CallModel)
    assert [each.reason for each in of(ToolCallFailed, turn.facts)] == ["invalid_arguments"]


def test_a_note_on_a_sibling_that_failed_does_not_keep_the_request_from_its_end() -> None:
    turn = Turn(tools=OFFERED, note_failures=True)
    turn.call(call("nothing"), COMPLETE)
    assert turn.ending.text == "It is noon."
    assert isinstance(turn.state.messages[-1], SystemMessage)


@pytest.mark.parametrize(
    "limits", [Limits(max_rounds=1), Limits(max_tool_calls=1), Limits(max_rounds=1, on_limit="stop")]
)
def test_a_task_that_is_completed_at_a_limit_is_completed(limits: Limits) -> None:
    turn = Turn(limits, tools=OFFERED)
    turn.call(PLAN, COMPLETE)
    assert (turn.ending.outcome, turn.ending.text) == ("completed", "It is noon.")


def test_an_ending_call_is_no_way_round_the_last_answer_in_which_no_tool_may_be_called() -> None:
    turn = Turn(Limits(max_rounds=1), tools=OFFERED)
    turn.call()
    turn.complete()
    turn.reply("so far", COMPLETE)
    assert turn.stopped_by == "max_rounds=1"
    assert turn.ending.text == "so far"


@pytest.mark.parametrize("ending", [COMPLETE, GIVE_UP])
def test_what_was_said_before_the_ending_call_gets_an_answer_of_its_own(ending: ToolCall) -> None:
    turn = Turn(tools=OFFERED)
    turn.steer("In Rome.")
    turn.call(ending)
    assert turn.roles == ["user", "assistant", "tool", "user"]
    turn.reply("One o'clock.")
    assert (turn.ending.outcome, turn.ending.text) == ("completed", "One o'clock.")


def test_what_was_said_when_no_round_may_follow_does_not_undo_the_end() -> None:
    turn = Turn(Limits(max_rounds=1), tools=OFFERED)
    turn.steer("In Rome.")
    turn.call(COMPLETE)
    assert turn.ending.text == "It is noon."


def test_a_tool_that_becomes_one_that_ends_requests_while_it_runs_ends_nothing() -> None:
    turn = Turn(tools={**OFFERED, "task_complete": ToolSpec(name="task_complete")})
    turn.call(COMPLETE)
    turn.offer(OFFERED)
    turn.complete()
    assert isinstance(turn.command, CallModel)


def test_a_plan_whose_tool_is_taken_away_keeps_no_ending_call_from_ending_the_request() -> None:
    turn = Turn(tools=OFFERED)
    turn.call(PLAN, call(), COMPLETE)
    turn.offer({name: spec for name, spec in OFFERED.items() if name != "update_plan"})
    turn.complete()
    assert turn.ending.text == "It is noon."


# ------------------------------------------------------------------------------------------------------ plans


def test_a_plan_is_a_fact_and_the_state_has_the_newest() -> None:
    turn = Turn(tools=OFFERED)
    turn.call(PLAN, call("update_plan", '{"steps":[{"text":"look","status":"done"}]}'))
    assert [each.steps for each in of(PlanChanged, turn.facts)] == [
        (PlanStep(text="look", status="active"), PlanStep(text="tell")),
        (PlanStep(text="look", status="done"),),
    ]
    assert turn.state.plan == (PlanStep(text="look", status="done"),)
    assert isinstance(turn.command, CallModel)


@pytest.mark.parametrize(
    "arguments", ['{"steps":[]}', '{"steps":[{"text":""}]}', '{"steps":[{"text":"x","status":"begun"}]}', "{}"]
)
def test_a_plan_that_is_none_changes_nothing(arguments: str) -> None:
    turn = Turn(tools=OFFERED)
    turn.call(PLAN, call("update_plan", arguments))
    assert len(of(PlanChanged, turn.facts)) == 1
    assert len(turn.state.plan) == 2


def test_the_same_plan_over_and_over_is_a_repeat_and_another_call_in_between_is_none() -> None:
    turn = Turn(Limits(max_repeats=2, max_rounds=20), tools=OFFERED)
    for _ in range(4):
        turn.call(PLAN, call())
        turn.complete()
    assert of(ToolCallFailed, turn.facts) == []
    for _ in range(3):
        turn.call(PLAN)
    assert [each.limit for each in of(ToolCallFailed, turn.facts)] == ["max_repeats=2"]


def test_a_plan_resets_no_more_than_any_success() -> None:
    turn = Turn(Limits(max_consecutive_errors=2), tools=OFFERED)
    for number in range(3):
        turn.call(PLAN, call("clock", f'{{"n":{number}}}'))
        turn.step(failed(f"r_{number}_1"))
    assert turn.state.stop is None


def history_of(turn: Turn) -> list[Message]:
    return [each.message for each in turn.appended(turn.facts)]


def test_the_plan_of_an_earlier_turn_is_found_in_its_messages() -> None:
    turn = Turn(tools=OFFERED)
    turn.call(PLAN)
    turn.reply("Later.")
    assert plan_in([*history_of(turn), UserMessage(content="And now?")]) == turn.state.plan
    assert plan_in([]) == ()


def test_a_plan_that_was_refused_is_none_in_later_turns_either() -> None:
    turn = Turn(tools=OFFERED)
    turn.call(PLAN)
    turn.call(call("update_plan", '{"steps":[{"text":"x","status":"begun"}]}'))
    turn.call(call("update_plan", '{"steps":[{"text":"y"}],"why":"because"}'))
    assert plan_in(history_of(turn)) == turn.state.plan


def written(arguments: str, *results: ToolMessage) -> list[Message]:
    call_ = ToolCall(name="update_plan", arguments=arguments, call_id="x")
    return [UserMessage(content="?"), AssistantMessage(tool_calls=(call_,)), *results]


def test_a_refusal_of_another_call_with_the_same_id_takes_no_plan_away() -> None:
    refused = ToolMessage(call_id="x", name="clock", content="no", is_error=True)
    later = AssistantMessage(tool_calls=(ToolCall(name="clock", call_id="x"),))
    accepted = ToolMessage(call_id="x", name="update_plan", content="ok")
    messages = [*written('{"steps":[{"text":"look"}]}', accepted), later, refused]
    assert plan_in(messages) == (PlanStep(text="look"),)


@pytest.mark.parametrize(
    "arguments",
    [
        *["", "{", "[]", '{"steps":1}', '{"steps":{"a":1}}', '{"steps":["a"]}', '{"steps":[{}]}', '{"steps":[]}'],
        *['{"steps":[{"text":5}]}', '{"steps":[{"text":"a","status":"x"}]}', '{"steps":[{"text":"a","status":[]}]}'],
        *['{"steps":[{"text":null}]}', '{"steps":[{"text":""}]}', '{"steps":null}'],
        '{"steps":[{"text":"a"},{"text":""}]}',
    ],
)
def test_what_histories_from_elsewhere_call_a_plan_may_be_anything(arguments: str) -> None:
    assert plan_in(written(arguments)) == ()


def test_the_model_is_reminded_of_its_plan_in_plain_words() -> None:
    steps = (
        PlanStep(text="look", status="done"),
        PlanStep(text="ask", status="dropped"),
        PlanStep(text="think", status="active"),
        PlanStep(text="tell"),
    )
    assert plan_text(steps).splitlines() == [
        "Your plan (x is done, > is under way, - was dropped):",
        "[x] look",
        "[-] ask",
        "[>] think",
        "[ ] tell",
    ]
