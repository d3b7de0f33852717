"""The turn machine: the only place that decides what a request does next. Three pure functions.

    facts   = decide(state, input, now)     what an input means; with `None`, what follows from the state itself
    state   = apply(state, fact)            the only way that a state changes; replaying a journal is this alone
    command = pending(state)                what has to be done now; resuming is asking this after a replay

A step is: decide on the input and apply its facts, then decide on `None` and apply, until nothing follows. The
session performs steps and commands, and decides nothing. `now` is seconds on the session's clock; ids come from
`request_id` and places, so equal inputs give equal facts.

Rounds. A round is one call of the model and the calls in its reply. A call that cannot run is refused here, by a
`ToolCallFailed` without a `ToolCallRequested`; what is on the bus may run. When the last call of a round is settled,
the results join the transcript in call order, and only then may anything else happen: so the transcript is valid at
every round's start and at every ending (G08).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from ..errors import InvalidArguments, ProtocolViolation
from ..events import (
    CallOutcome,
    CancelRequested,
    Event,
    MessageAppended,
    ModelResponded,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RequestStarted,
    RoundStarted,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from ..messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage, user_text
from ..protocols import ModelReply, ToolSpec
from ..results import failure_content
from .arguments import parse_arguments
from .state import CallState, Phase, RoundState, TurnState

__all__ = [
    "AwaitCalls",
    "CallModel",
    "Command",
    "Elapsed",
    "Finish",
    "Input",
    "ModelFailed",
    "ModelReplied",
    "Start",
    "apply",
    "decide",
    "pending",
    "reply_id",
]

E = TypeVar("E", bound=Event)

# ------------------------------------------------------------------------------------- inputs and commands


@dataclass(slots=True)
class Start:
    """The request begins: `history` is a valid transcript, `prompt` the user's message behind it, if there is one."""

    prompt: UserMessage | None
    history: Sequence[Message] = ()
    parent_request_id: str = ""
    parent_call_id: str = ""


@dataclass(slots=True)
class ModelReplied:
    """The model's whole reply, and the tools that were offered for it."""

    reply: ModelReply
    tools: Mapping[str, ToolSpec] = field(default_factory=dict[str, ToolSpec])


@dataclass(slots=True)
class ModelFailed:
    """The provider gave up. `code` is a `ToolbusError.code`."""

    code: str
    error: str
    retryable: bool = False


@dataclass(slots=True)
class Elapsed:
    """The deadline of the pending command has passed."""


Input: TypeAlias = (
    Start | ModelReplied | ModelFailed | Elapsed | ToolCallCompleted | ToolCallFailed | CancelRequested | SteeringAdded
)


@dataclass(slots=True)
class CallModel:
    """Call the model; give back `ModelReplied`, `ModelFailed`, or at `deadline` `Elapsed`."""

    round: int
    message_id: str
    offer_tools: bool
    deadline: float
    retry: bool


@dataclass(slots=True)
class AwaitCalls:
    """Wait for terminal events of `calls`; at `deadline` give `Elapsed`."""

    calls: Mapping[str, CallState]
    deadline: float


@dataclass(slots=True)
class Finish:
    """Nothing is left to do."""


Command: TypeAlias = CallModel | AwaitCalls | Finish


def reply_id(request_id: str, round_number: int) -> str:
    """The `message_id` that a round's reply has or will have."""
    return f"{request_id}_r{round_number}"


# ------------------------------------------------------------------------------------------------- decide


class _Facts:
    """The facts of one decision, each stamped with the request's ids and its future place."""

    __slots__ = ("_now", "_state", "made")

    def __init__(self, state: TurnState, now: float) -> None:
        self._state = state
        self._now = now
        self.made: list[Event] = []

    def add(self, kind: Callable[..., E], **fields: Any) -> E:
        state = self._state
        fact = kind(
            event_id=f"{state.request_id}_f{state.facts + len(self.made)}",
            request_id=state.request_id,
            conversation_id=state.conversation_id,
            parent_id=state.parent_id,
            at=self._now,
            metadata=state.metadata,
            **fields,
        )
        self.made.append(fact)
        return fact

    def fail(self, call: ToolCall, reason: str, error: str, *, limit: str = "", unknown: bool = False) -> None:
        self.add(
            ToolCallFailed,
            call_id=call.call_id,
            name=call.name,
            reason=reason,
            error=error,
            limit=limit,
            outcome_unknown=unknown,
        )


