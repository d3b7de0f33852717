"""The game client: what its user sees of autoplay, of typed turns, of failures, and of what compression saves."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# The type checker does not look into examples/ for imports yet.

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterable, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from game_client import __main__ as command
from game_client import player
from game_client.client import play
from game_client.screen import Screen
from game_client.server import Game, Session, server_for
from toolbus.errors import ProviderError
from toolbus.messages import ToolMessage, UserMessage
from toolbus.stores import SqliteStore
from toolbus.testing import ScriptedProvider, error
from toolbus.toolsets.mcp import McpServer

PASSWORD = "orion-7-rising"


def in_this_process(name: str, **_options: object) -> McpServer:
    return McpServer(name, connect=lambda: server_for(Game(7, PASSWORD)))


class Table:
    """Where the game is played: a server in this process, a store in a folder, and the lines on the screen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.on_line: Callable[[str], object] = lambda _line: None
        self.provider = ScriptedProvider(player.play)

    @property
    def screen(self) -> str:
        return "\n".join(self.lines)

    def show(self, line: str) -> None:
        self.lines.append(line)
        self.on_line(line)

    async def play(self, turns: int = 0, *, typed: AsyncIterable[str], waits: bool = False) -> bool:
        def connect() -> Any:
            return server_for(Game(7, PASSWORD, self.folder / "galaxy.json"))

        with anyio.fail_after(60):
            return await play(
                self.provider,
                McpServer("game", connect=connect),
                SqliteStore(self.folder / "game.db"),
                Screen(self.show),
                pilot="ada",
                password=PASSWORD,
                turns=turns,
                typed=typed,
                waits=waits,
            )
        raise AssertionError


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


