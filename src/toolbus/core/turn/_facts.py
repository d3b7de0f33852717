"""A builder for the facts of one step, which stamps them with their request's ids and positions. Pure; no decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..._fast_dataclasses import maker
from ...events import (
    Event,
    HistoryCompressed,
    MessageAppended,
    ModelResponded,
    RequestCompleted,
    Spent,
    ToolCallCompleted,
    ToolCallFailed,
)
from ...messages import Message, Part, ToolCall, ToolMessage, Usage
from ...tool_results import failure_content
from ._state import CallState, TurnState

__all__ = ["Facts", "complete", "facts_of", "result_message", "spent_so_far", "usage_with"]


_message_appended = maker(MessageAppended)
_tool_message = maker(ToolMessage)


def _new_list() -> list[Any]:
    return []


@dataclass(slots=True, eq=False, repr=False)
class Facts:
    """The facts of one step, each stamped with the request's ids and its future position in the journal.

    The first `applied` of the facts in `made` are applied to the state already. Some are inputs, which were published
    by others.
    """

    _state: TurnState
    _now: float
    _before: int
    _envelope: dict[str, Any] | None = None
    made: list[Event] = field(default_factory=_new_list)
    applied: int = 0
    _inputs: list[int] = field(default_factory=_new_list)  # the indices of inputs in `made`

    def accept(self, fact: Event) -> None:
        """Add an input that is itself a fact."""
        self._inputs.append(len(self.made))
        self.made.append(fact)

    def own(self) -> list[Event]:
        """Return the facts that the machine has made itself: all but the inputs."""
        inputs, made = self._inputs, self.made
        if not inputs:
            return made
        if inputs[-1] < len(inputs):  # All inputs come first, as results of calls do.
            return made[len(inputs) :]
        return [each for index, each in enumerate(made) if index not in inputs]

    def add(self, kind: Callable[..., Event], **fields: Any) -> None:
        """Add a fact of `kind` with `fields`."""
        if self._envelope is None:
            self._envelope = self._state.envelope(self._now)
        self.made.append(kind(event_id=self.next_id, **self._envelope, **fields))

    def append(self, message: Message) -> None:
        """Add a `MessageAppended`. It is `add` written out, for speed, since every third fact is one."""
        state, made = self._state, self.made
        made.append(
            _message_appended(
                event_id=f"{state.request_id}_f{self._before + len(made)}",
                request_id=state.request_id,
                conversation_id=state.conversation_id,
                parent_id=state.parent_id,
                at=self._now,
                metadata=state.metadata,
                message=message,
            )
        )

    @property
    def next_id(self) -> str:
        """The `event_id` of the next fact. It also serves as a seed for jitter that has to be equal at each replay."""
        return f"{self._state.request_id}_f{self._before + len(self.made)}"

    def refuse(self, call: ToolCall, reason: str, error: str, *, limit: str = "") -> None:
        """Settle a call that was not requested, and never will be."""
        self.add(ToolCallFailed, call_id=call.call_id, name=call.name, reason=reason, error=error, limit=limit)

    def give_up(self, each: CallState, reason: str, error: str) -> None:
        """Settle an open call as failed; a call that was requested may be running, so its outcome is unknown."""
        if each.requested_at is None:
            self.refuse(each.call, reason, error)
            return
        self.add(
            ToolCallFailed,
            call_id=each.call.call_id,
            name=each.call.name,
            reason=reason,
            error=error,
            outcome_unknown=True,
            spent=spent_so_far(each),
            duration_seconds=self._now - each.requested_at,
        )


_facts = maker(Facts)


def facts_of(state: TurnState, now: float) -> Facts:
    """Return an empty builder for a step that begins at `now`."""
    return _facts(state, now, state.facts)


def spent_so_far(each: CallState) -> Spent | None:
    """Return what the sub-requests of a call have used up so far, for a call whose own result will not report it."""
    total: Spent | None = None
    for request in each.sub_requests:
        total = request.spent if total is None else total + request.spent
    return total


def result_message(each: CallState) -> ToolMessage:
    """Return the message with the result of a settled call, as the model reads it."""
    outcome = each.outcome
    parts: tuple[Part, ...] = ()
    failed = not isinstance(outcome, ToolCallCompleted)
    if isinstance(outcome, ToolCallCompleted):
        content, parts = outcome.content, outcome.parts
    else:
        assert outcome is not None
        content = failure_content(outcome.reason, outcome.error)
    return _tool_message(
        call_id=each.call.call_id,
        name=each.call.name,
        content=content,
        parts=parts,
        is_error=failed,
        message_id=f"{each.call.call_id}_t",
    )


def usage_with(state: TurnState, facts: Facts) -> Usage:
    """Return the usage of the request, including a reply or a summary that is not yet applied."""
    last = facts.made[-1] if len(facts.made) > facts.applied else None
    return state.usage + last.usage if isinstance(last, (ModelResponded, HistoryCompressed)) else state.usage


def complete(
    state: TurnState, facts: Facts, reason: str, *, text: str = "", output: Any = None, usage: Usage | None = None
) -> None:
    """End the request: completed, or with a `reason` stopped. `usage` is all that it has used, by default so far."""
    facts.add(
        RequestCompleted,
        outcome="stopped" if reason else "completed",
        reason=reason,
        text=text or state.last_text,
        output=output,
        usage=usage_with(state, facts) if usage is None else usage,
    )