def decide(state: TurnState, happened: Input | None, now: float) -> Sequence[Event]:
    """The facts that `happened` means in `state`; for None, those that follow from the state itself.

    Nothing is changed. An input that comes too late to mean anything gives no facts.
    """
    facts = _Facts(state, now)
    if happened is None:
        _follow(state, facts, now)
    elif state.phase is not Phase.ENDED:
        _ON_INPUT[type(happened)](state, happened, facts, now)
    return facts.made


def _on_start(state: TurnState, start: Start, facts: _Facts, _now: float) -> None:
    if state.phase is not Phase.NEW:
        raise ProtocolViolation("the request has begun already")
    facts.add(
        RequestStarted,
        prompt=user_text(start.prompt) if start.prompt else "",
        history_count=len(start.history),
        deadline=state.limits.timeout_seconds,
        parent_request_id=start.parent_request_id,
        parent_call_id=start.parent_call_id,
    )
    if start.prompt is not None:
        facts.add(MessageAppended, message=start.prompt)


def _on_reply(state: TurnState, replied: ModelReplied, facts: _Facts, now: float) -> None:
    if state.phase is not Phase.MODEL:
        return
    reply = replied.reply
    message = _identified(state, reply.message)
    facts.add(
        ModelResponded,
        round=state.round,
        message=message,
        finish_reason=reply.finish_reason,
        usage=reply.usage,
        vendor=reply.vendor,
        model=reply.model,
    )
    if not message.tool_calls and not message.text.strip():
        if state.stop:
            _complete(state, facts)
        elif state.empty_replies:
            facts.add(
                RequestFailed,
                reason="empty_reply",
                error="the model answered with neither text nor tool calls, twice",
                usage=state.usage + reply.usage,
            )
        return
    facts.add(MessageAppended, message=message)
    if message.tool_calls:
        _judge(state, message.tool_calls, replied, facts, now)


def _identified(state: TurnState, message: AssistantMessage) -> AssistantMessage:
    """The reply under ids of our own: a provider's are repeated, missing or empty at times."""
    number = state.round
    return AssistantMessage(
        text=message.text,
        tool_calls=tuple(
            ToolCall(
                name=call.name,
                arguments=call.arguments,
                call_id=f"{state.request_id}_{number}_{index}",
                provider_call_id=call.provider_call_id,
            )
            for index, call in enumerate(message.tool_calls)
        ),
        reasoning=message.reasoning,
        message_id=reply_id(state.request_id, number),
        vendor_data=message.vendor_data,
    )


def _judge(
    state: TurnState, calls: tuple[ToolCall, ...], replied: ModelReplied, facts: _Facts, now: float
) -> None:
    """Request each call that may run, refuse each that may not, in call order."""
    limits = state.limits
    made = state.tool_calls
    last, repeats = state.last_call, state.repeats
    for index, call in enumerate(calls):
        if not state.tools_offered:
            facts.fail(call, "limit", "No tool may be called any more; answer with what is known.", limit=state.stop)
            continue
        if index >= limits.max_calls_per_round:
            limit = f"max_calls_per_round={limits.max_calls_per_round}"
            facts.fail(call, "limit", f"Too many calls in one reply ({limit}).", limit=limit)
            continue
        if made >= limits.max_tool_calls:
            limit = f"max_tool_calls={limits.max_tool_calls}"
            facts.fail(call, "limit", f"The request's calls are used up ({limit}).", limit=limit)
            continue
        made += 1
        arguments = _checked(call, replied.tools, facts)
        if arguments is None:
            continue
        this = (call.name, arguments)
        repeats = repeats + 1 if this == last else 1
        last = this
        if repeats > limits.max_repeats:
            limit = f"max_repeats={limits.max_repeats}"
            error = f"{call.name} was called with the same arguments {repeats - 1} times in a row already ({limit})."
            facts.fail(call, "limit", error, limit=limit)
            continue
        spec = replied.tools[call.name]
        seconds = limits.tool_timeout_seconds if spec.timeout_seconds is None else spec.timeout_seconds
        facts.add(
            ToolCallRequested,
            call_id=call.call_id,
            provider_call_id=call.provider_call_id,
            vendor=replied.reply.vendor,
            name=call.name,
            arguments=arguments,
            round=state.round,
            deadline=min(seconds, max(state.deadline - now, 0.0)),
            idempotency_key=call.call_id,
        )


