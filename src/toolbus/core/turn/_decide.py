"""The decisions of the turn machine: the facts that inputs mean, the facts that follow, and the next command. Pure.

The package's docstring has the invariants. `_call_verdicts`, `_replies` and `_resumed` have the parts of `decide` for
tool calls, for the model and for requests that another process has begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import orjson

from ...errors import InvalidArguments, ProtocolViolation
from ...events import (
    ApprovalDecided,
    CallOutcome,
    CancelRequested,
    Event,
    RequestFailed,
    RequestStarted,
    RoundStarted,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallPaused,
    ToolCallResumed,
)
from ...messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage
from ...records import json_bytes
from ...schemas import INLINE_NS, allowance
from ...tool_results import answer_in
from ..arguments import encodable
from ..output import repair_prompt
from ._apply import repair_id, used_up
from ._call_verdicts import AT_ONCE, decide_approval, decide_pause, is_time_over, judge
from ._facts import Facts, cancel, complete, note_raised
from ._replies import decide_model_failed, decide_reply, decide_shaped, decide_withheld
from ._resumed import decide_interrupted, decide_resume
from ._state import ENDED, MODEL, NEW, READY, TOOLS, WAITING, CallState, TurnState
from ._steps import (
    AwaitCalls,
    CallModel,
    Command,
    Elapsed,
    Finish,
    HistoryShaped,
    Input,
    ModelFailed,
    ModelReplied,
    OutOfBudget,
    Resume,
    Start,
    reply_id,
)
from ._transcript import background_note_of

_DEADLINE = attrgetter("deadline")
# For a tool's result: its check is the only one of its step, and it can be larger than what a model writes.
_DIRECT_NS = 2 * INLINE_NS

# ------------------------------------------------------------------------------------------------- decide


def advance(
    state: TurnState,
    inputs: Iterable[Input],
    now: float,
    *,
    follows: bool = True,
    mask: Callable[[Event], Event] | None = None,
) -> tuple[list[Event], list[Event]]:
    """Take a step: decide on the inputs in order, then on what follows from the state. Every fact is applied at once.

    Returns the facts in order, and those among them that the machine has made. The others are inputs, which somebody
    else has published. An input that comes too late to mean anything gives no facts. Without `follows`, only the inputs
    are decided on. `mask` returns the fact to apply instead of one that the machine has made.
    """
    facts = Facts(state, now, mask)
    for happened in inputs:
        if state.phase is not ENDED:
            _ON_INPUT[type(happened)](state, happened, facts, now)
    if follows:
        _follow(state, facts, now)
    return facts.made, facts.own


def _on_start(state: TurnState, start: Start, facts: Facts, _now: float) -> None:
    if state.phase is not NEW:
        raise ProtocolViolation("the request has begun already")
    facts.emit(
        RequestStarted,
        prompt=start.prompt.text if start.prompt else "",
        history_count=len(start.history),
        timeout_seconds=state.limits.timeout_seconds,
        parent_request_id=start.parent_request_id,
        parent_call_id=start.parent_call_id,
    )
    if start.refused is not None:
        facts.emit(RequestFailed, reason=start.refused.code, error=start.refused.error)
        return
    for note in start.notes:
        facts.append(note)
    if start.prompt is not None:
        facts.append(start.prompt)


def _on_elapsed(state: TurnState, elapsed: Elapsed, facts: Facts, now: float) -> None:
    if state.phase is TOOLS or state.phase is READY:
        for each in list(state.open_calls.values()):
            if each.deadline <= now:
                _on_overdue(state, each, facts, now)
    elif state.phase is MODEL:
        if state.cancel is not None:
            cancel(state, facts, lost=elapsed.lost)
        elif is_time_over(state, now):
            complete(state, facts, _reason(state) or _timeout(state), lost=elapsed.lost)
        elif now >= state.model_deadline:
            limit = f"model_timeout_seconds={state.limits.model_timeout_seconds:g}"
            error = f"the model did not answer in time ({limit})"
            failed = ModelFailed("provider_timeout", error, retryable=True, lost=elapsed.lost)
            decide_model_failed(state, failed, facts, now)


def _on_out_of_budget(state: TurnState, given: OutOfBudget, facts: Facts, _now: float) -> None:
    if state.phase is MODEL and state.cancel is None:  # A request that was cancelled ends for that reason.
        complete(state, facts, _reason(state) or given.reason)


def _on_overdue(state: TurnState, each: CallState, facts: Facts, now: float) -> None:
    if each.status is WAITING:
        limit = f"approval_timeout_seconds={state.limits.approval_timeout_seconds:g}"
        facts.refuse(each.call, "denied", f"Nobody decided on the call in time ({limit}).")
        return
    # Seconds since the epoch are exact to a quarter of a microsecond, so finer digits are noise.
    seconds = round(each.deadline - (now if each.requested_at is None else each.requested_at), 6)
    error = f"{each.call.name} did not answer in {seconds:g} s."
    spec = state.tools.get(each.call.name)
    # The model would call an action again, as it rightly does with a query.
    if each.requested_at is not None and spec is not None and (spec.kind == "action" or spec.needs_approval):
        error += "" if spec.idempotent else " It may have had its effect: find that out before you call it again."
    facts.give_up(each, "timeout", error)


def _timeout(state: TurnState) -> str:
    return f"timeout_seconds={state.limits.timeout_seconds:g}"


def _reason(state: TurnState) -> str:
    return "" if state.stop is None else state.stop.reason


def _on_settled(state: TurnState, event: ToolCallCompleted | ToolCallFailed, facts: Facts, _now: float) -> None:
    if event.call_id in state.open_calls:
        facts.accept(event)


def _on_cancel(_state: TurnState, event: CancelRequested, facts: Facts, _now: float) -> None:
    facts.accept(event)


def _on_steering(_state: TurnState, event: SteeringAdded, facts: Facts, _now: float) -> None:
    if event.text.strip():  # No vendor accepts an empty message.
        facts.accept(event)


_ON_INPUT: dict[type[Any], Callable[[TurnState, Any, Facts, float], None]] = {
    Start: _on_start,
    Resume: decide_resume,
    ModelReplied: decide_reply,
    ModelFailed: decide_model_failed,
    HistoryShaped: decide_shaped,
    OutOfBudget: _on_out_of_budget,
    Elapsed: _on_elapsed,
    ToolCallCompleted: _on_settled,
    ToolCallFailed: _on_settled,
    ApprovalDecided: decide_approval,
    ToolCallPaused: decide_pause,
    ToolCallResumed: decide_pause,
    CancelRequested: _on_cancel,
    SteeringAdded: _on_steering,
}


def _follow(state: TurnState, facts: Facts, now: float) -> None:
    """Decide on what follows from the state itself, until work is pending: verdicts on calls, a new round, the ending.

    Each pass but the last one adds a fact.
    """
    while True:
        phase = state.phase
        if phase is TOOLS:
            if state.cancel is not None:
                _give_up_open(state, facts, "The request was cancelled.")
            elif state.stop is not None and state.stop.at_once:
                _give_up_open(state, facts, AT_ONCE)
            elif state.interrupted:
                decide_interrupted(state, facts, now)
            elif not (state.unjudged and judge(state, facts, now)):
                return
        elif state.cancel is not None and (phase is READY or phase is MODEL):
            cancel(state, facts)
        elif state.interrupted and not (state.stop is not None and state.stop.at_once) and phase is not ENDED:
            decide_interrupted(state, facts, now)
        elif phase is READY and not is_waiting(state):
            _next_round(state, facts, now)
        else:
            return


def _give_up_open(state: TurnState, facts: Facts, error: str) -> None:
    for each in list(state.open_calls.values()):
        facts.give_up(each, "cancelled", error)


def _next_round(state: TurnState, facts: Facts, now: float) -> None:
    newest = state.messages[-1] if state.messages else None
    stop = state.stop
    if state.rounds:
        if isinstance(newest, ToolMessage) and state.note_failures and (note := _failure_note(state)):
            facts.append(note)
            return
        if _ends_by_call(state, newest, now) and _complete_by_call(state, facts, now):
            return
        if isinstance(newest, AssistantMessage) and not ((state.steering or state.news) and state.tools_offered):
            _on_answer(state, newest.text, facts, now)
            return
        if not state.tools_offered:
            complete(state, facts, _reason(state))
            return
    if is_time_over(state, now):
        complete(state, facts, _timeout(state))
    elif stop is not None and not stop.last_answer:
        complete(state, facts, stop.reason)
    elif state.news:
        facts.append(background_note_of(state, state.news[0]))
    elif state.steering:
        facts.append_steering()
    else:
        outcomes = tuple(
            [CallOutcome(name=each.call.name, ok=not isinstance(each.outcome, ToolCallFailed)) for each in state.calls]
        )
        began = RoundStarted(
            event_id=f"{state.request_id}_f{state.facts}",
            request_id=state.request_id,
            conversation_id=state.conversation_id,
            parent_id=state.parent_id,
            at=now,
            metadata=state.metadata,
            round=state.round + 1,
            message_count=len(state.messages),
            call_outcomes=outcomes,
            tools_offered=stop is None,
        )
        facts.put(began)


def is_waiting(state: TurnState) -> bool:
    """Return whether the model has answered, and there is nothing to do before a background call has ended."""
    has_answered = state.is_idle and state.phase is READY and isinstance(state.messages[-1], AssistantMessage)
    if not (state.background and has_answered) or state.steering:
        return False
    # If a limit leaves the model only one more answer, that one comes after all results.
    return not state.news if state.stop is None else state.stop.last_answer


def _ends_by_call(state: TurnState, newest: Message | None, now: float) -> bool:
    """Return whether calls that end the request take effect now: their round is over, and nothing else ends it."""
    if not isinstance(newest, ToolMessage) and (newest is None or newest.message_id != _note_id(state)):
        return False
    if state.stop is not None:
        return not state.stop.at_once
    return not state.steering or is_time_over(state, now)  # Steering is answered first, in its own round.


def _note_id(state: TurnState) -> str:
    return f"{state.request_id}_{state.round}_n"


def _failure_note(state: TurnState) -> SystemMessage | None:
    """Return a note on the round's failures, to follow its results; refusals by a limit explain themselves."""
    lines = [
        f"{each.call.name} failed ({outcome.reason}): {outcome.error}"
        for each in state.calls
        if isinstance(outcome := each.outcome, ToolCallFailed) and outcome.reason != "limit"
    ]
    if not lines:
        return None
    text = "\n".join([*lines, "Try another way, or say what could not be done and why."])
    return SystemMessage(text=encodable(text), message_id=_note_id(state))


