"""What the applications among the examples have in common: their flags, their exit statuses, and what they read."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# The type checker does not look into examples/ for imports yet.

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import game_client.__main__
import ticket_assistant.chat

ASKED: dict[str, list[str]] = {
    "graph_assistant": [],
    "game_client": [],
    "code_assistant": ["--ask", "What is a lease?", "--no-index"],
    "status_chat": ["--pace", "0"],
    "ticket_assistant": [],
}


class Reader(io.TextIOWrapper):
    """Standard output on a terminal that knows ASCII alone, whose first line meets with `meets`."""

    def __init__(self, path: Path, meets: type[BaseException] | None) -> None:
        super().__init__(path.open("wb"), encoding="ascii")
        self._meets = meets

    def write(self, text: str) -> int:
        if self._meets is not None and text.strip():
            meets, self._meets = self._meets, None
            raise meets
        return super().write(text)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs an example with what it needs; its exit status, and what was read of it."""
    for name in ("mongo_server", "tracker_in_a_thread"):
        monkeypatch.setattr(f"ticket_assistant.__main__.{name}", lambda: nullcontext("http://localhost:1"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def run(name: str, arguments: list[str], meets: type[BaseException] | None = None) -> tuple[int, str]:
        with Reader(tmp_path / "out", meets) as reader:
            monkeypatch.setattr(sys, "stdout", reader)
            status = import_module(f"{name}.__main__").main(arguments)
        return status, (tmp_path / "out").read_text()

    return run


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize(("meets", "status"), [(BrokenPipeError, 141), (KeyboardInterrupt, 130), (OSError, 2)])
def test_an_exit_status_means_the_same_in_each(name: str, meets: type[BaseException], status: int, run: Any) -> None:
    assert run(name, ASKED[name], meets)[0] == status


@pytest.mark.parametrize("name", ASKED)
def test_a_real_model_is_asked_for_by_the_same_flag_in_each(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        import_module(f"{name}.__main__").main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "--provider NAME a real model, such as openai:gpt-5-mini or ollama:llama3.2 " in said


@pytest.mark.parametrize("name", ASKED)
def test_the_readme_has_each_flag_and_no_other(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    example = import_module(f"{name}.__main__")
    with pytest.raises(SystemExit):
        example.main(["--help"])
    known = {*re.findall(r"--[a-z-]+", capsys.readouterr().out.partition("options:")[0])}
    table = re.findall(
        r"^\| (`--.*?) \| ", Path(str(example.__file__)).with_name("README.md").read_text(), re.MULTILINE
    )
    assert {*re.findall(r"--[a-z-]+", " ".join(table))} == known


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("graph_assistant", ["--ask", "How many nodes are there?"]),
        ("status_chat", ["--pace", "0", "--scenario", "no-tools"]),
    ],
)
def test_each_says_that_a_script_plays_the_model(name: str, arguments: list[str], run: Any) -> None:
    status, said = run(name, arguments)
    assert status == 0
    assert "Model: a script, not a language model (--provider NAME asks one)." in said.splitlines()[0]


def test_a_terminal_that_knows_ascii_alone_shows_question_marks(run: Any) -> None:
    status, said = run("code_assistant", ASKED["code_assistant"])
    assert status == 0
    assert "? request_code_context token_budget=2000: there is no retriever" in said


@pytest.mark.parametrize("name", ["graph_assistant", "status_chat"])
def test_a_question_that_is_no_utf_8_is_asked_all_the_same(
    name: str, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8"))
    assert run(name, ["--chat"])[0] == 0


@pytest.mark.parametrize("example", [game_client.__main__, ticket_assistant.chat])
async def test_what_is_typed_is_read_to_its_end_even_when_it_is_no_utf_8(example: Any) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"  caf\xe9 \nmap")
    os.close(writing)
    assert [line async for line in example.typed_lines(reading)] == ["caf\ufffd", "map"]
    os.close(reading)
