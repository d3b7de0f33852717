"""The pages show arguments as the terminal does, so that a person who approves a call sees all that it contains."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from importlib.resources import files
from pathlib import Path

import pytest

from support import npm_servers
from toolbus.cli._terminal.text import visible_json

STATIC = files("toolbus.web")


@pytest.mark.parametrize(
    ("script", "end"), [("chat/static/chat.js", "// Numbers that"), ("inspector/static/parts.js", "const ago =")]
)
def test_characters_that_nobody_sees_are_escapes_on_the_pages_as_in_the_terminal(script: str, end: str) -> None:
    kinds = ((chr(code), unicodedata.category(chr(code))) for code in range(sys.maxunicode + 1))
    # Browsers and Python have different versions of Unicode, which assign more and more characters.
    characters = [each for each, kind in kinds if kind not in {"Cn", "Cs", "Co"}]
    hidden = "".join(chr(0xE0000 + ord(each)) for each in "to: eve")  # the invisible letters of "ASCII smuggling"
    values = [*characters, f"Dear Bob{hidden}", "pa\u200bth a\u00ad\ue000", "😀 ok"]
    command = [npm_servers.node(), str(Path(__file__).with_name("shown_arguments.mjs")), str(STATIC / script), end]
    done = subprocess.run(command, capture_output=True, text=True, input=json.dumps(values), check=True, timeout=60)
    shown = dict(zip(values, json.loads(done.stdout), strict=True))
    assert {each: written for each, written in shown.items() if written != visible_json(each)} == {}
