"""The limits that a request has left, for a sub-request that one of its tools makes. Pure."""

from __future__ import annotations

from dataclasses import replace

from ..limits import Limits
from ._apply import over_budget
from ._facts import spent_in_all
from ._state import TurnState


def exceeded_in_all(state: TurnState) -> str:
    """Return the limit of tokens or cost that a request has exceeded together with its sub-requests, or an empty text.

    Neither it nor they ask a model any more then. Otherwise several at the same time could each spend what was left.

    Example:
        from toolbus.core.limits import Limits
        from toolbus.core.turn import TurnState, exceeded_in_all, spent_in_all
        from toolbus.messages import Usage

        state = TurnState("r1", limits=Limits(max_input_tokens=9), usage=Usage(input_tokens=10))
        print(spent_in_all(state, ()).usage.input_tokens, exceeded_in_all(state))  # 10 max_input_tokens=9
    """
    spent = spent_in_all(state, state.open_calls.values())
    stop = over_budget(state.limits, spent.usage, spent.cost)
    return "" if stop is None else stop.reason


def remaining_limits(state: TurnState, call_id: str, now: float, wanted: Limits | None) -> Limits | None:
    """Return the limits of a sub-request of call `call_id`: `wanted` (else the request's own), at most what is left.

    Returns None where nothing is left. The time is that until the call's deadline, and a question waits no longer than
    the call can be paused. What other sub-requests of the call have spent so far counts. Each of several at the same
    time gets all that is left, until `exceeded_in_all`.
    """
    limits, each = state.limits, state.open_calls.get(call_id)
    spent = spent_in_all(state, () if each is None else (each,))
    seconds = (state.deadline if each is None else each.deadline) - now
    calls = limits.max_tool_calls - spent.tool_calls
    tokens_in = limits.max_input_tokens - spent.usage.input_tokens
    tokens_out = limits.max_output_tokens - spent.usage.output_tokens
    cost = None if limits.max_cost is None else limits.max_cost - spent.cost
    if min(seconds, tokens_in, tokens_out) <= 0 or (cost is not None and cost <= 0):
        return None
    given = wanted or limits
    if cost is not None and given.max_cost is not None:
        cost = min(cost, given.max_cost)
    return replace(
        given,
        timeout_seconds=min(given.timeout_seconds, seconds),
        approval_timeout_seconds=min(given.approval_timeout_seconds, limits.approval_timeout_seconds),
        max_tool_calls=max(1, min(given.max_tool_calls, calls)),
        max_input_tokens=min(given.max_input_tokens, tokens_in),
        max_output_tokens=min(given.max_output_tokens, tokens_out),
        max_cost=given.max_cost if cost is None else cost,
    )
