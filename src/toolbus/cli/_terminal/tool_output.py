"""Replacements for sys.stdout and sys.stderr while a command runs: the output of tools goes to the screen, cleaned.

A tool may print text of a file or a server, and such text must not control the terminal. Programs that a tool starts
write to the process's own file descriptors, so their output does not pass through these replacements.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import sys
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TextIO, cast

from .screen import Screen, is_terminal
from .text import Cleaner

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Sink(io.RawIOBase):
    """A stream that passes printed bytes to `screen` as clean text. Thread-safe. Its descriptor is `terminal`'s."""

    def __init__(self, screen: Screen, terminal: TextIO | None, encoding: str) -> None:
        self._screen = screen
        self._terminal = terminal
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._cleaner = Cleaner()
        self._lock = threading.Lock()

    def writable(self) -> bool:
        return True

    def write(self, piece: ReadableBuffer, /) -> int:
        data = bytes(piece)
        with self._lock:
            if text := self._cleaner.feed(self._decoder.decode(data)):
                self._screen.aside(text)
        return len(data)

    def end(self) -> None:
        """Show the text that was held back."""
        with self._lock:
            if text := self._cleaner.feed(self._decoder.decode(b"", final=True)) + self._cleaner.flush():
                self._screen.aside(text)

    def fileno(self) -> int:
        if self._terminal is None:
            raise io.UnsupportedOperation("fileno")
        return self._terminal.fileno()

    def isatty(self) -> bool:
        return is_terminal(self._terminal)


@contextlib.contextmanager
def printed_apart(screen: Screen, poses_as: TextIO | None = None) -> Generator[None]:
    """Inside, text printed to sys.stdout or sys.stderr goes to stderr through `screen`, cleaned.

    Both streams present themselves as stderr, or as the terminal `poses_as`: `input` uses readline only if sys.stdout
    looks like a terminal.
    """
    terminal = sys.stderr if poses_as is None else poses_as
    encoding = getattr(terminal, "encoding", None) or "utf-8"
    sink = _Sink(screen, terminal, encoding)
    # The wrapper writes everything through at once, so that no output is lost if the process ends while a tool runs.
    stream = io.TextIOWrapper(cast("Any", sink), encoding, "backslashreplace", "", write_through=True)
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        try:
            yield
        finally:
            sink.end()
