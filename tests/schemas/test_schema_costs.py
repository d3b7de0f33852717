"""The bounds on schemas and patterns, number by number: what each keyword adds to them.

`test_schema_bounds.py` measures that the bounds hold. Each figure here follows from the constants that were measured
there, so that a change which counts less than the library does is noticed without a measurement.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from toolbus.schemas import cost_of, has_many_values
from toolbus.schemas._cost import Bounds
from toolbus.schemas._json_text import MAX_VALUES
from toolbus.schemas._shape import TooCostly, shape_of

VALUE = {"a": [1, 2.5, "text " * 50], "b": {"c": None}}  # 7 values; 253 characters


class Text(str):
    """A text of a subclass, which the library cannot read as it is."""

    __slots__ = ()


class Items(list[Any]):
    """A list of a subclass."""


def test_values_of_subclasses_and_other_mappings_count_as_much_as_plain_ones():
    plain = shape_of({"ab": ["xyz", 1, None], "c": ("d",)})
    other = shape_of(MappingProxyType({"ab": ["xyz", 1, None], "c": Items([Text("d")])}))
    assert (plain.values, plain.chars, plain.is_plain) == ((1, 2, 4), (0, 3, 4), True)
    assert (other.values, other.chars, other.is_plain) == ((1, 2, 4), (0, 3, 4), False)
    assert [shape_of(each).is_plain for each in (-(2**63), -(2**63) - 1, 2**64 - 1, 2**64)] == [
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("data", "many"),
    [
        (b'["' + b"," * 40 + b'"]', False),
        (b'["' + b'\\",' * 40 + b'"]', False),
        (b'["' + b"," * 40 + b'"' + b",1" * 9 + b"]", False),
        (b'["' + b"," * 40 + b'"' + b",1" * 10 + b"]", True),
    ],
)
def test_separators_within_texts_are_no_values(data: bytes, many: bool):
    assert has_many_values(data, limit=10) is many


COSTS: list[tuple[Any, int, int]] = [
    (True, 200, 14_830),
    ({}, 200, 200),
    ({"type": "object"}, 400, 19_960),
    ({"type": ["object", "null"], "required": ["a", "b"]}, 1_400, 80_080),
    ({"enum": [1, {"a": [2.5, True, "x"]}]}, 5_600, 26_960),
    ({"const": 1.5}, 2_400, 21_960),
    ({"properties": {"a": {"type": "string"}, "b": {}}}, 1_400, 45_290),
    ({"properties": {"a": {"items": {"type": "string"}}}}, 2_450, 90_030),
    ({"maximum": 1}, 1_700, 16_330),
    ({"multipleOf": 2}, 2_200, 16_830),
    ({"multipleOf": 2.5}, 50_200, 64_830),
    ({"contentEncoding": "base64"}, 200, 14_830),
    ({"contentMediaType": "a/b", "type": "string"}, 400, 34_590),
    ({"uniqueItems": True}, 35_200, 49_830),
    ({"uniqueItems": False}, 200, 14_830),
    ({"items": {"uniqueItems": True}}, 40_600, 79_560),
    ({"pattern": "a"}, 3_200, 17_830),
    ({"patternProperties": {"^a": {}, "b+": {"type": "string"}}}, 3_980, 47_870),
    ({"properties": {"a": {"patternProperties": {"^a": {}}, "items": {}}}}, 16_145, 79_435),
    ({"propertyNames": {"type": "string"}}, 1_000, 56_330),
    ({"allOf": [{}, {"type": "string"}]}, 800, 38_990),
    ({"anyOf": [{"allOf": [{}]}]}, 600, 34_660),
    ({"unevaluatedProperties": False, "allOf": [{"unevaluatedItems": False}]}, 4_801, 379_446),
    ({"dependentRequired": {"a": ["b", "c"]}}, 1_000, 74_150),
    ({"dependencies": {"a": ["b"], "c": {}}}, 1_200, 80_350),
    ({"contains": {}, "items": [{}, {}], "additionalItems": {"type": "string"}}, 1_400, 74_550),
    ({"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"a": {"$ref": "#/$defs/n"}}}}}, 4_300, 205_770),
    ({"not": {}, "if": {}, "then": {}, "else": {}}, 1_000, 64_520),
]


@pytest.mark.parametrize(("schema", "check_ns", "report_ns"), COSTS)
def test_each_keyword_adds_its_cost_for_each_value_that_it_may_apply_to(schema: Any, check_ns: int, report_ns: int):
    bounds, shape = Bounds(schema), shape_of(VALUE)
    assert (shape.values, shape.chars) == ((1, 2, 4), (0, 2, 251))
    assert (bounds.cost(shape), bounds.cost_of_report(shape)) == (check_ns, report_ns)


def test_a_list_of_different_items_costs_only_what_is_below_it():
    bounds = Bounds({"additionalProperties": {"items": {"uniqueItems": True}}})
    # The characters of the name are read once, and not compared.
    assert [bounds.cost(shape_of({name: [[1]]})) for name in ("k", "k" * 1_000)] == [14_600, 14_800]


@pytest.mark.parametrize(
    ("pattern", "compile_ns", "match_ns"),
    [
        ("", 20_000, 15),
        ("abc", 74_000, 15),
        ("aaaaaaaa", 164_000, 15),
        ("aaaaaaaaa", 182_000, 120),
        ("aaaaaaaaaaaa", 236_000, 120),
        ("aaaaaaaaaaaaa", 254_000, 1_580),
        ("(ab){3}", 126_000, 120),
        ("(a{20}|b){5}", 1_186_000, 7_700),
        ("\\d{3}", 110_000, 15),
        ("\\w", 930_000, 15),
        ("\\s\\S\\W\\P", 3_660_000, 15),
        ("\\p{L}", 930_000, 15),
        ("\\p{L}a", 948_000, 15),
        ("\\x41", 126_000, 15),
        ("\\x{41}", 90_000, 15),
        ("\\u0041", 162_000, 15),
        ("\\p{L", 930_000, 15),
        (".", 90_000, 15),
        ("[a-z]", 90_000, 15),
        ("(?i)[a-z]", 5_040_000, 15),
        ("(?i:a)[b]", 5_058_000, 15),
        ("[\\w\\]a]", 1_050_000, 15),
        ("[^\\]{5}]{2}", 160_000, 15),
        ("(?:a){2}", 68_000, 15),
        ("(?<n>ab){2}", 96_000, 15),
        ("(?P<n>a)", 48_000, 15),
        ("(?i)a{3}", 68_000, 15),
        ("a{2,}", 58_000, 15),
        ("a{,3}", 58_000, 15),
        ("a{ 2 , 4 }", 68_000, 15),
        ("a{0}", 38_000, 15),
        ("{3}", 20_000, 15),
        ("a*b+c?", 74_000, 15),
        ("a++", 48_000, 15),
        ("(a", 48_000, 15),
        ("abc(d(e", 130_000, 15),
        ("a)", 56_000, 15),
        ("^a$", 58_000, 15),
        ("a|b", 66_000, 15),
        ("[a", 90_000, 15),
        ("\\", 90_000, 15),
        ("((a{2}b){2}c){2}", 244_000, 2_000),
        ("(?=a)", 66_000, 15),
        ("(?", 30_000, 15),
    ],
)
def test_each_part_of_a_pattern_adds_its_cost(pattern: str, compile_ns: int, match_ns: int):
    cost = cost_of(pattern)
    assert (cost.compile_ns, cost.match_ns) == (compile_ns, match_ns)


def test_the_cost_of_compiling_stops_where_the_engine_refuses_and_the_cost_of_matching_does_not():
    longest = cost_of("x" * 2_000)
    assert longest.compile_ns == 20_000 + 2_000 * 8_000 + 1_500 * 10_000
    assert longest.match_ns == 800 + 60 * 2_000


def test_the_most_values_are_taken_and_one_more_is_not() -> None:
    assert sum(shape_of([0] * (MAX_VALUES - 1)).values) == MAX_VALUES
    with pytest.raises(TooCostly, match=f"more than {MAX_VALUES} values"):
        shape_of([0] * MAX_VALUES)
