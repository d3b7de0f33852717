"""The screen for terminals: colours, and one live line while a request runs. Needs rich (extra `cli`).

There is never more than one live line, so that a terminal that is made narrower keeps no leftovers of it: if the drawn
line has been wrapped since, all of its rows are erased.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, TextIO

from .screen import Line, Mark, Screen, can_write, is_terminal
from .text import cells

if TYPE_CHECKING:
    from .markdown import MarkdownText

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ASCII_FRAMES = "|/-\\"
_WIPE = "\r\x1b[2K"
_UP_AND_WIPE = "\x1b[1A\x1b[2K"
_STYLES = {
    "work": "cyan",
    "start": "cyan",
    "ok": "green",
    "failed": "red",
    "denied": "yellow",
    "retry": "yellow",
    "ask": "yellow",
    "name": "bold",
    "detail": "dim",
    "tail": "dim",
}


class LiveScreen(Screen):
    """A `Screen` that implements `busy`. Raises `ImportError` without rich."""

    live = True

    def __init__(self, out: TextIO | None, err: TextIO | None) -> None:
        import rich.color  # noqa: PLC0415 -- an optional dependency, needed only here
        import rich.console  # noqa: PLC0415
        import rich.style  # noqa: PLC0415

        super().__init__(out, err)
        self._console = rich.console.Console(file=err)
        self._colours = rich.color.ColorSystem.STANDARD
        self._styles = {kind: rich.style.Style.parse(words) for kind, words in _STYLES.items()}
        self._frames = cycle(_FRAMES if self._fancy else _ASCII_FRAMES)
        self._drawn = 0  # columns of the live line that is drawn now

    @functools.cached_property
    def _markdown(self) -> MarkdownText:
        from .markdown import MarkdownText  # noqa: PLC0415 -- takes longer than all other imports of the screen

        return MarkdownText(lambda: self.columns)

    @property
    def waits_for_blocks(self) -> bool:
        """True for a terminal that can show the signs of lists, quotes and tables."""
        return is_terminal(self._out) and can_write(self._out, "•▌─")

    def answer(self, text: str) -> None:
        """Write the blocks that this piece of the model's text completes."""
        with self._lock:
            self.say(self._markdown.feed(text) if self.waits_for_blocks else text)

    def end_answer(self) -> None:
        """Write the last block."""
        with self._lock:
            # Before the first piece of text there is nothing to write, and nothing is imported.
            self.say(self._markdown.flush() if "_markdown" in vars(self) else "")

    @property
    def capable(self) -> bool:
        """True if the terminal supports cursor movements."""
        return self._console.is_terminal and not self._console.legacy_windows and not self._console.is_dumb_terminal

    def busy(self, line: Line | None) -> None:
        """Redraw the live line, or erase it. It is not drawn in the middle of a line or during a question."""
        with self._lock:
            text = self._wiped()
            may_draw = self._held is None and self._aside_at_start and (self._at_start or not self._shared)
            if line is not None and may_draw:
                pieces = self._pieces(line)
                self._drawn = sum(cells(piece) for _, piece in pieces)
                text += self._painted(pieces)
            if text:
                self._to_err(text)

    def _wiped(self) -> str:
        if not self._drawn:
            return ""
        rows = -(-self._drawn // (self.width + 1))
        self._drawn = 0
        return _WIPE + _UP_AND_WIPE * (rows - 1)

    def _painted(self, pieces: Sequence[tuple[str, str]]) -> str:
        return "".join(
            self._styles[kind].render(text, color_system=self._colours) if kind in self._styles else text
            for kind, text in pieces
        )

    def _mark(self, mark: Mark) -> str:
        return next(self._frames) if mark == "work" else super()._mark(mark)
