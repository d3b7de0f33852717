"""The decisions on the outcome of a model call: a reply, a failure, or a history that was shortened for it. Pure.

`_decide` has the other decisions of a step, and what follows from the state afterwards.
"""

from __future__ import annotations

from ...errors import ContentFiltered, ContextOverflow, NativeOutputUnsupported
from ...events import HistoryCompressed, ModelResponded, ModelRetrying, RequestFailed
from ...messages import AssistantMessage, ToolCall, Usage
from ...protocols import ModelReply, Summary
from ..arguments import CUT_OFF, encodable, encodable_json
from ..backoff import backoff_seconds
from ..prices import cost_of
from ._apply import over_budget
from ._facts import Facts, cancel, complete, keep_streamed
from ._state import MODEL, TurnState
from ._steps import HistoryShaped, ModelFailed, ModelReplied, reply_id
from ._transcript import is_empty

_WITHHELD = {"content_filter": "its content filter withheld the reply", "refusal": "the model refused without a word"}
_REFUSED = {"content_filter": "its content filter cut the reply off", "refusal": "the model refused: {}"}
_QUOTED_CHARS = 300


def decide_reply(state: TurnState, replied: ModelReplied, facts: Facts, now: float) -> None:
    """Decide on the model's whole reply: append its message, or handle an empty or unpriced one."""
    if state.phase is not MODEL:
        return
    reply = replied.reply
    message = _identified(state, reply.message, cut=reply.finish_reason in CUT_OFF)
    cost = None if state.prices is None else cost_of(reply.usage, reply.vendor, reply.model, state.prices)
    responded = ModelResponded(
        event_id=f"{state.request_id}_f{state.facts}",
        request_id=state.request_id,
        conversation_id=state.conversation_id,
        parent_id=state.parent_id,
        at=now,
        metadata=state.metadata,
        round=state.round,
        message=message,
        finish_reason=reply.finish_reason,
        usage=reply.usage,
        vendor=reply.vendor,
        model=reply.model,
        cost=cost,
        native_output=replied.native_output,
    )
    facts.put(responded)
    if state.cancel is not None:  # It came together with the reply, which is paid for.
        return
    # Without a price, the reply could have any cost.
    if cost is None and state.needs_price and _is_by_a_model(reply):
        _on_unpriced(message, reply, facts)
        return
    if is_empty(message):
        _on_empty_reply(state, reply, facts)
        return
    for index, reason in (replied.denied or {}).items():
        facts.refuse(message.tool_calls[index], "denied", reason)


def _on_unpriced(message: AssistantMessage, reply: ModelReply, facts: Facts) -> None:
    """End the request at once. The reply stays in the transcript, since it is paid for; its calls do not start."""
    error = _no_price(reply.vendor, reply.model)
    for call in message.tool_calls:
        facts.refuse(call, "cancelled", "The request ended, since what it costs is not known.")
    facts.end(RequestFailed, reason="configuration_error", error=error)


def _is_by_a_model(given: ModelReply | Summary) -> bool:
    """Return whether a model gave this: the application's own code has no vendor, and costs nothing."""
    return bool(given.vendor or given.model or given.usage != Usage())


def _no_price(vendor: str, model: str) -> str:
    name = f"{vendor}:{model}"
    return f"max_cost is set, and there is no price for {name!r}: pass prices={{{name!r}: Price(...)}}"


def _on_empty_reply(state: TurnState, reply: ModelReply, facts: Facts) -> None:
    error = "the model answered with neither text nor tool calls"
    if reply.finish_reason == "length":
        error += ": its limit of tokens cut it off before (see ModelSettings.max_output_tokens)"
    if stop := state.stop or over_budget(state.limits, state.usage, state.cost):
        complete(state, facts, stop.reason)
    elif reply.finish_reason in _WITHHELD:  # Asking again would give the same result.
        error = f"the provider gave no answer: {_WITHHELD[reply.finish_reason]}"
        facts.end(RequestFailed, reason=ContentFiltered.code, error=error)
    elif state.empty_replies > 1:
        facts.end(RequestFailed, reason="empty_reply", error=f"{error}, twice")
    else:
        facts.emit(
            ModelRetrying,
            round=state.round,
            reason="empty_reply",
            error=error,
            provider_index=state.provider,
            vendor=reply.vendor,
            model=reply.model,
        )


def decide_withheld(state: TurnState, text: str, facts: Facts) -> bool:
    """End the request if the newest reply, `text` without calls, was withheld or is a refusal; return whether it was.

    The request then fails, unless a limit has stopped it before: that is the reason of the ending, as for any other
    last answer.
    """
    how = _REFUSED.get(state.rounds[-1].finish_reason)
    if how is None:
        return False
    if state.stop is not None:
        complete(state, facts, state.stop.reason, text=text)
        return True
    error = f"the provider gave no answer: {how.format(_shortened(text))}"
    facts.end(RequestFailed, reason=ContentFiltered.code, error=error)
    return True


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _QUOTED_CHARS else f"{line[: _QUOTED_CHARS - 1]}…"


