"""Stand-ins for sys.stdout and sys.stderr while a command runs: what tools print goes to the screen, cleaned.

A tool prints what a file or a server says as well, and that must not steer the terminal. Programs that a tool starts
write to the process's own file descriptors, and so past this.
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

__all__ = ["printed_apart"]


class _Sink(io.RawIOBase):
    """The bytes that are printed, as clean text for `screen`. Thread-safe. It has the file descriptor of `terminal`."""

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
        """Show what was held back."""
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
    """Inside, what is printed to sys.stdout or sys.stderr goes to stderr by way of `screen`, cleaned.

    The two pass for stderr, or for the terminal `poses_as`: `input` uses readline only if it knows sys.stdout as one.
    """
    terminal = sys.stderr if poses_as is None else poses_as
    encoding = getattr(terminal, "encoding", None) or "utf-8"
    sink = _Sink(screen, terminal, encoding)
    # It passes everything on at once, so that nothing is left in it when the process ends in the middle of a tool.
    stream = io.TextIOWrapper(cast("Any", sink), encoding, "backslashreplace", "", write_through=True)
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        try:
            yield
        finally:
            sink.end()
