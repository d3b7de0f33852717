"""Limits check themselves when they are made."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, fields
from decimal import Decimal
from typing import Any

import pytest

from toolbus.core.limits import Limits
from toolbus.errors import ConfigurationError

WORDS = ("on_limit", "on_failure", "stop_on")
NUMBERS = [each.name for each in fields(Limits) if each.name not in WORDS]
COUNTS = [each for each in NUMBERS if each.startswith("max_") and each != "max_cost"]
SECONDS = [each for each in NUMBERS if each.endswith("_seconds")]


@pytest.mark.guarantee("G10")
def test_every_limit_is_finite_by_default_and_as_the_design_says() -> None:
    assert {name: getattr(Limits(), name) for name in NUMBERS} == {
        "max_rounds": 10,
        "max_calls_per_round": 64,
        "max_tool_calls": 100,
        "max_consecutive_errors": 3,
        "max_repeats": 5,
        "max_model_attempts": 3,
        "max_output_repairs": 2,
        "timeout_seconds": 600,
        "tool_timeout_seconds": 30,
        "background_timeout_seconds": 86_400,
        "model_timeout_seconds": 300,
        "approval_timeout_seconds": 3_600,
        "stream_idle_seconds": 120,
        "max_input_tokens": 1_000_000,
        "max_output_tokens": 100_000,
        "max_facts": 10_000,
        "max_journal_bytes": 50 * 1024 * 1024,
        "max_cost": None,
    }
    assert Limits().on_limit == "answer"
    assert Limits().on_failure == "collect"
    assert Limits().stop_on == frozenset()
    assert sorted([*COUNTS, *SECONDS, "max_cost"]) == sorted(NUMBERS)


def refused(name: str, value: object) -> str:
    options: dict[str, Any] = {name: value}
    with pytest.raises(ConfigurationError) as raised:
        Limits(**options)
    assert isinstance(raised.value, ValueError)
    return str(raised.value)


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("name", [each for each in NUMBERS if each != "max_output_repairs"])
@pytest.mark.parametrize("value", [0, -1, 0.0, -0.5, math.nan, math.inf, -math.inf])
def test_zero_negative_nan_and_infinite_are_refused_by_name(name: str, value: float) -> None:
    assert refused(name, value) == f"{name} is {value!r}; it must be a finite number above 0"


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("value", [-1, -0.5, math.nan, math.inf, -math.inf])
def test_the_repairs_of_an_output_may_be_zero_and_nothing_below(value: float) -> None:
    assert Limits(max_output_repairs=0).max_output_repairs == 0
    expected = f"max_output_repairs is {value!r}; it must be a finite number of at least 0"
    assert refused("max_output_repairs", value) == expected


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [True, False, "3", Decimal(3)])
def test_what_is_no_number_is_refused_and_a_boolean_is_none(name: str, value: object) -> None:
    assert refused(name, value) == f"{name} is {value!r}; it must be a number"


@pytest.mark.parametrize("name", COUNTS + SECONDS)
def test_only_the_cost_may_be_without_a_limit(name: str) -> None:
    assert refused(name, None) == f"{name} is None; it must be a number"
    assert Limits(max_cost=0.5).max_cost == 0.5


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [1.5, 2.0])
def test_fractions_of_counts_are_refused(name: str, value: float) -> None:
    assert refused(name, value) == f"{name} is {value!r}; it must be a whole number"


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("value", [1, 0.001, 86_400.5])
def test_seconds_may_be_whole_or_not(name: str, value: float) -> None:
    options: dict[str, Any] = {name: value}
    assert getattr(Limits(**options), name) == value


@pytest.mark.parametrize("value", ["", "ask", None, True])
def test_on_limit_knows_two_words(value: object) -> None:
    assert refused("on_limit", value) == f"on_limit is {value!r}; it must be 'answer' or 'stop'"


@pytest.mark.parametrize("value", ["", "fail-fast", None, True])
def test_on_failure_knows_two_words(value: object) -> None:
    assert refused("on_failure", value) == f"on_failure is {value!r}; it must be 'collect' or 'fail_fast'"


def test_stop_on_takes_any_collection_of_reasons_and_refuses_others_by_name() -> None:
    options: dict[str, Any] = {"stop_on": ["unknown_tool", "timeout"]}
    assert Limits(**options).stop_on == frozenset({"unknown_tool", "timeout"})
    assert refused("stop_on", {"unknown"}).startswith("stop_on has 'unknown'; a call fails for one of: error, ")
    for wrong in (None, 5, [["unknown_tool"]]):
        assert refused("stop_on", wrong) == f"stop_on is {wrong!r}; it must be a set of reasons"


def test_the_presets_have_5_10_and_20_rounds() -> None:
    presets = [Limits.brief(), Limits.standard(), Limits.thorough()]
    assert [each.max_rounds for each in presets] == [5, 10, 20]
    assert presets[1] == Limits()


def test_limits_cannot_be_changed() -> None:
    limits: Any = Limits()
    with pytest.raises(FrozenInstanceError):
        limits.max_rounds = 3
