"""The pages of the site: the Markdown files of docs/, and each file elsewhere in the checkout that they link to.

1. A page keeps its path in docs/. A file elsewhere keeps its path in the checkout, in lower case; a file that is not
   Markdown becomes a page that shows it. The project's README is the front page, and docs/README.md is `contents.md`.
2. A link is rewritten only where its target has another path on the site. Text in fences stays as it is.
3. The navigation is the list in docs/README.md, so a page that is missing there is an error.
"""

from __future__ import annotations

import itertools
import posixpath
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Entry", "Page", "index_of", "laid_out", "outside_of_fences", "snippets_that_run"]

_LINK = re.compile(r"(?P<before>!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()(?P<target>[^)#\s]*)(?P<anchor>#[^)\s]+)?(?P<after>\))")
_FENCE = re.compile(r"^ *(?P<ticks>`{3,}|~{3,})")
_COMMENT = re.compile(r"^ *<!-- (no-run|file|output)\b.*-->\n", re.MULTILINE)
_LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json"}


@dataclass(frozen=True)
class Page:
    """One page: its path on the site, its Markdown, and the file it was made from."""

    path: str
    markdown: str
    source: str

    @property
    def title(self) -> str:
        """The text of the first heading."""
        return next(line[2:].replace("`", "") for line in self.markdown.splitlines() if line.startswith("# "))


@dataclass(frozen=True)
class Entry:
    """A page in the navigation, with its group, which may be empty."""

    title: str
    path: str
    group: str = ""


@dataclass
class _Layout:
    root: Path
    pages: dict[str, Page] = field(default_factory=dict[str, Page])
    files: dict[str, Path] = field(default_factory=dict[str, Path])

    def add(self, source: str) -> str:
        """Add the page of a file, and of all files that it links to; return its path on the site."""
        path = _path_of(source)
        if path in self.pages or path in self.files:
            return path
        file = self.root / source
        if file.suffix in (".svg", ".png") or (source.startswith("docs/") and file.suffix != ".md"):
            self.files[path] = file
            return path
        text = file.read_text(encoding="utf-8")
        if file.suffix != ".md":
            text = f"# `{source}`\n\n```{_LANGUAGES.get(file.suffix, 'text')}\n{text}```\n"
        self.pages[path] = Page(path, "", source)  # a link back to it finds it
        self.pages[path] = Page(path, self._rewritten(text, source, path), source)
        return path

    def _rewritten(self, text: str, source: str, path: str) -> str:
        def rewrite(link: re.Match[str]) -> str:
            target = link["target"]
            if not target or re.match(r"[a-z]+:", target):
                return link[0]
            found = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
            if (self.root / found).is_dir():
                found = posixpath.join(found, "README.md")
            shown = posixpath.relpath(self.add(found), posixpath.dirname(path) or ".")
            return f"{link['before']}{shown}{link['anchor'] or ''}{link['after']}"

        return outside_of_fences(text, lambda part: _COMMENT.sub("", _LINK.sub(rewrite, part)))


def _path_of(source: str) -> str:
    if source == "README.md":
        return "index.md"
    if source == "docs/README.md":
        return "contents.md"
    path = source.removeprefix("docs/")
    if path.endswith("/README.md"):
        return posixpath.join(posixpath.dirname(path).lower(), "index.md")
    if source.startswith("docs/") or path.endswith(".svg"):
        return path
    return path.lower() if path.endswith(".md") else f"{path.lower()}.md"


def outside_of_fences(text: str, change: Callable[[str], str]) -> str:
    """Return `text` with `change`, a function of a piece of Markdown, applied to all that is not in a fence."""
    done: list[str] = []
    piece: list[str] = []
    ticks = ""
    for line in text.splitlines(keepends=True):
        fence = _FENCE.match(line)
        if ticks:
            done.append(line)
            if fence and line.strip() == ticks:
                ticks = ""
        elif fence:
            done += [change("".join(piece)), line]
            piece, ticks = [], fence["ticks"]
        else:
            piece.append(line)
    return "".join([*done, change("".join(piece))])


def snippets_that_run(root: Path) -> list[tuple[str, str]]:
    """The Python snippets of the pages in docs/ that the tests run: each page's path in the checkout, and the code."""
    found: list[tuple[str, str]] = []
    for path in sorted((root / "docs").rglob("*.md")):
        above = ""
        lines = iter(path.read_text(encoding="utf-8").splitlines())
        for line in lines:
            fence = _FENCE.match(line)
            if fence is None:
                above = line.strip() or above
                continue
            ending = fence["ticks"].rjust(fence.end("ticks"))
            inside = "".join(f"{each}\n" for each in itertools.takewhile(ending.__ne__, lines))
            if line.strip() == f"{fence['ticks']}python" and "no-run" not in above:
                found.append((path.relative_to(root).as_posix(), textwrap.dedent(inside)))
            above = ""
    return found


def laid_out(root: Path) -> tuple[dict[str, Page], dict[str, Path]]:
    """The pages of the checkout at `root`, and its pictures, each by the path on the site."""
    layout = _Layout(root)
    for source in ("README.md", *sorted(path.relative_to(root).as_posix() for path in (root / "docs").rglob("*.md"))):
        layout.add(source)
    return layout.pages, layout.files


def index_of(contents: Page) -> dict[str, list[Entry]]:
    """The sections of docs/README.md: for each heading, the pages that it lists, in their order."""
    sections: dict[str, list[Entry]] = {}
    here: list[Entry] = []
    for line in contents.markdown.splitlines():
        if line.startswith("## "):
            here = sections.setdefault(line[3:], [])
        group = line.split("|")[1].strip() if line.startswith("|") else ""
        links = re.findall(r"\[([^\]]+)\]\(([^)#]+\.md)\)", line)
        here += [Entry(text.replace("`", ""), path, group) for text, path in links]
    return sections
