"""A request's facts, and a conversation's messages, as lines for people. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, cast

from ...core.plain_text import clean, one_line
from ...events import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    Event,
    HistoryCompressed,
    ModelResponded,
    ModelRetrying,
    PlanChanged,
    RequestEnding,
    RequestFailed,
    RequestResumed,
    RequestStarted,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from ...messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage
from ...status import display_name
from .text import arguments_line, counted, cut, duration, indented

_MAX_MESSAGE_LINES = 12
_MAX_MESSAGE_CHARS = 600
_MAX_TEXT_CHARS = 160  # characters of a text in a line


def timeline(facts: Sequence[Event], width: int) -> Iterator[str]:
    """Yield a line for each fact that matters to people, with the seconds since the first fact."""
    for fact in facts:
        if described := _described(fact):
            yield cut(f"{fact.at - facts[0].at:10.3f}s  {described}", width)


def _described(fact: Event) -> str:
    name = display_name(getattr(fact, "name", "") or "")
    if isinstance(fact, RequestStarted):
        return f"asked: {_line(fact.prompt)}"
    if isinstance(fact, RequestResumed):
        return f"resumed by another process (resumption {fact.resumption})"
    if isinstance(fact, ModelResponded):
        return _reply(fact)
    if isinstance(fact, ModelRetrying):
        return f"the model is asked again: {_line(fact.error or fact.reason)}"
    if isinstance(fact, ToolCallRequested):
        return f"→ {name}  {arguments_line(fact.arguments)}"
    if isinstance(fact, ToolCallCompleted):
        return f"✓ {name}  {duration(fact.duration_seconds)}  {_line(fact.content)}"
    if isinstance(fact, ToolCallFailed):
        return f"✗ {name}  {fact.reason}: {_line(fact.error)}" + (f" ({_line(fact.detail)})" if fact.detail else "")
    if isinstance(fact, ApprovalRequested):
        return f"? {name}  {arguments_line(fact.arguments)}"
    if isinstance(fact, ApprovalDecided):
        return f"{'approved' if fact.approved else 'denied'} by {_line(fact.by) or 'nobody'}" + (
            f": {_line(fact.reason)}" if fact.reason else ""
        )
    if isinstance(fact, CancelRequested | RequestEnding):
        return _ending(fact)
    if isinstance(fact, (HistoryCompressed, PlanChanged, SteeringAdded)):
        return str(fact.type).replace("_", " ") + (f": {_line(fact.text)}" if isinstance(fact, SteeringAdded) else "")
    return ""


def _reply(fact: ModelResponded) -> str:
    message: Any = fact.message
    calls = len(getattr(message, "tool_calls", ()))
    asked = f", asks for {counted(calls, 'call')}" if calls else ""
    text = _line(getattr(message, "text", "") or "")
    did = "was interrupted" if fact.finish_reason == "interrupted" else "answered"
    return f"the model {did}{asked}{': ' if text else ''}{text}"


def _ending(fact: CancelRequested | RequestEnding) -> str:
    reason = f": {_line(fact.reason)}" if fact.reason else ""
    if isinstance(fact, CancelRequested):
        return f"asked to cancel{reason}"
    error = f": {_line(fact.error)}" if isinstance(fact, RequestFailed) else ""
    return f"{fact.outcome}{reason}{error}"


def _line(text: str) -> str:
    return one_line(text[:_MAX_TEXT_CHARS])


def message_lines(messages: Sequence[Message], width: int, *, whole: bool = False) -> Iterator[str]:
    """Yield the messages, each after a line with its role. Long messages are cut unless `whole` is set."""
    for number, message in enumerate(messages):
        if number:
            yield ""
        if isinstance(message, UserMessage):
            yield "user"
            yield from _block(message.text, width, whole=whole)
        elif isinstance(message, AssistantMessage):
            yield "assistant"
            yield from _block(message.text, width, whole=whole)
            for call in message.tool_calls:
                yield cut(f"  → {display_name(call.name)}  {_arguments(call.arguments)}", width)
        elif isinstance(message, ToolMessage):
            yield f"{display_name(message.name)}{' (failed)' if message.is_error else ''}"
            yield from _block(message.content, width, whole=whole)
        else:
            assert isinstance(message, SystemMessage)
            yield "system"
            yield from _block(message.text, width, whole=whole)


def _arguments(written: str) -> str:
    """Return a call's arguments on one line. In a model's reply they are text, and usually JSON."""
    try:
        found = json.loads(written)
    except (ValueError, RecursionError):
        found = None
    return arguments_line(cast("dict[str, Any]", found) if isinstance(found, dict) else written)


def _block(text: str, width: int, *, whole: bool) -> Iterator[str]:
    shown = clean(text)
    if not whole:
        shown = "\n".join(shown[:_MAX_MESSAGE_CHARS].splitlines()[:_MAX_MESSAGE_LINES])
    for line in shown.splitlines():
        yield from indented(line, width).splitlines() or [""]
    if left := len(clean(text).rstrip()) - len(shown.rstrip()):
        yield f"  … {left:,} more characters (--whole shows them)"
