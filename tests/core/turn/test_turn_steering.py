"""What people say while a request runs joins the transcript where a round begins, and nothing of it is lost."""

from __future__ import annotations

import pytest
from turn_driver import Turn, call, of

from toolbus.core.limits import Limits
from toolbus.core.turn import CallModel, Elapsed, ModelFailed, Phase
from toolbus.events import CancelRequested, RequestCompleted, SteeringAdded
from toolbus.messages import Usage, UserMessage


def said(turn: Turn) -> list[object]:
    return [each.content for each in turn.state.messages if isinstance(each, UserMessage)]


def test_steering_before_the_first_round_joins_behind_the_prompt_once() -> None:
    turn = Turn(prompt="What time is it?", steered=["In Rome.", "And in Paris."])
    assert said(turn) == ["What time is it?", "In Rome.", "And in Paris."]
    assert isinstance(turn.command, CallModel)


@pytest.mark.guarantee("G08")
@pytest.mark.parametrize("text", ["", " \n"])
def test_steering_without_a_word_means_nothing(text: str) -> None:
    turn = Turn()
    assert turn.steer(text) == []
    turn.reply("noon")
    assert said(turn) == ["What time is it?"]


def test_steering_while_the_model_gives_its_final_text_gets_an_answer_of_its_own() -> None:
    turn = Turn()
    turn.steer("In Rome.")
    facts = turn.reply("noon")
    assert of(RequestCompleted, facts) == []
    assert said(turn) == ["What time is it?", "In Rome."]
    assert turn.reply("one o'clock")[-1].type == "request_completed"
    assert turn.state.last_text == "one o'clock"


def test_steering_while_tools_run_waits_for_their_results() -> None:
    turn = Turn()
    turn.call(call(), call())
    turn.steer("In Rome.")
    assert turn.roles == ["user", "assistant"]
    turn.complete()
    assert turn.roles == ["user", "assistant", "tool", "tool", "user"]


def test_several_join_in_the_order_in_which_they_were_said_under_ids_of_their_own() -> None:
    turn = Turn()
    turn.call()
    turn.steer("one", "two")
    turn.steer("three")
    turn.complete()
    turn.steer("four")
    turn.reply("fine")
    assert said(turn)[1:] == ["one", "two", "three", "four"]
    assert [each.message_id for each in turn.state.messages if isinstance(each, UserMessage)] == [
        "r_u",
        "r_s0",
        "r_s1",
        "r_s2",
        "r_s3",
    ]


def test_the_fact_of_steering_is_the_very_event_that_came_in() -> None:
    turn = Turn()
    event = SteeringAdded(request_id="r", text="In Rome.")
    assert turn.step(event) == [event]


def test_steering_joins_before_the_last_answer_after_a_limit() -> None:
    turn = Turn(limits=Limits(max_rounds=1))
    turn.call()
    turn.steer("Keep it short.")
    turn.complete()
    assert turn.last_answer_is_asked
    assert said(turn)[-1] == "Keep it short."


@pytest.mark.guarantee("G32")
def test_steering_during_the_last_answer_stays_in_the_transcript_for_the_next_turn() -> None:
    turn = Turn(limits=Limits(max_rounds=1))
    turn.call()
    turn.complete()
    turn.steer("Keep it short.")
    turn.reply("noon")
    assert turn.stopped_by == "max_rounds=1"
    assert turn.state.last_text == "noon"
    assert turn.roles[-2:] == ["assistant", "user"]
    assert said(turn)[-1] == "Keep it short."


@pytest.mark.parametrize("limits", [Limits(max_rounds=1, on_limit="stop"), Limits(max_input_tokens=9)])
@pytest.mark.guarantee("G32")
def test_steering_stays_in_the_transcript_where_a_limit_leaves_no_last_answer(limits: Limits) -> None:
    turn = Turn(limits=limits)
    turn.reply("", call(), usage=Usage(input_tokens=10))
    turn.steer("Keep it short.")
    facts = turn.complete()
    assert turn.stopped_by
    assert [each.message.role for each in turn.appended(facts)] == ["tool", "user"]
    assert said(turn)[-1] == "Keep it short."


@pytest.mark.guarantee("G32")
@pytest.mark.parametrize("streamed", ["", "It is n"])
@pytest.mark.parametrize("trouble", ["cancel", "failure", "time"])
def test_steering_while_the_model_is_asked_outlives_every_ending(trouble: str, streamed: str) -> None:
    turn = Turn(limits=Limits(max_model_attempts=1))
    turn.state.streamed = [streamed], []
    turn.steer("one", "two")
    if trouble == "cancel":
        turn.step(CancelRequested(request_id="r"))
    elif trouble == "failure":
        turn.step(ModelFailed("provider_error", "no"))
    else:
        turn.now += 600
        turn.step(Elapsed())
    assert turn.state.phase is Phase.ENDED
    assert said(turn)[1:] == ["one", "two"]


def test_steering_past_the_deadline_starts_no_round() -> None:
    turn = Turn()
    turn.steer("In Rome.")
    turn.now += 600
    turn.reply("noon")
    assert turn.stopped_by == "timeout_seconds=600"
    assert turn.state.last_text == "noon"


@pytest.mark.guarantee("G10")
def test_a_request_that_is_steered_for_ever_runs_out_of_rounds() -> None:
    turn = Turn(limits=Limits(max_rounds=3))
    for _ in range(3):
        turn.steer("And now?")
        turn.reply("noon")
    assert turn.last_answer_is_asked
    turn.steer("And now?")
    turn.reply("still noon")
    assert turn.stopped_by == "max_rounds=3"
    assert turn.state.last_text == "still noon"


def test_a_final_text_at_the_last_round_is_an_answer_not_a_stop() -> None:
    turn = Turn(limits=Limits(max_rounds=2, max_output_tokens=5))
    turn.call()
    turn.complete()
    (ending,) = of(RequestCompleted, turn.reply("noon", usage=Usage(output_tokens=50)))
    assert (ending.outcome, ending.reason) == ("completed", "")


def test_a_steered_request_over_its_tokens_keeps_the_text_and_stops() -> None:
    turn = Turn(limits=Limits(max_output_tokens=5))
    turn.steer("In Rome.")
    turn.reply("noon", usage=Usage(output_tokens=6))
    assert turn.stopped_by == "max_output_tokens=5"
    assert turn.state.last_text == "noon"
