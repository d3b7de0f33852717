"""Tools from JSON schemas that somebody already has: validation by jsonschema or by the application's own function."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from toolbus import Limits, RequestSession
from toolbus.bus import EventBus
from toolbus.dispatcher import ToolDispatcher
from toolbus.errors import ConfigurationError, InvalidArguments, MissingExtra
from toolbus.testing import ScriptedProvider, calls, text
from toolbus.tools import Tool, ToolContext

SCHEMA = {
    "type": "object",
    "properties": {
        "word": {"type": "string", "minLength": 2},
        "options": {"type": "object", "properties": {"depth": {"type": "integer"}}},
        "marks": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["word"],
    "additionalProperties": False,
}


def look_up(word: str, options: dict[str, Any] | None = None, marks: list[int] | None = None) -> Any:
    """Look a word up."""
    return word, options, marks


def made(**options: Any) -> Tool[..., Any]:
    return Tool("look_up", "Look up.", SCHEMA, look_up, **options)


def test_the_schema_is_what_models_see_and_arguments_go_by_name():
    tool = made()
    assert tool.parameters == SCHEMA
    assert tool.description == "Look up."
    assert tool.prepare({"word": "hi", "marks": [1]}, None)() == ("hi", None, [1])
    assert Tool("look_up", schema=SCHEMA, handler=look_up).description == "Look a word up."


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "$: 'word' is a required property"),
        ({"word": 3}, "$.word: 3 is not of type 'string'"),
        ({"word": "hi", "options": {"depth": "1"}}, "$.options.depth: '1' is not of type 'integer'"),
        ({"word": "hi", "marks": [1, "2"]}, "$.marks[1]: '2' is not of type 'integer'"),
        ({"word": "hi", "x": 1}, "$: Additional properties are not allowed ('x' was unexpected)"),
    ],
)
def test_what_breaks_the_schema_is_told_with_its_path(arguments: dict[str, Any], told: str):
    with pytest.raises(InvalidArguments) as caught:
        made().spec.validate(arguments)
    assert str(caught.value) == told


def test_at_most_eight_problems_are_told():
    with pytest.raises(InvalidArguments) as caught:
        made().spec.validate({"word": "hi", "marks": list("abcdefghijkl")})
    assert str(caught.value).count("$.marks[") == 8
    assert str(caught.value).endswith("; and 4 more")


def test_each_call_has_its_own_copy_down_to_the_leaves():
    arguments: dict[str, Any] = {"word": "hi", "options": {"depth": 1}}
    _, options, _ = made().prepare(arguments, None)()
    options["depth"] = 2
    assert arguments["options"] == {"depth": 1}


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "function", "function": {}}, {"type": ["object"]}])
def test_a_schema_that_is_not_of_an_object_is_refused(schema: dict[str, Any]):
    with pytest.raises(ConfigurationError, match="arguments are an object"):
        Tool("t", "", schema, look_up)


def test_a_schema_without_a_type_is_one_of_an_object():
    assert Tool("t", "", {}, look_up).parameters == {"type": "object"}


def test_a_broken_schema_is_refused_at_construction():
    with pytest.raises(ConfigurationError, match="no valid JSON schema"):
        Tool("t", "", {"type": "object", "properties": {"x": {"type": "text"}}}, look_up)


@pytest.mark.parametrize("reference", ["http://127.0.0.1:9/schema.json", "#/$defs/nowhere"])
def test_a_reference_that_leads_nowhere_is_never_fetched_and_refuses_the_call(reference: str):
    tool = Tool("t", "", {"type": "object", "properties": {"word": {"$ref": reference}}}, look_up)
    with pytest.raises(InvalidArguments, match="the tool's schema refers to"):
        tool.spec.validate({"word": "hi"})


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    def accept(_arguments: Mapping[str, Any]) -> None: ...

    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(MissingExtra, match=r"pip install 'toolbus\[schema\]'"):
        made()
    assert made(validate=accept).prepare({"word": "hi"}, None)()[0] == "hi"


def test_a_validator_of_ones_own_replaces_the_library():
    seen: list[Mapping[str, Any]] = []

    def validate(arguments: Mapping[str, Any]) -> None:
        seen.append(arguments)
        if "word" not in arguments:
            raise InvalidArguments("say a word")
        if arguments["word"] == "":
            raise LookupError("it is empty")
        if arguments["word"] is None:
            raise LookupError

    tool = made(validate=validate)
    tool.spec.validate({"word": 3})  # which the schema would refuse
    assert seen == [{"word": 3}]
    for arguments, told in (({}, "say a word"), ({"word": ""}, "it is empty"), ({"word": None}, "LookupError")):
        with pytest.raises(InvalidArguments, match=f"^{told}$"):
            tool.prepare(arguments, None)


def test_a_validator_without_a_schema_is_refused():
    with pytest.raises(ConfigurationError, match="validate= goes with schema="):
        Tool(handler=look_up, validate=lambda _: None)


class Finder:
    def __call__(self, word: str, context: ToolContext[str]) -> str:
        return f"{word} for {context.deps}"


def find(word: str, context: ToolContext[str]) -> str:
    return f"{word} for {context.deps}"


@pytest.mark.parametrize("handler", [find, Finder(), functools.partial(find), Finder().__call__])
def test_the_context_is_found_in_the_handlers_signature(handler: Any):
    tool: Tool[..., Any] = Tool("find", "", {}, handler)
    assert tool.wants_context
    ours = ToolContext(deps="Ada")
    assert tool.prepare({"word": "tea"}, ours)() == "tea for Ada"
    assert tool.prepare({"word": "tea", "context": "forged"}, ours)() == "tea for Ada"


async def test_a_dangling_reference_costs_the_call_and_not_the_request():
    tool = Tool("look_up", "", {"type": "object", "properties": {"word": {"$ref": "#/nowhere"}}}, look_up)
    bus = EventBus()
    provider = ScriptedProvider([calls(("look_up", {"word": "hi"})), text("Sorry.")])
    async with ToolDispatcher(bus):
        result = await RequestSession(bus, provider, "?", tools=[tool], limits=Limits()).run()
    assert (result.outcome, result.tool_calls[0].reason) == ("completed", "invalid_arguments")


@pytest.mark.parametrize("schema", [{"type": "object"}, {"type": "object", "properties": {}}, {"properties": {}}, {}])
def test_a_schema_that_asks_for_no_more_than_an_object_needs_no_library(
    monkeypatch: pytest.MonkeyPatch, schema: dict[str, Any]
):
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    tool: Tool[..., Any] = Tool("ask", "Ask.", schema, external=True)
    tool.spec.validate({})
    tool.spec.validate({"anything": [1]})
    not_an_object: Any = [1]
    with pytest.raises(InvalidArguments, match=r"\$: \[1\] is not of type 'object'"):
        tool.spec.validate(not_an_object)


@pytest.mark.parametrize(
    "more", [{"properties": {"x": {}}}, {"required": ["x"]}, {"additionalProperties": False}, {"properties": None}]
)
def test_a_schema_that_asks_for_more_is_never_taken_for_an_empty_one(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
):
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(MissingExtra):
        Tool("ask", "Ask.", {"type": "object", **more}, external=True)
