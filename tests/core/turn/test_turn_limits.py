"""Each limit at its boundary: exactly at it nothing happens, one past it the request comes to its end."""

from __future__ import annotations

from typing import Any

import pytest
from turn_driver import Turn, call, completed, failed, of

from toolbus.core.limits import Limits
from toolbus.core.turn import AwaitCalls, CallModel, Elapsed
from toolbus.events import (
    RequestCompleted,
    RequestFailed,
    RoundStarted,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import TextPart, ToolCall, Usage
from toolbus.protocols import ToolSpec

pytestmark = pytest.mark.guarantee("G10")


def numbered(number: int) -> str:
    return f'{{"n": {number}}}'


# ------------------------------------------------------------------------------------------------ rounds


def test_one_round_before_the_last_tools_are_still_offered() -> None:
    turn = Turn(Limits(max_rounds=2))
    turn.call()
    turn.complete()
    assert isinstance(turn.command, CallModel)
    assert turn.command.offer_tools


def test_the_last_rounds_calls_still_run_and_then_the_model_is_asked_for_an_answer() -> None:
    turn = Turn(Limits(max_rounds=2))
    turn.call()
    turn.complete()
    turn.call(call("clock", numbered(1)))
    assert isinstance(turn.command, AwaitCalls)
    (started,) = of(RoundStarted, turn.complete())
    assert not started.tools_offered
    assert turn.last_answer_is_asked
    turn.reply("noon")
    assert turn.stopped_by == "max_rounds=2"
    (ending,) = of(RequestCompleted, turn.facts)
    assert ending.text == "noon"


def test_on_limit_stop_ends_without_a_last_answer_and_with_the_last_text() -> None:
    turn = Turn(Limits(max_rounds=1, on_limit="stop"))
    turn.reply("let me see", call())
    turn.complete()
    assert turn.stopped_by == "max_rounds=1"
    assert of(RequestCompleted, turn.facts)[0].text == "let me see"
    assert turn.roles == ["user", "assistant", "tool"]


# ------------------------------------------------------------------------------------------------- calls


def test_calls_of_one_reply_past_the_limit_are_refused_and_the_request_goes_on() -> None:
    turn = Turn(Limits(max_calls_per_round=2))
    facts = turn.call(*(call("clock", numbered(number)) for number in range(4)))
    assert [each.call_id for each in of(ToolCallRequested, facts)] == ["r_0_0", "r_0_1"]
    assert [(each.call_id, each.reason, each.limit) for each in of(ToolCallFailed, facts)] == [
        ("r_0_2", "limit", "max_calls_per_round=2"),
        ("r_0_3", "limit", "max_calls_per_round=2"),
    ]
    assert of(ToolCallFailed, facts)[0].error == "Too many calls in one reply (max_calls_per_round=2)."
    turn.complete()
    assert turn.state.tool_calls == 2
    assert not turn.last_answer_is_asked


def test_as_many_calls_as_there_may_be_stop_nothing() -> None:
    turn = Turn(Limits(max_tool_calls=3, max_calls_per_round=2))
    turn.call(call("clock", numbered(0)), call("clock", numbered(1)))
    turn.complete()
    turn.call(call("clock", numbered(2)))
    turn.complete()
    assert turn.state.stop is None
    assert not turn.last_answer_is_asked


def test_the_first_call_past_the_requests_calls_is_refused_and_stops_it() -> None:
    turn = Turn(Limits(max_tool_calls=3))
    turn.call(call("nothing"), call("clock", numbered(1)))
    turn.complete()
    facts = turn.call(*(call("clock", numbered(number)) for number in (2, 3, 4)))
    assert [each.call_id for each in of(ToolCallRequested, facts)] == ["r_1_0"]
    refused = of(ToolCallFailed, facts)
    assert [(each.call_id, each.limit) for each in refused] == [
        ("r_1_1", "max_tool_calls=3"),
        ("r_1_2", "max_tool_calls=3"),
    ]
    assert refused[0].error == "The request's calls are used up (max_tool_calls=3)."
    turn.complete()
    assert turn.last_answer_is_asked
    turn.reply("noon")
    assert turn.stopped_by == "max_tool_calls=3"


# ------------------------------------------------------------------------------------------------ errors


def test_errors_in_a_row_stop_the_request_at_the_limit() -> None:
    turn = Turn(Limits(max_consecutive_errors=3))
    for _ in range(2):
        turn.call(call("nothing"), call("clock", "["))
        assert not turn.last_answer_is_asked
    turn.call(call("clock", "["))
    assert turn.last_answer_is_asked
    turn.reply("it does not work")
    assert turn.stopped_by == "max_consecutive_errors=3"


@pytest.mark.parametrize(
    ("replies", "most", "stops"),
    [
        (["xxxx"], 3, False),
        (["xxxx"], 1, False),
        (["x", "x"], 1, True),
        (["xx", "xx"], 2, True),
        (["xx", "xx"], 3, False),
        (["x", "xxx", "xx"], 3, True),
        (["x", "x.", "x", "x"], 3, False),
        (["xx.", ".x", "x.x"], 1, False),
    ],
)
def test_a_reply_counts_if_all_its_calls_failed_and_the_model_answers_its_first_errors_with_tools(
    replies: list[str], most: int, stops: bool
) -> None:
    turn = Turn(Limits(max_consecutive_errors=most))
    for number, outcomes in enumerate(replies):
        assert not turn.last_answer_is_asked
        turn.call(*(call("clock", numbered(10 * number + place)) for place in range(len(outcomes))))
        ids = [(f"r_{number}_{place}", kind) for place, kind in enumerate(outcomes)]
        turn.step(*[failed(each) if kind == "x" else completed(each) for each, kind in reversed(ids)])
    assert turn.last_answer_is_asked is stops


def test_refusals_by_a_limit_are_nobodys_errors() -> None:
    turn = Turn(Limits(max_consecutive_errors=2, max_calls_per_round=1))
    turn.call(*(call() for _ in range(5)))
    turn.fail()
    assert turn.state.consecutive_errors == 1
    assert not turn.last_answer_is_asked


def test_what_a_tool_says_of_limits_is_an_error_of_its_own_and_stops_nothing() -> None:
    turn = Turn()
    turn.call()
    turn.step(
        ToolCallFailed(
            request_id="r", call_id="r_0_0", name="clock", reason="limit", error="quota", limit="max_input_tokens=0"
        )
    )
    assert turn.state.consecutive_errors == 1
    assert turn.state.stop is None


# ----------------------------------------------------------------------------------------------- repeats


def made(turn: Turn, *calls: ToolCall, content: str = "done") -> list[ToolCallFailed]:
    """One reply with these calls, all of which are answered with `content`; return the calls that were refused."""
    refused = of(ToolCallFailed, turn.call(*calls))
    for call_id in list(turn.state.open_calls):
        turn.step(completed(call_id, content))
    return refused


def test_a_call_with_one_result_runs_as_often_as_the_limit_says_is_refused_once_and_then_ends_the_request() -> None:
    turn = Turn(Limits(max_repeats=3))
    for _ in range(3):
        assert made(turn, call("clock", '{"a": 1, "b": 2}')) == []
    (refused,) = made(turn, call("clock", '{"b":2,"a":1}'))
    assert (refused.reason, refused.limit) == ("limit", "max_repeats=3")
    assert refused.error == (
        "clock was called 3 times in a row with the same arguments, and the result was the same each time; so it was "
        "not called again. Try something else, or answer with what is known: the same call once more ends the request "
        "(max_repeats=3)."
    )
    assert turn.state.stop is None
    assert not turn.last_answer_is_asked
    (refused,) = made(turn, call("clock", '{"b":2,"a":1}'))
    assert refused.error == "clock was called with the same arguments once more (max_repeats=3)."
    assert turn.last_answer_is_asked
    turn.reply("noon")
    assert turn.stopped_by == "max_repeats=3"


@pytest.mark.parametrize(
    ("settled", "results"),
    [
        (completed, [{"content": "a"}, {"content": "b"}]),
        (completed, [{"parts": (TextPart(text="a"),)}, {"parts": (TextPart(text="b"),)}]),
        (failed, [{"error": "a"}, {"error": "b"}]),
        (failed, [{"reason": "error"}, {"reason": "timeout"}]),
    ],
    ids=["content", "parts", "error", "reason"],
)
def test_a_call_with_another_result_each_time_is_no_repeat(settled: Any, results: list[dict[str, Any]]) -> None:
    turn = Turn(Limits(max_repeats=2, max_consecutive_errors=9))
    for number in range(8):
        assert of(ToolCallFailed, turn.call(call())) == []
        turn.step(settled(f"r_{number}_0", **results[number % 2]))


def test_a_call_whose_result_changes_begins_the_count_anew() -> None:
    turn = Turn(Limits(max_repeats=3))
    for content in ("waiting", "waiting", "begun", "begun", "begun"):
        assert made(turn, call(), content=content) == []
    assert len(made(turn, call())) == 1


def test_a_failure_that_is_the_same_each_time_is_a_result_too() -> None:
    turn = Turn(Limits(max_repeats=2, max_consecutive_errors=9))
    for error in ("broken", "broken"):
        turn.call(call())
        turn.step(failed(f"r_{turn.state.round}_0", error))
    assert len(made(turn, call())) == 1


def test_the_calls_of_one_reply_count_once() -> None:
    turn = Turn(Limits(max_repeats=2))
    for _ in range(2):
        assert made(turn, call(), call(), call(), call()) == []
    assert len(made(turn, call(), call())) == 2
    assert turn.state.stop is None
    assert len(made(turn, call(), call())) == 2
    assert turn.last_answer_is_asked


def test_the_calls_of_one_reply_with_different_results_are_no_repeat() -> None:
    turn = Turn(Limits(max_repeats=2))
    for _ in range(4):
        assert of(ToolCallFailed, turn.call(call(), call())) == []
        turn.step(*(completed(call_id, call_id[-1]) for call_id in list(turn.state.open_calls)))


@pytest.mark.parametrize("between", [call("clock", numbered(1)), call("weather", '{"city":"Rome"}')])
def test_another_call_in_between_begins_the_count_anew(between: ToolCall) -> None:
    turn = Turn(Limits(max_repeats=2))
    for _ in range(3):
        assert made(turn, call(), between) == []
    assert made(turn, call()) == []
    assert made(turn, between) == []
    assert made(turn, call()) == []


def test_a_model_that_does_something_else_after_it_was_refused_goes_on() -> None:
    turn = Turn(Limits(max_repeats=1, max_rounds=99))
    for number in range(5):
        assert made(turn, call()) == []
        assert len(made(turn, call())) == 1
        made(turn, call("clock", numbered(number)))
    assert turn.state.stop is None


def test_the_same_call_beside_another_one_after_it_was_refused_ends_the_request() -> None:
    turn = Turn(Limits(max_repeats=1))
    made(turn, call())
    made(turn, call())
    assert [each.call_id for each in made(turn, call("clock", numbered(1)), call())] == ["r_2_1"]
    assert turn.last_answer_is_asked


def test_a_text_in_between_does_not_begin_the_count_anew() -> None:
    turn = Turn(Limits(max_repeats=2))
    for _ in range(2):
        made(turn, call())
    turn.steer("Go on.")
    turn.reply("I shall.")
    assert len(made(turn, call())) == 1


def test_a_refused_repeat_neither_uses_up_calls_nor_counts_as_an_error() -> None:
    turn = Turn(Limits(max_repeats=1, max_tool_calls=2))
    made(turn, call())
    assert len(made(turn, call())) == 1
    assert (turn.state.tool_calls, turn.state.consecutive_errors) == (1, 0)
    assert made(turn, call("clock", numbered(1))) == []


def test_a_repeatable_tool_may_be_called_again_and_again() -> None:
    turn = Turn(Limits(max_repeats=1, max_rounds=99), tools={"clock": ToolSpec(name="clock", repeatable=True)})
    for _ in range(9):
        assert made(turn, call()) == []


# ------------------------------------------------------------------------------------------------ tokens


@pytest.mark.parametrize("field", ["input_tokens", "output_tokens"])
def test_tokens_stop_past_the_limit_and_leave_no_last_answer(field: str) -> None:
    limits = Limits(max_input_tokens=10) if field == "input_tokens" else Limits(max_output_tokens=10)
    turn = Turn(limits)
    turn.reply("", call(), usage=Usage(**{field: 10}))
    turn.complete()
    assert not turn.last_answer_is_asked
    turn.reply("so far", call("clock", numbered(1)), usage=Usage(**{field: 1}))
    assert isinstance(turn.command, AwaitCalls)
    turn.complete()
    assert turn.stopped_by == f"max_{field}=10"
    (ending,) = of(RequestCompleted, turn.facts)
    assert (ending.text, ending.usage) == ("so far", Usage(**{field: 11}))


def test_tokens_over_the_limit_leave_no_last_answer_where_another_limit_would() -> None:
    turn = Turn(Limits(max_rounds=1, max_input_tokens=10))
    turn.reply("", call(), usage=Usage(input_tokens=11))
    turn.complete()
    assert turn.stopped_by == "max_input_tokens=10"


def test_an_empty_reply_over_the_tokens_is_not_asked_again() -> None:
    turn = Turn(Limits(max_input_tokens=10))
    turn.reply(usage=Usage(input_tokens=11))
    assert turn.stopped_by == "max_input_tokens=10"
    assert turn.state.usage == of(RequestCompleted, turn.facts)[0].usage == Usage(input_tokens=11)


# -------------------------------------------------------------------------------------------------- time


def test_the_request_ends_at_its_deadline_while_the_model_is_called() -> None:
    turn = Turn(Limits(timeout_seconds=50))
    assert turn.waiting.deadline == turn.now + 50
    assert turn.elapse(49.999) == []
    turn.elapse(0.001)
    assert turn.stopped_by == "timeout_seconds=50"
    assert turn.state.ending is not None
    assert turn.state.ending.at == turn.state.deadline


def test_the_request_ends_at_its_deadline_while_tools_run_and_results_are_kept() -> None:
    turn = Turn(Limits(timeout_seconds=20))
    turn.call(*(call("clock", numbered(number)) for number in range(5)))
    turn.complete("r_0_1")
    turn.elapse()
    assert turn.stopped_by == "timeout_seconds=20"  # and not that four calls have failed in a row
    assert turn.roles == ["user", "assistant"] + ["tool"] * 5
    assert isinstance(turn.state.calls[1].outcome, ToolCallCompleted)


def test_a_text_that_comes_at_the_deadline_is_an_answer() -> None:
    turn = Turn(Limits(timeout_seconds=20))
    turn.now += 20
    assert of(RequestCompleted, turn.reply("noon"))[0].outcome == "completed"


@pytest.mark.guarantee("G12")
def test_a_call_times_out_at_its_deadline_and_its_sibling_does_not() -> None:
    turn = Turn()
    turn.now += 7
    turn.call(call(), call("weather", '{"city":"Rome"}'))
    turn.complete("r_0_0")
    assert turn.elapse(29.999) == []
    timed_out = of(ToolCallFailed, turn.elapse(0.001))
    assert [(each.call_id, each.reason, each.outcome_unknown, each.retryable) for each in timed_out] == [
        ("r_0_1", "timeout", True, False)
    ]
    assert timed_out[0].error == "weather did not answer in 30 s."
    assert timed_out[0].duration_seconds == 30
    assert isinstance(turn.command, CallModel)


@pytest.mark.parametrize(
    ("spec", "warned"),
    [
        (ToolSpec(name="pay", kind="action"), True),
        (ToolSpec(name="pay", kind="action", idempotent=True), False),
        (ToolSpec(name="pay", kind="query"), False),
        (ToolSpec(name="pay"), False),
    ],
)
def test_the_model_is_warned_that_an_action_which_timed_out_may_have_had_its_effect(
    spec: ToolSpec, warned: bool
) -> None:
    turn = Turn(tools={"pay": spec})
    turn.call(call("pay"))
    (timed_out,) = of(ToolCallFailed, turn.elapse())
    warning = " It may have had its effect: find that out before you call it again."
    assert timed_out.error == "pay did not answer in 30 s." + (warning if warned else "")


def test_seconds_are_reported_as_they_were_set_though_clocks_cannot_hold_them() -> None:
    turn = Turn(Limits(tool_timeout_seconds=0.1, timeout_seconds=1e10))
    turn.now = 1_795_304_537.7287965
    turn.call()
    (timed_out,) = of(ToolCallFailed, turn.elapse())
    assert timed_out.error == "clock did not answer in 0.1 s."


def test_the_model_has_a_time_of_its_own_and_a_failure_not_a_stop_comes_of_it() -> None:
    turn = Turn(Limits(model_timeout_seconds=10, max_model_attempts=1))
    assert turn.elapse(9.999) == []
    (ending,) = of(RequestFailed, turn.elapse(0.001))
    assert (ending.reason, ending.retryable) == ("provider_timeout", True)
    assert ending.error == "the model did not answer in time (model_timeout_seconds=10)"


def test_each_round_and_the_second_try_of_an_empty_one_has_the_models_whole_time() -> None:
    turn = Turn(Limits(model_timeout_seconds=10))
    turn.now += 9
    turn.call()
    turn.complete()
    assert turn.waiting.deadline == turn.now + 10
    turn.now += 9
    turn.reply()
    assert turn.waiting.deadline == turn.now + 10


def test_the_models_time_ends_with_the_requests() -> None:
    turn = Turn(Limits(timeout_seconds=15, model_timeout_seconds=10))
    turn.now += 9
    turn.reply()
    assert turn.waiting.deadline == turn.state.started_at + 15
    turn.elapse()
    assert turn.stopped_by == "timeout_seconds=15"


def test_a_deadline_that_is_told_too_early_means_nothing() -> None:
    turn = Turn()
    assert turn.step(Elapsed()) == []
    turn.call()
    assert turn.step(Elapsed()) == []


@pytest.mark.parametrize(("below", "stops"), [(1, False), (0, True)])
def test_a_request_stops_at_the_reply_at_which_its_journal_has_reached_its_bound(below: int, *, stops: bool) -> None:
    facts = Turn().state.facts
    turn = Turn(Limits(max_facts=facts + below))
    turn.call()
    assert (turn.state.stop is not None) == stops
    turn = Turn(Limits(max_journal_bytes=1_000_000))
    turn.state.journal_bytes = 1_000_000 - below
    turn.call()
    assert (turn.state.stop is not None) == stops
