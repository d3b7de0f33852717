"""Reading lines from the person at the terminal, with readline where it is available. For the main thread only."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Generator
from types import ModuleType
from typing import TextIO

from .screen import Screen, can_write, is_terminal
from .tool_output import printed_apart


def take_any_bytes(stdin: TextIO | None) -> None:
    """Let reading from `stdin` accept bytes that are not in its encoding. In most locales, Python does so already."""
    # The stream may be closed, or may have been read from already.
    with contextlib.suppress(OSError, ValueError):
        if isinstance(stdin, io.TextIOWrapper):
            stdin.reconfigure(errors="surrogateescape")


def read_line(screen: Screen, stdout: TextIO, prompt: str) -> str:
    """Read a line with its line break. At the end of input, return an empty text or raise `EOFError`.

    `stdout` is the real one: where it is a file or a pipe, the prompt must not be written into it.
    """
    if not is_terminal(stdout):
        screen.ask(prompt)
        return sys.stdin.readline()
    # Importing readline gives input() editing and history.
    _readline()
    with contextlib.redirect_stdout(stdout):
        return input(prompt) + "\n"


class Questions:
    """Reads answers to questions while a request runs. Other output waits meanwhile; no answer enters the history."""

    def __init__(self, screen: Screen, stdout: TextIO) -> None:
        self._screen = screen
        self._stdout = stdout

    @property
    def can_prefill(self) -> bool:
        """True if `read` can offer a prepared answer to edit.

        Python on a Mac has mostly libedit instead of GNU's readline. It ignores a prepared answer; only the module's
        docstring says which of the two it is (https://docs.python.org/3/library/readline.html).
        """
        readline = _readline()
        return is_terminal(self._stdout) and readline is not None and "libedit" not in (readline.__doc__ or "")

    def read(self, prompt: str, prefill: str = "") -> str:
        """Read a line, as `read_line` does. Input typed before the question was shown is no answer, and is dropped."""
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
        if prefill and self.can_prefill and can_write(self._stdout, prefill):
            readline.set_startup_hook(lambda: readline.insert_text(prefill))
        try:
            yield
        finally:
            readline.set_startup_hook(None)
            readline.set_auto_history(True)


def _readline() -> ModuleType | None:
    if sys.platform == "win32":
        return None
    try:
        import readline  # noqa: PLC0415 -- some systems lack it
    except ImportError:
        return None
    # Python switches this off. Then each line of a pasted text would be a separate question.
    readline.parse_and_bind("set enable-bracketed-paste on")
    return readline


def _drop_typed_ahead() -> None:
    if sys.platform == "win32":
        return
    import termios  # noqa: PLC0415 -- Windows lacks it

    # Stdin may not be a terminal after all.
    with contextlib.suppress(termios.error, OSError, ValueError):
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
