"""The screen: it writes the answer to stdout, and progress to stderr. It knows streams and text, but no events.

`Screen` is the plain log. `toolbus.cli._terminal.live_screen` has one for terminals, with a live line.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TextIO

from .text import cells, cut

Mark = Literal["", "work", "start", "ok", "failed", "denied", "retry", "ask"]

_MARKS: dict[str, tuple[str, str]] = {
    "": ("", ""),
    "work": ("·", "*"),
    "start": ("→", ">"),
    "ok": ("✓", "ok"),
    "failed": ("✗", "failed:"),
    "denied": ("⊘", "denied:"),
    "retry": ("↻", "again:"),
    "ask": ("?", "?"),
}
_ARROW = "\u203a"
_LOG_COLUMNS = 120  # width of a log that is not a terminal
_FILE_COLUMNS = 10_000
_MAX_HELD = 1_000  # pieces of output that are held while a question is open


@dataclass(slots=True, frozen=True, kw_only=True)
class Line:
    """One line of progress: ✓ Search Text  query="limits"  12 ms. `detail` is cut to the columns that are left."""

    mark: Mark = ""
    name: str = ""
    detail: str = ""
    tail: str = ""

    def fitted(self, width: int, ellipsis: str) -> Line:
        """Return the line, cut to `width` columns, which do not include the mark and the space after it."""
        tail = self.tail if cells(self.tail) + 2 <= width // 2 else ""
        if tail:
            width -= cells(tail) + 2
        name = cut(self.name, width, ellipsis)
        left = width - cells(name) - 2
        detail = cut(self.detail, left, ellipsis) if left >= 4 else ""
        return Line(mark=self.mark, name=name, detail=detail, tail=tail)


class Screen:
    """Two streams that may be one terminal. Thread-safe; each method writes and flushes at once.

    A failing stream raises nothing here: `failure` is the error of stdout, and `on_failure` is called once for it.
    `said` is True once something was written to stdout.
    """

    live = False

    def __init__(self, out: TextIO | None, err: TextIO | None) -> None:
        self.failure: OSError | None = None
        self.on_failure: Callable[[], object] | None = None
        self.said = False
        self._out = out
        self._err = err
        self._shared = is_terminal(out) and is_terminal(err)
        self._at_start = True  # True if the answer's text ends with a line break
        self._aside_at_start = True  # the same for the output of tools
        # Writes that wait for the end of a question; None while no question is open.
        self._held: list[Callable[[], None]] | None = None
        self._lost = 0  # writes that did not fit into `_held`
        self._lock = threading.RLock()
        self._fancy = can_write(err, "✓✗⊘→↻·…⠋" + _ARROW)

    # ----------------------------------------------------------------------------------------- the answer

    def say(self, text: str) -> None:
        """Write a piece of the answer."""
        if not text:
            return
        with self._lock:
            self.said = True
            if self._is_held(partial(self.say, text), keep=True):
                return
            self.busy(None)
            if self._shared:
                self._end_aside()
            self._at_start = text.endswith("\n")
            self._to_out(text)

    def answer(self, text: str) -> None:
        """Write a piece of the model's text, which `end_answer` ends."""
        self.say(text)

    def end_answer(self) -> None:
        """Write what is still to be shown of the model's text."""

    @property
    def waits_for_blocks(self) -> bool:
        """True if pieces of the model's text are not shown at once."""
        return False

    def end_paragraph(self) -> None:
        """Begin a new line, unless the answer's text ends with one."""
        with self._lock:
            if not self._is_held(self.end_paragraph, keep=True) and not self._at_start:
                self.say("\n")

    def data(self, line: str) -> None:
        """Write one line of data to stdout."""
        self.say(f"{line}\n")

    # ----------------------------------------------------------------------------------------- progress

    def note(self, line: Line) -> None:
        """Write a line to stderr, cut to fit."""
        with self._lock:
            if not self._is_held(partial(self.note, line)):
                self.ask_about(line)

    def report(self, text: str) -> None:
        """Write complete text to stderr."""
        with self._lock:
            if not self._is_held(partial(self.report, text)):
                self.ask(text.rstrip("\n") + "\n")

    def remark(self, text: str) -> None:
        """Write complete text to stderr, dimmed where the terminal allows it."""
        self.report(self._painted([("detail", text)]))

    def aside(self, text: str) -> None:
        """Write a piece of the output of tools to stderr: clean text, which may end in the middle of a line."""
        with self._lock:
            if not self._is_held(partial(self.aside, text)):
                if self._aside_at_start:
                    self._begin_note()
                self._aside_at_start = text.endswith("\n")
                self._to_err(text)

    # ----------------------------------------------------------------------------------------- questions

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """Inside, a question is open: all other output waits until the end, except that of `ask` and `ask_about`.

        The answer's text is kept completely. Of the other output up to 1,000 pieces are kept, and the rest is counted.
        """
        with self._lock:
            self._begin_note()
            self._held = []
        try:
            yield
        finally:
            with self._lock:
                held, self._held = self._held, None
                for write_now in held:
                    write_now()
                if self._lost:
                    self.report(f"toolbus: {self._lost:,} lines were not shown while a question was open")
                    self._lost = 0

    def ask(self, prompt: str) -> None:
        """Write `prompt` to stderr, and stay on its line."""
        with self._lock:
            self._begin_note()
            self._to_err(prompt)

    def ask_about(self, line: Line) -> None:
        """Write a line to stderr, cut to fit."""
        with self._lock:
            self._begin_note()
            self._to_err(self._painted(self._pieces(line)) + "\n")

    @property
    def arrow(self) -> str:
        """The sign before something that is typed."""
        return _ARROW if self._fancy else ">"

    @property
    def ellipsis(self) -> str:
        """The sign for something left out."""
        return "…" if self._fancy else "..."

    def _is_held(self, write_later: Callable[[], None], *, keep: bool = False) -> bool:
        """Return True if a question is open, after queueing the write for the time after the answer."""
        if self._held is None:
            return False
        if keep or len(self._held) < _MAX_HELD:
            self._held.append(write_later)
        else:
            self._lost += 1
        return True

    # ----------------------------------------------------------------------------------------- drawing

    def busy(self, line: Line | None) -> None:
        """Show `line` until something else is written; None erases it. The plain log does nothing here."""

    @property
    def width(self) -> int:
        """The number of columns that a line on stderr may take."""
        if not is_terminal(self._err):
            return _columns_asked_for() or _LOG_COLUMNS
        return _columns_of(self._err)

    @property
    def columns(self) -> int:
        """The number of columns that a line of a table on stdout may take. In a file or a pipe nothing is cut."""
        return _columns_of(self._out) if is_terminal(self._out) else _FILE_COLUMNS

    def _begin_note(self) -> None:
        self.busy(None)
        if self._shared:
            self.end_paragraph()
        self._end_aside()

    def _end_aside(self) -> None:
        """Begin a new line, unless what tools have printed ends with one."""
        if not self._aside_at_start:
            self._aside_at_start = True
            self._to_err("\n")

    def _painted(self, pieces: Sequence[tuple[str, str]]) -> str:
        return "".join(text for _, text in pieces)

    def _pieces(self, line: Line) -> list[tuple[str, str]]:
        """Return the kind and the text of each piece of the line, cut to fit."""
        mark = self._mark(line.mark)
        fitted = line.fitted(self.width - (cells(mark) + 1 if mark else 0), self.ellipsis)
        pieces = [(str(line.mark), mark), ("", " ")] if mark else []
        pieces.append(("name", fitted.name))
        # Arguments that a person has to approve are not dimmed.
        detail = "" if line.mark == "ask" else "detail"
        for kind, text in ((detail, fitted.detail), ("tail", fitted.tail)):
            if text:
                pieces += [("", "  "), (kind, text)]
        return pieces

    def _mark(self, mark: Mark) -> str:
        return _MARKS[mark][0 if self._fancy else 1]

    # ----------------------------------------------------------------------------------------- the streams

    def _to_out(self, text: str) -> None:
        if self.failure is not None:
            return
        try:
            write(self._out, text)
        except OSError as exc:
            self.failure = exc
            if self.on_failure is not None:
                self.on_failure()

    def _to_err(self, text: str) -> None:
        try:
            write(self._err, text)
        except OSError:
            # Nobody reads stderr, so this cannot be reported. The answer on stdout may still be wanted.
            self._err = None


