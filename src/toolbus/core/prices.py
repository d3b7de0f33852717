"""The cost of model calls, by a price table that the application passes in. Pure.

Example:
    from toolbus.core.prices import Price, cost_of
    from toolbus.messages import Usage

    sonnet = Price(input_per_million=3.0, output_per_million=15.0, cached_per_million=0.3)
    prices = {"anthropic:claude-sonnet-4": sonnet, "*": Price(input_per_million=1.0, output_per_million=5.0)}
    print(cost_of(Usage(input_tokens=10_000, output_tokens=1_000), "anthropic", "claude-sonnet-4", prices))  # 0.045
    print(cost_of(Usage(input_tokens=10_000, output_tokens=1_000), "x", "y", {}))  # None
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from .._option_checks import NOT_NEGATIVE, Rule, check, hints_at_names, or_none
from ..messages import Usage

__all__ = ["Price", "cost_of"]

_TOKENS = 1_000_000
_VERSION = re.compile(r"[-@](\d{4}-\d\d-\d\d|\d{8}|\d{3,4})$")
_PRICE = Rule(NOT_NEGATIVE.holds, "it must be a number, 0 or more")


@hints_at_names
@dataclass(slots=True, frozen=True, kw_only=True)
class Price:
    """The price of a million tokens of one model, in the currency of the whole table.

    `cached_per_million` is the price of input that the provider reads from its cache, and `cache_write_per_million` the
    price of input that it writes there; None where it costs the same as other input. Reasoning is counted as output, as
    vendors do. Raises `ConfigurationError` for a price that is negative or not a number.
    """

    input_per_million: float
    output_per_million: float
    cached_per_million: float | None = None
    cache_write_per_million: float | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            check(each.name, value, or_none(_PRICE) if each.default is None else _PRICE)


def cost_of(usage: Usage, vendor: str, model: str, prices: Mapping[str, Price]) -> float | None:
    """Return the cost of `usage`; None where the table has neither "vendor:model" nor the model's name nor "*".

    A server may name the version that has answered, such as "gpt-5-mini-2025-08-07". Where the table does not have the
    version, the price of the model without it counts.
    """
    named = [each for name in (model, _VERSION.sub("", model)) for each in (f"{vendor}:{name}", name)]
    price = next((prices[name] for name in [*named, "*"] if name in prices), None)
    if price is None:
        return None
    plain, amount = usage.input_tokens, usage.output_tokens * price.output_per_million
    for count, rate in (
        (usage.cached_tokens, price.cached_per_million),
        (usage.cache_write_tokens, price.cache_write_per_million),
    ):
        if rate is not None:
            apart = min(count, plain)
            plain -= apart
            amount += apart * rate
    return (amount + plain * price.input_per_million) / _TOKENS
