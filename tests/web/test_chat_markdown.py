"""The chat page's own code, in node: what a model's Markdown can become, on random texts, and calls after a reload."""

from __future__ import annotations

import json
import random
import subprocess
from importlib.resources import files
from pathlib import Path

from support import npm_servers
from toolbus.messages import AssistantMessage, ToolCall, ToolMessage, to_vercel
from toolbus.tool_results import failure_content

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
    assert set(found["attributes"]) <= {"class", "href", "rel", "start", "target"}, seed
    assert set(found["addresses"]) <= {"http", "https", "mailto"}, seed
    assert {"a", "table", "pre", "li"} <= set(found["elements"]), "the texts have too little in them"
    assert found["whole"], "a text over the bound is not shown as it is"
    assert found["kept"], "a text that is too deep is not shown as it is"
    assert found["bounded"], "a paragraph that takes too long is not the only one that is plain"
    assert found["seconds"] < 5, "it takes tens of seconds without a bound"


def test_a_call_is_shown_after_a_reload_as_it_was_before() -> None:
    calls = [ToolCall(name="look", arguments="{}", call_id=name) for name in ("a", "b", "c", "d")]
    contents = [failure_content("denied", "A person denied the call."), failure_content("timeout", "Too slow."), "21"]
    results = [
        ToolMessage(call_id=call.call_id, name="look", content=content, is_error=content != "21")
        for call, content in zip(calls, [*contents, "broken"], strict=True)
    ]
    [page] = to_vercel([AssistantMessage(tool_calls=tuple(calls)), *results], form="ui")
    code = (STATIC / "chat.js").read_text(encoding="utf-8")
    functions = "function problemIn" + code.partition("function problemIn")[2].partition("// ----")[0]
    program = (
        f"const newMessage = (_, parts) => parts;{functions};console.log(JSON.stringify(stored({json.dumps(page)})))"
    )
    done = subprocess.run([npm_servers.node(), "-e", program], capture_output=True, text=True, check=True, timeout=60)
    assert [(each["state"], each.get("error")) for each in json.loads(done.stdout) if each["type"] == "call"] == [
        ("denied", "A person denied the call."),
        ("failed", "Too slow."),
        ("done", None),
        ("failed", "broken"),
    ]
