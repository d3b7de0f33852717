"""The examples of the API reference: each public name has one, and each of them runs and prints what it shows."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from docs_site.api import API
from docs_site.build import ROOT
from docs_site.examples import INTERNAL, Example, Examples, fenced, imports_of
from docs_site.pages import snippets_that_run

from toolbus import network

pytestmark = pytest.mark.usefixtures("without_garbage_collection")

SHARED = 295
"""The most names that may have only the example of their family. Make it smaller when an example uses more names."""
_PRINTED = re.compile(r"^ *print\(.*\)  # (?P<line>.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def examples() -> Examples:
    return Examples(API(ROOT / "src"), snippets_that_run(ROOT))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without keys, and with the log and the objection to the network as they were before."""
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OLLAMA_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)
    log = logging.getLogger("toolbus")
    kept = [*log.handlers], log.level, log.propagate, network._objection  # pyright: ignore[reportPrivateUsage]
    yield
    log.handlers[:], log.propagate = kept[0], kept[2]
    log.setLevel(kept[1])
    network.forbid(kept[3])


def run(example: Example) -> list[str]:
    """Run an example by itself, and return the lines that it prints. Tracebacks have the lines of its source."""
    code = compile(
        "\n" * (example.line - 1) + example.source,
        example.file,
        "exec",
        flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
        dont_inherit=True,
    )

    async def awaited(awaitable: Any) -> None:
        with anyio.fail_after(30):
            await awaitable

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        awaitable = eval(code, {"__name__": "example"})
        if inspect.iscoroutine(awaitable):
            anyio.run(awaited, awaitable)
    return printed.getvalue().splitlines()


def faults(example: Example) -> list[str]:
    """What is wrong with an example: an import that it does not use, or another line than it shows."""
    used = {node.id for node in ast.walk(ast.parse(example.source)) if isinstance(node, ast.Name)}
    unused = [name for name in imports_of(example.source) if name.partition(".")[0] not in used]
    printed, shown = run(example), _PRINTED.findall(example.source)
    lines = [f"prints {printed}, and shows {shown}"] if shown and printed != shown else []
    return [f"does not use {name}" for name in unused] + lines


def test_every_public_name_has_an_example(examples: Examples) -> None:
    homes = examples.api.homes()
    assert len(homes) > 600
    assert [home for home in homes if not examples.place_of(home)] == []
    shared = [home for home in homes if not examples.is_shown(home)]
    assert len(shared) <= SHARED, f"{len(shared)} names have only the example of their family"


def test_what_shows_a_name_is_there(examples: Examples) -> None:
    for home in examples.api.homes():
        place = examples.place_of(home)
        assert (ROOT / place).is_file() if place.endswith(".md") else place in examples.homes


def test_each_module_whose_names_share_an_example_is_there(examples: Examples) -> None:
    assert [each for each in INTERNAL if each not in examples.api.modules or each not in examples.homes] == []


@pytest.mark.usefixtures("offline")
def test_every_example_of_a_docstring_runs_and_prints_what_it_shows(examples: Examples) -> None:
    assert len(examples.all) > 100
    found: list[str] = []
    for each in examples.all:
        try:
            found += [f"{each.path}: {fault}" for fault in faults(each)]
        except Exception as exc:
            raise AssertionError(f"the example of {each.path} ({each.file}:{each.line}) fails: {exc!r}") from exc
    assert found == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("print(1 + 1)  # 3\n", "prints ['2'], and shows ['3']"),
        ("import json\n", "does not use json"),
    ],
)
def test_a_wrong_example_is_reported(source: str, fault: str) -> None:
    assert faults(Example("toolbus.x", source, str(Path(__file__)), 1)) == [fault]


def test_an_example_is_the_indented_block_after_its_heading() -> None:
    text = "Do it.\n\nExample:\n    a = 1\n\n    b = 2\n\nMore.\n"
    assert fenced(text) == "Do it.\n\nExample:\n\n```python\na = 1\n\nb = 2\n```\n\nMore.\n"
    assert fenced("Example: none.\n") == "Example: none.\n"


def test_an_example_comes_before_the_invariants_of_its_package() -> None:
    shown = fenced("Text.\n\nInvariants:\n\n1. One.\n\nExample:\n    a = 1\n")
    assert shown == "Text.\n\nExample:\n\n```python\na = 1\n```\n\nInvariants:\n\n1. One."
