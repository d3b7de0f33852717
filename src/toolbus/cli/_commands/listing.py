"""The commands `toolbus events` and `toolbus tools`, which list event types and tools."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, cast

import orjson

from ...core.plain_text import clean, one_line
from ...events import EVENT_TYPES, json_schema
from .._load import load_tools
from .._mcp import tools_with
from .._terminal.screen import Screen
from .._terminal.text import escape_json


def list_events(options: argparse.Namespace, screen: Screen) -> int:
    """Print the types of events, or the JSON schema of their union."""
    if options.json_schema:
        screen.data(orjson.dumps(json_schema(), option=orjson.OPT_INDENT_2).decode())
        return 0
    names = [kind.type for kind in EVENT_TYPES]
    width = max(map(len, names))
    for name, kind in zip(names, EVENT_TYPES, strict=True):
        summary = (kind.__doc__ or "").strip().partition("\n")[0]
        screen.data(f"{name:<{width}}  {'fact' if kind.is_fact else 'signal':<6}  {summary}")
    return 0


def list_tools(options: argparse.Namespace, screen: Screen) -> int:
    """Print the tools with their parameters; return 1 if an MCP server was unreachable. Raises `ConfigurationError`."""
    tools, all_connected = tools_with(options.mcp, load_tools(options.dir, options.tools), screen)
    if options.json:
        listed = [
            {"name": each.name, "description": each.description, "parameters": dict(each.parameters)} for each in tools
        ]
        screen.data(escape_json(orjson.dumps(listed, option=orjson.OPT_INDENT_2, default=str).decode()))
        return 0 if all_connected else 1
    for each in tools:
        if screen.said:
            screen.say("\n")
        screen.data(each.name)
        for line in clean(each.description).splitlines():
            screen.data(f"  {line}".rstrip())
        required = each.parameters.get("required", ())
        for name, schema in each.parameters.get("properties", {}).items():
            screen.data(f"    {one_line(_parameter(name, schema, required=name in required))}")
    return 0 if all_connected else 1


def _parameter(name: str, given: Mapping[str, Any] | bool, *, required: bool) -> str:  # noqa: FBT001 -- a schema may be one
    """Describe one parameter on a line: `query (string, required): what to look for`."""
    schema = _fields(given)
    notes = [" | ".join(_kind(each) for each in schema.get("anyOf", (schema,)))]
    if required:
        notes.append("required")
    elif "default" in schema:
        notes.append(f"default {orjson.dumps(schema['default']).decode()}")
    description = str(schema.get("description", ""))
    return f"{name} ({', '.join(notes)})" + (f": {description}" if description else "")


def _fields(schema: Mapping[str, Any] | bool) -> Mapping[str, Any]:  # noqa: FBT001 -- as above
    return {} if isinstance(schema, bool) else schema


def _kind(given: Mapping[str, Any] | bool) -> str:  # noqa: FBT001 -- as above
    schema = _fields(given)
    if "enum" in schema:
        return " | ".join(orjson.dumps(each).decode() for each in schema["enum"])
    kinds = schema.get("type") or str(schema.get("$ref", "any")).rpartition("/")[2]
    return " | ".join(cast("list[str]", kinds)) if isinstance(kinds, list) else str(kinds)
