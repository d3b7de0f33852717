"""The pages about the command say what it does."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest
import scenes
from desk import Command

from toolbus.providers.scripted import calls, text

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
HOW_TO = (DOCS / "how-to" / "ask-about-your-files.md").read_text(encoding="utf-8")


STORE = [f"store {each}" for each in ("stats", "list", "show", "prune", "verify", "export", "import")]


@pytest.mark.parametrize(
    "command", ["ask", "chat", "resume", "status", *STORE, "events", "tools", "replay", "simulate"]
)
def test_every_option_stands_on_the_page(toolbus: Command, command: str):
    reported = toolbus(*command.split(), "--help").out.partition("\n\n")[0]
    options = set(re.findall(r"(?<![\w-])(--[a-z-]+|-[a-z])\b", reported))
    assert {each for each in options - {"-h", "--help"} if f"`{each}" not in REFERENCE} == set()


def test_every_option_on_the_page_is_there(toolbus: Command):
    table = REFERENCE.partition("## Options of")[2].partition("##")[0]
    reported = set(
        re.findall(r"`(--[a-z-]+)", "\n".join(row.split("|")[1] for row in table.splitlines() if "|" in row))
    )
    assert {each for each in reported if each not in toolbus("ask", "--help").out} == set()
    assert "--dir" in reported


def test_every_command_of_the_store_is_on_the_page_and_every_one_on_the_page_is_there(toolbus: Command):
    reported = set(re.findall(r"^\| `toolbus (store [a-z]+)", REFERENCE, re.MULTILINE))
    assert reported == {*STORE}
    listed = toolbus("store", "--help").out
    assert {each for each in STORE if f"\n    {each.split()[1]} " not in listed} == set()


def test_the_fields_of_the_result_are_those_on_the_page(toolbus: Command):
    scenes.play(calls(("add", {"a": 1, "b": 1})), text("2"))
    ended = toolbus("ask", "q", "-p", "scenes:scripted", "-t", "scenes:add", "--json")
    result = orjson.loads(ended.out)
    section = REFERENCE.partition("## The object of")[2].partition("\n\nWith status")[0]
    reported = set(re.findall(r"`([a-z_]+)`", section)) - {"completed", "failed", "cancelled", "stopped"}
    assert reported == {*result, *result["tool_calls"][0]}


def test_the_tools_of_the_how_to_can_be_named(toolbus: Command, folder: Path):
    (module,) = re.findall(r"```python\n(.*?)```", HOW_TO, re.DOTALL)
    (folder / "mytools.py").write_text(module, encoding="utf-8")
    scenes.play(calls(("get_weather", {"city": "Paris"})), text("Sunny."))
    ended = toolbus("ask", "Weather in Paris?", "--tools", "mytools:tools", "-p", "scenes:scripted")
    assert '✓ Get Weather  city="Paris"' in ended.err


@pytest.mark.parametrize("page", ["reference/cli.md", "how-to/ask-about-your-files.md", "how-to/approve-calls.md"])
def test_the_pages_links_lead_somewhere(page: str):
    text = (DOCS / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (DOCS / page).parent.joinpath(target.partition("#")[0]).exists(), target
