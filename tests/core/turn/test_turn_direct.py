"""Tools whose results are the answer: the request ends with them, unless something is left for the model to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from turn_driver import TOOLS, Turn, call, completed, failed

from toolbus.core.limits import Limits
from toolbus.core.output import OutputType
from toolbus.core.read_result import READ_RESULT
from toolbus.core.turn import CallModel
from toolbus.messages import AssistantMessage, ToolCall
from toolbus.protocols import ToolSpec
from toolbus.tool_results import answer_in
from toolbus.toolsets.control import give_up, task_complete, update_plan


@dataclass
class City:
    name: str


OFFERED: Mapping[str, ToolSpec] = {
    **TOOLS,
    "show": ToolSpec(name="show", return_direct=True),
    "render": ToolSpec(name="render", background=True),
    **{each.spec.name: each.spec for each in (task_complete, give_up, update_plan)},
}
SHOW = call("show")
PLAN = call("update_plan", '{"steps":[{"text":"look"}]}')


def answered(turn: Turn) -> tuple[str, str, str]:
    return turn.ending.outcome, turn.ending.reason, turn.ending.text


def asks_again(turn: Turn) -> bool:
    return isinstance(turn.command, CallModel)


# ----------------------------------------------------------------------------------------------------- the ending


def test_a_result_is_the_answer_and_a_reply_in_the_transcript() -> None:
    turn = Turn(tools=OFFERED)
    turn.reply("Here it is.", SHOW)
    made = turn.complete(content="It is noon.")
    assert answered(turn) == ("completed", "", "It is noon.")
    assert turn.roles == ["user", "assistant", "tool", "assistant"]
    assert turn.state.messages[-1] == AssistantMessage(text="It is noon.", message_id="r_answer")
    assert [each.is_derived for each in turn.appended(made)] == [True, False]


def test_the_results_of_several_calls_are_the_answer_in_call_order() -> None:
    turn = Turn(tools=OFFERED)
    turn.call(SHOW, SHOW, SHOW)
    turn.complete("r_0_2", content="three")
    turn.complete("r_0_0", content="one")
    turn.complete("r_0_1", content=" \n")
    assert answered(turn) == ("completed", "", "one\n\nthree")


@pytest.mark.parametrize("calls", [(SHOW, call()), (call(), SHOW)])
def test_a_direct_result_beside_the_result_of_another_tool_is_read_by_the_model(calls: tuple[ToolCall, ...]) -> None:
    turn = Turn(tools=OFFERED)
    turn.call(*calls)
    turn.complete()
    assert asks_again(turn)
    assert turn.roles == ["user", "assistant", "tool", "tool"]


@pytest.mark.parametrize("calls", [(SHOW, PLAN), (PLAN, SHOW)])
def test_a_plan_beside_a_direct_result_leaves_nothing_to_read(calls: tuple[ToolCall, ...]) -> None:
    turn = Turn(tools=OFFERED)
    turn.call(*calls)
    turn.complete(content="noon")
    assert answered(turn) == ("completed", "", "noon")


def test_a_page_of_a_long_result_beside_a_direct_result_is_read_by_the_model() -> None:
    turn = Turn(tools={**OFFERED, READ_RESULT.name: READ_RESULT})
    turn.call(call())
    turn.complete()
    turn.call(SHOW, call("read_result", '{"call_id":"r_0_0"}'))
    turn.complete()
    assert turn.roles[-2:] == ["tool", "tool"]
    assert asks_again(turn)


def test_a_plan_is_not_an_answer() -> None:
    turn = Turn(tools=OFFERED)
    turn.call(PLAN, PLAN)
    assert asks_again(turn)


@pytest.mark.parametrize("failing", ["r_0_0", "r_0_1"])
def test_a_failure_beside_a_direct_result_is_read_by_the_model(failing: str) -> None:
    turn = Turn(tools=OFFERED)
    turn.call(SHOW, SHOW)
    turn.fail(failing)
    turn.complete()
    assert asks_again(turn)


@pytest.mark.parametrize(
    "reason", ["error", "timeout", "retry", "denied", "invalid_arguments", "interrupted", "cancelled"]
)
def test_a_call_that_fails_ends_nothing(reason: str) -> None:
    turn = Turn(tools=OFFERED)
    turn.call(SHOW)
    turn.step(failed("r_0_0", reason=reason))
    assert asks_again(turn)


def test_a_denied_call_ends_nothing_and_an_approved_one_does() -> None:
    turn = Turn(tools=OFFERED, needs_approval=True)
    turn.call(SHOW)
    turn.deny("r_0_0")
    assert asks_again(turn)
    turn.call(SHOW)
    turn.approve("r_1_0")
    turn.complete(content="noon")
    assert answered(turn) == ("completed", "", "noon")


def test_a_call_that_is_answered_before_it_is_requested_is_an_answer() -> None:
    turn = Turn(tools=OFFERED, needs_approval=True)
    turn.call(SHOW)
    turn.complete(content="noon")
    assert answered(turn) == ("completed", "", "noon")


def test_the_result_of_a_tool_that_was_removed_or_replaced_meanwhile_ends_nothing() -> None:
    for later in ({}, {"show": ToolSpec(name="show")}):
        turn = Turn(tools=OFFERED)
        turn.call(SHOW)
        turn.offer(later)
        turn.complete()
        assert asks_again(turn)


@pytest.mark.parametrize(
    "control", [call("task_complete", '{"answer":"Done."}'), call("give_up", '{"reason":"Done."}')]
)
@pytest.mark.parametrize("is_first", [True, False])
def test_the_models_own_ending_takes_precedence(control: ToolCall, is_first: bool) -> None:
    turn = Turn(tools=OFFERED)
    turn.call(*((control, SHOW) if is_first else (SHOW, control)))
    turn.complete()
    assert "Done." in (turn.ending.text, turn.ending.reason)
    assert turn.roles == ["user", "assistant", "tool", "tool"]


# ------------------------------------------------------------------------------------- what else is under way


def test_steering_is_answered_first() -> None:
    turn = Turn(tools=OFFERED)
    turn.call(SHOW)
    turn.steer("And in Rome?")
    turn.complete()
    assert asks_again(turn)
    assert turn.roles == ["user", "assistant", "tool", "user"]


def test_a_background_call_is_not_given_up_for_a_direct_result() -> None:
    turn = Turn(tools=OFFERED)
    turn.call(call("render"))
    turn.call(SHOW)
    turn.complete("r_1_0")
    assert asks_again(turn)
    turn.reply("Wait.")
    turn.complete("r_0_0")
    turn.call(SHOW)
    turn.complete(content="noon")
    assert answered(turn) == ("completed", "", "noon")


def test_the_result_of_a_background_call_is_read_first() -> None:
    turn = Turn(tools=OFFERED)
    turn.call(call("render"))
    turn.call(SHOW)
    turn.step(completed("r_0_0"), completed("r_1_0"))
    assert asks_again(turn)


@pytest.mark.parametrize("limits", [Limits(max_rounds=1), Limits(max_rounds=1, on_limit="stop"), Limits(max_facts=1)])
def test_a_limit_that_is_reached_does_not_stop_a_request_that_has_its_answer(limits: Limits) -> None:
    turn = Turn(limits, tools=OFFERED)
    turn.call(SHOW)
    turn.complete(content="noon")
    assert answered(turn) == ("completed", "", "noon")


def test_a_request_that_is_cancelled_or_fails_fast_has_no_answer() -> None:
    turn = Turn(tools=OFFERED)
    turn.call(SHOW, SHOW)
    turn.complete("r_0_0")
    turn.cancel()
    assert turn.roles[-1] == "tool"
    turn = Turn(Limits(on_failure="fail_fast"), tools=OFFERED)
    turn.call(SHOW, SHOW)
    turn.complete("r_0_0")
    turn.fail("r_0_1")
    assert turn.stopped_by == "on_failure=fail_fast"


# ------------------------------------------------------------------------------------------------ the output


def with_output(wanted: type[object]) -> Turn:
    output = OutputType(wanted)
    return Turn(tools={**OFFERED, "final_answer": output.spec}, output=output)


def test_the_data_is_the_output_and_the_message_is_the_text() -> None:
    turn = with_output(City)
    turn.call(SHOW)
    turn.step(completed("r_0_0", '{"ok":true,"message":"It is Rome.","data":{"name":"Rome"}}', data={"name": "Rome"}))
    assert answered(turn) == ("completed", "", "It is Rome.")
    assert turn.ending.output == {"name": "Rome"}


def test_a_text_is_the_output_if_it_is_its_json() -> None:
    turn = with_output(list[int])
    turn.call(SHOW)
    turn.complete(content="[1,2]")
    assert (turn.ending.text, turn.ending.output) == ("[1,2]", {"value": [1, 2]})


@pytest.mark.parametrize("content", ["Rome", '{"ok":true}', '{"town":"Rome"}'])
def test_a_result_that_is_not_the_output_is_read_by_the_model_and_no_repair(content: str) -> None:
    turn = with_output(City)
    for _ in range(4):
        turn.call(SHOW)
        turn.complete(content=content)
        assert asks_again(turn)
        assert turn.roles[-2:] == ["assistant", "tool"]
    turn.call(call("final_answer", '{"name":"Rome"}'))
    assert turn.ending.output == {"name": "Rome"}


def test_several_results_are_no_output() -> None:
    turn = with_output(City)
    turn.call(SHOW, SHOW)
    turn.step(*(completed(each, '{"name":"Rome"}', data={"name": "Rome"}) for each in ("r_0_0", "r_0_1")))
    assert asks_again(turn)


@pytest.mark.parametrize("data", [{"name": {1, 2}}, {"name": 2**70}, {1: "Rome"}])
def test_data_that_is_not_json_is_no_output(data: object) -> None:
    turn = with_output(City)
    turn.call(SHOW)
    turn.step(completed("r_0_0", "Rome", data=data))
    assert asks_again(turn)


# ------------------------------------------------------------------------------------------------- the text


def test_half_of_a_surrogate_pair_does_not_reach_people() -> None:
    turn = Turn(tools=OFFERED)
    turn.call(SHOW)
    turn.complete(content="Rome \ud800")
    assert answered(turn) == ("completed", "", "Rome ?")


def test_a_result_without_a_text_leaves_the_models_words() -> None:
    turn = Turn(tools=OFFERED)
    turn.reply("Good bye.", SHOW)
    turn.complete(content='{"ok":true}')
    assert answered(turn) == ("completed", "", "Good bye.")
    assert turn.roles == ["user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("noon", "noon"),
        ("", ""),
        ('{"ok":true}', ""),
        ('{"ok":true,"affected":2}', ""),
        ('{"ok":true,"message":"Booked.","affected":1,"data":{"n":1}}', "Booked."),
        ('{"ok":true,"data":{"n":1}}', '{"n":1}'),
        ('{"ok":true,"data":"two sales"}', "two sales"),
        ('{"ok":true,"data":0}', "0"),
        ('{"ok":true,"n":1}', '{"ok":true,"n":1}'),
        ('{"ok":true', '{"ok":true'),
        ('{"ok":true} and more', '{"ok":true} and more'),
        ('{"ok":false}', '{"ok":false}'),
        ('{"n":1}', '{"n":1}'),
    ],
)
def test_people_read_the_message_of_a_result_or_its_data(content: str, text: str) -> None:
    assert answer_in(content) == text
