"""What the documentation shows is so: snippets run, command lines and links are right, and so are the examples.

A page's Python snippets are run in order, in one namespace, without a key and without a network; `await` may stand at the
top level. A snippet with tests in it is a test module and goes to pytest, which sees the names of the snippets before
it. A comment in the line above a block says more:

    <!-- no-run: reason -->   the snippet cannot run, and is compiled only
    <!-- file: shop.py -->    the snippet is also a file, which later ones can import
    <!-- output -->           the block is what the snippet before it prints
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import logging
import os
import re
import runpy
import shlex
import socket
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import anyio
import pytest
from benchmarks.__main__ import parse as parse_bench
from docs_site.__main__ import parse as parse_docs
from soak.__main__ import parse as parse_soak

from toolbus.cli._arguments import parse as parse_command_line

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [*DOCS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(EXAMPLES.rglob("*.md"))]

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,})(?P<language>[\w-]*)")
_MARK = re.compile(r"<!--\s*(?P<name>no-run|file|output)\b:?\s*(?P<value>.*?)\s*-->")
_LINK = re.compile(r"\]\((?P<target>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
_PYTHON = re.compile(r"python[\d.]*")
_OURS = ("src/", "tests/", "docs/", "examples/", "benchmarks/", "docs_site/", "dev.py")


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
        return f"{_named(self.page)}:{self.line}"

    @property
    def has_tests(self) -> bool:
        defined = (ast.FunctionDef, ast.AsyncFunctionDef)
        return any(isinstance(each, defined) and each.name.startswith("test_") for each in ast.parse(self.source).body)


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
        assert at < len(lines), f"{_named(page)}:{begin}: the block is not closed"
        source = "".join(f"{line.removeprefix(fence['indent'])}\n" for line in lines[begin:at])
        above = next((line for line in reversed(lines[: begin - 1]) if line.strip()), "")
        mark = _MARK.search(above)
        marked = (mark["name"], mark["value"]) if mark else ("", "")
        found.append(Snippet(page, begin + 1, fence["language"], source, *marked))
        at += 1
    return found


# ------------------------------------------------------------------------------------------------- running


def run_python(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the page's Python snippets and return how many ran. `folder` takes those that are files."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setitem(sys.modules, "snippets_before", module)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    loaded = set(sys.modules)
    log = logging.getLogger("toolbus")
    logs, level, propagate = [*log.handlers], log.level, log.propagate
    ran = 0
    printed = ""
    try:
        for each in snippets_of(page):
            if each.mark == "output":
                assert each.source.strip() == printed.strip(), f"{each.where}: it prints something else"
            if each.language != "python":
                continue
            if each.mark == "no-run":
                assert each.value, f"{each.where}: no-run needs a reason"
                _compiled(each)
                continue
            ran += 1
            printed = _run(each, module, folder)
    finally:
        log.handlers[:], log.propagate = logs, propagate  # A page may configure the log, for the whole process.
        log.setLevel(level)
        for name in set(sys.modules) - loaded:  # the page's own files
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]
    return ran


def _compiled(snippet: Snippet) -> CodeType:
    """The snippet's code, padded so that tracebacks name the page's own lines."""
    padded = "\n" * (snippet.line - 1) + snippet.source
    return compile(padded, str(snippet.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def _run(snippet: Snippet, module: ModuleType, folder: Path) -> str:
    """What the snippet prints."""
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
            anyio.run(_awaited, awaitable)
    return reported.getvalue()


async def _awaited(awaitable: Any) -> None:
    with anyio.fail_after(30):
        await awaitable


def _run_tests(snippet: Snippet, folder: Path) -> None:
    """Give a snippet with tests in it to pytest, as a module of its own."""
    name = snippet.value if snippet.mark == "file" else f"test_{snippet.page.stem.replace('-', '_')}_{snippet.line}.py"
    path = folder / name
    path.write_text("from snippets_before import *" + "\n" * (snippet.line - 1) + snippet.source, encoding="utf-8")
    reported = io.StringIO()
    ours = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder)]
    with contextlib.redirect_stdout(reported):
        status = pytest.main(["-q", "-p", "no:cacheprovider", "--import-mode", "importlib", *ours, str(path)])
    assert status == pytest.ExitCode.OK, f"{snippet.where}: its tests fail\n{reported.getvalue()}"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, no provider, no network but the loopback; the clone is where one stands."""
    for name in list(os.environ):
        if name.startswith(("OPENAI_", "OLLAMA_")) or (name.startswith("TOOLBUS_") and name != "TOOLBUS_DEBUG"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TOOLBUS_STORE", "none")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["snippet"])
    connect = socket.socket.connect

    def connect_nearby(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"documentation must run without a network, and connects to {address!r}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_nearby)


def _named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


@pytest.mark.repeats("what a page shows has its own tests")
@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("page", DOCS, ids=_named)
def test_the_pages_python_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = sum(each.language == "python" and each.mark != "no-run" for each in snippets_of(page))
    assert run_python(page, tmp_path, monkeypatch) == shown


# ------------------------------------------------------------------------------------------------- command lines


def commands_of(page: Path) -> Iterator[tuple[str, list[str]]]:
    """The page's command lines: place and words. With `$` in a block, the lines without it are output."""
    for each in snippets_of(page):
        if each.language not in ("console", "shell", "bash", "sh"):
            continue
        lines = each.source.replace("\\\n", " ").splitlines()
        if any(line.startswith("$ ") for line in lines):
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        for line in lines:
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
            lexer.whitespace_split = True
            words: list[str] = []
            for word in lexer:
                if set(word) <= set("|&;<>"):
                    yield each.where, words
                    words = []
                elif words or not re.fullmatch(r"[A-Z_]+=.*", word):
                    words.append(word)
            yield each.where, words


def check_command(words: list[str]) -> None:
    """Fails for options that toolbus does not have, extras that there are not, and files that are missing."""
    if words and _PYTHON.fullmatch(Path(words[0]).name) and len(words) > 2 and words[1] == "-m":
        module = ROOT / words[2].replace(".", "/")
        ours = words[2].startswith(("examples.", "benchmarks."))
        assert not ours or _is_example(module), f"no module {words[2]}"
        words = words[2:]
    elif words and _PYTHON.fullmatch(Path(words[0]).name):
        words = words[1:]
    if not words:
        return
    program, *rest = words
    if program == "dev.py" and rest[:1] == ["example"]:
        assert not rest[1:] or _is_example(ROOT / "examples" / rest[1]), f"there is no example {rest[1]}"
    elif program == "dev.py" and rest[:1] == ["bench"]:
        _check_options(parse_bench, rest[1:])
    elif program == "dev.py" and rest[:1] == ["docs"]:
        _check_options(parse_docs, rest[1:])
    elif program == "dev.py" and rest[:1] == ["soak"]:
        _check_options(parse_soak, rest[1:])
    elif Path(program).name == "toolbus" or (program == "dev.py" and rest[:1] != ["test"]):
        _check_options(parse_command_line, rest)
    for word in words:
        for extras in re.findall(r"toolbus\[([\w,-]+)\]", word):
            unknown = set(extras.split(",")) - set(_extras())
            assert not unknown, f"there is no extra {', '.join(unknown)}"
        if word.startswith(_OURS):
            assert (ROOT / word).exists(), f"there is no {word}"


def _is_example(path: Path) -> bool:
    return path.with_suffix(".py").exists() or (path / "__main__.py").exists()


def _check_options(parse: Callable[[list[str]], object], arguments: list[str]) -> None:
    reported = io.StringIO()
    status = None
    with contextlib.redirect_stderr(reported), contextlib.redirect_stdout(reported):
        try:
            parse(arguments)
        except SystemExit as exc:  # after help with 0
            status = exc.code
    assert not status, reported.getvalue().strip()


def _extras() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_the_pages_command_lines_name_what_there_is(page: Path) -> None:
    for where, words in commands_of(page):
        try:
            check_command(words)
        except AssertionError as exc:
            raise AssertionError(f"{where}: {shlex.join(words)}: {exc}") from None


# ------------------------------------------------------------------------------------------------- links


def broken_links(page: Path) -> list[str]:
    """The relative links of the page that lead nowhere."""
    text = page.read_text(encoding="utf-8")
    for each in snippets_of(page):
        text = text.replace(each.source, "\n")
    broken: list[str] = []
    for link in _LINK.finditer(text):
        target, anchor = link["target"], link["anchor"]
        if re.match(r"[a-z]+:", target):
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in _anchors(path)):
            broken.append(link[0].removeprefix("](").removesuffix(")"))
    return broken


def _anchors(page: Path) -> set[str]:
    """The ids that a page's headings get where Markdown is shown: lower case, dashes for spaces, no punctuation."""
    lines = page.read_text(encoding="utf-8").splitlines()
    headings = [line.lstrip("#").strip() for line in lines if re.match(r"#+ ", line)]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_the_pages_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


# ------------------------------------------------------------------------------------------------- examples


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_the_example_runs_without_a_key(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.strip()
    assert f"python examples/{example.name}" in example.read_text(encoding="utf-8"), "it does not say how to run it"


@pytest.mark.parametrize(
    "package", sorted(path.parent for path in EXAMPLES.glob("*/__init__.py")), ids=lambda p: p.name
)
def test_an_example_of_several_files_has_a_readme_a_start_and_tests(package: Path) -> None:
    assert (package / "__main__.py").exists()
    assert f"python -m examples.{package.name}" in (package / "README.md").read_text(encoding="utf-8")
    assert (ROOT / f"tests/examples/test_{package.name}.py").exists()


# ------------------------------------------------------------------------------------------------- the checks themselves


def _page(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_text(text.replace("'''", "```"), encoding="utf-8")
    return path


def test_snippets_share_a_namespace_and_may_await(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = "'''python\nimport anyio\nnumber = 1\n'''\n"
    second = "1. In a list:\n\n   '''python\n   await anyio.lowlevel.checkpoint()\n   assert number == 1\n   '''\n"
    assert run_python(_page(tmp_path, first + second), tmp_path, monkeypatch) == 2


def test_a_snippet_that_fails_is_reported_with_the_pages_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = _page(tmp_path, "# Title\n\n'''python\nnumber = 1\nassert number == 2\n'''\n")
    with pytest.raises(AssertionError) as failure:
        run_python(page, tmp_path, monkeypatch)
    assert (str(failure.traceback[-1].path), failure.traceback[-1].lineno + 1) == (str(page), 5)


def test_a_snippet_with_tests_goes_to_pytest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "'''python\nnumber = 1\n'''\n\n'''python\nasync def test_it(anyio_backend_name):\n    assert number == {}\n'''\n"
    assert run_python(_page(tmp_path, text.format(1)), tmp_path, monkeypatch) == 2
    with pytest.raises(AssertionError, match=r"page.md:6: its tests fail(?s:.*)assert 1 == 2(?s:.*)2 failed"):
        run_python(_page(tmp_path, text.format(2)), tmp_path, monkeypatch)


def test_a_snippet_that_is_a_file_can_be_imported_and_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "<!-- file: shop.py -->\n'''python\nopen_ = {}\n'''\n'''python\nimport shop\nassert shop.open_\n'''\n"
    assert run_python(_page(tmp_path, text.format(True)), tmp_path, monkeypatch) == 2
    with pytest.raises(AssertionError):
        run_python(_page(tmp_path, text.format(0)), tmp_path, monkeypatch)


def test_output_that_is_shown_is_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "'''python\nprint(1 + 1)\n'''\n\n<!-- output -->\n\n'''text\n{}\n'''\n"
    assert run_python(_page(tmp_path, text.format(2)), tmp_path, monkeypatch) == 1
    with pytest.raises(AssertionError, match=r"page.md:8: it prints something else"):
        run_python(_page(tmp_path, text.format(3)), tmp_path, monkeypatch)


def test_a_snippet_that_may_not_run_is_compiled_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "<!-- no-run: {} -->\n\n'''python\n{}\n'''\n"
    assert run_python(_page(tmp_path, text.format("a key", "await nothing")), tmp_path, monkeypatch) == 0
    with pytest.raises(AssertionError, match=r"page.md:4: no-run needs a reason"):
        run_python(_page(tmp_path, text.format("", "await nothing")), tmp_path, monkeypatch)
    with pytest.raises(SyntaxError):
        run_python(_page(tmp_path, text.format("a key", "await")), tmp_path, monkeypatch)


@pytest.mark.usefixtures("offline")
def test_a_snippet_that_connects_far_away_fails() -> None:
    with socket.socket() as sock, pytest.raises(AssertionError, match="without a network"):
        sock.connect(("192.0.2.1", 80))


def test_a_block_that_is_not_closed_is_reported(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"page.md:1: the block is not closed"):
        snippets_of(_page(tmp_path, "'''python\nnumber = 1\n"))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("toolbus ask Why? --dri src", "unrecognized arguments: --dri"),
        ("toolbus aks Why?", "invalid choice"),
        ("FOO=1 .venv/bin/toolbus events --json | jq", "unrecognized arguments: --json"),
        ("python3 dev.py ask Why? --nope", "unrecognized arguments: --nope"),
        ("python -m toolbus chat --nope", "unrecognized arguments: --nope"),
        ("pip install 'toolbus[cli,nope]'", "no extra nope"),
        ("python examples/nope.py", "no examples/nope.py"),
        ("python -m examples.nope", "no module examples.nope"),
        ("python3 dev.py example nope", "no example nope"),
    ],
)
def test_a_command_line_that_names_what_there_is_not_is_reported(tmp_path: Path, line: str, problem: str) -> None:
    [*_, (_, words)] = [
        each for each in commands_of(_page(tmp_path, f"'''console\n$ {line}\noutput\n'''\n")) if "jq" not in each[1]
    ]
    with pytest.raises(AssertionError, match=problem):
        check_command(words)


def test_links_that_lead_nowhere_are_reported(tmp_path: Path) -> None:
    text = "# One `heading`\n\n[a](page.md#one-heading) [b](#one) [c](nope.md) [d](https://nope.example/x)\n\n'''\n[e](nope)\n'''\n"
    assert broken_links(_page(tmp_path, text)) == ["#one", "nope.md"]
