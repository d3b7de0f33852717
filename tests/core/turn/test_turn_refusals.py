"""Calls that cannot run are refused by the machine, in words for the model, and their siblings run all the same."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from turn_driver import TOOLS, Turn, call, of, replied

from toolbus.core.limits import Limits
from toolbus.core.turn import CallModel, ModelReplied, apply_all
from toolbus.events import Event, ToolCallFailed, ToolCallRequested, decode, encode
from toolbus.messages import AssistantMessage, ToolMessage
from toolbus.protocols import FinishReason, ModelReply, ToolSpec


def refusal(name: str, arguments: str, tools: Mapping[str, ToolSpec] = TOOLS) -> ToolCallFailed:
    """How the first of two calls is refused, while the second one is requested."""
    turn = Turn(tools={**tools, "last": ToolSpec(name="last")})
    facts = turn.step(replied("", call(name, arguments), call("last")))
    assert [each.name for each in of(ToolCallRequested, facts)] == ["last"]
    (refused,) = of(ToolCallFailed, facts)
    assert (refused.call_id, refused.name, refused.outcome_unknown, refused.limit) == ("r_0_0", name, False, "")
    turn.complete()
    first, second = (each for each in turn.state.messages if isinstance(each, ToolMessage))
    assert first.is_error
    assert refused.error in first.content.replace('\\"', '"')
    assert not second.is_error
    return refused


@pytest.mark.parametrize("arguments", ["{", '{"a": NaN}', "[]", '{"a": 1, "a": 2}', "nonsense"])
def test_arguments_that_cannot_be_read_are_refused(arguments: str) -> None:
    refused = refusal("clock", arguments)
    assert refused.reason == "invalid_arguments"
    assert "arguments" in refused.error


def test_arguments_that_break_the_schema_are_refused_with_the_path() -> None:
    refused = refusal("weather", '{"city": 3}')
    assert (refused.reason, refused.error) == ("invalid_arguments", "$.city: a string is required")


def test_an_unknown_tool_is_refused_with_a_list_of_those_there_are() -> None:
    refused = refusal("wether", "{}")
    assert refused.reason == "unknown_tool"
    assert refused.error == "There is no tool 'wether'. The tools are: weather, clock, last."


def test_where_there_are_no_tools_the_refusal_says_so() -> None:
    turn = Turn(tools={})
    (refused,) = of(ToolCallFailed, turn.step(replied("", call("clock"))))
    assert refused.error == "There is no tool 'clock'. The tools are: none."


def test_a_validator_that_breaks_fails_its_call_alone() -> None:
    def broken(_: Mapping[str, object]) -> None:
        raise KeyError("secret")

    refused = refusal("odd", "{}", {"odd": ToolSpec(name="odd", validate=broken)})
    assert refused.reason == "error"
    assert refused.error == "The arguments could not be checked: the validator raised KeyError."


def test_a_round_of_refusals_alone_goes_on_at_once() -> None:
    turn = Turn()
    turn.call(call("nothing"), call("clock", "["))
    assert turn.roles == ["user", "assistant", "tool", "tool"]
    assert isinstance(turn.command, CallModel)
    assert turn.command.round == 1


def test_refused_calls_count_as_calls_and_as_errors() -> None:
    turn = Turn()
    turn.call(call("nothing"), call("clock", "["), call())
    turn.complete()
    assert (turn.state.tool_calls, turn.state.consecutive_errors) == (3, 0)
    turn.call(call("nothing"), call("clock", "["))
    assert turn.state.consecutive_errors == 1


def test_half_a_surrogate_pair_is_refused_and_every_fact_can_be_written() -> None:
    turn = Turn()
    torn = "\ud83d"
    turn.reply(
        f"text {torn}",
        call("clock", f'{{"a": "{torn}"}}', f"id{torn}"),
        call(f"tool{torn}"),
        call("clock", '{"a": "ü"}'),
    )
    turn.complete()
    first, second = of(ToolCallFailed, turn.facts)
    assert (first.reason, second.reason) == ("invalid_arguments", "unknown_tool")
    assert first.error.startswith("the arguments are not valid JSON: ")
    assert [decode(encode(each)) for each in turn.facts] == turn.facts
    reply = turn.state.messages[1]
    assert isinstance(reply, AssistantMessage)
    assert reply.text == "text ?"
    assert [each.arguments for each in reply.tool_calls] == ['{"a": "\\ud83d"}', "{}", '{"a": "ü"}']


def test_calls_that_come_when_the_time_is_over_do_not_start() -> None:
    turn = Turn(Limits(timeout_seconds=20))
    turn.now += 20
    facts = turn.call(call(), call("nothing"))
    assert of(ToolCallRequested, facts) == []
    assert [(each.reason, each.limit, each.error) for each in of(ToolCallFailed, facts)] == [
        ("limit", "timeout_seconds=20", "The request's time is over (timeout_seconds=20).")
    ] * 2
    assert turn.stopped_by == "timeout_seconds=20"
    assert turn.roles == ["user", "assistant", "tool", "tool"]


def cut_off(arguments: str, finish_reason: FinishReason) -> tuple[Turn, list[Event]]:
    message = AssistantMessage(tool_calls=(call("clock", '{"zone":"CET"}'), call("clock", arguments)))
    turn = Turn()
    return turn, turn.step(ModelReplied(ModelReply(message=message, finish_reason=finish_reason)))


@pytest.mark.guarantee("G28")
@pytest.mark.parametrize("arguments", ["", " \n", '{"zone": "C', "{"])
@pytest.mark.parametrize("finish_reason", ["length", "content_filter"])
def test_a_call_that_a_limit_cut_off_is_refused_even_before_its_first_argument(
    arguments: str, finish_reason: FinishReason
) -> None:
    turn, facts = cut_off(arguments, finish_reason)
    again = turn.fresh()
    (refused,) = of(ToolCallFailed, facts)
    assert (refused.call_id, refused.reason) == ("r_0_1", "invalid_arguments")
    if not arguments.strip():
        assert refused.error.startswith("The reply was cut off by ")
    assert [each.call_id for each in of(ToolCallRequested, facts)] == ["r_0_0"]
    apply_all(again, turn.facts)
    assert again == turn.state


@pytest.mark.parametrize("arguments", ["{}", '{"zone": "CET"}', '{"zone": "CET"} '])
def test_an_object_that_is_closed_is_whole_wherever_its_reply_was_cut_off(arguments: str) -> None:
    _, facts = cut_off(arguments, "length")
    assert of(ToolCallFailed, facts) == []


@pytest.mark.parametrize("finish_reason", ["", "stop", "tool_calls", "other"])
def test_no_arguments_are_an_empty_object_in_a_reply_that_is_whole(finish_reason: FinishReason) -> None:
    turn, facts = cut_off("", finish_reason)
    assert [each.arguments for each in of(ToolCallRequested, facts)][1] == {}
    reply = turn.state.messages[-1]
    assert isinstance(reply, AssistantMessage)
    assert reply.tool_calls[1].arguments == "{}"
