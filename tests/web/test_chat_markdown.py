"""The chat page's own code, in node: what a model's Markdown can become, on random texts, and calls after a reload."""

from __future__ import annotations

import json
import random
import subprocess
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from ui_grammar import Chunk

from support import npm_servers
from toolbus import Denied, Interceptor, Runtime, ToolContext, ToolError, tool
from toolbus.events import ApprovalRequested, Event
from toolbus.messages import SystemMessage
from toolbus.testing import ScriptedProvider, calls, text, virtual_backends
from toolbus.web import VercelEncoder
from toolbus.web._vercel import page_messages

anyio_backend = virtual_backends()
STATIC = files("toolbus.web") / "chat" / "static"
MODULE = STATIC / "markdown.js"
ELEMENTS = "a blockquote br code del div em h2 h3 h4 h5 h6 hr li ol p pre span strong table tbody td th thead tr ul"


def test_whatever_the_text_it_becomes_only_harmless_elements_and_loads_nothing() -> None:
    seed = random.randrange(2**31)
    command = [npm_servers.node(), Path(__file__).with_name("markdown_texts.mjs"), str(MODULE), str(seed), "3000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    found = json.loads(done.stdout)
    assert set(found["elements"]) <= {*ELEMENTS.split()}, seed
    assert set(found["attributes"]) <= {"class", "dir", "href", "rel", "start", "target"}, seed
    assert set(found["addresses"]) <= {"http", "https", "mailto"}, seed
    assert {"a", "table", "pre", "li"} <= set(found["elements"]), "the texts have too little in them"
    assert found["whole"], "a text over the bound is not shown as it is"
    assert found["kept"], "a text that is too deep is not shown as it is"
    assert found["shown"], "a text at which marked fails is not shown as it is, or is plain for ever"
    assert found["gaveUp"], "a text at which marked fails late is read again with each piece"
    assert found["bounded"], "a paragraph that takes too long is not the only one that is plain"
    assert found["seconds"] < 5, "it takes tens of seconds without a bound"


@dataclass
class Output:
    n: int


class NoRome(Interceptor):
    async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
        if arguments.get("city") == "Rome":
            raise Denied("Rome is closed.")
        return arguments


@tool
async def look(city: str) -> str:
    """Look at a city."""
    if city == "Oslo":
        raise ToolError("It is dark.")
    return f"{city} is fine."


@tool(needs_approval=True)
async def remove() -> str:
    """Remove everything."""
    return "gone"


@tool(background=True)
async def export(fails: bool) -> str:
    """Export everything."""
    await anyio.sleep(60)
    if fails:
        raise ToolError("The disk is full.")
    return "exported: 7 files"


async def test_a_turn_is_shown_after_a_reload_as_it_was_shown_live() -> None:
    cities = [("look", {"city": city}) for city in ("Paris", "Oslo", "Rome")]
    jobs = [("export", {"fails": fails}) for fails in (False, True)]
    model = ScriptedProvider([calls(*cities, ("remove", {}), *jobs), text("So far."), text("Hm."), text('{"n": 7}')])
    encoder = VercelEncoder()
    chunks: list[Chunk] = []
    async with Runtime(model, tools=[look, remove, export], interceptors=[NoRome()]) as runtime:
        runtime.bus.connect(Event, lambda event: chunks.extend(encoder.feed(event)))
        runtime.bus.connect(
            ApprovalRequested, lambda asked: runtime.bus.publish(asked.decided(approved=False, by="ann"))
        )
        result = await runtime.run("Go.", output=Output)
    assert [type(each) for each in result.messages].count(SystemMessage) == 2
    page = page_messages(result.messages)
    assert [each["role"] for each in page] == ["user", "assistant"]
    code = (STATIC / "chat.js").read_text(encoding="utf-8")
    program = f"""
        const $ = () => ({{}});
        {code[code.index("const newMessage") : code.index("// A message of the history")]}
        {code[code.index("function fold") : code.index("const inLine")]}
        {code[code.index("function stored") :].partition("// ----")[0]}
        const live = newMessage("assistant");
        for (const chunk of {json.dumps(chunks)}) fold(live, chunk);
        const seen = ({{ parts }}) => parts.map(({{ type, name, state, text, output, error }}) => [type, name, state, text, output, error]);
        console.log(JSON.stringify([live, stored({json.dumps(page[1])})].map(seen)));
    """
    command = [npm_servers.node(), "-e", program]
    done = await anyio.to_thread.run_sync(partial(subprocess.run, command, capture_output=True, text=True, check=True))
    live, again = [[part for part in parts if part[0]] for parts in json.loads(done.stdout)]
    assert live == again
    assert [part[1:3] + part[4:] for part in live if part[0] == "call"] == [
        ["look", "done", "Paris is fine.", None],
        ["look", "failed", None, "It is dark."],
        ["look", "denied", None, "Rome is closed."],
        ["remove", "denied", None, "ann denied the call."],
        ["export", "done", "exported: 7 files", None],
        ["export", "failed", None, "The disk is full."],
    ]