def _checked(call: ToolCall, tools: Mapping[str, ToolSpec], facts: _Facts) -> dict[str, Any] | None:
    spec = tools.get(call.name)
    if spec is None:
        there_are = ", ".join(tools) or "none"
        facts.fail(call, "unknown_tool", f"There is no tool {call.name!r}. The tools are: {there_are}.")
        return None
    try:
        arguments = parse_arguments(call.arguments)
        spec.validate(arguments)
    except InvalidArguments as exc:
        facts.fail(call, "invalid_arguments", str(exc))
        return None
    return arguments


def _on_model_failed(state: TurnState, failed: ModelFailed, facts: _Facts, _now: float) -> None:
    if state.phase is not Phase.MODEL:
        return
    if state.stop:  # the last answer was a courtesy; the limit is why the request ends
        _complete(state, facts)
        return
    facts.add(
        RequestFailed, reason=failed.code, error=failed.error, retryable=failed.retryable, usage=state.usage
    )


def _on_settled(
    state: TurnState, event: ToolCallCompleted | ToolCallFailed, facts: _Facts, _now: float
) -> None:
    if event.call_id in state.open_calls:
        facts.made.append(event)


def _on_elapsed(state: TurnState, _elapsed: Elapsed, facts: _Facts, now: float) -> None:
    if state.phase is Phase.TOOLS:
        for each in state.open_calls.values():
            if each.deadline <= now:
                seconds = each.deadline - (each.requested_at or 0.0)
                facts.fail(each.call, "timeout", f"{each.call.name} did not answer in {seconds:g} s.", unknown=True)
    elif state.phase is Phase.MODEL:
        if now >= state.deadline:
            _complete(state, facts, f"timeout_seconds={state.limits.timeout_seconds:g}")
        elif now >= state.model_deadline:
            limit = f"model_timeout_seconds={state.limits.model_timeout_seconds:g}"
            error = f"the model did not answer in time ({limit})"
            _on_model_failed(state, ModelFailed("provider_timeout", error, retryable=True), facts, now)


def _on_cancel(_state: TurnState, event: CancelRequested, facts: _Facts, _now: float) -> None:
    facts.made.append(event)


def _on_steering(_state: TurnState, event: SteeringAdded, facts: _Facts, _now: float) -> None:
    facts.made.append(event)


_ON_INPUT: dict[type[Any], Callable[[TurnState, Any, _Facts, float], None]] = {
    Start: _on_start,
    ModelReplied: _on_reply,
    ModelFailed: _on_model_failed,
    Elapsed: _on_elapsed,
    ToolCallCompleted: _on_settled,
    ToolCallFailed: _on_settled,
    CancelRequested: _on_cancel,
    SteeringAdded: _on_steering,
}


def _follow(state: TurnState, facts: _Facts, now: float) -> None:
    """What the state itself asks for: results to append, the next round, the ending."""
    if state.phase is Phase.TOOLS:
        if state.cancel is not None and state.open_calls:
            for each in state.open_calls.values():
                facts.fail(each.call, "cancelled", "The request was cancelled.", unknown=each.requested_at is not None)
        elif not state.open_calls:
            for each in state.calls[state.appended :]:
                facts.add(MessageAppended, message=_result_message(each))
    elif state.cancel is not None and state.phase in (Phase.READY, Phase.MODEL):
        facts.add(RequestCancelled, reason=state.cancel, usage=state.usage)
    elif state.phase is Phase.READY:
        _next_round(state, facts, now)


def _next_round(state: TurnState, facts: _Facts, now: float) -> None:
    newest = state.messages[-1] if state.messages else None
    answered = bool(state.rounds) and isinstance(newest, AssistantMessage)
    timed_out = now >= state.deadline
    if state.steering and not state.stop and not timed_out:
        for number, text in enumerate(state.steering, state.steered):
            message_id = f"{state.request_id}_s{number}"
            facts.add(MessageAppended, message=UserMessage(content=text, message_id=message_id))
        return
    if answered or (state.rounds and not state.tools_offered):
        _complete(state, facts)
    elif timed_out:
        _complete(state, facts, f"timeout_seconds={state.limits.timeout_seconds:g}")
    elif state.stop and (state.limits.on_limit == "stop" or state.stop.startswith(_NO_LAST_ANSWER)):
        _complete(state, facts)
    else:
        outcomes = tuple(
            CallOutcome(name=each.call.name, success=isinstance(each.outcome, ToolCallCompleted))
            for each in state.calls
        )
        facts.add(
            RoundStarted,
            round=state.round + 1,
            message_count=len(state.messages),
            after=outcomes,
            tools_offered=not state.stop,
        )


