"""The list of a request's events, with filters. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from ...core.plain_text import one_line
from ...errors import ConfigurationError
from ...events import EVENT_TYPES, Event, MessageAppended, ModelResponded, RoundStarted
from ._shown import shown_event, shown_text

MAX_EVENTS = 100
"""The number of events in one answer."""
_LINE_CHARS = 200
_LOOKED_AT = 400  # characters of each text
_KNOWN = frozenset(each.type for each in EVENT_TYPES)
_SAID = ("name", "message", "text", "content", "error", "reason", "prompt", "outcome")
_ENVELOPE = ("type", "event_id", "request_id", "conversation_id", "parent_id", "at", "metadata")

Kind: TypeAlias = Literal["all", "facts", "signals", "problems"]
_PROBLEMS = frozenset({
    "approval_overdue", "dead_letter", "loop_blocked", "model_retrying", "receiver_failed", "request_failed",
    "subscriber_lagged", "subscription_full", "tool_call_failed", "tool_call_late", "tool_call_overdue",
    "tool_call_retrying",
})  # fmt: skip


@dataclass(slots=True, frozen=True)
class EventFilter:
    """The events that somebody wants to see. Empty fields filter nothing.

    `kind` is a group of types, `types` are names such as "tool_call_failed", `search` is a text that the event's line
    contains, in any case, and `call_id` and `request_id` are ids. Raises `ConfigurationError` for unknown names.
    """

    kind: Kind = "all"
    types: frozenset[str] = frozenset()
    search: str = ""
    call_id: str = ""
    request_id: str = ""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigurationError(f"there is no kind {self.kind!r} of events; pass {', '.join(get_args(Kind))}")
        if unknown := self.types - _KNOWN:
            raise ConfigurationError(f"there are no events of the types {', '.join(sorted(unknown))}")

    def wants(self, event: Event) -> bool:
        if self.kind != "all" and not _is_of(self.kind, event):
            return False
        if self.types and event.type not in self.types:
            return False
        if self.call_id and getattr(event, "call_id", "") != self.call_id:
            return False
        if self.request_id and event.request_id != self.request_id:
            return False
        return not self.search or self.search.casefold() in f"{event.type} {line_of(event)}".casefold()


def _is_of(kind: Kind, event: Event) -> bool:
    if kind == "problems":
        return event.type in _PROBLEMS
    return (event.is_fact and not event.is_derived) is (kind == "facts")


def line_of(event: Event) -> str:
    """Return the contents of an event on one line, without its ids and without secrets."""
    own = [getattr(event, each) for each in _SAID if each in event.__struct_fields__]
    said = [value for value in own if isinstance(value, str)]
    if isinstance(event, MessageAppended):
        said = [event.message.role, event.message.text]
    elif isinstance(event, ModelResponded):
        said = [event.message.text, *(each.name for each in event.message.tool_calls)]
    elif isinstance(event, RoundStarted):
        said = [f"round {event.round + 1}"]
    return one_line(shown_text(": ".join(each[:_LOOKED_AT] for each in said if each), _LINE_CHARS))


def listed(
    events: Sequence[Event], wanted: EventFilter, *, first: int, before: int | None = None, limit: int = MAX_EVENTS
) -> dict[str, Any]:
    """Return at most `limit` of the wanted events as JSON values, the newest first.

    `first` is the number of the first event in `events`; `before` asks for events with smaller numbers. `before` in the
    answer is None if there are no older ones, and otherwise asks for these.
    """
    rows: list[dict[str, Any]] = []
    end = len(events) if before is None else min(len(events), before - first)
    for position in range(end - 1, -1, -1):
        event = events[position]
        if wanted.wants(event):
            if len(rows) >= limit:
                return {"events": rows, "before": position + first + 1}
            rows.append(_row(event, position + first))
    return {"events": rows, "before": None}


def _row(event: Event, number: int) -> dict[str, Any]:
    fields = shown_event(event)
    return {
        "number": number,
        "at": event.at,
        "type": event.type,
        "is_fact": event.is_fact and not event.is_derived,
        "is_problem": event.type in _PROBLEMS,
        "request_id": event.request_id,
        "line": line_of(event),
        "fields": {name: value for name, value in fields.items() if name not in _ENVELOPE},
    }
