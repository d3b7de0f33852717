"""The page of error messages: each message that it quotes is one that toolbus writes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import toolbus

pytestmark = pytest.mark.usefixtures("without_garbage_collection")

SOURCE = Path(toolbus.__file__).parent
PAGE = Path(__file__).parents[1] / "docs/reference/troubleshooting.md"
QUOTED = re.findall(r"^### `(.+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
PLACEHOLDER = re.compile(r"%[-.\d]*[sdfgr]")


def texts_in(node: ast.AST) -> Iterator[str]:
    """The texts of a module, with a mark for each value that Python puts in."""
    for each in ast.walk(node):
        if isinstance(each, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in each.values)
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield PLACEHOLDER.sub("…", each.value)


@pytest.fixture(scope="module")
def texts() -> set[str]:
    """All texts of the source, each on one line."""
    modules = [ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")]
    return {text.replace("`", "").replace("\n", " ") for each in modules for text in texts_in(each)}


@pytest.mark.parametrize("message", QUOTED)
def test_a_quoted_message_is_one_that_toolbus_writes(message: str, texts: set[str]) -> None:
    parts = message.split("…")
    longest = max(parts, key=len)  # few texts have it, so the slow search reads only these
    assert any(re.search(".*".join(map(re.escape, parts)), text) for text in texts if longest in text)


def test_the_page_quotes_messages() -> None:
    assert len(QUOTED) > 30
    assert len(set(QUOTED)) == len(QUOTED)
