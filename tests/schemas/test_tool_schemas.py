"""From signatures to JSON schemas: every kind of type, default and callable that an application may bring."""

from __future__ import annotations

import copy
import datetime as dt
import enum
import functools
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from unittest.mock import AsyncMock

import orjson
import pytest
from pydantic import BaseModel, Field

from toolbus.errors import ConfigurationError, InvalidArguments
from toolbus.schemas import JsonSchema, never_null
from toolbus.schemas._signatures import tidy
from toolbus.tools import Tool, ToolContext, tool


class Unit(enum.Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


class Place(BaseModel):
    title: str
    labels: dict[str, str] = {"title": "kept"}


class Heading(BaseModel):
    kind: Literal["title"]


class Body(BaseModel):
    kind: Literal["body"]


@dataclass
class Span:
    first: int
    last: int = 9
    tags: list[str] = field(default_factory=list[str])


@dataclass
class Tree:
    name: str
    below: list[Tree] = field(default_factory=list["Tree"])


def properties(function: Any) -> dict[str, Any]:
    """The parameters' schemas; what is asserted of every schema stands here."""
    parameters = dict(Tool("t", handler=function).parameters)
    assert parameters["type"] == "object"
    assert parameters["additionalProperties"] is False
    assert orjson.loads(orjson.dumps(parameters)) == parameters, "it is not JSON"
    return parameters["properties"]


def test_a_signature_becomes_a_schema_with_types_defaults_and_what_is_required():
    def search(query: str, limit: int = 5, *, ratio: float, deep: bool = False, near: str | None = None) -> str:
        """Search."""
        return query

    assert Tool(handler=search).parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["query", "ratio"],
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer", "default": 5},
            "ratio": {"type": "number"},
            "deep": {"type": "boolean", "default": False},
            "near": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
    }


def test_a_tool_without_parameters_has_an_object_without_properties():
    def ping() -> str:
        return "pong"

    assert Tool(handler=ping).parameters == {"type": "object", "properties": {}, "additionalProperties": False}


def test_annotated_fields_say_bounds_and_descriptions():
    def f(count: Annotated[int, Field(gt=0, le=10, description="How many.")] = 1) -> None: ...

    assert properties(f)["count"] == {
        "type": "integer",
        "exclusiveMinimum": 0,
        "maximum": 10,
        "default": 1,
        "description": "How many.",
    }


def test_a_field_in_the_place_of_the_default_is_read_as_pydantic_reads_it():
    def f(count: int = Field(3, gt=0), name: str = Field(description="A name.")) -> None: ...

    made = Tool(handler=f)
    assert made.parameters["properties"] == {
        "count": {"type": "integer", "exclusiveMinimum": 0, "default": 3},
        "name": {"type": "string", "description": "A name."},
    }
    assert made.parameters["required"] == ["name"]
    assert made.prepare({"name": "x"}, None).keywords == {"count": 3, "name": "x"}  # type: ignore[attr-defined]


