"""Structured output by the vendors' own means: what is sent of a schema, and servers that do not take it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from ...core.output import FINAL_ANSWER
from ...errors import NativeOutputUnsupported, ProviderError, ProviderRejected, ProviderUnavailable
from ...messages import Message, SystemMessage
from ...protocols import ModelRequest, NativeOutput
from .strict_schema import OPENAI, strict_schema

__all__ = ["RefusedSchemas", "json_schema_format", "messages_with_schema", "with_extra"]

_MOST_SCHEMAS = 256
_STATUSES = frozenset({None, 400, 404, 405, 415, 422, 500, 501})
_IN_STREAM = "broke its reply off"  # the words of `ErrorTranslator.in_stream`
# What servers say of the parameter: "Invalid parameter: 'response_format' of type 'json_schema' is not supported with
# this model" (OpenAI), "`response_format` does not support streaming" (Groq), "This response_format type is unavailable
# now" (DeepSeek), "'claude-3-haiku' does not support output format" (Anthropic).
_PARAMETER = re.compile(
    r"response[_ ]format|text\.format|output_config(?!\.effort)|output[_ ]format|json_schema|structured[ _]outputs?",
    re.IGNORECASE,
)
# And of the schema: "Invalid schema for response_format 'final_answer'" (OpenAI), "Schema is too complex" (Anthropic),
# "invalid JSON schema in format" (Ollama), "failed to parse grammar" (llama.cpp).
_SCHEMA = re.compile(r"\bschemas?\b(?! for (?:function|tool))|\bgrammar\b", re.IGNORECASE)


def json_schema_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema as OpenAI's two APIs take it: strict where it can be."""
    strict = strict_schema(schema, OPENAI)
    wire = dict(schema) if strict is None else strict
    return {"name": FINAL_ANSWER, "schema": wire, "strict": strict is not None}


def messages_with_schema(request: ModelRequest) -> Sequence[Message]:
    """The request's messages; the instructions show the model the output's schema, where there is one.

    For servers that hold the reply to it without a word to the model, and for those that ignore it.
    """
    messages, schema = request.messages, request.output_schema
    if schema is None:
        return messages
    told = f"Answer with JSON of this schema, and with nothing else:\n{_key(schema).decode()}"
    if messages and isinstance(first := messages[0], SystemMessage):
        return [replace(first, text=f"{first.text}\n\n{told}"), *messages[1:]]
    return [SystemMessage(text=told), *messages]


def with_extra(body: Mapping[str, Any], extra: Mapping[str, Any] | None, place: str) -> dict[str, Any]:
    """The body with `extra_body` over it; under `place`, where the output's schema stands among others, one by one."""
    if not extra:
        return dict(body)
    merged = {**body, **extra}
    if isinstance(extra.get(place), Mapping) and place in body:
        merged[place] = {**body[place], **extra[place]}
    return merged


class RefusedSchemas:
    """What one server has refused of structured output, so that it is not asked for that again."""

    __slots__ = ("_all", "_schemas")

    def __init__(self) -> None:
        self._all = False
        self._schemas: dict[bytes, None] = {}

    def left(self, schema: Mapping[str, Any], able: NativeOutput) -> NativeOutput:
        """`able`, unless the server has refused the schema, or any."""
        if not self._all and not self._schemas:
            return able
        return "" if self._all or _key(schema) in self._schemas else able

    def judged(self, request: ModelRequest, error: ProviderError) -> ProviderError:
        """The error; `NativeOutputUnsupported`, which is remembered, where the server refuses the request's schema."""
        schema = request.output_schema
        if schema is None or not _is_about_schema(error):
            return error
        if _SCHEMA.search(str(error)):
            if len(self._schemas) >= _MOST_SCHEMAS:
                self._schemas.clear()
            self._schemas[_key(schema)] = None
        else:
            self._all = True
        return NativeOutputUnsupported(
            f"{error}; the server does not take the schema of output= (output_mode='tool' asks for a call instead)",
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
