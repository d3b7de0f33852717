"""What mypy, in strict mode, says of a typical application and of its typical mistakes. pyright checks all files anyway."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
USE, MISTAKES = "typical_use.py", "typical_mistakes.py"


def said_by_mypy() -> dict[tuple[str, int], set[str]]:
    """Return the codes of mypy's errors by file and line."""
    options = ["--strict", "--follow-imports=silent", "--output=json", "--cache-dir", str(ROOT / ".dev" / "mypy")]
    options += ["--config-file", str(HERE / "mypy.ini")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *[str(HERE / name) for name in (USE, MISTAKES)]],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[tuple[str, int], set[str]] = {}
    for each in map(json.loads, done.stdout.splitlines()):
        if each["severity"] == "error":
            found.setdefault((Path(each["file"]).name, each["line"]), set()).add(each["code"])
    return found


def wanted() -> dict[tuple[str, int], set[str]]:
    """Return the codes in the comments of the mistakes."""
    lines = (HERE / MISTAKES).read_text("utf-8").splitlines()
    codes = {number: re.search(r"# mypy says ([a-z-]+)", line) for number, line in enumerate(lines, 1)}
    return {(MISTAKES, number): {match[1]} for number, match in codes.items() if match is not None}


@pytest.mark.timeout(300)
def test_mypy_accepts_a_typical_application_and_finds_each_typical_mistake() -> None:
    assert len(wanted()) > 20
    assert said_by_mypy() == wanted()
