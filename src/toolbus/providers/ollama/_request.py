"""Builds the body of a native chat request. Knows what Ollama takes, and what it drops in silence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ...messages import to_ollama
from ...protocols import ModelRequest, ToolSpec
from .._shared.native_output import messages_with_schema
from .._shared.parts import presentable, shown_image
from .._shared.tool_choice import forced_tool
from .._shared.wire_text import as_object

__all__ = ["request_body"]

_MOST_REFERENCES = 1_000  # definitions that refer to each other twice double with each step


def request_body(
    model: str, request: ModelRequest, *, context_tokens: int | None, keep_alive: float | str | None
) -> dict[str, Any]:
    """The request as a dictionary; `extra_body` goes over everything else, its `options` over ours one by one.

    `truncate: false` asks for an error where the messages do not fit the window, instead of leaving the oldest out in
    silence, which is the server's default (api/types.go of ollama/ollama; servers before 0.12.6 do not know it).
    Raises `ConfigurationError` for a `tool_choice` that names a tool which is not offered.
    """
    settings = request.settings
    body: dict[str, Any] = {
        "model": model,
        "messages": to_ollama(presentable(messages_with_schema(request), shown_image)),
        "stream": True,
        "truncate": False,
    }
    wanted = {
        "temperature": settings.temperature,
        "num_predict": settings.max_output_tokens,
        "num_ctx": context_tokens,
    }
    if options := {name: value for name, value in wanted.items() if value is not None}:
        body["options"] = options
    if (effort := settings.reasoning_effort) is not None:
        body["think"] = False if effort == "none" else effort
    if keep_alive is not None:
        body["keep_alive"] = keep_alive
    if offered := _offered(request.tools, settings.tool_choice):
        body["tools"] = [_wire(tool) for tool in offered]
    if request.output_schema is not None:
        body["format"] = dict(request.output_schema)
    if settings.extra_body:
        extra = dict(settings.extra_body)
        if "options" in body and isinstance(extra.get("options"), Mapping):
            extra["options"] = body["options"] | dict(extra["options"])
        body |= extra
    return body


def _offered(tools: Sequence[ToolSpec], choice: str | None) -> Sequence[ToolSpec]:
    """The tools to send. Ollama has no choice of tools: a forced one is the only one there is, "none" offers none."""
    if not tools or choice == "none":
        return ()
    forced = forced_tool(tools, choice)
    return (forced,) if forced else tools


def _wire(tool: ToolSpec) -> dict[str, Any]:
    parameters = _Schema(tool.parameters).plain()
    parameters.setdefault("type", "object")
    parameters.setdefault("properties", {})
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


class _Schema:
    """A JSON schema in the words that the server keeps.

    It reads a schema into types of its own (`ToolProperty` in api/types.go of ollama/ollama), which know `anyOf` but
    not `oneOf` and `allOf`, `enum` but not `const`, objects but not booleans, and definitions but no references to
    them: what they do not know the model never sees. So references are replaced by what they refer to.
    """

    __slots__ = ("_definitions", "_left", "_root")

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        self._definitions = {**as_object(schema.get("definitions")), **as_object(schema.get("$defs"))}
        self._left = _MOST_REFERENCES

    def plain(self) -> dict[str, Any]:
        """The schema; the model's own arguments are still validated by the one that it was made from."""
        return self._plain(self._root, frozenset())

    def _plain(self, schema: object, inside: frozenset[str]) -> dict[str, Any]:
        """`inside` are the definitions that this is a part of: one that holds itself is any object there."""
        given = as_object(schema)
        found: dict[str, Any] = {}
        if isinstance(reference := given.get("$ref"), str):
            name = reference.rpartition("/")[2]
            self._left -= 1
            known = name in self._definitions and name not in inside and self._left >= 0
            found = self._plain(self._definitions[name], inside | {name}) if known else {"type": "object"}
        for part in self._schemas(given.get("allOf"), inside):
            found = _both(found, part)
        rest = {key: value for key, value in given.items() if key not in {"$ref", "$defs", "definitions", "allOf"}}
        for key, value in rest.items():
            if key == "properties":
                properties = as_object(value).items()
                found = _both(found, {key: {name: self._plain(each, inside) for name, each in properties}})
            elif key in {"anyOf", "oneOf"}:
                found["anyOf"] = self._schemas(value, inside)
            elif key == "items":
                found[key] = self._plain(value, inside)
            elif key == "const":
                found["enum"] = [value]
            else:
                found[key] = value
        return found

    def _schemas(self, value: object, inside: frozenset[str]) -> list[dict[str, Any]]:
        return [self._plain(each, inside) for each in cast("list[object]", value)] if isinstance(value, list) else []


def _both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Two schemas that both hold, as far as objects go: the properties of both, and what either requires."""
    merged = {**one, **other}
    if "properties" in one and "properties" in other:
        merged["properties"] = {**one["properties"], **other["properties"]}
    if isinstance(first := one.get("required"), list) and isinstance(second := other.get("required"), list):
        merged["required"] = list(dict.fromkeys([*cast("list[str]", first), *cast("list[str]", second)]))
    return merged