def _identified(state: TurnState, message: AssistantMessage, *, cut: bool) -> AssistantMessage:
    """Return the reply with texts that JSON can carry and new ids, since a provider's ids may be repeated or empty.

    Empty arguments become an empty object, unless the reply was cut off: then they stay empty.
    """
    number = state.round
    blank = "" if cut else "{}"
    return AssistantMessage(
        text=encodable(message.text),
        tool_calls=tuple(
            [
                ToolCall(
                    name=encodable(call.name),
                    arguments=encodable_json(call.arguments) if call.arguments.strip() else blank,
                    call_id=f"{state.request_id}_{number}_{index}",
                    provider_call_id=encodable(call.provider_call_id),
                )
                for index, call in enumerate(message.tool_calls)
            ]
        ),
        reasoning=encodable(message.reasoning),
        message_id=reply_id(state),
        vendor_data=message.vendor_data,
    )


def decide_model_failed(state: TurnState, failed: ModelFailed, facts: Facts, now: float) -> None:
    """Decide on a failed model call: retry it, turn to another provider, or end the request."""
    if state.phase is not MODEL:
        return
    lost = failed.lost
    if state.cancel is not None:
        cancel(state, facts, lost=lost)
        return
    again = _asked_again(state, failed, facts, now)
    over = over_budget(state.limits, state.usage + lost.usage, state.cost + lost.cost)
    stop = state.stop if again is None else over
    if stop is not None:  # The request ends because of the limit; a last answer was optional.
        complete(state, facts, stop.reason, lost=lost)
        return
    if again is not None:
        provider, delay = again
        facts.emit(
            ModelRetrying,
            round=state.round,
            reason=failed.code,
            error=failed.error,
            delay_seconds=delay,
            provider_index=provider,
            usage=lost.usage,
            vendor=lost.vendor,
            model=lost.model,
            cost=lost.cost,
        )
        return
    # An overflow was retryable only within this request.
    retryable = failed.retryable and failed.code != ContextOverflow.code
    keep_streamed(state, facts, lost)
    facts.end(RequestFailed, reason=failed.code, error=failed.error, retryable=retryable)


def _asked_again(state: TurnState, failed: ModelFailed, facts: Facts, now: float) -> tuple[int, float] | None:
    """Return the provider to ask, the same one or the next one, and the wait before; None if none may be asked.

    A history that was too long for a model is sent to it once more in the same round, shorter, and then to the next
    provider. A server that does not accept the output's schema is asked once more without it, if `output_mode` is
    "auto".
    """
    provider, delay = state.provider, 0.0
    if failed.code == NativeOutputUnsupported.code:
        if state.output_mode != "auto" or state.native_refused:
            return None
    elif not failed.retryable:
        return None
    elif failed.code == ContextOverflow.code:
        provider += state.overflowed
    else:
        delay = max(backoff_seconds(state.attempts, facts.next_id), failed.retry_after_seconds or 0.0)
        if state.attempts >= state.limits.max_model_attempts or now + delay >= state.deadline:
            provider, delay = provider + 1, 0.0
    return None if provider >= state.providers or now + delay >= state.deadline else (provider, delay)


def decide_shaped(state: TurnState, shaped: HistoryShaped, facts: Facts, _now: float) -> None:
    """Record a change of the history that is sent. A summary that uses up limits, or has no price, ends the request."""
    shape, summary = shaped.shape, shaped.summary
    if state.phase is not MODEL:
        return
    cost = None
    if summary is not None and state.prices:
        cost = cost_of(summary.usage, summary.vendor, summary.model, state.prices)
    facts.emit(
        HistoryCompressed,
        before_tokens=shape.before_tokens,
        after_tokens=shape.after_tokens,
        results_shortened=shape.results_shortened,
        turns_omitted=shape.turns_omitted,
        summary=encodable(shape.summary) if summary is not None and summary.text.strip() else "",
        usage=Usage() if summary is None else summary.usage,
        vendor="" if summary is None else summary.vendor,
        model="" if summary is None else summary.model,
        cost=cost,
    )
    if summary is None:
        return
    if cost is None and state.needs_price and _is_by_a_model(summary):
        error = _no_price(summary.vendor, summary.model)
        facts.end(RequestFailed, reason="configuration_error", error=error)
    elif over := over_budget(state.limits, state.usage, state.cost):
        complete(state, facts, (state.stop or over).reason)
