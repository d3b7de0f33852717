"""The verdicts on the tool calls in a reply: refused, answered by the machine, held for a person, or requested. Pure.

A call that may not run is refused here, by a `ToolCallFailed` without a `ToolCallRequested`: executors run whatever is
requested. All verdicts are reached before the first becomes a fact, so that a call which ends the request at once keeps
its siblings from starting.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, TypeAlias, cast

import orjson

from ...errors import InvalidArguments
from ...events import ApprovalDecided, ApprovalRequested, ToolCallPaused, ToolCallRequested, ToolCallResumed
from ...messages import ToolCall
from ...protocols import ToolSpec
from ...records import replace
from ...schemas import INLINE_NS, allowance, has_many_values
from ..approval import definition_of, needs_approval
from ..arguments import CUT_OFF, MAX_CHARS, MAX_VALUES, own_arguments, parse_arguments
from ..read_result import why_unreadable
from ._apply import ends_at_once
from ._control_tools import ENDINGS, answer_control
from ._facts import Facts, note_raised
from ._repeats import is_repeat, was_warned
from ._state import OPEN, REQUESTED, SETTLED, WAITING, CallState, TurnState

AT_ONCE = "Another call failed, and that ended the request."
_ARGUMENTS = attrgetter("call.arguments")
_NO_TOOLS = "No tool may be called any more; answer with what is known."


def is_time_over(state: TurnState, now: float) -> bool:
    """Return whether `timeout_seconds` has passed; that clock is paused while a person is asked."""
    return not state.waiting and now >= state.deadline


_Refusal: TypeAlias = tuple[str, str, str]
"""A verdict against a call: the reason, the error for the model, and the limit with its value (empty without one)."""

_TOO_MUCH: _Refusal = (
    "invalid_arguments",
    (
        f"The calls in this reply have more than {MAX_VALUES} values, or more than {MAX_CHARS} characters, together; "
        "send them in several replies."
    ),
    "",
)


def judge(state: TurnState, facts: Facts, now: float) -> bool:
    """Judge the calls of the current reply that can be judged now, in call order. Return whether there were any.

    Of sequential calls, only the first one that is not settled is judged; the others stay `OPEN`.
    """
    made = state.tool_calls  # including the calls of this judgement, which are not in the state yet
    is_free = _is_free(state, now)
    sequential = ends = False
    verdicts: list[tuple[ToolCall, ToolSpec | None, dict[str, Any] | _Refusal]] = []
    chars = sum(map(len, map(_ARGUMENTS, state.calls)))
    is_too_much = len(state.calls) > 1 and (
        chars > MAX_CHARS or (chars > 2 * MAX_VALUES and has_many_values(*map(_encoded, state.calls), limit=MAX_VALUES))
    )
    allowance.shared_ns = INLINE_NS  # for the checks of all calls together
    try:
        for index, each in enumerate(state.calls):
            call = each.call
            spec = state.tools.get(call.name)
            in_order = spec is not None and spec.sequential
            if each.status is not OPEN:  # A tool that has been removed may have been sequential when its call began.
                sequential = sequential or ((in_order or spec is None) and each.status is not SETTLED)
            elif not (in_order and sequential):
                verdict = None if is_free else _barred(state, index, spec, made, now)
                if verdict is None:
                    verdict = _TOO_MUCH if is_too_much else _verdict(state, each, spec)
                verdicts.append((call, spec, verdict))
                if isinstance(verdict, tuple):
                    made += not verdict[2]
                    ends = ends or ends_at_once(state.limits, verdict[0])
                else:
                    made += 1
                    sequential = sequential or in_order
    finally:
        allowance.shared_ns = None
    for call, spec, verdict in verdicts:
        if isinstance(verdict, tuple):
            reason, error, limit = verdict
            facts.refuse(call, reason, error, limit=limit)
        elif ends:
            facts.refuse(call, "cancelled", AT_ONCE)
        else:
            assert spec is not None
            _admit(state, call, spec, verdict, facts, now)
    return bool(verdicts)


def _encoded(each: CallState) -> bytes:
    return each.call.arguments.encode("utf-8", "surrogatepass")


def _is_free(state: TurnState, now: float) -> bool:
    """Return whether no limit can bar any of the reply's calls, so that the limits need no check for each call."""
    limits, count = state.limits, len(state.calls)
    return (
        state.tools_offered
        and count <= limits.max_calls_per_round
        and state.tool_calls + count <= limits.max_tool_calls
        and not is_time_over(state, now)
    )


