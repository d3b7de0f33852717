"""The code that a command of dev.py runs imports only what that command installs."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions
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


def modules_of(names: set[str]) -> set[str]:
    """The modules that these distributions bring, with the packages that they are in."""
    found: set[str] = set()
    for each in distributions():
        if re.sub(r"[-_.]+", "-", each.name).lower() not in names:
            continue
        for file in each.files or ():
            if file.suffix in (".py", ".so", ".pyd", ".abi3"):
                parts = [*file.parts[:-1], file.name.partition(".")[0]]
                found.update(".".join(parts[: count + 1]) for count in range(len(parts)))
    return found


def imported_in(path: Path) -> Iterator[str]:
    """The modules that a file imports, and those that the tests' modules import which it imports."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        for name in names:
            yield name
            if name.startswith("tests."):
                yield from imported_in(ROOT / f"{name.replace('.', '/')}.py")


@pytest.mark.parametrize(
    ("command", "folder"), [("bench", "benchmarks"), ("docs", "docs_site"), ("example", "examples"), ("test", "soak")]
)
def test_a_command_installs_what_its_code_imports(command: str, folder: str):
    modules = modules_of(installed_by(command))
    assert "anyio" in modules
    for path in sorted((ROOT / folder).rglob("*.py")):
        if any(str(path.relative_to(ROOT)).startswith(each) for each in RUNS_APART):
            continue
        own = {*OWN, *sys.stdlib_module_names, *[each.stem for each in path.parent.iterdir()]}
        for name in sorted(set(imported_in(path))):
            known = name.partition(".")[0] in own or name in modules
            assert known, f"{path.relative_to(ROOT)} imports {name}, which `dev.py {command}` does not install"
