"""The vendors' rules on schemas for replies, from the server's side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from ...schemas import as_object

_UNKNOWN = ("allOf", "oneOf", "not", "if", "patternProperties", "prefixItems", "uniqueItems", "minLength", "maxLength")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "maxItems", "pattern")


def schema_problems(schema: Mapping[str, Any], *, requires_all: bool, with_bounds: bool) -> list[str]:
    """Return the parts of a schema that a strict server refuses: open objects, unknown keywords.

    With `requires_all` also properties that are not required; without `with_bounds` also bounds of numbers.
    """
    if schema.get("type") != "object":
        return ["the output's schema is not one of an object"]
    unknown = _UNKNOWN if with_bounds else (*_UNKNOWN, *_BOUNDS)
    problems: list[str] = []
    for node in _nodes(schema):
        problems += [f"the output's schema has {word!r} in it" for word in unknown if word in node]
        if "$ref" in node and len(node) > 1:
            problems.append("the output's schema has a reference with keywords beside it")
        if node.get("type") != "object":
            continue
        if node.get("additionalProperties") is not False:
            problems.append("the output's schema has an open object in it")
        names = as_object(node.get("properties"))
        if requires_all and set(node.get("required") or ()) != set(names):
            problems.append("the output's schema has properties that are not required")
    return problems


def _nodes(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield schema
    for key, value in schema.items():
        if key in {"properties", "$defs"}:
            for each in as_object(value).values():
                yield from _nodes(as_object(each))
        elif key in {"anyOf", "oneOf", "allOf"}:
            for each in cast("list[object]", value):
                yield from _nodes(as_object(each))
        elif key == "items":
            yield from _nodes(as_object(value))
