"""Signals: they tell what is going on. A slow subscriber may miss some, visibly; nothing depends on them."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..messages import Part
from ._base import Event, event

Stage: TypeAlias = Literal["idle", "submitted", "streaming", "executing", "waiting", "processing", "complete", "error"]


@event
class TextDelta(Event):
    """A piece of the reply's text. `message_id` is the message it will become."""

    type: Literal["text_delta"] = "text_delta"
    message_id: str
    text: str
    round: int = 0


@event
class ReasoningDelta(Event):
    """A piece of the model's reasoning."""

    type: Literal["reasoning_delta"] = "reasoning_delta"
    message_id: str
    text: str
    round: int = 0


@event
class ToolArgumentsDelta(Event):
    """A piece of the argument text of the call at `index` in the reply. Not parsed, not validated."""

    type: Literal["tool_arguments_delta"] = "tool_arguments_delta"
    message_id: str
    index: int
    name: str
    text: str
    round: int = 0


@event
class ToolCallStarted(Event):
    """A handler begins. `attempt` counts from 1."""

    type: Literal["tool_call_started"] = "tool_call_started"
    call_id: str
    name: str
    attempt: int = 1


@event
class ToolCallProgress(Event):
    """A handler says how far it is. `total` is None where it does not know."""

    type: Literal["tool_call_progress"] = "tool_call_progress"
    call_id: str
    name: str
    message: str = ""
    done: float | None = None
    total: float | None = None


@event
class ToolCallRetrying(Event):
    """A handler failed and will be tried again after `delay_seconds`."""

    type: Literal["tool_call_retrying"] = "tool_call_retrying"
    call_id: str
    name: str
    attempt: int
    error: str
    delay_seconds: float


@event
class StatusChanged(Event):
    """Where the request stands, with a sentence for people."""

    type: Literal["status_changed"] = "status_changed"
    stage: Stage
    text: str


@event
class ToolCallLate(Event):
    """A second terminal event for a call that was settled already. It never enters its request's transcript.

    `for_next_turn` is whether the request wants it to be told at the beginning of the conversation's next turn.
    """

    type: Literal["tool_call_late"] = "tool_call_late"
    call_id: str
    name: str
    late: Literal["tool_call_completed", "tool_call_failed"]
    content: str = ""
    parts: tuple[Part, ...] = ()
    error: str = ""
    for_next_turn: bool = False


@event
class SubscriberLagged(Event):
    """Put into one subscription in the place of events that it was too slow for. Positions are inclusive."""

    type: Literal["subscriber_lagged"] = "subscriber_lagged"
    first_position: int
    last_position: int
    count: int


@event
class ReceiverFailed(Event):
    """A receiver raised while it was told of `event_type`. The others were told all the same."""

    type: Literal["receiver_failed"] = "receiver_failed"
    receiver: str
    event_type: str
    failed_event_id: str
    error: str


@event
class DeadLetter(Event):
    """An event that was not accepted, as nobody waits for it (any more). `letter_id` is its `event_id`."""

    type: Literal["dead_letter"] = "dead_letter"
    letter_type: str
    letter_id: str
    call_id: str = ""
    reason: str
