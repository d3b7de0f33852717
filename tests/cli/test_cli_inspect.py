"""`toolbus inspect` as a process: the page for a store and a recording, its token, its end, and what is wrong usage."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest

from support import postgres_server
from support.postgres_server import PostgresServer
from toolbus import Runtime
from toolbus.cli import main
from toolbus.providers.scripted import ScriptedProvider, text
from toolbus.stores import SqliteStore
from toolbus.stores.postgres import PostgresStore
from toolbus.testing import record

_COMMAND = [sys.executable, "-m", "toolbus", "inspect"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store and a recording of one request."""
    folder = tmp_path_factory.mktemp("kept")

    async def run() -> None:
        async with Runtime(ScriptedProvider([text("Sunny.")]), store=SqliteStore(folder / "s.db")) as runtime:
            with record(folder / "r.jsonl", runtime):
                await runtime.run("Weather?")

    anyio.run(run)
    return folder


@pytest.fixture(scope="module")
def postgres() -> PostgresServer:
    """A server that was started before the test."""
    return postgres_server.shared()


@contextlib.contextmanager
def inspecting(*options: object) -> Generator[tuple[str, int, str, subprocess.Popen[str]]]:
    """Start the command, and give its first line, its port, its token and the process."""
    process = subprocess.Popen(
        [*_COMMAND, *map(str, options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/#token=(\S{32})\n", process.stdout.readline())
        assert found is not None, process.communicate()
        yield first, int(found[1]), found[2], process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def asked(port: int, path: str, **headers: str) -> Generator[http.client.HTTPResponse]:
    """Ask the server for a path."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", path, headers=headers)
        with contextlib.closing(connection.getresponse()) as answer:
            yield answer


def overview(port: int, token: str) -> dict[str, object]:
    with asked(port, "/api/overview", Authorization=f"Bearer {token}") as answer:
        assert answer.status == 200
        while not (line := answer.readline()).startswith(b"data: "):
            assert line
        return json.loads(line.removeprefix(b"data: "))


def status(port: int, **headers: str) -> int:
    with asked(port, "/api/requests/none/events", **headers) as answer:
        return answer.status


@pytest.mark.parametrize(("option", "name"), [("--store", "s.db"), ("--recording", "r.jsonl")])
def test_a_store_and_a_recording_are_shown_until_ctrl_c(kept: Path, option: str, name: str):
    with inspecting(option, kept / name) as (first, port, token, process):
        assert first == f"Inspecting {name}. Ctrl-C ends it.\n"
        found = overview(port, token)
        requests = found["requests"]
        assert isinstance(requests, list)
        assert (requests[0]["prompt"], requests[0]["state"]) == ("Weather?", "completed")
        assert found["can_act"] is (option == "--store")
        assert status(port) == 401
        assert status(port, Authorization=f"Bearer {token}") == 404
        assert status(port, Authorization=f"Bearer {token}", Host="evil.example") == 403
        assert status(port, Authorization=f"Bearer {token}", Origin="http://evil.example") == 403
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_database_of_postgresql_is_shown(postgres: PostgresServer):
    async def run(url: str) -> None:
        async with Runtime(ScriptedProvider([text("Sunny.")]), store=PostgresStore(url)) as runtime:
            await runtime.run("Weather?")

    with postgres.database() as url:
        anyio.run(run, url)
        with inspecting("--url", url) as (_, port, token, _process):
            found = overview(port, token)
            requests = found["requests"]
            assert isinstance(requests, list)
            assert (requests[0]["prompt"], requests[0]["state"]) == ("Weather?", "completed")
            assert found["can_act"]


@pytest.mark.parametrize("opens", [False, True])
def test_the_page_is_opened_if_asked_for(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, opens: bool
):
    async def serve(_server: object, sockets: list[object]) -> None:
        assert len(sockets) == 1

    opened: list[str] = []
    monkeypatch.setattr("uvicorn.Server.serve", serve)
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main(["inspect", "--recording", str(kept / "r.jsonl"), *(["--open"] if opens else [])]) == 0
    [_, address] = capsys.readouterr().out.splitlines()
    assert opened == ([address] if opens else [])


def test_where_nothing_was_kept_yet_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("TOOLBUS_STORE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert main(["inspect"]) == 0
    said = "Nothing is kept yet: toolbus ask and toolbus chat keep their requests here.\n"
    assert capsys.readouterr() == (said, "")


@pytest.mark.parametrize(
    ("options", "words", "code"),
    [
        (["--store", "none.db"], "--store: there is no store none.db", 2),
        (["--recording", "none.jsonl"], "--recording: there is no file none.jsonl", 2),
        (["--recording", "x" * 300], "cannot be read: File name too long", 2),
        (["--recording", "/proc/self/mem"], "mem cannot be opened: Input/output error", 1),
        (["--url", "mysql://x"], "--url is the address of a PostgreSQL database", 2),
        (["--recording", "text.txt"], "this is not a recording", 1),
        (["--recording", "text.txt", "--port", "99999"], "--port 99999", 2),
        (["--store", "a", "--url", "b"], "not allowed with argument", 2),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    tmp_path: Path,
    options: list[str],
    words: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("hello\n", encoding="utf-8")
    assert main(["inspect", *options]) == code
    written = capsys.readouterr()
    assert written.out == ""
    assert words in written.err
    assert written.err.count("\n") == 1
