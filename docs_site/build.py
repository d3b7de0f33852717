"""Building the site: lay the pages out in a folder, run zensical there, and add the copies."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .api import API, FOLDER, as_markdown, pages_of, path_of
from .copies import write_copies
from .examples import Examples
from .pages import Entry, Page, index_of, laid_out, snippets_that_run

__all__ = ["BuildError", "build", "navigation", "run_zensical"]

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = Path(__file__).with_name("zensical.yml")
STYLES = Path(__file__).with_name("extra.css")
# `python -m zensical` without the garbage collector, which would look at all syntax trees again and again.
_ZENSICAL = "import gc, runpy; gc.disable(); runpy.run_module('zensical', run_name='__main__', alter_sys=True)"


class BuildError(Exception):
    """The site could not be built, or with warnings. The text says what is wrong, and where."""


def build(folder: Path) -> Path:
    """Build the site in `folder`, which is emptied before, and return the folder of the finished site.

    A warning of zensical, such as a broken link, and a page that is missing in docs/README.md, raise a `BuildError`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    api = API(ROOT / "src")
    pages, pictures = laid_out(ROOT)
    sections = index_of(pages["contents.md"])
    pages |= pages_of(api)
    sections["Reference"].append(Entry("API reference", f"{FOLDER}/index.md"))
    for path, page in pages.items():
        _write(folder / "pages" / path, page.markdown)
    for path, picture in pictures.items():
        _write(folder / "pages" / path, picture.read_bytes())
    _write(folder / "pages" / "extra.css", STYLES.read_bytes())
    added = {"docs_dir": "pages", "site_dir": "site", "nav": navigation(pages, sections)}
    lines = "".join(f"{name}: {json.dumps(value)}\n" for name, value in added.items())  # JSON is YAML too
    _write(folder / "mkdocs.yml", f"{CONFIGURATION.read_text(encoding='utf-8')}\n{lines}")
    titles = {page.source: page.title for page in pages.values()}
    examples = Examples(api, snippets_that_run(ROOT))
    words = {api.member(home).path: said for home in api.homes() if (said := examples.words_of(home, titles))}
    _write(folder / "examples.json", json.dumps(words))
    run_zensical(folder)
    as_copies = {path: each.replace(".html", ".md") for path, each in words.items()}
    plain = {path_of(module): as_markdown(api, module, as_copies) for module in api.modules}
    copied = {path: replace(page, markdown=plain.get(path, page.markdown)) for path, page in pages.items()}
    write_copies(folder / "site", copied, sections)
    return folder / "site"


def navigation(pages: Mapping[str, Page], sections: Mapping[str, Sequence[Entry]]) -> list[dict[str, Any]]:
    """The tabs of the site: the front page, the sections of docs/README.md, and "Project" with all other pages."""
    left = dict.fromkeys(path for path in pages if path != "index.md")
    tabs: list[dict[str, Any]] = [{"toolbus": "index.md"}]
    tabs += [{heading: _tab(pages, entries, left)} for heading, entries in sections.items()]
    missing = [pages[path].source for path in left if pages[path].source.startswith("docs/") and path != "contents.md"]
    if missing:
        raise BuildError(f"docs/README.md does not list {', '.join(missing)}. Add each page to one of its sections.")
    # zensical takes an index among the pages of a tab for the first page of the tab.
    rest = [{pages[path].title: [path] if path.endswith("/index.md") else path} for path in left]
    return [*tabs, {"Project": rest}]


def _tab(pages: Mapping[str, Page], entries: Sequence[Entry], left: dict[str, None]) -> list[Any]:
    """One section, without the pages that an earlier section has; `left` loses those that it has."""
    tab: list[Any] = []
    groups: dict[str, list[Any]] = {}
    for entry in entries:
        if entry.path not in left:
            continue
        del left[entry.path]
        item: dict[str, Any] = {entry.title: entry.path}
        if entry.path.endswith("/index.md"):  # the pages of its folder come below it
            below = sorted(path for path in left if path.startswith(entry.path.removesuffix("index.md")))
            item = {entry.title: [entry.path, *({pages[path].title: path} for path in below)]}
            for path in below:
                del left[path]
        if entry.group and entry.group not in groups:
            tab.append({entry.group[0].upper() + entry.group[1:]: groups.setdefault(entry.group, [])})
        (groups[entry.group] if entry.group else tab).append(item)
    return tab


def run_zensical(folder: Path) -> None:
    """Let zensical build the folder, by its mkdocs.yml. A warning raises a `BuildError` with all of its output."""
    done = subprocess.run(
        [sys.executable, "-c", _ZENSICAL, "build", "--strict", "--config-file", "mkdocs.yml"],
        check=False,
        cwd=folder,
        env={**os.environ, **_for_zensical(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        report = re.sub(r"\x1b\[[\d;]*m", "", done.stdout).partition("Traceback")[0]
        raise BuildError(f"zensical has found mistakes in the pages:\n{report}")


def _for_zensical(folder: Path) -> dict[str, str]:
    """The variables that zensical.yml and the extensions in it need."""
    examples = folder / "examples.json"
    found = {"PYTHONPATH": str(ROOT), "DOCS_SITE_SOURCES": str(ROOT / "src")}
    return found | ({"DOCS_SITE_EXAMPLES": str(examples)} if examples.exists() else {})


def _write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