def test_enums_literals_unions_and_containers():
    def f(
        unit: Unit = Unit.CELSIUS,
        mode: Literal["fast", "slow"] = "fast",
        key: int | str = 0,
        names: tuple[str, ...] = (),
        marks: set[int] | None = None,
        table: dict[str, float] | None = None,
    ) -> None: ...

    shown = Tool(handler=f).parameters
    assert shown["$defs"]["Unit"] == {"enum": ["c", "f"], "type": "string"}
    assert shown["properties"]["unit"] == {"$ref": "#/$defs/Unit", "default": "c"}
    assert shown["properties"]["mode"] == {"enum": ["fast", "slow"], "type": "string", "default": "fast"}
    assert shown["properties"]["key"]["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    assert shown["properties"]["names"] == {"type": "array", "items": {"type": "string"}}
    assert shown["properties"]["marks"]["anyOf"][0]["uniqueItems"] is True
    assert shown["properties"]["table"]["anyOf"][0]["additionalProperties"] == {"type": "number"}


def test_dates_are_strings_with_a_format():
    def f(day: dt.date, at: dt.datetime, until: dt.time) -> None: ...

    assert {name: shown["format"] for name, shown in properties(f).items()} == {
        "day": "date",
        "at": "date-time",
        "until": "time",
    }


def test_nested_models_and_dataclasses_are_definitions_without_derived_titles():
    def f(place: Place, span: Span, title: str, properties: Place | None = None) -> None: ...

    shown = Tool("t", handler=f).parameters
    assert shown["$defs"]["Span"] == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "first": {"type": "integer"},
            "last": {"type": "integer", "default": 9},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["first"],
    }
    assert set(shown["$defs"]["Place"]["properties"]) == {"title", "labels"}, "a property may be called title"
    assert shown["$defs"]["Place"]["properties"]["labels"]["default"] == {"title": "kept"}, "defaults are left alone"
    assert set(shown["properties"]) == {"place", "span", "title", "properties"}
    assert "title" not in shown
    assert "title" not in shown["$defs"]["Place"]


def test_a_discriminator_keeps_a_tag_that_is_called_title():
    def f(part: Annotated[Heading | Body, Field(discriminator="kind")]) -> None: ...

    mapping = {"title": "#/$defs/Heading", "body": "#/$defs/Body"}
    assert properties(f)["part"]["discriminator"] == {"mapping": mapping, "propertyName": "kind"}


def test_recursive_types_refer_to_themselves():
    def f(tree: Tree) -> None: ...

    shown = Tool("t", handler=f).parameters
    assert shown["$defs"]["Tree"]["properties"]["below"]["items"] == {"$ref": "#/$defs/Tree"}
    bound: Any = Tool("t", handler=f).prepare({"tree": {"name": "a", "below": [{"name": "b"}]}}, None)
    assert bound.keywords == {"tree": Tree("a", [Tree("b")])}


def test_defaults_that_json_cannot_show_are_kept_but_not_shown():
    anything: Any = object()

    def f(at_most: float = math.inf, day: dt.date = dt.date(2020, 1, 1), name: str = anything) -> Any:
        return at_most, day, name

    assert properties(f) == {
        "at_most": {"type": "number"},
        "day": {"type": "string", "format": "date"},
        "name": {"type": "string"},
    }
    assert Tool(handler=f).prepare({}, None)() == (math.inf, dt.date(2020, 1, 1), anything)


def test_parameters_may_have_the_names_that_frameworks_keep_for_themselves():
    def f(
        json: str, schema: int, copy: bool, model_x: str, model_config: str, fields: int, validate: int, self_: str
    ) -> str:
        return json + model_x + model_config + self_

    made = Tool("t", handler=f)
    names = ["json", "schema", "copy", "model_x", "model_config", "fields", "validate", "self_"]
    assert list(made.parameters["properties"]) == names
    arguments = dict.fromkeys(names, "a") | {"schema": 1, "copy": True, "fields": 2, "validate": 3}
    assert made.prepare(arguments, None)() == "aaaa"


# ------------------------------------------------------------------------------------------------- callables


def power(base: int, exponent: int = 2) -> int:
    """Raise to a power.

    Args:
        base: What is raised.
    """
    return base**exponent


def test_a_partial_is_a_tool_of_what_is_left_under_the_functions_description():
    cube = Tool("cube", handler=functools.partial(power, exponent=3))
    assert cube.description == "Raise to a power."
    assert cube.parameters["properties"]["base"]["description"] == "What is raised."
    assert cube.prepare({"base": 2}, None)() == 8
    assert list(cube.parameters["properties"]) == ["base"]
    with pytest.raises(InvalidArguments, match=r"\$.exponent: There is no such argument"):
        cube.spec.validate({"base": 2, "exponent": 4})
    of_two = Tool("of_two", handler=functools.partial(power, 2))
    assert list(of_two.parameters["properties"]) == ["exponent"]
    assert of_two.prepare({}, None)() == 4


