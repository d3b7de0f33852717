"""Events, messages and documents as lines of text."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolbus import RequestResult
from toolbus.core.plain_text import clean, clip, one_line
from toolbus.events import (
    ApprovalRequested,
    Event,
    RequestResumed,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallProgress,
    ToolCallRequested,
    ToolCallRetrying,
)
from toolbus.messages import Message, to_openai

__all__ = ["SHOWN", "as_sent", "as_stored", "ending", "line", "question"]

SHOWN: tuple[type[Event], ...] = (
    ToolCallRequested,
    ToolCallProgress,
    ToolCallRetrying,
    ToolCallCompleted,
    ToolCallFailed,
    RequestResumed,
)
_WIDTH = 98


def line(event: Event) -> str:
    """Describe one of the `SHOWN` events."""
    match event:
        case ToolCallRequested():
            arguments = ", ".join(f"{name}={_json(value)}" for name, value in event.arguments.items())
            return _clipped(f"  call {event.name}({arguments})")
        case ToolCallProgress():
            return _clipped(f"    {event.message}")
        case ToolCallRetrying():
            return _clipped(f"    tries again: {event.error}")
        case ToolCallCompleted():
            return _clipped(f"  result {event.content}")
        case ToolCallFailed():
            return _clipped(f"  failed {event.error}")
        case RequestResumed():
            return "  continues after a restart"
        case _:
            raise TypeError(event)


def question(asked: ApprovalRequested) -> str:
    """The question to a person."""
    return f"  May {asked.name} run with {one_line(_json(asked.arguments))}? y or n:"


def ending(result: RequestResult[Any]) -> str:
    """The answer, or the reason why there is no answer."""
    if result.ok:
        return f"Assistant: {clean(result.text)}"
    return f"Assistant: [{result.explanation}]"


def as_stored(documents: Iterable[Mapping[str, Any]]) -> str:
    """Documents of messages, without the fields that only toolbus uses."""
    lines: list[str] = []
    for document in documents:
        kept: Mapping[str, Any] = document.get("data") or {}
        data = {name: value for name, value in kept.items() if name != "toolbus"}
        shown = {name: document.get(name) for name in ("sender", "content", "messageType")}
        lines.append(_wrapped({**shown, "data": data} if data else shown))
    return "\n".join(lines)


def as_sent(messages: Sequence[Message]) -> str:
    """Messages in the form in which OpenAI takes them."""
    return "\n".join(_wrapped(each) for each in to_openai(messages))


def _wrapped(value: Any) -> str:
    return textwrap.fill(
        one_line(_json(value)),
        _WIDTH,
        initial_indent="  ",
        subsequent_indent=" " * 6,
        max_lines=5,
        placeholder=" …",
        break_on_hyphens=False,
    )


def _clipped(text: str) -> str:
    margin = " " * (len(text) - len(text.lstrip()))
    return clip(f"{margin}{one_line(text)}", _WIDTH)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
