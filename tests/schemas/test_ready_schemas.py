"""Tools from JSON schemas that somebody already has: validation by jsonschema-rs or by the application's own function."""

from __future__ import annotations

import builtins
import contextlib
import functools
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from toolbus.errors import ConfigurationError, InvalidArguments, MissingExtra
from toolbus.schemas import JsonSchema
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


def look_up(word: str = "", options: dict[str, Any] | None = None, marks: list[int] | None = None, **_: Any) -> Any:
    """Look a word up."""
    return word, options, marks


def made(**options: Any) -> Tool:
    return Tool("look_up", "Look up.", SCHEMA, look_up, **options)


def test_the_schema_is_what_models_see_and_arguments_go_by_name():
    tool = made()
    assert tool.parameters == SCHEMA
    assert tool.description == "Look up."
    assert tool.prepare({"word": "hi", "marks": [1]}, None)() == ("hi", None, [1])
    assert Tool("look_up", schema=SCHEMA, handler=look_up).description == "Look a word up."


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ({}, '$: "word" is a required property'),
        ({"word": 3}, '$.word: the value is not of type "string"'),
        ({"word": "hi", "options": {"depth": "1"}}, '$.options.depth: the value is not of type "integer"'),
        ({"word": "hi", "marks": [1, "2"]}, '$.marks[1]: the value is not of type "integer"'),
        ({"word": "hi", "x": 1}, "$: Additional properties are not allowed ('x' was unexpected)"),
    ],
)
def test_what_breaks_the_schema_is_reported_with_its_path(arguments: dict[str, Any], reported: str):
    with pytest.raises(InvalidArguments) as caught:
        made().spec.validate(arguments)
    assert str(caught.value) == reported


def test_at_most_eight_problems_are_reported():
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


def other(w: str) -> str:
    return w


def nothing() -> str:
    return ""


def by_position(word: str, /) -> str:
    return word


def more(word: str, more: str) -> str:
    return word + more


@pytest.mark.parametrize(
    ("handler", "reported"),
    [
        (other, "missing a required argument: 'w'"),
        (nothing, "unexpected keyword argument 'word'"),
        (by_position, "positional.only"),
        (more, "missing a required argument: 'more'"),
    ],
)
def test_a_handler_that_does_not_take_the_arguments_is_refused_at_construction(handler: Any, reported: str):
    schema = {"type": "object", "properties": {"word": {"type": "string"}}}
    with pytest.raises(ConfigurationError, match=f"'t': its handler does not fit its schema: .*{reported}"):
        Tool("t", "", schema, handler)
    # These arguments may be named elsewhere in the schema.
    assert Tool("t", "", {**schema, "anyOf": [{"required": ["word"]}]}, handler).name == "t"


def filled_in(handler: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(handler)
    def decorated(**arguments: Any) -> str:
        return handler(more="!", **arguments)

    return decorated


def test_a_handler_may_get_arguments_from_its_decorator():
    schema = {"type": "object", "properties": {"word": {"type": "string"}}}
    assert Tool("t", "", schema, filled_in(more)).name == "t"


def test_a_broken_schema_is_refused_at_construction():
    with pytest.raises(
        ConfigurationError, match=r"^tool 't': the schema is not a valid JSON schema: \$\.properties\.x\.type: 'text'"
    ):
        Tool("t", "", {"type": "object", "properties": {"x": {"type": "text"}}}, look_up)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [("PanicException", ConfigurationError), ("ValueError", ConfigurationError), ("KeyboardInterrupt", None)],
)
def test_a_schema_on_which_the_library_fails_is_refused_at_construction(
    monkeypatch: pytest.MonkeyPatch, raised: str, expected: type[Exception] | None
):
    kind = vars(builtins).get(raised) or type(raised, (BaseException,), {})

    def failing(*_arguments: Any, **_options: Any) -> None:
        raise kind("it failed")

    monkeypatch.setattr("jsonschema_rs.Draft202012Validator", failing)
    with pytest.raises(expected or kind, match=r"the schema cannot be used: it failed" if expected else "it failed"):
        JsonSchema({"type": "object"})


REMOTE = [
    "http://127.0.0.1:9/schema.json",
    "file:///etc/passwd",
    "other.json",
    "https://json-schema.org/draft/2020-12/schema",
]


@pytest.mark.parametrize("reference", [*REMOTE, "#/$defs/nowhere", "#anchor", "#/properties/word/3", 3])
def test_a_reference_out_of_the_schema_or_to_nowhere_is_refused_at_construction_and_never_fetched(reference: Any):
    with pytest.raises(ConfigurationError, match="it refers to"):
        Tool("t", "", {"type": "object", "properties": {"word": {"$ref": reference}}}, look_up)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    def accept(_arguments: Mapping[str, Any]) -> None: ...

    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
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
    for arguments, reported in (({}, "say a word"), ({"word": ""}, "it is empty"), ({"word": None}, "LookupError")):
        with pytest.raises(InvalidArguments, match=f"^{reported}$"):
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
    tool: Tool = Tool("find", "", {}, handler)
    assert tool.wants_context
    ours = ToolContext(deps="Ada")
    assert tool.prepare({"word": "tea"}, ours)() == "tea for Ada"
    assert tool.prepare({"word": "tea", "context": "forged"}, ours)() == "tea for Ada"


