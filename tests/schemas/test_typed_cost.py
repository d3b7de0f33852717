"""Values that a model wrote to hold whoever compares them with a Python type: each is refused, or checked in time."""

from __future__ import annotations

import decimal
import enum
import fractions
import ipaddress
import re
import tracemalloc
import uuid
from collections.abc import Callable
from typing import Annotated, Any, Literal

import orjson
import pytest
from pydantic import AnyUrl, Base64Bytes, BaseModel, Field, HttpUrl, Json, JsonValue, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from support.watchdog import MAX_SECONDS, cpu_seconds, watching
from toolbus import Runtime, Tool
from toolbus.core.output import OutputType
from toolbus.errors import InvalidArguments
from toolbus.schemas import (
    JsonSchema,
    TooCostly,
    TypedCost,
    _typed_cost,  # pyright: ignore[reportPrivateUsage]
    allowance,
    explain,
)
from toolbus.testing import ScriptedProvider, calls, text

pytestmark = [pytest.mark.guarantee("G14"), pytest.mark.repeats("it measures CPU time, which tracing multiplies")]


class Add(BaseModel):
    kind: Literal["add"]
    left: Add | Multiply | int
    right: Add | Multiply | int


class Multiply(BaseModel):
    kind: Literal["multiply"]
    left: Add | Multiply | int
    right: Add | Multiply | int


class Sum(BaseModel):
    kind: Literal["sum"]
    left: Told
    right: Told


class Product(BaseModel):
    kind: Literal["product"]
    left: Told
    right: Told


class Number(BaseModel):
    kind: Literal["number"]
    value: int


Told = Annotated[Sum | Product | Number, Field(discriminator="kind")]


class Wide(BaseModel):
    a: int
    b: int
    c: int
    d: int
    e: int
    f: int
    g: int
    h: int


class Row(TypedDict):
    name: str
    rank: int


Colour = enum.Enum("Colour", {f"colour_{number}": f"colour_{number}" for number in range(300)})
Add.model_rebuild()
Sum.model_rebuild()


def nested(levels: int, around: Callable[[Any], Any], inside: Any) -> Any:
    for _ in range(levels):
        inside = around(inside)
    return inside


def product(left: Any) -> Any:
    return {"kind": "product", "left": left, "right": {"kind": "number", "value": 1}}


def multiplied(left: Any) -> Any:
    return {"kind": "multiply", "left": left, "right": 1}


PRIME = 2**61 - 1  # The hash of an integer is its remainder.


def uuid_of(number: int) -> str:
    return str(uuid.UUID(int=number))


def uuid_of_digits(number: int) -> str:
    """Return one of 32,768 UUIDs without letters that have the same hash: the upper half counts eight times as much."""
    bits = [number >> bit & 1 for bit in range(15)]
    return "0" + "".join(map(str, reversed(bits))) + "0" + "".join("08"[not bit] for bit in reversed(bits))


FULL_WIDTH = str.maketrans("0123456789", "０１２３４５６７８９")  # noqa: RUF001 -- other digits are meant


