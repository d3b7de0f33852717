"""The text that a model wrote and its server could not read, as Groq reports it. Pure.

The server answers 400, or breaks its stream off, and quotes the model's text (`failed_generation`). The mistake is the
model's own, like any invalid call and any answer that breaks its schema: so the text goes unchanged to the turn
machine, which reports the mistake to the model. Calls were seen as JSON, also with malformed arguments, and in the tags
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

TOOL_USE_FAILED, INVALID_JSON = "tool_use_failed", "json_validate_failed"
CODES = frozenset({TOOL_USE_FAILED, INVALID_JSON, "output_parse_failed"})
"""Groq's codes for a model's text that the server could not read; another attempt may succeed."""

_MAX_CHARS = 2**20  # far beyond the length at which any server cuts a reply
_TAG, _TAG_END = "<function=", "</function"
_NAME = re.compile(r"\s*(?P<name>[\w.-]{1,128})[\s>,(\[]{0,16}(?=\{)")
_HALF_JSON = re.compile(
    r'\{\s{0,16}"name"\s{0,16}:\s{0,16}"(?P<name>[^"]{1,128})"\s{0,16},\s{0,16}"(?:arguments|parameters)"\s{0,16}:'
)


class FailedGeneration(ProviderUnavailable):
    """The server could not read its model's calls or answer. If it quotes neither, the model is asked again."""

    def __init__(
        self, message: str, *, vendor: str, status: int | None, codes: Collection[str], generation: object
    ) -> None:
        super().__init__(message, vendor=vendor, status=status, retryable=True)
        self.calls = failed_calls(generation) if TOOL_USE_FAILED in codes else ()
        self.text = generation if INVALID_JSON in codes and isinstance(generation, str) else None

    def reply(self, said: str, *, model: str, emit: Emit, offered: Collection[str]) -> ModelReply | None:
        """Return the reply that the model meant, or None; `said` is the text that came before the failure.

        Calls count only if tools are `offered`. Text that was not streamed is emitted.
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
    """Return the calls in a model's text, with their arguments as the model wrote them; empty if none is recognized."""
    if not isinstance(generation, str) or len(generation) > _MAX_CHARS:
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
    """Return the call between Llama's tags, whose brackets may be wrong in many ways."""
    head = _NAME.match(text)
    if head is None:
        return None
    arguments = text[head.end() :].partition(_TAG_END)[0].strip()
    try:
        value: Any = json.JSONDecoder().raw_decode(arguments)[0]
    except (ValueError, RecursionError):
        return ToolCall(name=head["name"], arguments=encodable_json(arguments))
    return ToolCall(name=head["name"], arguments=encodable_json(json.dumps(value, ensure_ascii=False)))
