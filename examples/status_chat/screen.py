"""The screen that shows a turn: a status line, and the answer below it as it arrives.

`Screen` writes lines, for pipes and logs. `LiveScreen` redraws one status line with rich, for terminals.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import IO

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from toolbus.core.plain_text import clean

__all__ = ["LiveScreen", "Screen", "open_screen"]

_NOTE = -1  # a paragraph after all those of the model


class Screen:
    """A screen that writes a line for each status, and each piece of the answer as it arrives."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._said = ""
        self._paragraph: int | None = None  # the number of the paragraph that is being written
        self._is_open = False  # true while a line of text has no end

    @contextmanager
    def turn(self) -> Generator[None]:
        """Show one request in this block. An exception that leaves it, such as Ctrl-C, also ends the request."""
        self._said, self._paragraph = "", None
        try:
            yield
        except BaseException:
            self.end("", "Cancelled")
            raise

    def show(self, line: str = "") -> None:
        """Write a line of the application itself, between turns."""
        self._write(f"{line}\n")

    def status(self, text: str) -> None:
        """Show the current status. A repeated sentence (of another stage) is not shown again."""
        if text != self._said:
            self._said = text
            self._end_line()
            self._write(f"  - {text}\n")

    def say(self, piece: str, paragraph: int) -> None:
        """Write a piece of the answer. Each paragraph, by its number, begins on its own line."""
        if paragraph != self._paragraph:
            self._end_line()
        self._paragraph = paragraph
        self._write(clean(piece))
        self._is_open = not piece.endswith("\n")

    def take_back(self, paragraph: int) -> None:
        """Begin the paragraph again, because its text is void. Written text cannot be removed, so it begins below."""
        if paragraph == self._paragraph:
            self._paragraph = None

    def end(self, note: str, status: str) -> None:
        """End the turn, and write `note`, if any, after the answer."""
        if note:
            self.say(f"{note}\n", _NOTE)
        self.status(status)

    def _end_line(self) -> None:
        if self._is_open:
            self._write("\n")
        self._is_open = False

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class LiveScreen(Screen):
    """A screen that redraws one status line, with the answer below it."""

    def __init__(self, console: Console) -> None:
        super().__init__(console.file)
        self._console = console
        self._paragraphs: dict[int, str] = {}
        self._spinner = Spinner("dots")
        self._is_over = False
        self._live: Live | None = None

    @contextmanager
    def turn(self) -> Generator[None]:
        self._paragraphs, self._spinner, self._is_over = {}, Spinner("dots", style="cyan"), False
        self._live = Live(get_renderable=self._picture, console=self._console, refresh_per_second=12)
        with self._live, super().turn():
            yield

    def status(self, text: str) -> None:
        self._said = text
        self._spinner.update(text=Text(text))
        if self._live is not None:
            self._live.refresh()  # even a very short status is drawn

    def say(self, piece: str, paragraph: int) -> None:
        self._paragraphs[paragraph] = self._paragraphs.get(paragraph, "") + piece

    def take_back(self, paragraph: int) -> None:
        self._paragraphs.pop(paragraph, None)

    def end(self, note: str, status: str) -> None:
        if note:
            self.say(note, _NOTE)
        self.status(status)
        self._is_over = True

    def _picture(self) -> Group:
        """The status, and as much of the answer's end as the window can show; at the end, the whole answer."""
        answer = "\n\n".join(clean(each).strip() for each in self._paragraphs.values())
        lines = list(Text(answer).wrap(self._console, self._console.width)) if answer else []
        if self._is_over:
            return Group(Text.assemble(("■ ", "cyan"), self._said), *lines)
        return Group(self._spinner, *lines[-max(1, self._console.height - 2) :])


def open_screen(out: IO[str]) -> Screen:
    """The kind of screen that `out` supports."""
    console = Console(file=out, highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveScreen(console)
    return Screen(out)
