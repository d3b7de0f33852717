"""import-linter's contracts (pyproject.toml) hold, and would not hold for what they forbid."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import shape

pytestmark = pytest.mark.usefixtures("without_garbage_collection")

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
    "wrong",  # those that are in one copy make no chain of imports together, which would name them as well
    [
        [
            ("core.turn._decide", "import anyio", "anyio"),
            ("messages._model", "import time", "time"),
            ("session._session", "from .. import dispatcher", "toolbus.dispatcher"),
        ],
        [("core.turn._decide", "from toolbus.bus import EventBus", "toolbus.bus")],
        [
            ("errors", "from . import events", "toolbus.events"),
            ("bus._bus", "from .. import session", "toolbus.session"),
        ],
    ],
)
def test_an_import_against_the_arrows_and_a_module_without_a_layer_are_refused(
    tmp_path: Path, wrong: list[tuple[str, str, str]]
):
    shutil.copytree(ROOT / "src" / "toolbus", tmp_path / "src" / "toolbus")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for module, line, _ in [*wrong, ("newcomer", '"""New."""', "")]:
        with (tmp_path / "src" / "toolbus" / f"{module.replace('.', '/')}.py").open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1
    for module, _, imported in wrong:
        assert f"toolbus.{module} -> {imported} " in done.stdout
    assert "newcomer" in done.stdout


@pytest.fixture(scope="module")
def report() -> str:
    return "\n".join(shape.report(shape.SOURCES, 12))


def test_no_package_reaches_into_another_ones_private_modules(report: str):
    """Nobody imports an underscored module of a package that it is not in: a package's `__init__` is its interface."""
    assert "\nimports of another package's underscored modules: 0\n" in report


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


def test_the_report_on_the_shape_names_every_package(report: str):
    for path in shape.SOURCES.glob("*/__init__.py"):
        assert f"\n{path.parent.name} " in report
    assert "docstrings that begin with a question word: " in report


def test_the_report_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "bus").mkdir()
    (tmp_path / "bus" / "_mailbox.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "top.py").write_text("from .bus._mailbox import x\n", encoding="utf-8")
    shape.main(["--sources", str(tmp_path)])
    assert "underscored modules: 1\n  top -> bus._mailbox\n" in capsys.readouterr().out
