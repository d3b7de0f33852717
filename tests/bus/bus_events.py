"""Short ways to make the events that the bus's tests publish, and to read what came of them."""

from __future__ import annotations

from collections.abc import Sequence

from toolbus import EventBus
from toolbus.bus import Mailbox
from toolbus.events import CancelRequested, Event, StatusChanged, TextDelta, ToolCallCompleted, ToolCallFailed


def signal(text: str = "", request_id: str = "r") -> StatusChanged:
    return StatusChanged(stage="executing", text=text, request_id=request_id)


def fact(reason: str = "", request_id: str = "r") -> CancelRequested:
    """Any fact will do; this one is easy to build. Announce it: published, it would look for its request."""
    return CancelRequested(reason=reason, request_id=request_id)


def delta(text: str, message_id: str = "m", request_id: str = "r") -> TextDelta:
    return TextDelta(message_id=message_id, text=text, request_id=request_id)


def completed(call_id: str = "c", request_id: str = "r", content: str = "done") -> ToolCallCompleted:
    return ToolCallCompleted(call_id=call_id, name="look_up", content=content, request_id=request_id)


def failed(call_id: str = "c", request_id: str = "r", error: str = "broken") -> ToolCallFailed:
    return ToolCallFailed(call_id=call_id, name="look_up", reason="error", error=error, request_id=request_id)


def hear(bus: EventBus, kind: type[Event] = Event) -> list[Event]:
    """All events that a receiver is told of from now on, in a list that grows."""
    heard: list[Event] = []
    bus.connect(kind, heard.append)
    return heard


def words(event: Event) -> str:
    """What an event says, in a word, so that a failed comparison can be read."""
    if isinstance(event, (StatusChanged, TextDelta)):
        return event.text
    return event.reason if isinstance(event, CancelRequested) else event.type


def said(events: Sequence[Event]) -> list[str]:
    return [words(event) for event in events]


def opened(bus: EventBus, *call_ids: str, request_id: str = "r") -> Mailbox:
    """A request that waits for these calls. Needs an event loop."""
    mailbox = bus.arbitration.open_mailbox(request_id)
    bus.arbitration.open_calls(mailbox, call_ids)
    return mailbox
