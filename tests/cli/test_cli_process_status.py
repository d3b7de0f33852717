"""`toolbus status --url`: the health and the numbers of a running process, and what is said if it cannot be asked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import anyio.to_thread
import orjson
import pytest
from desk import Command
from starlette.testclient import TestClient

from support.http_serving import serving
from toolbus import Runtime, tool
from toolbus.messages import Usage
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, calls, text
from toolbus.web import create_status_app


@tool
async def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # uvicorn runs on asyncio only
async def test_a_running_process_is_asked_over_its_socket(toolbus: Command):
    usage = Usage(input_tokens=800, output_tokens=40)
    model = ScriptedProvider([calls(("look", {}), ("none", {}), usage=usage), text("ok", usage=usage)], vendor="maker")
    store = MemoryStore(journal=True)
    runtime = Runtime(model, tools=[look], store=store, detailed_statistics=True)
    async with runtime, serving(create_status_app(runtime)) as server:
        await runtime.run("go")
        url = str(server.client.base_url)
        ended = await anyio.to_thread.run_sync(toolbus, "status", "--url", url)
        whole = await anyio.to_thread.run_sync(toolbus, "status", "--json", "--url", f"{url}/status")
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "ready"
    assert lines[1].startswith("requests: 0 running (0 ask a model, 0 run tools, 0 wait for people); 0 queued; ")
    assert lines[4].startswith("store: ")
    assert "ms each; 0 refused" in lines[4]
    assert [line.split()[:4] for line in lines[6:]] == [
        ["tool", "calls", "failed", "retries"],
        ["(others)", "1", "1", "0"],
        ["look", "1", "0", "0"],
        ["model", "replies", "retries", "tokens"],
        ["maker:script", "2", "0", "1,600"],
    ]
    assert orjson.loads(whole.out)["health"] == {"ready": True, "reasons": []}


@contextmanager
def answering(body: bytes, status: int = 200) -> Generator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002 -- named by the base class

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def status_of(runtime: Runtime[Any]) -> dict[str, Any]:
    client = TestClient(create_status_app(runtime), base_url="http://127.0.0.1", client=("127.0.0.1", 1))
    return client.get("/status").json()


def test_trouble_is_named_first_and_in_the_exit_status_and_cannot_control_the_terminal(toolbus: Command):
    found = status_of(Runtime(ScriptedProvider([])))
    reasons = ["the store fails", "cancelled calls that still run: 1 (\x1b[31mhang)", "and\nready"]
    found["health"] = {"ready": True, "reasons": reasons}
    found["statistics"]["dispatcher"]["overdue"] = ["hang", "hang", "a\nb"]
    found["statistics"]["failed"] = {"provider_rejected": 1_204, "a\nb": 1}
    with answering(orjson.dumps(found)) as url:
        ended = toolbus("status", "--url", url)
    assert ended.status == 1
    assert ended.out.startswith("degraded: the store fails; cancelled calls that still run: 1 (hang); and ready\n")
    assert "; overdue: a b, hang\n" in ended.out
    assert "\nfailed: 1 a b, 1,204 provider_rejected\n" in ended.out
    assert "\x1b" not in ended.out
    too_deep = orjson.dumps(found)[:-1] + b',"more":' + b"[" * 300 + b"]" * 300 + b"}"
    del found["statistics"]["phases"]
    for wrong in (orjson.dumps(found), too_deep):
        with answering(wrong) as url:
            ended = toolbus("status", "--url", url, "--json")
        assert (ended.status, ended.out) == (2, "")
    assert "does not answer as create_status_app of this version" in ended.err


def test_the_columns_of_the_tables_are_aligned_with_their_titles(toolbus: Command):
    found = status_of(Runtime(ScriptedProvider([])))
    tool = {"calls": 8, "outcomes": {"completed": 1}, "retries": 0, "p50_seconds": 0.25, "p95_seconds": 1.0}
    found["statistics"]["tools"] = {"look": tool, "天気を見る": tool | {"calls": 1_234_567}, "x": tool}
    with answering(orjson.dumps(found)) as url:
        ended = toolbus("status", "--url", url)
    assert ended.out.splitlines()[6:] == [
        "tool            calls     failed  retries     p50  p95",
        "天気を見る  1,234,567  1,234,566        0  0.25 s  1 s",
        "look                8          7        0  0.25 s  1 s",
        "x                   8          7        0  0.25 s  1 s",
    ]


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"health": 1, "statistics": 2}', b"\xff", b""])
def test_another_server_is_told_apart(toolbus: Command, body: bytes):
    with answering(body) as url:
        ended = toolbus("status", "--url", url)
    assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)


def test_an_answer_that_is_too_long_is_refused(toolbus: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolbus.cli._commands.process_status._MAX_BYTES", 1_000)
    with answering(b"x" * 1_001) as url:
        assert toolbus("status", "--url", url).err == f"toolbus: {url}/status answered with over 1,000 bytes\n"
    with answering(b"x" * 1_000) as url:
        assert "does not answer as create_status_app" in toolbus("status", "--url", url).err


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n"])
def test_a_server_that_sends_its_answer_in_small_pieces_for_ever_is_left_in_time(
    toolbus: Command, monkeypatch: pytest.MonkeyPatch, begin: bytes
):
    monkeypatch.setattr("toolbus.cli._commands.process_status._SECONDS", 0.1)
    is_left = threading.Event()

    def trickle() -> None:
        client, _ = listener.accept()
        with client, suppress(OSError):
            client.sendall(begin)
            for _ in range(100):
                if not is_left.wait(0.01):
                    client.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=trickle)
        server.start()
        ended = toolbus("status", "--url", f"http://127.0.0.1:{listener.getsockname()[1]}")
        # The command itself ends too: it does not wait for the thread that still reads.
        assert all(each.daemon for each in threading.enumerate() if each.name == "toolbus status")
        is_left.set()
        server.join()
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert ended.err.endswith("/status: there was no whole answer in 0.1 s\n")


def test_a_process_that_cannot_be_asked_is_named_with_the_reason(toolbus: Command):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    ended = toolbus("status", "--url", f"http://127.0.0.1:{port}")
    assert ended.status == 2
    assert f"nobody answers at http://127.0.0.1:{port}/status: " in ended.err
    with answering(b"gone", 404) as url:
        assert "answered 404; pass the address" in toolbus("status", "--url", url).err
    for wrong in ("web-1:8001", "ftp://web-1", "http://", "http://[", "file:///etc/passwd", "http://web-1:0"):
        ended = toolbus("status", "--url", wrong)
        assert (ended.status, "pass an address such as" in ended.err) == (2, True)