@pytest.mark.parametrize("schema", [{"type": "object"}, {"type": "object", "properties": {}}, {"properties": {}}, {}])
def test_a_schema_that_asks_for_no_more_than_an_object_needs_no_library(
    monkeypatch: pytest.MonkeyPatch, schema: dict[str, Any]
):
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    tool: Tool = Tool("ask", "Ask.", schema, external=True)
    tool.spec.validate({})
    tool.spec.validate({"anything": [1]})
    not_an_object: Any = [1]
    with pytest.raises(InvalidArguments, match='the value is not of type "object"'):
        tool.spec.validate(not_an_object)


@pytest.mark.parametrize(
    "more", [{"properties": {"x": {}}}, {"required": ["x"]}, {"additionalProperties": False}, {"properties": None}]
)
def test_a_schema_that_asks_for_more_is_never_taken_for_an_empty_one(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
):
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(MissingExtra):
        Tool("ask", "Ask.", {"type": "object", **more}, external=True)


DRAFTS = {
    "http://json-schema.org/draft-04/schema#": False,
    "http://json-schema.org/draft-06/schema#": True,
    "http://json-schema.org/draft-07/schema#": True,
    "https://json-schema.org/draft-07/schema": True,
    "https://json-schema.org/draft/2019-09/schema": True,
    "https://json-schema.org/draft/2020-12/schema": True,
}


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_draft_is_the_one_that_the_schema_names(draft: str):
    """Draft 4 knows no `const`, and `prefixItems` came with 2020-12."""
    schema = {"$schema": draft, "properties": {"a": {"const": 1}, "b": {"prefixItems": [{"type": "string"}]}}}
    tool = Tool("t", "", schema, look_up)
    refused: list[str] = []
    for name, value in (("a", 2), ("b", [3])):
        try:
            tool.spec.validate({name: value})
        except InvalidArguments:
            refused.append(name)
    assert refused == ["a"] * DRAFTS[draft] + ["b"] * ("2020" in draft)


@pytest.mark.parametrize("draft", [{}, {"$schema": "http://json-schema.org/schema#"}, {"$schema": "urn:my-own"}])
def test_a_schema_of_no_known_draft_is_read_as_one_of_2020_12(draft: dict[str, Any]):
    tool = Tool("t", "", {**draft, "properties": {"b": {"prefixItems": [{"type": "string"}]}}}, look_up)
    assert tool.parameters.items() >= draft.items()  # which is what models are sent
    with pytest.raises(InvalidArguments, match=r"\$\.b\[0\]: the value is not of type"):
        tool.spec.validate({"b": [3]})


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("form", ["date-time", "email", "uri", "uuid", "regex", "of our own"])
def test_a_format_tells_the_model_something_and_is_not_checked(draft: str, form: str):
    tool = Tool("t", "", {"$schema": draft, "properties": {"a": {"type": "string", "format": form}}}, look_up)
    tool.spec.validate({"a": "(no such thing"})


def test_true_and_false_are_schemas():
    tool = Tool("t", "", {"properties": {"any": True, "none": False}, "additionalProperties": False}, look_up)
    tool.spec.validate({"any": [1]})
    with pytest.raises(InvalidArguments, match=r"^\$\.none: False schema does not allow the value$"):
        tool.spec.validate({"none": 1})


def test_references_lead_to_definitions_and_back_to_where_they_began():
    schema = {
        "$defs": {"a/b": {"properties": {"word": {"type": "string"}, "below": {"$ref": "#/$defs/a~1b"}}}},
        "properties": {"tree": {"$ref": "#/$defs/a~1b"}, "self": {"$ref": "#"}, "1": {"$ref": "#/anyOf/0"}},
        "anyOf": [{"type": "object"}],
    }
    tool = Tool("t", "", schema, look_up)
    tool.spec.validate({"tree": {"below": {"below": {"word": "a"}}}, "self": {"tree": {}}})
    with pytest.raises(InvalidArguments, match=r"\$\.self\.tree\.below\.word: the value is not of type"):
        tool.spec.validate({"self": {"tree": {"below": {"word": 3}}}})


WHATEVER = {
    "properties": {
        "n": {"type": ["integer", "number", "array"], "minimum": 3, "multipleOf": 1, "uniqueItems": True},
        "text": {"type": "string", "pattern": "^a", "minLength": 1, "enum": ["a", 2**63, 1.5, {"b": [1]}]},
    },
    "additionalProperties": {"$ref": "#"},
    "propertyNames": {"maxLength": 9},
}


