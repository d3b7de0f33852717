"""The application of facts to a turn's state, with a table of the phases in which each fact is legal. Pure.

Replaying a journal needs only this module; `_decide` is the other half of the machine. A fact may be applied only where
the table allows it, so that a journal that was written by hand or damaged is refused at the first impossible fact
(after h11's transition tables: python-hyper/h11, h11/_state.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from ...errors import ContextOverflow, NativeOutputUnsupported, ProtocolViolation
from ...events import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    Event,
    HistoryCompressed,
    MessageAppended,
    ModelResponded,
    ModelRetrying,
    PlanChanged,
    RequestCancelled,
    RequestCompleted,
    RequestEnding,
    RequestFailed,
    RequestResumed,
    RequestStarted,
    RoundStarted,
    Spent,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallPaused,
    ToolCallRequested,
    ToolCallResumed,
)
from ...messages import Message, Usage, UserMessage
from ..arguments import CONTAINERS, own_arguments
from ..limits import Limits
from ..result_notes import background_note_id
from ._repeats import was_warned
from ._state import (
    ENDED,
    INTERRUPTED,
    MODEL,
    NEW,
    NO_PIECES,
    OPEN,
    READY,
    REQUESTED,
    SETTLED,
    TOOLS,
    WAITING,
    CallState,
    CallStatus,
    Phase,
    RoundState,
    Stop,
    TurnState,
)
from ._transcript import is_empty, result_message


def apply(state: TurnState, fact: Event) -> TurnState:
    """Apply `fact` to `state`, in place, and return the state.

    Raises `ProtocolViolation` for a fact that is illegal in the state's phase; the state is unchanged then.
    """
    state.phase.changes[type(fact)](state, fact)
    state.facts += 1
    return state


def apply_all(state: TurnState, facts: Iterable[Event]) -> TurnState:
    """Apply `facts` in order, as `apply` does, and return the state; those before an illegal one stay applied."""
    for fact in facts:
        apply(state, fact)
    return state


def _apply_started(state: TurnState, fact: RequestStarted) -> None:
    state.phase = READY
    state.started_at = fact.at
    state.deadline = fact.at + fact.timeout_seconds
    state.history_count = fact.history_count


def _apply_resumption(state: TurnState, fact: RequestResumed) -> None:
    """Restart the clocks of work that a process did that is gone; those of people and of the request continue."""
    state.resumptions = fact.resumption
    if fact.timeout_seconds is not None:
        state.deadline, state.paused_at = fact.at + fact.timeout_seconds, fact.at
    if state.phase is MODEL:
        state.rounds[-1].given_up += 1
        since = max(fact.at, state.not_before)
        state.model_deadline = min(since + state.limits.model_timeout_seconds, state.deadline)
    for each in state.open_calls.values():
        if each.status is REQUESTED:
            each.status = INTERRUPTED
            state.interrupted += 1
            if each.remaining_seconds is not None and each.is_background:
                each.deadline, each.remaining_seconds = fact.at + each.remaining_seconds, None
            elif each.remaining_seconds is not None:
                each.remaining_seconds = None
                _end_waiting(state, _within_wait(state, each, fact.at))


def _apply_message(state: TurnState, fact: MessageAppended) -> None:
    message = fact.message
    if fact.is_derived:
        raise ProtocolViolation(f"a {message.role} message is appended by another fact: {fact.event_id!r} is derived")
    is_news = bool(state.news) and message.message_id == background_note_id(state.news[0].call.call_id)
    is_steering = bool(state.steering) and message.message_id == steering_id(state)
    if state.phase is MODEL and not (is_news or is_steering):
        raise ProtocolViolation(f"a {message.role} message is illegal in phase {state.phase.value!r}")
    if is_news:
        state.news.pop(0)
    elif message.message_id == repair_id(state):
        state.repairs += 1
        state.stop = state.stop or used_up(state)
    elif is_steering:
        state.steering.pop(0)
        state.steered += 1
        if state.is_idle:
            _count_replies_anew(state)
    state.messages.append(message)


def _count_replies_anew(state: TurnState) -> None:
    """Give a message that a person sends after an answer as many replies as a new turn would have.

    The request waits only for background calls then. Otherwise a conversation beside them would use up `max_rounds`,
    and the limit would give the calls up.
    """
    state.replies = 0
    if state.stop is not None and state.stop.reason == _max_rounds(state.limits):
        state.stop = None


def _max_rounds(limits: Limits) -> str:
    """Return the reason for which `max_rounds` stops a request."""
    return f"max_rounds={limits.max_rounds}"


def _append_results(state: TurnState, last: ToolCallCompleted | ToolCallFailed | ToolCallRequested) -> None:
    """Append the results of the round to the transcript, in call order, after `last` has settled the last call.

    A call that is still open runs in the background, and gets a ticket.
    """
    current = state.rounds[-1]
    current.settled_last, current.results_at = (last.call_id, last.event_id), len(state.messages)
    has_failed = has_succeeded = False
    for each in state.calls:
        state.messages.append(result_message(each))
        each.has_ticket = each.outcome is None
        if each.has_ticket or isinstance(each.outcome, ToolCallCompleted):
            has_succeeded = True
        elif not _refused_by_limit(each):  # A refusal by a limit is not the tool's failure.
            has_failed = True
    if has_succeeded:
        state.consecutive_errors = 0
    elif has_failed:
        state.consecutive_errors += 1
        # After its first errors, the model may always try again with tools.
        if state.consecutive_errors > 1 and state.consecutive_errors >= state.limits.max_consecutive_errors:
            _stop(state, f"max_consecutive_errors={state.limits.max_consecutive_errors}")
    state.phase = READY


def _apply_round(state: TurnState, fact: RoundStarted) -> None:
    if fact.round != state.round + 1:
        raise ProtocolViolation(f"round {fact.round} cannot follow round {state.round}")
    if state.is_idle:
        state.is_idle = False
        _end_waiting(state, fact.at)
    state.phase = MODEL
    state.round = fact.round
    state.rounds.append(RoundState(fact.round, fact.at))
    state.tools_offered = fact.tools_offered
    state.empty_replies = 0
    state.overflowed = False
    state.attempts = 1
    state.not_before = 0.0
    state.model_deadline = min(fact.at + state.limits.model_timeout_seconds, state.deadline)


def _apply_retrying(state: TurnState, fact: ModelRetrying) -> None:
    same = fact.provider_index == state.provider
    state.overflowed = same and (state.overflowed or fact.reason == ContextOverflow.code)
    state.native_refused = state.native_refused or fact.reason == NativeOutputUnsupported.code
    state.attempts = state.attempts + 1 if same else 1
    state.provider = fact.provider_index
    state.not_before = fact.at + fact.delay_seconds
    state.streamed = NO_PIECES
    current = state.rounds[-1]
    current.seconds = None
    current.given_up += 1
    current.retries += (fact,)
    current.usage = current.usage + fact.usage
    state.usage = state.usage + fact.usage
    state.cost += fact.cost
    state.model_deadline = min(state.not_before + state.limits.model_timeout_seconds, state.deadline)


def _apply_compressed(state: TurnState, fact: HistoryCompressed) -> None:
    state.usage = state.usage + fact.usage
    state.cost += fact.cost or 0.0


def _apply_responded(state: TurnState, fact: ModelResponded) -> None:
    message = fact.message
    if fact.round != state.round:
        raise ProtocolViolation(f"a reply of round {fact.round} cannot come in round {state.round}")
    calls = [CallState(call, state.round) for call in message.tool_calls]
    opened = {each.call.call_id: each for each in calls}
    if len(opened) != len(calls):
        raise ProtocolViolation("two calls of a reply have the same id")
    state.streamed = NO_PIECES
    state.vendor = fact.vendor
    state.cost += fact.cost or 0.0
    current = state.rounds[-1]
    current.seconds = fact.at - current.started_at
    current.finish_reason = fact.finish_reason
    current.native_output = fact.native_output
    current.model = fact.model
    current.usage = current.usage + fact.usage
    state.usage = state.usage + fact.usage
    if is_empty(message):
        state.empty_replies += 1
        return  # The phase stays MODEL: an ending follows at once, or the model is asked again.
    state.phase = TOOLS if calls else READY
    state.messages.append(message)
    state.last_text = message.text or state.last_text
    state.calls = current.calls = calls
    # The dictionary is empty here. It is the same object for good, since executors look calls up in it.
    state.open_calls.update(opened)
    state.unjudged = len(calls)
    if not state.tools_offered:
        return
    state.replies += 1
    if not calls and (state.background or state.news):
        state.is_idle = True
        state.paused_at = fact.at
        state.waiting += 1
    elif not calls and not state.steering:
        return  # This reply is the answer, so no limit can stop the request any more.
    state.stop = used_up(state)


def _stop(state: TurnState, reason: str) -> None:
    """Record that a count limit was reached: the first one is the reason, and a last answer may follow."""
    state.stop = state.stop or Stop(reason, last_answer=state.limits.on_limit == "answer")


def over_budget(limits: Limits, usage: Usage, cost: float) -> Stop | None:
    """Return the limit of tokens or cost that was exceeded, after which the model may not be called again, or None."""
    if usage.output_tokens > limits.max_output_tokens:
        return Stop(f"max_output_tokens={limits.max_output_tokens}")
    if usage.input_tokens > limits.max_input_tokens:
        return Stop(f"max_input_tokens={limits.max_input_tokens}")
    if limits.max_cost is not None and cost > limits.max_cost:
        return Stop(f"max_cost={limits.max_cost:g}")
    return None


def used_up(state: TurnState) -> Stop | None:
    """Return the limit that stops the request if its newest reply is not its end, or None."""
    limits = state.limits
    if over := over_budget(limits, state.usage, state.cost):
        return over
    reason = ""
    if state.replies >= limits.max_rounds:
        reason = _max_rounds(limits)
    elif state.facts >= limits.max_facts:
        reason = f"max_facts={limits.max_facts}"
    elif state.journal_bytes >= limits.max_journal_bytes:
        reason = f"max_journal_bytes={limits.max_journal_bytes}"
    return Stop(reason, last_answer=limits.on_limit == "answer") if reason else None


def ends_at_once(limits: Limits, reason: str, *, own: bool = True) -> bool:
    """Return whether a call that failed for `reason` ends the request, by `on_failure` or `stop_on`.

    `own` is whether the machine itself has made the failure. In that case "limit" does not count as a failure of the
    call, and "cancelled" follows from an ending and does not cause one.
    """
    if own and reason == "cancelled":
        return False
    return reason in limits.stop_on or (limits.on_failure == "fail_fast" and not (own and reason == "limit"))


def steering_id(state: TurnState) -> str:
    """Return the `message_id` of the next message that a person has sent while the request ran.

    Example:
        from toolbus.core.turn import TurnState, steering_id

        print(steering_id(TurnState("r1")))  # r1_s0
    """
    return f"{state.request_id}_s{state.steered}"


def was_steered(message: Message, request_id: str) -> bool:
    """Return, by the id of a message, whether a person has sent it while its request was running.

    Example:
        from toolbus.core.turn import was_steered
        from toolbus.messages import UserMessage

        print(was_steered(UserMessage(content="And in French?", message_id="r1_s0"), "r1"))  # True
    """
    above, _, number = message.message_id.rpartition("_s")
    return isinstance(message, UserMessage) and above == request_id and number.isdecimal()


def repair_id(state: TurnState) -> str:
    """Return the `message_id` of the next message that asks the model to repair its structured output."""
    return f"{state.request_id}_o{state.repairs}"


_REPAIR_ID = re.compile(r".+_o\d+")


def asks_for_repair(message_id: str) -> bool:
    """Return whether a message of the transcript asks the model to repair its structured output, by its id.

    Example:
        from toolbus.core.turn import asks_for_repair

        print(asks_for_repair("r1_o0"), asks_for_repair("r1_u"))  # True False
    """
    return _REPAIR_ID.fullmatch(message_id) is not None


def _judged(state: TurnState, fact: ToolCallRequested | ApprovalRequested) -> CallState:
    """Return the call of `fact`, counted, and with its arguments, deadline and definition.

    Raises `ProtocolViolation` if the call is not open or was requested before.
    """
    each = state.open_calls.get(fact.call_id)
    if each is None or each.status is REQUESTED:
        raise ProtocolViolation(f"call {fact.call_id!r} cannot be requested: it is not open, or was requested before")
    # Listeners get the fact and may change what is in it, so the state keeps a copy. The flat case is written out here
    # because it is the common one and runs for each call.
    arguments = fact.arguments
    is_flat = CONTAINERS.isdisjoint(map(type, arguments.values()))
    each.arguments = arguments.copy() if is_flat else own_arguments(arguments)
    if each.status is OPEN:
        state.unjudged -= 1
        state.tool_calls += 1
    each.deadline = fact.at + fact.timeout_seconds
    each.definition = fact.definition
    return each


def _apply_asked(state: TurnState, fact: ApprovalRequested) -> None:
    each = _judged(state, fact)
    if each.status is OPEN:
        if not state.waiting:
            state.paused_at = fact.at
        state.waiting += 1
    each.status = WAITING


def _apply_decided(state: TurnState, fact: ApprovalDecided) -> None:
    each = state.open_calls.get(fact.call_id)
    if each is None or each.status is not WAITING:
        raise ProtocolViolation(f"call {fact.call_id!r} does not wait for an approval")
    if fact.remember:
        state.granted[each.definition] = fact.approved


def _end_waiting(state: TurnState, at: float) -> None:
    state.waiting -= 1
    if not state.waiting:
        state.deadline += at - state.paused_at


def _within_wait(state: TurnState, each: CallState, at: float) -> float:
    """Return `at`, from another process's clock and so possibly any number, moved into the time that the call waits."""
    return max(state.paused_at, min(at, each.deadline))