def _complete_by_call(state: TurnState, facts: Facts, now: float) -> bool:
    """End the request if the model has called a tool that ends it, and return whether it did; the first call counts.

    Results that are returned directly end it only if nothing is left for the model to read: no other result, no
    failure, and no background call.
    """
    direct: list[ToolCallCompleted] = []
    is_direct = not (state.background or state.news)
    for each in state.calls:
        spec, outcome = state.tools.get(each.call.name), each.outcome
        if spec is None or not isinstance(outcome, ToolCallCompleted):
            is_direct = False
            continue
        if spec.return_direct:
            direct.append(outcome)
            continue
        if each.requested_at is not None:  # The call was run by an executor, so its tool is not a control tool.
            is_direct = False
            continue
        arguments = each.arguments or {}
        if spec.control == "complete":
            _on_answer(state, arguments["answer"], facts, now, reason="")
        elif spec.control == "give_up":
            complete(state, facts, arguments["reason"], by_model=True)
        elif spec.control == "output":
            reason = "" if state.tools_offered else _reason(state)
            complete(state, facts, reason, text=orjson.dumps(arguments).decode(), output=arguments)
        else:
            is_direct = is_direct and spec.control == "plan"
            continue
        return True
    return is_direct and bool(direct) and _return_direct(state, direct, facts)


