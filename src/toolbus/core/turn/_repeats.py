"""The rule for calls that a model makes again and again with the same result. Pure.

Nothing is counted in the state: the rounds before say how often a call was made, and what the model read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...events import ToolCallCompleted, ToolCallFailed
from ...messages import ToolCall
from ._state import CallState, TurnState


def is_repeat(state: TurnState, call: ToolCall, arguments: dict[str, Any]) -> bool:
    """Return whether the last `max_repeats` replies have made only this call, and the model has read one result.

    The calls of one reply count once. If their results differ, they are not repeats.
    """
    result = None
    for times, calls in enumerate(_earlier(state), start=1):
        for each in calls:
            if each.call.name != call.name or (each.call.arguments != call.arguments and each.arguments != arguments):
                return False
            read = _result_of(each)
            if result is not None and read != result:
                return False
            result = read
        if times == state.limits.max_repeats:
            return True
    return False


def was_warned(state: TurnState, call: ToolCall) -> bool:
    """Return whether the reply before has made only this call, which was refused because of `max_repeats`."""
    before = next(_earlier(state), ())
    return bool(before) and all(
        each.call.name == call.name and each.call.arguments == call.arguments and _is_refused(each) for each in before
    )


def _earlier(state: TurnState) -> Iterator[Sequence[CallState]]:
    """Yield the calls of the replies before the current one, newest first; replies without calls are passed over."""
    rounds = state.rounds
    return (rounds[at].calls for at in range(len(rounds) - 2, -1, -1) if rounds[at].calls)


def _is_refused(each: CallState) -> bool:
    outcome = each.outcome
    return (
        each.requested_at is None and isinstance(outcome, ToolCallFailed) and outcome.limit.startswith("max_repeats=")
    )


def _result_of(each: CallState) -> tuple[object, object]:
    """Return what the model has read of a call of an earlier round: a ticket is the same each time."""
    outcome = each.outcome
    if outcome is None or each.has_ticket:
        return None, None
    if isinstance(outcome, ToolCallCompleted):
        return outcome.content, outcome.parts
    return outcome.reason, outcome.error
