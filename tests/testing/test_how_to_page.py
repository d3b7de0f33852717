"""The examples of docs/how-to/test-with-events.md are test modules: they are run as somebody runs them who copies them.

Without a configuration, that is; `tests/test_documentation.py` runs them with ours.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "test-with-events.md"
EXAMPLE = re.compile(r"^(?:<!-- (file|no-run): (.*?) -->\n)?```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_example_of_the_page_passes(tmp_path: Path):
    tests = 0
    for number, (mark, value, source) in enumerate(EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))):
        if mark != "no-run":
            name = value if mark == "file" else f"test_example_{number}.py"
            (tmp_path / name).write_text(source, encoding="utf-8")
            tests += source.count("async def test_")
    assert tests >= 14
    options = ["-q", "-p", "no:cacheprovider", "-W", "error", "--strict-config", "--rootdir", "."]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        env=os.environ | {"TOOLBUS_DEBUG": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(rf"\b{2 * tests} passed", run.stdout), run.stdout  # each on asyncio and on trio
