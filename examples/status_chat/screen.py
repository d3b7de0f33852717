"""Where a turn is shown: a status line, and the answer below it as it comes.

`Screen` writes lines, for pipes and logs. `LiveScreen` draws the status anew in its place, with rich, for terminals.
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

_NOTE = -1  # a paragraph behind all of the model's


class Screen:
    """Each status is a line, and each piece of the answer is written as it comes."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._said = ""
        self._paragraph: int | None = None  # the one that is being written
        self._is_open = False  # whether a line of text is not ended yet

    @contextmanager
    def turn(self) -> Generator[None]:
        """Around one request. An exception that leaves the block, Ctrl-C too, was its end."""
        self._said, self._paragraph = "", None
        try:
            yield
        except BaseException:
            self.end("", "Cancelled")
            raise

    def tell(self, line: str = "") -> None:
        """A line of the application's own, between turns."""
        self._write(f"{line}\n")

    def status(self, text: str) -> None:
        """What is being done now. Said again (of another stage), it is no news."""
        if text != self._said:
            self._said = text
            self._end_line()
            self._write(f"  - {text}\n")

    def say(self, piece: str, paragraph: int) -> None:
        """A piece of the answer; each paragraph, by its number, begins on a line of its own."""
        if paragraph != self._paragraph:
            self._end_line()
        self._paragraph = paragraph
        self._write(clean(piece))
        self._is_open = not piece.endswith("\n")

    def take_back(self, paragraph: int) -> None:
        """The paragraph that was begun is void; here it cannot be unwritten, so it begins anew below."""
        if paragraph == self._paragraph:
            self._paragraph = None

    def end(self, note: str, status: str) -> None:
        """The turn is over: `note`, if any, stands behind the answer."""
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
    """One status line that changes in its place, and the answer below it."""

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
            self._live.refresh()  # a status that is there for a moment is drawn as well

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
        """The status, and as much of the answer's end as the window holds; in the end, all of it."""
        answer = "\n\n".join(clean(each).strip() for each in self._paragraphs.values())
        lines = list(Text(answer).wrap(self._console, self._console.width)) if answer else []
        if self._is_over:
            return Group(Text.assemble(("■ ", "cyan"), self._said), *lines)
        return Group(self._spinner, *lines[-max(1, self._console.height - 2) :])


def open_screen(out: IO[str]) -> Screen:
    """The screen that `out` can bear."""
    console = Console(file=out, highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveScreen(console)
    return Screen(out)
