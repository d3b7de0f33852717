"""The command in this process: `toolbus("ask", "...")` returns status, stdout and stderr."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
import io
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import scenes
from desk import Command, Ended, Terminal

from toolbus.cli import _arguments, main

QUIET = {"replay", "status", "verify"}  # what these have found is on stdout, and their exit status says so


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace that is also the current directory, without any of the developer's variables."""
    (tmp_path / "limits.py").write_text('"""Limits."""\n\nDEFAULT_TIMEOUT_SECONDS = 120\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith(("TOOLBUS_", "OPENAI_", "OLLAMA_")) or name in {"NO_COLOR", "COLUMNS"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("TOOLBUS_STORE", "none")
    return tmp_path


@pytest.fixture(scope="session", autouse=True)
def _one_parser() -> Iterator[None]:
    """Build the parser of the command line only once, because it takes a quarter of a command's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_arguments, "_parser", functools.cache(_arguments._parser))
        yield


@pytest.fixture(autouse=True)
def _empty_stage() -> Iterator[None]:
    yield
    scenes.forget()


@pytest.fixture
def toolbus(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """A function that runs the command. `stdin` is text from a pipe; a surrogate in it is a byte that is not UTF-8."""
    before = (logging.getLogger().handlers[:], signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))

    def run(*arguments: str, stdin: str = "") -> Ended:
        monkeypatch.setattr(
            "sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode("utf-8", "surrogateescape")), encoding="utf-8")
        )
        status = main(arguments)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err or "--debug" in arguments or "TOOLBUS_DEBUG" in os.environ
        if not (QUIET.intersection(arguments) or captured.err):
            assert status in {0, 130, 141}, "what fails says so on stderr"
        return Ended(status, captured.out, captured.err)

    yield run
    assert before == (logging.getLogger().handlers, signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


@pytest.fixture
def kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default file of the store, which does not exist yet."""
    monkeypatch.delenv("TOOLBUS_STORE")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.setattr("sys.platform", "linux")
    return folder / "state" / "toolbus" / "toolbus.db"


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()
