"""The body of a Messages-API request, with the API's requirements and the marks for its prompt cache."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from ...messages import FilePart, ImagePart, Message, Part, TextPart, ToolMessage, to_anthropic
from ...messages.wire import decoded_text, file_as_text, split_data_url
from ...protocols import ModelRequest, ModelSettings, ToolSpec
from ...records import replace
from .._shared.native_output import messages_with_schema
from .._shared.request_parts import forced_tool, given, map_parts, shown_image, with_extra
from .._shared.strict_schema import ANTHROPIC, strict_schema
from .._shared.tool_schema import offered_schema

MAX_OUTPUT_TOKENS = 16_384
"""The limit of a reply for requests that do not state one, since the API requires it: enough for thinking and a long
answer, and below the smallest limit of a current model (32,000)."""

Cache: TypeAlias = Literal["auto", "1h", "off"]
"""The lifetime of the prompt cache: five minutes, an hour, or no cache."""

_Block: TypeAlias = dict[str, Any]

_BUDGETS = {"low": 2048, "medium": 6144, "high": 12_288}
_MAX_BUDGET = 14_336
_MIN_BUDGET = 1024  # the API requires at least this budget, and one below max_tokens
_CALL_BLOCKS = frozenset({"tool_use", "tool_result"})


def request_body(
    model: str,
    request: ModelRequest,
    *,
    max_output_tokens: int,
    cache: Cache,
    server_tools: Sequence[Mapping[str, Any]] = (),
    compatible: bool = False,
) -> dict[str, Any]:
    """Return the request as a dictionary; the fields of `extra_body` override all others.

    A text replaces images and files of types that the API refuses. A history with calls is sent with tools, as the API
    requires, even if the request offers none: then only with their names, and with `tool_choice` none. For servers that
    are only `compatible`, the output's schema is in the instructions as well.
    Raises `ConfigurationError` for a `tool_choice` that names a tool which is not offered.
    """
    settings = request.settings
    messages = messages_with_schema(request) if compatible else request.messages
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": max_output_tokens if settings.max_output_tokens is None else settings.max_output_tokens,
        **to_anthropic(map(_without_files_in_errors, map_parts(messages, _shown)), model=model),
        "stream": True,
    }
    tools = [_wire(tool) for tool in request.tools]
    choice = _choice(request.tools, settings)
    if not tools and (names := _called(body["messages"])):
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in names]
        choice = None if server_tools else {"type": "none"}
    if tools or server_tools:
        body["tools"] = [*tools, *(dict(each) for each in server_tools)]
    if choice:
        body["tool_choice"] = choice
    forced = bool(choice) and choice["type"] in {"any", "tool"}
    body |= _thinking(model, settings.reasoning_effort, body["max_tokens"], forced=forced)
    body |= given({"temperature": settings.temperature})
    if request.output_schema is not None:
        schema = strict_schema(request.output_schema, ANTHROPIC) or dict(request.output_schema)
        body["output_config"] = {**body.get("output_config", {}), "format": {"type": "json_schema", "schema": schema}}
    extra = settings.extra_body or {}
    if cache != "off" and "cache_control" not in extra:
        _mark(body, {"type": "ephemeral"} if cache == "auto" else {"type": "ephemeral", "ttl": cache})
    return with_extra(body, extra, "output_config")


# ------------------------------------------------------------------------------------------------- tools


def _wire(tool: ToolSpec) -> dict[str, Any]:
    return given(
        {"name": tool.name, "input_schema": offered_schema(tool.parameters), "description": tool.description or None}
    )


def _choice(tools: Sequence[ToolSpec], settings: ModelSettings) -> dict[str, Any] | None:
    """Return `tool_choice`, which can also forbid parallel calls; None where the API's default is right."""
    choice = settings.tool_choice
    if not tools:
        return None
    if choice is None and settings.parallel_tool_calls is not False:
        return None
    if choice == "none":
        return {"type": "none"}
    wire: dict[str, Any] = {"type": "any" if choice == "required" else "auto"}
    if forced := forced_tool(tools, choice):
        wire = {"type": "tool", "name": forced.name}
    if settings.parallel_tool_calls is not None:
        wire["disable_parallel_tool_use"] = not settings.parallel_tool_calls
    return wire


