"""What calls of models cost, by the application's own table."""

from __future__ import annotations

import math
from typing import Any

import pytest

from toolbus.core.prices import Price, cost_of
from toolbus.errors import ConfigurationError
from toolbus.messages import Usage

MILLION = Usage(input_tokens=1_000_000, output_tokens=1_000_000)


def priced(amount: float) -> Price:
    return Price(input_per_million=amount, output_per_million=0)


def test_input_and_output_have_prices_by_the_million() -> None:
    usage = Usage(input_tokens=2_000, output_tokens=500, reasoning_tokens=400)
    assert cost_of(usage, "v", "m", {"m": Price(input_per_million=3, output_per_million=15)}) == pytest.approx(0.0135)


@pytest.mark.parametrize(("cached", "cost"), [(None, 3.0), (0.3, 1.92), (0, 1.8)])
def test_cached_input_has_its_own_price_or_that_of_other_input(cached: float | None, cost: float) -> None:
    usage = Usage(input_tokens=1_000_000, cached_tokens=400_000)
    assert cost_of(
        usage, "v", "m", {"m": Price(input_per_million=3, output_per_million=15, cached_per_million=cached)}
    ) == pytest.approx(cost)


@pytest.mark.parametrize(("written", "cost"), [(None, 2.1), (3.75, 2.25), (0, 1.5)])
def test_input_that_is_written_to_the_cache_has_its_own_price_or_that_of_other_input(
    written: float | None, cost: float
) -> None:
    usage = Usage(input_tokens=1_000_000, cached_tokens=400_000, cache_write_tokens=200_000)
    price = Price(input_per_million=3, output_per_million=15, cached_per_million=0.75, cache_write_per_million=written)
    assert cost_of(usage, "v", "m", {"m": price}) == pytest.approx(cost)


def test_more_cached_than_input_tokens_is_a_slip_of_the_provider_and_no_credit() -> None:
    usage = Usage(input_tokens=1_000_000, cached_tokens=5_000_000)
    assert cost_of(
        usage, "v", "m", {"m": Price(input_per_million=3, output_per_million=0, cached_per_million=1)}
    ) == pytest.approx(1.0)


def test_the_vendors_model_comes_before_the_model_and_that_before_the_star() -> None:
    table = {"*": priced(1), "m": priced(2), "v:m": priced(3)}
    assert cost_of(MILLION, "v", "m", table) == 3
    assert cost_of(MILLION, "w", "m", table) == 2
    assert cost_of(MILLION, "v", "n", table) == 1
    assert cost_of(MILLION, "", "", table) == 1


def test_a_price_of_nothing_is_a_price() -> None:
    assert cost_of(MILLION, "v", "m", {"v:m": priced(0), "*": priced(9)}) == 0


def test_a_model_that_is_not_in_the_table_has_no_price() -> None:
    assert cost_of(MILLION, "v", "m", {"v:other": priced(1)}) is None
    assert cost_of(MILLION, "v", "m", {}) is None


@pytest.mark.parametrize(
    "field", ["input_per_million", "output_per_million", "cached_per_million", "cache_write_per_million"]
)
@pytest.mark.parametrize("value", [-0.01, math.inf, math.nan, "1", True, [1]])
def test_what_is_negative_or_no_number_is_refused_by_name(field: str, value: Any) -> None:
    prices: dict[str, Any] = {"input_per_million": 1, "output_per_million": 1, field: value}
    with pytest.raises(ConfigurationError, match=f"{field} is"):
        Price(**prices)


@pytest.mark.parametrize("field", ["input_per_million", "output_per_million"])
def test_input_and_output_need_a_price(field: str) -> None:
    prices: dict[str, Any] = {"input_per_million": 1, "output_per_million": 1, field: None}
    with pytest.raises(ConfigurationError, match=f"{field} is None"):
        Price(**prices)


@pytest.mark.parametrize(
    ("answered", "cost"),
    [
        ("m-mini-2025-08-07", 2),
        ("m-mini-20250807", 2),
        ("m-mini@20250807", 2),
        ("m-mini-0613", 2),
        ("m-mini-001", 2),
        ("m-mini-2026-01-01", 3),
        ("m-mini-5-20250807", 1),
        ("m-mini-pro", 1),
        ("m-2025-08-07", 1),
    ],
)
def test_a_version_of_a_model_has_the_price_of_the_model_unless_it_has_its_own(answered: str, cost: float) -> None:
    table = {"*": priced(1), "v:m-mini": priced(2), "m-mini-2026-01-01": priced(3)}
    assert cost_of(MILLION, "v", answered, table) == cost