def test_what_a_partial_passes_may_be_anything_also_the_context():
    def orders_of(db: Shop, context: ToolContext[Any], user: object, day: int = 1) -> str:
        return f"{db.price('tea')} {context.name} {user} {day}"

    ours = ToolContext[Any](deps=None, name="ours")
    of_shop = functools.partial(orders_of, db=Shop())
    made = Tool("orders", handler=functools.partial(of_shop, context=ours, user="Ada"))
    assert (list(made.parameters["properties"]), made.wants_context) == (["day"], False)
    assert made.prepare({"day": 2}, None)() == f"{Shop().price('tea')} ours Ada 2"


def test_a_partial_of_something_without_a_docstring_has_no_description():
    def bare(x: int) -> int:
        return x

    assert Tool("bare", handler=functools.partial(bare)).description == ""


class Shop:
    """A shop."""

    def price(self, item: str) -> str:
        """The price of an item."""
        return f"{item} costs 3"

    @classmethod
    def opening(cls, day: str) -> str:
        """When it opens."""
        return f"{cls.__name__} opens on {day}"

    @staticmethod
    def motto() -> str:
        """What it says."""
        return "cheap"

    async def __call__(self, wish: str, context: ToolContext[None]) -> str:
        """Buy something."""
        return wish


def test_bound_class_and_static_methods_are_tools():
    price, opening, motto = Tool(handler=Shop().price), Tool(handler=Shop.opening), Tool(handler=Shop.motto)
    assert (price.name, price.description) == ("price", "The price of an item.")
    assert list(price.parameters["properties"]) == ["item"]
    assert price.prepare({"item": "tea"}, None)() == "tea costs 3"
    assert opening.prepare({"day": "Monday"}, None)() == "Shop opens on Monday"
    assert motto.prepare({}, None)() == "cheap"


async def test_a_callable_object_is_a_tool_when_it_is_given_a_name():
    made = Tool("buy", handler=Shop())
    assert made.is_async
    assert made.wants_context
    assert made.description == "Buy something."
    assert list(made.parameters["properties"]) == ["wish"]
    assert await made.prepare({"wish": "tea"}, None)() == "tea"
    with pytest.raises(ConfigurationError, match="pass name="):
        Tool(handler=Shop())


def test_a_callable_object_may_have_its_description_on_the_class():
    class Doubler:
        """Double a number."""

        def __call__(self, number: int) -> int:
            return 2 * number

    assert Tool("double", handler=Doubler()).description == "Double a number."


def test_a_class_is_a_tool_that_makes_one():
    made = Tool(handler=Span)
    assert list(made.parameters["properties"]) == ["first", "last", "tags"]
    assert made.prepare({"first": 1}, None)() == Span(1)


def test_a_wrapped_function_shows_what_it_wraps():
    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return inner

    made = Tool(handler=logged(power))
    assert (made.name, made.description) == ("power", "Raise to a power.")
    assert made.prepare({"base": 3}, None)() == 9


def test_a_mock_with_a_ready_schema_is_a_tool():
    made = Tool("mocked", "A mock.", {"type": "object"}, AsyncMock(), validate=lambda _: None)
    assert made.is_async
    assert not made.wants_context


# ------------------------------------------------------------------------------------------------- refusals


class Unbound:
    def unannotated(self, x: int) -> None: ...

    def annotated(self: Unbound, x: int) -> None: ...

    @classmethod
    def of_class(cls, x: int) -> None: ...


def test_methods_that_are_not_bound_are_refused_with_the_way_out():
    of_class = vars(Unbound)["of_class"]
    for handler in (Unbound.unannotated, Unbound.annotated, of_class):
        with pytest.raises(ConfigurationError, match=r"Tool\(handler=thing\.method\)"):
            Tool(handler=handler)