async def lines(*typed: str) -> AsyncIterator[str]:
    for line in typed:
        await anyio.lowlevel.checkpoint()
        yield line


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a second of computing, of which the next tests show enough
async def test_fifteen_turns_of_autoplay_recover_from_errors_and_say_what_compression_saved(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("game_client.server.secrets.token_hex", {16: "5e5510n-0f-ada"}.get)
    await table.play(turns=15, typed=lines())
    seen = table.screen
    assert re.findall(r"── (.*?):", seen) == [f"autoplay {turn}/15" for turn in range(1, 16)]
    # A tool that fails is read as an error, and acted on; arguments are cut.
    assert re.search(r"✗ game__mine \{.*?\} → .*nothing to mine at Harbour.*\n +✓ game__travel", seen)
    assert re.search(r'✗ game__travel \{"to":"Shallows".{1,30}… → .*not enough fuel.*\n +✓ game__refuel', seen)
    # A model that fails ends its turn, and nothing else.
    assert re.search(
        r"6/15:.*(\n   ✓ .*){2}\n   ✗ I could not finish because the language model failed\.\n\n── autoplay 7", seen
    )
    # Compression is told while it happens, and summed up.
    reported = re.findall(r"▾ history: [\d,]+ tokens stored, [\d,]+ sent, (\d+)% saved \((\d+) results", seen)
    assert int(reported[-1][0]) >= 20
    assert any(int(results) > 5 for _, results in reported)
    stored, left = re.findall(r"last call .*: (\d+) messages are stored .* and (\d+) were sent", seen)[0]
    assert int(left) < int(stored)
    assert re.search(r"Over all \d+ calls: [\d,]+ tokens without compression, [\d,]+ with it, \d+% saved", seen)
    # An old query is sent as a line and an old action as its beginning; the login is whole to the end.
    sent = [each for request in table.provider.requests for each in request.messages if isinstance(each, ToolMessage)]
    assert any(each.name == "game__get_map" and "older result left out" in each.content for each in sent)
    assert any(each.name == "game__mine" and each.content.endswith("characters are missing") for each in sent)
    last = [each.content for each in table.provider.requests[-1].messages if isinstance(each, ToolMessage)]
    assert last[0].count("Mine at belts, sell and refuel at ports.") == 3
    # Neither password nor session is shown, sent or stored.
    kept = b"".join(each.read_bytes() for each in table.folder.glob("game.db*"))
    for secret in (PASSWORD, "5e5510n-0f-ada"):
        assert secret not in seen + repr(table.provider.requests)
        assert secret.encode() not in kept


async def test_what_is_typed_while_autoplay_is_in_a_turn_comes_next_and_20_rounds_are_the_most(table: Table) -> None:
    send, typed = anyio.create_memory_object_stream[str](1)
    table.on_line = lambda line: send.send_nowait("loop") if "autoplay 1/2" in line else None
    async with send, typed:
        await table.play(turns=2, typed=typed)
    first, yours, last = table.screen.split("\n\n── ")[1:4]
    assert re.match(r"autoplay 1/2: (.*\n)*   … 'loop' comes next(.*\n)*   Arrived at Rust Belt on day 1\.$", first)
    assert yours.splitlines()[0] == "you: loop"
    assert yours.count("✓ game__") == 20
    assert yours.endswith("✗ I stopped after 20 steps without finishing.")
    assert re.match(r"autoplay 2/2: (.*\n)*   Mined ", last)


async def test_a_second_start_goes_on_with_the_conversation_and_with_a_turn_that_was_cut_off(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way = anyio.Event()

    async def refuel(self: Game, session: Session) -> str:
        under_way.set()
        await anyio.sleep_forever()
        return ""

    async def typed_and_left() -> AsyncIterator[str]:
        yield "refuel"
        await under_way.wait()
        raise OSError("the terminal is gone")

    monkeypatch.setattr(Game, "refuel", refuel)
    with pytest.raises(ExceptionGroup):
        await table.play(typed=typed_and_left(), waits=True)
    assert table.lines[0] == "conversation 'ada' begins; messages stored: 0"
    table.lines.clear()
    await table.play(typed=lines("status"), waits=True)
    unfinished, mine = table.screen.split("\n\n── ")[1:]
    assert re.match(r"a turn that was cut off continues\n   ✗ game__refuel → .*it may have had its effect", unfinished)
    assert re.match(
        r"you: status\n   ✗ game__get_status .* no longer known.*\n   ✓ game__login .*\n   ✓ game__get_st", mine
    )
    table.lines.clear()
    await table.play(typed=lines("map"), waits=True)
    assert table.lines[0] == "conversation 'ada' continues; messages stored: 14"
    assert [each.text for each in table.provider.requests[-1].messages if isinstance(each, UserMessage)] == [
        "refuel",
        "status",
        "map",
    ]


async def test_autoplay_stops_when_three_turns_in_a_row_have_failed(table: Table) -> None:
    table.provider = ScriptedProvider(lambda _request: error(ProviderError("there is no such model")))
    assert not await table.play(turns=15, typed=lines())
    assert table.screen.count("✗ I could not finish because the language model failed.") == 3
    assert "autoplay stops: 3 turns in a row have failed" in table.screen


async def test_autoplay_stops_when_nobody_reads_any_more(table: Table) -> None:
    def gone(line: str) -> None:
        if "autoplay 2/15" in line:
            raise BrokenPipeError

    table.on_line = gone
    with pytest.raises(BrokenPipeError):
        await table.play(turns=15, typed=lines())
    assert "autoplay 3/15" not in table.screen


async def test_lines_are_read_until_the_end_of_input() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"sell iron 3\n\n  mine \nmap")
    os.close(writing)
    assert [line async for line in command.typed_lines(reading)] == ["sell iron 3", "mine", "map"]
    os.close(reading)


def test_the_command_plays_over_stdio_and_says_where_it_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main(["--turns", "1", "--store", "game.db", "--conversation", "grace"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "Model: a script, not a language model (--provider NAME asks one).\nconversation 'grace' begins"
    )
    assert "Welcome aboard, grace." in said
    assert said.splitlines()[-1] == "Saved in game.db; the same command continues from there."


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--provider", "nonsense"], "nonsense"),
        (["--store", "no/such/folder/game.db"], "no/such/folder; create it first"),
        (["--turns", "-1"], "--turns is -1; pass 0 or more"),
        (["--conversation", "two words"], "pass one word"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    flags: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "McpServer", in_this_process)
    try:
        status = command.main(["--store", "game.db", *flags])
    except SystemExit as exc:
        status = exc.code
    assert status == 2
    assert says in capsys.readouterr().err