HOSTILE: dict[str, tuple[Any, Callable[[int], Any]]] = {
    "wrong items": (list[int], lambda size: ["x"] * size),
    "wrong items below a long key": (dict[str, list[int]], lambda size: {"k" * (size // 10): ["x"] * size}),
    "wrong items below long keys": (
        dict[str, dict[str, list[int]]],
        lambda size: {"k" * 1_000: {f"{number:01000}": ["x"] * 10 for number in range(size // 100)}},
    ),
    "empty objects": (list[Wide], lambda size: [dict[str, int]()] * size),
    "wrong objects": (list[Wide], lambda size: [dict.fromkeys("abcdefgh", "x")] * (size // 9)),
    "many alternatives": (list[int | float | bool | tuple[int, int] | None], lambda size: ["x"] * size),
    "many options": (list[Colour], lambda size: ["x"] * size),
    "options": (list[Literal["a", "b", "c"]], lambda size: ["x"] * size),
    "a slow type": (list[ipaddress.IPv4Address], lambda size: ["x"] * size),
    "addresses": (list[HttpUrl], lambda size: [f"https://{'é.ü.' * 30}example"] * size),
    "keys with the same hash": (dict[int, int], lambda size: {str(each * PRIME): 1 for each in range(size)}),
    "UUIDs with the same hash": (set[uuid.UUID], lambda size: [uuid_of(each * PRIME) for each in range(size)]),
    "UUIDs with the same hash as keys": (
        dict[uuid.UUID, int],
        lambda size: {uuid_of(each * PRIME): 1 for each in range(size)},
    ),
    "UUIDs of decimal digits with the same hash": (set[uuid.UUID], lambda size: [*map(uuid_of_digits, range(size))]),
    "integers with underscores and the same hash": (
        set[int],
        lambda size: [f"{10**20 * PRIME + each * PRIME:_}" for each in range(size)],
    ),
    "decimals in other digits with the same hash": (
        set[decimal.Decimal],
        lambda size: [str(10**20 * PRIME + each * PRIME).translate(FULL_WIDTH) for each in range(size)],
    ),
    "fractions with the same hash": (
        set[fractions.Fraction],
        lambda size: [str(10**20 * PRIME + each * PRIME) for each in range(size)],
    ),
    "complex numbers with the same hash": (
        set[complex],
        lambda size: [f"{-1_000_003 * each}+{each}j" for each in range(size)],
    ),
    "networks with the same hash": (
        set[ipaddress.IPv6Network],
        lambda size: [f"::{each:x}:0:0:0:{0xFFFF - 8 * each:x}" for each in range(min(size, 8_000))],
    ),
    "decimals with the same hash": (set[decimal.Decimal], lambda size: [str(each * PRIME) for each in range(size)]),
    "tuples with the same hash": (
        set[tuple[int, ...]],
        lambda size: [[-1 - (each >> bit & 1) for bit in range(17)] for each in range(size)],
    ),
    "addresses with the same hash": (
        set[ipaddress.IPv6Address],
        lambda size: [str(ipaddress.IPv6Address(each * PRIME)) for each in range(size)],
    ),
    "a long address": (AnyUrl, lambda size: f"https://{'é.' * size * 20}"),
    "a long regular expression": (re.Pattern, lambda size: "a|" * size),
    "JSON in a text": (Json[dict[str, list[int]]], lambda size: f'{{"{"k" * size}": [{"{}," * size}1]}}'),
    "empty tuples": (list[tuple[int, int, int, int]], lambda size: [list[int]()] * size),
    "a nested union": (Add | Multiply, lambda size: nested(min(size, 60), multiplied, "x")),
    "a valid nested union": (Add | Multiply, lambda size: nested(min(size, 60), multiplied, 1)),
    "a union with a discriminator": (Told, lambda size: nested(min(size, 60), product, "x")),
    "any JSON": (dict[str, JsonValue], lambda size: {"a": [{"b": [1, None, "c"]}] * (size // 5)}),
}


def checked(kind: Any, value: Any) -> str:
    """Check a value as the arguments of a tool are checked, and return why it was refused, or an empty text."""

    def f(value: Any) -> None: ...

    f.__annotations__["value"] = kind
    handler = Tool(handler=f)
    written: list[str] = []

    def check() -> None:
        try:
            handler.spec.validate({"value": value})
        except InvalidArguments as exc:
            written[:] = [str(exc)]

    assert cpu_seconds(check) < MAX_SECONDS
    return "".join(written)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_check_is_refused_or_done_before_it_holds_the_thread(name: str):
    kind, make = HOSTILE[name]
    for size in (1, 3, 8, 20, 50, 200, 1_000, 3_000, 10_000, 30_000, 99_000):
        if "it cannot be checked" in checked(kind, make(size)):
            return
    assert "discriminator" in name or "JSON" in name, "without the bound, the largest of these takes too long"


ORDINARY: dict[str, tuple[Any, Any]] = {
    "numbers": (list[int], [1] * 30_000),
    "rows": (list[Row], [{"name": "x", "rank": 1}] * 3_000),
    "texts": (dict[str, str], {f"a sentence {number}" * 4: "x" * 100 for number in range(3_000)}),
    "long numbers as keys": (dict[str, int], {str(10**20 + number): 1 for number in range(1_500)}),
    "UUIDs in a set": (set[uuid.UUID], [uuid_of(7**each % 2**128) for each in range(5_000)]),
    "UUIDs without letters in a set": (set[uuid.UUID], [f"{7**each % 10**32:032}" for each in range(2_000)]),
    "moments in a set": (set[str], [f"2026-11-28 22:43:06.{number:06}" for number in range(3_000)]),
    "addresses in a set": (set[ipaddress.IPv6Address], [f"2001:db8:{number:x}:1:2:3:4:5" for number in range(2_000)]),
    "digests as keys": (dict[str, int], {f"{7**each % 2**160:040x}": 1 for each in range(5_000)}),
    "tuples in a set": (set[tuple[int, int]], [[each, -each] for each in range(500)]),
    "an address of 100 kB": (AnyUrl, f"https://a.example/{'b' * 100_000}"),
    "base64": (Base64Bytes, "QUFB" * 500_000),
    "colours": (list[Colour], ["colour_7"] * 1_000),
    "a deep union with a discriminator": (Told, nested(60, product, {"kind": "number", "value": 1})),
    "a union without one": (Add | Multiply, nested(7, multiplied, 1)),
    "deep JSON": (JsonValue, nested(60, lambda inside: [inside, {"a": inside}][:1], 1)),
    "wide JSON": (JsonValue, {f"name {number}": [1, "a", None, 1.5] for number in range(1_000)}),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_large_values_that_people_use_are_accepted(name: str):
    assert checked(*ORDINARY[name]) == ""


@pytest.mark.parametrize("name", HOSTILE)
def test_the_bound_is_above_the_real_time(name: str):
    kind, make = HOSTILE[name]
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    cost = TypedCost(adapter.json_schema())
    value = next(each for size in (3_000, 300, 30, 7) if cost.cost(each := make(size)) < 60_000_000)

    def check() -> None:
        try:
            adapter.validator.validate_json(orjson.dumps(value), strict=True)
        except ValidationError as exc:
            explain(exc)

    # The times differ between machines, and between one that is idle and one that is not.
    bound = 3 * (cost.cost(value) + 3_000_000) / 1e9
    assert cpu_seconds(check, below=bound) < bound


NUMBER, ADDRESS = {"type": "integer"}, {"type": "string", "format": "uri"}
NUMBERS = {"type": "array", "items": NUMBER}
MAPPING = {"type": "object", "additionalProperties": NUMBER}
OBJECT = {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}}
SET = {"type": "array", "uniqueItems": True, "items": NUMBERS}
TREE = {"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [NUMBER, {"type": "array", "items": {"$ref": "#/$defs/A"}}]}}}
BIG = str(10**20)

BOUNDS: dict[str, tuple[Any, Any, int]] = {
    "one problem": (NUMBER, "x", 700),
    "no type": ({}, [1], 0),
    "an address: a slow type, and 150 for each character": (ADDRESS, "ab", 8_000 + 2 * 150),
    "a type that is read by Python code, but not by character": ({"type": "string", "format": "path"}, "abc", 8_000),
    "a format that pydantic reads itself": ({"type": "string", "format": "date"}, "abc", 700),
    "a regular expression": ({"type": "string", "format": "regex"}, "abc", 8_000 + 3 * 5_000),
    "JSON in a text": ({"type": "string", "contentMediaType": "application/json"}, "abc", 700 + 3 * 5_000),
    "options: 2 for each of their characters": ({"enum": ["a", "b"]}, "a", 700 + 2 * len("['a', 'b']")),
    "a list: what is deeper costs a quarter more": (NUMBERS, [1, 2, 3], 700 + 3 * (700 + 175)),
    "a list of anything": ({"type": "array", "items": True}, [1, 2], 700),
    "a list that stands in another one": (NUMBERS, [[1]], 700 + 875),
    "a tuple, of which each item may be missing": ({"type": "array", "prefixItems": [NUMBER, ADDRESS]}, [], 3 * 700),
    "a tuple whose items may each be the slow one": (
        {"type": "array", "prefixItems": [NUMBER, ADDRESS]},
        [1, 2],
        3 * 700 + 2 * (8_000 + 2_000),
    ),
    "an object, of which each member may be missing": (OBJECT, {"a": 1}, 3 * 700 + 875),
    "an object in an object": (
        {"type": "object", "properties": {"a": OBJECT, "b": NUMBER}},
        {"a": {"b": 1}},
        3 * 700 + (2_100 + 525) + (700 + 350),
    ),
    "members by a pattern": ({"type": "object", "patternProperties": {"a": ADDRESS}}, {"a": 1}, 700 + 10_000),
    "an unknown member": ({**OBJECT, "additionalProperties": False}, {"c": 1}, 3 * 700 + (1_200 + 300)),
    "a long key": (MAPPING, {"k" * 200: 1}, 700 + (700 + 175 + 1_400)),
    "long keys within each other": (
        {"type": "object", "additionalProperties": MAPPING},
        {"k" * 200: {"j" * 100: 1}},
        700 + (700 + 175 + 1_400) + (700 + 350 + 2_100),
    ),
    "a list below a long key": (
        {"type": "object", "additionalProperties": NUMBERS},
        {"k" * 100: [1]},
        700 + (700 + 175 + 700) + (700 + 350 + 700),
    ),
    "keys that the type knows": ({"type": "object", "properties": {"k" * 200: NUMBER}}, {"k" * 200: 1}, 1_400 + 875),
    "three keys with the same hash": (
        MAPPING,
        {"0" * zeros + BIG: 1 for zeros in range(3)},
        700 + 3 * (700 + 175 + 161),
    ),
    "four keys with the same hash: eight pairs of texts, at 1,000 each": (
        MAPPING,
        {"0" * zeros + BIG: 1 for zeros in range(4)},
        700 + 8 * 1_000 + 4 * (700 + 175 + 168),
    ),
    "four keys with other hashes": (
        MAPPING,
        {str(10**20 + number): 1 for number in range(4)},
        700 + 2 * 1_000 + 4 * (700 + 175 + 147),
    ),
    "keys whose hash nobody can choose": (
        {**MAPPING, "propertyNames": {"format": "date"}},
        {"0" * zeros + BIG: 1 for zeros in range(4)},
        700 + 4 * (700 + 175 + 168),
    ),
    "a set of lists: 100 for each pair of parts": (
        SET,
        [[1, 2], [3, 4]],
        700 + 4 * 100 + 2 * (700 + 175) + 4 * (700 + 350),
    ),
    "a list of sets, which is not a set itself": (
        {"type": "array", "items": {**NUMBERS, "uniqueItems": True}},
        [[1, 2], [3, 4]],
        700 + 2 * (700 + 175) + 4 * (700 + 350),
    ),
    "a set of values whose hash nobody can choose": (
        {**SET, "items": {"type": "string", "format": "date"}},
        [[1, 2], [3, 4]],
        700 + 2 * (700 + 175),
    ),
    "a set of texts, and one of mappings": (
        {"type": "array", "uniqueItems": True, "items": {"type": "string"}},
        [BIG, "a word", BIG],
        700 + 2 * 1_000 + 3 * 875,
    ),
    "a union, of which each member is tried": ({"anyOf": [NUMBER, {"type": "null"}, ADDRESS]}, 1, 700 + 700 + 8_000),
    "a union with a discriminator": ({"oneOf": [NUMBER, ADDRESS]}, 1, 8_000),
    "a definition": ({"$ref": "#/$defs/A", "$defs": {"A": NUMBER}}, 1, 700),
    "a definition that is missing": ({"$ref": "#/$defs/B", "$defs": {"A": NUMBER}}, 1, 0),
    "a definition that refers to itself": ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, 1, 0),
    "a recursive union": (TREE, [[1]], 1_400 + (1_400 + 350) + (1_400 + 700)),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_the_bound_of_a_value_is_the_sum_of_what_its_parts_cost(name: str):
    schema, value, nanoseconds = BOUNDS[name]
    assert TypedCost(schema).cost(value) == nanoseconds


def test_an_object_that_may_have_no_unknown_members_costs_more_for_each():
    assert TypedCost(OBJECT).cost({"c": 1}) == 3 * 700 + 875
    assert TypedCost(OBJECT, is_closed=True).cost({"c": 1}) == 3 * 700 + (1_200 + 300)
    assert TypedCost(MAPPING, is_closed=True).cost({"c": 1}) == TypedCost(MAPPING).cost({"c": 1}), "none is unknown"


def test_the_bound_of_a_deep_union_stays_a_number_of_a_usual_size():
    multiplied = TypeAdapter(Add | Multiply).json_schema()
    assert TypedCost(multiplied).cost(nested(100, lambda inside: {"left": inside}, 1)) < 10**19


FREE: dict[str, tuple[Any, int]] = {
    "nothing to check": ({}, 8_192),
    "texts": ({"type": "array", "items": {"type": "string"}}, 2_048),
    "a union": ({"anyOf": [NUMBERS, {"type": "array", "items": {"type": "string"}}]}, 1_024),
    "an object with two members": (OBJECT, 512),
    "a mapping": (MAPPING, 512),
    "a set of lists": (SET, 512),
    "a set of tuples of three": ({**SET, "items": {"type": "array", "prefixItems": [NUMBER] * 3}}, 256),
    "a mapping to 40 characters of options": ({**MAPPING, "additionalProperties": {"enum": ["a" * 36]}}, 256),
    "JSON in a text": ({"type": "string", "contentMediaType": "application/json"}, 256),
    "an address": (ADDRESS, 128),
    "an object with 30 members": ({"type": "object", "properties": {str(each): NUMBER for each in range(30)}}, 64),
    "an object with 60 members": ({"type": "object", "properties": {str(each): NUMBER for each in range(60)}}, 32),
    "an object with 1,000 members": (
        {"type": "object", "properties": {str(each): NUMBER for each in range(1_000)}},
        16,
    ),
    "a recursive type": (TREE, 16),
}


@pytest.mark.parametrize("name", FREE)
def test_a_text_needs_no_check_up_to_the_size_at_which_its_worst_value_takes_two_milliseconds(name: str):
    schema, size_bytes = FREE[name]
    cost = TypedCost(schema)
    allowance.shared_ns = 0
    try:
        cost.check("x", size_bytes)
        assert cost.free_bytes == size_bytes
        if cost.cost("x"):
            with pytest.raises(TooCostly):
                cost.check("x", size_bytes + 1)
    finally:
        allowance.shared_ns = None


def test_two_lists_of_three_have_six_pairs_of_parts() -> None:
    assert _typed_cost._pairs([[1, 2, 3], [4, 5, 6]]) == 6  # pyright: ignore[reportPrivateUsage]


def test_problems_below_a_long_key_do_not_multiply_its_size():
    value = {"value": {"k" * 30_000: ["x"] * 3_000}}

    def f(value: dict[str, list[int]]) -> None: ...

    handler = Tool(handler=f)
    tracemalloc.start()
    try:
        with pytest.raises(TooCostly):
            handler.spec.validate(value)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(orjson.dumps(value))
    finally:
        tracemalloc.stop()


def test_a_long_key_is_shortened_in_a_problem():
    def f(value: dict[str, int]) -> None: ...

    with pytest.raises(InvalidArguments, match=r"^\$\.value\.kkk.* \.\.\. .*valid integer$") as caught:
        Tool(handler=f).spec.validate({"value": {"k" * 100_000: "x"}})
    assert len(str(caught.value)) < 500


def test_an_answer_is_checked_with_the_same_bound():
    output: OutputType[Any] = OutputType(Add)
    with pytest.raises(TooCostly, match="nested too deeply, for its type; send less"):
        output.spec.validate(nested(30, multiplied, 1))
    assert output.read(orjson.dumps({"kind": "add", "left": 1, "right": 2}).decode())


async def test_the_calls_of_one_reply_share_what_may_be_checked_at_once():
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    wrong = [("total", {"numbers": ["x"] * 12_000}) for _ in range(4)]
    model = ScriptedProvider([calls(*wrong), text("done")])
    async with Runtime(model, tools=[Tool(handler=total)]) as runtime, watching() as dog:
        result = await runtime.run("Add them up.")
    errors = [each.error for each in result.tool_calls]
    assert [each.startswith("$.numbers[0]: Input should be") for each in errors] == [True, True, True, False]
    assert "the calls of this reply are too big together" in errors[3]
    assert dog.longest < 2 * MAX_SECONDS  # with what else a step does
    assert allowance.shared_ns is None


async def test_the_calls_of_one_reply_have_a_bound_on_their_values_together():
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    many = [("total", {"numbers": [1] * 30_000}) for _ in range(2)]
    model = ScriptedProvider([calls(*many), text("done")])
    async with Runtime(model, tools=[Tool(handler=total)]) as runtime:
        result = await runtime.run("Add them up.")
    error = (
        "The calls in this reply have more than 50000 values, or more than 2097152 characters, together; send them in "
        "several replies."
    )
    assert [each.error for each in result.tool_calls] == [error] * 2


def test_the_time_for_patterns_is_shared_too():
    schema = {"type": "object", "properties": {"texts": {"items": {"pattern": "^(a|ab|abc)*$"}}}}
    check = JsonSchema(schema).check
    refused: list[Exception] = []

    def check_all() -> None:
        allowance.shared_ns = 40_000_000
        refused.clear()
        for _ in range(20):
            try:
                check({"texts": ["abcab" * 20_000] * 50})
            except InvalidArguments as exc:
                refused.append(exc)

    try:
        assert cpu_seconds(check_all, below=3 * MAX_SECONDS) < 3 * MAX_SECONDS
    finally:
        allowance.shared_ns = None
    assert len(refused) > 10


def test_measured_work_is_taken_from_what_checks_may_do_together_and_never_more_than_is_left() -> None:
    allowance.spend(1.0)  # Without a common bound, nothing is counted.
    assert allowance.shared_ns is None
    allowance.shared_ns = 2_000_000_000
    try:
        for seconds, left_ns in ((0.5, 1_500_000_000), (1.0, 500_000_000), (9.0, 0), (1.0, 0)):
            allowance.spend(seconds)
            assert (allowance.shared_ns, allowance.left_ns) == (left_ns, left_ns)
        with pytest.raises(TooCostly, match="too big together"):
            allowance.take(1, "too big")
    finally:
        allowance.shared_ns = None
    allowance.take(40_000_000, "too big")
    with pytest.raises(TooCostly, match=r"^too big$"):
        allowance.take(40_000_001, "too big")
