"""The README is short and true, and the index of the documentation has every page."""

from __future__ import annotations

import re
from pathlib import Path

from toolbus.providers import VENDORS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAX_WORDS = 700
FIRST_SCREEN_LINES = 30


def test_the_readme_is_short_and_shows_code_in_the_first_screen() -> None:
    assert len(README.split()) <= MAX_WORDS
    assert "```python" in README.splitlines()[:FIRST_SCREEN_LINES]


def test_the_readme_counts_what_there_is() -> None:
    guarantees = (ROOT / "docs/reference/guarantees.md").read_text(encoding="utf-8")
    held = re.findall(r"^\| G\d+ \|.*\| held \|$", guarantees, re.MULTILINE)
    assert f"[{len(held)} guarantees]" in README
    assert f"{len(VENDORS)} vendors have" in README


def test_the_index_has_every_page() -> None:
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    pages -= {page for page in pages if page.startswith("decisions/0")}
    linked = set(re.findall(r"\]\(([^)#]+)", (docs / "README.md").read_text(encoding="utf-8")))
    assert pages - linked == {"README.md"}
