"""The limits of a sub-request: at most what the request above it has left, and none where nothing is left."""

from __future__ import annotations

from typing import Any

import pytest
from turn_driver import Turn, call

from toolbus.core.limits import Limits
from toolbus.core.prices import Price
from toolbus.core.turn import remaining_limits
from toolbus.messages import Usage

ABOVE = Limits(
    timeout_seconds=100,
    tool_timeout_seconds=30,
    max_tool_calls=5,
    max_input_tokens=1000,
    max_output_tokens=200,
    max_cost=1.0,
    max_rounds=7,
)
USED = Usage(input_tokens=100, output_tokens=50)
PRICES = {"*": Price(input_per_million=1_000.0, output_per_million=0.0)}  # 100 tokens of input cost 0.1


def above(limits: Limits = ABOVE) -> Turn:
    """A request whose call r_0_0 runs since 10 seconds."""
    turn = Turn(limits, prices=PRICES)
    turn.reply("", call(), call("clock", '{"n": 1}'), usage=USED)
    turn.now += 10
    return turn


def left(turn: Turn, wanted: Limits | None = None, call_id: str = "r_0_0") -> Limits | None:
    return remaining_limits(turn.state, call_id, turn.now, wanted)


def test_a_sub_request_gets_what_the_request_above_has_left_until_the_deadline_of_its_call() -> None:
    given = left(above())
    assert given is not None
    assert (given.timeout_seconds, given.max_tool_calls, given.max_rounds) == (20, 3, 7)
    assert (given.max_input_tokens, given.max_output_tokens) == (900, 150)
    assert given.max_cost == pytest.approx(0.9)


def test_a_call_that_is_not_open_leaves_the_time_of_its_request() -> None:
    given = left(above(), call_id="r_9_9")
    assert given is not None
    assert given.timeout_seconds == 90


@pytest.mark.parametrize(
    ("name", "less", "most"),
    [
        ("timeout_seconds", 5, 20),
        ("approval_timeout_seconds", 60, 3600),
        ("max_tool_calls", 2, 3),
        ("max_input_tokens", 10, 900),
        ("max_output_tokens", 10, 150),
        ("max_cost", 0.5, 0.9),
    ],
)
def test_of_what_is_wanted_and_what_is_left_the_smaller_counts(name: str, less: Any, most: Any) -> None:
    wanted: dict[str, Any] = {name: less}
    for limits, expected in [(Limits(**wanted), less), (Limits(**{name: 100 * most}), most)]:
        given = left(above(), limits)
        assert given is not None
        assert getattr(given, name) == pytest.approx(expected)


def test_where_the_request_above_may_cost_anything_the_wanted_cost_counts() -> None:
    free = above(Limits())
    for wanted, cost in [(None, None), (Limits(max_cost=0.5), 0.5)]:
        given = left(free, wanted)
        assert given is not None
        assert given.max_cost == cost


def test_a_sub_request_without_calls_left_still_has_valid_limits() -> None:
    given = left(above(Limits(max_tool_calls=2)))
    assert given is not None
    assert given.max_tool_calls == 1


@pytest.mark.parametrize(
    ("limits", "waits"),
    [
        (Limits(max_input_tokens=100), 0),
        (Limits(max_output_tokens=50), 0),
        (Limits(max_cost=0.1), 0),
        (Limits(tool_timeout_seconds=30), 20),
    ],
)
def test_nothing_is_left_once_a_limit_is_used_up_exactly(limits: Limits, waits: float) -> None:
    turn = above(limits)
    turn.now += waits
    assert left(turn) is None


def test_the_last_token_may_still_be_spent() -> None:
    given = left(above(Limits(max_output_tokens=51)))
    assert given is not None
    assert given.max_output_tokens == 1
