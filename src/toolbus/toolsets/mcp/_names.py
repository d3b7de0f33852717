"""The names of tools and arguments in 1 to 64 of the characters that model providers accept: `server__tool`.

The server's part never has two underscores in a row and never ends with one, so it ends before the first two
underscores of a name, and tools of different servers never have the same name. A part that does not fit is shortened,
and gets a digest of the whole that keeps it unique. Pure: a name depends only on those of the server and the tool.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from ...schemas import as_object, way_to

_MAX_NAME_CHARS = 64  # characters of a tool's name, the limit of both OpenAI and Anthropic
_MAX_PREFIX_CHARS = 28
_PREFIX = re.compile(r"[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_ODD = re.compile(r"[^A-Za-z0-9_-]+")
# Anthropic refuses a request, with all of its tools, for other names of arguments, such as "$top" and "filter[id]".
_ARGUMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def prefix_of(server: str) -> str:
    """Return the server's part of its tools' names: the server's own name if it fits, else a shortened one."""
    if len(server) <= _MAX_PREFIX_CHARS and _PREFIX.fullmatch(server):
        return server
    kept = re.sub(r"_+", "_", _ODD.sub("_", server)).strip("_")[: _MAX_PREFIX_CHARS - 9].rstrip("_")
    return f"{kept}-{_digest(server)}" if kept else f"mcp-{_digest(server)}"


def tool_name(prefix: str, tool: str) -> str:
    """Return the name by which models call a tool, from the name that its server lists."""
    left = _MAX_NAME_CHARS - len(prefix) - 2
    if len(tool) <= left and _NAME.fullmatch(tool):
        return f"{prefix}__{tool}"
    return f"{prefix}__{_ODD.sub('_', tool)[: left - 9]}-{_digest(tool)}"


def argument_names(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return other names for the arguments in a schema that have names which a provider refuses."""
    given = {name: None for node in _nodes(schema) for name in as_object(node.get("properties"))}
    found: dict[str, str] = {}
    for name in given:
        if not _ARGUMENT.fullmatch(name):
            other = _ODD.sub("_", name)[: _MAX_NAME_CHARS - 9]
            is_taken = not other or other in given or other in found.values()
            found[name] = f"{other}-{_digest(name)}" if is_taken else other
    return found


def renamed(schema: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a schema whose arguments have other names.

    The target of a reference may describe other objects too, whose names stay. So the arguments get a copy of it.
    """
    copies: dict[str, Any] = {}
    found = _renamed(schema, names, schema, copies)
    return {**found, "$defs": {**as_object(found.get("$defs")), **copies}} if copies else found


def _renamed(
    schema: Mapping[str, Any], names: Mapping[str, str], root: Mapping[str, Any], copies: dict[str, Any]
) -> dict[str, Any]:
    found = dict(schema)
    if properties := as_object(schema.get("properties")):
        found["properties"] = {names.get(name, name): each for name, each in properties.items()}
    if required := schema.get("required"):
        found["required"] = [names.get(name, name) for name in required]
    for key, parts in _parts(schema):
        found[key] = [_renamed(node, names, root, copies) if (node := as_object(each)) else each for each in parts]
    for key in ("if", "then", "else", "not"):
        if part := as_object(schema.get(key)):
            found[key] = _renamed(part, names, root, copies)
    if target := _target(root, schema.get("$ref")):
        copy = f"arguments-{_digest(schema['$ref'])}"
        if copy not in copies:
            copies[copy] = {}  # The target may refer to itself.
            copies[copy] = _renamed(target, names, root, copies)
        found["$ref"] = f"#/$defs/{copy}"
    return found


def _nodes(root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Iterate over the schemas for all arguments together, each once: a schema, its parts and their targets."""
    todo, seen = [root], set[int]()
    while todo:
        node = todo.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            parts = [as_object(part) for _, parts in _parts(node) for part in parts]
            todo += [_target(root, node.get("$ref")), *reversed(parts)]


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    for key in ("allOf", "anyOf", "oneOf"):
        if isinstance(parts := schema.get(key), list):
            yield key, cast("list[Any]", parts)


def _target(root: Mapping[str, Any], reference: object) -> Mapping[str, Any]:
    """Return the target of a reference within a schema; empty unless that is an object."""
    try:
        return {} if reference == "#" else as_object(way_to(reference, root)[-1])
    except LookupError:
        return {}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]
