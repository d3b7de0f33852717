"""Rounds: the model is called, its calls run, their results join the transcript in call order, and so on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from turn_driver import TOOLS, Turn, call, completed, failed, of, replied

from toolbus.core.limits import Limits
from toolbus.core.transcript import validate
from toolbus.core.turn import AwaitCalls, CallModel, Finish, ModelReplied, Start, advance
from toolbus.events import (
    CallOutcome,
    Event,
    MessageAppended,
    ModelResponded,
    RequestCompleted,
    RequestStarted,
    RoundStarted,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import AssistantMessage, ImagePart, TextPart, ToolMessage, Usage, UserMessage
from toolbus.protocols import ModelReply, ToolSpec


def kinds(facts: Sequence[Event]) -> list[str]:
    return [each.type for each in facts]


def test_a_question_and_its_answer_are_a_whole_request() -> None:
    turn = Turn()
    assert kinds(turn.facts) == ["request_started", "message_appended", "round_started"]
    assert isinstance(turn.command, CallModel)
    turn.reply("noon", usage=Usage(input_tokens=3, output_tokens=1))
    assert kinds(turn.facts)[3:] == ["model_responded", "request_completed"]
    assert turn.command == Finish()
    (ending,) = of(RequestCompleted, turn.facts)
    assert (ending.outcome, ending.reason, ending.text) == ("completed", "", "noon")
    assert ending.usage == Usage(input_tokens=3, output_tokens=1)


def test_the_start_says_what_the_request_begins_with() -> None:
    turn = Turn(Limits(timeout_seconds=7), history=[UserMessage(content="a"), AssistantMessage(text="b")])
    (started,) = of(RequestStarted, turn.facts)
    assert (started.prompt, started.history_count, started.timeout_seconds) == ("What time is it?", 2, 7)
    assert turn.state.history_count == 2
    assert turn.roles == ["user", "assistant", "user"]


def test_a_start_of_several_parts_tells_their_text_and_of_which_call_it_is_part() -> None:
    turn = Turn()
    state = turn.fresh()
    prompt = UserMessage(content=(TextPart(text="See:"), ImagePart(url="https://example.com/a.png")))
    facts, _ = advance(state, [Start(prompt, parent_request_id="p", parent_call_id="p_0_0")], 0.0)
    started, appended, _ = facts
    assert isinstance(started, RequestStarted)
    assert (started.prompt, started.parent_request_id, started.parent_call_id) == ("See:", "p", "p_0_0")
    assert isinstance(appended, MessageAppended)
    assert appended.message == prompt


def test_a_request_may_begin_with_a_transcript_alone() -> None:
    turn = Turn(history=[UserMessage(content="a"), AssistantMessage(text="b")], prompt=None)
    assert kinds(turn.facts) == ["request_started", "round_started"]
    turn.reply("more")
    assert turn.state.last_text == "more"


def test_every_fact_carries_the_ids_of_its_request_and_a_place_of_its_own() -> None:
    turn = Turn()
    turn.call()
    turn.complete()
    turn.reply("noon")
    own = [each for each in turn.facts if not isinstance(each, ToolCallCompleted)]
    assert {(each.request_id, each.conversation_id, each.parent_id, each.at) for each in own} == {
        ("r", "c", "r_u", 1_000_000.0)
    }
    assert [each.event_id for each in own] == [
        f"r_f{number}" for number, each in enumerate(turn.facts) if not isinstance(each, ToolCallCompleted)
    ]
    assert turn.state.facts == len(turn.facts)


def test_a_reply_gets_ids_of_ours_and_keeps_all_else() -> None:
    turn = Turn()
    message = AssistantMessage(
        text="let me see",
        tool_calls=(call(provider_call_id="x"), call(provider_call_id="x"), call()),
        reasoning="hm",
        message_id="theirs",
        vendor_data={"anthropic": {"content": []}},
    )
    reply = ModelReply(message=message, finish_reason="tool_calls", vendor="v", model="m", usage=Usage(input_tokens=1))
    expected = turn.command
    assert isinstance(expected, CallModel)
    facts = turn.step(ModelReplied(reply))
    (responded,) = of(ModelResponded, facts)
    assert (responded.finish_reason, responded.vendor, responded.model) == ("tool_calls", "v", "m")
    ours = responded.message
    assert isinstance(ours, AssistantMessage)
    assert ours.message_id == "r_r0" == expected.message_id
    assert [each.call_id for each in ours.tool_calls] == ["r_0_0", "r_0_1", "r_0_2"]
    assert [each.provider_call_id for each in ours.tool_calls] == ["x", "x", ""]
    assert (ours.text, ours.reasoning, ours.vendor_data) == ("let me see", "hm", {"anthropic": {"content": []}})
    assert turn.appended(facts)[0].message == ours
    assert message.message_id == "theirs"
    assert [each.call_id for each in message.tool_calls] == ["", "", ""]


def test_repeated_empty_and_missing_provider_ids_all_run() -> None:
    turn = Turn()
    turn.call(call(provider_call_id="x"), call("weather", '{"city":"Rome"}', "x"), call())
    assert list(turn.state.open_calls) == ["r_0_0", "r_0_1", "r_0_2"]


def test_a_request_for_a_call_says_all_that_running_it_takes() -> None:
    turn = Turn()
    turn.now += 1
    (requested,) = of(ToolCallRequested, turn.call(call("weather", '{"city": "Rome"}', "x")))
    assert requested.arguments == {"city": "Rome"}
    assert (requested.call_id, requested.provider_call_id, requested.name) == ("r_0_0", "x", "weather")
    assert (requested.vendor, requested.round, requested.idempotency_key) == ("scripted", 0, "r_0_0")
    assert (requested.at, requested.timeout_seconds) == (1_000_001.0, 30)


def test_all_calls_of_a_reply_are_in_the_transcript_before_the_first_is_requested() -> None:
    facts = kinds(Turn().call(call(), call()))
    assert facts == ["model_responded", "tool_call_requested", "tool_call_requested"]


@pytest.mark.guarantee("G08")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("at_once", [True, False])
def test_results_are_appended_in_call_order_whatever_order_they_come_in(order: tuple[int, ...], at_once: bool) -> None:
    turn = Turn()
    turn.call(call(), call(), call())
    results = [
        failed(f"r_0_{place}") if place == 1 else completed(f"r_0_{place}", content=f"result {place}")
        for place in order
    ]
    if at_once:
        turn.step(*results)
    else:
        for each in results:
            assert turn.roles == ["user", "assistant"]
            assert isinstance(turn.command, AwaitCalls)
            turn.step(each)
    assert turn.roles == ["user", "assistant", "tool", "tool", "tool"]
    messages = [each for each in turn.state.messages if isinstance(each, ToolMessage)]
    assert [each.call_id for each in messages] == ["r_0_0", "r_0_1", "r_0_2"]
    assert [each.message_id for each in messages] == ["r_0_0_t", "r_0_1_t", "r_0_2_t"]
    assert [each.content for each in messages] == [
        "result 0",
        '{"ok":false,"reason":"error","error":"broken"}',
        "result 2",
    ]
    assert [each.is_error for each in messages] == [False, True, False]
    validate(turn.state.messages)


def test_the_next_round_knows_what_it_processes() -> None:
    turn = Turn()
    assert of(RoundStarted, turn.facts)[0].call_outcomes == ()
    turn.call(call("weather", '{"city":"Rome"}'), call(), call("nothing"))
    (started,) = of(RoundStarted, turn.step(completed("r_0_0"), failed("r_0_1")))
    assert started.call_outcomes == (
        CallOutcome(name="weather", ok=True),
        CallOutcome(name="clock", ok=False),
        CallOutcome(name="nothing", ok=False),
    )
    assert (started.round, started.message_count, started.tools_offered) == (1, 5, True)
    assert turn.command == CallModel(
        round=1, message_id="r_r1", offer_tools=True, not_before=0, deadline=turn.now + 300, provider=0
    )


def test_a_tools_own_timeout_replaces_the_requests() -> None:
    slow = ToolSpec(name="slow", timeout_seconds=45)
    turn = Turn(tools={"slow": slow, "clock": TOOLS["clock"]})
    turn.step(replied("", call("slow"), call()))
    assert [each.timeout_seconds for each in of(ToolCallRequested, turn.facts)] == [45, 30]
    assert turn.waiting.deadline == turn.now + 30
    turn.complete("r_0_1")
    assert turn.waiting.deadline == turn.now + 45


def test_no_call_may_run_longer_than_its_request() -> None:
    turn = Turn(Limits(timeout_seconds=40))
    turn.now += 25
    (requested,) = of(ToolCallRequested, turn.call())
    assert requested.timeout_seconds == 15
    assert turn.waiting.deadline == turn.state.deadline


def test_waiting_tells_which_calls_are_open() -> None:
    turn = Turn()
    turn.call(call(), call())
    turn.complete("r_0_0")
    command = turn.command
    assert isinstance(command, AwaitCalls)
    assert list(command.calls) == ["r_0_1"]
    assert command.calls["r_0_1"].arguments == {}


def test_the_text_beside_calls_is_kept_until_there_is_a_better_one() -> None:
    turn = Turn()
    turn.reply("let me see", call())
    turn.complete()
    turn.call()
    assert turn.state.last_text == "let me see"


def test_the_trace_tells_of_each_round_what_it_took() -> None:
    turn = Turn()
    turn.now += 2
    turn.step(replied("", call(), usage=Usage(input_tokens=5)))
    turn.now += 3
    turn.complete()
    turn.now += 4
    turn.reply("noon", usage=Usage(output_tokens=6))
    first, second = turn.state.rounds
    assert (first.seconds, second.seconds) == (2, 4)
    assert (first.usage, second.usage) == (Usage(input_tokens=5), Usage(output_tokens=6))
    assert isinstance(first.calls[0].outcome, ToolCallCompleted)
    assert second.calls == []
    assert turn.state.usage == Usage(input_tokens=5, output_tokens=6)


@pytest.mark.guarantee("G09")
def test_a_failed_sibling_discards_no_result() -> None:
    turn = Turn()
    turn.call(call(), call())
    turn.step(failed("r_0_1"), completed("r_0_0", content="kept"))
    assert next(each.content for each in turn.state.messages if isinstance(each, ToolMessage)) == "kept"


@pytest.mark.guarantee("G06")
def test_second_and_foreign_results_mean_nothing() -> None:
    turn = Turn()
    turn.call(call(), call(), call("nothing"))
    assert turn.step(completed("r_0_2"), completed("r_1_0"), completed("")) == []
    (fact,) = turn.step(failed("r_0_0"))
    assert isinstance(fact, ToolCallFailed)
    assert turn.step(completed("r_0_0"), failed("r_0_0")) == []
