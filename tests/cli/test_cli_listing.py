from __future__ import annotations

from pathlib import Path

import orjson
from desk import Command

from toolbus.events import EVENT_TYPES, json_schema


def test_events_lists_each_type_with_its_kind_and_first_line(toolbus: Command):
    ended = toolbus("events")
    rows = [line.split(maxsplit=2) for line in ended.out.splitlines()]
    assert ended.status == 0
    assert {(name, kind) for name, kind, _ in rows} == {
        (each.type, "fact" if each.is_fact else "signal") for each in EVENT_TYPES
    }
    assert ["text_delta", "signal"] in [row[:2] for row in rows]
    longest = max(len(each.type) for each in EVENT_TYPES)
    assert {line[longest : longest + 8].strip() for line in ended.out.splitlines()} == {"fact", "signal"}
    assert all(reported.endswith(".") or reported for _, _, reported in rows)


def test_the_json_schema_is_that_of_the_union(toolbus: Command):
    ended = toolbus("events", "--json-schema")
    assert ended.status == 0
    assert orjson.loads(ended.out) == json_schema()
    assert "tool_call_completed" in ended.out


def test_tools_lists_names_descriptions_and_parameters(toolbus: Command):
    ended = toolbus("tools", "--tools", "scenes:add")
    assert ended.status == 0
    assert [line for line in ended.out.splitlines() if line and not line.startswith(" ")] == [
        *("list_files", "search_text", "read_lines", "request_code_context", "add")
    ]
    assert ended.out.endswith(
        "\n\nadd\n  Add two numbers.\n    a (integer, required): The first.\n    b (integer, required): The second.\n"
    )
    assert "    max_results (integer, default 30): " in ended.out
    assert '    mode ("text" | "regex" | "words", default "text"): ' in ended.out
    assert "    end (integer | null, default null): " in ended.out


def test_parameters_of_any_shape_are_listed(toolbus: Command, folder: Path):
    kinds = {"a": {"$ref": "#/$defs/StoreLocation"}, "b": {}, "c": {"type": ["string", "null"]}, "d": True}
    schema = {"properties": {**kinds, "e": {"anyOf": [False, {"enum": [1]}], "description": "One.\nread_lines"}}}
    code = (
        "from toolbus import Tool\n"
        f"odd = Tool('odd', 'Odd\\x1b[31m.', {{'type': 'object', **{schema!r}}}, lambda **_: 0, validate=lambda _: None)\n"
    )
    (folder / "odd_tools.py").write_text(code, encoding="utf-8")
    ended = toolbus("tools", "--tools", "odd_tools:odd")
    assert ended.out.endswith(
        "odd\n  Odd.\n    a (StoreLocation)\n    b (any)\n    c (string | null)\n    d (any)\n    e (any | 1): One. read_lines\n"
    )


def test_tools_as_json_are_names_descriptions_and_schemas(toolbus: Command):
    ended = toolbus("tools", "--json", "--tools", "scenes:add")
    assert ended.status == 0
    listed = orjson.loads(ended.out)
    assert [each["name"] for each in listed] == [
        "list_files",
        "search_text",
        "read_lines",
        "request_code_context",
        "add",
    ]
    assert listed[-1]["description"] == "Add two numbers."
    assert listed[-1]["parameters"]["required"] == ["a", "b"]


def test_a_parameter_takes_one_line_so_that_it_cannot_look_like_another_tool(toolbus: Command, folder: Path):
    schema = {"type": "object", "properties": {"a\nb": {"type": "string", "description": "One.\nforged\n  It."}}}
    code = f"from toolbus import Tool\nodd = Tool('odd', 'Odd.', {schema!r}, lambda **_: 0, validate=lambda _: None)\n"
    (folder / "forging_tools.py").write_text(code, encoding="utf-8")
    ended = toolbus("tools", "--tools", "forging_tools:odd")
    assert ended.out.endswith("\nodd\n  Odd.\n    a b (string): One. forged It.\n")
