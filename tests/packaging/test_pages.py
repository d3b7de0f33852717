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


PAGES_BY_PACKAGES: dict[str, list[Path]] = {}
for each in PAGES:
    PAGES_BY_PACKAGES.setdefault(needed_by(each), []).append(each)


@pytest.mark.timeout(300)
@pytest.mark.repeats("tests/test_documentation.py runs the same snippets where everything is installed")
@pytest.mark.parametrize("packages", PAGES_BY_PACKAGES, ids=lambda packages: packages or "toolbus alone")
def test_the_pages_snippets_need_only_what_the_page_says_to_install(
    with_packages: Callable[[str], Environment], packages: str, tmp_path: Path
):
    program = Path(__file__).with_name("run_page.py")
    done = with_packages(packages).run("python", program, tmp_path, *PAGES_BY_PACKAGES[packages], seconds=240)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]


def test_a_page_that_fails_is_named_and_the_others_run(bare: Environment, tmp_path: Path):
    pages = {"good": "print(1)", "bad": "import no_such_package", "also-good": "print(2)"}
    for name, source in pages.items():
        (tmp_path / f"{name}.md").write_text(f"```python\n{source}\n```\n", encoding="utf-8")
    (tmp_path / "runs").mkdir()
    paths = [tmp_path / f"{name}.md" for name in pages]
    done = bare.run("python", Path(__file__).with_name("run_page.py"), tmp_path / "runs", *paths)
    assert done.returncode == 1
    assert "No module named 'no_such_package'" in done.stderr
    assert [line for line in done.stderr.splitlines() if line.endswith(" failed")] == [f"{tmp_path / 'bad.md'} failed"]
