"""How much of a tool's result is sent to the model, and whether it may ever be less than all of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ..messages import Message, ToolMessage
from ..protocols import ToolSpec
from .read_result import READ_RESULT
from .shorten import MIN_CHARS

__all__ = ["DEFAULT_RESULT_CHARS", "is_of_interest", "most_chars", "spec_of"]

DEFAULT_RESULT_CHARS = 4_000
"""How much of one result is sent, in characters, unless the request or the tool says otherwise."""


def is_of_interest(message: Message, specs: Mapping[str, ToolSpec], max_result_chars: int) -> bool:
    """Whether there may ever be something to shorten once this message is there; without such, no history is kept."""
    if not isinstance(message, ToolMessage):
        return False
    spec = specs.get(message.name)
    if spec is not None and spec.kind:
        return True
    return len(message.content) > MIN_CHARS and len(message.content) > most_chars(spec, max_result_chars)


def most_chars(spec: ToolSpec | None, default: int) -> float:
    """How much of a result of this tool is sent; infinite where it is never cut."""
    if spec is None:
        return default
    if spec.control == "read" or (spec.sensitive_history and spec.max_result_chars is None):
        return float("inf")  # a page is as long as it may be
    return default if spec.max_result_chars is None else spec.max_result_chars


def spec_of(message: ToolMessage, specs: Mapping[str, ToolSpec]) -> ToolSpec | None:
    """The result's tool: one of `specs`, or the one that sessions offer to read results with."""
    spec = specs.get(message.name)
    return READ_RESULT if spec is None and message.name == READ_RESULT.name else spec
