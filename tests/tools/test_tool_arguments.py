"""What a model may send: JSON's own rules, told in words that a model can use; and each handler's own copy."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import pathlib
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError

from support.watchdog import MAX_SECONDS, cpu_seconds
from toolbus.core.arguments import parse_arguments
from toolbus.errors import ConfigurationError, InvalidArguments
from toolbus.schemas import explain
from toolbus.tools import Tool, tool


class Unit(enum.Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


class Place(BaseModel):
    name: str
    rank: int = 1


@dataclass
class Span:
    first: int
    tags: list[str] = field(default_factory=list[str])


def accept(
    *,
    number: int = 0,
    ratio: float = 0.0,
    yes: bool = False,
    word: str = "",
    unit: Unit = Unit.CELSIUS,
    mode: Literal["fast", "slow"] = "fast",
    day: dt.date | None = None,
    at: dt.datetime | None = None,
    lasting: dt.timedelta | None = None,
    price: decimal.Decimal | None = None,
    key: uuid.UUID | None = None,
    path: pathlib.Path | None = None,
    pair: tuple[int, str] | None = None,
    marks: set[int] | None = None,
    places: list[Place] | None = None,
    span: Span | None = None,
    bounded: Annotated[int, Field(ge=0, le=9)] = 0,
) -> None: ...


ACCEPT = Tool(handler=accept)


def bound(**arguments: Any) -> Any:
    made: Any = ACCEPT.prepare(arguments, None)
    return made.keywords


def refusal(**arguments: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        ACCEPT.prepare(arguments, None)
    with pytest.raises(InvalidArguments) as checked:
        ACCEPT.spec.validate(arguments)
    assert str(checked.value) == str(caught.value), "the turn machine and the handler's side agree"
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "sent", "given"),
    [
        ("number", -3, -3),
        ("ratio", 3, 3.0),
        ("ratio", 2.5, 2.5),
        ("yes", True, True),
        ("unit", "f", Unit.FAHRENHEIT),
        ("mode", "slow", "slow"),
        ("day", "2026-02-28", dt.date(2026, 2, 28)),
        ("day", None, None),
        ("at", "2026-02-28T10:00:00Z", dt.datetime(2026, 2, 28, 10, tzinfo=dt.UTC)),
        ("lasting", "PT1H", dt.timedelta(hours=1)),
        ("price", "1.10", decimal.Decimal("1.10")),
        ("key", "00000000-0000-0000-0000-000000000001", uuid.UUID(int=1)),
        ("path", "a/b", pathlib.Path("a/b")),
        ("pair", [1, "x"], (1, "x")),
        ("marks", [1, 2, 1], {1, 2}),
        ("places", [{"name": "Paris"}], [Place(name="Paris")]),
        ("span", {"first": 1, "tags": ["x"]}, Span(1, ["x"])),
        ("bounded", 9, 9),
    ],
)
def test_what_json_can_say_reaches_the_handler_as_its_type(name: str, sent: Any, given: Any):
    ACCEPT.spec.validate({name: sent})
    value = bound(**{name: sent})[name]
    assert value == given
    assert type(value) is type(given)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"number": "3"}, "$.number: Input should be a valid integer"),
    ({"number": 1.0}, "$.number: Input should be a valid integer"),
    ({"number": 1.5}, "$.number: Input should be a valid integer"),
    ({"number": True}, "$.number: Input should be a valid integer"),
    ({"number": []}, "$.number: Input should be a valid integer"),
    ({"ratio": "2.5"}, "$.ratio: Input should be a valid number"),
    ({"yes": "true"}, "$.yes: Input should be a valid boolean"),
    ({"yes": 1}, "$.yes: Input should be a valid boolean"),
    ({"word": 3}, "$.word: Input should be a valid string"),
    ({"unit": "CELSIUS"}, "$.unit: Input should be 'c' or 'f'"),
    ({"mode": "medium"}, "$.mode: Input should be 'fast' or 'slow'"),
    ({"day": "28.02.2026"}, "$.day: Input should be a valid date"),
    ({"day": "2026-02-30"}, "$.day: Input should be a valid date"),
    ({"day": 0}, "$.day: Input should be a valid date"),
    ({"pair": [1]}, "$.pair[1]: Field required"),
    ({"pair": ["1", "x"]}, "$.pair[0]: Input should be a valid integer"),
    ({"places": [{"name": "Paris", "rank": "1"}]}, "$.places[0].rank: Input should be a valid integer"),
    ({"places": [{}]}, "$.places[0].name: Field required"),
    ({"span": {"first": "1"}}, "$.span.first: Input should be a valid integer"),
    ({"span": {"first": 1, "last": 2}}, "$.span.last: There is no such argument"),
    ({"bounded": 10}, "$.bounded: Input should be less than or equal to 9"),
    ({"nmber": 1}, "$.nmber: There is no such argument"),
]


@pytest.mark.parametrize(("arguments", "reported"), REFUSED)
def test_what_breaks_the_schema_is_reported_with_its_path_and_what_was_expected(
    arguments: dict[str, Any], reported: str
):
    said = refusal(**arguments)
    assert said.startswith(reported)
    assert "\n" not in said
    assert "pydantic" not in said.lower()


def test_a_missing_argument_is_reported():
    def f(city: str) -> None: ...

    with pytest.raises(InvalidArguments, match=r"^\$\.city: Field required$"):
        Tool(handler=f).prepare({}, None)


def test_all_problems_are_reported_at_once_but_at_most_eight():
    assert refusal(number="3", word=3).split("; ") == [
        "$.number: Input should be a valid integer",
        "$.word: Input should be a valid string",
    ]
    many = refusal(**{f"x{number}": 1 for number in range(20)}).split("; ")
    assert len(many) == 9
    assert many[-1] == "and 12 more"


@pytest.mark.repeats("it measures time")
def test_arguments_that_do_not_exist_do_not_hold_the_event_loop():
    sent = {"number": "3"} | {f"x{number}": 1 for number in range(49_000)} | {"word": 3}
    assert cpu_seconds(lambda: refusal(**sent)) < MAX_SECONDS
    assert "it is too big" in refusal(**sent)


@pytest.mark.repeats("it measures time")
def test_explaining_many_problems_does_not_hold_the_event_loop():
    with pytest.raises(ValidationError) as found:
        TypeAdapter(dict[str, list[int]]).validate_python({"a name": ["x"] * 99_000})
    assert cpu_seconds(lambda: explain(found.value)) < MAX_SECONDS
    problems = explain(found.value).split("; ")
    assert problems[0].startswith("$.a name[0]: Input should be a valid integer")
    assert problems[8:] == ["and 98992 more"]


@pytest.mark.parametrize("sent", [["3"], [None], "34", {"3": 4}])
def test_the_items_of_an_iterable_are_checked_before_the_handler_runs(sent: Any):
    @tool
    def add(numbers: Iterable[int], more: Annotated[Iterable[int] | None, Field(description="more")] = None) -> int:
        return sum(numbers) + sum(more or ())

    assert add.prepare({"numbers": [1, 2], "more": [3]}, None)() == 6
    tries: list[dict[str, Any]] = [{"numbers": sent}, {"numbers": [], "more": sent}]
    for arguments in tries:
        with pytest.raises(InvalidArguments, match=r"^\$\.(numbers|more)"):
            add.prepare(arguments, None)


def test_a_member_whose_value_is_no_json_is_what_the_schema_shows_of_it():
    class Paper(enum.Enum):
        A4 = (210, 297)
        PLAIN = "plain"
        DATED = dt.date(2026, 5, 1)
        PRICED = decimal.Decimal("1.50")
        RAW = b"raw"

    @tool
    def put(paper: Paper = Paper.A4, others: dict[str, list[Paper]] | None = None) -> Any:
        return paper, others

    shown: list[Any] = [[210, 297], "plain", "2026-05-01", "1.50", "raw"]
    assert put.parameters["$defs"]["Paper"]["enum"] == shown
    assert [put.prepare({"paper": each}, None)()[0] for each in shown] == list(Paper)
    assert put.prepare({"others": {"a": shown}}, None)() == (Paper.A4, {"a": list(Paper)})
    with pytest.raises(InvalidArguments, match=r"^\$\.paper: "):
        put.prepare({"paper": [297, 210]}, None)


def test_a_literal_of_an_enums_members_takes_their_values():
    @tool
    def turn(unit: Literal[Unit.CELSIUS], others: list[Literal[Unit.FAHRENHEIT, "k", 1]] | None = None) -> Any:
        return unit, others

    assert turn.prepare({"unit": "c"}, None)() == (Unit.CELSIUS, None)
    assert turn.prepare({"unit": "c", "others": ["f", "k", 1]}, None)() == (Unit.CELSIUS, [Unit.FAHRENHEIT, "k", 1])
    assert turn.parameters["properties"]["unit"] == {"const": "c", "type": "string"}
    with pytest.raises(InvalidArguments, match=r"\$\.unit: Input should be 'c'; \$\.others\[0\]: Input should be 'f'"):
        turn.prepare({"unit": "f", "others": ["c"]}, None)


def test_a_literal_of_members_whose_values_are_no_text_or_integer_takes_what_the_schema_shows():
    class Paper(enum.Enum):
        A4 = (210, 297)
        HALF = 0.5
        PLAIN = "plain"
        ODD = object()

    @tool
    def put(paper: Literal[Paper.A4, Paper.HALF, Paper.PLAIN]) -> Any:
        return paper

    sent: list[Any] = [[210, 297], 0.5, "plain"]
    assert put.parameters["properties"]["paper"]["enum"] == sent
    assert [put.prepare({"paper": each}, None)() for each in sent] == [Paper.A4, Paper.HALF, Paper.PLAIN]
    with pytest.raises(InvalidArguments, match=r"^\$\.paper: "):
        put.prepare({"paper": [297, 210]}, None)

    def odd(paper: Literal[Paper.ODD]) -> None: ...

    with pytest.raises(ConfigurationError, match="parameter 'paper' has no JSON schema"):
        Tool(handler=odd)


def test_each_handler_gets_its_own_copy_and_the_event_keeps_its_own():
    arguments = {"places": [{"name": "Paris"}], "span": {"first": 1, "tags": ["x"]}}
    one, other = bound(**arguments), bound(**arguments)
    one["places"].append(Place(name="Rome"))
    one["places"][0].name = "changed"
    one["span"].tags.append("y")
    assert other["places"] == [Place(name="Paris")]
    assert other["span"] == Span(1, ["x"])
    assert arguments == {"places": [{"name": "Paris"}], "span": {"first": 1, "tags": ["x"]}}


def test_plain_containers_are_copied_too():
    def collect(items: list[Any], table: dict[str, Any]) -> None:
        items.append(1)
        table["x"] = 1

    arguments: dict[str, Any] = {"items": [[]], "table": {}}
    Tool(handler=collect).prepare(arguments, None)()
    assert arguments == {"items": [[]], "table": {}}


def test_a_mutable_default_is_not_shared_between_calls():
    def collect(item: str, into: list[str] = [], span: Span = Span(1)) -> Any:  # noqa: B006, B008
        into.append(item)
        span.tags.append(item)
        return into, span.tags

    made = Tool(handler=collect)
    assert made.prepare({"item": "a"}, None)() == (["a"], ["a"])
    assert made.prepare({"item": "b"}, None)() == (["b"], ["b"])


def test_a_models_json_goes_the_whole_way():
    assert bound(**parse_arguments('{"day": "2026-02-28", "pair": [1, "x"]}'))["pair"] == (1, "x")


def test_arguments_from_inside_that_are_no_json_are_refused():
    class Array:  # such as numpy's, which cannot be compared
        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

    assert refusal(word=Array()).startswith("arguments are not JSON")
    assert refusal(word={1, 2}).startswith("arguments are not JSON")
    assert refusal(number=2**70).startswith("arguments are not JSON")


def test_a_validator_of_the_application_words_its_refusal():
    def even(number: int) -> int:
        if number % 2:
            raise ValueError("must be even")
        return number

    def f(number: Annotated[int, AfterValidator(even)]) -> int:
        return number

    with pytest.raises(InvalidArguments, match=r"^\$\.number: Value error, must be even$"):
        Tool(handler=f).prepare({"number": 3}, None)


@pytest.mark.parametrize("raised", [KeyError("secret"), TypeError("secret")])
def test_a_validator_that_breaks_refuses_the_arguments_and_keeps_its_secrets(raised: Exception):
    def broken(_number: int) -> int:
        raise raised

    def f(number: Annotated[int, AfterValidator(broken)]) -> int:
        return number

    with pytest.raises(InvalidArguments, match=f"could not be checked: {type(raised).__name__}$") as caught:
        Tool(handler=f).prepare({"number": 3}, None)
    assert caught.value.__cause__ is raised


# ------------------------------------------------------------------------------------------------- tools


def test_names_are_what_providers_accept():
    def f() -> None: ...

    for name in ("a", "get_weather", "x-1", "A" * 64):
        assert Tool(name, handler=f).name == name
    for name in ("A" * 65, "get weather", "größe", "a.b", "<lambda>"):
        with pytest.raises(ConfigurationError, match="not accepted by model providers"):
            Tool(name, handler=f)
    with pytest.raises(ConfigurationError, match=r"<lambda>.*pass name="):
        Tool(handler=lambda: None)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_timeout_that_is_no_positive_finite_number_is_refused(seconds: float):
    with pytest.raises(ValueError, match="timeout_seconds"):
        Tool(handler=accept, timeout_seconds=seconds)


def test_a_bound_below_one_is_refused():
    with pytest.raises(ConfigurationError, match="max_concurrency is 0"):
        Tool(handler=accept, max_concurrency=0)


def test_options_of_the_decorator_reach_the_tool():
    @tool(name="named", description="Said.", timeout_seconds=2, max_concurrency=3, external=True)
    def f(x: int) -> int:
        """Not this."""
        return x

    assert (f.name, f.description, f.max_concurrency) == ("named", "Said.", 3)
    assert (f.spec.timeout_seconds, f.spec.external) == (2, True)
    assert repr(f) == "Tool('named')"
    assert f(3) == 3


def test_an_external_tool_needs_a_name_and_a_schema_or_a_handler_to_take_them_from():
    made: Tool = Tool("approve", "Ask a person.", {"type": "object"}, external=True)
    assert made.handler is None
    with pytest.raises(ConfigurationError, match="'approve' is external"):
        made.prepare({}, None)
    with pytest.raises(ConfigurationError, match="'approve' is external"):
        made()
    incomplete: list[dict[str, Any]] = [
        {},
        {"external": True},
        {"external": True, "name": "x"},
        {"name": "x", "schema": {}},
    ]
    for options in incomplete:
        with pytest.raises(ConfigurationError, match="needs a handler"):
            Tool(**options)
    handler: Any = str.upper
    with pytest.raises(ConfigurationError, match=r"needs a handler, or .*; pass the function as handler="):
        Tool(handler)
