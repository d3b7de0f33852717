"""Types as structured outputs: their schemas, and what is read as a value of them."""

from __future__ import annotations

import enum
import gc
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Optional

import pytest
from pydantic import BaseModel, ConfigDict, field_validator
from typing_extensions import TypedDict

from toolbus.core.output import FINAL_ANSWER, OutputType
from toolbus.errors import ConfigurationError, InvalidArguments


class City(BaseModel):
    name: str
    people: int = 0


class Dog(BaseModel):
    bark: str


class Meeting(BaseModel):
    model_config = ConfigDict(strict=True)
    at: datetime
    rooms: tuple[int, ...] = ()


class Node(BaseModel):
    name: str
    inside: list[Node] = []


@dataclass
class Point:
    x: int
    y: int = 0


class Both(TypedDict):
    city: str


class Colour(enum.Enum):
    RED = "red"


class Paper(enum.Enum):
    A4 = (210, 297)
    A5 = (148, 210)


class Holiday(enum.Enum):
    MAY_DAY = datetime(2026, 5, 1, tzinfo=UTC).date()


WANTED: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "model": (City, {"name": "Rome"}, City(name="Rome")),
    "dataclass": (Point, {"x": 3}, Point(3)),
    "typed dict": (Both, {"city": "Rome"}, {"city": "Rome"}),
    "dict": (dict[str, int], {"a": 1}, {"a": 1}),
    "list": (list[int], {"value": [1, 2]}, [1, 2]),
    "int": (int, {"value": 3}, 3),
    "text": (str, {"value": "noon"}, "noon"),
    "literal": (Literal["yes", "no"], {"value": "no"}, "no"),
    "union of scalars": (int | str, {"value": "x"}, "x"),
    "union of models": (City | Dog, {"value": {"bark": "wow"}}, Dog(bark="wow")),
    "optional": (Optional[City], {"value": None}, None),  # noqa: UP045 -- as people write it
    "datetime": (datetime, {"value": "2026-03-01T12:00:00Z"}, datetime(2026, 3, 1, 12, tzinfo=UTC)),
    "strict": (
        Meeting,
        {"at": "2026-03-01T12:00:00Z", "rooms": [1]},
        Meeting(at=datetime(2026, 3, 1, 12, tzinfo=UTC), rooms=(1,)),
    ),
    "enum": (Colour, {"value": "red"}, Colour.RED),
    "enum of tuples": (Paper, {"value": [148, 210]}, Paper.A5),
    "enum of dates": (list[Holiday], {"value": ["2026-05-01"]}, [Holiday.MAY_DAY]),
    "literal of members": (Literal[Colour.RED], {"value": "red"}, Colour.RED),
    "iterable": (Iterable[int], {"value": [1, 2]}, [1, 2]),
    "recursive": (Node, {"name": "a", "inside": [{"name": "b"}]}, Node(name="a", inside=[Node(name="b")])),
    "list of recursive": (list[Node], {"value": [{"name": "a"}]}, [Node(name="a")]),
}


@pytest.mark.parametrize("kind", WANTED)
def test_a_type_is_a_tool_whose_valid_arguments_are_its_values(kind: str) -> None:
    wanted, arguments, value = WANTED[kind]
    output = OutputType[Any](wanted)
    assert (output.spec.name, output.spec.control) == (FINAL_ANSWER, "output")
    assert output.spec.parameters["type"] == "object"
    assert set(arguments) <= set(output.spec.parameters.get("properties") or arguments)
    output.spec.validate(arguments)
    loaded = output.load(arguments)
    assert loaded == value
    assert type(loaded) is type(value)


@pytest.mark.parametrize("kind", WANTED)
def test_the_same_arguments_are_read_from_a_text(kind: str) -> None:
    import orjson

    wanted, arguments, value = WANTED[kind]
    output = OutputType[Any](wanted)
    assert output.load(output.read(orjson.dumps(arguments).decode())) == value
    if set(arguments) == {"value"}:  # a model that has not seen the schema leaves the wrapping out
        assert output.read(orjson.dumps(arguments["value"]).decode()) == arguments


