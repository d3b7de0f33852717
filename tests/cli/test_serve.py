"""`toolbus serve`: the page in a real Chromium, the continued request of a server that was killed, and wrong usage."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import support
from support import browser, npm_servers
from support.environments import importing_from
from toolbus.cli import _requests, main
from toolbus.cli._arguments import parse
from toolbus.cli._commands import serve as _serve
from toolbus.cli._open_store import COMMAND
from toolbus.cli._terminal.screen import Screen
from toolbus.errors import ConfigurationError
from toolbus.storage import RequestRecord
from toolbus.testing import virtual_backend

TESTS = Path(__file__).parents[1]
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
MODULE = '''
from pathlib import Path

from toolbus import tool
from toolbus.cli import _requests
from toolbus.messages import ImagePart, TextPart
from toolbus.providers.scripted import ScriptedProvider, calls, hang, text
from toolbus.toolsets.control import give_up, task_complete

_requests.LEASE_SECONDS = 5.0  # A page of a killed server waits for so long, and 10 s show nothing more.
HOSTILE = (
    '<img src=x onerror="document.title=1"><script>document.title=1</script><svg onload="document.title=1">'
    '</pre></textarea><iframe srcdoc="<script>parent.document.title=1</script>"></iframe><style>*{display:none}</style>'
    '<base href="//evil.example/"><details open ontoggle="document.title=1">'
)
REVERSED = "\\u202e" + HOSTILE  # what follows is written from right to left


@tool(needs_approval=True)
async def remove(path: str) -> str:
    """Remove a file."""
    return HOSTILE


@tool
def look() -> str:
    """Look at it."""
    return Path("ready").read_text()  # a pipe


@tool
async def photo() -> list[TextPart | ImagePart]:
    """Take a photo."""
    return [TextPart(text="a pixel"), ImagePart(url="PIXEL"), ImagePart(url="https://evil.example/x.png")]


@tool(needs_approval=True)
async def count(start: int) -> dict[str, int]:
    """Count on."""
    return {"next": start + 1}


MARKDOWN = """
## What I found