def _apply_paused(state: TurnState, fact: ToolCallPaused) -> None:
    each = state.open_calls.get(fact.call_id)
    if each is None or each.requested_at is None or each.remaining_seconds is not None:
        raise ProtocolViolation(f"call {fact.call_id!r} cannot be paused: it is not running, or is paused already")
    at = max(each.requested_at, min(fact.at, each.deadline))
    each.remaining_seconds = each.deadline - at
    each.deadline = at + state.limits.approval_timeout_seconds + each.remaining_seconds
    if each.is_background:
        return  # The request continues meanwhile, and so does its clock.
    if not state.waiting:
        state.paused_at = at
    state.waiting += 1


def _apply_resumed(state: TurnState, fact: ToolCallResumed) -> None:
    each = state.open_calls.get(fact.call_id)
    if each is None or each.remaining_seconds is None:
        raise ProtocolViolation(f"call {fact.call_id!r} cannot be resumed: it is not paused")
    if each.is_background:
        each.deadline, each.remaining_seconds = min(fact.at, each.deadline) + each.remaining_seconds, None
        return
    at = _within_wait(state, each, fact.at)
    each.deadline, each.remaining_seconds = at + each.remaining_seconds, None
    _end_waiting(state, at)


def _apply_requested(state: TurnState, fact: ToolCallRequested) -> None:
    each = _judged(state, fact)
    before, each.status = each.status, REQUESTED
    each.requested_at = fact.at
    if before is WAITING:
        _end_waiting(state, fact.at)
    elif before is INTERRUPTED:
        state.interrupted -= 1
    if fact.background and not each.is_background:
        each.is_background = True
        state.background += 1
        if len(state.open_calls) == state.background:
            _append_results(state, fact)


