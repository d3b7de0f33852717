"""Reads lines from the person at the terminal, with readline where there is one. For the main thread."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Generator
from types import ModuleType
from typing import TextIO

from .screen import Screen, can_write, is_terminal
from .tool_output import printed_apart

__all__ = ["Questions", "read_line", "take_any_bytes"]


def take_any_bytes(stdin: TextIO | None) -> None:
    """From here on, have reading not raise for bytes that are not in stdin's encoding: most locales let it."""
    with contextlib.suppress(OSError, ValueError):  # it is closed, or was read from
        if isinstance(stdin, io.TextIOWrapper):
            stdin.reconfigure(errors="surrogateescape")


def read_line(screen: Screen, stdout: TextIO, prompt: str) -> str:
    """A line with its line break; empty or `EOFError` at the end of input.

    `stdout` is the real one: where it is no terminal, the prompt must not get into the answers' file.
    """
    if not is_terminal(stdout):
        screen.ask(prompt)
        return sys.stdin.readline()
    _readline()  # gives input() editing and history
    with contextlib.redirect_stdout(stdout):
        return input(prompt) + "\n"


class Questions:
    """Reads answers while a request runs: what is printed meanwhile waits, and nothing gets into the history."""

    def __init__(self, screen: Screen, stdout: TextIO) -> None:
        self._screen = screen
        self._stdout = stdout

    @property
    def can_prefill(self) -> bool:
        """Whether an answer can be given beforehand, to be edited."""
        return is_terminal(self._stdout) and _readline() is not None

    def read(self, prompt: str, prefill: str = "") -> str:
        """A line, as `read_line`. What was typed before the question was shown is dropped: it was no answer to it."""
        _drop_typed_ahead()
        with printed_apart(self._screen, self._stdout):
            if not is_terminal(self._stdout):
                self._screen.ask(prompt)
                return sys.stdin.readline()
            with self._editing(prefill):
                return input(prompt) + "\n"

    @contextlib.contextmanager
    def _editing(self, prefill: str) -> Generator[None]:
        readline = _readline()
        if readline is None:
            yield
            return
        readline.set_auto_history(False)
        if prefill and can_write(self._stdout, prefill):
            readline.set_startup_hook(lambda: readline.insert_text(prefill))
        try:
            yield
        finally:
            readline.set_startup_hook(None)
            readline.set_auto_history(True)


def _readline() -> ModuleType | None:
    try:
        import readline  # noqa: PLC0415 -- not on every system
    except ImportError:
        return None
    return readline


def _drop_typed_ahead() -> None:
    with contextlib.suppress(ImportError):
        import termios  # noqa: PLC0415 -- not on every system

        with contextlib.suppress(termios.error, OSError, ValueError):  # it is no terminal after all
            termios.tcflush(sys.stdin, termios.TCIFLUSH)
