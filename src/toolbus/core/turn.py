"""The turn machine: the only place that decides what a request does next. Three pure functions.

    facts   = decide(state, input, now)     what an input means; with `None`, what follows from the state itself
    state   = apply(state, fact)            the only way that a state changes (see `core.reducer`)
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
from typing import Any

from ..errors import InvalidArguments, ProtocolViolation
from ..events import (
    CallOutcome,
    CancelRequested,
    Event,
    MessageAppended,
    ModelResponded,
    ModelRetrying,
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
from ..protocols import ToolSpec
from ..results import failure_content
from .arguments import encodable, parse_arguments
from .reducer import apply, over_tokens
from .retry import backoff_seconds
from .state import CallState, Phase, TurnState
from .steps import (
    AwaitCalls,
    CallModel,
    Command,
    Elapsed,
    Finish,
    Input,
    ModelFailed,
    ModelReplied,
    Start,
    reply_id,
)

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

# ------------------------------------------------------------------------------------------------- decide


class _Facts:
    """The facts of one decision, each stamped with the request's ids and its future place."""

    __slots__ = ("_envelope", "_now", "_state", "made")

    def __init__(self, state: TurnState, now: float) -> None:
        self._state = state
        self._now = now
        self._envelope: dict[str, Any] | None = None
        self.made: list[Event] = []

    def add(self, kind: Callable[..., Event], **fields: Any) -> None:
        state, made = self._state, self.made
        if self._envelope is None:
            self._envelope = state.envelope(self._now)
        event_id = f"{state.request_id}_f{state.facts + len(made)}"
        made.append(kind(event_id=event_id, **self._envelope, **fields))

    def append(self, message: Message) -> None:
        """`add(MessageAppended, message=message)`, written out: every third fact is one."""
        state, made = self._state, self.made
        made.append(
            MessageAppended(
                event_id=f"{state.request_id}_f{state.facts + len(made)}",
                request_id=state.request_id,
                conversation_id=state.conversation_id,
                parent_id=state.parent_id,
                at=self._now,
                metadata=state.metadata,
                message=message,
            )
        )

    @property
    def place(self) -> str:
        """The name of the next fact: a seed for what has to look like chance and be the same at each replay."""
        return f"{self._state.request_id}_f{self._state.facts + len(self.made)}"

    def refuse(self, call: ToolCall, reason: str, error: str, *, limit: str = "") -> None:
        """Settle a call that was not requested, and never will be."""
        self.add(ToolCallFailed, call_id=call.call_id, name=call.name, reason=reason, error=error, limit=limit)

    def give_up(self, each: CallState, reason: str, error: str) -> None:
        """Settle a call that may run, and may have had its effect."""
        requested_at = self._now if each.requested_at is None else each.requested_at
        self.add(
            ToolCallFailed,
            call_id=each.call.call_id,
            name=each.call.name,
            reason=reason,
            error=error,
            outcome_unknown=True,
            duration_seconds=self._now - requested_at,
        )


def decide(state: TurnState, happened: Input | None, now: float) -> Sequence[Event]:
    """The facts that `happened` means in `state`; for None, those that follow from the state itself.

    Nothing is changed. An input that comes too late to mean anything gives no facts.
    """
    if happened is None and _is_waiting(state):
        return ()
    facts = _Facts(state, now)
    if happened is None:
        _follow(state, facts, now)
    elif state.phase is not Phase.ENDED:
        _ON_INPUT[type(happened)](state, happened, facts, now)
    return facts.made


def _is_waiting(state: TurnState) -> bool:
    """Whether the state asks for nothing but what is pending already."""
    if state.cancel is not None:
        return False
    return state.phase is Phase.MODEL or (state.phase is Phase.TOOLS and bool(state.open_calls))


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
        facts.append(start.prompt)


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
        if stop := state.stop or over_tokens(state.limits, state.usage + reply.usage):
            _complete(state, facts, stop)
        elif state.empty_replies:
            facts.add(
                RequestFailed,
                reason="empty_reply",
                error="the model answered with neither text nor tool calls, twice",
                usage=state.usage + reply.usage,
            )
        else:
            facts.add(
                ModelRetrying,
                round=state.round,
                reason="empty_reply",
                error="the model answered with neither text nor tool calls",
                provider=state.provider,
            )
        return
    facts.append(message)
    if message.tool_calls:
        _judge(state, message.tool_calls, replied, facts, now)


