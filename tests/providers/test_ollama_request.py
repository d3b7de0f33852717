"""What is sent to Ollama."""

from __future__ import annotations

import copy
import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from toolbus.errors import ConfigurationError
from toolbus.messages import UserMessage
from toolbus.protocols import ModelRequest, ModelSettings, ToolSpec
from toolbus.providers.ollama._request import request_body

WEATHER = ToolSpec(
    name="get_weather",
    description="Current weather in a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CLOCK = ToolSpec(name="get_time")


def body_of(*tools: ToolSpec, context_tokens: int | None = None, keep_alive: Any = None, **settings: Any) -> Any:
    request = ModelRequest(
        messages=[UserMessage(content="hi")],
        tools=tools,
        settings=ModelSettings(**settings) if settings else ModelSettings(),
    )
    return request_body("m", request, context_tokens=context_tokens, keep_alive=keep_alive)


def test_a_plain_request_asks_for_an_error_instead_of_a_cut() -> None:
    assert body_of() == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "truncate": False,
    }


def test_settings_and_options_are_where_ollama_looks_for_them() -> None:
    body = body_of(temperature=0.5, max_output_tokens=9, reasoning_effort="high", context_tokens=8192, keep_alive="10m")
    assert body["options"] == {"temperature": 0.5, "num_predict": 9, "num_ctx": 8192}
    assert (body["think"], body["keep_alive"]) == ("high", "10m")
    assert body_of(reasoning_effort="none")["think"] is False


def test_extra_fields_go_over_the_request_and_extra_options_over_the_options() -> None:
    extra = {"options": {"num_ctx": 1, "seed": 7}, "format": "json", "truncate": True}
    body = body_of(extra_body=extra, temperature=0.5, context_tokens=8192)
    assert body["options"] == {"temperature": 0.5, "num_ctx": 1, "seed": 7}
    assert (body["format"], body["truncate"]) == ("json", True)
    assert body_of(extra_body=extra)["options"] == {"num_ctx": 1, "seed": 7}
    assert extra["options"] == {"num_ctx": 1, "seed": 7}


def test_an_answer_may_have_only_the_properties_of_its_schema_unless_the_schema_allows_others() -> None:
    """Ollama 0.33 let a small model add properties until its limit of tokens."""
    text = {"type": "string", "minLength": 1, "maxLength": 9}
    node = {"properties": {"name": text, "next": {"$ref": "#/$defs/Node"}}, "required": ["name"], "type": "object"}
    schema: dict[str, Any] = {"$defs": {"Node": node}, **node}
    open_one = {**node, "additionalProperties": {"type": "integer"}}

    def sent(schema: dict[str, Any]) -> Any:
        request = ModelRequest(messages=[UserMessage(content="hi")], output_schema=schema)
        return request_body("m", request, context_tokens=None, keep_alive=None)["format"]

    closed = {**node, "additionalProperties": False}
    assert sent(schema) == {"$defs": {"Node": closed}, **closed}
    assert sent({"$defs": {"Node": node}, **open_one}) == {"$defs": {"Node": node}, **open_one}


@pytest.mark.parametrize(
    ("choice", "offered"),
    [
        (None, ["get_weather", "get_time"]),
        ("auto", ["get_weather", "get_time"]),
        ("required", ["get_weather", "get_time"]),
        ("get_time", ["get_time"]),
        ("none", None),
    ],
)
def test_a_choice_of_tools_is_what_is_offered(choice: str | None, offered: list[str] | None) -> None:
    body = body_of(WEATHER, CLOCK, tool_choice=choice, parallel_tool_calls=False)
    found = [tool["function"]["name"] for tool in body["tools"]] if "tools" in body else None
    assert found == offered
    assert not {"tool_choice", "parallel_tool_calls"} & set(body)


def test_a_choice_that_is_not_offered_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"tool_choice='get_tim' names no tool that is offered \(get_time\)"):
        body_of(CLOCK, tool_choice="get_tim")
    assert "tools" not in body_of(tool_choice="get_time")


def test_a_plain_tool_goes_as_it_is() -> None:
    assert body_of(WEATHER, CLOCK)["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "Current weather in a city.",
                "parameters": dict(WEATHER.parameters),
            },
        },
        {
            "type": "function",
            "function": {"name": "get_time", "description": "", "parameters": {"type": "object", "properties": {}}},
        },
    ]


# -------------------------------------------------------------------------------------------------- schemas


def sent(schema: dict[str, Any]) -> Any:
    before = copy.deepcopy(schema)
    (tool,) = body_of(ToolSpec(name="f", parameters=schema))["tools"]
    assert schema == before
    return tool["function"]["parameters"]