def test_parameters_that_no_json_object_can_fill_are_refused_by_name():
    def star(*words: str) -> None: ...
    def stars(**words: str) -> None: ...
    def positional(word: str, /) -> None: ...
    def context(context: ToolContext[None], /, word: str) -> None: ...

    functions: list[tuple[Any, str, str]] = [
        (star, "words", "named parameters only; .*functools.wraps"),
        (stars, "words", "named parameters only; .*functools.wraps"),
        (positional, "word", "named parameters only$"),
        (context, "context", "named parameters only$"),
    ]
    for function, name, advice in functions:
        with pytest.raises(ConfigurationError, match=rf"{name}.*{advice}"):
            Tool(handler=function)


def test_a_parameter_without_a_type_is_refused_by_name():
    def f(known: int, unknown) -> None: ...  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]

    with pytest.raises(ConfigurationError, match=r"f: parameter 'unknown' needs a type annotation"):
        Tool(handler=f)  # pyright: ignore[reportUnknownArgumentType]


def test_a_type_without_a_schema_is_refused():
    def f(day: int, when: slice) -> None: ...
    def g(when: int[str]) -> None: ...  # type: ignore[type-arg]

    with pytest.raises(ConfigurationError, match=r"f: parameter 'when' has no JSON schema: .*slice'>; use") as refused:
        Tool(handler=f)
    assert "arbitrary_types_allowed" not in str(refused.value), "pydantic's advice does not apply here"
    with pytest.raises(ConfigurationError, match=r"g: a type in its signature cannot be resolved.*subscriptable"):
        Tool(handler=g)


def test_a_type_whose_schema_failed_only_once_is_refused_with_the_signature():
    class Moody:
        failed = False

        @classmethod
        def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
            if not cls.failed:
                cls.failed = True
                raise ValueError("not now")
            return {"type": "int"}

    def f(mood: Moody) -> None: ...

    with pytest.raises(ConfigurationError, match=r"f: its signature has no JSON schema: not now; use plain types"):
        Tool(handler=f)
    Tool(handler=f)


def test_a_forward_reference_is_resolved_and_a_broken_one_refused():
    def good(later: Later) -> None: ...
    def broken(x: Nowhere) -> None: ...  # type: ignore[name-defined] # noqa: F821 # pyright: ignore[reportUndefinedVariable, reportUnknownParameterType]

    assert Tool(handler=good).parameters["$defs"]["Later"]["required"] == ["value"]
    with pytest.raises(ConfigurationError, match=r"broken.*cannot be resolved.*Nowhere.*TYPE_CHECKING"):
        Tool(handler=broken)  # pyright: ignore[reportUnknownArgumentType]


class Later(BaseModel):
    value: int


def test_types_may_be_local_to_the_code_that_makes_the_tool():
    @dataclass
    class Deps:
        user: str

    class Choice(enum.Enum):
        A = "a"

    @tool
    def choose(choice: Choice, context: ToolContext[Deps]) -> str:
        """Choose."""
        return f"{context.deps.user} takes {choice.value}"

    assert choose.prepare({"choice": "a"}, ToolContext(deps=Deps("Ada")))() == "Ada takes a"


def test_the_type_of_the_result_need_not_exist_at_run_time():
    def f(x: int) -> OnlyForTheTypeChecker: ...  # type: ignore[name-defined] # noqa: F821 # pyright: ignore[reportUndefinedVariable, reportUnknownParameterType]

    assert list(properties(f)) == ["x"]


def test_what_is_no_function_is_refused():
    for handler in (3, "name", None):
        with pytest.raises(ConfigurationError):
            Tool("t", handler=handler)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="has no signature to read"):
        Tool(handler=dict)
    with pytest.raises(ConfigurationError, match="is a tool already"):
        Tool(handler=tool(power))


def test_generators_are_refused_since_a_handler_returns_one_value():
    def one_by_one(x: int) -> Any:
        yield x

    async def one_by_one_async(x: int) -> Any:
        yield x

    for handler in (one_by_one, one_by_one_async):
        with pytest.raises(ConfigurationError, match="does not yield"):
            Tool(handler=handler)