def _identified(state: TurnState, message: AssistantMessage) -> AssistantMessage:
    """The reply in text that JSON can carry, under ids of our own: a provider's are repeated or empty at times."""
    number = state.round
    return AssistantMessage(
        text=encodable(message.text),
        tool_calls=tuple(
            [
                ToolCall(
                    name=encodable(call.name),
                    arguments=encodable(call.arguments),
                    call_id=f"{state.request_id}_{number}_{index}",
                    provider_call_id=encodable(call.provider_call_id),
                )
                for index, call in enumerate(message.tool_calls)
            ]
        ),
        reasoning=encodable(message.reasoning),
        message_id=reply_id(state.request_id, number),
        vendor_data=message.vendor_data,
    )


def _judge(state: TurnState, calls: tuple[ToolCall, ...], replied: ModelReplied, facts: _Facts, now: float) -> None:
    """Request each call that may run, refuse each that may not, in call order."""
    limits = state.limits
    made = state.tool_calls
    last, repeats = state.last_call, state.repeats
    for index, (call, written) in enumerate(zip(calls, replied.reply.message.tool_calls, strict=True)):
        if barred := _barred(state, index, made, now):
            limit, error = barred
            facts.refuse(call, "limit", f"{error} ({limit})." if error else _NO_TOOLS, limit=limit)
            continue
        arguments = _checked(call, written.arguments, replied.tools, facts)
        if arguments is None:
            made += 1
            continue
        this = (call.name, arguments)
        if this != last:
            last, repeats = this, 0
        elif repeats >= limits.max_repeats:
            limit = f"max_repeats={limits.max_repeats}"
            error = f"{call.name} was called with the same arguments {repeats} times in a row already ({limit})."
            facts.refuse(call, "limit", error, limit=limit)
            continue
        repeats += 1
        made += 1
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
            deadline=min(seconds, state.deadline - now),
            idempotency_key=call.call_id,
        )


_NO_TOOLS = "No tool may be called any more; answer with what is known."


def _barred(state: TurnState, index: int, made: int, now: float) -> tuple[str, str] | None:
    """The limit, with its value, that call number `index` of a reply may not pass, and why; None where it may run."""
    limits = state.limits
    if not state.tools_offered:
        return state.stop, ""
    if now >= state.deadline:  # it would be cancelled at once, after it may have had its effect
        return f"timeout_seconds={limits.timeout_seconds:g}", "The request's time is over"
    if index >= limits.max_calls_per_round:
        return f"max_calls_per_round={limits.max_calls_per_round}", "Too many calls in one reply"
    if made >= limits.max_tool_calls:
        return f"max_tool_calls={limits.max_tool_calls}", "The request's calls are used up"
    return None


def _checked(call: ToolCall, written: str, tools: Mapping[str, ToolSpec], facts: _Facts) -> dict[str, Any] | None:
    """The arguments that the model has `written`, or None where they, or the call's name, let no tool run."""
    spec = tools.get(call.name)
    if spec is None:
        there_are = ", ".join(tools) or "none"
        facts.refuse(call, "unknown_tool", f"There is no tool {call.name!r}. The tools are: {there_are}.")
        return None
    try:
        arguments = parse_arguments(written)
        spec.validate(arguments)
    except InvalidArguments as exc:
        facts.refuse(call, "invalid_arguments", str(exc))
        return None
    except Exception as exc:  # the application's code; what a model sends must not end the request, siblings and all
        facts.refuse(call, "error", f"The arguments could not be checked: the validator raised {type(exc).__name__}.")
        return None
    return arguments


def _on_model_failed(state: TurnState, failed: ModelFailed, facts: _Facts, now: float) -> None:
    if state.phase is not Phase.MODEL or _ask_again(state, failed, facts, now):
        return
    if state.stop:  # the last answer was a courtesy; the limit is why the request ends
        _complete(state, facts, state.stop)
        return
    facts.add(RequestFailed, reason=failed.code, error=failed.error, retryable=failed.retryable, usage=state.usage)


