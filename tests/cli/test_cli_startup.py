"""What the command costs before it does anything, and how the process ends."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import errno
import functools
import io
import os
import subprocess
import sys
import threading
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace

import pytest

import toolbus
from toolbus import cli
from toolbus._version import installed_version


def imported_by(statement: str) -> set[str]:
    """The modules that `statement` adds to those of `import toolbus`."""
    code = f"import toolbus, sys; before = set(sys.modules); {statement}; print(*{{*sys.modules}} - before, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stderr.split())


def test_the_version_is_reported_with_the_standard_library_alone():
    added = imported_by("from toolbus.cli import main; main(['--version'])")
    assert {each for each in added if each.startswith("toolbus")} == {"toolbus.cli", "toolbus._version"}
    assert {each.partition(".")[0] for each in added} - {"toolbus"} <= set(sys.stdlib_module_names)
    assert "importlib.metadata" not in added
    assert not added & {"argparse", "sqlite3"}


class Failing(io.StringIO):
    """A stdout that cannot be written."""

    def __init__(self, error: int) -> None:
        super().__init__()
        self._error = error

    def flush(self) -> None:
        raise OSError(self._error, os.strerror(self._error))


def test_the_version_is_that_of_the_first_folder_that_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for folder, number in (("one", "1.0"), ("two", "2.0")):
        (tmp_path / folder / f"toolbus-{number}.dist-info").mkdir(parents=True)
        (tmp_path / folder / "other-9.0.dist-info").mkdir()
    folders = [str(tmp_path / folder) for folder in ("nowhere", "one", "two")]
    monkeypatch.setattr(sys, "path", folders)
    assert installed_version() == "1.0"


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["store", "list", "--help"]])
@pytest.mark.parametrize(
    ("error", "status", "reported"),
    [
        (errno.EPIPE, 141, ""),
        (errno.ENOSPC, 1, "toolbus: the output could not be written: No space left on device\n"),
    ],
)
def test_what_is_told_of_the_command_itself_may_be_unwritable_too(
    arguments: list[str],
    error: int,
    status: int,
    reported: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("sys.stdout", Failing(error))
    assert cli.main(arguments) == status
    assert capsys.readouterr().err == reported


def test_help_imports_argparse_and_none_of_the_library():
    code = "import contextlib, io; from toolbus.cli import main; s = contextlib.redirect_stdout(io.StringIO())"
    added = imported_by(f"{code}; s.__enter__(); main(['--help']); s.__exit__(None, None, None)")
    assert "argparse" in added or "argparse" in sys.modules
    ours = {each for each in added if each.startswith("toolbus.")}
    cli = {
        "toolbus.cli",
        *(f"toolbus.cli.{each}" for each in ("_main", "_arguments", "_terminal", "_terminal.screen", "_terminal.text")),
    }
    assert ours == cli | {"toolbus.core", "toolbus.core.plain_text"}, (
        "of the library, what cleans text: it is `re` alone"
    )
    assert not {each.partition(".")[0] for each in added} & {"rich", "openai", "anyio", "sqlite3"}


@pytest.mark.parametrize("arguments", [["--version"], ["-V"], ["--version", "--version"]])
def test_the_version_is_that_of_the_package(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == f"toolbus {version('toolbus')}\n"


def test_the_version_is_found_wherever_the_package_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert toolbus.__version__ == version("toolbus")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "nowhere"), str(tmp_path)])

    def found(_name: str) -> str:
        return "from a finder"

    monkeypatch.setattr("importlib.metadata.version", found)
    assert installed_version() == "from a finder"

    def missing(_name: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert installed_version() == "(not installed)"


def test_the_module_is_the_command(tmp_path: Path):
    command = [sys.executable, "-m", "toolbus", "frob"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("toolbus: argument COMMAND: invalid choice: 'frob'")


class TestTheEnd:
    @pytest.fixture
    def ends(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        ends: list[int] = []
        monkeypatch.setattr(os, "_exit", ends.append)
        monkeypatch.setattr(sys, "argv", ["toolbus", "--version"])
        return ends

    def test_a_thread_that_hangs_does_not_keep_the_process(self, ends: list[int], monkeypatch: pytest.MonkeyPatch):
        over = threading.Event()
        thread = threading.Thread(target=over.wait)
        thread.start()
        try:
            monkeypatch.setattr(cli, "_THREAD_SECONDS", 0.001)
            monkeypatch.setattr(sys, "stderr", None)
            cli.main()
            assert ends == [0]
            cli.main(["--version"])
            assert ends == [0]
        finally:
            over.set()
            thread.join()

    def test_without_one_it_ends_by_itself(self, ends: list[int]):
        assert cli.main() == 0
        assert ends == []

    @pytest.mark.parametrize("alive", [[True, False], [False, False]])
    def test_all_threads_that_are_left_have_one_time_together(
        self, alive: list[bool], ends: list[int], monkeypatch: pytest.MonkeyPatch
    ):
        waited: list[float] = []
        threads = [
            SimpleNamespace(daemon=False, join=waited.append, is_alive=functools.partial(bool, each)) for each in alive
        ]
        daemon = SimpleNamespace(daemon=True)
        monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread(), daemon, *threads])
        cli.main()
        assert ends == [0] * any(alive)
        assert sum(waited) == pytest.approx(0.2)


def test_what_was_printed_before_the_process_is_left_reaches_its_readers():
    code = "import sys; from toolbus.cli import _leave; print('x', end=''); sys.stderr = None; _leave(3)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("x", 3)
