"""What is left in order when a session breaks: every call answered once, and a transcript with all that is known.

Belongs to `toolbus.session`, for what must not happen: a bug of ours, or a journal that fails.
"""

from __future__ import annotations

from .._logs import logger
from ..bus import EventBus, Mailbox
from ..core.transcript import repair
from ..core.turn import CallState, Phase, TurnState, add_spent, result_message, spent_so_far
from ..errors import StoreError, ToolbusError
from ..events import TerminalEvent, ToolCallCompleted, ToolCallFailed

__all__ = ["log_failure", "settle_broken"]


def log_failure(exc: Exception, request_id: str) -> None:
    """Write a line to the log about what a request ended by; a bug of ours with its traceback.

    What the application did wrong, its caller is told.
    """
    if isinstance(exc, StoreError):
        logger.warning("the request stops here, since its store failed: %s", exc, extra={"request_id": request_id})
    elif not (isinstance(exc, ToolbusError) and exc.fault == "caller"):
        logger.error("the session broke", exc_info=exc, extra={"request_id": request_id})


def settle_broken(bus: EventBus, state: TurnState, mailbox: Mailbox | None, now: float, *, tells: bool = True) -> None:
    """Take the results that have come, answer the calls that are open, and close the turn with a valid transcript.

    `tells` is whether listeners hear of these answers: not of a request with a journal, which has none of them (G31).
    """
    for event in mailbox.drain() if mailbox is not None else ():
        if isinstance(event, (ToolCallCompleted, ToolCallFailed)) and event.call_id in state.open_calls:
            _end(state, state.open_calls.pop(event.call_id), event)
    while state.open_calls:
        each = state.open_calls.pop(next(iter(state.open_calls)))
        if bus.arbitration.claim(state.request_id, each.call.call_id):
            outcome = ToolCallFailed(
                **state.envelope(now),
                call_id=each.call.call_id,
                name=each.call.name,
                reason="interrupted",
                error="The request ended by an internal error.",
                outcome_unknown=each.requested_at is not None,
                spent=spent_so_far(each),
            )
            _end(state, each, outcome)
            if tells:
                bus.arbitration.announce(outcome)
    state.phase, state.waiting = Phase.ENDED, 0
    known = [each for each in state.calls[state.appended :] if each.outcome is not None]
    state.messages[:] = repair([*state.messages, *map(result_message, known)])


def _end(state: TurnState, each: CallState, outcome: TerminalEvent) -> None:
    each.outcome, each.sub_requests = outcome, ()  # else the request's result would keep them
    if outcome.spent is not None:
        add_spent(state, outcome.spent)
