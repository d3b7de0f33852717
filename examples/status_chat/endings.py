"""The last status of a request, from its result."""

from __future__ import annotations

from typing import Any

from toolbus import RequestResult

__all__ = ["note_of", "status_of"]


def status_of(result: RequestResult[Any]) -> str:
    """The last status."""
    if not result.ok:
        return result.outcome.capitalize()
    calls = len(result.tool_calls)
    return f"Done: {calls} tool call{'s' * (calls != 1)}, {result.duration_seconds:.1f} s"


def note_of(result: RequestResult[Any]) -> str:
    """The note after the answer's text, so that nobody takes half an answer for a whole one."""
    return "" if result.ok else f"[{result.explanation}]"
