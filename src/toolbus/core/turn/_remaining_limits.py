"""The limits that a request has left, for a sub-request that one of its tools makes. Pure."""

from __future__ import annotations

from dataclasses import replace

from ..limits import Limits
from ._state import TurnState


def remaining_limits(state: TurnState, call_id: str, now: float, wanted: Limits | None = None) -> Limits | None:
    """Return the limits of a sub-request of call `call_id`: `wanted` (else the request's own), at most what is left.

    Returns None where nothing is left. The time is that until the call's deadline. What a sub-request spends counts
    once its call has ended, so each of several at the same time gets all that is left.
    """
    limits = state.limits
    each = state.open_calls.get(call_id)
    seconds = (state.deadline if each is None else each.deadline) - now
    calls = limits.max_tool_calls - state.tool_calls
    tokens_in = limits.max_input_tokens - state.usage.input_tokens
    tokens_out = limits.max_output_tokens - state.usage.output_tokens
    cost = None if limits.max_cost is None else limits.max_cost - state.cost
    if min(seconds, tokens_in, tokens_out) <= 0 or (cost is not None and cost <= 0):
        return None
    given = wanted or limits
    if cost is not None and given.max_cost is not None:
        cost = min(cost, given.max_cost)
    return replace(
        given,
        timeout_seconds=min(given.timeout_seconds, seconds),
        max_tool_calls=max(1, min(given.max_tool_calls, calls)),
        max_input_tokens=min(given.max_input_tokens, tokens_in),
        max_output_tokens=min(given.max_output_tokens, tokens_out),
        max_cost=given.max_cost if cost is None else cost,
    )
