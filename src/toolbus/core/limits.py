"""When a request has to stop. Data with its own checks; `core.turn` does the counting."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from ..errors import ConfigurationError

__all__ = ["Limits", "OnLimit"]

OnLimit: TypeAlias = Literal["answer", "stop"]


@dataclass(slots=True, frozen=True, kw_only=True)
class Limits:
    """The limits that stop a request, and their defaults. Every one is finite.

    A limit is no error: the request ends `stopped`, and `RequestResult.reason` names the limit with its value.

    max_rounds: replies of the model to which tools were offered; the last one's calls are still run.
    max_calls_per_round: calls in one reply; those past it get an error result, and the request goes on.
    max_tool_calls: calls over the whole request.
    max_consecutive_errors: failed calls in a row, counted in call order; a success resets the count.
    max_repeats: calls in a row of the same tool with the same arguments.
    max_model_attempts: calls of one provider for one reply, while it is overloaded, out of reach or silent.
    timeout_seconds: the whole request, from its start.
    tool_timeout_seconds: one call of a tool, from its request, waiting for a free worker included.
    model_timeout_seconds: one call of the model, from its start to the reply's end.
    stream_idle_seconds: a stream that has begun and stands still (kept within a tenth).
    max_input_tokens, max_output_tokens: over all calls of the model, as the provider counts them.
    on_limit: "answer" asks the model once more with no tools offered, so that the user gets the best answer there
        is (not after `timeout_seconds` and the token limits); "stop" ends at once, with the last text.

    Raises `ConfigurationError`, which is a `ValueError`, for what is zero, negative, NaN or infinite.
    """

    max_rounds: int = 10
    max_calls_per_round: int = 64
    max_tool_calls: int = 100
    max_consecutive_errors: int = 3
    max_repeats: int = 3
    max_model_attempts: int = 3
    timeout_seconds: float = 120.0
    tool_timeout_seconds: float = 30.0
    model_timeout_seconds: float = 60.0
    stream_idle_seconds: float = 30.0
    max_input_tokens: int = 1_000_000
    max_output_tokens: int = 100_000
    on_limit: OnLimit = "answer"

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "on_limit":
                if value not in ("answer", "stop"):
                    raise ConfigurationError(f"on_limit is {value!r}; it must be 'answer' or 'stop'")
            elif isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ConfigurationError(f"{each.name} is {value!r}; it must be a number")
            elif not 0 < value < math.inf:  # false for NaN too
                raise ConfigurationError(f"{each.name} is {value!r}; it must be above zero and finite")
            elif each.name.startswith("max_") and not isinstance(value, int):
                raise ConfigurationError(f"{each.name} is {value!r}; it must be a whole number")
