"""Schemas of tools in the form that OpenAI, Anthropic and the servers of open models accept. Pure.

One schema that they refuse makes a request with any number of other tools fail, and MCP servers have many: alternatives
at the top level ("input_schema does not support oneOf, allOf, or anyOf at the top level"), an object without
properties, an array without items ("array schema missing items"), a list of items as in older drafts ("[{...}] is not
of type 'object', 'boolean'"), patterns and sizes that a server cannot compile. The model reads a schema that also
allows more, and its arguments are validated by the original one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from ...schemas import as_object, as_objects, way_to
from .strict_schema import described

_Fields: TypeAlias = tuple[dict[str, Any], list[str]]

_COMBINED = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
_REFUSED = _COMBINED | {"not", "enum", "const", "if", "then", "else"}  # at the top level
_VALUES = frozenset({"default", "const", "enum", "examples"})  # keywords with values, which are not schemas
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_MAX_PARTS = 1_000  # alternatives of alternatives multiply
_MAX_DEPTH = 50  # levels of them, since a reference may lead to itself
_MAX_VARIANTS = 20
# llama.cpp makes one grammar of all tools ("Pattern must start with '^' and end with '$'", "failed to parse grammar"):
# it knows neither classes such as `\d` nor look-around, and repeats nothing 2,000 times. OpenAI compiles patterns as
# Python does, which has no `\p{L}` ("is not a 'regex'").
_PLAIN_PATTERN = re.compile(
    r"\^(?:[^\\\[\](){}^$]|\\[.|*+?^${}()\[\]]|\((?:\?:|(?!\?))|\)|\{\d{0,3},?\d{0,3}\}"
    r"|\[(?:[^\\\[\]]|\\[\\\[\]])+\])*\$"
)
_SIZES = ("minLength", "maxLength", "minItems", "maxItems")
_EXCLUSIVE = ("exclusiveMinimum", "exclusiveMaximum")
_CHECKED = (*_SIZES, *_EXCLUSIVE, "pattern", "patternProperties")
_MAX_REPETITIONS = 1_000


def offered_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool's schema with its properties at the top level, items in each array, and patterns that compile."""
    offered: dict[str, Any] = {"type": "object", "properties": {}}
    offered |= {key: value for key, value in schema.items() if key not in _REFUSED and key != "type"}
    if not _COMBINED.isdisjoint(schema):
        properties, required = _Flat(schema).fields(schema)
        offered |= {"properties": properties, "required": list(dict.fromkeys(required))}
    return dict(_accepted(offered))


class _Flat:
    """The properties of an object's schema, wherever they are in it."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = _MAX_PARTS

    def fields(self, schema: Mapping[str, Any], depth: int = 0) -> _Fields:
        """Return the properties of a schema and of all parts that apply, and the names that are always required."""
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH:
            return {}, []
        properties = dict(as_object(schema.get("properties")))
        required = list(cast("list[str]", schema.get("required") or ()))
        for part in (*self._target(schema.get("$ref")), *as_objects(schema.get("allOf"))):
            more, names = self.fields(part, depth + 1)
            properties = {**more, **properties}
            required += names
        for key in ("anyOf", "oneOf"):
            branches = [self.fields(each, depth + 1) for each in as_objects(schema.get(key))]
            for name in dict.fromkeys(name for more, _ in branches for name in more):
                properties.setdefault(name, _any_of([more[name] for more, _ in branches if name in more]))
            if branches:
                required += [name for name in branches[0][1] if all(name in names for _, names in branches)]
        return properties, required

    def _target(self, reference: object) -> list[Mapping[str, Any]]:
        try:
            return as_objects([way_to(reference, self._root)[-1]])
        except LookupError:
            return []


def _any_of(schemas: list[Any]) -> Any:
    variants: list[Any] = []
    for each in schemas:
        if each not in variants:
            variants.append(each)
        if len(variants) > _MAX_VARIANTS:
            return {}
    return variants[0] if len(variants) == 1 else {"anyOf": variants}


def _accepted(node: Any, *, is_by_name: bool = False) -> Any:
    """Return a part of a schema in the form that servers accept; the part itself if nothing has to change."""
    if isinstance(node, Mapping):
        fields = cast("Mapping[str, Any]", node)
        new: dict[str, Any] = {}
        for key, value in fields.items():
            if value is True and (is_by_name or key == "items"):
                new[key] = {}  # "Unrecognized schema: true"
            elif isinstance(value, (Mapping, list)) and (is_by_name or key not in _VALUES):
                changed = _accepted(value, is_by_name=key in _BY_NAME and not is_by_name)
                if changed is not value:
                    new[key] = changed
        fields = {**fields, **new} if new else fields
        return fields if is_by_name else _without_odd_words(_with_items(fields))
    if isinstance(node, list):
        parts = cast("list[Any]", node)
        items: list[Any] = [{} if each is True else _accepted(each) for each in parts]
        return parts if all(one is other for one, other in zip(items, parts, strict=True)) else items
    return node


def _with_items(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema with one schema for the items of an array. Older drafts have a list of them."""
    kind, items = fields.get("type"), fields.get("items")
    if isinstance(items, list):
        kept = {key: value for key, value in fields.items() if key != "additionalItems"}
        return {**kept, "prefixItems": items, "items": as_object(fields.get("additionalItems"))}
    is_array = kind == "array" or (isinstance(kind, list) and "array" in kind)
    return {**fields, "items": {}} if is_array and "items" not in fields else fields


def _without_odd_words(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema with the keywords that a server cannot compile in its description."""
    odd = {key: fields[key] for key in _CHECKED if key in fields and _is_odd(key, fields[key])}
    return described({key: fields[key] for key in fields if key not in odd}, None, odd) if odd else fields


def _is_odd(key: str, value: Any) -> bool:
    if key in _SIZES:
        return isinstance(value, (int, float)) and value >= _MAX_REPETITIONS
    if key in _EXCLUSIVE:
        return isinstance(value, bool)  # draft 4
    patterns = list(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else [value]
    return any(_PLAIN_PATTERN.fullmatch(str(each)) is None for each in patterns)
