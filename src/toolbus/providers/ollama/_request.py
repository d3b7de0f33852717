"""The body of a native chat request, within the limits of Ollama, which silently drops what it does not know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ...messages import to_ollama
from ...protocols import ModelRequest, ToolSpec
from ...schemas import as_object
from .._shared.native_output import messages_with_schema
from .._shared.request_parts import forced_tool, given, map_parts, shown_image, with_extra
from .._shared.strict_schema import OLLAMA, strict_schema
from .._shared.tool_schema import offered_schema

_MAX_REFERENCES = 1_000  # definitions that refer to each other twice double the schema with each step


def request_body(
    model: str, request: ModelRequest, *, context_tokens: int | None, keep_alive: float | str | None
) -> dict[str, Any]:
    """Return the request as a dictionary; `extra_body` overrides all other fields, and `options` one by one.

    `truncate: false` asks for an error if the messages do not fit the context window. The server's default is to drop
    the oldest messages silently (api/types.go of ollama/ollama; servers before 0.12.6 do not know the field).
    Raises `ConfigurationError` for a `tool_choice` that names a tool which is not offered.
    """
    settings = request.settings
    body: dict[str, Any] = {
        "model": model,
        "messages": to_ollama(map_parts(messages_with_schema(request), shown_image)),
        "stream": True,
        "truncate": False,
    }
    options = given(
        {"temperature": settings.temperature, "num_predict": settings.max_output_tokens, "num_ctx": context_tokens}
    )
    think = False if settings.reasoning_effort == "none" else settings.reasoning_effort
    body |= given({"options": options or None, "think": think, "keep_alive": keep_alive})
    if offered := _offered(request.tools, settings.tool_choice):
        body["tools"] = [_wire(tool) for tool in offered]
    if request.output_schema is not None:
        body["format"] = strict_schema(request.output_schema, OLLAMA) or dict(request.output_schema)
    return with_extra(body, settings.extra_body, "options")


def _offered(tools: Sequence[ToolSpec], choice: str | None) -> Sequence[ToolSpec]:
    """Return the tools to send. Ollama has no tool choice: a forced tool is sent as the only one, "none" sends none."""
    if not tools or choice == "none":
        return ()
    forced = forced_tool(tools, choice)
    return (forced,) if forced else tools


def _wire(tool: ToolSpec) -> dict[str, Any]:
    # At the top level, the server keeps no alternatives, and refuses a list of types.
    parameters = offered_schema(_Schema(tool.parameters).plain())
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


class _Schema:
    """A JSON schema, reduced to the keywords that the server keeps.

    The server reads a schema into types of its own (`ToolProperty` in api/types.go of ollama/ollama), which know
    `anyOf` but not `oneOf` and `allOf`, `enum` but not `const`, objects but not booleans, and definitions but no
    references to them. The model never sees the rest. So references are replaced by the schemas that they refer to.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        self._definitions = {**as_object(schema.get("definitions")), **as_object(schema.get("$defs"))}
        self._left = _MAX_REFERENCES

    def plain(self) -> dict[str, Any]:
        """Return the reduced schema. The model's arguments are still validated by the original one."""
        return self._plain(self._root, frozenset())

    def _plain(self, schema: object, inside: frozenset[str]) -> dict[str, Any]:
        """Return a part of the definitions `inside`. A definition that contains itself becomes any object there."""
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
    """Merge two schemas that both apply. For objects, the result has all properties and all required names of both."""
    merged = {**one, **other}
    if "properties" in one and "properties" in other:
        merged["properties"] = {**one["properties"], **other["properties"]}
    if isinstance(first := one.get("required"), list) and isinstance(second := other.get("required"), list):
        merged["required"] = list(dict.fromkeys([*cast("list[str]", first), *cast("list[str]", second)]))
    return merged
