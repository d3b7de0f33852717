"""The parts of a JSON schema that a provider would refuse, or would never show its model. Pure; knows no tool.

The sources: OpenAI's guides to function calling and to structured outputs, and its error messages ("array schema
missing items", "must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level");
Anthropic's error messages ("input_schema does not support oneOf, allOf, or anyOf at the top level", "Property keys
should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"); `ToolProperty` in api/types.go of ollama/ollama.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import orjson

from ....schemas import as_object, as_objects, way_to

_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_NOT_AT_THE_ROOT = ("anyOf", "oneOf", "allOf", "not", "enum", "const", "if")
_UNSEEN = (
    *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "prefixItems", "contains"),
    *("patternProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef"),
)
"""The keywords that Ollama's models never see, and that OpenAI's have ignored or refused."""
_NOT_STRICT = (
    *("allOf", "oneOf", "default", "minProperties", "maxProperties", "uniqueItems", "minContains", "maxContains"),
    *_UNSEEN,
)
_STRICT_LEVELS = 10
_STRICT_PROPERTIES = 5_000
_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_SEVERAL = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")


def parameters_of(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the schemas of the arguments by name; the schema of an argument that may be anything is empty."""
    return {name: as_object(each) for name, each in as_object(schema.get("properties")).items()}


def not_portable(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield each problem of a tool's schema that one of the four wires refuses, or does not carry."""
    try:
        orjson.dumps(dict(schema))
    except TypeError as exc:
        yield f"it is not JSON: {exc}"
        return
    if schema.get("type") != "object":
        yield f"its type is {schema.get('type')!r}, not 'object'"
    yield from (f"{each} is at the top level" for each in _NOT_AT_THE_ROOT if each in schema)
    for path, node in _nodes(schema, "$"):
        yield from (f"{path}: {each} does not reach every model" for each in _UNSEEN if each in node)
        properties = as_object(node.get("properties"))
        for name in properties:
            if not _PROPERTY.fullmatch(name):
                yield f"{path}: the name {name!r} is not accepted; use 1 to 64 letters, digits, '_', '.' and '-'"
        for name in node.get("required", ()):
            if name not in properties and ("properties" in node or path == "$"):
                yield f"{path}: {name!r} is required, and is not a property"
        if "array" in _types(node) and not isinstance(node.get("items"), Mapping):
            yield f"{path}: an array needs 'items', a schema"
        if isinstance(reference := node.get("$ref"), str) and _followed(schema, reference) is None:
            yield f"{path}: {reference!r} points to nothing in this schema"


def not_strict(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield each problem of a schema in strict mode: all properties are required there, and others are forbidden."""
    total = 0
    for path, node in _nodes(schema, "$"):
        yield from (f"{path}: strict mode has no {each}" for each in _NOT_STRICT if each in node)
        if "object" not in _types(node):
            continue
        properties = as_object(node.get("properties"))
        total += len(properties)
        if node.get("additionalProperties") is not False:
            yield f"{path}: it needs additionalProperties: false"
        if optional := sorted(set(properties) - set(node.get("required", ()))):
            yield f"{path}: {', '.join(optional)} may be left out; make it required, and null if there is no value"
        if _levels(path) > _STRICT_LEVELS:
            yield f"{path}: it is deeper than {_STRICT_LEVELS} levels"
    if total > _STRICT_PROPERTIES:
        yield f"it has {total} properties; at most {_STRICT_PROPERTIES} are allowed"


def defaults_of(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield each default: its path, its value, and the schema that it has to fit, with all definitions."""
    for path, node in _nodes(schema, "$"):
        if "default" in node:
            rest = {key: value for key, value in node.items() if key != "default"}
            yield path, node["default"], with_definitions_of(rest, schema)


def with_definitions_of(part: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of a schema, with the definitions of the whole."""
    return {**{key: whole[key] for key in ("$defs", "definitions") if key in whole}, **part}


def _nodes(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a schema and all schemas in it, each with its path. References are not followed; `$defs` is visited."""
    yield path, schema
    for key in _ONE:
        if isinstance(inner := schema.get(key), Mapping):
            yield from _nodes(cast("Mapping[str, Any]", inner), f"{path}[]" if key == "items" else f"{path}.{key}")
    for key in _SEVERAL:
        for number, inner in enumerate(as_objects(schema.get(key))):
            yield from _nodes(inner, f"{path}.{key}[{number}]")
    for key in _NAMED:
        for name, inner in as_object(schema.get(key)).items():
            if isinstance(inner, Mapping):
                below = f"{path}.{name}" if key == "properties" else f"{path}.{key}.{name}"
                yield from _nodes(cast("Mapping[str, Any]", inner), below)


def _levels(path: str) -> int:
    return path.count(".") + path.count("[]")


def _types(node: Mapping[str, Any]) -> Iterable[str]:
    kind = node.get("type", ())
    return (kind,) if isinstance(kind, str) else cast("Iterable[str]", kind)


def _followed(schema: Mapping[str, Any], reference: str) -> object:
    """Return the target of a reference; None if it does not exist, or is outside the schema."""
    try:
        return way_to(reference, schema)[-1]
    except LookupError:
        return None
