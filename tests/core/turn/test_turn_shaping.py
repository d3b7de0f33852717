"""What the turn machine makes of a history that was shortened for the model, and of a model that says it was too long."""

from __future__ import annotations

from typing import Any

import pytest
from turn_driver import Turn, of

from toolbus.core.history import Shape
from toolbus.core.limits import Limits
from toolbus.core.prices import Price
from toolbus.core.turn import CallModel, HistoryShaped, ModelFailed
from toolbus.events import HistoryCompressed, ModelRetrying, RequestCompleted, RequestFailed, RoundStarted
from toolbus.messages import Usage
from toolbus.protocols import Summary

SHAPE = Shape(900, 300, 2, 1, "In short.")
PRICES = {"quick:m": Price(input_per_million=1_000_000, output_per_million=1_000_000)}


def overflow(turn: Turn, *, retryable: bool = True) -> list[Any]:
    return turn.step(ModelFailed("context_overflow", "too long", retryable=retryable))


def summed(turn: Turn, text: str = "In short.", **fields: Any) -> list[Any]:
    return turn.step(HistoryShaped(SHAPE, Summary(text=text, **fields)))


def test_what_is_sent_is_reported_and_what_a_summary_used_is_counted() -> None:
    turn = Turn(prices=PRICES)
    (reported,) = summed(turn, usage=Usage(input_tokens=3), vendor="quick", model="m")
    assert isinstance(reported, HistoryCompressed)
    assert (reported.before_tokens, reported.after_tokens, reported.results_shortened, reported.turns_omitted) == (
        900,
        300,
        2,
        1,
    )
    assert (reported.summary, reported.usage, reported.cost) == ("In short.", Usage(input_tokens=3), 3.0)
    assert (turn.state.usage, turn.state.cost) == (Usage(input_tokens=3), 3.0)
    assert isinstance(turn.command, CallModel)
    turn.reply("noon", usage=Usage(input_tokens=4))
    assert turn.ending.usage == Usage(input_tokens=7)


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_summary_without_text_is_counted_and_not_told(text: str) -> None:
    turn = Turn()
    (reported,) = summed(turn, text, usage=Usage(input_tokens=3))
    assert reported.summary == ""
    assert (turn.state.usage, turn.state.cost) == (Usage(input_tokens=3), 0.0)


def test_a_summary_that_comes_when_nobody_asks_means_nothing() -> None:
    turn = Turn()
    turn.call()
    assert summed(turn) == []
    turn.cancel()
    assert summed(turn) == []


def test_a_summary_that_uses_up_the_limits_ends_the_request_before_the_model_is_asked() -> None:
    turn = Turn(Limits(max_input_tokens=2))
    summed(turn, usage=Usage(input_tokens=3))
    assert turn.stopped_by == "max_input_tokens=2"
    assert turn.ending.usage == Usage(input_tokens=3) == turn.state.usage
    turn = Turn(Limits(max_cost=2.0), prices=PRICES)
    summed(turn, usage=Usage(output_tokens=3), vendor="quick", model="m")
    assert turn.stopped_by == "max_cost=2"


def test_the_limit_that_asked_for_the_last_answer_is_the_reason_whatever_a_summary_uses() -> None:
    turn = Turn(Limits(max_rounds=1, max_input_tokens=2))
    turn.call()
    turn.complete()
    assert turn.last_answer_is_asked
    summed(turn, usage=Usage(input_tokens=3))
    assert turn.stopped_by == "max_rounds=1"


@pytest.mark.parametrize(
    ("summary", "fails"),
    [
        ({"vendor": "other", "model": "m"}, True),
        ({"usage": Usage(input_tokens=1)}, True),
        ({"vendor": "quick", "model": "m"}, False),
        ({}, False),  # nobody was paid for it
    ],
)
def test_a_summary_without_a_price_ends_a_request_whose_cost_is_limited(summary: dict[str, Any], fails: bool) -> None:
    turn = Turn(Limits(max_cost=2.0), prices=PRICES)
    facts = summed(turn, **summary)
    assert isinstance(facts[-1], RequestFailed) is fails
    if fails:
        assert facts[-1].reason == "configuration_error"
        assert facts[-1].usage == turn.state.usage == summary.get("usage", Usage())


def test_what_was_too_long_is_sent_once_more_in_a_round_to_each_provider() -> None:
    turn = Turn(providers=2)
    asked = [of(ModelRetrying, overflow(turn))[0].provider_index for _ in range(3)]
    assert asked == [0, 1, 1]
    (failed,) = overflow(turn)
    assert isinstance(failed, RequestFailed)
    assert (failed.reason, failed.retryable) == ("context_overflow", False)


def test_each_round_begins_anew_with_the_provider_that_was_turned_to() -> None:
    turn = Turn(providers=2)
    for _ in range(3):
        overflow(turn)
    turn.call()
    turn.complete()
    assert isinstance(command := turn.command, CallModel)
    assert command.provider == 1
    assert [each.provider_index for each in of(ModelRetrying, overflow(turn))] == [1]
    assert len(of(RoundStarted, turn.facts)) == 2


def test_what_cannot_be_shortened_is_not_sent_to_anybody() -> None:
    turn = Turn(providers=2)
    (failed,) = overflow(turn, retryable=False)
    assert isinstance(failed, RequestFailed)


def test_another_failure_between_two_refusals_changes_nothing() -> None:
    turn = Turn(providers=2)
    overflow(turn)
    (waits,) = of(ModelRetrying, turn.break_model())
    assert (waits.provider_index, waits.delay_seconds > 0) == (0, True)
    assert [each.provider_index for each in of(ModelRetrying, overflow(turn))] == [1]


def test_a_last_answer_that_is_too_long_ends_by_its_limit() -> None:
    turn = Turn(Limits(max_rounds=1))
    turn.call()
    turn.complete()
    overflow(turn)
    (ended,) = overflow(turn)
    assert isinstance(ended, RequestCompleted)
    assert turn.stopped_by == "max_rounds=1"


def test_nothing_is_sent_again_once_the_time_is_over() -> None:
    turn = Turn(Limits(timeout_seconds=5))
    turn.now += 5
    assert of(ModelRetrying, overflow(turn)) == []
