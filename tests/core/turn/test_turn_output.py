"""Requests that have to end with a value of a type: by the tool for it, or by a text; mended a few times."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from turn_driver import TOOLS, Turn, call, of

from toolbus.core.limits import Limits
from toolbus.core.output import OutputType
from toolbus.core.prices import Price
from toolbus.core.turn import CallModel
from toolbus.events import ModelRetrying, RequestFailed, RoundStarted, ToolCallFailed
from toolbus.messages import Usage, UserMessage
from toolbus.protocols import FinishReason
from toolbus.toolsets.control import give_up, task_complete


class City(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def check(cls, name: str) -> str:
        if name == "Atlantis":
            raise ZeroDivisionError
        return name


ROME = '{"name":"Rome"}'
ANSWER = call("final_answer", ROME)


def asked(limits: Limits | None = None, wanted: Any = City, **agreed: Any) -> Turn:
    output = OutputType[Any](wanted)
    own = (output.spec, task_complete.spec, give_up.spec)
    return Turn(limits, tools={**TOOLS, **{each.name: each for each in own}}, output=output, **agreed)


def check_rome(turn: Turn, reason: str = "") -> None:
    ending = turn.ending
    assert (ending.outcome, ending.reason, ending.output) == (
        "stopped" if reason else "completed",
        reason,
        {"name": "Rome"},
    )
    assert "Rome" in ending.text


def repaired(turn: Turn) -> list[str]:
    return [
        str(each.content) for each in turn.state.messages if isinstance(each, UserMessage) and each.message_id != "r_u"
    ]


# ----------------------------------------------------------------------------------------------- given at once


def test_the_model_calls_the_tool_with_its_answer() -> None:
    turn = asked()
    turn.call(ANSWER)
    check_rome(turn)
    assert turn.roles == ["user", "assistant", "tool"]


@pytest.mark.parametrize("text", [ROME, f"Here:\n```json\n{ROME}\n```"])
def test_the_model_writes_its_answer(text: str) -> None:
    turn = asked()
    turn.reply(text)
    check_rome(turn)
    assert turn.ending.text == text


def test_the_answer_of_a_completed_task_is_read_like_a_text() -> None:
    turn = asked()
    turn.call(call("task_complete", '{"answer":"It is Rome."}'))
    assert isinstance(turn.command, CallModel)
    assert len(repaired(turn)) == 1
    turn.call(call("task_complete", '{"answer":"{\\"name\\":\\"Rome\\"}"}'))
    check_rome(turn)


def test_a_model_that_gives_up_need_give_nothing() -> None:
    turn = asked()
    turn.call(call("give_up", '{"reason":"no map"}'))
    assert turn.stopped_by == "no map"
    assert turn.ending.output is None


def test_a_value_that_is_no_object_is_wrapped() -> None:
    turn = asked(wanted=list[int])
    turn.call(call("final_answer", '{"value":[1,2]}'))
    assert turn.ending.output == {"value": [1, 2]}


def test_a_note_on_a_sibling_that_failed_does_not_ask_for_the_answer_again() -> None:
    turn = asked(note_failures=True)
    turn.call(call("nothing"), ANSWER)
    check_rome(turn)


# ----------------------------------------------------------------------------------------------------- mended


def test_a_text_that_is_no_such_answer_is_sent_back_with_the_reason() -> None:
    turn = asked()
    turn.reply('{"name": 3}')
    (reported,) = repaired(turn)
    assert reported == (
        "This is not the answer that was asked for: $.name: Input should be a valid string. Call final_answer with it."
    )
    assert turn.waiting == turn.command
    turn.call(ANSWER)
    check_rome(turn)


def test_texts_are_sent_back_as_often_as_the_limit_says_and_then_the_request_fails() -> None:
    turn = asked(Limits(max_output_repairs=2))
    for _ in range(2):
        turn.reply("Rome")
        assert isinstance(turn.command, CallModel)
    turn.reply("Rome", usage=Usage(input_tokens=3))
    ending = turn.state.ending
    assert isinstance(ending, RequestFailed)
    assert (ending.reason, ending.usage.input_tokens) == ("invalid_output", 3)
    assert ending.error.startswith("the model gave no valid output: the answer is not valid JSON")
    assert ending.error.endswith("(max_output_repairs=2)")
    assert [each.message_id for each in turn.state.messages if isinstance(each, UserMessage)] == ["r_u", "r_o0", "r_o1"]


@pytest.mark.parametrize(
    ("finish_reason", "error"),
    [
        ("refusal", "the provider gave no answer: the model refused: I can't help with that."),
        ("content_filter", "the provider gave no answer: its content filter cut the reply off"),
    ],
)
def test_a_model_that_refuses_is_not_asked_to_repair_its_refusal(finish_reason: FinishReason, error: str) -> None:
    turn = asked()
    turn.reply("I can't help with that.", finish_reason=finish_reason, usage=Usage(input_tokens=3))
    ending = turn.state.ending
    assert isinstance(ending, RequestFailed)
    assert (ending.reason, ending.error, ending.usage.input_tokens) == ("content_filtered", error, 3)
    assert repaired(turn) == []
    assert turn.roles == ["user", "assistant"]


def test_a_refusal_after_a_limit_ends_the_request_by_the_limit() -> None:
    turn = asked(Limits(max_rounds=1))
    turn.call(call("nothing"))
    turn.reply("I can't help with that.", finish_reason="refusal")
    assert turn.stopped_by == "max_rounds=1"


def test_arguments_that_are_no_such_answer_are_the_models_own_to_mend() -> None:
    turn = asked()
    turn.call(call("final_answer", '{"name":3}'))
    assert [each.reason for each in of(ToolCallFailed, turn.facts)] == ["invalid_arguments"]
    assert repaired(turn) == []
    turn.call(ANSWER)
    check_rome(turn)


def test_a_native_answer_is_sent_back_in_words_that_fit_it() -> None:
    turn = asked()
    turn.reply('{"name": 3}', native_output=True)
    (reported,) = repaired(turn)
    assert reported == (
        "This is not the answer that was asked for: $.name: Input should be a valid string. "
        "Answer again, with the whole JSON and nothing else."
    )
    turn.reply("Rome")  # by the tool's way now, whatever was before
    assert repaired(turn)[1].endswith("Call final_answer with it.")
    turn.reply(ROME, native_output=True)
    check_rome(turn)


def test_native_answers_are_sent_back_as_often_as_the_limit_says() -> None:
    turn = asked(Limits(max_output_repairs=1))
    turn.reply("Rome", native_output=True)
    turn.reply("Rome", native_output=True)
    ending = turn.state.ending
    assert isinstance(ending, RequestFailed)
    assert ending.reason == "invalid_output"


# -------------------------------------------------------------------------------- a server that takes no schema


def test_a_server_that_refuses_the_schema_is_asked_once_more_at_once() -> None:
    turn = asked()
    (retrying,) = of(ModelRetrying, turn.break_model("native_output_unsupported", retryable=False))
    assert (retrying.reason, retrying.provider_index, retrying.delay_seconds) == ("native_output_unsupported", 0, 0.0)
    assert turn.state.native_refused
    turn.call(ANSWER)
    check_rome(turn)


def test_it_is_asked_once_more_only_once() -> None:
    turn = asked()
    turn.break_model("native_output_unsupported", retryable=False)
    turn.break_model("native_output_unsupported", retryable=False)
    ending = turn.state.ending
    assert isinstance(ending, RequestFailed)
    assert (ending.reason, ending.error) == ("native_output_unsupported", "no answer")


def test_a_request_that_wants_it_natively_or_not_at_all_fails_there() -> None:
    turn = asked(output_mode="native")
    turn.break_model("native_output_unsupported", retryable=False)
    ending = turn.state.ending
    assert isinstance(ending, RequestFailed)
    assert ending.reason == "native_output_unsupported"


@pytest.mark.parametrize("way", ["text", "call"])
def test_a_validator_that_breaks_ends_nothing(way: str) -> None:
    turn = asked()
    broken = '{"name":"Atlantis"}'
    turn.reply(broken) if way == "text" else turn.call(call("final_answer", broken))
    assert isinstance(turn.command, CallModel)
    turn.call(ANSWER)
    check_rome(turn)


@pytest.mark.parametrize("answer", ["text", "call"])
def test_what_was_said_meanwhile_comes_before_the_answer(answer: str) -> None:
    turn = asked()
    turn.steer("I mean the new one.")
    turn.reply(ROME) if answer == "text" else turn.call(ANSWER)
    assert repaired(turn) == ["I mean the new one."]
    turn.call(ANSWER)
    check_rome(turn)


# ----------------------------------------------------------------------------------------------------- limits


def test_an_answer_in_the_last_round_is_an_answer() -> None:
    turn = asked(Limits(max_rounds=1))
    turn.call(ANSWER)
    check_rome(turn)


def test_an_answer_over_the_tokens_is_an_answer() -> None:
    turn = asked(Limits(max_output_tokens=5))
    turn.reply("", ANSWER, usage=Usage(output_tokens=9))
    check_rome(turn)


@pytest.mark.parametrize("way", ["text", "call"])
@pytest.mark.parametrize("limits", [Limits(max_rounds=1), Limits(max_tool_calls=1)])
def test_the_last_answer_after_a_limit_may_be_given_by_the_tool_and_by_a_text(limits: Limits, way: str) -> None:
    turn = asked(limits)
    turn.call(call(), call())
    turn.complete()
    assert turn.last_answer_is_asked
    turn.reply(ROME) if way == "text" else turn.call(ANSWER)
    assert turn.state.stop is not None
    check_rome(turn, turn.state.stop.reason)


def test_calls_that_are_used_up_do_not_keep_the_answer_back() -> None:
    turn = asked(Limits(max_tool_calls=1))
    turn.call()
    turn.complete()
    assert not turn.last_answer_is_asked
    turn.call(ANSWER)
    check_rome(turn)


def test_another_tool_may_not_be_called_in_the_last_answer() -> None:
    turn = asked(Limits(max_rounds=1))
    turn.call()
    turn.complete()
    turn.call(call("clock", '{"n":1}'), ANSWER)
    assert [(each.name, each.reason) for each in of(ToolCallFailed, turn.facts)] == [("clock", "limit")]
    check_rome(turn, "max_rounds=1")


def test_what_was_said_during_the_last_answer_does_not_take_it_away() -> None:
    turn = asked(Limits(max_rounds=1))
    turn.call()
    turn.complete()
    turn.steer("Hurry.")
    turn.reply(ROME)
    check_rome(turn, "max_rounds=1")


@pytest.mark.guarantee("G10")
def test_mending_counts_as_a_round_and_the_last_one_is_without_other_tools() -> None:
    turn = asked(Limits(max_rounds=1))
    turn.reply("Rome")
    assert turn.last_answer_is_asked
    turn.call(ANSWER)
    check_rome(turn, "max_rounds=1")
    assert [each.tools_offered for each in of(RoundStarted, turn.facts)] == [True, False]


def test_a_last_answer_that_is_none_stops_the_request_with_its_text() -> None:
    turn = asked(Limits(max_rounds=1))
    turn.reply("Rome")
    turn.reply("Rome, I said.")
    assert turn.stopped_by == "max_rounds=1"
    assert (turn.ending.text, turn.ending.output) == ("Rome, I said.", None)


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(max_input_tokens=5), "max_input_tokens=5"),
        (Limits(max_output_tokens=5), "max_output_tokens=5"),
        (Limits(max_cost=5.0), "max_cost=5"),
        (Limits(max_rounds=1, on_limit="stop"), "max_rounds=1"),
    ],
)
def test_nothing_is_sent_back_past_a_limit(limits: Limits, reason: str) -> None:
    turn = asked(limits, prices={"*": Price(input_per_million=1_000_000, output_per_million=0)})
    turn.reply("Rome", usage=Usage(input_tokens=6, output_tokens=6))
    assert turn.stopped_by == reason
    assert (turn.ending.text, repaired(turn)) == ("Rome", [])


def test_nothing_is_sent_back_when_the_time_is_over() -> None:
    turn = asked()
    turn.now += 600
    turn.reply("Rome")
    assert turn.stopped_by == "timeout_seconds=600"
