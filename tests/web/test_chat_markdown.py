"""What a model's Markdown can become on the chat page: the module that makes the page's nodes, in node, on random texts."""

from __future__ import annotations

import json
import random
import subprocess
from importlib.resources import files
from pathlib import Path

from support import npm_servers

MODULE = files("toolbus.web") / "chat" / "static" / "markdown.js"
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