def _verdict(state: TurnState, each: CallState, spec: ToolSpec | None) -> dict[str, Any] | _Refusal:
    """Return the arguments to run the call with, or a refusal."""
    checked = _checked(state, each, spec)
    max_repeats = state.limits.max_repeats
    # No call can have been repeated as often in fewer rounds.
    if state.round < max_repeats or isinstance(checked, tuple) or spec is None or spec.repeatable:
        return checked
    limit = f"max_repeats={max_repeats}"
    if was_warned(state, each.call):
        return "limit", f"{each.call.name} was called with the same arguments once more ({limit}).", limit
    if is_repeat(state, each.call, checked):
        error = (
            f"{each.call.name} was called {max_repeats} times in a row with the same arguments, and the result was the "
            f"same each time; so it was not called again. Try something else, or answer with what is known: the same "
            f"call once more ends the request ({limit})."
        )
        return "limit", error, limit
    return checked


def _barred(state: TurnState, index: int, spec: ToolSpec | None, made: int, now: float) -> _Refusal | None:
    """Return the refusal of call number `index` of a reply by a limit, whatever its arguments; None if it may run."""
    limits = state.limits
    if not state.tools_offered and not (spec is not None and spec.control == "output"):
        return "limit", _NO_TOOLS, state.stop.reason if state.stop else ""
    if is_time_over(state, now):  # The call would be cancelled at once, possibly after it has had its effect.
        return _past(f"timeout_seconds={limits.timeout_seconds:g}", "The request's time is over")
    if index >= limits.max_calls_per_round:
        return _past(f"max_calls_per_round={limits.max_calls_per_round}", "Too many calls in one reply")
    if made >= limits.max_tool_calls and (spec is None or spec.control not in ENDINGS):
        return _past(f"max_tool_calls={limits.max_tool_calls}", "The request's calls are used up")
    return None


def _past(limit: str, error: str) -> _Refusal:
    return "limit", f"{error} ({limit}).", limit


def _checked(state: TurnState, each: CallState, spec: ToolSpec | None) -> dict[str, Any] | _Refusal:
    """Return the arguments that the model has written if the tool exists and accepts them, else a refusal."""
    call = each.call
    if spec is None:
        there_are = ", ".join(state.tools) or "none"
        return "unknown_tool", f"There is no tool {call.name!r}. The tools are: {there_are}.", ""
    if not call.arguments.strip() and (how := CUT_OFF.get(state.rounds[-1].finish_reason)):
        # The missing arguments could have been anything. An object that is closed is whole, wherever the reply ended.
        return "invalid_arguments", f"{how} before the first of the arguments; send the call again, whole.", ""
    try:
        arguments = parse_arguments(call.arguments)
        each.bound = spec, spec.validate(arguments)
    except InvalidArguments as exc:
        note_raised(state, call, exc)
        return "invalid_arguments", str(exc), ""
    except Exception as exc:  # The validator is the application's code. A bug in it must not end the whole request.
        note_raised(state, call, exc)
        return "error", f"The arguments could not be checked: the validator raised {type(exc).__name__}.", ""
    if spec.control == "read" and (problem := why_unreadable(state.messages, arguments)):
        return "invalid_arguments", problem, ""
    if state.granted and state.granted.get(definition_of(spec)) is False:
        return "denied", f"{call.name} was denied, and that was to be remembered.", ""
    return arguments


def _admit(
    state: TurnState, call: ToolCall, spec: ToolSpec, arguments: dict[str, Any], facts: Facts, now: float
) -> None:
    if spec.control:
        answer_control(state, call, spec.control, arguments, facts)
    elif (
        (state.needs_approval is not None or spec.needs_approval is not False)
        and _needs_approval(state, call, spec, arguments)
        and not state.granted.get(definition_of(spec))
    ):
        _ask(state, call, spec, arguments, facts)
    else:
        request_call(state, call, spec, arguments, facts, now)


def _needs_approval(state: TurnState, call: ToolCall, spec: ToolSpec, arguments: dict[str, Any]) -> bool:
    """Return whether a person has to approve the call. A policy or rule that raises must not let it run unapproved."""
    try:
        return needs_approval(state.needs_approval, spec, arguments)
    except Exception as exc:  # A policy is the application's code, so it may raise anything.
        state.raised += ((call, True, exc),)
        return True


