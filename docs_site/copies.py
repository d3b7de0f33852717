"""The copies for language models: llms.txt, llms-full.txt, and each page's Markdown beside its HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .pages import Entry, Page

__all__ = ["write_copies"]


def write_copies(site: Path, pages: Mapping[str, Page], sections: Mapping[str, Sequence[Entry]]) -> None:
    """Write all of them into the folder `site`. llms.txt lists the pages of `sections`, with links to their copies."""
    front = pages["index.md"].markdown.splitlines()
    summary = " ".join(front[2 : front.index("", 2)])
    listed = [f"# toolbus\n\n> {summary}\n"]
    for heading, entries in sections.items():
        listed.append(f"## {heading}\n")
        listed.append("".join(f"- [{each.title}]({each.path}): {_promise(pages[each.path])}\n" for each in entries))
    (site / "llms.txt").write_text("\n".join(listed), encoding="utf-8")
    order = dict.fromkeys(["index.md", *(each.path for entries in sections.values() for each in entries), *pages])
    for path in order:
        copy = site / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(pages[path].markdown, encoding="utf-8")
    whole = "\n\n".join(f"<!-- {path} -->\n\n{pages[path].markdown}" for path in order)
    (site / "llms-full.txt").write_text(whole, encoding="utf-8")


def _promise(page: Page) -> str:
    """The page's first paragraph, on one line."""
    lines = [line for line in page.markdown.split("\n\n") if line.strip() and not line.startswith(("#", "<!--"))]
    return " ".join(lines[0].split())