_NO_LAST_ANSWER = ("max_input_tokens", "max_output_tokens")


def _complete(state: TurnState, facts: _Facts, reason: str = "") -> None:
    reason = state.stop or reason
    last = facts.made[-1] if facts.made else None
    usage = state.usage + last.usage if isinstance(last, ModelResponded) else state.usage
    facts.add(
        RequestCompleted,
        outcome="stopped" if reason else "completed",
        reason=reason,
        text=state.last_text,
        usage=usage,
    )


def _result_message(each: CallState) -> ToolMessage:
    outcome = each.outcome
    failed = not isinstance(outcome, ToolCallCompleted)
    if isinstance(outcome, ToolCallCompleted):
        content = outcome.content
    else:
        assert outcome is not None
        content = failure_content(outcome.reason, outcome.error)
    return ToolMessage(
        call_id=each.call.call_id,
        name=each.call.name,
        content=content,
        is_error=failed,
        message_id=f"{each.call.call_id}_t",
    )


# -------------------------------------------------------------------------------------------------- apply

_LEGAL: dict[Phase, frozenset[type[Event]]] = {
    Phase.NEW: frozenset({RequestStarted}),
    Phase.READY: frozenset(
        {MessageAppended, RoundStarted, SteeringAdded, CancelRequested, RequestCompleted, RequestFailed, RequestCancelled}
    ),
    Phase.MODEL: frozenset(
        {ModelResponded, SteeringAdded, CancelRequested, RequestCompleted, RequestFailed, RequestCancelled}
    ),
    Phase.REPLIED: frozenset({MessageAppended}),
    Phase.TOOLS: frozenset(
        {ToolCallRequested, ToolCallCompleted, ToolCallFailed, MessageAppended, SteeringAdded, CancelRequested}
    ),
    Phase.ENDED: frozenset(),
}


def apply(state: TurnState, fact: Event) -> TurnState:
    """`state` after `fact`. The state is changed in place and given back.

    Raises `ProtocolViolation` for a fact that is illegal in the state's phase; the state is unchanged then.
    """
    kind = type(fact)
    if kind not in _LEGAL[state.phase]:
        raise ProtocolViolation(f"{kind.__name__} is illegal in phase {state.phase.value!r}")
    _APPLY[kind](state, fact)
    state.facts += 1
    return state


def _apply_started(state: TurnState, fact: RequestStarted) -> None:
    state.phase = Phase.READY
    state.started_at = fact.at
    state.deadline = fact.at + fact.deadline
    state.history_count = fact.history_count


def _apply_message(state: TurnState, fact: MessageAppended) -> None:
    message = fact.message
    if isinstance(message, ToolMessage):
        _apply_result(state, message)
    elif isinstance(message, AssistantMessage):
        if state.phase is not Phase.REPLIED:
            raise ProtocolViolation(f"a reply cannot be appended in phase {state.phase.value!r}")
        state.phase = Phase.TOOLS if message.tool_calls else Phase.READY
        state.last_text = message.text or state.last_text
        state.calls = [CallState(call, state.round) for call in message.tool_calls]
        state.open_calls = {each.call.call_id: each for each in state.calls}
        state.rounds[-1].calls = state.calls
        state.appended = 0
    else:
        if state.phase is not Phase.READY:
            raise ProtocolViolation(f"a {message.role} message cannot be appended in phase {state.phase.value!r}")
        if state.steering and state.rounds:
            state.steering.pop(0)
            state.steered += 1
    state.messages.append(message)


def _apply_result(state: TurnState, message: ToolMessage) -> None:
    if state.phase is not Phase.TOOLS or state.open_calls:
        raise ProtocolViolation("a result cannot be appended while calls are open")
    each = state.calls[state.appended]
    if each.call.call_id != message.call_id:
        raise ProtocolViolation(f"the result of {message.call_id!r} is out of call order")
    state.appended += 1
    if not (isinstance(each.outcome, ToolCallFailed) and each.outcome.limit):  # a refusal is not the tool's failure
        state.consecutive_errors = state.consecutive_errors + 1 if message.is_error else 0
    most = state.limits.max_consecutive_errors
    if state.consecutive_errors >= most:
        state.stop = state.stop or f"max_consecutive_errors={most}"
    if state.appended == len(state.calls):
        state.phase = Phase.READY


