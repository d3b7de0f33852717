"""import-linter's contracts (pyproject.toml) hold, and would not hold for what they forbid."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import shape

ROOT = Path(__file__).parents[1]


def lint_imports(checkout: Path) -> subprocess.CompletedProcess[str]:
    """Check the tree at `checkout`, whatever toolbus is installed."""
    start = f"import sys; sys.path.insert(0, {str(checkout / 'src')!r}); import importlinter.cli as cli"
    return subprocess.run(
        [sys.executable, "-c", f"{start}; sys.exit(cli.lint_imports(no_cache=True))"],
        check=False,
        cwd=checkout,
        capture_output=True,
        encoding="utf-8",
    )


def test_imports_point_one_way():
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("core.turn._decide", "import anyio"),
        ("core.turn._decide", "from toolbus.bus import EventBus"),
        ("messages._model", "import time"),
        ("errors", "from . import events"),
        ("session._session", "from .. import dispatcher"),
        ("bus._bus", "from .. import session"),
    ],
)
def test_an_import_against_the_arrows_is_refused(tmp_path: Path, module: str, line: str):
    done = lint_imports(copy_with(tmp_path, module, line))
    assert done.returncode == 1
    assert f"toolbus.{module} -> " in done.stdout


def test_a_module_that_has_no_layer_is_refused(tmp_path: Path):
    done = lint_imports(copy_with(tmp_path, "newcomer", '"""New."""'))
    assert done.returncode == 1
    assert "newcomer" in done.stdout


def test_no_package_reaches_into_another_ones_private_modules():
    """Nobody imports an underscored module of a package that it is not in: a package's `__init__` is its interface."""
    modules = [shape.read(path, shape.SOURCES) for path in shape.SOURCES.rglob("*.py")]
    reached = {
        f"{each.name} -> {name}"
        for each in modules
        for name in shape.imported_by(each)
        if shape.is_private(each.name, name)
    }
    assert reached == set()


@pytest.mark.parametrize(
    ("importer", "imported", "private"),
    [
        ("session._session", "bus._mailbox", True),
        ("session._session", "bus", False),
        ("session._session", "session._handle", False),
        ("bus._bus", "_logs", False),
        ("cli._commands.ask", "cli._terminal.screen", False),
        ("runtime", "cli._terminal.screen", True),
    ],
)
def test_what_a_private_module_is(importer: str, imported: str, private: bool):
    assert shape.is_private(importer, imported) is private


def test_the_report_on_the_shape_names_every_package(capsys: pytest.CaptureFixture[str]):
    shape.main([])
    shown = capsys.readouterr().out
    for path in shape.SOURCES.glob("*/__init__.py"):
        assert f"\n{path.parent.name} " in shown
    assert "docstrings that begin with a question word: " in shown


def copy_with(folder: Path, module: str, line: str) -> Path:
    """A copy of the checkout, with one more line in one module."""
    shutil.copytree(ROOT / "src" / "toolbus", folder / "src" / "toolbus")
    shutil.copy(ROOT / "pyproject.toml", folder)
    with (folder / "src" / "toolbus" / f"{module.replace('.', '/')}.py").open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    return folder
