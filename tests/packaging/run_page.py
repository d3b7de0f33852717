"""Run the Python snippets of a page as its reader pastes them: in order, in one namespace, where only its packages are.

    python tests/packaging/run_page.py docs/how-to/write-tools.md EMPTY_FOLDER

It uses only the standard library, and pytest for snippets with tests. It prints the number of snippets that have run.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import inspect
import io
import os
import re
import sys
from pathlib import Path
from types import ModuleType

_BLOCK = re.compile(
    r"(?P<mark>(?:<!--[^>]*-->\s*)?)^(?P<indent> *)```python\n(?P<source>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL
)


def run(page: Path, folder: Path) -> int:
    """Run the page's snippets in an empty folder, and return their number."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    module = ModuleType("__main__")
    sys.modules["__main__"] = sys.modules["snippets_before"] = module
    ran = 0
    text = page.read_text(encoding="utf-8")
    if configuration := re.search(r"anyio_mode = auto", text):
        (folder / "pytest.ini").write_text(f"[pytest]\n{configuration[0]}\n", encoding="utf-8")
    for block in _BLOCK.finditer(text):
        source = "".join(line.removeprefix(block["indent"]) for line in block["source"].splitlines(keepends=True))
        if "no-run" in block["mark"]:
            continue
        ran += 1
        if named := re.search(r"file: (\S+)", block["mark"]):
            (folder / named[1]).write_text(source, encoding="utf-8")
            importlib.invalidate_caches()
        if re.search(r"^(async )?def test_", source, re.MULTILINE):
            _run_tests(folder / f"test_{ran}.py", source)
            continue
        code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with contextlib.redirect_stdout(io.StringIO()):
            awaitable = eval(code, module.__dict__)
            if inspect.iscoroutine(awaitable):
                asyncio.run(asyncio.wait_for(awaitable, 30))
    return ran


def _run_tests(path: Path, source: str) -> None:
    import pytest

    path.write_text("from snippets_before import *\n" + source, encoding="utf-8")
    status = pytest.main(["-q", "-p", "no:cacheprovider", "--import-mode=importlib", str(path)])
    if status:
        raise SystemExit(f"{path}: pytest ends with {status}")


if __name__ == "__main__":
    sys.stdout.write(f"{run(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))}\n")
