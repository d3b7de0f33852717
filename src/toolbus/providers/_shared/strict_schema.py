"""JSON schemas in the strict dialects of vendors that constrain a model's reply to a schema. Pure.

In OpenAI's strict mode every object is closed and requires all of its properties (developers.openai.com, "Structured
Outputs", supported schemas). In Anthropic's, every object is closed, no schema refers to itself, and numbers and texts
have no bounds (`lib/_parse/_transform.py` of the anthropic SDK). Ollama has no such mode, but a small model fills open
objects with properties that it invents, up to its limit of tokens.

A schema is converted only if the result still allows every valid answer. A bound that a dialect does not know goes into
the description, since toolbus validates the answer anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson

from ...schemas import as_object


@dataclass(frozen=True, slots=True)
class SchemaDialect:
    """The features of a vendor's strict mode: `bounds` are its keywords for the bounds of numbers, texts and lists.

    With `requires_all`, all properties of an object are required; with `recursive`, a schema may refer to itself.
    """

    requires_all: bool
    recursive: bool
    bounds: frozenset[str]


_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
OPENAI = SchemaDialect(requires_all=True, recursive=True, bounds=_NUMBERS | {"pattern", "minItems", "maxItems"})
ANTHROPIC = SchemaDialect(requires_all=False, recursive=False, bounds=frozenset())

_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_KEPT = frozenset({"type", "enum", "const"})
_BOUNDS = _NUMBERS | {
    *("pattern", "format", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems"),
    *("contentEncoding", "contentMediaType", "examples"),
}
OLLAMA = SchemaDialect(requires_all=False, recursive=True, bounds=_BOUNDS)
_WITHOUT_EFFECT = frozenset({"title", "description", "default", "deprecated", "readOnly", "writeOnly", "discriminator"})
_STRUCTURE = frozenset(
    {"$ref", "$defs", "anyOf", "oneOf", "properties", "required", "additionalProperties", "items"},
)
_KNOWN = _KEPT | _BOUNDS | _WITHOUT_EFFECT | _STRUCTURE
_TYPE_NAMES: Mapping[type[Any], str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}
_REFERENCE = "#/$defs/"


class _Lossy(Exception):
    """The schema has a rule that the dialect cannot express."""


def strict_schema(schema: Mapping[str, Any], dialect: SchemaDialect) -> dict[str, Any] | None:
    """Return `schema` in a dialect, or None if the result would not allow every valid answer."""
    try:
        return _Converter(schema, dialect).converted()
    except _Lossy:
        return None


class _Converter:
    """A converter of one schema."""

    def __init__(self, root: Mapping[str, Any], dialect: SchemaDialect) -> None:
        self._root = root
        self._dialect = dialect
        self._definitions = as_object(root.get("$defs"))

    def converted(self) -> dict[str, Any]:
        found = self._node(self._root)
        if self._definitions:
            found["$defs"] = {name: self._node(each) for name, each in self._definitions.items()}
        if not self._dialect.recursive and any(self._holds(name, name, set()) for name in self._definitions):
            raise _Lossy
        return found

    def _node(self, schema: object) -> dict[str, Any]:
        given = as_object(schema)
        if any(key not in _KNOWN and not key.startswith("x-") for key in given):
            raise _Lossy
        bounds = {key: value for key, value in given.items() if key in _BOUNDS}
        kept = {key: value for key, value in bounds.items() if self._keeps(key, value)}
        found: dict[str, Any] = {**{key: given[key] for key in _KEPT if key in given}, **kept}
        if "$ref" in given:
            found["$ref"] = self._checked(given["$ref"])
        for key in ("anyOf", "oneOf"):
            if isinstance(each := given.get(key), list):
                found["anyOf"] = [self._node(one) for one in cast("list[object]", each)]
        kinds = given.get("type")
        kinds = cast("list[object]", kinds) if isinstance(kinds, list) else [kinds]
        if "object" in kinds or "properties" in given:
            self._object(given, found)
        if "array" in kinds:
            found["items"] = self._node(given.get("items"))
        if "type" not in found and (kinds := _listed_types(found)):
            found["type"] = kinds[0] if len(kinds) == 1 else kinds
        if not found.keys() & {"type", "anyOf", "$ref"}:
            raise _Lossy  # the dialects cannot express "any value"
        return described(found, given.get("description"), {key: bounds[key] for key in bounds if key not in kept})

    def _keeps(self, key: str, value: object) -> bool:
        if key == "format":
            return value in _FORMATS
        if key == "pattern" and "(?" in str(value):
            return False  # the vendors refuse patterns with look-ahead
        return key in self._dialect.bounds

    def _checked(self, reference: object) -> str:
        name = str(reference).removeprefix(_REFERENCE)
        if name not in self._definitions or reference != f"{_REFERENCE}{name}":
            raise _Lossy
        return str(reference)

    def _object(self, given: Mapping[str, Any], found: dict[str, Any]) -> None:
        if given.get("additionalProperties") not in (None, False) or "properties" not in given:
            raise _Lossy  # in such an object, the model may choose the names of properties
        properties = as_object(given["properties"])
        required = list(cast("Sequence[str]", given.get("required") or ()))
        found["properties"] = {name: self._node(each) for name, each in properties.items()}
        found["additionalProperties"] = False
        if self._dialect.requires_all:
            for name, each in properties.items():
                if name not in required:
                    _describe_default(found["properties"][name], as_object(each))
            required = list(properties)
        found["required"] = required

    def _holds(self, name: str, wanted: str, seen: set[str]) -> bool:
        """Return whether definition `name` refers to `wanted`, directly or by way of other definitions."""
        seen.add(name)
        named = _references(self._definitions.get(name))
        return wanted in named or any(self._holds(each, wanted, seen) for each in named - seen)


def _describe_default(found: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Add the default of an optional property to its description, because the dialect requires the property."""
    if "default" not in given:
        raise _Lossy  # the model could not write a value that means the same as leaving the property out
    described(found, None, {"default": given["default"]})


def _references(node: object) -> set[str]:
    if isinstance(node, Mapping):
        fields = cast("Mapping[str, object]", node)
        reference = fields.get("$ref")
        own = {reference.removeprefix(_REFERENCE)} if isinstance(reference, str) else set[str]()
        return own.union(*(_references(each) for each in fields.values()))
    if isinstance(node, list):
        return set[str]().union(*(_references(each) for each in cast("list[object]", node)))
    return set()


def _listed_types(found: Mapping[str, Any]) -> list[str]:
    """Return the types of the values that `enum` or `const` lists, in their order."""
    listed: list[object] = [found["const"]] if "const" in found else list(found.get("enum") or ())
    kinds = dict.fromkeys(_TYPE_NAMES.get(type(each), "") for each in listed)
    if "" in kinds:
        raise _Lossy
    return list(kinds)


def described(found: dict[str, Any], description: object, more: Mapping[str, Any]) -> dict[str, Any]:
    """Add to the description of a schema, in place, the keywords that the dialect does not have."""
    parts = [str(each) for each in (found.get("description"), description) if each]
    if more:
        parts.append(", ".join(f"{key}: {orjson.dumps(value).decode()}" for key, value in more.items()))
    if parts and "$ref" in found:  # a schema with a reference may have no other keyword
        found["anyOf"] = [{"$ref": found.pop("$ref")}]
    if parts:
        found["description"] = "; ".join(parts)
    return found