class Point(BaseModel):
    x: int
    y: int = 0


class Circle(BaseModel):
    kind: Literal["circle"]
    centre: Point


class Line(BaseModel):
    kind: Literal["line"]
    points: list[Point]


class Drawing(BaseModel):
    name: str | None = None
    shapes: list[Annotated[Circle | Line, Field(discriminator="kind")]]
    frame: Point = Field(description="The corner.", default=Point(x=1))


def test_a_schema_that_refers_to_definitions_goes_without_references() -> None:
    schema = sent(Drawing.model_json_schema())
    assert "$ref" not in json.dumps(schema)
    assert "$defs" not in schema
    point = schema["properties"]["frame"]
    assert (point["description"], point["type"], list(point["properties"])) == ("The corner.", "object", ["x", "y"])
    circle, line = schema["properties"]["shapes"]["items"]["anyOf"]
    assert circle["properties"]["kind"]["enum"] == ["circle"]
    assert circle["properties"]["centre"]["properties"]["x"] == {"title": "X", "type": "integer"}
    assert line["properties"]["points"]["items"]["required"] == ["x"]
    assert schema["properties"]["name"]["anyOf"] == [{"type": "string"}, {"type": "null"}]


def test_a_thousand_references_are_followed() -> None:
    names = [f"p{number}" for number in range(1_001)]
    schema = sent(
        {"properties": {name: {"$ref": "#/$defs/word"} for name in names}, "$defs": {"word": {"enum": ["a"]}}}
    )
    assert [*schema["properties"].values()] == [*([{"enum": ["a"]}] * 1_000), {"type": "object"}]


@pytest.mark.parametrize(
    ("schema", "read_by_ollama"),
    [
        ({"anything": True, "never": False}, {"anything": {}, "never": {}}),
        ({"a": {"const": 3}}, {"a": {"enum": [3]}}),
        ({"a": {"oneOf": [{"type": "string"}, True]}}, {"a": {"anyOf": [{"type": "string"}, {}]}}),
        ({"a": {"$ref": "#/$defs/missing"}}, {"a": {"type": "object"}}),
        ({"a": {"$ref": "https://example.com/schema"}}, {"a": {"type": "object"}}),
        ({"a": {"items": True, "type": "array"}}, {"a": {"items": {}, "type": "array"}}),
        ({"a": None}, {"a": {}}),
        (
            {
                "a": {
                    "allOf": [
                        {"properties": {"x": {"type": "string"}}, "required": ["x"]},
                        {"properties": {"y": True}, "required": ["y", "x"]},
                    ],
                    "properties": {"z": {"const": 1}},
                    "description": "d",
                }
            },
            {
                "a": {
                    "properties": {"x": {"type": "string"}, "y": {}, "z": {"enum": [1]}},
                    "required": ["x", "y"],
                    "description": "d",
                }
            },
        ),
        (
            {"const": {"type": "string"}, "$ref": {"type": "string"}},
            {"const": {"type": "string"}, "$ref": {"type": "string"}},
        ),
    ],
)
def test_words_that_the_server_drops_are_said_in_those_that_it_keeps(
    schema: dict[str, Any], read_by_ollama: dict[str, Any]
) -> None:
    assert sent({"type": "object", "properties": schema})["properties"] == read_by_ollama


def test_alternatives_at_the_top_which_the_server_drops_become_properties() -> None:
    page = {"properties": {"kind": {"const": "page"}, "url": {"type": "string"}}, "required": ["kind", "url"]}
    text = {"properties": {"kind": {"const": "text"}}, "required": ["kind"]}
    schema = sent({"type": ["object", "null"], "oneOf": [page, {"$ref": "#/$defs/text"}], "$defs": {"text": text}})
    kinds = {"anyOf": [{"enum": ["page"]}, {"enum": ["text"]}]}
    properties = {"kind": kinds, "url": {"type": "string"}}
    assert schema == {"type": "object", "properties": properties, "required": ["kind"]}


def test_a_definition_that_holds_itself_is_any_object_inside() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    schema = sent({"$ref": "#/$defs/Node", "$defs": {"Node": node}})
    assert schema == {"type": "object", "properties": {"next": {"type": "object"}}}


def test_definitions_that_double_with_each_step_stay_small() -> None:
    definitions: dict[str, Any] = {
        f"D{number}": {"properties": {side: {"$ref": f"#/$defs/D{number + 1}"} for side in "ab"}}
        for number in range(60)
    }
    assert len(json.dumps(sent({"$ref": "#/$defs/D0", "$defs": definitions}))) < 100_000
