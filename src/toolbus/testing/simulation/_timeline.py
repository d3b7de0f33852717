"""The newest events as lines of text for people, for reports of failures."""

from __future__ import annotations

from collections.abc import Iterable

from ...events import Event
from .._timeline import event_line

__all__ = ["timeline"]

_MOST_LINES = 200  # lines of a timeline; the newest are the most useful


def timeline(heard: Iterable[tuple[float, Event]]) -> str:
    """Return one line for each of the newest events, with its time and its request."""
    lines = [f"{moment:10.6f}s  {event.request_id:>8}  {event_line(event)}" for moment, event in heard]
    left_out = len(lines) - _MOST_LINES
    return "\n".join([f"  ({left_out} earlier events)", *lines[-_MOST_LINES:]] if left_out > 0 else lines)
