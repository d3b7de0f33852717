"""The ending of a request in words for people, from the result's `outcome` and `reason`."""

from __future__ import annotations

from typing import Any

from toolbus import RequestResult
from toolbus.core.plain_text import one_line

__all__ = ["note_of", "status_of", "why"]

# These sentences explain limits to the person who asked. Other limits are shown in the form max_tool_calls=100.
_LIMITS = {
    "max_rounds": "all {} rounds of tool calls are used up",
    "max_tool_calls": "all {} tool calls are used up",
    "max_consecutive_errors": "{} tool calls in a row failed",
    "max_repeats": "the same tool call was made {} times in a row",
    "timeout_seconds": "it took longer than {} seconds",
}


def status_of(result: RequestResult[Any]) -> str:
    """The last status."""
    match result.outcome:
        case "completed":
            calls = len(result.tool_calls)
            return f"Done: {calls} tool call{'s' * (calls != 1)}, {result.duration_seconds:.1f} s"
        case "stopped":
            return f"Stopped: {why(result)}"
        case "cancelled":
            return f"Cancelled: {result.reason}"
        case "failed":
            return "Failed"


def note_of(result: RequestResult[Any]) -> str:
    """The note after the answer's text, so that nobody takes half an answer for a whole one."""
    return "" if result.ok else f"[Unable to complete task: {why(result)}]"


def why(result: RequestResult[Any]) -> str:
    """The reason why there is no answer, on one line: the limit, the model's own words, or the error."""
    return one_line(_why(result))  # models and servers may have written anything


def _why(result: RequestResult[Any]) -> str:
    value = result.reason.partition("=")[2]
    if result.limit in _LIMITS:
        return _LIMITS[result.limit].format(value)
    if result.limit == "stop_on":
        names = dict.fromkeys(call.name for call in result.tool_calls if call.reason == value)
        return f"the model asked for a tool that is not there: {', '.join(names)}"
    return str(result.error) if result.error is not None else result.reason
