"""The code that a command of dev.py runs imports only what that command installs."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from environments import ROOT

LOCKED: dict[str, dict[str, Any]] = {
    each["name"]: each for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]
}
OWN = {"toolbus", "benchmarks", "examples", "docs_site", "soak", "support", "tests"}
RUNS_APART = {"benchmarks/peers", "benchmarks/durability.py"}  # in environments that they make themselves


def groups_of(command: str) -> list[str]:
    specification = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    assert specification is not None
    assert specification.loader is not None
    module: Any = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.GROUPS[command]


def installed_by(command: str) -> set[str]:
    """The distributions that the command installs: toolbus with all extras, its groups, and what these need."""
    toolbus = LOCKED["toolbus"]
    wanted = [*toolbus["dependencies"], *toolbus["optional-dependencies"]["all"]]
    for extra in toolbus["optional-dependencies"].values():
        wanted += extra
    for group in groups_of(command):
        wanted += toolbus["dev-dependencies"][group]
    found: set[str] = set()
    while wanted:
        each = wanted.pop()
        name = each["name"]
        package = LOCKED[name]
        if name not in found:
            found.add(name)
            wanted += package.get("dependencies", ())
        for extra in each.get("extra", ()) if name != "toolbus" else ():
            wanted += package["optional-dependencies"][extra]
    return found


def imported_in(path: Path) -> Iterator[str]:
    """The top-level packages that a file imports, and those of the tests' modules that it imports."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        for name in names:
            yield name.partition(".")[0]
            if name.startswith("tests."):
                yield from imported_in(ROOT / f"{name.replace('.', '/')}.py")


@pytest.mark.parametrize(
    ("command", "folder"), [("bench", "benchmarks"), ("docs", "docs_site"), ("example", "examples"), ("test", "soak")]
)
def test_a_command_installs_what_its_code_imports(command: str, folder: str):
    distributions, installed = packages_distributions(), installed_by(command)
    assert "anyio" in installed
    for path in sorted((ROOT / folder).rglob("*.py")):
        if any(str(path.relative_to(ROOT)).startswith(each) for each in RUNS_APART):
            continue
        beside = {each.stem for each in path.parent.iterdir()}
        for name in set(imported_in(path)) - OWN - beside - sys.stdlib_module_names:
            owners = {re.sub(r"[-_.]+", "-", each).lower() for each in distributions.get(name, [name])}
            assert owners & installed, f"{path.relative_to(ROOT)} imports {name}, which `dev.py {command}` lacks"