def _return_direct(state: TurnState, results: Sequence[ToolCallCompleted], facts: Facts) -> bool:
    """End the request with the results as its answer, and return whether they are one: of the output's type, if any.

    Their text joins the transcript, since some vendors accept only a reply after results.
    """
    text, output = encodable("\n\n".join(filter(str.strip, [answer_in(each.content) for each in results]))), None
    if state.output is not None:
        data = results[0].data if len(results) == 1 else None
        allowance.shared_ns = _DIRECT_NS
        try:
            output = state.output.read(text if data is None else json_bytes(data).decode())
        except InvalidArguments as exc:
            note_raised(state, None, exc)
            return False
        except TypeError:  # Data that other code has published may be anything.
            return False
        finally:
            allowance.shared_ns = None
    if text:
        facts.append(AssistantMessage(text=text, message_id=f"{state.request_id}_answer"))
    complete(state, facts, "", text=text, output=output)
    return True


def _on_answer(state: TurnState, text: str, facts: Facts, now: float, reason: str | None = None) -> None:
    """Decide on the model's answer `text`: end the request, unless a structured output is wanted and `text` is invalid.

    `reason` is the reason of the ending; by default it is the limit that has stopped the request, or empty.
    """
    if reason is None:
        reason = _reason(state)
        if state.output is not None and decide_withheld(state, text, facts):
            return
    if state.output is None:
        complete(state, facts, reason, text=text)
        return
    try:
        output = state.output.read(text)
    except InvalidArguments as exc:
        note_raised(state, None, exc)
        stop = state.stop or used_up(state)
        if is_time_over(state, now):
            complete(state, facts, _reason(state) or _timeout(state), text=text)
        elif stop is not None and not (stop.last_answer and state.tools_offered):
            complete(state, facts, stop.reason, text=text)
        elif state.repairs >= state.limits.max_output_repairs:
            limit = f"max_output_repairs={state.limits.max_output_repairs}"
            error = f"the model gave no valid output: {exc} ({limit})"
            facts.end(RequestFailed, reason="invalid_output", error=error)
        else:
            prompt = repair_prompt(exc, native=state.rounds[-1].native_output)
            facts.append(UserMessage(content=prompt, message_id=repair_id(state)))
    else:
        complete(state, facts, reason, text=text, output=output)


# ------------------------------------------------------------------------------------------------ pending


def pending(state: TurnState) -> Command:
    """Return the work to do now. Raises `ProtocolViolation` in the middle of a step, when facts still follow."""
    if state.phase is MODEL:
        return CallModel(
            round=state.round,
            message_id=reply_id(state),
            offer_tools=state.tools_offered,
            not_before=state.not_before,
            deadline=state.model_deadline,
            provider=state.provider,
        )
    if state.open_calls and (state.phase is TOOLS or is_waiting(state)):
        deadline = min(map(_DEADLINE, state.open_calls.values()))
        return AwaitCalls(calls=state.open_calls, deadline=deadline)
    if state.phase is ENDED:
        return Finish()
    raise ProtocolViolation(f"nothing is pending in phase {state.phase.value!r}: the step was not finished")
