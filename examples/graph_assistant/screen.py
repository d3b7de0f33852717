"""The output while a question is answered: a line for each event of toolbus."""

from __future__ import annotations

import json
import textwrap

from toolbus import RequestResult
from toolbus.core.plain_text import clean, clip, one_line
from toolbus.events import (
    Event,
    HistoryCompressed,
    RoundStarted,
    StatusChanged,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)

from .tools import affected_edges, affected_nodes

__all__ = ["SHOWN", "ending", "line"]

SHOWN = (StatusChanged, RoundStarted, ToolCallRequested, ToolCallCompleted, ToolCallFailed, HistoryCompressed)
_WIDTH = 98
_MAX_CHARS = 500  # how many characters of a result are shown; the model reads more


def line(event: Event) -> str:
    """One of the `SHOWN` events in words, cleaned and clipped, because tools and models may have written anything."""
    match event:
        case StatusChanged():
            said = f"[{event.stage}] {event.text}"
        case RoundStarted():
            outcomes = [f"{one_line(each.name)} {'succeeded' if each.ok else 'failed'}" for each in event.call_outcomes]
            processing = f"processing tool results: {', '.join(outcomes)}\n  " if outcomes else ""
            count = f"{event.message_count} message{'s' if event.message_count > 1 else ''}"
            return f"  {processing}turn {event.round + 1} starts: {count}"
        case ToolCallRequested():
            given = ", ".join(
                f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in event.arguments.items()
            )
            said = f"  call   {event.name}({given})"
        case ToolCallCompleted():
            said = f"  result {event.content}"
        case ToolCallFailed():
            said = f"  failed {event.name}, {event.reason}: {event.error}"
        case HistoryCompressed():
            said = f"  results shortened for the model: {event.results_shortened}"
        case _:
            return ""
    margin = "    " if said.startswith(" ") else "  "
    lines = textwrap.wrap(
        clip(one_line(said), _MAX_CHARS), _WIDTH, initial_indent=margin, subsequent_indent=f"{margin}       "
    )
    return "\n".join(lines)


def ending(result: RequestResult[None]) -> str:
    """The answer and its changes, or the reason why there is no answer."""
    said = [f"Assistant: {clean(result.text)}"] if result.text else []
    if not result.ok:
        said.append(result.explanation)
    for what, names in (("nodes", affected_nodes(result.affected)), ("edges", affected_edges(result.affected))):
        if names:
            said.append(f"Affected {what} ({len(names)}): {', '.join(names)}")
    return "\n".join(said)
