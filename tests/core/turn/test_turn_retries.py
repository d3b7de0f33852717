"""The turn machine: a model that fails is asked again, later each time, and after it the next provider.

And what remains of each reply, whether it is used or not.
"""

from __future__ import annotations

from turn_driver import Turn, of

from toolbus.core.limits import Limits
from toolbus.core.turn import CallModel, ModelReplied
from toolbus.events import ModelRetrying, RequestFailed
from toolbus.messages import AssistantMessage
from toolbus.protocols import ModelReply


def test_each_attempt_waits_longer_and_has_the_whole_time_of_a_model_call() -> None:
    turn = Turn(Limits(max_model_attempts=4, model_timeout_seconds=60))
    made: list[ModelRetrying] = []
    for attempt in (1, 2, 3):
        turn.now += 10
        made += of(ModelRetrying, turn.break_model())
        delay = made[-1].delay_seconds
        assert 0.25 * 2 ** (attempt - 1) <= delay <= 0.5 * 2 ** (attempt - 1)
        assert isinstance(turn.command, CallModel)
        assert (turn.command.not_before, turn.command.deadline) == (turn.now + delay, turn.now + delay + 60)
    assert turn.state.rounds[-1].retries == tuple(made)
    assert of(RequestFailed, turn.break_model())


def test_an_attempt_has_no_more_time_than_the_request() -> None:
    turn = Turn(Limits(model_timeout_seconds=60, timeout_seconds=100))
    turn.now += 50
    turn.break_model()
    assert turn.waiting.deadline == turn.state.started_at + 100


def test_a_reply_after_failures_has_an_id_of_its_own_and_the_next_round_begins_at_once() -> None:
    turn = Turn(Limits(max_model_attempts=3))
    for _ in range(2):
        turn.break_model()
    turn.call()
    message = turn.state.messages[-1]
    assert isinstance(message, AssistantMessage)
    assert message.message_id == "r_r0_2"
    turn.complete()
    assert isinstance(turn.command, CallModel)
    assert turn.command.not_before == 0
    for _ in range(2):
        assert of(ModelRetrying, turn.break_model())
    assert of(RequestFailed, turn.break_model())


def test_each_provider_has_all_of_the_attempts() -> None:
    turn = Turn(Limits(max_model_attempts=3), providers=2)
    made = [each for _ in range(5) for each in of(ModelRetrying, turn.break_model())]
    assert [each.provider_index for each in made] == [0, 0, 1, 1, 1]
    assert of(RequestFailed, turn.break_model())


def test_nothing_of_a_reply_that_is_not_used_remains() -> None:
    turn = Turn()
    turn.state.streamed = (["half a"], ["Hm"])
    turn.break_model()
    turn.now += 5
    assert of(ModelRetrying, turn.reply(""))
    assert (turn.state.streamed, turn.state.rounds[-1].seconds) == (((), ()), None)


def test_a_round_keeps_what_its_reply_says() -> None:
    turn = Turn()
    turn.state.streamed = (["Do"], [])
    reply = ModelReply(message=AssistantMessage(text="Done."), model="m-1", vendor="scripted")
    turn.step(ModelReplied(reply, native_output=True))
    done = turn.state.rounds[-1]
    assert (done.model, done.native_output, done.seconds) == ("m-1", True, 0.0)
    assert (turn.state.streamed, turn.state.cost) == (((), ()), 0.0)