def _apply_settled(state: TurnState, fact: ToolCallCompleted | ToolCallFailed) -> None:
    each = state.open_calls.pop(fact.call_id, None)
    if each is None:
        raise ProtocolViolation(f"call {fact.call_id!r} is not open")
    state.background -= each.is_background
    before, each.status = each.status, SETTLED
    each.outcome, each.bound = fact, None
    if each.sub_requests:  # The request's result keeps the call, and must not keep these.
        each.sub_requests = ()
    if fact.spent is not None:
        add_spent(state, fact.spent)
        if state.stop is None or not state.stop.at_once:
            state.stop = over_budget(state.limits, state.usage, state.cost) or state.stop
    if before is not REQUESTED or each.remaining_seconds is not None or isinstance(fact, ToolCallFailed):
        _note_outcome(state, each, before, fact)  # Most calls have been requested, and are completed.
    if each.has_ticket:
        state.news.append(each)
    elif len(state.open_calls) == state.background:
        _append_results(state, fact)


def _note_outcome(
    state: TurnState, each: CallState, before: CallStatus, fact: ToolCallCompleted | ToolCallFailed
) -> None:
    """Note what the end of a call that has failed, was paused or never ran means for the request."""
    own = fact.event_id == f"{state.request_id}_f{state.facts}"  # whether the machine has made it: see `Facts.next_id`
    if each.remaining_seconds is not None and each.is_background:
        each.remaining_seconds = None
    elif before is WAITING or each.remaining_seconds is not None:
        each.remaining_seconds = None
        # A result from elsewhere has the time of another clock, which may be any number.
        _end_waiting(state, fact.at if own else _within_wait(state, each, fact.at))
    elif before is OPEN:
        _apply_unrequested(state, each, fact, own=own)
    elif before is INTERRUPTED:
        state.interrupted -= 1
    if isinstance(fact, ToolCallFailed) and ends_at_once(state.limits, fact.reason, own=own):
        setting = "stop_on=" + fact.reason if fact.reason in state.limits.stop_on else "on_failure=fail_fast"
        if state.stop is None or not state.stop.at_once:  # The first such failure is the reason.
            state.stop = Stop(setting, at_once=True)


