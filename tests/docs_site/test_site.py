"""The site of the documentation: complete, without a broken link, and without a request to another host."""

from __future__ import annotations

import fcntl
import importlib
import json
import pkgutil
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from docs_site.__main__ import parse
from docs_site.build import ROOT, BuildError, navigation, run_zensical
from docs_site.pages import Entry, Page, index_of, laid_out

import toolbus

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("without_garbage_collection")]

MODULES = ["toolbus"] + [
    info.name
    for info in pkgutil.walk_packages(toolbus.__path__, "toolbus.")
    if not any(part.startswith("_") for part in info.name.split("."))
]
PAGES = [
    path
    for path in [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md"), ROOT / "CONTRIBUTING.md"]
    if not re.match(r"\d{4}-", path.name)
]
LOOKED_AT = ["index.html", "how-to/recipes.html", "performance.html", "reference/api/toolbus.runtime.html"]
TASKS = {  # what a reader types, and the pages of which one must come first
    "show earlier messages on page load": "how-to/recipes.html",
    "stop after 2 dollars": "faq.html",
    "approve from another process": "faq.html",
    "continue after a crash": "faq.html",
    "limit the cost of a request": "how-to/limit-and-stop-requests.html",
    "test without a model": "faq.html",
    "use an MCP server": "how-to/use-mcp-servers.html",
    "stream text to a browser": "faq.html or how-to/talk-to-web-clients.html",
    "run a tool on another machine": "how-to/run-tools-on-other-machines.html",
    "from LangGraph": "how-to/come-from-another-library.html",
    "extra is not installed": "reference/troubleshooting.html",
    "Overloaded": "reference/api/toolbus.errors.html",
}
_LOADED = re.compile(r"<(?:script|img|iframe|source|video|audio)\b[^>]*?\bsrc=\"([^\"]+)\"|<link\b[^>]*>")
_HREF = re.compile(r"<a\b[^>]*?\bhref=\"?([^\"\s>]+)")
_ID = re.compile(r"\b(?:id|name)=\"?([^\"\s>]+)")


@pytest.fixture(scope="session")
def seen(site: Path) -> dict[str, Any]:
    """What a browser saw: see `browse.py`. One process looks, and the others wait."""
    saved = site.parent / "seen.json"
    with (site.parent / "seen.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not saved.exists():
            wanted = json.dumps({"pages": LOOKED_AT, "searches": [*TASKS]})
            command = [sys.executable, str(Path(__file__).with_name("browse.py")), str(site), wanted]
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
            saved.write_text(done.stdout if done.returncode == 0 else json.dumps(done.stderr), encoding="utf-8")
    found = json.loads(saved.read_text(encoding="utf-8"))
    assert not isinstance(found, str), found
    return found


def html_of(site: Path) -> dict[str, str]:
    return {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}


def test_the_site_has_a_page_for_each_page_of_the_documentation_and_each_module(site: Path) -> None:
    written = html_of(site)
    for source in (ROOT / "docs").rglob("*.md"):
        path = source.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        path = {"README.html": "contents.html"}.get(path, path.replace("README.html", "index.html"))
        assert path in written
    assert {f"reference/api/{module}.html" for module in MODULES} <= {*written}


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_described_on_the_page_of_its_module(site: Path, module: str) -> None:
    page = (site / f"reference/api/{module}.html").read_text(encoding="utf-8")
    ids = {*_ID.findall(page)}
    names = getattr(importlib.import_module(module), "__all__", ())
    assert [name for name in names if f"{module}.{name}" not in ids] == []
    copy = (site / f"reference/api/{module}.md").read_text(encoding="utf-8")
    assert [name for name in names if f"\n## {name}\n" not in copy] == []


def test_members_fields_and_errors_are_described(site: Path) -> None:
    runtime = (site / "reference/api/toolbus.runtime.html").read_text(encoding="utf-8")
    assert {"toolbus.runtime.Runtime.start", "toolbus.runtime.RuntimeStatistics.queued"} <= {*_ID.findall(runtime)}
    errors = (site / "reference/api/toolbus.errors.html").read_text(encoding="utf-8")
    assert "toolbus.errors.Overloaded" in {*_ID.findall(errors)}
    limits = (site / "reference/api/toolbus.core.limits.html").read_text(encoding="utf-8")
    assert "whole(1)" not in re.sub(r"<[^>]+>", "", limits), "a field shows the expression that computes it"


def test_no_link_and_no_anchor_of_the_site_is_broken(site: Path) -> None:
    written = html_of(site)
    anchors = {path: {*_ID.findall(text)} | {"", "__skip"} for path, text in written.items()}
    broken: list[str] = []
    for path, text in written.items():
        if path == "404.html":  # its links are absolute, since it answers any address
            continue
        for target in {*_HREF.findall(text)}:
            if re.match(r"https?:|mailto:", target):
                continue
            page, _, anchor = str(target).partition("#")
            found = posixpath.normpath(posixpath.join(posixpath.dirname(path), page)) if page else path
            found = "index.html" if found == "." else found
            if found in written:
                if unquote(anchor) not in anchors[found]:
                    broken.append(f"{path}: {target}")
            elif not (site / found).is_file():
                broken.append(f"{path}: {target}")
    assert broken == []


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loaded: set[str] = set()
    for text in html_of(site).values():
        for match in _LOADED.finditer(text):
            if match[1]:
                loaded.add(match[1])
            elif not re.search(r"rel=\"?(canonical|next|prev)", match[0]):
                loaded.update(re.findall(r"href=\"?([^\"\s>]+)", match[0]))
    for path in site.rglob("*.css"):
        loaded.update(re.findall(r"url\([\"']?([^)\"']+)", path.read_text(encoding="utf-8")))
    assert loaded
    assert [each for each in loaded if re.match(r"(https?:)?//", each)] == []


def test_a_browser_asks_no_other_host_and_has_nothing_to_complain_about(seen: dict[str, Any]) -> None:
    assert len(seen["asked"]) > len(LOOKED_AT)
    assert [each for each in seen["asked"] if not each.startswith((seen["address"], "data:"))] == []
    assert seen["complaints"] == []


@pytest.mark.parametrize("words", TASKS)
def test_the_page_that_the_search_finds_first_answers_the_readers_task(seen: dict[str, Any], words: str) -> None:
    found = [each.partition("?")[0] for each in seen["found"][words]]
    assert found[0] in TASKS[words].split(" or "), found[:3]


@pytest.mark.parametrize("path", LOOKED_AT)
def test_a_page_can_be_read_by_everybody(seen: dict[str, Any], path: str) -> None:
    assert seen["barriers"][path] == []


def test_each_page_has_a_copy_in_markdown_and_both_lists_have_it(site: Path) -> None:
    full = (site / "llms-full.txt").read_text(encoding="utf-8")
    for path in html_of(site):
        if path != "404.html":
            copy = path.replace(".html", ".md")
            assert (site / copy).read_text(encoding="utf-8").strip() in full
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \S", (site / "llms.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(listed) > 40
    assert [each for each in listed if not (site / each).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_begins_with_what_its_reader_gets(page: Path) -> None:
    first = page.read_text(encoding="utf-8").split("\n\n")[1]
    assert re.match(r"This (page|example) (shows|explains|lists|answers) ", first), first


def test_a_page_that_the_index_does_not_list_is_an_error() -> None:
    pages, _ = laid_out(ROOT)
    sections = index_of(pages["contents.md"])
    pages["how-to/new.md"] = Page("how-to/new.md", "# New\n", "docs/how-to/new.md")
    with pytest.raises(BuildError, match=r"docs/README.md does not list docs/how-to/new.md"):
        navigation(pages, sections)


def test_the_tab_of_all_other_pages_leads_to_the_first_of_them() -> None:
    # zensical takes an index among the pages of a tab for its first page: figures for the tests were shown there.
    paths = ("changelog.md", "tests/data/index.md")
    pages = {path: Page(path, f"# {path}\n", path) for path in paths}
    *_, project = navigation(pages, {})
    assert project == {"Project": [{"changelog.md": "changelog.md"}, {"tests/data/index.md": ["tests/data/index.md"]}]}


def test_pages_below_an_index_are_in_the_order_of_their_names() -> None:
    pages = {path: Page(path, f"# {path}\n", f"docs/{path}") for path in ("x/index.md", "x/0002.md", "x/0001.md")}
    [_, tab, _] = navigation(pages, {"About": [Entry("X", "x/index.md")]})
    assert tab == {"About": [{"X": ["x/index.md", {"x/0001.md": "x/0001.md"}, {"x/0002.md": "x/0002.md"}]}]}


@pytest.mark.parametrize("target", ["other.md", "other.md#nowhere", "nowhere.md"])
def test_a_broken_link_ends_the_build(tmp_path: Path, target: str) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages/index.md").write_text(f"# One\n\n[two]({target})\n", encoding="utf-8")
    (tmp_path / "pages/other.md").write_text("# Other\n", encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text("site_name: x\ndocs_dir: pages\ntheme:\n  font: false\n", encoding="utf-8")
    if target == "other.md":
        run_zensical(tmp_path)
        return
    with pytest.raises(BuildError, match="nowhere"):
        run_zensical(tmp_path)


def test_links_to_files_elsewhere_lead_to_pages_of_the_site(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "README.md").write_text("# Top\n\n[code](src/x.py) [docs](docs/README.md#a)\n", encoding="utf-8")
    (tmp_path / "docs/README.md").write_text(
        "# Docs\n\n## A\n\n[top](../README.md) [x](https://x.example)\n\n```\n[y](../src/x.py)\n```\n", encoding="utf-8"
    )
    (tmp_path / "src/x.py").write_text("x = 1\n", encoding="utf-8")
    pages, _ = laid_out(tmp_path)
    assert pages["index.md"].markdown == "# Top\n\n[code](src/x.py.md) [docs](contents.md#a)\n"
    assert "[top](index.md) [x](https://x.example)\n\n```\n[y](../src/x.py)" in pages["contents.md"].markdown
    assert pages["src/x.py.md"].markdown == "# `src/x.py`\n\n```python\nx = 1\n```\n"


def test_the_site_is_served_unless_only_a_build_is_asked_for() -> None:
    assert (parse([]).build, parse(["--build"]).build, parse(["--port", "0"]).port) == (False, True, 0)