Three files, **all** small, and `one` is *new*:
the rest is [old](https://example.org/a?b=1&c=2) &amp; ~~gone~~.

1. First
   - [x] nested
   - [ ] open
2. Second

> It is quoted.

| name | size |
| --- | ---: |
| `a.py` | 3 |

[bad](javascript:document.title=1) ![picture](https://evil.example/x.png) <b onclick="document.title=1">bold</b>

```python
if 1 < 2 & 3:
    print("**not bold**")
"""
DEEP = ">" * 9_000 + " deep"

SCRIPTS = {
    "markdown": [text(MARKDOWN)],
    "deep": [text(DEEP)],
    "remove": [calls(("remove", {"path": REVERSED}), text="May I?", reasoning="It is old."), text("It is gone.")],
    "give": [calls(("give_up", {"reason": "It is locked."}))],
    "complete": [calls(("task_complete", {"answer": "All sorted."}))],
    "hostile": [text(HOSTILE)],
    "photo": [calls(("photo", {})), text("A pixel.")],
    "count": [calls(("count", {"start": 9007199254740993})), text("Counted.")],
    "malformed": [calls(("photo", '{"a":')), text("Oh.")],
    "ימין": [text("ימין.\\n\\n- ימין\\n\\n```\\nx\\n```\\n\\nLeft.")],
    "look": [calls(("look", {}), text="One moment.")],
    "mixed": [calls(("look", {}), ("remove", {"path": "/a"}), text="Both."), text("Both are done.")],
    "By": [text("I am waiting."), text("At 10.")],
    "think": [hang(after=text("", reasoning="Hm, perhaps"))],
    "wait": [hang(after=text("I am beginning"))],
    "slow": [text("one two three") if Path("killed").exists() else hang(after=text("one two thr"))],
}


BOTH = [calls(("remove", {"path": "/a"}), ("remove", {"path": "/b"})), text("Nothing is gone.")]


def reply(request):
    prompts = [each.text for each in request.messages if each.role == "user"]
    return (BOTH if prompts[-1] == "remove both" else SCRIPTS[prompts[-1].split()[0]])[request.round]


TOOLS = [remove, look, photo, count, give_up, task_complete]
MODEL = ScriptedProvider(reply)
'''


@pytest.fixture(scope="module", autouse=True)
def _unpacked() -> None:
    """Outside of the tests, whose calls have deadlines."""
    browser.unpacked()
    npm_servers.installed()


@pytest.mark.timeout(300)
def test_the_page_asks_decides_stops_and_continues_after_its_server_was_killed(tmp_path: Path) -> None:
    folder = Path(os.environ.get("TOOLBUS_SCREENSHOTS", tmp_path))
    os.mkfifo(folder / "ready")
    (folder / "mine.py").write_text(MODULE.replace("PIXEL", PIXEL), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("browse_served.py")), str(folder)],
        capture_output=True,
        check=False,
        text=True,
        timeout=240,
        env=importing_from(TESTS),
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    found = json.loads(done.stdout)
    waits = ["You: look at it", "Assistant: One moment.", "You: By day."]
    joined = [*waits, "Assistant: At 10.", "You: markdown"]
    assert found["steered"] == [waits, waits, joined, joined]
    early = ["You: wait for it", "You: wait a little", "You: wait on"]
    assert found["steered early"] == [early] * 4
    assert found["given up"][0] == found["given up"][1]
    assert found["directions"] == ["rtl", "rtl", "rtl", "ltr", "ltr", "rtl"]
    stopped = ["You: think", "Assistant: Hm, perhaps"]
    assert found["loaded again"]["stopped"] == [stopped, stopped]
    not_kept = ["You: This message was not kept.", "Assistant: This is not allowed: No passwords."]
    assert found["loaded again"]["refused"] == [[*not_kept, *stopped, *not_kept]]
    assert found["meanwhile"] == 'Both. look remove path="/a" Both are done.'
    assert found["barriers"] == []
    assert found["status"] == 0
    assert found["made"] == 0
    assert found["picture"] == 1  # its width, so it was loaded
    assert found["roles"][-4:] == ["You", "Assistant"] * 2
    for words in ("It is gone.", "I could not finish: It is locked.", "All sorted.", 'path="\\u202e<img'):
        assert words in found["shown"]
    assert found["hosts"] == ["127.0.0.1"]
    assert found["markdown"] == (
        "h2 p strong code em a del ol li ul li li li blockquote p table thead tr th th tbody tr td code td p span a pre code"
    )
    # JavaScript has neither of these numbers.
    for numbers in found["numbers"]:
        assert "start=9007199254740993" in numbers
        assert '"next": 9007199254740994' in numbers
    assert found["links"] == ["https://example.org/a?b=1&c=2", "https://evil.example/x.png"]
    assert found["code"] == 'if 1 < 2 & 3:\n    print("**not bold**")'
    assert "the rest is old & gone" in found["prose"]
    assert '<b onclick="document.title=1">bold</b>' in found["prose"]
    # The browser itself reports what was refused, and the requests to a server that was away.
    assert {each.split(" (")[0].split(":")[0] for each in found["errors"]} <= {"Failed to load resource"}


@pytest.mark.parametrize("anyio_backend", [virtual_backend("asyncio")], ids=["asyncio"])
async def test_a_server_of_tools_that_does_not_start_does_not_keep_the_page_from_ending() -> None:
    failures = list[Exception]()
    left = list[str]()

    @asynccontextmanager
    async def mcp() -> AsyncGenerator[None]:
        try:
            await anyio.sleep_forever()
            yield
        finally:
            left.append("mcp")

    found: Any = SimpleNamespace(mcp=mcp(), runtime=None, kept=None)
    async with _serve._lifetime(found, failures, lambda: anyio.current_time() > 0.25):
        assert left == ["mcp"]
    assert failures == []
    assert 0.25 < anyio.current_time() < 0.5


async def test_the_runtime_is_entered_as_long_as_the_page_is_served() -> None:
    steps = list[str]()

    @asynccontextmanager
    async def runtime() -> AsyncGenerator[None]:
        steps.append("entered")
        yield
        steps.append("left")

    found: Any = SimpleNamespace(mcp=None, runtime=runtime(), kept=None)
    async with _serve._lifetime(found, [], lambda: False):
        steps.append("served")
    assert steps == ["entered", "served", "left"]


class Ends(_serve._Server):
    """A server that ends as soon as it has begun."""

    async def main_loop(self) -> None:
        await anyio.lowlevel.checkpoint()


def test_a_server_of_tools_that_fails_is_reported_and_no_page_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @asynccontextmanager
    async def failing(*_: object) -> AsyncGenerator[None]:
        raise ConfigurationError("the server of tools is broken")
        yield

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_serve, "_Server", Ends)
    monkeypatch.setattr(_requests, "mcp_tools", failing)
    assert main(["serve", "--provider", "extractive", "--no-store"]) == 2
    assert capsys.readouterr() == ("", "toolbus: the server of tools is broken\n")


class Exits(_serve._Server):
    """A server that cannot begin, for a reason that has nothing to do with the runtime."""

    async def startup(self, sockets: Any = None) -> None:
        raise SystemExit(3)


def test_a_server_that_cannot_begin_does_not_look_like_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_serve, "_Server", Exits)
    with pytest.raises(SystemExit) as raised:
        main(["serve", "--provider", "extractive", "--no-store", "-q"])
    assert raised.value.code == 3


@pytest.mark.parametrize(("options", "count"), [([], 0), (["--approve", "none"], 1)])
def test_calls_are_decided_without_a_person_only_if_that_is_asked_for(
    options: list[str], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: list[str] = []

    def connect(_runtime: Any, given: Any, *_: Any) -> None:
        connected.append(given.approve)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_serve, "_Server", Ends)
    monkeypatch.setattr(_serve, "connect_approval", connect)
    assert main(["serve", "--provider", "extractive", "--no-store", "-q", *options]) == 0
    assert connected == ["none"] * count


@pytest.mark.parametrize("opens", [False, True])
def test_the_page_is_opened_if_asked_for_and_the_servers_of_tools_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, opens: bool
) -> None:
    small = str(Path(support.__path__[0]) / "small_mcp_program.py")
    program = f"import pathlib, runpy; pathlib.Path('started').touch(); runpy.run_path({small!r}, run_name='__main__')"
    servers = {"mcpServers": {"small": {"command": sys.executable, "args": ["-c", program]}}}
    (tmp_path / "mcp.json").write_text(json.dumps(servers), encoding="utf-8")
    opened: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_serve, "_Server", Ends)
    monkeypatch.setattr("webbrowser.open", opened.append)
    options = ["--provider", "extractive", "--no-store", "--mcp", "mcp.json", "-q"]
    assert main(["serve", *options, *(["--open"] if opens else [])]) == 0
    [address] = capsys.readouterr().out.splitlines()
    assert opened == ([address] if opens else [])
    assert (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--no-store", "--port", "70000"], "--port 70000: "),
        (["--no-store", "--port", "x"], "invalid int value"),
        (["--store", "no.db"], "no.db"),
        (["--no-store", "--dir", "nowhere"], "--dir nowhere does not exist"),
    ],
    ids=["port-range", "port-number", "store", "folder"],
)
def test_wrong_usage_is_one_line(
    options: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no.db").write_text("This is not a database, and it is long enough to be looked at.", encoding="utf-8")
    assert main(["serve", "--provider", "extractive", *options]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert len([line for line in written.err.splitlines() if words in line]) == 1, written.err
    assert len(written.err.splitlines()) == 1


def test_only_what_an_equal_command_has_served_is_continued_without_being_asked(kept: Path) -> None:
    stores = [
        found.store
        for command in (["serve"], ["serve", "--dir", "/"], ["serve", "--mcp", "a.json"], ["ask", "q"])
        if (found := _requests._kept(parse(command), Screen(None, None), "extractive"))
    ]
    records = [RequestRecord(request_id="r", conversation_id="c", agreed={COMMAND: each._command}) for each in stores]
    found = [[store.continues(record) for record in records] for store in stores]
    assert [each._command.get("mcp") for each in stores] == [None, None, ["a.json"], None]
    assert found == [[mine == its and mine < 3 for its in range(4)] for mine in range(4)]