# ------------------------------------------------------------------------------------------------- context


def first(context: ToolContext[int], city: str) -> object:
    return (city, context)


def middle(a: int, context: ToolContext, b: int = 1) -> Any:  # pyright: ignore[reportMissingTypeArgument, reportUnknownParameterType]
    return (a, b, context)  # pyright: ignore[reportUnknownVariableType]


def last(city: str, *, context: Annotated[ToolContext[int], "ours"]) -> object:
    return (city, context)


def optional(city: str, context: ToolContext[int] | None = None) -> object:
    return (city, context)


FUNCTIONS: list[Any] = [first, middle, last, optional]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_context_may_stand_anywhere_and_is_not_in_the_schema(function: Any):
    made = Tool(handler=function)
    assert made.wants_context
    assert "context" not in made.parameters["properties"]
    context = ToolContext(deps=1)
    arguments = {"a": 1} if function is middle else {"city": "Paris"}
    assert made.prepare(arguments, context)()[-1] is context


def test_a_model_cannot_fill_the_context():
    made = Tool(handler=optional)
    with pytest.raises(ValueError, match=r"\$\.context: There is no such argument"):
        made.prepare({"city": "Paris", "context": None}, None)


def test_a_union_without_the_context_is_an_argument():
    def f(key: int | str) -> None: ...

    assert not Tool(handler=f).wants_context


def test_two_contexts_are_refused():
    def f(one: ToolContext[int], other: ToolContext[int]) -> None: ...

    with pytest.raises(ConfigurationError, match="one and other both ask for the ToolContext"):
        Tool(handler=f)


def test_a_context_that_a_partial_has_filled_is_not_asked_for():
    ours = ToolContext(deps=1)
    made = Tool("first", handler=functools.partial(first, ours))
    assert not made.wants_context
    assert made.prepare({"city": "Paris"}, None)() == ("Paris", ours)


def test_a_schema_belongs_to_its_tool_alone():
    shown = Tool(handler=power).parameters
    with pytest.raises(TypeError):
        shown["type"] = "string"  # type: ignore[index]
    given = {"type": "object", "properties": {"base": {"type": "integer"}}}
    before = copy.deepcopy(given)
    made = Tool("t", "", given, power, validate=lambda _: None)
    given["properties"]["y"] = {}  # type: ignore[index]
    assert made.parameters == before


def test_signatures_that_are_nearly_the_same_have_schemas_of_their_own():
    def one(a: Literal["x", "y"], b: int | str, c: float = 1.0) -> str: ...
    def other(a: Literal["y", "x"], b: str | int, c: float = True) -> str: ...

    first, again, second = Tool(handler=one), Tool(handler=one), Tool(handler=other)
    assert first.parameters == again.parameters
    assert first.parameters["properties"] is not again.parameters["properties"]
    assert first.parameters["properties"]["a"]["enum"] == ["x", "y"]
    assert second.parameters["properties"]["a"]["enum"] == ["y", "x"]
    kinds = [[each["type"] for each in made.parameters["properties"]["b"]["anyOf"]] for made in (first, second)]
    assert kinds == [["integer", "string"], ["string", "integer"]]
    assert [repr(made.parameters["properties"]["c"]["default"]) for made in (first, second)] == ["1.0", "True"]


def test_null_for_a_parameter_with_a_default_means_that_it_was_left_out() -> None:
    def find(
        query: str = "all",
        unit: Unit = Unit.CELSIUS,
        place: Place = Place(title="here"),  # noqa: B008
        near: str | None = "home",
        mark: Literal["a"] | None = "a",
        anything: Any = 5,
    ) -> Any:
        return query, unit, place.title, near, mark, anything

    made = Tool(handler=find)
    nothing = dict.fromkeys(["query", "unit", "place", "near", "mark", "anything"])
    assert made.prepare(nothing, None)() == ("all", Unit.CELSIUS, "here", None, None, None)
    assert made.prepare({"query": None, "near": "x"}, None)() == ("all", Unit.CELSIUS, "here", "x", "a", 5)


