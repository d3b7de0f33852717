"""Notes for the model: results that come after it has continued, or after their request has ended. Pure.

The words and the ids are part of the transcript, and of the format of journals.

Example:
    from toolbus.core.result_notes import background_note, background_note_id, late_note, late_note_id, result_in
    from toolbus.events import ToolCallCompleted
    from toolbus.messages import ToolCall

    call = ToolCall(name="export", arguments='{"year": 2025}', call_id="c1")
    outcome = ToolCallCompleted(call_id="c1", name="export", content="done")
    note = background_note(call, outcome, 4_000)
    print(note.message_id == background_note_id("c1"), result_in(note, call).content)  # True done
    print(late_note("c1", "export", '{"year": 2025}', outcome).message_id == late_note_id("c1"))  # True
"""

from __future__ import annotations

from collections.abc import Sequence

from ..events import TerminalEvent, ToolCallCompleted, ToolCallLate
from ..messages import SystemMessage, ToolCall, ToolMessage
from ..tool_results import failure_content
from .result_size import DEFAULT_RESULT_CHARS
from .shorten import shorten

__all__ = ["TICKET", "background_note", "background_note_id", "late_note", "late_note_id", "result_in"]

TICKET = (
    "The call runs in the background. Its result will follow in a separate message. Continue with what does not need "
    "the result, or say what you are waiting for."
)
"""The result of a background call that is still open when the other calls of its reply have ended."""

_ARGUMENT_CHARS = 1_000


def background_note_id(call_id: str) -> str:
    """Return the `message_id` of the note with the result of a background call."""
    return f"{call_id}_b"


def background_note(call: ToolCall, outcome: TerminalEvent, max_chars: float) -> SystemMessage:
    """Return the note with the result of a background call, whose content is cut to `max_chars` characters."""
    text = f"{_background(call)}{_result(outcome, max_chars)}"
    return SystemMessage(text=text, message_id=background_note_id(call.call_id))


def result_in(note: SystemMessage, call: ToolCall) -> ToolMessage:
    """Return the result that the note of a background call has, as if it had come at once."""
    how, _, content = note.text.removeprefix(_background(call)).partition(": ")
    return ToolMessage(call_id=call.call_id, name=call.name, content=content, is_error=how == "failed")


def _background(call: ToolCall) -> str:
    return f"A call in the background has ended. {_asked(call.name, call.arguments)} "


def late_note_id(call_id: str) -> str:
    """Return the `message_id` of the note with a late result."""
    return f"{call_id}_l"


def late_note(call_id: str, name: str, arguments: str, outcome: TerminalEvent | ToolCallLate) -> SystemMessage:
    """Return the note with a result that came too late for its request, for the next turn of the conversation."""
    result = _result(outcome, DEFAULT_RESULT_CHARS)
    text = f"A call that was given up earlier has ended since. {_asked(name, arguments)} {result}"
    return SystemMessage(text=text, message_id=late_note_id(call_id))


def _asked(name: str, arguments: str) -> str:
    return f"{name}({shorten(arguments, _ARGUMENT_CHARS)})"


def _result(outcome: TerminalEvent | ToolCallLate, max_chars: float) -> str:
    if isinstance(outcome, (ToolCallCompleted, ToolCallLate)):
        content = outcome.content
        return f"gave: {shorten(content, int(max_chars)) if len(content) > max_chars else content}" + _left_out(
            outcome.parts
        )
    return f"failed: {failure_content(outcome.reason, outcome.error)}"


def _left_out(parts: Sequence[object]) -> str:
    """Return a remark on the images and files that a note cannot show, since no vendor accepts them in a note."""
    return f"\n(images and files left out: {len(parts)})" if parts else ""
