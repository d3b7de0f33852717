"""The clean-up of a session that breaks: every call is settled once, and the transcript has all that is known.

A session breaks by a bug in toolbus or by a journal that fails.
"""

from __future__ import annotations

from .._logs import logger
from ..bus import EventBus, Mailbox
from ..core.transcript import repair
from ..core.turn import CallState, Phase, TurnState, add_spent, result_message, spent_so_far, steering_id
from ..errors import LeaseLost, StoreError, ToolbusError, TurnLost
from ..events import SteeringAdded, TerminalEvent, ToolCallCompleted, ToolCallFailed
from ..messages import UserMessage


def log_failure(exc: Exception, request_id: str) -> None:
    """Log the error that ended a request: a store's fault as a warning, a bug in toolbus with its traceback.

    An error of the application, or of a busy conversation, is not logged, because its caller gets it.
    """
    if isinstance(exc, LeaseLost):
        text = "request %s stops here: another process has taken it over"
        logger.warning(text, request_id, extra={"request_id": request_id})
    elif isinstance(exc, TurnLost):
        text = "request %s has not begun: another request of its conversation was given the turn"
        logger.warning(text, request_id, extra={"request_id": request_id})
    elif isinstance(exc, StoreError):
        text = "request %s stops here, since its store failed: %s"
        logger.warning(text, request_id, exc, extra={"request_id": request_id})
    elif not (isinstance(exc, ToolbusError) and exc.fault in {"caller", "environment"}):
        logger.error("request %s: the session broke", request_id, exc_info=exc, extra={"request_id": request_id})


def settle_broken(bus: EventBus, state: TurnState, mailbox: Mailbox | None, now: float, *, announces: bool) -> None:
    """Take what has come, fail the calls that are open, and close the turn with a valid transcript.

    With `announces`, these failures are published. They are not for a request with a journal, because they are not in
    the journal (G31). Neither are the messages of people that are still in the mailbox: they are refused then, and in a
    request that has not begun.
    """
    for event in mailbox.drain() if mailbox is not None else ():
        if isinstance(event, (ToolCallCompleted, ToolCallFailed)) and event.call_id in state.open_calls:
            _end(state, state.open_calls.pop(event.call_id), event)
        elif isinstance(event, SteeringAdded) and announces and state.phase is not Phase.NEW:
            state.steering.append(event.text)
        else:
            bus.arbitration.dead_letter(event, "the request had no use for it any more")
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
            if announces:
                bus.arbitration.announce(outcome)
    known = [each for each in state.calls if each.outcome is not None] if state.phase is Phase.TOOLS else []
    state.phase, state.waiting = Phase.ENDED, 0
    said = list[UserMessage]()
    for text in state.steering:
        said.append(UserMessage(content=text, message_id=steering_id(state)))
        state.steered += 1
    state.messages[:] = repair([*state.messages, *map(result_message, known), *said])


def _end(state: TurnState, each: CallState, outcome: TerminalEvent) -> None:
    # The sub-requests are dropped, because the request's result would otherwise keep them alive.
    each.outcome, each.sub_requests = outcome, ()
    if outcome.spent is not None:
        add_spent(state, outcome.spent)
