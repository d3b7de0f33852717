"""Each page's snippets run in an environment that has only toolbus and what the page says to install."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from environments import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from environments import Environment

PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "```python" in page.read_text(encoding="utf-8") and "decisions" not in page.parts
]


def needed_by(page: Path) -> str:
    """The packages of the `pip install` commands before the page's first snippet, without toolbus itself."""
    head = page.read_text(encoding="utf-8").partition("```python")[0]
    commands = re.findall(r"`pip install ([^`]+)`", head) + re.findall(r"^pip install (.+)$", head, re.MULTILINE)
    words = [word for command in commands for word in shlex.split(command)]
    return " ".join(sorted({word for word in words if word != "toolbus" and not word.startswith(".")}))


@pytest.mark.repeats("tests/test_documentation.py runs the same snippets where everything is installed")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_pages_snippets_need_only_what_the_page_says_to_install(
    with_packages: Callable[[str], Environment], page: Path, tmp_path: Path
):
    done = with_packages(needed_by(page)).run("python", Path(__file__).with_name("run_page.py"), page, tmp_path)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
