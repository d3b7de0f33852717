"""The fenced blocks of a page of the documentation, and what runs them. Uses only the standard library.

A page's Python snippets run in order, in one namespace, without a network; `await` may stand at the top level. A
snippet with tests in it is a test module and goes to pytest, which sees the names of the snippets before it. A comment
in the line above a block says more:

    <!-- no-run: reason -->   the snippet cannot run, and is compiled only
    <!-- file: shop.py -->    the snippet is also a file, which later ones can import
    <!-- output -->           the block is what the snippet before it prints
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
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,})(?P<language>[\w-]*)")
_MARK = re.compile(r"<!--\s*(?P<name>no-run|file|output)\b:?\s*(?P<value>.*?)\s*-->")
_MAX_SECONDS = 100.0
_connect = socket.socket.connect


@dataclass(frozen=True)
class Snippet:
    """A fenced block. `line` is its first line's number on the page, `mark` what the comment above it says."""

    page: Path
    line: int
    language: str
    source: str
    mark: str
    value: str

    @property
    def where(self) -> str:
        return f"{named(self.page)}:{self.line}"

    @property
    def has_tests(self) -> bool:
        defined = (ast.FunctionDef, ast.AsyncFunctionDef)
        return any(isinstance(each, defined) and each.name.startswith("test_") for each in ast.parse(self.source).body)


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


def snippets_of(page: Path) -> list[Snippet]:
    """The page's fenced blocks, in order."""
    found: list[Snippet] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        at += 1
        if fence is None:
            continue
        begin = at
        while at < len(lines) and lines[at].strip() != fence["ticks"]:
            at += 1
        assert at < len(lines), f"{named(page)}:{begin}: the block is not closed"
        source = "".join(f"{line.removeprefix(fence['indent'])}\n" for line in lines[begin:at])
        above = next((line for line in reversed(lines[: begin - 1]) if line.strip()), "")
        mark = _MARK.search(above)
        marked = (mark["name"], mark["value"]) if mark else ("", "")
        found.append(Snippet(page, begin + 1, fence["language"], source, *marked))
        at += 1
    return found


def run_snippets(page: Path, folder: Path) -> None:
    """Run the page's snippets in this process, which has to end afterwards, and in an empty folder.

    Raises what a snippet raises, and `AssertionError` for a snippet that is not as the page says.
    """
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.argv = ["snippet"]
    socket.socket.connect = connect_nearby
    module = ModuleType("__main__")
    sys.modules["__main__"] = sys.modules["snippets_before"] = module
    if configuration := re.search(r"anyio_mode = auto", page.read_text(encoding="utf-8")):
        (folder / "pytest.ini").write_text(f"[pytest]\n{configuration[0]}\n", encoding="utf-8")
    printed = ""
    for each in snippets_of(page):
        if each.mark == "output":
            assert each.source.strip() == printed.strip(), f"{each.where}: it prints something else"
        if each.language != "python":
            continue
        if each.mark == "no-run":
            assert each.value, f"{each.where}: no-run needs a reason"
            _compiled(each)
        else:
            printed = _run(each, module, folder)


def _compiled(snippet: Snippet) -> CodeType:
    """The snippet's code, padded so that tracebacks name the page's own lines."""
    padded = "\n" * (snippet.line - 1) + snippet.source
    return compile(padded, str(snippet.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def _run(snippet: Snippet, module: ModuleType, folder: Path) -> str:
    """Run the snippet, and return its output."""
    code = _compiled(snippet)
    if snippet.has_tests:
        _run_tests(snippet, folder)
        return ""
    if snippet.mark == "file":
        (folder / snippet.value).write_text(snippet.source, encoding="utf-8")
        importlib.invalidate_caches()
    with contextlib.redirect_stdout(io.StringIO()) as reported:
        awaitable = eval(code, module.__dict__)
        if inspect.iscoroutine(awaitable):
            asyncio.run(asyncio.wait_for(awaitable, _MAX_SECONDS))
    return reported.getvalue()


def _run_tests(snippet: Snippet, folder: Path) -> None:
    """Give a snippet with tests in it to pytest, as a module of its own, with the page's configuration."""
    import pytest

    name = snippet.value if snippet.mark == "file" else f"test_{snippet.page.stem.replace('-', '_')}_{snippet.line}.py"
    path = folder / name
    path.write_text("from snippets_before import *" + "\n" * (snippet.line - 1) + snippet.source, encoding="utf-8")
    options = ["-p", "no:cacheprovider", "--import-mode", "importlib", "--strict-config", "--rootdir", "."]
    # The page's snippets may have imported toolbus before, whose own asserts are not rewritten then.
    options += ["-W", "error", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    status = pytest.main(["-q", *options, str(path)])
    assert status == pytest.ExitCode.OK, f"{snippet.where}: its tests fail"


def connect_nearby(self: socket.socket, address: Any) -> None:
    """Connect to this machine, and refuse others: documentation and examples run without a network."""
    if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise AssertionError(f"documentation must run without a network, and connects to {address!r}")
    _connect(self, address)
