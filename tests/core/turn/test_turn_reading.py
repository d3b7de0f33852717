"""`read_result`: the turn machine answers it from the transcript, whoever has run the call and in whichever turn."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import jsonschema_rs
import pytest
from turn_driver import TOOLS, Turn, call, of

from toolbus.core.limits import Limits
from toolbus.core.read_result import READ_RESULT
from toolbus.core.turn import CallModel
from toolbus.errors import InvalidArguments
from toolbus.events import ApprovalRequested, Event, ToolCallCompleted, ToolCallFailed, ToolCallRequested
from toolbus.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from toolbus.protocols import ToolSpec

OFFERED: Mapping[str, ToolSpec] = {**TOOLS, "read_result": READ_RESULT}
PARAMETERS = {**READ_RESULT.parameters}
LONG = "".join(str(number % 10) for number in range(10_000))


def read(call_id: str, offset: int | None = None) -> ToolCall:
    arguments = {"call_id": call_id} if offset is None else {"call_id": call_id, "offset": offset}
    return call("read_result", json.dumps(arguments))


def turn_with_result(limits: Limits | None = None, content: str = LONG) -> Turn:
    turn = Turn(limits, tools=OFFERED, max_result_chars=1_000)
    turn.call()
    turn.complete(content=content)
    return turn


def page_in(facts: Sequence[Event]) -> str:
    (done,) = of(ToolCallCompleted, facts)
    return done.content


def refusal_in(facts: Sequence[Event]) -> ToolCallFailed:
    (refused,) = of(ToolCallFailed, facts)
    return refused


def test_the_model_reads_a_whole_result_page_by_page() -> None:
    turn = turn_with_result(Limits(max_rounds=30))
    read_so_far, offset = "", 0
    while offset < len(LONG):
        reported, _, text = page_in(turn.call(read("r_0_0", offset))).partition("\n")
        assert len(reported) + 1 + len(text) <= 1_000
        read_so_far += text
        offset += len(text)
        assert reported.startswith(f"Characters {offset - len(text)} to {offset} of 10000.")
    assert read_so_far == LONG


def test_it_is_put_on_no_bus_and_to_nobody_and_costs_no_wait() -> None:
    turn = turn_with_result()
    before = len(turn.facts)
    turn.call(read("r_0_0"))
    assert isinstance(turn.command, CallModel)
    assert of(ToolCallRequested, turn.facts[before:]) == of(ApprovalRequested, turn.facts) == []
    assert turn.state.rounds[1].calls[0].arguments == {"call_id": "r_0_0"}
    asked = Turn(tools=OFFERED, needs_approval=True)
    asked.call(read("nothing"))
    assert of(ApprovalRequested, asked.facts) == []


def earlier(content: str, call_id: str = "x", provider_call_id: str = "") -> list[Message]:
    made = ToolCall(name="look", call_id=call_id, provider_call_id=provider_call_id)
    return [
        UserMessage(content="Look."),
        AssistantMessage(tool_calls=(made,)),
        ToolMessage(call_id=call_id, name="look", content=content),
        AssistantMessage(text="I did."),
    ]


def test_results_of_earlier_turns_and_of_histories_from_elsewhere_can_be_read() -> None:
    turn = Turn(tools=OFFERED, history=earlier("from before"))
    assert page_in(turn.call(read("x"))) == "Characters 0 to 11 of 11. This is the end.\nfrom before"


def test_of_ids_that_come_again_the_newest_result_is_meant() -> None:
    turn = Turn(tools=OFFERED, history=[*earlier("old"), *earlier("new")])
    assert page_in(turn.call(read("x"))).endswith("\nnew")


def test_the_id_that_the_provider_gave_the_call_is_understood_too() -> None:
    turn = Turn(tools=OFFERED, history=[*earlier("mine", "y", "call_7"), *earlier("other", "z", "call_8")])
    assert page_in(turn.call(read("call_7"))).endswith("\nmine")


def test_failed_calls_can_be_read_too() -> None:
    turn = Turn(tools=OFFERED)
    turn.call()
    turn.fail("r_0_0")
    assert "broken" in page_in(turn.call(read("r_0_0")))


def test_an_unknown_id_fails_with_a_list_of_what_there_is() -> None:
    turn = Turn(tools=OFFERED, history=earlier("from before"))
    turn.call()
    turn.complete(content="x" * 50)
    turn.call(read("r_0_0"))
    refused = refusal_in(turn.call(read("r_9_9")))
    assert refused.reason == "invalid_arguments"
    assert refused.error == (
        "There is no result of a call 'r_9_9'. The newest are: 'r_0_0' (clock, 50 characters), 'x' (look, 11 characters)."
    )


def test_the_list_is_of_the_newest_and_short() -> None:
    history = [message for number in range(50) for message in earlier("a", f"x{number}")]
    reported = refusal_in(Turn(tools=OFFERED, history=history).call(read("i" * 5_000))).error
    assert "'x49'" in reported
    assert "'x29'" not in reported
    assert len(reported) < 1_000


def test_where_there_is_no_result_yet_that_is_said() -> None:
    turn = Turn(tools=OFFERED)
    assert refusal_in(turn.call(read("r_0_0"))).error.endswith("There is nothing to read yet.")


def test_a_call_of_the_same_reply_has_no_result_that_could_be_read() -> None:
    turn = Turn(tools=OFFERED)
    assert refusal_in(turn.call(call(), read("r_0_0"))).error.endswith("There is nothing to read yet.")


def test_an_offset_past_the_end_is_told_so() -> None:
    turn = turn_with_result(content="abc")
    assert page_in(turn.call(read("r_0_0", 3))) == "There is nothing at offset 3: the result has 3 characters."


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ({}, "$.call_id: "),
        ({"call_id": 5}, "$.call_id: "),
        ({"call_id": "x", "offset": -1}, "$.offset: "),
        ({"call_id": "x", "offset": 1.0}, "$.offset: "),
        ({"call_id": "x", "offset": True}, "$.offset: "),
        ({"call_id": "x", "offset": None}, "$.offset: "),
        ({"call_id": "x", "page": 1}, r"$.page: There is no such argument"),
    ],
)
def test_arguments_that_break_the_schema_are_refused_with_their_path(
    arguments: dict[str, object], reported: str
) -> None:
    with pytest.raises(InvalidArguments) as caught:
        READ_RESULT.validate(arguments)
    assert str(caught.value).startswith(reported)
    is_float = isinstance(arguments.get("offset"), float)  # which a schema takes for an integer
    assert jsonschema_rs.is_valid(PARAMETERS, arguments) == is_float, "the model is shown the same"


def test_the_default_in_the_schema_is_where_a_call_without_an_offset_begins() -> None:
    default = READ_RESULT.parameters["properties"]["offset"]["default"]
    assert jsonschema_rs.is_valid(PARAMETERS, {"call_id": "r_0_0", "offset": default})
    assert jsonschema_rs.is_valid(PARAMETERS, {"call_id": "r_0_0"})
    first, same = (page_in(turn_with_result().call(read("r_0_0", offset))) for offset in (None, default))
    assert first == same


def test_it_counts_as_any_call_does() -> None:
    turn = turn_with_result(Limits(max_tool_calls=2))
    turn.call(read("r_0_0"), read("r_0_0", 900))
    assert turn.state.tool_calls == 2
    assert [each.limit for each in of(ToolCallFailed, turn.facts)] == ["max_tool_calls=2"]


def test_the_same_page_over_and_over_is_a_repeat_and_the_next_page_is_none() -> None:
    turn = turn_with_result(Limits(max_repeats=2, max_rounds=30))
    for number in range(5):
        turn.call(read("r_0_0", number))
    assert of(ToolCallFailed, turn.facts) == []
    for _ in range(3):
        turn.call(read("r_0_0", 9))
    assert [each.limit for each in of(ToolCallFailed, turn.facts)] == ["max_repeats=2"]


def test_a_result_that_cannot_be_read_keeps_its_siblings_from_beginning_where_the_first_failure_ends_the_request() -> (
    None
):
    turn = Turn(Limits(on_failure="fail_fast"), tools=OFFERED)
    turn.call(call(), read("r_9_9"))
    assert of(ToolCallRequested, turn.facts) == []
    assert turn.stopped_by == "on_failure=fail_fast"


def test_in_the_last_answer_nothing_may_be_read_any_more() -> None:
    turn = turn_with_result(Limits(max_rounds=1))
    turn.reply("so far", read("r_0_0"))
    assert [each.reason for each in of(ToolCallFailed, turn.facts)] == ["limit"]
    assert turn.stopped_by == "max_rounds=1"
