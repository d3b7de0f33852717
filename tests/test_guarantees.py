"""Ties docs/reference/guarantees.md to the tests: `@pytest.mark.guarantee("G06")` on those that show G06.

Read from the source, not from what was collected, so that a run of a single file gives the same verdict. Only code
that pytest runs counts: a mention in a comment, a docstring, a helper or a skipped test is no evidence.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("without_garbage_collection")

TESTS = Path(__file__).parent
TABLE = TESTS.parent / "docs" / "reference" / "guarantees.md"
ROW = re.compile(r"^\| (G\d\d) \| (.+) \| (\w+) \|$", re.MULTILINE)
UNRUN = {"skip", "skipif", "xfail"}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def promises(table: str) -> dict[str, str]:
    """The state of each id, in the table's order."""
    return {found[1]: found[3] for found in ROW.finditer(table)}


def evidence(tests: Path) -> dict[str, set[str]]:
    """The ids that tests are marked with, each with the tests' places."""
    places: dict[str, set[str]] = {}
    for path in sorted(tests.rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        if "guarantee" not in source:
            continue  # parsing takes most of the time
        for identifier, name in _marked(ast.parse(source).body, [], ""):
            places.setdefault(identifier, set()).add(f"{path.relative_to(tests).as_posix()}::{name}")
    return places


def _marked(body: list[ast.stmt], outer: list[ast.Call], prefix: str) -> Iterator[tuple[str, str]]:
    """Each (id, test) in `body`; marks of a module or class in `outer` hold for every test in it."""
    inherited = [*outer, *(mark for node in body if _is_pytestmark(node) for mark in _marks(node))]
    for node in body:
        if not isinstance(node, Definition):
            continue
        marks = [*inherited, *(mark for decorator in node.decorator_list for mark in _marks(decorator))]
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _marked(node.body, marks, f"{prefix}{node.name}::")
        elif not isinstance(node, ast.ClassDef) and node.name.startswith("test"):
            if any(_name(mark) in UNRUN for mark in marks):
                continue
            for mark in marks:
                if _name(mark) == "guarantee":
                    yield from ((ast.literal_eval(argument), prefix + node.name) for argument in mark.args)


def _is_pytestmark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)


def _marks(node: ast.AST) -> Iterator[ast.Call]:
    """Each `pytest.mark.x(...)` in `node`; a bare `pytest.mark.x` as a call without arguments."""
    calls = {id(call.func): call for call in ast.walk(node) if isinstance(call, ast.Call)}
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Attribute) and part.value.attr == "mark":
            yield calls.get(id(part)) or ast.Call(func=part, args=[], keywords=[])


def _name(mark: ast.Call) -> str:
    return mark.func.attr if isinstance(mark.func, ast.Attribute) else ""


def complaints(table: dict[str, str], places: dict[str, set[str]]) -> list[str]:
    """All that is wrong between the table and the tests, a line each."""
    untested = [f"{i} is held, but no test is marked with it" for i, state in table.items() if state == "held"]
    return [
        *(line for line in untested if line[:3] not in places),
        *(f"{i} is neither held nor planned but {s!r}" for i, s in table.items() if s not in {"held", "planned"}),
        *(f"{i} is not in the table, but marks {', '.join(sorted(places[i]))}" for i in places if i not in table),
    ]


def test_every_held_guarantee_has_a_test_and_no_test_names_an_unknown_one():
    assert complaints(promises(TABLE.read_text(encoding="utf-8")), evidence(TESTS)) == []


def test_the_table_lists_every_guarantee_from_g01_to_g36_once_and_in_order():
    text = TABLE.read_text(encoding="utf-8")
    assert [found[1] for found in ROW.finditer(text)] == [f"G{number:02}" for number in range(1, 37)]


def test_a_held_guarantee_without_a_test_is_reported():
    assert complaints({"G01": "held", "G02": "planned"}, {}) == ["G01 is held, but no test is marked with it"]


def test_an_unknown_id_and_an_unknown_state_are_reported():
    reported = complaints({"G01": "hoped"}, {"G99": {"test_bus.py::test_it"}})
    assert reported == [
        "G01 is neither held nor planned but 'hoped'",
        "G99 is not in the table, but marks test_bus.py::test_it",
    ]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('@pytest.mark.guarantee("G06")\nasync def test_it(): ...', {"G06"}),
        ('@pytest.mark.guarantee("G06", "G07")\ndef test_it(): ...', {"G06", "G07"}),
        ('pytestmark = [pytest.mark.slow, pytest.mark.guarantee("G01")]\ndef test_it(): ...', {"G01"}),
        ('@pytest.mark.guarantee("G03")\nclass TestBus:\n    def test_it(self): ...', {"G03"}),
        ('@pytest.mark.guarantee("G06")\ndef helper(): ...', set[str]()),
        ('@pytest.mark.skip\n@pytest.mark.guarantee("G06")\ndef test_it(): ...', set[str]()),
        ('@pytest.mark.xfail(reason="")\n@pytest.mark.guarantee("G06")\ndef test_it(): ...', set[str]()),
        ('pytestmark = pytest.mark.guarantee("G01")', set[str]()),
        ('# G06\ndef test_g06():\n    """G06"""\n    assert "G06"', set[str]()),
    ],
)
def test_only_the_mark_on_a_test_that_runs_is_evidence(tmp_path: Path, source: str, found: set[str]):
    (tmp_path / "test_sample.py").write_text(source, encoding="utf-8")
    assert set(evidence(tmp_path)) == found


def test_a_mark_in_a_file_that_pytest_does_not_collect_is_no_evidence(tmp_path: Path):
    (tmp_path / "notes.py").write_text('@pytest.mark.guarantee("G06")\ndef test_it(): ...', encoding="utf-8")
    assert evidence(tmp_path) == {}
