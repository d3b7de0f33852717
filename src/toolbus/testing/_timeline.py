"""Events as lines of text for people: a failing test of a harness shows them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from ..core.plain_text import clip
from ..events import Event, ReasoningDelta, TextDelta, ToolArgumentsDelta
from ..messages import Message
from ..providers.expectations import shown_message
from ..records import defaults_of

_ENVELOPE = frozenset({"type", "event_id", "request_id", "conversation_id", "parent_id", "at", "metadata"})
# These fields hold ids, and the definition of a tool; neither helps a reader.
_LEFT_OUT = _ENVELOPE | {
    "message_id",
    "provider_call_id",
    "idempotency_key",
    "definition",
}
_PIECES = (TextDelta, ReasoningDelta, ToolArgumentsDelta)
_MAX_LINE_CHARS = 160
_MAX_MISSES = 5


def timeline(log: Sequence[tuple[float, Event]]) -> str:
    """Return one line for each event, with the seconds since the first event. Pieces of one text share a line."""
    if not log:
        return "  (no event yet)"
    began = log[0][0]
    return "\n".join(f"{moment - began:10.3f}s  {line}" for moment, line in _lines(log))


def _lines(log: Sequence[tuple[float, Event]]) -> Iterable[tuple[float, str]]:
    for kind, group in groupby(log, _run_of):
        entries = list(group)
        if kind is None or len(entries) == 1:
            yield from ((moment, event_line(event)) for moment, event in entries)
        else:
            joined = "".join(getattr(event, "text", "") for _, event in entries)
            line = f"{type(entries[0][1]).__name__} in {len(entries)} pieces text={joined!r}"
            yield entries[0][0], clip(line, _MAX_LINE_CHARS)


def _run_of(entry: tuple[float, Event]) -> Any:
    """Return the key that all pieces of one text share; None for an event that is not a piece."""
    event = entry[1]
    return (type(event), event.request_id, getattr(event, "index", 0)) if isinstance(event, _PIECES) else None


def event_line(event: Event) -> str:
    """Return an event's name and its own fields that are not empty or default; ids without that of their request.

    Example:
        from toolbus.events import ToolCallStarted
        from toolbus.testing.harness import event_line

        print(event_line(ToolCallStarted(call_id="c1", name="add")))  # ToolCallStarted call_id='c1' name='add'
    """
    defaults = defaults_of(type(event))
    parts = [
        f"{name}={shown_message(value) if isinstance(value, Message) else repr(value)}"
        for name in event.__struct_fields__
        if name not in _LEFT_OUT and _is_worth_showing(value := getattr(event, name), defaults.get(name))
    ]
    line = " ".join([type(event).__name__, *parts])
    return clip(line.replace(f"'{event.request_id}_", "'_"), _MAX_LINE_CHARS)


def _is_worth_showing(value: Any, default: Any) -> bool:
    return value is False or value not in (None, "", 0) if default is None else value != default


def near_misses(events: Iterable[tuple[Event, bool]], kind: type[Event], fields: Mapping[str, Any]) -> str:
    """Explain in a phrase why no event of `kind` matched.

    The flag beside each event says whether an earlier `expect` has returned the event.
    """
    said: list[str] = []
    for event, taken in events:
        if not isinstance(event, kind):
            continue
        other = [name for name, value in fields.items() if getattr(event, name) != value]
        if other:
            said.append("one with " + ", ".join(f"{name}={getattr(event, name)!r}" for name in other))
        else:
            said.append("one that an earlier expect returned" if taken else "one that where= refused")
    more = [f"and {len(said) - _MAX_MISSES} more"] if len(said) > _MAX_MISSES else []
    return "; there was " + ", ".join([*said[:_MAX_MISSES], *more]) if said else ""
