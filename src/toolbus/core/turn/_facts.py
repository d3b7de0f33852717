"""The facts of one step of the turn machine: each is stamped, applied to the state, and kept in order. No decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from ...errors import InvalidArguments
from ...events import Event, MessageAppended, ModelResponded, RequestCancelled, RequestCompleted, Spent, ToolCallFailed
from ...messages import AssistantMessage, Message, ToolCall, Usage, UserMessage
from ..arguments import encodable
from ._apply import steering_id
from ._state import MODEL, CallState, TurnState
from ._steps import LostReplies, reply_id
from ._transcript import background_note_of

_NOTHING = LostReplies()


class Facts(Struct, eq=False):
    """The facts of one step, in order. Each is applied to the state when it is added, and has its position as id.

    Some are inputs, which were published by others. `mask` returns the fact to keep instead of one that the
    machine has made (with secrets replaced, for example).
    """

    _state: TurnState
    _now: float
    _mask: Callable[[Event], Event] | None = None
    made: list[Event] = []
    own: list[Event] = []  # those in `made` that the machine has decided itself
    _envelope: dict[str, Any] | None = None

    def put(self, fact: Event) -> None:
        """Apply a fact that the machine has made, and append it. Raises `ProtocolViolation` for an illegal fact."""
        if self._mask is not None:
            fact = self._mask(fact)
        state = self._state
        state.phase.changes[type(fact)](state, fact)
        state.facts += 1
        self.made.append(fact)
        self.own.append(fact)

    def accept(self, fact: Event) -> None:
        """Apply and append an input that is itself a fact. Whoever has published it has masked it."""
        state = self._state
        state.phase.changes[type(fact)](state, fact)
        state.facts += 1
        self.made.append(fact)

    def emit(self, kind: Callable[..., Event], **fields: Any) -> None:
        """Apply and append a fact of `kind` with `fields`.

        The facts of which each round has some are written out where they are made, and `put`: a request costs 3 % less.
        """
        if self._envelope is None:
            self._envelope = self._state.envelope(self._now)
        self.put(kind(event_id=self.next_id, **self._envelope, **fields))

    def end(self, kind: Callable[..., Event], **fields: Any) -> None:
        """End the request with a fact of `kind`. Its background calls are given up, and noted in the transcript.

        What a person has said and the model has not read joins the transcript, for the next turn.
        """
        state = self._state
        for each in [*state.open_calls.values()] if state.background else ():
            why = "The request was cancelled." if state.cancel is not None else "The request has ended."
            self.give_up(each, "cancelled", why)
        while state.news:
            self.append(background_note_of(state, state.news[0]))
        if state.steering:
            self.append_steering()
        self.emit(kind, usage=state.usage, cost=state.cost, **fields)

    def append(self, message: Message) -> None:
        """Append a message to the transcript that is neither a reply of the model nor a result."""
        self.emit(MessageAppended, message=message)

    def append_steering(self) -> None:
        """Append the messages that a person has sent since the last round began, in order."""
        for text in self._state.steering.copy():
            self.append(UserMessage(content=text, message_id=steering_id(self._state)))

    @property
    def next_id(self) -> str:
        """The `event_id` of the next fact. It also serves as a seed for jitter that has to be equal at each replay."""
        return f"{self._state.request_id}_f{self._state.facts}"

    def refuse(self, call: ToolCall, reason: str, error: str, *, limit: str = "") -> None:
        """Settle a call that was not requested, and never will be."""
        self.emit(ToolCallFailed, call_id=call.call_id, name=call.name, reason=reason, error=error, limit=limit)

    def give_up(self, each: CallState, reason: str, error: str) -> None:
        """Settle an open call as failed; a call that was requested may be running, so its outcome is unknown."""
        if each.requested_at is None:
            self.refuse(each.call, reason, error)
            return
        self.emit(
            ToolCallFailed,
            call_id=each.call.call_id,
            name=each.call.name,
            reason=reason,
            error=error,
            outcome_unknown=True,
            spent=spent_so_far(each),
            duration_seconds=max(0.0, self._now - each.requested_at),
        )


def note_raised(state: TurnState, call: ToolCall | None, exc: Exception) -> None:
    """Note an exception that shows a bug in a validator, for the log. `InvalidArguments` has it as its cause."""
    cause = exc.__cause__ if isinstance(exc, InvalidArguments) else exc
    if cause is not None:
        state.raised += ((call, False, cause),)


def spent_so_far(each: CallState) -> Spent | None:
    """Return what the sub-requests of an open call have used up so far. Once it has ended, its result reports it."""
    total = each.spent
    for request in each.sub_requests:
        total = request.spent if total is None else total + request.spent
    return total


def spent_in_all(state: TurnState, calls: Iterable[CallState]) -> Spent:
    """Return what a request has used up so far, with the sub-requests of these open calls, those that run too."""
    total = Spent(usage=state.usage, tool_calls=state.tool_calls, cost=state.cost)
    for each in calls:
        if (below := spent_so_far(each)) is not None:
            total = total + below
    return total


def keep_streamed(state: TurnState, facts: Facts, lost: LostReplies) -> None:
    """Append what has arrived of a reply, before the request ends: whoever has read it may refer to it.

    Calls are not kept, because vendors refuse calls without results. They also refuse a message that has only
    reasoning, so this one does not join the transcript: pages read it from the fact. The fact also has what `lost`
    took, which no other fact reports.
    """
    if state.phase is not MODEL:
        return
    text, reasoning = [encodable("".join(pieces)) for pieces in state.streamed]
    if text.strip() or reasoning.strip() or lost.usage != Usage():
        facts.emit(
            ModelResponded,
            round=state.round,
            message=AssistantMessage(text=text, reasoning=reasoning, message_id=reply_id(state), interrupted=True),
            finish_reason="interrupted",
            usage=lost.usage,
            vendor=lost.vendor,
            model=lost.model,
            cost=lost.cost or None,
        )


def cancel(state: TurnState, facts: Facts, *, lost: LostReplies = _NOTHING) -> None:
    """End the request as cancelled."""
    keep_streamed(state, facts, lost)
    facts.end(RequestCancelled, reason=state.cancel)


def complete(
    state: TurnState,
    facts: Facts,
    reason: str,
    *,
    by_model: bool = False,
    text: str = "",
    output: Any = None,
    lost: LostReplies = _NOTHING,
) -> None:
    """End the request: completed, or stopped by the limit in `reason`; with `by_model`, for the model's own reason."""
    keep_streamed(state, facts, lost)
    facts.end(
        RequestCompleted,
        outcome="stopped" if reason else "completed",
        reason=reason,
        limit="" if by_model else reason.partition("=")[0],
        text=text or state.last_text,
        output=output,
    )