def add_spent(state: TurnState, spent: Spent) -> None:
    """Add what the sub-requests of a call have used up, as if this request had used it."""
    state.usage = state.usage + spent.usage
    state.tool_calls += spent.tool_calls
    state.cost += spent.cost


def _apply_unrequested(
    state: TurnState, each: CallState, fact: ToolCallCompleted | ToolCallFailed, *, own: bool
) -> None:
    """Settle a call that was never requested: refused or answered by the machine, or answered early from outside."""
    state.unjudged -= 1
    limit = fact.limit if own and isinstance(fact, ToolCallFailed) else ""
    if not limit:
        state.tool_calls += 1
        if own and isinstance(fact, ToolCallCompleted):
            # The result of a control tool carries the call's arguments as its data: see `_control_tools`.
            each.arguments = own_arguments(fact.data)
        return
    is_warning = limit.startswith("max_repeats") and not was_warned(state, each.call)
    if not (is_warning or limit.startswith("max_calls_per_round")):
        _stop(state, limit)


def _refused_by_limit(each: CallState) -> bool:
    """Return whether the machine refused the call by a limit; a `limit` in a tool's own failure does not count."""
    return each.requested_at is None and isinstance(each.outcome, ToolCallFailed) and bool(each.outcome.limit)


def _apply_steering(state: TurnState, fact: SteeringAdded) -> None:
    state.steering.append(fact.text)