def _apply_round(state: TurnState, fact: RoundStarted) -> None:
    state.phase = Phase.MODEL
    state.rounds.append(RoundState(fact.round, fact.at))
    state.tools_offered = fact.tools_offered
    state.empty_replies = 0
    state.model_deadline = min(fact.at + state.limits.model_timeout_seconds, state.deadline)


def _apply_responded(state: TurnState, fact: ModelResponded) -> None:
    limits = state.limits
    current = state.rounds[-1]
    current.seconds = fact.at - current.started_at
    current.finish_reason = fact.finish_reason
    current.model = fact.model
    current.usage = current.usage + fact.usage
    state.usage = state.usage + fact.usage
    message = fact.message
    assert isinstance(message, AssistantMessage)
    if not message.tool_calls and not message.text.strip():
        state.empty_replies += 1
        state.model_deadline = min(fact.at + limits.model_timeout_seconds, state.deadline)
        return  # still in MODEL: an ending follows at once, or the round is asked again
    state.phase = Phase.REPLIED
    if not message.tool_calls or not state.tools_offered:
        return
    state.replies += 1
    if state.replies >= limits.max_rounds:
        state.stop = state.stop or f"max_rounds={limits.max_rounds}"
    if state.usage.input_tokens > limits.max_input_tokens:
        state.stop = f"max_input_tokens={limits.max_input_tokens}"
    if state.usage.output_tokens > limits.max_output_tokens:
        state.stop = f"max_output_tokens={limits.max_output_tokens}"


def _apply_requested(state: TurnState, fact: ToolCallRequested) -> None:
    each = state.open_calls.get(fact.call_id)
    if each is None or each.requested_at is not None:
        raise ProtocolViolation(f"call {fact.call_id!r} cannot be requested: it is not open, or was before")
    each.arguments = fact.arguments
    each.requested_at = fact.at
    each.deadline = fact.at + fact.deadline
    state.tool_calls += 1
    this = (fact.name, fact.arguments)
    state.repeats = state.repeats + 1 if this == state.last_call else 1
    state.last_call = this


def _apply_settled(state: TurnState, fact: ToolCallCompleted | ToolCallFailed) -> None:
    each = state.open_calls.pop(fact.call_id, None)
    if each is None:
        raise ProtocolViolation(f"call {fact.call_id!r} is not open")
    each.outcome = fact
    if isinstance(fact, ToolCallFailed):
        if each.requested_at is None and fact.reason in ("invalid_arguments", "unknown_tool"):
            state.tool_calls += 1
        if fact.limit and not fact.limit.startswith("max_calls_per_round"):
            state.stop = state.stop or fact.limit


def _apply_steering(state: TurnState, fact: SteeringAdded) -> None:
    state.steering.append(fact.text)


def _apply_cancel(state: TurnState, fact: CancelRequested) -> None:
    state.cancel = fact.reason


def _apply_ending(state: TurnState, fact: RequestCompleted | RequestFailed | RequestCancelled) -> None:
    state.phase = Phase.ENDED
    state.ending = fact


_APPLY: dict[type[Event], Callable[[TurnState, Any], None]] = {
    RequestStarted: _apply_started,
    MessageAppended: _apply_message,
    RoundStarted: _apply_round,
    ModelResponded: _apply_responded,
    ToolCallRequested: _apply_requested,
    ToolCallCompleted: _apply_settled,
    ToolCallFailed: _apply_settled,
    SteeringAdded: _apply_steering,
    CancelRequested: _apply_cancel,
    RequestCompleted: _apply_ending,
    RequestFailed: _apply_ending,
    RequestCancelled: _apply_ending,
}


# ------------------------------------------------------------------------------------------------ pending


def pending(state: TurnState) -> Command:
    """What has to be done now. Only meaningful between steps, when nothing follows from the state any more."""
    if state.phase is Phase.MODEL:
        return CallModel(
            round=state.round,
            message_id=reply_id(state.request_id, state.round),
            offer_tools=state.tools_offered,
            deadline=state.model_deadline,
            retry=state.empty_replies > 0,
        )
    if state.phase is Phase.TOOLS:
        deadline = min(each.deadline for each in state.open_calls.values())
        return AwaitCalls(calls=state.open_calls, deadline=deadline)
    if state.phase is Phase.ENDED:
        return Finish()
    raise ProtocolViolation(f"nothing is pending in phase {state.phase.value!r}: the step was not finished")
