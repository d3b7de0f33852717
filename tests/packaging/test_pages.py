"""Each page's snippets run in an environment that has only toolbus and what the page says to install, and print what it
shows: see `support.pages`.
"""

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


PROGRAM = Path(__file__).with_name("run_page.py")


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
@pytest.mark.repeats("what a page shows has its own tests")
@pytest.mark.parametrize("packages", PAGES_BY_PACKAGES, ids=lambda packages: packages or "toolbus alone")
def test_the_pages_snippets_need_only_what_the_page_says_to_install(
    with_packages: Callable[[str], Environment], packages: str, tmp_path: Path
):
    done = with_packages(packages).run("python", PROGRAM, tmp_path, *PAGES_BY_PACKAGES[packages], seconds=240)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]


GOOD = {
    "snippets share a namespace, and may await": "$$$python\nimport asyncio\nnumber = 1\n$$$\n"
    "1. In a list:\n\n   $$$python\n   await asyncio.sleep(0)\n   assert number == 1\n   $$$\n",
    "a test sees the names before it": "$$$python\nnumber = 1\n$$$\n"
    "$$$python\ndef test_it():\n    assert number == 1\n$$$\n",
    "a file can be imported": "<!-- file: shop.py -->\n$$$python\nopen_ = True\n$$$\n"
    "$$$python\nimport shop\nassert shop.open_\n$$$\n",
    "what is printed is shown": "$$$python\nprint(1 + 1)\n$$$\n\n<!-- output -->\n\n$$$text\n2\n$$$\n",
    "what may not run is only compiled": "<!-- no-run: a key -->\n\n$$$python\nawait nothing\n$$$\n",
}
BAD = {
    "an import": ("$$$python\nimport no_such_package\n$$$\n", "No module named 'no_such_package'"),
    "an assertion": ("# Title\n\n$$$python\nnumber = 1\nassert number == 2\n$$$\n", 'an assertion.md", line 5, in'),
    "a test": ("$$$python\ndef test_it():\n    assert 1 == 2\n$$$\n", "a test.md:2: its tests fail"),
    "a warning": (
        "$$$python\ndef test_it():\n    import warnings\n    warnings.warn('old')\n$$$\n",
        "a warning.md:2: its tests fail",
    ),
    "output": (
        "$$$python\nprint(1 + 1)\n$$$\n\n<!-- output -->\n\n$$$text\n3\n$$$\n",
        "output.md:8: it prints something else",
    ),
    "no reason": ("<!-- no-run: -->\n\n$$$python\nnothing\n$$$\n", "no reason.md:4: no-run needs a reason"),
    "no Python": ("<!-- no-run: a key -->\n\n$$$python\nawait\n$$$\n", "SyntaxError"),
    "the network": (
        "$$$python\nimport socket\nsocket.create_connection(('192.0.2.1', 80))\n$$$\n",
        "without a network, and connects to ('192.0.2.1', 80)",
    ),
}


def test_a_page_that_fails_is_named_with_the_reason_and_the_others_run(
    with_packages: Callable[[str], Environment], tmp_path: Path
):
    pages = {**GOOD, **{name: page for name, (page, _) in BAD.items()}}
    for name, page in pages.items():
        (tmp_path / f"{name}.md").write_text(page.replace("$$$", "```"), encoding="utf-8")
    (tmp_path / "runs").mkdir()
    paths = [tmp_path / f"{name}.md" for name in pages]
    done = with_packages("pytest").run("python", PROGRAM, tmp_path / "runs", *paths)
    assert done.returncode == 1
    failed = [Path(line.removesuffix(" failed")).stem for line in done.stderr.splitlines() if line.endswith(" failed")]
    assert failed == [*BAD], done.stdout + done.stderr
    assert [name for name, (_, reason) in BAD.items() if reason not in done.stderr] == []