def _called(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the tools that a history calls; a placeholder if it has results without their calls."""
    found: dict[str, None] = {}
    for block in _blocks(messages):
        if block["type"] in _CALL_BLOCKS:
            found[block.get("name", "")] = None
    names = [name for name in found if name]
    return names or ["unknown"] * bool(found)


def _blocks(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for message in messages:
        if isinstance(message["content"], list):
            yield from message["content"]


# ---------------------------------------------------------------------------------------------- thinking


def _thinking(model: str, effort: str | None, max_tokens: int, *, forced: bool) -> dict[str, Any]:
    """Return the fields for the amount of thinking: a budget of tokens for models up to 4.5, `effort` for later ones.

    The API refuses thinking together with a tool choice that forces a call; thinking is left out then.
    """
    if effort is None:
        return {}
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    if not _thinks_by_budget(model):
        adaptive = {} if forced else {"thinking": {"type": "adaptive", "display": "summarized"}}
        return {**adaptive, "output_config": {"effort": effort}}
    budget = min(_BUDGETS.get(effort, _MAX_BUDGET), max_tokens - 1024)
    if forced or budget < _MIN_BUDGET:
        return {}
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


def _thinks_by_budget(model: str) -> bool:
    found = re.search(r"claude-(?:3-7|(?:opus|sonnet|haiku)-4(?:-(\d))?(?!\d))", model)
    return found is not None and int(found[1] or 0) <= 5


# ------------------------------------------------------------------------------------------ images and files


def _shown(part: Part) -> Part:
    if not isinstance(part, FilePart):
        return shown_image(part)
    media_type = part.media_type.partition(";")[0].lower()
    if media_type == "application/pdf":
        return part if part.media_type == media_type else replace(part, media_type=media_type)
    if media_type.startswith("text/"):
        part = replace(part, media_type=part.media_type.lower())
        inline = split_data_url(part.url)
        readable = inline is not None and decoded_text(inline[1]) is not None
        # The API accepts text files only in UTF-8, and no URLs of text files.
        return part if readable else TextPart(text=file_as_text(part))
    named = f"the file {part.name!r}" if part.name else "a file"
    return TextPart(text=f"[{named} of type {media_type}, not shown]")


def _without_files_in_errors(message: Message) -> Message:
    """Replace the parts of a failed result by text: "all content must be type `text` if `is_error` is true"."""
    if not isinstance(message, ToolMessage) or not message.is_error or not message.parts:
        return message
    return replace(message, parts=tuple(_as_text(part) for part in message.parts))


def _as_text(part: Part) -> Part:
    if isinstance(part, FilePart):
        return TextPart(text=file_as_text(part))
    return TextPart(text="[an image, not shown beside an error]") if isinstance(part, ImagePart) else part


# ----------------------------------------------------------------------------------------------- caching


def _mark(body: dict[str, Any], mark: Mapping[str, str]) -> None:
    """Mark the prefixes that the next request will share: tools, instructions, and the transcript so far.

    A mark finds prefixes that were cached up to twenty blocks before it (prompt caching, "lookback"), but a round of
    many calls has more blocks. So the end of the last request's transcript is marked again, which makes four marks, the
    maximum that the API allows. A tool with ``defer_loading`` is no part of the prefix, and must not have a mark.
    """
    tools: list[_Block] = body.get("tools", [])
    if loaded := [place for place, tool in enumerate(tools) if not tool.get("defer_loading")]:
        tools[loaded[-1]] = {**tools[loaded[-1]], "cache_control": dict(mark)}
    if system := body.get("system"):
        body["system"] = [{"type": "text", "text": system, "cache_control": dict(mark)}]
    asked = [message for message in body["messages"] if message["role"] == "user"]
    for message in asked[-2:]:
        content = message["content"]
        blocks: list[_Block] = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        blocks[-1] = {**blocks[-1], "cache_control": dict(mark)}
        message["content"] = blocks
