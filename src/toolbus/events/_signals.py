"""Signals: events that report progress.

No state depends on signals. A slow subscriber may miss some, and gets a `SubscriberLagged` instead of them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..messages import Part
from ._base import Event

Stage: TypeAlias = Literal["idle", "submitted", "streaming", "executing", "waiting", "processing", "complete", "error"]


class TextDelta(Event, kw_only=True, frozen=True):
    """A streamed piece of the reply's text. `message_id` is the id of the message that the pieces will become.

    If the model is called again for the same reply, the new pieces have another id.
    """

    message_id: str
    text: str
    round: int = 0


class ReasoningDelta(Event, kw_only=True, frozen=True):
    """A streamed piece of the model's reasoning."""

    message_id: str
    text: str
    round: int = 0


class ToolArgumentsDelta(Event, kw_only=True, frozen=True):
    """A streamed piece of the argument text of the call at `index` in the reply, neither parsed nor validated."""

    message_id: str
    index: int
    name: str
    text: str
    round: int = 0


class ToolCallStarted(Event, kw_only=True, frozen=True):
    """A tool's handler begins to run. `attempt` counts from 1."""

    call_id: str
    name: str
    attempt: int = 1


class ToolCallProgress(Event, kw_only=True, frozen=True):
    """A tool's handler reports its progress: `done` of `total`. `total` is None if the handler cannot know it."""

    call_id: str
    name: str
    message: str = ""
    done: float | None = None
    total: float | None = None


class ToolCallRetrying(Event, kw_only=True, frozen=True):
    """A tool's handler failed and will be tried again after `delay_seconds`."""

    call_id: str
    name: str
    attempt: int
    error: str
    delay_seconds: float


class StatusChanged(Event, kw_only=True, frozen=True):
    """The request entered another stage, or its status line changed. `text` is a sentence for people."""

    stage: Stage
    text: str


class ToolCallLate(Event, kw_only=True, frozen=True):
    """A second terminal event for a call that was already settled. It never enters the transcript of its request.

    With `for_next_turn`, the request wants the model to read it at the beginning of the conversation's next turn.
    """

    call_id: str
    name: str
    event_type: Literal["tool_call_completed", "tool_call_failed"]
    content: str = ""
    parts: tuple[Part, ...] = ()
    error: str = ""
    for_next_turn: bool = False


class SubscriberLagged(Event, kw_only=True, frozen=True):
    """A subscription was too slow for `count` events, and gets this event instead of them.

    They lie between `first_position` and `last_position`, inclusive.
    """

    first_position: int
    last_position: int
    count: int


class ReceiverFailed(Event, kw_only=True, frozen=True):
    """A receiver raised an exception for an event of type `event_type`. The other receivers got the event anyway.

    `error` is for operators.
    """

    receiver: str
    event_type: str
    failed_event_id: str
    error: str


class DeadLetter(Event, kw_only=True, frozen=True):
    """An event was not accepted, because nobody waits for it (any more), or because it cannot be used.

    `event_type` is its type.
    """

    event_type: str
    rejected_event_id: str
    call_id: str = ""
    reason: str


class ToolCallOverdue(Event, kw_only=True, frozen=True):
    """A call was cancelled, and its handler, in a task or in a thread, still runs `seconds` later. Published once."""

    call_id: str
    name: str
    runs_in: Literal["task", "thread"]
    seconds: float


class ApprovalOverdue(Event, kw_only=True, frozen=True):
    """A call has waited for a decision for `seconds`: see `remind_after_seconds` of `Runtime`. Published once."""

    call_id: str
    name: str
    seconds: float


class LoopBlocked(Event, kw_only=True, frozen=True):
    """The event loop was blocked for `seconds`, so that no request could continue. Published when that is over.

    `call_id` and `name` are those of the tool call that blocked it, if that is known. Otherwise `stack` has the
    functions that ran meanwhile, innermost first. It is empty if one of them kept the interpreter's lock: see
    `blocked_loop_seconds` of `Runtime`.
    """

    seconds: float
    call_id: str = ""
    name: str = ""
    stack: str = ""


class SubscriptionFull(Event, kw_only=True, frozen=True):
    """The buffer of the subscription `name` is full, because its reader is too slow. This event belongs to no request.

    The subscription loses signals from now on, or it has `ended`. The event is published again only after the reader
    has reached the gap.
    """

    name: str
    capacity: int
    ended: bool


class RequestTakenOver(Event, kw_only=True, frozen=True):
    """Another process has the request now, because the lease of this process ran out. No more events follow here."""
