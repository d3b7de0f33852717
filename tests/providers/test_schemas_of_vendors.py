"""Schemas of tools that OpenAI or Anthropic would refuse, together with all other tools of the request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolbus.messages import UserMessage
from toolbus.protocols import ModelRequest, ToolSpec
from toolbus.providers._shared.tool_schema import (
    _MAX_PARTS,  # pyright: ignore[reportPrivateUsage]
    offered_schema,
)
from toolbus.providers.anthropic._request import request_body as anthropic_body
from toolbus.providers.openai._chat_request import request_body as chat_body
from toolbus.providers.openai._responses_request import response_body
from toolbus.schemas import JsonSchema

TEXT = {"type": "string"}
EITHER = {
    "type": "object",
    "properties": {"project": TEXT, "paths": {"type": "array"}, "scopes": {"type": ["array", "null"]}},
    "required": ["project"],
    "anyOf": [{"required": ["paths"]}, {"required": ["scopes"]}],
}
ONE_OF_SEVERAL = {
    "type": "object",
    "oneOf": [
        {"properties": {"kind": {"const": "file"}, "path": TEXT}, "required": ["kind", "path"]},
        {"properties": {"kind": {"const": "page"}, "url": TEXT}, "required": ["url", "kind"]},
    ],
}
NAMED = {
    "type": "object",
    "$ref": "#/definitions/Input",
    "definitions": {
        "Input": {
            "type": "object",
            "properties": {"name": TEXT},
            "allOf": [{"properties": {"size": {"type": "integer"}}, "required": ["size"]}],
            "required": ["name"],
        }
    },
}


@pytest.mark.parametrize(
    ("schema", "properties", "required", "fitting"),
    [
        ({"type": "object"}, {}, None, [{}, {"a": 1}]),
        (
            EITHER,
            {
                "project": TEXT,
                "paths": {"type": "array", "items": {}},
                "scopes": {"type": ["array", "null"], "items": {}},
            },
            ["project"],
            [{"project": "a", "paths": [1]}, {"project": "a", "scopes": None}],
        ),
        (
            ONE_OF_SEVERAL,
            {"kind": {"anyOf": [{"const": "file"}, {"const": "page"}]}, "path": TEXT, "url": TEXT},
            ["kind"],
            [{"kind": "file", "path": "a"}, {"kind": "page", "url": "b"}],
        ),
        (NAMED, {"name": TEXT, "size": {"type": "integer"}}, ["name", "size"], [{"name": "a", "size": 1}]),
        ({"anyOf": [{"properties": {"a": TEXT}, "required": ["a"]}]}, {"a": TEXT}, ["a"], [{"a": "b"}]),
        (
            {"type": "object", "properties": {"a": TEXT}, "not": {"required": ["b"]}, "if": {}, "then": {}},
            {"a": TEXT},
            None,
            [{}, {"a": "b"}],
        ),
    ],
)
def test_a_schema_is_offered_with_its_properties_at_the_top_and_allows_what_it_allowed(
    schema: dict[str, Any], properties: Any, required: Any, fitting: list[Any]
) -> None:
    offered = offered_schema(schema)
    assert (offered["type"], offered["properties"], offered.get("required")) == ("object", properties, required)
    assert not {"anyOf", "oneOf", "allOf", "$ref", "not", "if", "then"} & set(offered)
    for arguments in fitting:
        JsonSchema(schema).check(arguments)
        JsonSchema(offered).check(arguments)


def test_a_schema_that_is_accepted_is_sent_as_it_is() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"$ref": "#/$defs/A"}},
            "b": {"default": {"type": "array"}},
            "c": {"type": ["string", "null"], "allOf": [TEXT]},
        },
        "$defs": {"A": {"anyOf": [TEXT, {"type": "null"}]}},
        "additionalProperties": False,
    }
    assert offered_schema(schema) == schema
    assert offered_schema(schema)["properties"] is schema["properties"], "nothing is copied"


def test_names_that_are_also_keywords_are_names() -> None:
    listed, kept = {"type": "array"}, {"default": {"type": "array"}}
    properties = {"default": listed, "examples": listed, "properties": {"properties": {"enum": listed}}}
    complete: dict[str, Any] = {"type": "array", "items": {}}
    assert offered_schema({"type": "object", "properties": properties, **kept}) == {
        "type": "object",
        "properties": {
            "default": complete,
            "examples": complete,
            "properties": {"properties": {"enum": complete}},
        },
        **kept,
    }


def test_a_schema_without_a_type_at_the_top_gets_one() -> None:
    either = {"anyOf": [{"type": "object", "properties": {"a": TEXT}}, {"type": "object", "properties": {"b": TEXT}}]}
    assert offered_schema(either) == {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": []}


@pytest.mark.parametrize(
    ("part", "offered"),
    [
        (
            {"type": "array", "items": [TEXT, True], "additionalItems": TEXT, "minItems": 2},
            {"type": "array", "minItems": 2, "prefixItems": [TEXT, {}], "items": TEXT},
        ),
        ({"items": [TEXT], "additionalItems": False}, {"prefixItems": [TEXT], "items": {}}),
        ({"type": "array", "items": True}, {"type": "array", "items": {}}),
        (True, {}),
        ({"anyOf": [True, TEXT]}, {"anyOf": [{}, TEXT]}),
        ({"minimum": 0, "exclusiveMinimum": True}, {"minimum": 0, "description": "exclusiveMinimum: true"}),
        ({"maxLength": 524_288, "minLength": 1}, {"minLength": 1, "description": "maxLength: 524288"}),
        ({"maxItems": 1000, "description": "Many."}, {"description": "Many.; maxItems: 1000"}),
        (
            {"$ref": "#/$defs/A", "pattern": "a"},
            {"anyOf": [{"$ref": "#/$defs/A"}], "description": 'pattern: "a"'},
        ),
        ({"patternProperties": {"^x-": TEXT}}, {"description": 'patternProperties: {"^x-":{"type":"string"}}'}),
    ],
)
def test_words_that_a_server_cannot_read_are_said_in_others(part: Any, offered: Any) -> None:
    assert offered_schema({"properties": {"a": part}})["properties"] == {"a": offered}


@pytest.mark.parametrize("pattern", ["^[a-z0-9_.-]+$", "^(?:a|b){1,200}$", r"^x\.y\(1\)$", r"^[^\]]*$", "^$", "^.*$"])
def test_a_pattern_that_every_server_compiles_stays(pattern: str) -> None:
    properties = {"a": {"type": "string", "pattern": pattern, "maxLength": 999, "exclusiveMinimum": 0}}
    assert offered_schema({"properties": properties})["properties"] is properties


@pytest.mark.parametrize(
    "pattern",
    [r"\S", "^a", "b$", r"^\d$", r"^[\w]$", "^(?=a)b$", "^(?<n>a)$", r"^\p{L}$", "^a{1,2000}$", "^a$|^b$", r"^\/$", 7],
)
def test_a_pattern_that_some_server_cannot_compile_is_in_the_description(pattern: Any) -> None:
    said = {"type": "string", "description": f"pattern: {json.dumps(pattern)}"}
    assert offered_schema({"properties": {"a": {"type": "string", "pattern": pattern}}})["properties"] == {"a": said}


def test_the_arguments_of_a_tool_are_an_object_and_nothing_else() -> None:
    assert offered_schema({"type": ["object", "null"], "properties": {"a": TEXT}})["type"] == "object"


def test_schemas_that_refer_to_themselves_or_multiply_are_cut() -> None:
    assert offered_schema({"type": "object", "$ref": "#"})["properties"] == {}
    loop = {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"properties": {"b": TEXT}}]}}}
    assert offered_schema(loop)["properties"] == {"b": TEXT}
    laughs: dict[str, Any] = {f"l{i}": {"anyOf": [{"$ref": f"#/$defs/l{i - 1}"}] * 50} for i in range(1, 6)}
    laughs["l0"] = {"properties": {"a": TEXT}}
    found = offered_schema({"type": "object", "$ref": "#/$defs/l5", "$defs": laughs})
    assert found["properties"] == {"a": TEXT}
    endless = {
        "properties": {"a": TEXT},
        "allOf": [{"$ref": "#/$defs/endless"}],
        "anyOf": [{"$ref": "#/$defs/endless"}],
    }
    offered = offered_schema({"type": "object", "$ref": "#/$defs/endless", "$defs": {"endless": endless}})
    assert offered["properties"] == {"a": TEXT}
    wide = {"type": "object", "allOf": [{"properties": {f"p{number}": TEXT}} for number in range(_MAX_PARTS)]}
    assert len(offered_schema(wide)["properties"]) == _MAX_PARTS - 1, "the schema itself is a part, too"
    many = [{"properties": {"a": {"const": number}}} for number in range(30)]
    assert offered_schema({"type": "object", "anyOf": many})["properties"] == {"a": {}}


def test_each_api_is_sent_such_a_schema() -> None:
    request = ModelRequest(messages=[UserMessage(content="a")], tools=(ToolSpec(name="f", parameters=EITHER),))
    chat = chat_body("m", request, vendor="openai", compatible=False)["tools"][0]["function"]["parameters"]
    options: Any = {"encrypted_reasoning": None, "reasoning_summary": None, "compatible": False, "vendor": "openai"}
    responses = response_body("m", request, **options)["tools"][0]["parameters"]
    anthropic = anthropic_body("m", request, max_output_tokens=9, cache="off")["tools"][0]["input_schema"]
    assert chat == responses == anthropic == offered_schema(EITHER)
