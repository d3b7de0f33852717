"""Conversations that are too long for a window, and the messages that a model is sent of them."""

from __future__ import annotations

from typing import Any

from toolbus.core.transcript import validate
from toolbus.errors import ContextOverflow
from toolbus.messages import AssistantMessage, Message, UserMessage
from toolbus.testing import ScriptedProvider, error

from .wire_oracle import check_wires


def talk(turns: int) -> list[Message]:
    made: list[Message] = []
    for number in range(turns):
        made += [UserMessage(content=f"question {number} " * 30), AssistantMessage(text="answer " * 60)]
    return [*made, UserMessage(content="and now?")]


def sent(provider: ScriptedProvider, number: int = -1) -> list[Message]:
    """Return the messages that the model was sent. They are valid for every vendor."""
    messages = list(provider.requests[number].messages)
    validate(messages)
    check_wires(messages)
    return messages


def too_long(limit_tokens: int | None = None) -> Any:
    return error(ContextOverflow("prompt is too long", vendor="test", status=400, limit_tokens=limit_tokens))
