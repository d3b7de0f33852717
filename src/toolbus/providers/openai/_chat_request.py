"""The body of a chat-completions request, with the differences between OpenAI and compatible servers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from ...messages import FilePart, Part, TextPart, to_openai
from ...messages.wire import file_as_text
from ...protocols import ModelRequest, ToolSpec
from .._shared.native_output import json_schema_format, messages_with_schema
from .._shared.request_parts import (
    forced_tool,
    given,
    in_template_order,
    map_parts,
    named_file,
    shown_image,
    with_extra,
)
from .._shared.tool_schema import offered_schema

_UNSIGNED = re.compile(r"gemini-[12]|gemma")  # models that do not check signatures
_OWN_HOSTS = (
    "api.openai.com",
    ".api.openai.com",
    *(f".openai.azure.{land}" for land in ("com", "us", "cn")),
    ".cognitiveservices.azure.com",
)
# These models of OpenAI have only chat completions.
_CHAT_ONLY = re.compile(r"gpt-audio|-audio-|-search-(?:preview|api)|o1-mini")


def is_openai(base_url: str) -> bool:
    """Return whether the URL belongs to OpenAI or Azure; all others get the dialect of compatible servers."""
    host = urlsplit(base_url).hostname or ""
    return host == _OWN_HOSTS[0] or host.endswith(_OWN_HOSTS[1:])


def has_responses(base_url: str, model: str) -> bool:
    """Return whether the URL belongs to OpenAI itself, and the model can be asked by Responses, as nearly all can."""
    host = urlsplit(base_url).hostname or ""
    return (host == _OWN_HOSTS[0] or host.endswith(_OWN_HOSTS[1])) and not _CHAT_ONLY.search(model)


def request_body(
    model: str,
    request: ModelRequest,
    *,
    vendor: str,
    compatible: bool,
    include_usage: bool = True,
    reasoning_field: str | None = None,
    mistral_checks: bool = False,
    strict: bool = False,
) -> dict[str, Any]:
    """Return the request as a dictionary; the fields of `extra_body` override all others.

    `compatible` adapts the request to servers other than OpenAI: `max_tokens`, argument text in the history that they
    can parse, an order of messages that their templates accept, tool choices that they would ignore (see
    `tool_fields`), and the output's schema in the instructions.
    `strict` asks for arguments that keep to the schema.
    Raises `ConfigurationError` for a `tool_choice` that names a tool which is not offered.
    """
    settings = request.settings
    messages = _messages(request, model, vendor, reasoning_field, compatible=compatible, mistral_checks=mistral_checks)
    body: dict[str, Any] = {"model": model, "messages": messages, "stream": True}
    if include_usage:
        body["stream_options"] = {"include_usage": True}
    most = "max_tokens" if compatible else "max_completion_tokens"
    body |= given(
        {
            "temperature": settings.temperature,
            most: settings.max_output_tokens,
            "reasoning_effort": settings.reasoning_effort,
        }
    )

    def wire(tool: ToolSpec) -> dict[str, Any]:
        return {"type": "function", "function": function_fields(tool) | ({"strict": True} if strict else {})}

    body |= tool_fields(request, wire, _named, compatible=compatible)
    if request.output_schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": json_schema_format(request.output_schema)}
    return with_extra(body, settings.extra_body)


def _messages(
    request: ModelRequest,
    model: str,
    vendor: str,
    reasoning_field: str | None,
    *,
    compatible: bool,
    mistral_checks: bool,
) -> list[dict[str, Any]]:
    wire = to_openai(
        map_parts(in_template_order(messages_with_schema(request)) if compatible else request.messages, _shown),
        vendor=vendor,
        reasoning_field=reasoning_field,
        valid_arguments=compatible,
        mistral_checks=mistral_checks,
        model=model,
    )
    signed = vendor == "gemini" and not _UNSIGNED.search(model)
    for message in wire:
        if message["role"] == "assistant":
            _complete(message, signed=signed, reasoning_field=reasoning_field)
        elif compatible and isinstance(content := message["content"], list):
            message["content"] = _as_text(content)
    return wire


def _complete(reply: dict[str, Any], *, signed: bool, reasoning_field: str | None) -> None:
    """Add to a reply of another model the fields without which a server refuses it.

    Gemini checks the signature of the first call of a reply, and has a value for calls that are not its own. DeepSeek
    and Kimi check that there is reasoning, and refuse empty text.
    """
    if signed and (calls := reply.get("tool_calls")):
        calls[0].setdefault("extra_content", {"google": {"thought_signature": "skip_thought_signature_validator"}})
    if reasoning_field == "reasoning_content":
        reply.setdefault(reasoning_field, " ")


def _as_text(content: Any) -> Any:
    """Return parts that are all text as one text, since many servers accept only that ("expected a string")."""
    if any(part["type"] != "text" for part in content):
        return content
    return "\n".join(part["text"] for part in content)


def _shown(part: Part) -> Part:
    """Return the part as chat completions accept it: images of four types, PDF, audio, and text files as text."""
    if isinstance(part, FilePart) and (part.media_type.startswith("text/") or not part.url.startswith("data:")):
        return TextPart(text=file_as_text(part))
    return named_file(shown_image(part))


def tool_fields(
    request: ModelRequest,
    wire: Callable[[ToolSpec], dict[str, Any]],
    named: Callable[[str], dict[str, Any]],
    *,
    compatible: bool,
) -> dict[str, Any]:
    """Return the fields `tools`, `tool_choice` and `parallel_tool_calls`; none of them without tools.

    `wire` converts a tool to the API's form, and `named` makes the choice of one tool by its name. Some compatible
    servers treat a forced function as "auto", and let a model that may not call tools write calls as text. All of them
    respect the list of offered tools: so a forced tool is the only one offered, and "none" offers none. Raises
    `ConfigurationError` for the name of a tool that is not offered.
    """
    tools, settings = request.tools, request.settings
    choice: object = settings.tool_choice
    if not tools or (choice == "none" and compatible):
        return {}
    if forced := forced_tool(tools, settings.tool_choice):
        tools, choice = ((forced,), "required") if compatible else (tools, named(forced.name))
    more = {"tool_choice": choice, "parallel_tool_calls": settings.parallel_tool_calls}
    return {"tools": [wire(tool) for tool in tools], **given(more)}


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def function_fields(tool: ToolSpec) -> dict[str, Any]:
    """Return the name, the parameters and the description of a tool."""
    return given(
        {"name": tool.name, "parameters": offered_schema(tool.parameters), "description": tool.description or None}
    )