NULLS: dict[str, Any] = {
    "text": {"type": "string"},
    "list": {"type": ["integer", "string"]},
    "enum": {"enum": ["a", "b"]},
    "const": {"const": 1},
    "union": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/size"}]},
    "one": {"oneOf": [{"type": "string"}, False]},
    "all": {"allOf": [{}, {"type": "string"}]},
    "reference": {"$ref": "#/$defs/size"},
}
NULLABLE: dict[str, Any] = {
    "null": {"type": "null"},
    "or null": {"type": ["string", "null"]},
    "any": {},
    "true": True,
    "enum with null": {"enum": ["a", None]},
    "const null": {"const": None},
    "union with null": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/maybe"}]},
    "reference to null": {"$ref": "#/$defs/maybe"},
}
DEFINITIONS: dict[str, Any] = {
    "size": {"type": "integer"},
    "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
}


def test_null_for_an_optional_argument_of_a_foreign_schema_is_kept_only_if_the_schema_accepts_it() -> None:
    schema = {"type": "object", "properties": {**NULLS, **NULLABLE}, "$defs": DEFINITIONS}

    def handler(**arguments: Any) -> dict[str, Any]:
        return arguments

    made = Tool("find", "Find.", schema, handler)
    assert made.prepare(dict.fromkeys([*NULLS, *NULLABLE]), None)() == dict.fromkeys(NULLABLE)
    assert made.prepare({"unknown": None}, None)() == {"unknown": None}
    for name in NULLS:
        demanding = Tool("find", "Find.", {**schema, "required": [name]}, handler)
        with pytest.raises(InvalidArguments):
            demanding.prepare({name: None}, None)
    with pytest.raises(InvalidArguments):
        made.prepare([None], None)  # type: ignore[arg-type]


def test_whoever_validates_with_code_of_their_own_sees_every_null() -> None:
    seen: list[Any] = []

    def handler(**arguments: Any) -> dict[str, Any]:
        return arguments

    made = Tool("find", "Find.", {"properties": {"text": {"type": "string"}}}, handler, validate=seen.append)
    assert made.prepare({"text": None}, None)() == {"text": None}
    assert seen == [{"text": None}]


@pytest.mark.timeout(5)
def test_a_hostile_schema_of_references_is_read_in_linear_time() -> None:
    chain = {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}, {"$ref": f"#/$defs/{n + 1}"}]} for n in range(60)}
    schema = {"properties": {"x": {"$ref": "#/$defs/0"}}, "$defs": {**chain, "60": {"type": "string"}}}
    assert never_null(schema) == {"x"}
    loop = {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "string"}]}
    assert never_null({"properties": {"x": {"$ref": "#/$defs/loop"}}, "$defs": {"loop": loop}}) == {"x"}


@pytest.mark.parametrize("arguments", [{"query": None}, {"query": "x", "limits": [None]}])
def test_any_other_null_is_refused(arguments: dict[str, Any]) -> None:
    def find(query: str, limits: list[int] | None = None) -> None: ...

    with pytest.raises(InvalidArguments):
        Tool(handler=find).prepare(arguments, None)


def test_titles_go_from_every_schema_and_stay_as_names_of_properties():
    title = {"title": "Title", "type": "string"}
    schema = {"title": "All", "properties": {"title": title, "many": {"type": "array", "items": title}}}
    assert tidy(schema) == {
        "properties": {"title": {"type": "string"}, "many": {"type": "array", "items": {"type": "string"}}}
    }


def test_an_interrupt_while_a_value_is_checked_is_no_problem_of_the_value(monkeypatch: pytest.MonkeyPatch):
    class Interrupted:
        def is_valid(self, _value: Any) -> bool:
            raise KeyboardInterrupt

    schema = JsonSchema({"type": "object"})
    monkeypatch.setattr(schema, "_validator", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        schema.check({})
