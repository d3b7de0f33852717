"""How a request ends: empty replies, the last answer, a model that fails, a cancel in each phase."""

from __future__ import annotations

import pytest
from turn_driver import Turn, call, completed, failed, of, replied

from toolbus.core.limits import Limits
from toolbus.core.transcript import validate
from toolbus.core.turn import CallModel, Elapsed, Finish, Input, ModelFailed, ModelReplied, OutOfBudget, Start, advance
from toolbus.events import (
    CancelRequested,
    ModelResponded,
    ModelRetrying,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import AssistantMessage, Usage, UserMessage
from toolbus.protocols import FinishReason, ModelReply


def after_a_limit() -> Turn:
    """A turn whose model is asked for its last answer."""
    turn = Turn(Limits(max_rounds=1, max_model_attempts=1))
    turn.reply("let me see", call())
    turn.complete()
    assert turn.last_answer_is_asked
    return turn


# --------------------------------------------------------------------------------------------- empty replies


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_an_empty_reply_is_asked_for_once_more(text: str) -> None:
    turn = Turn()
    responded, retrying = turn.reply(text)
    assert isinstance(responded, ModelResponded)
    assert isinstance(retrying, ModelRetrying)
    assert (retrying.reason, retrying.delay_seconds) == ("empty_reply", 0)
    assert isinstance(turn.command, CallModel)
    assert turn.command.round == 0
    turn.reply("noon")
    assert turn.roles == ["user", "assistant"]
    assert of(RequestCompleted, turn.facts)[0].outcome == "completed"


def test_an_empty_reply_that_the_token_limit_cut_off_says_which_setting_to_raise() -> None:
    turn = Turn()
    facts = turn.step(ModelReplied(ModelReply(message=AssistantMessage(reasoning="Hm"), finish_reason="length")))
    assert "max_output_tokens" in of(ModelRetrying, facts)[0].error


def test_a_second_empty_reply_fails_the_request() -> None:
    turn = Turn()
    turn.reply(usage=Usage(input_tokens=1))
    (ending,) = of(RequestFailed, turn.reply(usage=Usage(input_tokens=2)))
    assert (ending.reason, ending.retryable) == ("empty_reply", False)
    assert ending.usage == turn.state.usage == Usage(input_tokens=3)
    assert turn.roles == ["user"]


@pytest.mark.parametrize(
    ("finish_reason", "why"),
    [("content_filter", "its content filter withheld the reply"), ("refusal", "the model refused without a word")],
)
def test_an_empty_reply_that_was_withheld_fails_the_request_at_once(finish_reason: FinishReason, why: str) -> None:
    turn = Turn()
    (ending,) = of(RequestFailed, turn.reply(finish_reason=finish_reason))
    assert (ending.reason, ending.error) == ("content_filtered", f"the provider gave no answer: {why}")


def test_each_round_has_a_second_try_of_its_own() -> None:
    turn = Turn()
    turn.reply()
    turn.call()
    turn.complete()
    assert of(ModelRetrying, turn.reply())
    assert isinstance(turn.command, CallModel)
    assert turn.command.round == 1


def test_an_empty_last_answer_leaves_the_limit_as_the_reason_and_the_last_text() -> None:
    turn = after_a_limit()
    (ending,) = of(RequestCompleted, turn.reply(usage=Usage(output_tokens=1)))
    assert turn.stopped_by == "max_rounds=1"
    assert (ending.text, ending.usage) == ("let me see", Usage(output_tokens=1))


# --------------------------------------------------------------------------------------------- the last answer


@pytest.mark.guarantee("G06", "G08")
def test_a_last_answer_that_calls_tools_anyway_has_each_refused() -> None:
    turn = after_a_limit()
    facts = turn.reply("once more", call(), call("nothing"), call("clock", "["))
    assert of(ToolCallRequested, facts) == []
    refused = of(ToolCallFailed, facts)
    assert [(each.call_id, each.reason, each.limit) for each in refused] == [
        (f"r_1_{place}", "limit", "max_rounds=1") for place in range(3)
    ]
    assert {each.error for each in refused} == {"No tool may be called any more; answer with what is known."}
    assert turn.stopped_by == "max_rounds=1"
    assert of(RequestCompleted, facts)[0].text == "once more"
    validate(turn.state.messages)


def test_a_model_that_fails_at_the_last_answer_leaves_the_limit_as_the_reason() -> None:
    turn = after_a_limit()
    turn.break_model()
    assert turn.stopped_by == "max_rounds=1"
    assert turn.state.last_text == "let me see"


@pytest.mark.parametrize("seconds", [300, 600])
def test_a_last_answer_that_takes_too_long_leaves_the_limit_as_the_reason(seconds: int) -> None:
    turn = after_a_limit()
    turn.elapse(seconds)
    assert turn.stopped_by == "max_rounds=1"


# -------------------------------------------------------------------------------------------- a failing model


def test_a_model_that_fails_ends_the_request_with_its_words() -> None:
    turn = Turn()
    turn.reply("", call(), usage=Usage(input_tokens=4))
    turn.complete()
    (ending,) = of(RequestFailed, turn.step(ModelFailed("provider_rejected", "no such model")))
    assert (ending.reason, ending.error, ending.retryable) == ("provider_rejected", "no such model", False)
    assert ending.usage == Usage(input_tokens=4)
    assert turn.roles == ["user", "assistant", "tool"]


# ----------------------------------------------------------------------------------------------------- cancel


def test_a_cancel_that_comes_with_the_start_ends_the_request_before_the_model_is_called() -> None:
    turn = Turn()
    state = turn.fresh()
    inputs = [Start(UserMessage(content="x")), CancelRequested(request_id="r", reason="no")]
    facts, _ = advance(state, inputs, 0.0)
    assert [type(each).__name__ for each in facts] == [
        "RequestStarted",
        "MessageAppended",
        "CancelRequested",
        "RequestCancelled",
    ]


def test_a_cancel_while_the_model_is_called_ends_the_request() -> None:
    turn = Turn()
    asked, ended = turn.cancel("enough")
    assert isinstance(asked, CancelRequested)
    assert isinstance(ended, RequestCancelled)
    assert ended.reason == "enough"
    assert turn.command == Finish()


def test_a_cancel_counts_more_than_a_budget_that_is_used_up_in_the_same_step() -> None:
    turn = Turn()
    facts = turn.step(CancelRequested(request_id="r"), OutOfBudget("budget.tokens"))
    assert [each.type for each in facts] == ["cancel_requested", "request_cancelled"]


def test_a_cancel_without_a_reason_is_a_cancel() -> None:
    turn = Turn()
    assert of(RequestCancelled, turn.cancel("")) != []


@pytest.mark.guarantee("G06", "G08", "G09")
def test_a_cancel_while_tools_run_settles_what_is_open_and_keeps_what_is_done() -> None:
    turn = Turn()
    turn.call(call(), call("nothing"), call(), call())
    turn.complete("r_0_2")
    turn.now += 4
    facts = turn.cancel()
    settled = of(ToolCallFailed, facts)
    assert [(each.call_id, each.reason, each.outcome_unknown, each.duration_seconds) for each in settled] == [
        ("r_0_0", "cancelled", True, 4),
        ("r_0_3", "cancelled", True, 4),
    ]
    assert [each.message.role for each in turn.appended(facts)] == ["tool"] * 4
    assert isinstance(turn.state.calls[2].outcome, ToolCallCompleted)
    assert isinstance(facts[-1], RequestCancelled)
    validate(turn.state.messages)


@pytest.mark.guarantee("G09")
@pytest.mark.parametrize("cancel_first", [False, True])
def test_results_that_come_in_the_same_step_as_the_cancel_are_kept(cancel_first: bool) -> None:
    turn = Turn()
    turn.call(call(), call())
    inputs: list[Input] = [completed("r_0_0"), CancelRequested(request_id="r")]
    turn.step(*(reversed(inputs) if cancel_first else inputs))
    done, cut = turn.state.calls
    assert isinstance(done.outcome, ToolCallCompleted)
    assert isinstance(cut.outcome, ToolCallFailed)
    assert cut.outcome.reason == "cancelled"


def test_a_cancel_with_the_last_result_cancels_all_the_same_and_asks_no_model() -> None:
    turn = Turn()
    turn.call()
    facts = turn.step(completed("r_0_0"), CancelRequested(request_id="r"))
    assert isinstance(facts[-1], RequestCancelled)
    assert turn.roles == ["user", "assistant", "tool"]


def test_a_cancel_during_the_last_answer_cancels() -> None:
    turn = after_a_limit()
    assert isinstance(turn.cancel()[-1], RequestCancelled)


def test_usage_so_far_stands_on_a_cancelled_request() -> None:
    turn = Turn()
    turn.reply(usage=Usage(input_tokens=8))
    (ending,) = of(RequestCancelled, turn.cancel())
    assert ending.usage == Usage(input_tokens=8)


# -------------------------------------------------------------------------------------------------- afterwards

LATE: list[Input] = [
    replied("late"),
    replied("", call()),
    ModelFailed("provider_unavailable", "late"),
    Elapsed(),
    completed("r_0_0"),
    failed("r_0_0"),
    CancelRequested(request_id="r"),
    SteeringAdded(request_id="r", text="late"),
]


@pytest.mark.guarantee("G07")
@pytest.mark.parametrize("late", LATE, ids=lambda each: type(each).__name__)
def test_whatever_comes_after_the_end_means_nothing(late: Input) -> None:
    turn = Turn()
    turn.reply("noon")
    turn.now += 1_000
    assert turn.step(late) == []


@pytest.mark.parametrize("late", LATE[:3], ids=lambda each: type(each).__name__)
def test_a_reply_that_comes_while_tools_run_means_nothing(late: Input) -> None:
    turn = Turn()
    turn.call()
    assert turn.step(late) == []
