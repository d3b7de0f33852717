"""Schemas and values that were made to hold whoever compares them: each is refused, or done, in bounded time.

What is measured is the CPU time of the thread. The bound is the one that the event loop has for any one thing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.watchdog import cpu_seconds
from toolbus.errors import ConfigurationError, InvalidArguments
from toolbus.schemas import JsonSchema, TooCostly, cost_of, matcher
from toolbus.schemas._cost import Bounds
from toolbus.schemas._json_schema import _plain  # pyright: ignore[reportPrivateUsage]
from toolbus.schemas._shape import shape_of
from toolbus.tools import Tool

pytestmark = pytest.mark.repeats("it measures CPU time, which tracing multiplies")

Case = tuple[dict[str, Any], Any]
MAX_SECONDS = 0.1
BITS = f"{random.Random(3).getrandbits(100_000):0100000b}"


def look_up(**arguments: Any) -> Any:
    raise AssertionError(arguments)


def of(schema: dict[str, Any], value: Any) -> Case:
    return {"type": "object", "properties": {"x": schema}}, {"x": value}


def nested(levels: int, around: Callable[[Any], Any], inside: Any) -> Any:
    for _ in range(levels):
        inside = around(inside)
    return inside


def laughs(levels: int, width: int, keyword: str = "anyOf", leaf: Any = None) -> dict[str, Any]:
    """Alternatives of alternatives, by references: a billion laughs."""
    parts: dict[str, Any] = {"l0": leaf or {"type": "string"}}
    for level in range(1, levels + 1):
        parts[f"l{level}"] = {keyword: [{"$ref": f"#/$defs/l{level - 1}"}] * width}
    return {"$defs": parts, "type": "object", "properties": {"x": {"$ref": f"#/$defs/l{levels}"}}}


def recurring(node: Any) -> dict[str, Any]:
    return {"$defs": {"n": node}, "type": "object", "properties": {"x": {"$ref": "#/$defs/n"}}}


def crossing(count: int) -> dict[str, Any]:
    """So many definitions, each of which refers to two others."""
    parts: dict[str, Any] = {
        f"d{i}": {
            "properties": {"a": {"$ref": f"#/$defs/d{(i + 1) % count}"}, "b": {"$ref": f"#/$defs/d{i * 7 % count}"}}
        }
        for i in range(count)
    }
    return {"$defs": parts, "type": "object", "$ref": "#/$defs/d0"}


AGAIN = {"$ref": "#/$defs/n"}
TWICE = recurring({"anyOf": [{"properties": {"a": AGAIN}, "required": [name]} for name in "qr"]})
TREE = recurring({"properties": {"v": {"type": "integer"}, "c": {"items": AGAIN}}, "additionalProperties": False})
DEEP_ANY = recurring(nested(15, lambda s: {"anyOf": [s]}, {"type": "object", "properties": {"a": AGAIN}}))


def unevaluated(levels: int, keyword: str = "unevaluatedProperties") -> dict[str, Any]:
    return nested(levels, lambda inside: {"allOf": [inside], keyword: False}, {"properties": {"a": {}}})


OTHER: dict[str, Any] = {"properties": {"q": {}}}
SIZES = (
    1,
    2,
    3,
    4,
    5,
    6,
    8,
    11,
    14,
    20,
    30,
    50,
    100,
    200,
    350,
    600,
    1_000,
    1_700,
    3_000,
    5_500,
    10_000,
    30_000,
    90_000,
)
FLAT_OBJECT: dict[str, Any] = {
    "properties": {f"p{i}": {"type": "integer"} for i in range(50)},
    "unevaluatedProperties": False,
}
HOSTILE: dict[str, Callable[[int], Case]] = {
    "the pattern of the report": lambda n: of({"pattern": "^(a+)+$"}, "a" * n * 20 + "!"),
    "alternatives, wide": lambda n: (laughs(2, n), {"x": 1}),
    "alternatives, deep": lambda n: (laughs(n, 2), {"x": 1}),
    "alternatives, deep and wide": lambda n: (laughs(5, n), {"x": 1}),
    "alternatives that all fit": lambda n: (laughs(n, 2, "allOf", {"type": "integer"}), {"x": 1}),
    "alternatives of which one fits": lambda n: (laughs(n, 2, "oneOf", {"type": "integer"}), {"x": 1}),
    "a list, and alternatives": lambda n: (
        {**laughs(2, 20), "properties": {"x": {"items": {"$ref": "#/$defs/l2"}}}},
        {"x": [{"a": "x" * 50}] * n},
    ),
    "recursion in alternatives": lambda n: (TWICE, {"x": nested(min(n, 60), lambda v: {"a": v}, {})}),
    "recursion in a tree": lambda n: (TREE, {"x": {"v": 1, "c": [{"v": 1}] * n}}),
    "recursion in a tree that does not fit": lambda n: (TREE, {"x": {"v": 1, "c": [{"v": "1"}] * n}}),
    "recursion of great height": lambda n: (DEEP_ANY, {"x": nested(min(n, 60), lambda v: {"a": v}, 1)}),
    "recursion of many parts": lambda n: (crossing(min(n, 3_000)), nested(60, lambda v: {"a": v}, 1)),
    "unevaluated in unevaluated": lambda n: of(unevaluated(n), {"a": 1, "b": 2}),
    "unevaluated items in unevaluated": lambda n: of(unevaluated(n, "unevaluatedItems"), [1, 2]),
    "unevaluated beside alternatives": lambda n: of(
        nested(
            n,
            lambda s: {"anyOf": [s, OTHER], "unevaluatedProperties": {"type": "integer"}},
            {"properties": {"a": {}}},
        ),
        {"a": 1, "b": 2},
    ),
    "unevaluated beside conditions": lambda n: of(
        nested(n, lambda s: {"if": s, "then": s, "unevaluatedProperties": {"type": "integer"}}, {"required": ["a"]})
        if n < 6
        else {},
        {"a": 1, "b": 2},
    ),
    "unevaluated below recursion": lambda n: (
        recurring({"allOf": [{"properties": {"a": AGAIN}}], "unevaluatedProperties": False}),
        {"x": nested(min(n, 60), lambda v: {"a": v}, {"b": 1})},
    ),
    "unevaluated in a list": lambda n: of({"items": FLAT_OBJECT}, [dict.fromkeys(FLAT_OBJECT["properties"], 1)] * n),
    "unique integers of one hash": lambda n: of({"uniqueItems": True}, [2**60 + i for i in range(n)]),
    "unique integers over 64 bits": lambda n: of({"uniqueItems": True}, [2**80 + i for i in range(n)]),
    "unique objects": lambda n: of({"uniqueItems": True}, [{"a": i, "b": str(i)} for i in range(n)]),
    "unique lists of nothing": lambda n: of(
        {"uniqueItems": True}, [[[[]] * (i % 7), [[[]]] * (i // 7 % 7), [[]] * (i // 49)] for i in range(min(n, 300))]
    ),
    "unique texts": lambda n: of({"uniqueItems": True}, [str(i) + "é" * 1_000 for i in range(min(n, 5_000))]),
    "unique, many times": lambda n: of({"allOf": [{"uniqueItems": True}] * 50}, [i + 0.5 for i in range(n)]),
    "unique, in many lists": lambda n: of({"items": {"uniqueItems": True}}, [[1, 2]] * n),
    "fractions and limits": lambda n: of({"items": {"minimum": 0.1, "maximum": 1e308}}, [i + 0.5 for i in range(n)]),
    "divisors": lambda n: of({"items": {"multipleOf": 5e-324}}, [1.7e308] * n),
    "whole divisors": lambda n: of({"items": {"multipleOf": 3}}, [3e300] * n),
    "constants": lambda n: of({"items": {"anyOf": [{"enum": [i + 0.5 for i in range(100)]}, {}]}}, [0.25] * n),
    "constants over 63 bits": lambda n: of(
        {"items": {"anyOf": [{"enum": [2**63 + i for i in range(100)]}, {}]}}, [2.0**63] * n
    ),
    "constant objects": lambda n: of(
        {"items": {"anyOf": [{"enum": [{"k": [*range(49), -i]} for i in range(20)]}, {}]}},
        [{"k": [*range(49), 0.5]}] * n,
    ),
    "integers of 4,000 digits": lambda n: of(
        {"items": {"minimum": 1, "maximum": 2}}, [10**4_000 + i for i in range(n)]
    ),
    "a long text, many limits": lambda n: of({"allOf": [{"maxLength": 10**9 + i} for i in range(100)]}, "é" * n * 10),
    "a long text, many problems": lambda n: of({"allOf": [{"maxLength": i} for i in range(100)]}, "a" * n * 10),
    "a long text, many alternatives": lambda n: of({"anyOf": [{"maxLength": i} for i in range(30)]}, "\n" * n * 10),
    "a big value, many problems": lambda n: of({"allOf": [{"type": "string"}] * 100}, list(range(n))),
    "a big value, problems in problems": lambda n: of(
        {"anyOf": [{"anyOf": [{"type": "string"}] * 10}] * 10}, list(range(n))
    ),
    "many problems": lambda n: of({"items": {"type": "string"}}, list(range(n))),
    "many names that are missing": lambda n: of({"items": {"required": [f"p{i}" for i in range(100)]}}, [{}] * n),
    "many names that are too many": lambda n: of({"additionalProperties": False}, {f"p{i}": 1 for i in range(n)}),
    "many properties": lambda n: of({"properties": {f"p{i}": {} for i in range(n)}}, {f"p{i}": 1 for i in range(n)}),
    "many schemas": lambda n: of({"allOf": [{}] * n}, 1),
    "a wide tree of schemas": lambda n: (
        nested(5 if n < 6 else 1, lambda s: {"type": "object", "properties": {f"k{i}": s for i in range(n)}}, {}),
        {},
    ),
    "many conditions": lambda n: of(
        {
            "items": {
                "allOf": [{"if": {"properties": {"t": {"const": i}}}, "then": {"required": ["x"]}} for i in range(99)]
            }
        },
        [{"t": -1}] * n,
    ),
    "many searches": lambda n: of(
        {"allOf": [{"contains": {"const": -5 - i}, "minContains": 0} for i in range(20)]}, list(range(n))
    ),
    "JSON in a text": lambda n: (
        {"$schema": "http://json-schema.org/draft-07/schema#", **of({"contentMediaType": "application/json"}, 0)[0]},
        {"x": "[" + "1," * n * 10 + "1]"},
    ),
    "patterns for names": lambda n: of(
        {"patternProperties": {f"[01]*1[01]{{{10 + i}}}2": {} for i in range(20)}, "unevaluatedProperties": False},
        {BITS[i : i + 50]: 1 for i in range(min(n, 5_000))},
    ),
    "a pattern for each name": lambda n: of(
        {"propertyNames": {"pattern": "^[01]*1[01]{20}2"}}, {BITS[i : i + 100]: 1 for i in range(min(n, 5_000))}
    ),
    "a pattern for each text": lambda n: of(
        {"items": {"pattern": "^[01]*1[01]{20}2"}}, [BITS[i : i + 99] for i in range(n)]
    ),
    "letters of all alphabets": lambda n: of(
        {"allOf": [{"pattern": f"\\p{{L}}{i}"} for i in range(min(n, 3_000))]}, "a"
    ),
    "letters of any case": lambda n: of({"pattern": "(?i)" + "[\\x{0}-\\x{10FFFF}]" * min(n, 200)}, "a"),
    "classes in classes": lambda n: of({"pattern": "(?i)[[^a][^b]" + "&&[^c]" * min(n, 200) + "]"}, "a"),
    "spaces": lambda n: of({"allOf": [{"pattern": "\\S" * 10 + str(i)} for i in range(min(n, 500))]}, "a"),
    "long repetitions": lambda n: of({"allOf": [{"pattern": "^.{1,1000}" + str(i)} for i in range(min(n, 500))]}, "a"),
}
PATTERNS = [
    "^[01]*1[01]{5}2", "^[01]*1[01]{6}2", "^[01]*1[01]{10}2", "^.*1.{9}2", "^[01]*1[01]{20}2", "^[01]*1[01]{100}2",
    "^(?:([01]?){300}1)*2", "^(([01]?){500}[01]?)*2", "^(?:(?:[01]*1[01]*){1000})*2",
]  # fmt: skip
ON_TEXTS: dict[str, Callable[[int], Case]] = {
    f"{pattern} on a long text": lambda n, p=pattern: of({"pattern": p}, BITS[:n]) for pattern in PATTERNS
}


def seconds(work: Callable[[], Any]) -> tuple[float, type[Exception] | None]:
    """The CPU time that this thread needs for some work, and what that has raised."""
    raised: list[type[Exception] | None] = []

    def attempt() -> None:
        try:
            work()
            raised.append(None)
        except (ConfigurationError, InvalidArguments) as exc:
            raised.append(type(exc))

    return cpu_seconds(attempt), raised[0]


@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("name", {**HOSTILE, **ON_TEXTS})
def test_neither_a_schema_nor_a_value_holds_the_thread(name: str):
    refused = False
    for size in SIZES:
        schema, value = {**HOSTILE, **ON_TEXTS}[name](size)
        made: list[JsonSchema] = []
        needed, raised = seconds(lambda: made.append(JsonSchema(schema)))  # noqa: B023 -- it is called at once
        assert needed < MAX_SECONDS, f"it took {needed:.3f} s to read the schema for size {size}"
        if raised is not None:
            assert raised is ConfigurationError
            return
        needed, raised = seconds(lambda: made[0].check(value))  # noqa: B023 -- as above
        assert needed < MAX_SECONDS, f"it took {needed:.3f} s to check a value of size {size}"
        if refused and raised is TooCostly:
            return  # and so are all bigger ones
        refused = raised is TooCostly


Schema = dict[str, Any] | bool
LEAVES: list[Schema] = [
    {},
    True,
    {"type": "string"},
    {"pattern": "^(a|b)*c"},
    {"uniqueItems": True},
    {"$ref": "#/$defs/n"},
]
SINGLE = [
    "not", "if", "then", "else", "items", "contains", "additionalProperties", "unevaluatedItems", "unevaluatedProperties",
    "propertyNames",
]  # fmt: skip


def _of_many(keyword: str, schemas: list[Schema]) -> Schema:
    return {keyword: schemas}


def _of_one(keywords: set[str], schema: Schema) -> Schema:
    return dict.fromkeys(keywords, schema)


def _of_names(schemas: dict[str, Schema]) -> Schema:
    return {"properties": schemas}


def _both(one: Schema, other: Schema) -> Schema:
    return {**one, **other} if isinstance(one, dict) and isinstance(other, dict) else one


def _deeper(below: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    lists = st.sampled_from(["anyOf", "oneOf", "allOf", "prefixItems"])
    return (
        st.builds(_of_many, lists, st.lists(below, min_size=1, max_size=4))
        | st.builds(_of_one, st.sets(st.sampled_from(SINGLE), min_size=1, max_size=4), below)
        | st.dictionaries(st.sampled_from("ab"), below, min_size=1).map(_of_names)
        | st.builds(_both, below, below)
    )


schemas: st.SearchStrategy[Schema] = st.recursive(st.sampled_from(LEAVES), _deeper, max_leaves=25)
values = st.recursive(
    st.sampled_from(["", "aabb", 1, 2**63, 1.5, None]),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.sampled_from("abc"), below, max_size=3),
    max_leaves=40,
)


@pytest.mark.repeats("the same lines, with schemas and values that are made up")
@given(schemas, schemas, values)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_what_is_made_up_from_all_keywords_holds_nobody_either(schema: Any, node: Any, value: Any):
    root = {"$defs": {"n": node}, "allOf": [schema]}
    made: list[JsonSchema] = []
    needed, raised = seconds(lambda: made.append(JsonSchema(root)))
    assert needed < MAX_SECONDS
    if raised is None:
        needed, _ = seconds(lambda: made[0].check(value))
        assert needed < MAX_SECONDS


REFUSED: list[tuple[dict[str, Any], str]] = [
    (laughs(5, 50), "its alternatives multiply"),
    ({"$ref": "#"}, "refers to itself without end"),
    ({"anyOf": [{"not": {"$ref": "#"}}, {}]}, "refers to itself without end"),
    (nested(40, lambda inside: {"allOf": [inside]}, {}), "more than 32 schemas apply to one value"),
    (nested(60, lambda inside: {"properties": {"a": inside}}, {}), "nested deeper than 100 levels"),
    ({"properties": {f"p{i}": {} for i in range(7_000)}}, "more than 6000 parts"),
    ({"enum": ["x" * 1_000] * 300}, "bytes; at most 262144 are allowed"),
    ({"const": 2**64}, "cannot be written as JSON"),
    ({"pattern": "(?=a)b"}, r"its pattern '\(\?=a\)b' is not a regular expression that can be matched in linear time"),
    ({"patternProperties": {"(?<!a)b": {}}}, "matched in linear time"),
    ({"pattern": r"(a)\1"}, "matched in linear time"),
    ({"pattern": "("}, "matched in linear time"),
    ({"pattern": "a" * 2_001}, "it has 2001 characters; at most 2000 are allowed"),
    ({"pattern": "((a{100}){100}){100}"}, "written out it has more than 20000 parts"),
    ({"pattern": "[]a]"}, "begins with ']'"),
    ({"pattern": "(?x)a"}, "the flag x is not supported"),
    ({"allOf": [{"pattern": "\\S" * 99 + str(i)} for i in range(9)]}, "its patterns are too many, or too long"),
    ({"$dynamicRef": "#a"}, r"a \$dynamicRef, which is not supported"),
    ({"properties": {"a": {"$id": "http://a.example/b"}}}, r"has an \$id of its own"),
    ({"$ref": "#/x/y", "x": {"$id": "http://a.example/b", "y": {}}}, r"has an \$id of its own"),
    ({"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#"}}}, "uses another draft"),
]


@pytest.mark.parametrize(("schema", "why"), REFUSED)
def test_what_cannot_be_checked_within_bounds_is_refused_when_the_tool_is_made(schema: dict[str, Any], why: str):
    with pytest.raises(ConfigurationError, match=why):
        Tool("t", "", {"type": "object", **schema}, look_up)


@pytest.mark.parametrize(
    ("schema", "value", "why"),
    [
        (
            {"pattern": "^[01]*1[01]{20}2"},
            BITS,
            r"\$: it cannot be checked, since it is too big for the schema's patterns",
        ),
        # Where the time is over nothing fits, and so here everything would.
        ({"not": {"pattern": "^[01]*1[01]{20}2"}}, BITS, "too big for the schema's patterns"),
        ({"items": {"enum": [1.5] * 999}}, [1.5] * 99, "since it is too big for a schema with this many parts"),
        ({}, [1] * 100_001, "since there are more than 100000 values in it"),
        ({}, nested(65, lambda inside: [inside], 1), "since it is nested deeper than 64 levels"),
        (
            {"properties": {f"p{number}": {"$ref": "#/properties/x"} for number in range(900)}},
            nested(60, lambda inside: {"p1": inside}, {}),
            "since it is nested too deeply for a schema of this size",
        ),
        ({"items": {"type": "string"}}, [1] * 9_000, "it does not fit the schema, and is too big to say where"),
    ],
)
def test_arguments_that_are_too_big_for_their_schema_are_refused_with_the_bound(schema: Any, value: Any, why: str):
    made, given = of(schema, value)
    with pytest.raises(InvalidArguments, match=why):
        Tool("t", "", made, look_up).spec.validate(given)


UUID = "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|0{8}-0{4}-0{4}-0{4}-0{12})$"
WHEN = (
    r"^(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:(?:0[13578]|1[02])-"
    r"(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|(?:02)-(?:0[1-9]|1\d|2[0-8])))T(?:(?:[01]\d|2[0-3]):"
    r"[0-5]\d(?::[0-5]\d(?:\.\d+)?)?(?:Z))$"
)


def records(count: int) -> Case:
    """What a server that is written with Zod promises, and gives."""
    properties = {
        "id": {"type": "string", "format": "uuid", "pattern": UUID},
        "at": {"type": "string", "format": "date-time", "pattern": WHEN},
        "name": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    }
    item = {"type": "object", "properties": properties, "required": ["id"], "additionalProperties": False}
    one = {
        "id": "0d3f2f4e-8a6b-4c1d-9e2f-1234567890ab",
        "at": "2026-02-03T04:05:06.789Z",
        "name": None,
        "tags": ["a", "b"],
    }
    return of({"type": "array", "items": item}, [one] * count)


EXPRESSION = recurring(
    {
        "anyOf": [
            {"properties": {"op": {"const": "not"}, "of": AGAIN}, "required": ["op", "of"]},
            {"properties": {"op": {"enum": ["and", "or"]}, "all": {"items": AGAIN}}, "required": ["op", "all"]},
            {
                "properties": {"field": {"type": "string"}, "is": {}},
                "required": ["field"],
                "additionalProperties": False,
            },
        ]
    }
)
LEAF = {"field": "a", "is": 1}


@pytest.mark.parametrize(
    "case",
    [
        records(500),
        (TREE, {"x": nested(20, lambda below: {"v": 1, "c": [below, {"v": 2}]}, {"v": 3, "c": []})}),
        (TREE, {"x": {"v": 1, "c": [{"v": 1}] * 5_000}}),
        (EXPRESSION, {"x": nested(3, lambda below: {"op": "and", "all": [below, {"op": "not", "of": LEAF}]}, LEAF)}),
        of({"type": "string"}, "text " * 200_000),
        of({"type": "string", "pattern": "\\S"}, " " * 1_000 + "text " * 100_000),
        of({"type": "array", "items": {"type": "integer"}}, list(range(50_000))),
        of({"type": "array", "items": {"enum": [f"kind-{i}" for i in range(30)]}, "uniqueItems": True}, ["kind-3"]),
        of(unevaluated(1), {"a": 1}),
    ],
    ids=["records", "tree", "wide tree", "expression", "text", "pattern", "list", "enum", "unevaluated"],
)
def test_what_servers_and_models_really_send_is_checked(case: Case):
    schema, value = case
    JsonSchema(schema).check(value)


def test_a_bound_is_above_what_is_really_done_and_grows_with_the_value():
    schema, small = records(10)
    bounds = Bounds(schema)
    _, large = records(100)
    assert bounds.cost(shape_of(small)) * 9 < bounds.cost(shape_of(large)) < 40_000_000


@pytest.mark.parametrize(
    ("pattern", "positions"),
    [
        ("abc", 3),
        ("a{3}", 3),
        ("(ab){3}", 9),
        ("(a{20}|b){5}", 115),
        ("[a-z]{2,5}", 5),
        ("a{2,}", 3),
        ("[^\\]{5}]{2}", 2),
    ],
)
def test_the_positions_of_a_pattern_are_counted_with_its_repetitions_written_out(pattern: str, positions: int):
    assert cost_of(f"{'z' * 20}{pattern}").match_ns == 800 + 60 * (20 + positions)


@pytest.mark.parametrize("pattern", ["{".ljust(2_000), "{,".ljust(2_000)])
def test_a_repetition_that_is_not_closed_is_read_in_linear_time(pattern: str):
    assert cpu_seconds(lambda: cost_of(pattern), below=0.02) < 0.02


def test_integers_that_the_library_cannot_take_are_checked_as_floats():
    fitting, others = (-(2**63), 2**64 - 1), (-(2**63) - 1, 2**64, 10**400, -(10**400))
    assert [type(_plain(each)) for each in fitting] == [int, int]
    assert [type(_plain(each)) for each in others] == [float] * 4


def test_a_matcher_finds_a_pattern_anywhere_and_knows_no_look_around():
    found = matcher("^k[a-z]")
    assert found is not None
    assert (found("key"), found("a key"), found("\ud800")) == (True, False, False)
    assert matcher("(?=a)") is None
