"""What ends a request before its answer: failures, by `on_failure` and `stop_on`, and money."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from turn_driver import TOOLS, Turn, call, completed, failed, of, replied

from toolbus.core.limits import Limits
from toolbus.core.prices import Price
from toolbus.core.turn import AwaitCalls, CallModel, ModelReplied, TurnState
from toolbus.events import (
    ModelResponded,
    RequestFailed,
    RoundStarted,
    Spent,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import SystemMessage, ToolMessage, Usage
from toolbus.protocols import ToolSpec
from toolbus.toolsets.control import task_complete, update_plan

FAST = Limits(on_failure="fail_fast")
OFFERED: Mapping[str, ToolSpec] = {
    **TOOLS,
    "pay": ToolSpec(name="pay", needs_approval=True),
    "step": ToolSpec(name="step", sequential=True),
    **{each.spec.name: each.spec for each in (task_complete, update_plan)},
}


def reasons(turn: Turn) -> list[str]:
    return [
        each.outcome.reason if isinstance(each.outcome, ToolCallFailed) else "" for each in turn.state.rounds[0].calls
    ]


# ------------------------------------------------------------------------------------ fail_fast and stop_on


@pytest.mark.guarantee("G06", "G08", "G09")
def test_fail_fast_ends_at_the_first_failure_and_keeps_what_is_done() -> None:
    turn = Turn(FAST, tools=OFFERED)
    turn.call(call(), call("clock", '{"n":1}'), call("step"), call("step"), call("pay"))
    turn.complete("r_0_1")
    facts = turn.fail("r_0_0")
    assert reasons(turn) == ["error", "", "cancelled", "cancelled", "cancelled"]
    assert [each.outcome_unknown for each in of(ToolCallFailed, facts)] == [False, True, False, False]
    assert {each.error for each in of(ToolCallFailed, facts)[1:]} == {
        "Another call failed, and that ended the request."
    }
    assert turn.stopped_by == "on_failure=fail_fast"
    assert turn.roles == ["user", "assistant"] + ["tool"] * 5


def test_a_call_that_cannot_run_ends_the_request_before_its_siblings_begin() -> None:
    turn = Turn(FAST)
    turn.call(call(), call("weather", "{}"), call())
    assert of(ToolCallRequested, turn.facts) == []
    assert reasons(turn) == ["cancelled", "invalid_arguments", "cancelled"]
    assert turn.stopped_by == "on_failure=fail_fast"


def test_a_call_that_an_interceptor_denies_ends_the_request_before_its_siblings_begin() -> None:
    turn = Turn(FAST)
    turn.step(ModelReplied(replied("", call(), call()).reply, {1: "It is forbidden."}))
    assert of(ToolCallRequested, turn.facts) == []
    assert reasons(turn) == ["cancelled", "denied"]


def test_a_person_who_denies_a_call_ends_a_request_that_fails_fast() -> None:
    turn = Turn(FAST, tools=OFFERED)
    turn.call(call("pay"), call())
    turn.deny("r_0_0")
    assert reasons(turn) == ["denied", "cancelled"]


def test_collect_goes_on_with_failures_beside_results() -> None:
    turn = Turn()
    turn.call(call(), call("clock", '{"n":1}'))
    turn.fail("r_0_0")
    turn.complete()
    assert isinstance(turn.command, CallModel)


def test_a_call_past_a_limit_is_no_failure() -> None:
    turn = Turn(Limits(on_failure="fail_fast", max_calls_per_round=1))
    turn.call(call(), call())
    assert isinstance(turn.command, AwaitCalls)
    turn.complete()
    assert isinstance(turn.command, CallModel)


@pytest.mark.parametrize("reason", ["limit", "cancelled", "interrupted", "timeout"])
def test_a_tool_that_fails_for_whatever_reason_of_its_own_has_failed(reason: str) -> None:
    turn = Turn(FAST)
    turn.call(call(), call("clock", '{"n":1}'))
    turn.step(failed("r_0_0", reason=reason))
    assert reasons(turn) == [reason, "cancelled"]
    assert turn.stopped_by == "on_failure=fail_fast"


def test_stop_on_ends_for_its_reasons_alone() -> None:
    turn = Turn(Limits(stop_on=frozenset({"unknown_tool"})))
    turn.call(call())
    turn.fail()
    assert isinstance(turn.command, CallModel)
    facts = turn.call(call(), call("nothing"))
    assert of(ToolCallRequested, facts) == []
    assert turn.stopped_by == "stop_on=unknown_tool"


def test_stop_on_a_limit_ends_when_the_machine_refuses_a_call_by_one() -> None:
    turn = Turn(Limits(stop_on=frozenset({"limit"}), max_calls_per_round=1))
    turn.call(call(), call())
    assert reasons(turn) == ["cancelled", "limit"]
    assert turn.stopped_by == "stop_on=limit"


def test_the_first_failure_is_the_reason_and_what_follows_from_it_is_not() -> None:
    turn = Turn(Limits(on_failure="fail_fast", stop_on=frozenset({"timeout", "cancelled"})))
    turn.call(call(), call("clock", '{"n":1}'), call("clock", '{"n":2}'))
    turn.step(failed("r_0_0"), failed("r_0_1", reason="timeout"))
    assert reasons(turn) == ["error", "timeout", "cancelled"]
    assert turn.stopped_by == "on_failure=fail_fast"


def test_a_failure_at_the_end_of_the_requests_time_is_not_its_reason() -> None:
    turn = Turn(Limits(on_failure="fail_fast", timeout_seconds=20))
    turn.call(call())
    turn.elapse()
    assert turn.stopped_by == "timeout_seconds=20"


def test_a_request_that_a_failure_ends_is_not_completed_by_a_call_beside_it() -> None:
    turn = Turn(FAST, tools=OFFERED)
    turn.call(call(), call("task_complete", '{"answer":"noon"}'))
    turn.fail("r_0_0")
    assert turn.stopped_by == "on_failure=fail_fast"


@pytest.mark.guarantee("G09")
def test_a_result_that_comes_in_the_same_step_as_the_failure_is_kept_and_does_not_undo_the_stop() -> None:
    turn = Turn(Limits(on_failure="fail_fast", max_output_tokens=5))
    turn.call(*(call("clock", f'{{"n":{number}}}') for number in range(3)))
    turn.step(failed("r_0_0"), completed("r_0_1", spent=Spent(usage=Usage(output_tokens=9))))
    assert reasons(turn) == ["error", "", "cancelled"]
    assert turn.stopped_by == "on_failure=fail_fast"


# ------------------------------------------------------------------------------------------------------ notes


def test_a_note_on_failures_stands_behind_all_results_of_its_round() -> None:
    turn = Turn(note_failures=True)
    turn.call(call(), call("nothing"), call("clock", '{"n":1}'))
    turn.fail("r_0_0")
    turn.steer("Hurry.")
    turn.complete("r_0_2")
    assert turn.roles == ["user", "assistant", "tool", "tool", "tool", "system", "user"]
    note = turn.state.messages[5]
    assert isinstance(note, SystemMessage)
    assert note.text.splitlines() == [
        "clock failed (error): broken",
        "nothing failed (unknown_tool): There is no tool 'nothing'. The tools are: weather, clock.",
        "Try another way, or say what could not be done and why.",
    ]
    (started,) = of(RoundStarted, turn.facts)[1:]
    assert [each.ok for each in started.call_outcomes] == [False, False, True]


def test_there_is_no_note_where_nothing_failed_or_where_only_a_limit_spoke() -> None:
    turn = Turn(Limits(max_calls_per_round=1), note_failures=True)
    turn.call(call(), call())
    turn.complete()
    turn.call(call("clock", '{"n":1}'))
    turn.complete()
    assert "system" not in turn.roles


def test_a_note_can_be_sent_whatever_a_tool_has_said() -> None:
    turn = Turn(note_failures=True)
    turn.call()
    turn.step(failed("r_0_0", "bad \ud800"))
    note = turn.state.messages[-1]
    assert isinstance(note, SystemMessage)
    assert note.text.startswith("clock failed (error): bad ?\n")


def test_each_round_with_failures_has_a_note_of_its_own() -> None:
    turn = Turn(note_failures=True)
    for _ in range(2):
        turn.call(call("nothing"))
    ids = [each.message_id for each in turn.state.messages if isinstance(each, SystemMessage)]
    assert ids == ["r_0_n", "r_1_n"]


# ------------------------------------------------------------------------------------------------------ money

PRICES = {"*": Price(input_per_million=1_000_000, output_per_million=2_000_000)}


def test_what_replies_and_sub_requests_cost_adds_up() -> None:
    turn = Turn(prices=PRICES)
    turn.reply("", call(), usage=Usage(input_tokens=3, output_tokens=1))
    turn.step(completed("r_0_0", spent=Spent(usage=Usage(input_tokens=4), tool_calls=2, cost=1.5)))
    assert (turn.state.cost, turn.state.usage, turn.state.tool_calls) == (
        6.5,
        Usage(input_tokens=7, output_tokens=1),
        3,
    )
    assert of(ModelResponded, turn.facts)[0].cost == 5.0


class _Beneath:
    """A sub-request that has used two calls so far."""

    request_id = "sub"
    state = TurnState("sub")
    waits = False
    spent = Spent(usage=Usage(input_tokens=4), tool_calls=2, cost=1.5)


@pytest.mark.parametrize(("number", "calls"), [(0, 1), (1, 3), (2, 5)])
def test_a_call_that_is_given_up_has_spent_what_all_its_sub_requests_have(number: int, calls: int) -> None:
    turn = Turn()
    turn.call()
    turn.state.open_calls["r_0_0"].sub_requests = (_Beneath(),) * number
    turn.cancel()
    assert (turn.state.tool_calls, turn.state.usage.input_tokens, turn.state.cost) == (calls, 4 * number, 1.5 * number)


def test_a_failed_call_has_spent_too() -> None:
    turn = Turn(Limits(max_cost=1.0), prices=PRICES)
    turn.call(call())
    turn.step(failed("r_0_0", spent=Spent(cost=1.5)))
    assert turn.stopped_by == "max_cost=1"


def test_money_stops_past_the_limit_and_leaves_no_last_answer() -> None:
    turn = Turn(Limits(max_cost=3.0), prices=PRICES)
    turn.reply("", call(), usage=Usage(input_tokens=3))
    turn.complete()
    assert isinstance(turn.command, CallModel)
    turn.reply("so far", call("clock", '{"n":1}'), usage=Usage(input_tokens=1))
    turn.complete()
    assert turn.stopped_by == "max_cost=3"
    assert turn.ending.text == "so far"


def test_an_answer_past_the_limit_is_an_answer() -> None:
    turn = Turn(Limits(max_cost=3.0), prices=PRICES)
    turn.reply("noon", usage=Usage(input_tokens=9))
    assert (turn.ending.outcome, turn.state.cost) == ("completed", 9.0)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(max_cost=1.0), "max_cost=1"),
        (Limits(max_input_tokens=5), "max_input_tokens=5"),
        (Limits(max_output_tokens=5), "max_output_tokens=5"),
    ],
)
def test_what_a_sub_request_spends_counts_towards_the_limits(limits: Limits, reason: str) -> None:
    turn = Turn(limits, prices=PRICES)
    turn.call(call())
    turn.step(completed("r_0_0", spent=Spent(usage=Usage(input_tokens=6, output_tokens=6), cost=2.0)))
    assert turn.stopped_by == reason
    assert isinstance(turn.state.rounds[0].calls[0].outcome, ToolCallCompleted)


def test_calls_of_a_sub_request_use_up_the_requests_calls() -> None:
    turn = Turn(Limits(max_tool_calls=3), tools=OFFERED)
    turn.call(call("step"), call("step", '{"n":1}'))
    turn.step(completed("r_0_0", spent=Spent(tool_calls=2)))
    assert [each.limit for each in of(ToolCallFailed, turn.facts)] == ["max_tool_calls=3"]


@pytest.mark.guarantee("G06", "G08")
@pytest.mark.parametrize("calls", [0, 2])
@pytest.mark.parametrize("text", ["let me see", ""])
def test_where_money_is_limited_a_model_without_a_price_ends_the_request(calls: int, text: str) -> None:
    turn = Turn(Limits(max_cost=1.0), prices={"other": Price(input_per_million=1, output_per_million=1)})
    turn.reply(text, *[call()] * calls, usage=Usage(input_tokens=3))
    ending = turn.state.ending
    assert isinstance(ending, RequestFailed)
    assert (ending.reason, ending.usage) == ("configuration_error", Usage(input_tokens=3))
    assert "no price for 'scripted:'" in ending.error
    assert [each.reason for each in of(ToolCallFailed, turn.facts)] == ["cancelled"] * calls
    assert len([each for each in turn.state.messages if isinstance(each, ToolMessage)]) == calls
    assert of(ToolCallRequested, turn.facts) == []


def test_a_model_without_a_price_costs_nobody_knows_what_where_money_is_not_limited() -> None:
    turn = Turn(prices={})
    turn.reply("noon")
    assert of(ModelResponded, turn.facts)[0].cost is None
    assert (turn.ending.outcome, turn.state.cost) == ("completed", 0.0)
