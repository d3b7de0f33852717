"""The names that tools and arguments of MCP servers get, and schemas with other names of arguments."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from toolbus.toolsets.mcp._names import argument_names, prefix_of, renamed, tool_name


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@pytest.mark.parametrize(
    ("server", "prefix"),
    [
        ("a" * 28, "a" * 28),
        ("a" * 29, "a" * 19 + "-" + digest("a" * 29)),
        ("a_b-c", "a_b-c"),
        ("a__b", f"a_b-{digest('a__b')}"),
        ("_my  server_", f"my_server-{digest('_my  server_')}"),
        ("a" * 18 + " b" * 9, "a" * 18 + "-" + digest("a" * 18 + " b" * 9)),
        ("名", f"mcp-{digest('名')}"),
    ],
)
def test_a_server_s_part_of_names_is_its_name_or_a_short_one_of_its_own(server: str, prefix: str) -> None:
    assert prefix_of(server) == prefix
    assert len(prefix) <= 28


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        ("read", "s__read"),
        ("a" * 61, f"s__{'a' * 61}"),
        ("a" * 62, f"s__{'a' * 52}-{digest('a' * 62)}"),
        ("a.b", f"s__a_b-{digest('a.b')}"),
    ],
)
def test_a_tool_s_name_is_as_long_as_providers_accept_at_most(tool: str, name: str) -> None:
    assert tool_name("s", tool) == name
    assert len(name) <= 64


def test_arguments_get_names_that_are_unique_and_as_near_to_their_own_as_possible() -> None:
    long, longer = "x" * 65, "x" * 66
    names = ["ok.name-1", "$top", "@top", "@by", "_by", "", long, longer, "y" * 64]
    assert argument_names({"properties": dict.fromkeys(names, True)}) == {
        "$top": "_top",
        "@top": f"_top-{digest('@top')}",
        "@by": f"_by-{digest('@by')}",
        "": f"-{digest('')}",
        long: "x" * 55,
        longer: f"{'x' * 55}-{digest(longer)}",
    }


def test_arguments_are_found_in_every_part_that_describes_the_same_object() -> None:
    query: dict[str, Any] = {"properties": {"$b": {}}, "allOf": [{"$ref": "#/$defs/Query"}, {"properties": {"$d": {}}}]}
    schema: dict[str, Any] = {
        "properties": {"$a": {"properties": {"$inner": {}}}},
        "anyOf": [{"$ref": "#/$defs/Query"}, True],
        "oneOf": [{"$ref": "https://other/Query"}, {"$ref": "#/$defs/nowhere/at/all"}, {"$ref": 3}],
        "$defs": {"Query": query, "Unused": {"properties": {"$c": {}}}},
    }
    assert argument_names(schema) == {"$a": "_a", "$b": "_b", "$d": "_d"}


def test_a_schema_has_the_other_names_wherever_it_speaks_of_the_object() -> None:
    part: dict[str, Any] = {"properties": {"$a": {}}, "required": ["$a"]}
    other: dict[str, Any] = {"properties": {"_a": {}}, "required": ["_a"]}
    schema: dict[str, Any] = {
        **part,
        "allOf": [part, True],
        "anyOf": [part],
        "oneOf": [part],
        "if": part,
        "then": part,
        "else": part,
        "not": part,
        "dependentRequired": 1,
    }
    assert renamed(schema, {"$a": "_a"}) == {
        **other,
        "allOf": [other, True],
        "anyOf": [other],
        "oneOf": [other],
        "if": other,
        "then": other,
        "else": other,
        "not": other,
        "dependentRequired": 1,
    }
    assert renamed({"type": "object"}, {"$a": "_a"}) == {"type": "object"}


def test_a_target_of_a_reference_is_copied_once_and_stays_for_other_objects() -> None:
    tree: dict[str, Any] = {"properties": {"$a": {"$ref": "#/$defs/Tree"}}, "allOf": [{"$ref": "#/$defs/Tree"}]}
    schema: dict[str, Any] = {"$ref": "#/$defs/Tree", "$defs": {"Tree": tree}}
    copy = f"arguments-{digest('#/$defs/Tree')}"
    assert renamed(schema, {"$a": "_a"}) == {
        "$ref": f"#/$defs/{copy}",
        "$defs": {
            "Tree": tree,
            copy: {"properties": {"_a": {"$ref": "#/$defs/Tree"}}, "allOf": [{"$ref": f"#/$defs/{copy}"}]},
        },
    }