def write(stream: TextIO | None, text: str) -> None:
    """Write and flush. Characters that the stream's encoding lacks become question marks. Raises only `OSError`."""
    if stream is None:
        # The process was started without this stream.
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()
    except ValueError as exc:
        # The stream is closed.
        raise BrokenPipeError(str(exc)) from exc


def _columns_asked_for() -> int:
    """Return the value of COLUMNS, or 0 if it is not a number that a line can be cut to."""
    try:
        return max(int(os.environ.get("COLUMNS", "")), 0)
    except ValueError:
        return 0


def _columns_of(terminal: TextIO | None) -> int:
    assert terminal is not None
    try:
        columns = os.get_terminal_size(terminal.fileno()).columns
    except OSError:
        columns = shutil.get_terminal_size().columns
    # A full line would wrap on some terminals.
    return (columns or 80) - 1


def is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def can_write(stream: TextIO | None, text: str) -> bool:
    """Return whether the encoding of `stream` has these characters."""
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def open_screen(out: TextIO | None, err: TextIO | None, environment: Mapping[str, str]) -> Screen:
    """Return the best screen that these streams support: live on a terminal with rich, else the plain log.

    NO_COLOR (https://no-color.org) and TERM=dumb also select the plain log.
    """
    if not is_terminal(err) or environment.get("NO_COLOR") or environment.get("TERM") in {"dumb", "unknown"}:
        return Screen(out, err)
    try:
        from .live_screen import LiveScreen  # noqa: PLC0415 -- needs rich

        screen = LiveScreen(out, err)
    except ImportError:
        return Screen(out, err)
    return screen if screen.capable else Screen(out, err)