def request_call(
    state: TurnState,
    call: ToolCall,
    spec: ToolSpec,
    arguments: dict[str, Any],
    facts: Facts,
    now: float,
    *,
    before: CallState | None = None,
) -> None:
    """Request the call: it may run, for the time that `spec`, the limits and the request leave it.

    `before` is its state if a process that is gone has requested it before.
    """
    limits = state.limits
    background = spec.background if before is None else before.is_background
    seconds = limits.tool_timeout_seconds if spec.timeout_seconds is None else spec.timeout_seconds
    left = state.deadline - (state.paused_at if state.waiting else now)
    if background:
        # Neither the end of the request's time nor a restart changes the deadline of a background call.
        seconds = limits.background_timeout_seconds if spec.timeout_seconds is None else spec.timeout_seconds
        left = seconds if before is None else max(0.0, before.deadline - now)
    request = ToolCallRequested(
        event_id=f"{state.request_id}_f{state.facts}",
        request_id=state.request_id,
        conversation_id=state.conversation_id,
        parent_id=state.parent_id,
        at=now,
        metadata=state.metadata,
        call_id=call.call_id,
        provider_call_id=call.provider_call_id,
        vendor=state.vendor,
        name=call.name,
        arguments=arguments,
        round=state.round,
        timeout_seconds=min(seconds, left),
        idempotency_key=call.call_id,
        definition=definition_of(spec),
        resumed=before is not None,
        background=background,
    )
    facts.put(request)


def _ask(state: TurnState, call: ToolCall, spec: ToolSpec, arguments: dict[str, Any], facts: Facts) -> None:
    facts.emit(
        ApprovalRequested,
        call_id=call.call_id,
        name=call.name,
        arguments=arguments,
        timeout_seconds=state.limits.approval_timeout_seconds,
        definition=definition_of(spec),
    )


def decide_approval(state: TurnState, decided: ApprovalDecided, facts: Facts, now: float) -> None:
    """Decide on a person's decision for a call that waits for it. For any other call, add no facts."""
    each = state.open_calls.get(decided.call_id)
    if each is None or each.status is not WAITING:
        return
    spec = state.tools.get(each.call.name)
    if spec is not None and decided.definition not in ("", each.definition):  # It answers an earlier question.
        _ask(state, each.call, spec, own_arguments(each.arguments or {}), facts)
        return
    edited: dict[str, Any] | None = None
    wrong: str | None = None
    if decided.arguments is not None:
        try:
            edited = _own_copy(decided.arguments)
        except InvalidArguments as exc:
            # No journal could have them, so the fact has none. The call is refused.
            decided, wrong = replace(decided, arguments=None), str(exc)
    facts.accept(decided)
    if state.cancel is not None or (state.stop is not None and state.stop.at_once):
        return  # The request was ended earlier in the same step, so the call is given up next.
    call = each.call
    if not decided.approved:
        who = decided.by or "A person"
        facts.refuse(call, "denied", f"{who} denied the call{f': {decided.reason}' if decided.reason else '.'}")
    elif spec is None:
        facts.refuse(call, "unknown_tool", f"The tool {call.name!r} was removed before the call was approved.")
    elif definition_of(spec) != each.definition:  # The tool is not the one that the person was shown.
        _ask(state, call, spec, own_arguments(each.arguments or {}), facts)
    else:
        arguments = own_arguments(each.arguments or {}) if edited is None else edited
        if wrong is None:
            try:
                # A validator may change its copy, but not what was approved.
                each.bound = spec, spec.validate(own_arguments(arguments))
            except Exception as exc:
                note_raised(state, call, exc)
                wrong = str(exc)
        if wrong is None:
            request_call(state, call, spec, arguments, facts, now)
        else:  # The person's edits or the application's validator are wrong: the tool does not run.
            facts.refuse(call, "invalid_arguments", f"The arguments that it was approved with are invalid: {wrong}")


def _own_copy(arguments: object) -> dict[str, Any]:
    """Return a copy of edited arguments as JSON has them, which is what a journal gives back.

    Raises `InvalidArguments` for arguments that are not a JSON object.
    """
    try:
        # As deep as `event_json` allows, but nothing is replaced: what runs is what a person has approved.
        [[[[copied]]]] = orjson.loads(orjson.dumps([[[[arguments]]]]))
    except TypeError as exc:
        raise InvalidArguments(f"they are not JSON: {exc}") from None
    if not isinstance(copied, dict):
        raise InvalidArguments("they are not an object")
    return cast("dict[str, Any]", copied)


def decide_pause(state: TurnState, event: ToolCallPaused | ToolCallResumed, facts: Facts, now: float) -> None:
    """Pause a running call that waits for a person, or resume it. Otherwise, and for a repeated event, add no facts.

    The fact has the time of the session's clock. An executor's own clock may jump, so that a pause by it could have no
    length.
    """
    each = state.open_calls.get(event.call_id)
    if each is None or each.status is not REQUESTED:
        return
    if (each.remaining_seconds is None) is isinstance(event, ToolCallPaused):
        facts.accept(replace(event, at=now))
