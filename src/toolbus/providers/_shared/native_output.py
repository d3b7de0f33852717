"""Structured output by a feature of the vendor: the form in which a schema is sent, and servers that refuse it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from ...core.output import FINAL_ANSWER
from ...errors import NativeOutputUnsupported, ProviderError, ProviderRejected, ProviderUnavailable
from ...messages import Message, SystemMessage
from ...protocols import ModelRequest, NativeOutput
from ...records import replace
from .strict_schema import OPENAI, strict_schema

_MAX_SCHEMAS = 256
_STATUSES = frozenset({None, 400, 404, 405, 415, 422, 500, 501})
_IN_STREAM = "broke its reply off"  # part of the message of `ErrorTranslator.in_stream`
# Servers write of the parameter: "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this
# model" (OpenAI), "`response_format` does not support streaming" (Groq), "This response_format type is unavailable now"
# (DeepSeek), "'claude-3-haiku' does not support output format" (Anthropic).
_PARAMETER = re.compile(
    r"response[_ ]format|text\.format|output_config(?!\.effort)|output[_ ]format|json_schema|structured[ _]outputs?",
    re.IGNORECASE,
)
# Servers write of the schema: "Invalid schema for response_format 'final_answer'" (OpenAI), "Schema is too complex"
# (Anthropic), "invalid JSON schema in format" (Ollama), "failed to parse grammar" (llama.cpp).
_SCHEMA = re.compile(r"\bschemas?\b(?! for (?:function|tool))|\bgrammar\b", re.IGNORECASE)


def json_schema_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema in the form of OpenAI's two APIs: strict if the strict dialect can express it."""
    strict = strict_schema(schema, OPENAI)
    wire = dict(schema) if strict is None else strict
    return {"name": FINAL_ANSWER, "schema": wire, "strict": strict is not None}


def messages_with_schema(request: ModelRequest) -> Sequence[Message]:
    """Return the request's messages, with the output's schema, if there is one, added to the instructions.

    For servers that constrain the reply without showing the schema to the model, and for those that ignore the schema.
    """
    messages, schema = request.messages, request.output_schema
    if schema is None:
        return messages
    instruction = f"Answer with JSON of this schema, and with nothing else:\n{_key(schema).decode()}"
    if messages and isinstance(first := messages[0], SystemMessage):
        return [replace(first, text=f"{first.text}\n\n{instruction}"), *messages[1:]]
    return [SystemMessage(text=instruction), *messages]


class RefusedSchemas:
    """The schemas for structured output that one server has refused, so that it is not asked for them again."""

    def __init__(self) -> None:
        self._all = False
        self._schemas: dict[bytes, None] = {}

    def remaining(self, schema: Mapping[str, Any], able: NativeOutput) -> NativeOutput:
        """Return `able`, or an empty text if the server has refused this schema or every schema."""
        if not self._all and not self._schemas:
            return able
        return "" if self._all or _key(schema) in self._schemas else able

    def classified(self, request: ModelRequest, error: ProviderError) -> ProviderError:
        """Return the error, or `NativeOutputUnsupported` if the server refuses the request's schema.

        A refusal is remembered: see `remaining`.
        """
        schema = request.output_schema
        if schema is None or not _is_about_schema(error):
            return error
        if _SCHEMA.search(str(error)):
            if len(self._schemas) >= _MAX_SCHEMAS:
                self._schemas.clear()
            self._schemas[_key(schema)] = None
        else:
            self._all = True
        return NativeOutputUnsupported(
            f"{error}; the server does not accept the schema of output= (output_mode='tool' asks for a call instead)",
            vendor=error.vendor,
            status=error.status,
        )


def _key(schema: Mapping[str, Any]) -> bytes:
    return orjson.dumps(schema, default=dict)


def _is_about_schema(error: ProviderError) -> bool:
    text = str(error)
    if not isinstance(error, (ProviderRejected, ProviderUnavailable)) or error.status not in _STATUSES:
        return False
    if error.status is None and _IN_STREAM not in text:
        return False
    return bool(_PARAMETER.search(text) or _SCHEMA.search(text))
