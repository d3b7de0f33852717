"""The number of characters of a tool's result that are sent to the model. Pure.

Example:
    from toolbus.core.result_size import DEFAULT_RESULT_CHARS, is_of_interest, max_chars_of, spec_of
    from toolbus.messages import ToolMessage

    print(max_chars_of(spec_of("read_log", {}), DEFAULT_RESULT_CHARS))  # 4000
    long = ToolMessage(content="a" * 10_000, call_id="c1", name="read_log")
    print(is_of_interest(long, {}, DEFAULT_RESULT_CHARS))  # True
"""

from __future__ import annotations

from collections.abc import Mapping

from ..messages import Message, ToolMessage
from ..protocols import ToolSpec
from .read_result import READ_RESULT
from .shorten import MIN_CHARS

__all__ = ["DEFAULT_RESULT_CHARS", "is_of_interest", "max_chars_of", "spec_of"]

DEFAULT_RESULT_CHARS = 4_000
"""Characters of one result that are sent, unless the request or the tool says otherwise."""


def is_of_interest(message: Message, specs: Mapping[str, ToolSpec], max_result_chars: int) -> bool:
    """Return whether this message may have to be shortened, now or later.

    While a transcript has no such message, no `History` is needed for it.
    """
    if not isinstance(message, ToolMessage):
        return False
    spec = specs.get(message.name)
    if spec is not None and spec.kind:
        return True
    # No bound is lower, and most results are shorter: this saves a call for each.
    return len(message.content) > MIN_CHARS and len(message.content) > max_chars_of(spec, max_result_chars)


def max_chars_of(spec: ToolSpec | None, default: int) -> float:
    """Return how many characters of a result of this tool are sent; infinity where results are never cut."""
    if spec is None:
        return default
    if spec.control == "read" or (spec.keep_full_results and spec.max_result_chars is None):
        return float("inf")  # A page of `read_result` has the right length already.
    return default if spec.max_result_chars is None else spec.max_result_chars


def spec_of(name: str, specs: Mapping[str, ToolSpec]) -> ToolSpec | None:
    """Return a result's tool: one of `specs`, or `read_result`, which sessions offer themselves; None if unknown."""
    spec = specs.get(name)
    return READ_RESULT if spec is None and name == READ_RESULT.name else spec