class Text(str):
    __slots__ = ()


class Number(int): ...


ODD: list[Any] = [
    2**63, 2**64, -(2**63) - 1, 10**5_000, -(10**5_000), float("nan"), float("inf"), 1e308, 5e-324, -0.0, True,
    "\ud800", "\udfff a", "\0", "", b"a", {1}, {1: 2}, {None: 1}, {"\ud800": 1}, object(), 1j, Text("a"), Number(3),
    (1, 2), [2**70, 2**70 + 1], [[]], {"n": {}}, [[1.0, 1]],
]  # fmt: skip


@pytest.mark.parametrize("name", ["n", "text", "other", "\ud800"])
@pytest.mark.parametrize("value", ODD, ids=lambda each: type(each).__name__)
def test_no_value_makes_the_library_raise_what_nobody_expects(name: str, value: Any):
    tool = Tool("t", "", WHATEVER, look_up)
    for given in ({name: value}, {"a": {"b": {name: value}}}, {"n": [value, value]}):
        with contextlib.suppress(InvalidArguments):
            tool.spec.validate(given)


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        (float("nan"), "$: there is a number nan in it, which JSON does not have"),
        (float("inf"), "$: there is a number inf in it, which JSON does not have"),
        (float("-inf"), "$: there is a number -inf in it, which JSON does not have"),
        ("\ud800", "$: it cannot be checked: there is a lone surrogate in it, which JSON cannot carry"),
        ({1}, "$: there is a set in it, which JSON does not have"),
        ({1: 2}, "$: there is a key in it that is not a text, which JSON does not have"),
    ],
)
def test_what_is_no_json_is_reported_in_words(given: Any, reported: str):
    with pytest.raises(InvalidArguments) as caught:
        Tool("t", "", {"properties": {"a": {"minLength": 2, "enum": ["a"]}}}, look_up).spec.validate({"a": given})
    assert str(caught.value) == reported


@pytest.mark.parametrize("levels", [1, 30, 63, 64, 65, 200, 900])
def test_nesting_is_followed_to_64_levels_and_refused_below(levels: int):
    value: Any = {"word": 1}
    for _ in range(levels - 1):
        value = {"a": value}
    tool = Tool("t", "", {"properties": {"a": {"$ref": "#"}}}, look_up)
    if levels <= 64:
        tool.spec.validate(value)
    else:
        with pytest.raises(InvalidArguments, match="nested deeper than 64 levels"):
            tool.spec.validate(value)


ITEMS: list[tuple[list[Any], str]] = [
    ([1, 1.0], "the items 0 and 1 are equal"),
    ([1, True], ""),
    ([{"a": 1, "b": [2]}, 3, {"b": [2.0], "a": 1}], "the items 0 and 2 are equal"),
    ([[1], [[1]], "1", 1], ""),
    ([2**60, 2**60 + 1], ""),
    ([2**80, 2**80 + 1], ""),
    ([None, False, 0, "", [], {}], ""),
]


@pytest.mark.parametrize(("items", "equal"), ITEMS)
def test_items_are_compared_as_json_has_it(items: list[Any], equal: str):
    tool = Tool("t", "", {"properties": {"a": {"uniqueItems": True}}}, look_up)
    if not equal:
        tool.spec.validate({"a": items})
    else:
        with pytest.raises(InvalidArguments, match=equal):
            tool.spec.validate({"a": items})


def test_what_is_wrong_is_reported_without_the_value_which_may_be_secret_or_long():
    wrong = {"type": "string", "maxLength": 3, "pattern": "^b", "enum": ["b"], "not": {"minLength": 2}}
    with pytest.raises(InvalidArguments) as caught:
        Tool("t", "", {"properties": {"a": wrong}}, look_up).spec.validate({"a": "hunter2"})
    assert "hunter" not in str(caught.value)
    assert str(caught.value).count("$.a: ") == 4


def test_a_long_key_is_reported_in_part():
    with pytest.raises(InvalidArguments) as caught:
        made().spec.validate({"word": "hi", "k" * 10_000: 1})
    assert len(str(caught.value)) < 500


def test_a_schema_is_what_it_was_when_the_tool_was_made():
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
    tool = Tool("t", "", schema, look_up)
    schema["properties"]["a"]["type"] = "integer"
    tool.spec.validate({"a": "text"})


def test_threads_check_with_one_tool_each_within_its_own_time():
    tool = Tool("t", "", {"properties": {"a": {"items": {"pattern": "^a+$"}}}}, look_up)
    with ThreadPoolExecutor(4) as pool:
        fine = [pool.submit(tool.spec.validate, {"a": ["aaa"] * 500}) for _ in range(40)]
        wrong = [pool.submit(tool.spec.validate, {"a": ["aaa"] * 500 + ["b"]}) for _ in range(40)]
    assert all(each.exception() is None for each in fine)
    assert all(isinstance(each.exception(), InvalidArguments) for each in wrong)
