"""What a model wrote and its server could not read, as Groq reports it. Pure.

The server answers 400, or breaks its stream off, and quotes what the model wrote (`failed_generation`). That is the
model's own mistake, like any call that is invalid and any answer that breaks its schema: it goes to the turn machine as
it is, which tells the model what is wrong. Calls were seen as JSON, also with arguments that are none, and in the tags
of Llama, `<function=name{...}</function>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from ...core.arguments import encodable_json
from ...errors import ProviderUnavailable
from ...messages import AssistantMessage, ToolCall
from ...protocols import Emit, ModelReply, TextPiece
from ._calls_in_text import calls_in_text

__all__ = ["CODES", "FailedGeneration", "failed_calls"]

TOOL_USE_FAILED, INVALID_JSON = "tool_use_failed", "json_validate_failed"
CODES = frozenset({TOOL_USE_FAILED, INVALID_JSON, "output_parse_failed"})
"""Groq's codes for what the model wrote and the server could not read; another attempt may go well."""

_MOST_CHARS = 2**20  # far beyond what any reply was cut to
_TAG, _TAG_END = "<function=", "</function"
_NAME = re.compile(r"\s*(?P<name>[\w.-]{1,128})[\s>,(\[]{0,16}(?=\{)")
_HALF_JSON = re.compile(
    r'\{\s{0,16}"name"\s{0,16}:\s{0,16}"(?P<name>[^"]{1,128})"\s{0,16},\s{0,16}"(?:arguments|parameters)"\s{0,16}:'
)


class FailedGeneration(ProviderUnavailable):
    """The server could not read what the model wrote: calls, or an answer. Without either, the model is asked again."""

    def __init__(
        self, message: str, *, vendor: str, status: int | None, codes: Collection[str], generation: object
    ) -> None:
        super().__init__(message, vendor=vendor, status=status, retryable=True)
        self.calls = failed_calls(generation) if TOOL_USE_FAILED in codes else ()
        self.text = generation if INVALID_JSON in codes and isinstance(generation, str) else None

    def reply(self, said: str, *, model: str, emit: Emit, offered: Collection[str]) -> ModelReply | None:
        """The reply that the model meant, or None; `said` is the text that came before the failure.

        Calls count only where tools are `offered`. Text that was not streamed is emitted.
        """
        if self.text is None and not (self.calls and offered):
            return None
        if self.text and not said:
            emit(TextPiece(self.text))
            said = self.text
        return ModelReply(
            message=AssistantMessage(text=said, tool_calls=self.calls),
            finish_reason="tool_calls" if self.calls else "stop",
            vendor_finish_reason=TOOL_USE_FAILED if self.calls else "",
            vendor=self.vendor,
            model=model,
        )


def failed_calls(generation: object) -> tuple[ToolCall, ...]:
    """The calls in what a model wrote, with their arguments as it wrote them; empty where no call can be made out."""
    if not isinstance(generation, str) or len(generation) > _MOST_CHARS:
        return ()
    text = generation.strip()
    if found := calls_in_text(text, None):
        return found
    if (half := _HALF_JSON.match(text)) and text.endswith("}"):
        return (ToolCall(name=half["name"], arguments=encodable_json(text[half.end() : -1].strip())),)
    if _TAG not in text and _TAG_END not in text:
        return ()
    parts = text.split(_TAG)[1:] if _TAG in text else [text]
    calls = [_tagged(part) for part in parts]
    return tuple(call for call in calls if call)


def _tagged(text: str) -> ToolCall | None:
    """The call that stands between Llama's tags, whose brackets are wrong in many ways."""
    head = _NAME.match(text)
    if head is None:
        return None
    arguments = text[head.end() :].partition(_TAG_END)[0].strip()
    try:
        value: Any = json.JSONDecoder().raw_decode(arguments)[0]
    except (ValueError, RecursionError):
        return ToolCall(name=head["name"], arguments=encodable_json(arguments))
    return ToolCall(name=head["name"], arguments=encodable_json(json.dumps(value, ensure_ascii=False)))
