"""The options of a request, said once: for `RequestSession`, for a runtime's requests and for sub-requests. Data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from .core.approval import ApprovalPolicy
from .core.limits import Limits
from .core.prices import Price
from .inputs import Instructions
from .interceptors import Interceptor
from .protocols import LateResults, ModelSettings, Provider

__all__ = ["ProviderForRound", "SessionOptions", "check_options"]

ProviderForRound: TypeAlias = Callable[[int], Provider | str | None]
"""The model to ask in a round, by its number from 0; None for the usual one."""


class SessionOptions(TypedDict, total=False):
    """How a request is carried out, whoever runs it."""

    limits: Limits | None
    settings: ModelSettings | None
    instructions: Instructions | None
    """The system prompt, or a function of the context that gives it."""
    guidance: bool
    """Add a paragraph to the instructions that lists the tools and says when to use them and when to stop."""
    deps: Any
    """What handlers get as `ToolContext.deps`."""
    metadata: Mapping[str, Any] | None
    """Rides on every event and log record of the request."""
    approval: ApprovalPolicy | None
    """Which calls a person has to approve: all, none, or where a function of (spec, arguments) says so. Without it,
    those of tools that are marked `approval` or `destructive`."""
    interceptors: Sequence[Interceptor]
    """The application's own functions around model and tool calls, in order: see `Interceptor`."""
    prices: Mapping[str, Price] | None
    """What models cost, by "vendor:model", the model's name, or "*": for `RequestResult.cost` and `max_cost`."""
    note_failures: bool
    """Add a system message behind the results of a round in which calls failed, which says what went wrong."""
    provider_for_round: ProviderForRound | None
    """The model for each round, so that a cheaper one can digest results, say."""
    late_results: LateResults
    """What becomes of a result that comes after its call was given up. "event" (the default): `ToolCallLate` tells
    of it. "drop": nothing does. "next_turn": a runtime also puts it in front of the conversation's next turn."""


def check_options(options: Mapping[str, Any], known: type[Any], what: str) -> None:
    """Raise `TypeError` for an option that `known`, a TypedDict, does not have; `what` is whose options they are."""
    names: Mapping[str, Any] = known.__annotations__
    if not options.keys() <= names.keys():
        unknown = ", ".join(sorted(options.keys() - names.keys()))
        raise TypeError(f"{what}: there is no option {unknown}; the options are {', '.join(names)}")