def _apply_cancel(state: TurnState, fact: CancelRequested) -> None:
    if state.cancel is None:  # The first cancel gives the reason.
        state.cancel = fact.reason


def _apply_plan(state: TurnState, fact: PlanChanged) -> None:
    state.plan = fact.steps


def _apply_ending(state: TurnState, fact: RequestEnding) -> None:
    state.phase = ENDED
    state.ending = fact
    state.usage, state.cost = fact.usage, fact.cost


_Change: TypeAlias = Callable[[TurnState, Any], None]
_WAITING = (READY, MODEL)
_RUNNING = (READY, MODEL, TOOLS)
_TABLE: dict[type[Event], tuple[tuple[Phase, ...], _Change]] = {
    RequestStarted: ((NEW,), _apply_started),
    RequestResumed: (_RUNNING, _apply_resumption),
    MessageAppended: (_WAITING, _apply_message),
    RoundStarted: ((READY,), _apply_round),
    ModelResponded: ((MODEL,), _apply_responded),
    ModelRetrying: ((MODEL,), _apply_retrying),
    HistoryCompressed: ((MODEL,), _apply_compressed),
    ApprovalRequested: ((TOOLS,), _apply_asked),
    ApprovalDecided: ((TOOLS,), _apply_decided),
    ToolCallPaused: (_RUNNING, _apply_paused),
    ToolCallResumed: (_RUNNING, _apply_resumed),
    PlanChanged: ((TOOLS,), _apply_plan),
    ToolCallRequested: (_RUNNING, _apply_requested),
    ToolCallCompleted: (_RUNNING, _apply_settled),
    ToolCallFailed: (_RUNNING, _apply_settled),
    SteeringAdded: (_RUNNING, _apply_steering),
    CancelRequested: (_RUNNING, _apply_cancel),
    RequestCompleted: (_WAITING, _apply_ending),
    RequestFailed: (_WAITING, _apply_ending),
    RequestCancelled: (_WAITING, _apply_ending),
}
"""The phases in which each fact is legal, and the function that applies it."""


class _Legal(dict[type[Event], _Change]):
    """The facts that are legal in one phase. Looking up another one raises `ProtocolViolation`."""

    def __init__(self, phase: Phase) -> None:
        super().__init__({kind: change for kind, (phases, change) in _TABLE.items() if phase in phases})
        self._phase = phase

    def __missing__(self, kind: type[Event]) -> _Change:
        raise ProtocolViolation(f"{kind.__name__} is illegal in phase {self._phase.value!r}")


for _phase in Phase:
    _phase.changes = _Legal(_phase)
