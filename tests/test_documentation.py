"""What the documentation shows is so: command lines and links are right, and the examples run.

Its Python snippets run in `tests/packaging/test_pages.py`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import socket
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.__main__ import parse as parse_bench
from docs_site.__main__ import parse as parse_docs
from soak.__main__ import parse as parse_soak

from support.pages import connect_nearby, named, snippets_of
from toolbus.cli._arguments import parse as parse_command_line

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [*DOCS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(EXAMPLES.rglob("*.md"))]

_LINK = re.compile(r"\]\((?P<target>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
_PYTHON = re.compile(r"python[\d.]*")
_OURS = ("src/", "tests/", "docs/", "examples/", "benchmarks/", "docs_site/", "dev.py")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, no provider, no network but the loopback; the clone is where one stands."""
    for name in list(os.environ):
        if name.startswith(("OPENAI_", "OLLAMA_")) or (name.startswith("TOOLBUS_") and name != "TOOLBUS_DEBUG"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TOOLBUS_STORE", "none")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["snippet"])
    monkeypatch.setattr(socket.socket, "connect", connect_nearby)


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


@pytest.mark.parametrize("page", PAGES, ids=named)
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


@pytest.mark.parametrize("page", PAGES, ids=named)
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
