"""JSON schemas in the strict dialects of OpenAI and Anthropic: converted where no valid answer is lost by it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from toolbus.core.output import OutputType
from toolbus.providers._shared.native_output import json_schema_format
from toolbus.providers._shared.strict_schema import ANTHROPIC, OPENAI, SchemaDialect, strict_schema
from toolbus.testing.wire._schemas import schema_problems


class Place(BaseModel):
    """Where it is."""

    city: str = Field(description="In English.", min_length=2)
    zone: str | None = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=0, le=9)] = 9


class Dog(BaseModel):
    kind: Literal["dog"]


class Everything(BaseModel):
    place: Place = Field(description="Of the event.")
    day: dt.date
    kind: Literal["rain", "sun", 3]
    share: float = Field(gt=0, lt=1, multiple_of=0.1)
    codes: list[Annotated[str, Field(pattern="^[A-Z]{2}$")]] = Field(min_length=1, max_length=5)
    pet: Cat | Dog = Field(discriminator="kind")
    secret: SecretStr
    note: str = "none"


class Node(BaseModel):
    name: str
    children: list[Node]


class Empty(BaseModel):
    pass


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


class Invented(BaseModel):
    tags: list[str] = Field(default_factory=list)


class Price(BaseModel):
    amount: Decimal


def schema_of(wanted: Any) -> Any:
    return OutputType[Any](wanted).spec.parameters


@pytest.mark.parametrize("dialect", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
@pytest.mark.parametrize("wanted", [Everything, Place, Empty, Price, list[int], int, Literal[1, "a"], Cat | Dog])
def test_what_a_dialect_can_say_is_converted_by_the_rules_of_its_server(wanted: Any, dialect: SchemaDialect) -> None:
    schema = schema_of(wanted)
    converted = strict_schema(schema, dialect)
    assert converted is not None
    own = dialect is OPENAI
    assert schema_problems(converted, requires_all=own, with_bounds=own) == []
    assert converted["properties"].keys() == schema["properties"].keys()
    assert schema == schema_of(wanted), "the schema itself was changed"


@pytest.mark.parametrize("dialect", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
@pytest.mark.parametrize("wanted", [dict[str, int], dict[str, Any], Any, list[Any], tuple[int, str], Open, object])
def test_what_no_dialect_can_say_is_not_converted(wanted: Any, dialect: SchemaDialect) -> None:
    assert strict_schema(schema_of(wanted), dialect) is None


@pytest.mark.parametrize("dialect", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
def test_a_schema_with_several_types_keeps_the_rules_of_each(dialect: SchemaDialect) -> None:
    def converted(**field: Any) -> Any:
        whole = {"type": "object", "properties": {"field": field}, "required": ["field"]}
        found = strict_schema(whole, dialect)
        return found and found["properties"]["field"]

    assert converted(type=["array", "null"], items={"type": "string"}) == {
        "type": ["array", "null"],
        "items": {"type": "string"},
    }
    assert converted(type=["object", "null"], properties={"a": {"type": "string"}}, required=["a"]) == {
        "type": ["object", "null"],
        "properties": {"a": {"type": "string"}},
        "additionalProperties": False,
        "required": ["a"],
    }
    assert converted(type=["array", "null"]) is None
    assert converted(type=["object", "null"]) is None
    assert converted(type=["string", "null"]) == {"type": ["string", "null"]}


@pytest.mark.parametrize("dialect", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
@pytest.mark.parametrize(
    ("field", "converted"),
    [
        ({"type": "string", "not": {"const": "a"}}, None),
        ({"type": "string", "x-order": 1}, {"type": "string"}),
        ({"$ref": "#/$defs/Known"}, {"$ref": "#/$defs/Known"}),
        ({"$ref": "#/$defs/Unknown"}, None),
        ({"$ref": "#/definitions/Known"}, None),
        ({"$ref": "#/$defs/Known", "description": "d"}, {"anyOf": [{"$ref": "#/$defs/Known"}], "description": "d"}),
        ({"oneOf": [{"type": "null"}, {"const": 1}]}, {"anyOf": [{"type": "null"}, {"const": 1, "type": "integer"}]}),
        ({"enum": [[1], "a"]}, None),
        ({"enum": ["a", None]}, {"enum": ["a", None], "type": ["string", "null"]}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"type": "string", "format": "color"}, {"type": "string", "description": 'format: "color"'}),
        ({"type": "string", "pattern": "^(?=a)"}, {"type": "string", "description": 'pattern: "^(?=a)"'}),
    ],
)
def test_each_rule_of_a_field_is_kept_described_or_cannot_be_expressed(
    field: Any, converted: Any, dialect: SchemaDialect
) -> None:
    known = {"Known": {"type": "string"}}
    whole = {"type": "object", "properties": {"field": field}, "required": ["field"], "$defs": known}
    found = strict_schema(whole, dialect)
    assert (found and found["properties"]["field"]) == converted


def test_only_openai_takes_a_schema_that_refers_to_itself() -> None:
    schema = schema_of(Node)
    assert strict_schema(schema, OPENAI) is not None
    assert strict_schema(schema, ANTHROPIC) is None
    below = {name: {"type": "array", "items": {"$ref": f"#/$defs/{other}"}} for name, other in ("ab", "bc", "ca")}
    around = {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "required": ["x"], "$defs": below}
    assert strict_schema(around, OPENAI) is not None
    assert strict_schema(around, ANTHROPIC) is None
    beside = {**around, "$defs": {**below, "c": {"type": "array", "items": {"$ref": "#/$defs/b"}}}}
    assert strict_schema(beside, ANTHROPIC) is None
    chain = {**around, "$defs": {**below, "c": {"type": "string"}}}
    assert strict_schema(chain, ANTHROPIC) is not None


def test_only_anthropic_lets_a_property_be_left_out_that_nothing_stands_for() -> None:
    schema = schema_of(Invented)
    assert strict_schema(schema, OPENAI) is None
    assert (strict_schema(schema, ANTHROPIC) or {})["required"] == []


def test_a_property_that_may_be_left_out_says_what_it_then_is() -> None:
    found = strict_schema(schema_of(Place), OPENAI)
    assert found is not None
    assert found["required"] == ["city", "zone"]
    assert found["properties"]["zone"] == {
        "anyOf": [{"type": "string"}, {"type": "null"}],
        "description": "default: null",
    }


def test_bounds_that_a_dialect_does_not_know_stand_in_the_description() -> None:
    schema = schema_of(Everything)
    ours, theirs = strict_schema(schema, OPENAI), strict_schema(schema, ANTHROPIC)
    assert ours is not None
    assert theirs is not None
    assert ours["properties"]["share"]["exclusiveMinimum"] == 0
    assert "exclusiveMinimum" not in theirs["properties"]["share"]
    assert "exclusiveMinimum: 0" in theirs["properties"]["share"]["description"]
    city = ours["$defs"]["Place"]["properties"]["city"]
    assert city == {"type": "string", "description": "In English.; minLength: 2"}


def test_a_reference_stands_alone_and_keeps_its_description() -> None:
    found = strict_schema(schema_of(Everything), OPENAI)
    assert found is not None
    assert found["properties"]["place"] == {"anyOf": [{"$ref": "#/$defs/Place"}], "description": "Of the event."}


def test_a_schema_that_cannot_be_strict_is_sent_as_it_is_and_says_so() -> None:
    strict, loose = json_schema_format(schema_of(Place)), json_schema_format(schema_of(dict[str, int]))
    assert (strict["name"], strict["strict"]) == ("final_answer", True)
    assert (loose["schema"], loose["strict"]) == (schema_of(dict[str, int]), False)