@pytest.mark.parametrize(
    "wrong", [{}, {"value": "many"}, {"value": [1, "x"]}, {"value": None}, {"values": [1]}, {"value": {"0": 1}}]
)
def test_what_is_no_value_of_the_type_is_refused_with_its_place(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArguments, match=r"^\$\.value"):
        OutputType(list[int]).load(wrong)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Rome"}',
        '  \n{"name": "Rome"}\n',
        'Here it is:\n```json\n{"name": "Rome"}\n```\nIs it well?',
        '```\r\n{"name": "Rome"}\r\n```\r\n',
        '```json\n{"name": "Rome"}```',
        'It is ```json\n{"name": "Rome"}\n```',
        '```json\n{"name": "Paris"}\n```\nNo:\n```json\n{"name": "Rome"}\n```',
        '```json5\n{\n  "name": "Rome"\n}\n```',
    ],
)
def test_json_is_found_alone_and_in_the_last_fenced_block(text: str) -> None:
    assert OutputType(City).read(text) == {"name": "Rome"}


@pytest.mark.parametrize("name", ["```python\nprint(1)\n```", "```", "a ``` b", "two\u2028lines", "```json\n{}\n```\n"])
@pytest.mark.parametrize("fence", ["{}", "```json\n{}\n```", "Here:\n```\n{}\n```"])
def test_fences_inside_of_texts_are_texts(name: str, fence: str) -> None:
    import json

    written = fence.replace("{}", json.dumps({"name": name}, ensure_ascii=False))
    assert OutputType(City).read(written) == {"name": name}


@pytest.mark.parametrize("text", ["", " \n", "```json\n```", "noon", '{"name": ', "[1]", '{"name": NaN}', "null"])
def test_a_text_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidArguments):
        OutputType(City).read(text)


@pytest.mark.parametrize("text", ['1, "x": 2', '1, "value": 2', '1}, {"value": 2', '{"value": 1, "x": 2}', "1 2"])
def test_a_text_cannot_be_more_than_the_value(text: str) -> None:
    with pytest.raises(InvalidArguments):
        OutputType(int).read(text)


@pytest.mark.parametrize("text", ["```" + "\n" * 100_000, "```json\n" * 50_000, "```" * 100_000, "`" * 300_000])
def test_a_text_of_fences_takes_no_time(text: str) -> None:
    began = time.thread_time()
    with pytest.raises(InvalidArguments):
        OutputType(City).read(text)
    assert time.thread_time() - began < 2  # it was minutes


def test_a_validator_that_breaks_is_an_answer_that_cannot_be_checked() -> None:
    class Broken(BaseModel):
        name: str

        @field_validator("name")
        @classmethod
        def check(cls, name: str) -> str:
            raise ZeroDivisionError(name)

    with pytest.raises(InvalidArguments, match="could not be checked: ZeroDivisionError"):
        OutputType(Broken).read('{"name": "Rome"}')


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the answer is empty"),
        ("noon", "the answer is not valid JSON"),
        ("[1]", "the answer must be a JSON object, not an array"),
        ('{"name": "a", "name": "b"}', "the answer has the key 'name' twice"),
        ('{"name": ' + "[" * 70 + "]" * 70 + "}", "the answer is nested deeper"),
    ],
)
def test_the_model_is_told_what_is_wrong_with_its_answer(text: str, why: str) -> None:
    with pytest.raises(InvalidArguments, match=why):
        OutputType(City).read(text)


class Plain:
    pass


class Opaque(enum.Enum):
    ONE = Plain()


@pytest.mark.parametrize("wanted", [Plain, Opaque, 5, Callable[[], int], "Nowhere", "int"])
def test_a_type_without_a_schema_is_refused_by_name(wanted: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^output=.* has no JSON schema: .*; (use plain types|pass the type itself)"
    ) as refused:
        OutputType[Any](wanted)
    assert "\n" not in str(refused.value)


def test_the_schema_of_a_class_is_made_once_and_does_not_keep_the_class_alive() -> None:
    made: list[str] = []

    class Answer(BaseModel):
        text: str

        @classmethod
        def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
            made.append(cls.__name__)
            return handler(core_schema)

    first, second = OutputType(Answer), OutputType(Answer, {"a": 1})
    assert first.spec.parameters == second.spec.parameters
    assert made == ["Answer"]

    is_alive = weakref.ref(Answer)
    del Answer, first, second
    gc.collect()
    assert is_alive() is None


class Missing(BaseModel):
    """Nothing was found."""


class Cheap(BaseModel):
    price: int

    @field_validator("price")
    @classmethod
    def is_low(cls, price: int) -> int:
        if price > 100:
            raise ValueError("too dear")
        return price


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


class Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: str


FOUND: Any = Cheap | Missing
LENIENT: Any = Cheap | Lenient
OPEN: Any = Cheap | Anything
PERHAPS: Any = Optional[Cheap]  # noqa: UP045


@pytest.mark.parametrize("answer", ['{"price": 500}', '{"prize": 5}', '{"value": {"price": 500}}'])
def test_a_wrong_answer_does_not_pass_for_another_member_of_a_union(answer: str) -> None:
    # It was an empty `Missing`, and the model did not read that 500 is too dear.
    with pytest.raises(InvalidArguments, match=r"too dear|price: Field required"):
        OutputType(FOUND).read(answer)


def test_a_union_takes_its_members_and_the_fields_that_they_allow() -> None:
    assert OutputType(FOUND).load({"value": {}}) == Missing()
    assert OutputType(FOUND).load({"value": {"price": 5}}) == Cheap(price=5)
    assert OutputType(OPEN).load({"value": {"prize": 5}}).prize == 5
    assert OutputType(LENIENT).load({"value": {"name": "x", "note": "x"}}) == Lenient(name="x")
    assert OutputType(PERHAPS).load({"value": {"price": 5, "note": "x"}}) == Cheap(price=5)


BARE: dict[str, tuple[Any, str, Any]] = {
    "text": (str, " At noon.\n", "At noon."),
    "text with code": (str, "Run this:\n```sh\nls\n```", "Run this:\n```sh\nls\n```"),
    "digits": (str, "42", "42"),
    "literal": (Literal["yes", "no"], "no", "no"),
    "literal of digits": (Literal["1", "2"], "2", "2"),
    "enum": (Colour, "red", Colour.RED),
    "datetime": (datetime, "2026-03-01T12:00:00Z", datetime(2026, 3, 1, 12, tzinfo=UTC)),
    "text or model": (str | Cheap, "None is cheap.", "None is cheap."),
    "model or text": (str | Cheap, '{"price": 5}', Cheap(price=5)),
}


@pytest.mark.parametrize(("wanted", "written", "value"), BARE.values(), ids=BARE)
def test_a_text_or_a_choice_may_be_written_without_quotes(wanted: Any, written: str, value: Any) -> None:
    output = OutputType(wanted)
    assert output.load(output.read(written)) == value


@pytest.mark.parametrize(
    ("wanted", "written", "why"),
    [
        (str | Cheap, '{"price": ', "the answer is not valid JSON"),
        (str, '"At noon', "the answer is not valid JSON"),
        (str, " ", "the answer is empty"),
        (Literal["yes", "no"], "perhaps", "the answer is not valid JSON"),
        (int, "noon", "the answer is not valid JSON"),
        (Cheap, "noon", "the answer is not valid JSON"),
    ],
)
def test_broken_json_is_not_taken_for_a_text(wanted: Any, written: str, why: str) -> None:
    with pytest.raises(InvalidArguments, match=why):
        OutputType(wanted).read(written)


@pytest.mark.parametrize(
    ("wanted", "advice"),
    [
        ([City, Dog], r"it is several types; pass a union, such as int \| str"),
        (len, r"it is a function; .* @tool\(return_direct=True\)"),
        (City.model_validate, r"it is a function; .* @tool\(return_direct=True\)"),
    ],
)
def test_what_other_libraries_take_as_a_type_is_refused_with_what_to_pass(wanted: Any, advice: str) -> None:
    with pytest.raises(ConfigurationError, match=advice):
        OutputType(wanted)


@pytest.mark.parametrize("make", [lambda: City(name="Rome"), lambda: Point(1)], ids=["model", "dataclass"])
def test_a_value_in_the_place_of_its_type_is_refused_with_the_name_of_the_type(make: Callable[[], Any]) -> None:
    wanted = make()
    name = type(wanted).__name__
    with pytest.raises(ConfigurationError, match=f"it is a value; its type is {name}; pass the type itself"):
        OutputType(wanted)


def test_a_class_that_cannot_be_hashed_is_a_type_like_any_other():
    class Comparing(type):
        def __eq__(cls, other: object) -> bool:
            return cls is other

    @dataclass
    class Place(metaclass=Comparing):
        city: str

    assert OutputType(Place).read('{"city": "Rome"}') == {"city": "Rome"}