def _ask_again(state: TurnState, failed: ModelFailed, facts: _Facts, now: float) -> bool:
    """Retry the same provider after a while, or turn to the next one, if the failure and the time left allow it."""
    if not failed.retryable:
        return False
    provider = state.provider
    delay = max(backoff_seconds(state.attempts, facts.place), failed.retry_after_seconds or 0.0)
    if state.attempts >= state.limits.max_model_attempts or now + delay >= state.deadline:
        provider, delay = provider + 1, 0.0
    if provider >= state.providers or now + delay >= state.deadline:
        return False
    facts.add(
        ModelRetrying,
        round=state.round,
        reason=failed.code,
        error=failed.error,
        delay_seconds=delay,
        provider=provider,
    )
    return True


def _on_settled(state: TurnState, event: ToolCallCompleted | ToolCallFailed, facts: _Facts, _now: float) -> None:
    if event.call_id in state.open_calls:
        facts.made.append(event)


def _on_elapsed(state: TurnState, _elapsed: Elapsed, facts: _Facts, now: float) -> None:
    if state.phase is Phase.TOOLS:
        for each in state.open_calls.values():
            if each.deadline <= now:
                # Seconds since the epoch are kept to a quarter of a microsecond: finer digits are noise.
                seconds = round(each.deadline - (now if each.requested_at is None else each.requested_at), 6)
                facts.give_up(each, "timeout", f"{each.call.name} did not answer in {seconds:g} s.")
    elif state.phase is Phase.MODEL:
        if now >= state.deadline:
            _complete(state, facts, state.stop or f"timeout_seconds={state.limits.timeout_seconds:g}")
        elif now >= state.model_deadline:
            limit = f"model_timeout_seconds={state.limits.model_timeout_seconds:g}"
            error = f"the model did not answer in time ({limit})"
            _on_model_failed(state, ModelFailed("provider_timeout", error, retryable=True), facts, now)


def _on_cancel(_state: TurnState, event: CancelRequested, facts: _Facts, _now: float) -> None:
    facts.made.append(event)


def _on_steering(_state: TurnState, event: SteeringAdded, facts: _Facts, _now: float) -> None:
    if event.text.strip():  # no vendor takes an empty message
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
                facts.give_up(each, "cancelled", "The request was cancelled.")
        elif not state.open_calls:
            for each in state.calls[state.appended :]:
                facts.append(_result_message(each))
    elif state.cancel is not None and state.phase in (Phase.READY, Phase.MODEL):
        facts.add(RequestCancelled, reason=state.cancel, usage=state.usage)
    elif state.phase is Phase.READY:
        _next_round(state, facts, now)


def _next_round(state: TurnState, facts: _Facts, now: float) -> None:
    newest = state.messages[-1] if state.messages else None
    answered = bool(state.rounds) and isinstance(newest, AssistantMessage) and not state.steering
    if answered or (state.rounds and not state.tools_offered):
        _complete(state, facts, state.stop)
    elif now >= state.deadline:
        _complete(state, facts, f"timeout_seconds={state.limits.timeout_seconds:g}")
    elif state.stop and (state.limits.on_limit == "stop" or state.stop.startswith(_NO_LAST_ANSWER)):
        _complete(state, facts, state.stop)
    elif state.steering:
        for number, text in enumerate(state.steering, state.steered):
            message_id = f"{state.request_id}_s{number}"
            facts.append(UserMessage(content=text, message_id=message_id))
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


def _complete(state: TurnState, facts: _Facts, reason: str) -> None:
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


# ------------------------------------------------------------------------------------------------ pending


def pending(state: TurnState) -> Command:
    """What has to be done now. Only meaningful between steps, when nothing follows from the state any more."""
    if state.phase is Phase.MODEL:
        return CallModel(
            round=state.round,
            message_id=reply_id(state.request_id, state.round),
            offer_tools=state.tools_offered,
            not_before=state.not_before,
            deadline=state.model_deadline,
            provider=state.provider,
        )
    if state.phase is Phase.TOOLS and state.open_calls:
        deadline = min(each.deadline for each in state.open_calls.values())
        return AwaitCalls(calls=state.open_calls, deadline=deadline)
    if state.phase is Phase.ENDED:
        return Finish()
    raise ProtocolViolation(f"nothing is pending in phase {state.phase.value!r}: the step was not finished")
