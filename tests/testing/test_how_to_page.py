"""The examples of docs/how-to/test-with-events.md are test modules: they are run as such."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "test-with-events.md"
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_example_of_the_page_passes(tmp_path: Path):
    examples = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))
    assert len(examples) == 4
    for number, example in enumerate(examples):
        (tmp_path / f"test_example_{number}.py").write_text(example, encoding="utf-8")
    options = ["-q", "-p", "no:cacheprovider", "-W", "error", "--anyio-mode=auto", "--strict-config", "--rootdir", "."]
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
    assert re.search(r"\b10 passed", run.stdout), run.stdout  # five tests, each on asyncio and on trio
