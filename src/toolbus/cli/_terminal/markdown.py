"""The model's Markdown as styled text for a terminal, block by block. Needs rich (extra `cli`).

A block (a paragraph, a list, a table, a code block) is shown once the next one begins. A block is shown as it is if the
layout would leave out a letter or a digit, or would take too long. The address of a link is shown as text, because a
terminal's own links can show one address and lead to another.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import rich.color
import rich.console
import rich.markdown
import rich.padding
import rich.segment
import rich.style
import rich.text
import rich.theme
from markdown_it import MarkdownIt

from ...core.plain_text import clean

if TYPE_CHECKING:
    from markdown_it.token import Token

_MAX_COST = 8_000  # of a block, in characters: so it takes 0.1 s at most
_COST_OF_A_LINE = 20
_COST_OF_A_CELL = 4
_FENCE = re.compile(r"\s*(?:(?:[-*+]|\d{1,9}[.)])\s+)?(`{3,}|~{3,})")
# The letters and digits that mark structure: entities, the language of a code block, and the numbers of a list.
_MARKS = re.compile(r"&#?\w+;|(?m:^.*?(?:`{3,}|~{3,}).*$|^[ \t>*+-]*\d{1,9}[.)])")
_CONTENT = re.compile(r"[^\W_]")
_COLOURS = rich.color.ColorSystem.STANDARD
_THEME = rich.theme.Theme(
    {
        "markdown.h1": "bold underline",
        "markdown.h2": "bold underline",
        "markdown.h3": "bold",
        "markdown.h4": "bold",
        "markdown.h5": "bold",
        "markdown.h6": "bold",
        "markdown.code": "cyan",
        "markdown.code_block": "cyan",
        "markdown.block_quote": "italic",
        "markdown.hr": "dim",
        "markdown.item.bullet": "bold",
        "markdown.item.number": "bold",
        "markdown.link": "underline",
        "markdown.link_url": "dim",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)


class _Heading(rich.markdown.Heading):
    """A heading, at the left on every level."""

    LEVEL_ALIGN = {}  # noqa: RUF012 -- as in the base class


class _CodeBlock(rich.markdown.CodeBlock):
    """A code block without highlighting, as some texts take the highlighter seconds."""

    def __rich_console__(
        self, console: rich.console.Console, options: rich.console.ConsoleOptions
    ) -> rich.console.RenderResult:
        code = rich.text.Text(str(self.text).rstrip(), style="markdown.code_block", overflow="fold")
        yield rich.padding.Padding.indent(code, 2)


class _Markdown(rich.markdown.Markdown):
    """Parsed Markdown, with the two elements above."""

    elements = {  # noqa: RUF012 -- as in the base class
        **rich.markdown.Markdown.elements,
        "heading_open": _Heading,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
    }


class MarkdownText:
    """Markdown that arrives in pieces: `feed` and `flush` return the styled text of the blocks that are complete.

    `columns` returns the width of the terminal. The text must be clean already, but it may contain entities that stand
    for control characters: what is returned contains none.
    """

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self._console = rich.console.Console(theme=_THEME, force_terminal=True, emoji=False, markup=False)
        # The rules that are off would leave text out: HTML, definitions of links, and addresses of images.
        self._parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
        self._parser.disable(["reference", "image"])
        self._begin()

    def _begin(self) -> None:
        self._shown = False  # whether anything was shown of this text
        self._line = ""  # the last line so far
        self._block: list[str] = []  # the lines before it that are not shown yet
        self._cost = 0  # of `_block`
        self._fence = ""  # the fence that began the code block around the last line, if there is one
        self._gap = False  # whether the last complete line may separate blocks
        self._plain = False  # whether the block is shown line by line, as it is

    def feed(self, piece: str) -> str:
        """Return the blocks that this piece of text completes."""
        *complete, self._line = (self._line + piece).split("\n")
        shown = "".join(map(self._take, complete))
        if self._begins_block(self._line):
            shown += self._rendered()
        if self._cost + len(self._line) > _MAX_COST:
            shown += self._as_it_is()
        return shown

    def flush(self) -> str:
        """Return the rest of the text, which has ended."""
        shown = self.feed("\n") + self._rendered()
        self._begin()
        return shown

    def _take(self, line: str) -> str:
        shown = self._rendered() if self._begins_block(line) else ""
        fence = _FENCE.match(line)
        if not self._fence:
            self._fence = fence[1] if fence else ""
        elif fence and fence[1].startswith(self._fence) and not line.strip().strip(self._fence[0]):
            self._fence = ""
        self._gap = not (self._fence or line.strip())
        if self._plain:
            return f"{shown}{line}\n"
        self._block.append(line)
        self._cost += len(line) + _COST_OF_A_LINE + _COST_OF_A_CELL * line.count("|")
        return shown

    def _begins_block(self, line: str) -> bool:
        """Return whether a line begins another block: an indented one may continue an item of a list."""
        return self._gap and line[:1].strip() != ""

    def _as_it_is(self) -> str:
        """Return the block so far, and show the rest of it as it is, too."""
        lines, self._block, self._cost, self._plain = self._block, [], 0, True
        rest, self._line = self._line, ""
        return self._separated("".join(f"{each}\n" for each in lines) + rest)

    def _rendered(self) -> str:
        text = "\n".join(self._block).strip("\n")
        self._block, self._cost, self._gap, self._plain = [], 0, False, False
        return self._separated(self._styled(text) or f"{text}\n") if text else ""

    def _separated(self, text: str) -> str:
        shown, self._shown = self._shown, True
        return f"\n{text}" if shown else text

    def _styled(self, text: str) -> str:
        """Return the block laid out, or "" if that leaves something out or fails."""
        try:
            rendered = self._laid_out(text)
        except Exception:
            # A bug of the library must not cost the user the answer.
            return ""
        wanted = Counter(_CONTENT.findall(_MARKS.sub("", text)))
        if not wanted <= Counter(_CONTENT.findall("".join(each.text for each in rendered))):
            return ""
        painted = "".join(_painted(clean(each.text), each.style) for each in rendered)
        return "\n".join(line.rstrip(" ") for line in painted.split("\n")).strip("\n") + "\n"

    def _laid_out(self, text: str) -> list[rich.segment.Segment]:
        markdown = _Markdown("", hyperlinks=False)
        markdown.parsed = self._parser.parse(text)
        for token in markdown.parsed:
            token.children = [*map(_with_line_breaks, filter(_is_shown, token.children or []))] or None
        options = self._console.options.update(width=max(self._columns(), 20))
        return [each for each in self._console.render(markdown, options) if not each.control]


def _painted(text: str, style: rich.style.Style | None) -> str:
    return text if style is None or text.isspace() else style.render(text, color_system=_COLOURS)


def _is_shown(token: Token) -> bool:
    """Return whether a part of a line is shown: of `<address>`, only the address."""
    return token.markup != "autolink"


def _with_line_breaks(token: Token) -> Token:
    """Return the token as it is shown: models mean the line breaks that they write."""
    if token.type == "softbreak":
        token.type = "hardbreak"
    return token
