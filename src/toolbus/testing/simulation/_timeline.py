"""Events as lines for people, in short. Shared with nobody but what fails."""

from __future__ import annotations

from collections.abc import Iterable

from ...events import Event
from .._timeline import event_line

__all__ = ["timeline"]

_MOST_LINES = 200  # of a timeline: the newest say most


def timeline(heard: Iterable[tuple[float, Event]]) -> str:
    """The newest events, a line each, with their moment and their request."""
    lines = [f"{moment:10.6f}s  {event.request_id:>8}  {event_line(event)}" for moment, event in heard]
    left_out = len(lines) - _MOST_LINES
    return "\n".join([f"  ({left_out} earlier events)", *lines[-_MOST_LINES:]] if left_out > 0 else lines)
