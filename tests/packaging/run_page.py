"""Run the Python snippets of pages as a reader pastes them: in order, in one namespace, where only their packages are.

    python tests/packaging/run_page.py EMPTY_FOLDER docs/how-to/write-tools.md docs/how-to/approve-calls.md

Each page runs in a process and a folder of its own. The processes are forked after toolbus has been imported, since an
import takes longer than most pages. This file uses only the standard library, and pytest for snippets with tests.
At the end, it names the pages that have failed.
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
import traceback
from pathlib import Path
from types import ModuleType

_BLOCK = re.compile(
    r"(?P<mark>(?:<!--[^>]*-->\s*)?)^(?P<indent> *)```python\n(?P<source>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL
)


def run(page: Path, folder: Path) -> None:
    """Run the page's snippets in an empty folder."""
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


def _run_tests(path: Path, source: str) -> None:
    import pytest

    path.write_text("from snippets_before import *\n" + source, encoding="utf-8")
    status = pytest.main(["-q", "-p", "no:cacheprovider", "--import-mode=importlib", str(path)])
    if status:
        raise SystemExit(f"{path}: pytest ends with {status}")


def run_apart(page: Path, folder: Path) -> bool:
    """Run a page in a process and a folder of its own, and return whether all of its snippets have run."""
    folder.mkdir()
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    status = 1
    try:
        run(page, folder)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    importlib.import_module("toolbus.runtime")

    empty, *pages = (Path(argument).resolve() for argument in sys.argv[1:])
    failed = [page for i, page in enumerate(pages) if not run_apart(page, empty / str(i))]
    sys.exit("\n".join(f"{page} failed" for page in failed) or 0)
