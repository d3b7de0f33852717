"""The web example as it is started: its own routes, its users, and its end on a signal."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# The type checker does not look into examples/ for imports yet.

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from fastapi_app import create_app
from fastapi_app.app import TOOLS, runtime_from_environment
from toolbus import Runtime, SqliteStore
from toolbus.errors import ConfigurationError
from toolbus.testing import ScriptedProvider, calls, text

ROOT = Path(__file__).parents[2]
QUESTION = {"prompt": "Which colour is the harbour of Palermo painted?", "conversation_id": "c1"}


def test_each_browser_is_a_user_of_its_own() -> None:
    app = create_app(Runtime(ScriptedProvider(lambda _: text("Green."))))
    with TestClient(app) as ann:
        assert ann.post("/api/ask", json=QUESTION).status_code == 401
        assert "useChat" in ann.get("/").text
        assert ann.post("/api/ask", json=QUESTION).json()["text"] == "Green."
        bob = TestClient(app)
        bob.get("/")
        assert [len(each.get("/api/conversations").json()["conversations"]) for each in (ann, bob)] == [1, 0]
        secret = ann.cookies["visitor"]
        ann.get("/")
        assert ann.cookies["visitor"] == secret
        assert secret not in ann.get(f"/api/requests/{_newest(ann)}/events").text


def _newest(client: TestClient) -> str:
    return client.get("/api/conversations/c1").json()["requests"][0]["request_id"]


def test_its_health_is_that_of_its_runtime() -> None:
    runtime = Runtime(ScriptedProvider([]))
    with TestClient(create_app(runtime)) as client:
        assert client.get("/health").json() == {"ready": True, "reasons": []}
        assert client.portal is not None
        client.portal.call(runtime.drain)
        assert client.get("/health").status_code == 503


def test_a_question_outlives_the_server_that_asked_it(tmp_path: Path) -> None:
    steps = [calls(("send_message", {"to": "Ann", "text": "Hi."})), text("It is sent.")]

    def app() -> FastAPI:
        store = SqliteStore(tmp_path / "chat.db")
        provider = ScriptedProvider(lambda request: steps[request.round])
        return create_app(Runtime(provider, tools=TOOLS, store=store, on_approval="wait", drain_seconds=0))

    with TestClient(app()) as first:
        first.get("/")
        message = {"role": "user", "parts": [{"type": "text", "text": "Send it."}]}
        asked = first.post("/api/chat", json={"id": "c1", "messages": [message]})
        path = f"/api/requests/{asked.headers['x-request-id']}"
    with TestClient(app(), cookies=first.cookies) as second:
        (approval_id,) = re.findall(r'"approvalId":"([^"]+)"', second.get("/api/chat/c1/stream").text)
        assert second.post(f"{path}/decide", json={"id": approval_id, "approved": True}).json() == {"status": "done"}
        assert '"outcome":"completed"' in second.get(f"{path}/text").text


def test_the_pages_and_their_libraries_come_from_the_application_itself() -> None:
    with TestClient(create_app(Runtime(ScriptedProvider([])))) as client:
        for path in ("/chat.html", "/chat.js", "/agent.html", "/agent.js", "/page.css"):
            page = client.get(path)
            assert page.status_code == 200
            assert "://" not in page.text
        for name in ("use-chat.js", "ag-ui.js", "LICENSES.txt"):
            assert client.get(f"/vendor/bundled/{name}").status_code == 200


def test_without_a_key_the_extractive_provider_is_taken_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("TOOLBUS_PROVIDER", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert runtime_from_environment().provider.vendor == "extractive"
    assert "is not a language model" in caplog.text


def test_the_provider_that_the_environment_names_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLBUS_PROVIDER", "no-such-provider")
    with pytest.raises(ConfigurationError, match="no-such-provider"):
        runtime_from_environment()


def test_it_starts_as_a_module_answers_from_files_keeps_them_and_stops_on_a_signal(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("The harbour of Palermo is painted green.\n")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TOOLBUS_", "OPENAI_", "OLLAMA_"))
    }
    store = str(tmp_path / "toolbus.db")
    environment |= {"PORT": "0", "ASK_DIR": str(tmp_path), "ASK_STORE": store}
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.fastapi_app"],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    with process, process.stderr:
        try:
            address = next(
                found[0] for line in process.stderr if (found := re.search(r"http://127\.0\.0\.1:\d+", line))
            )
            with httpx2.Client(base_url=address, timeout=60, trust_env=False) as client:
                client.get("/")
                answer = client.post("/api/ask", json=QUESTION).json()
            process.send_signal(signal.SIGTERM)
            log = process.stderr.read()
        finally:
            process.kill()
    assert "**`notes.txt:1`**" in answer["text"]
    assert "1  The harbour of Palermo is painted green." in answer["text"]
    assert "Finished server process" in log
    assert "Traceback" not in log
    assert Path(store).exists()
