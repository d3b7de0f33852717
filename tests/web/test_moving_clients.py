"""The real clients while the process that runs their request is killed, on SQLite and PostgreSQL: see `moving_clients.mjs`."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import served_process
from served_process import ANSWER, PIXEL

from support import forked, npm_servers
from support.postgres_server import PostgresServer

HERE = Path(__file__).parent
CASES = ["6-stream", "7-stream", "7-answer", "agui-answer", "agui-stream"]


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    """Outside of the tests, whose calls have deadlines."""
    npm_servers.installed()


@contextmanager
def served(store: str, name: str) -> Generator[tuple[forked.Process, str]]:
    """A process of the server, and its address."""
    with forked.Process(served_process.main, store, name) as process:
        yield process, process.stdout.readline().decode().strip()


def moved(store: str) -> dict[str, Any]:
    """What the clients end with whose requests were begun by a process that is killed in the middle of their replies."""
    with ExitStack() as stack:
        dying, one = stack.enter_context(served(store, "dies"))
        _, two = stack.enter_context(served(store, "lives"))
        command = [npm_servers.node(), str(HERE / "moving_clients.mjs"), str(npm_servers.installed()), one, two, *CASES]
        client = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
        )

        def end_together() -> None:
            """End the wait for lines that a client which has failed will never cause."""
            client.wait()
            dying.kill()

        ends = threading.Thread(target=end_together)
        ends.start()
        stack.callback(ends.join)
        stack.callback(client.kill)
        begun: set[bytes] = set()
        while len(begun) < len(CASES) and (line := dying.stdout.readline()):
            begun.add(line)
        dying.kill()
        written, errors = client.communicate(timeout=100)
        assert client.returncode == 0, errors[-3_000:]
        assert len(begun) == len(CASES)
        return json.loads(written)


def check_page(message: dict[str, Any]) -> None:
    """The message is the transcript: both texts, and both calls with their results."""
    parts = message["parts"]
    assert [each["text"] for each in parts if each["type"] == "text"] == ["One moment. ", ANSWER]
    assert all(each.get("state") == "done" for each in parts if each["type"] == "text")
    removed, located = [each for each in parts if "toolCallId" in each]
    assert (removed["state"], located["state"]) == ("output-available", "output-available")
    assert located["output"] == {"city": "Kyiv"}
    assert removed["output"]["value"][0] == {"type": "text", "text": "removed /a"}
    assert PIXEL.endswith(removed["output"]["value"][1]["data"])


def check(kind: str, scene: str, report: dict[str, Any]) -> None:
    assert report["errors"] == []
    if kind == "agui":
        assert report["outcome"] == {"type": "success"}
        texts = [each["content"] for each in report["messages"] if each["role"] == "assistant" and each.get("content")]
        assert texts == ["One moment. ", ANSWER]
        results = {each["toolCallId"][-4:]: each["content"] for each in report["messages"] if each["role"] == "tool"}
        assert results["_0_1"] == '{"city":"Kyiv"}'
        assert results["_0_0"][0] == {"type": "text", "text": "removed /a"}
        if scene == "stream":
            assert len(report["lost"]) == 1  # the client has noticed that its stream was cut off
            assert ANSWER.startswith(report["cut"][-1]["content"])
            assert report["messages"][0]["content"] == "Where am I?"
            assert report["loaded"] == report["messages"]
        return
    assert report["status"] == "ready"
    user, page = report["messages"]
    assert user["parts"][0]["text"] == "Where am I?"
    check_page(page)
    if scene == "stream":
        assert len(report["lost"]) == 1  # the client has noticed that its stream was cut off
        cut = [each["text"] for each in report["cut"]["parts"] if each["type"] == "text"]
        assert cut[0] == "One moment. "
        assert ANSWER.startswith("".join(cut[1:]))
    # Asking again is answered by a request of its own, which asks for both calls once more.
    assert [each["role"] for each in report["again"]] == ["user", "assistant"]
    again = report["again"][-1]
    assert again["id"] != page["id"]
    assert [each["text"] for each in again["parts"] if each["type"] == "text"] == ["One moment. "]


def check_all(reports: dict[str, Any]) -> None:
    assert list(reports) == CASES
    for case, report in reports.items():
        kind, _, scene = case.partition("-")
        check(kind, scene, report)


def test_clients_end_with_the_transcript_though_the_owner_was_killed(tmp_path: Path) -> None:
    check_all(moved(str(tmp_path / "toolbus.db")))


def test_the_same_holds_on_postgresql(postgres: PostgresServer) -> None:
    with postgres.database() as url:
        check_all(moved(url))
