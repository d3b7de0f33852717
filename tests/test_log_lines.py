"""The page of log lines: it has every line that toolbus writes, at its level, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import toolbus
from toolbus._logs import LOGGERS

pytestmark = pytest.mark.usefixtures("without_garbage_collection")

SOURCE = Path(toolbus.__file__).parent
PAGE = Path(__file__).parents[1] / "docs/reference/logs.md"
LEVELS = ("debug", "info", "warning", "error", "exception")
PLACEHOLDER = re.compile(r"%[-.\d]*[sdfgr]")
ROW = re.compile(r"^\| `(?P<line>[^`]+)` \| (?P<level>[a-z, ]+) \| \S.* \|$", re.MULTILINE)


def texts_of(argument: ast.expr, function: ast.AST) -> Iterator[str]:
    """The strings that an argument may be: a literal, or what its function assigns to the name."""
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        yield argument.value
    if not isinstance(argument, ast.Name):
        return
    for each in ast.walk(function):
        if not isinstance(each, ast.Assign):
            continue
        for target in each.targets:
            pairs = [(target, each.value)]
            if isinstance(target, ast.Tuple) and isinstance(each.value, ast.Tuple):
                pairs = list(zip(target.elts, each.value.elts, strict=True))
            for name, value in pairs:
                if isinstance(name, ast.Name) and name.id == argument.id and isinstance(value, ast.Constant):
                    yield str(value.value)


def lines_in(function: ast.AST) -> Iterator[tuple[str, str]]:
    """The lines that a function logs, with their levels; "" for a level that the code chooses."""
    for call in ast.walk(function):
        if not isinstance(call, ast.Call):
            continue
        if isinstance(call.func, ast.Name) and call.func.id == "log_exception":
            level = ast.unparse(call.args[1]).removeprefix("logging.").lower()
            yield from ((text, level) for text in texts_of(call.args[2], function))
        elif isinstance(call.func, ast.Attribute) and _is_logger(call.func.value):
            name = call.func.attr
            if name in LEVELS:
                yield from ((text, name.replace("exception", "error")) for text in texts_of(call.args[0], function))
            elif name == "log":
                yield from ((text, "") for text in texts_of(call.args[1], function))


def _is_logger(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("logger", "_logger")


def logged() -> dict[str, set[str]]:
    """All lines of the source, with their levels."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        if path.is_relative_to(SOURCE / "cli") or path.name == "failures.py":
            continue
        source = path.read_text(encoding="utf-8")
        if "logger" not in source and "log_exception" not in source:
            continue  # parsing takes most of the time, and nine of ten modules log nothing
        for function in ast.walk(ast.parse(source)):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for text, level in lines_in(function):
                    if text != "%s":  # the text of an error, which has a page of its own
                        found.setdefault(PLACEHOLDER.sub("…", text).replace("`", ""), set()).add(level)
    return found


def test_the_page_has_each_line_at_its_level_and_no_other() -> None:
    rows = {each["line"]: set(each["level"].split(", ")) for each in ROW.finditer(PAGE.read_text(encoding="utf-8"))}
    found = logged()
    assert len(found) > 40
    assert sorted(found) == sorted(rows)
    assert {line: levels for line, levels in found.items() if "" not in levels} == {
        line: levels for line, levels in rows.items() if "" not in found[line]
    }


def test_the_page_names_each_logger() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in LOGGERS if f"`{name}`" not in page] == []
