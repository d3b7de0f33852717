"""The body of a request to the OpenAI Responses API."""

from __future__ import annotations

import re
from typing import Any

from ...messages import Part, to_openai_responses
from ...protocols import ModelRequest, ToolSpec
from .._shared.native_output import json_schema_format, messages_with_schema
from .._shared.request_parts import given, in_template_order, map_parts, named_file, shown_image, with_extra
from ._chat_request import function_fields, tool_fields

# These models of OpenAI do not reason, and refuse a request for encrypted reasoning.
_NO_REASONING = re.compile(r"(ft:)?(gpt-3|gpt-4|gpt-5-chat|chatgpt-4)")
_MIN_TOKENS = 16  # "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16"


def reasons(model: str) -> bool:
    """Return whether a model may reason, judging by its name: all may, except for OpenAI's older models."""
    return _NO_REASONING.match(model) is None


def response_body(
    model: str,
    request: ModelRequest,
    *,
    vendor: str,
    compatible: bool,
    encrypted_reasoning: bool | None,
    reasoning_summary: str | None,
    strict: bool = False,
) -> dict[str, Any]:
    """Return the request as a dictionary; the fields of `extra_body` override all others.

    Nothing is stored at the vendor: the whole transcript is sent each time, with encrypted reasoning; where
    `encrypted_reasoning` is None, the name of the model decides. `compatible` is as for chat completions. `strict` is
    always sent, since the API's own default is strict and changes the schema.
    Raises `ConfigurationError` for a `tool_choice` that names a tool which is not offered.
    """
    settings = request.settings
    if encrypted_reasoning is None:
        encrypted_reasoning = reasons(model)
    # OpenAI's models that do not reason refuse the reasoning of others, and without its encrypted form it is useless.
    reasoning_back = encrypted_reasoning or (compatible and reasons(model))
    body: dict[str, Any] = {
        "model": model,
        "input": to_openai_responses(
            map_parts(in_template_order(messages_with_schema(request)) if compatible else request.messages, _shown),
            vendor=vendor,
            valid_arguments=compatible,
            reasoning=reasoning_back,
        ),
        "stream": True,
        "store": False,
    }
    if encrypted_reasoning:
        body["include"] = ["reasoning.encrypted_content"]
    limit = settings.max_output_tokens
    reasoning = given({"effort": settings.reasoning_effort, "summary": reasoning_summary})
    body |= given(
        {
            "temperature": settings.temperature,
            "max_output_tokens": limit if limit is None or compatible else max(limit, _MIN_TOKENS),
            "reasoning": reasoning or None,
        }
    )

    def wire(tool: ToolSpec) -> dict[str, Any]:
        return {"type": "function", **function_fields(tool), "strict": strict}

    body |= tool_fields(request, wire, _named, compatible=compatible)
    if request.output_schema is not None:
        body["text"] = {"format": {"type": "json_schema", **json_schema_format(request.output_schema)}}
    return with_extra(body, settings.extra_body, "text")


def _shown(part: Part) -> Part:
    return named_file(shown_image(part))


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "name": name}
