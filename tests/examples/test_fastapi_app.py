"""The web example over a real socket: answers, streams, disconnects, overload and shutdown."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# The type checker does not look into examples/ for imports yet.

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import anyio
import httpx2
import pytest

from fastapi_app import create_app
from fastapi_app.app import MAX_BODY_BYTES, runtime_from_environment
from support.http_serving import Serving, serving
from toolbus import Runtime, tool
from toolbus.errors import ConfigurationError
from toolbus.events import RequestCancelled, RequestCompleted
from toolbus.testing import ScriptedProvider, calls, text

ROOT = Path(__file__).parents[2]
QUESTION = {"prompt": "Weather in Paris?"}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """uvicorn runs on asyncio only."""
    return "asyncio"


class Gate:
    """A tool that waits until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self._open = anyio.Event()

    def open(self) -> None:
        self._open.set()

    async def look_outside(self) -> str:
        """Look out of the window."""
        self.reached.set()
        await self._open.wait()
        return "the sun shines"


@tool
def get_weather(city: str) -> dict[str, str]:
    """The weather in a city."""
    return {"city": city, "sky": "clear"}


def weather_runtime(**options: Any) -> Runtime:
    """Calls a tool, then answers; for any number of requests."""
    script = [calls(("get_weather", {"city": "Paris"})), text("It is clear.")]
    return Runtime(ScriptedProvider(lambda request: script[request.round]), tools=[get_weather], **options)


def gated_runtime(gate: Gate, kind: type[Runtime] = Runtime, **options: Any) -> Runtime:
    """The same with a tool that waits at the gate."""
    script = [calls(("look_outside", {}), text="I will look. "), text("Sunny.")]
    return kind(ScriptedProvider(lambda request: script[request.round]), tools=[gate.look_outside], **options)


@asynccontextmanager
async def streaming(server: Serving, path: str = "/ask/stream") -> AsyncGenerator[httpx2.Response]:
    async with server.client.stream("POST", path, json=QUESTION) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield response


async def frames_of(response: httpx2.Response) -> list[tuple[str, str, dict[str, Any]]]:
    """All frames up to the stream's end: id, event, data."""
    return [(each.id, each.event, cast("dict[str, Any]", each.json())) async for each in httpx2.EventSource(response)]


# ------------------------------------------------------------------------------------------------- answers


async def test_ask_answers_with_the_whole_result() -> None:
    async with serving(create_app(weather_runtime())) as server:
        response = await server.client.post("/ask", json=QUESTION)
    answer = response.json()
    assert response.status_code == 200
    assert (answer["outcome"], answer["text"], answer["error"]) == ("completed", "It is clear.", None)
    assert answer["provider"] == response.headers["x-provider"] == "scripted"
    assert [(each["name"], each["arguments"], each["ok"]) for each in answer["tool_calls"]] == [
        ("get_weather", {"city": "Paris"}, True)
    ]
    assert [each["role"] for each in answer["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert answer["request_id"] == response.headers["x-request-id"]


async def test_a_request_that_fails_is_no_success_and_says_why() -> None:
    async with serving(create_app(Runtime(ScriptedProvider([])))) as server:
        response = await server.client.post("/ask", json=QUESTION)
    assert response.status_code == 502
    assert response.json()["outcome"] == "failed"
    assert "the script has 0 steps" in response.json()["error"]


async def test_a_conversation_goes_on_by_its_id_and_another_one_knows_nothing_of_it() -> None:
    provider = ScriptedProvider(lambda request: text(f"{len(request.messages)} messages"))
    async with serving(create_app(Runtime(provider))) as server:
        first = (await server.client.post("/ask", json=QUESTION)).json()
        going_on = {"prompt": "And in Rome?", "conversation_id": first["conversation_id"]}
        second = (await server.client.post("/ask", json=going_on)).json()
        other = (await server.client.post("/ask", json=QUESTION)).json()
    assert [each["text"] for each in (first, second, other)] == ["1 messages", "3 messages", "1 messages"]
    assert second["conversation_id"] == first["conversation_id"] != other["conversation_id"]


PATHS = ["/ask", "/ask/stream", "/ask/text"]
JSON = {"content-type": "application/json"}
OTHER_ALPHABETS = ["\u0431\u0435\u0441\u0435\u0434\u0430 5", "\u4f1a\u8a71", "caf\u00e9", "\U0001f600", "a%2Fb/c"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("conversation_id", OTHER_ALPHABETS, ids=ascii)
async def test_a_conversations_id_may_be_in_any_alphabet_and_comes_percent_encoded(
    path: str, conversation_id: str
) -> None:
    runtime = weather_runtime()
    question = {**QUESTION, "conversation_id": conversation_id}
    async with serving(create_app(runtime)) as server, runtime.bus.subscribe(RequestCompleted) as endings:
        response = await server.client.post(path, json=question)
        assert response.status_code == 200
        assert unquote(response.headers["x-conversation-id"]) == conversation_id
        with anyio.fail_after(5):
            await anext(endings)
        again = await server.client.post("/ask", json=question)
    assert again.json()["conversation_id"] == conversation_id
    assert len(again.json()["messages"]) == 4
    assert len(await runtime.store.history(conversation_id)) == 8


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": ""}',
        b'{"prompt": " \\n\\t "}',
        b'{"prompt": "\\u200b\\ufeff\\u3000\\u0000"}',
        b'{"prompt": "\\ud83d"}',
        b'{"prompt": "\xed\xa0\x80"}',
        b'{"prompt": "Hi", "conversation_id": "\\udc00"}',
        b'{"prompt": "Hi", "conversation_id": "a\\r\\nX-Admin: yes"}',
        b'{"prompt": "Hi", "conversation_id": ""}',
        b'{"prompt": NaN}',
        b'{"prompt": "Hi", "note": NaN}',
        b'{"prompt": 1e999}',
        b'{"prompt": -Infinity}',
        b'{"prompt": ["\\udfff"]}',
        b'{"prompt": "Hi", "conversation_id": {"\\ud800": 1}}',
        b'{"prompt": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "Hi"',
        b'["Hi"]',
        b"null",
        b"",
    ],
    ids=lambda body: ascii(body)[2:30],
)
async def test_what_is_no_question_is_refused_before_anything_is_started(path: str, body: bytes) -> None:
    runtime = weather_runtime()
    async with serving(create_app(runtime)) as server:
        response = await server.client.post(path, content=body, headers=JSON)
        assert response.status_code == 422
        assert response.json()["detail"][0]["loc"][0] == "body"
        assert runtime.bus.statistics().position == 0


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("is_announced", [True, False], ids=["announced", "in pieces"])
async def test_a_body_over_the_bound_is_refused_before_anything_is_started(path: str, is_announced: bool) -> None:
    async def pieces() -> AsyncGenerator[bytes]:
        yield b'{"prompt": "'
        for _ in range(MAX_BODY_BYTES // 1024):
            yield b"a" * 1024
        yield b'"}'

    body = b"".join([each async for each in pieces()]) if is_announced else pieces()
    runtime = weather_runtime()
    async with serving(create_app(runtime)) as server:
        response = await server.client.post(path, content=body, headers=JSON)
        assert response.status_code == 413
        assert runtime.bus.statistics().position == 0
        assert (await server.client.post("/ask", json=QUESTION)).status_code == 200


async def test_the_longest_prompt_fits_into_the_bound_however_it_is_escaped() -> None:
    longest = b"\\ud83d\\ude00" * 20_000
    body = b'{"prompt": "%s", "conversation_id": "%s"}' % (longest, longest[: 12 * 200])
    async with serving(create_app(weather_runtime())) as server:
        assert (await server.client.post("/ask", content=body, headers=JSON)).status_code == 200
        longer = body.replace(b'": "', b'": "a', 1)
        assert (await server.client.post("/ask", content=longer, headers=JSON)).status_code == 422


@pytest.mark.parametrize("path", PATHS)
async def test_a_request_that_no_response_can_be_made_of_is_cancelled(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def headers_of(*_: object) -> dict[str, str]:
        raise ValueError("no headers today")

    monkeypatch.setattr("fastapi_app.app.headers_of", headers_of)
    runtime = gated_runtime(Gate())
    async with serving(create_app(runtime)) as server, runtime.bus.subscribe(RequestCancelled) as endings:
        assert (await server.client.post(path, json=QUESTION)).status_code == 500
        with anyio.fail_after(5):
            assert isinstance(await anext(endings), RequestCancelled)
    assert "no headers today" in caplog.text


# ------------------------------------------------------------------------------------------------- streams


async def test_the_stream_has_every_event_in_order_and_ends_after_the_ending() -> None:
    async with serving(create_app(weather_runtime())) as server, streaming(server) as response:
        frames = await frames_of(response)
        request_id = response.headers["x-request-id"]
    kinds = [event for _, event, _ in frames]
    assert [
        kind for kind in kinds if kind not in ("message_appended", "status_changed") and not kind.endswith("_delta")
    ] == [
        "request_started",
        "round_started",
        "model_responded",
        "tool_call_requested",
        "tool_call_started",
        "tool_call_completed",
        "round_started",
        "model_responded",
        "request_completed",
    ]
    assert kinds[-1] == "request_completed"
    facts = [int(position.partition(".")[0]) for position, _, _ in frames]
    assert facts == sorted(facts)
    assert {data["request_id"] for _, _, data in frames} == {request_id}
    assert all(data["type"] == event for _, event, data in frames)


async def test_two_streams_at_once_get_their_own_events_only() -> None:
    async with serving(create_app(weather_runtime())) as server:
        seen: list[set[str]] = []

        async def one() -> None:
            async with streaming(server) as response:
                seen.append({data["request_id"] for _, _, data in await frames_of(response)})

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)
    assert [len(ids) for ids in seen] == [1, 1]
    assert seen[0] != seen[1]


async def test_the_text_stream_has_the_text_as_it_arrives_and_then_the_end() -> None:
    gate = Gate()
    async with serving(create_app(gated_runtime(gate))) as server, streaming(server, "/ask/text") as response:
        frames = aiter(httpx2.EventSource(response))
        words = ""
        while words != "I will look. ":
            words += json.loads((await anext(frames)).data)["text"]
        await gate.reached.wait()
        gate.open()
        others = [each async for each in frames]
    assert "".join(json.loads(each.data)["text"] for each in others[:-1]) == "\n\nSunny."
    ending = {"request_id": response.headers["x-request-id"], "outcome": "completed", "reason": "", "explanation": ""}
    assert (others[-1].event, others[-1].json()) == ("end", ending)


async def test_heartbeats_are_sent_while_nothing_happens() -> None:
    gate = Gate()
    app = create_app(gated_runtime(gate), heartbeat_seconds=0.01)
    async with serving(app) as server, streaming(server) as response:
        lines = response.aiter_lines()
        with anyio.fail_after(5):
            while not (await anext(lines)).startswith(":"):
                pass
        gate.open()
        assert "event: request_completed" in [line async for line in lines]


async def test_no_heartbeat_is_sent_while_enough_happens() -> None:
    async with serving(create_app(weather_runtime(), heartbeat_seconds=60)) as server, streaming(server) as response:
        assert not [line async for line in response.aiter_lines() if line.startswith(":")]


async def test_a_client_that_was_cut_off_gets_the_rest() -> None:
    gate = Gate()
    async with serving(create_app(gated_runtime(gate))) as server:
        async with streaming(server, "/ask/stream?on_disconnect=continue") as response:
            request_id = response.headers["x-request-id"]
            frames = aiter(httpx2.EventSource(response))
            first = [await anext(frames) for _ in range(5)]
        gate.open()
        path, position = f"/requests/{request_id}/events", {"Last-Event-ID": first[-1].id}
        async with server.client.stream("GET", path, headers=position) as response:
            rest = await frames_of(response)
        async with server.client.stream("GET", path) as response:
            whole = await frames_of(response)
        assert (await server.client.get("/requests/nobody/events")).status_code == 404
    facts = [data["event_id"] for _, _, data in whole]
    seen = [json.loads(each.data)["event_id"] for each in first] + [data["event_id"] for _, _, data in rest]
    assert [each for each in seen if each in facts] == facts
    assert rest[-1][1] == "request_completed"


# ------------------------------------------------------------------------------------------------- clients that leave


@pytest.mark.parametrize("path", ["/ask/stream", "/ask/text"])
async def test_a_request_is_cancelled_when_the_client_of_its_stream_leaves(path: str) -> None:
    gate = Gate()
    runtime = gated_runtime(gate)
    async with serving(create_app(runtime)) as server, runtime.bus.subscribe(RequestCancelled) as endings:
        async with streaming(server, path):
            await gate.reached.wait()
        with anyio.fail_after(5):
            ending = await anext(endings)
    assert isinstance(ending, RequestCancelled)
    assert ending.reason == "the client went away"


@pytest.mark.parametrize("path", ["/ask/stream", "/ask/text"])
async def test_a_request_runs_on_without_its_client_when_asked_to(path: str) -> None:
    gate = Gate()
    runtime = gated_runtime(gate)
    kinds = (RequestCancelled, RequestCompleted)
    async with serving(create_app(runtime)) as server, runtime.bus.subscribe(*kinds) as endings:
        async with streaming(server, f"{path}?on_disconnect=continue"):
            await gate.reached.wait()
        with anyio.fail_after(5):
            await server.left.wait()  # the application knows that the client is gone
            gate.open()
            ending = await anext(endings)
        assert isinstance(ending, RequestCompleted)
        assert runtime.bus.statistics().subscriptions[0].name == ""  # the stream's own one was let go
        assert len(runtime.bus.statistics().subscriptions) == 1


@pytest.mark.parametrize(("query", "kind"), [("", RequestCancelled), ("?on_disconnect=continue", RequestCompleted)])
async def test_ask_without_a_stream_minds_a_client_that_leaves_too(
    query: str, kind: type[RequestCancelled | RequestCompleted]
) -> None:
    gate = Gate()
    runtime = gated_runtime(gate)
    kinds = (RequestCancelled, RequestCompleted)
    async with serving(create_app(runtime)) as server, runtime.bus.subscribe(*kinds) as endings:
        async with anyio.create_task_group() as leaving:
            leaving.start_soon(partial(server.client.post, f"/ask{query}", json=QUESTION))
            await gate.reached.wait()
            leaving.cancel_scope.cancel()
        with anyio.fail_after(5):
            await server.client.post(
                "/requests/none/cancel"
            )  # once it is answered, the server has seen the other one go
            gate.open()
            assert isinstance(await anext(endings), kind)


async def test_a_running_request_is_cancelled_by_its_id() -> None:
    gate = Gate()
    async with serving(create_app(gated_runtime(gate))) as server, streaming(server) as response:
        request_id = response.headers["x-request-id"]
        await gate.reached.wait()
        cancelled = await server.client.post(f"/requests/{request_id}/cancel")
        frames = await frames_of(response)
        again = await server.client.post(f"/requests/{request_id}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (202, "cancelling")
    assert [event for _, event, _ in frames][-1] == "request_cancelled"
    assert again.status_code == 404


# ------------------------------------------------------------------------------------------------- overload, closing


async def test_one_request_too_many_gets_503_and_when_to_come_back() -> None:
    gate = Gate()
    app = create_app(gated_runtime(gate, max_sessions=1, max_queued=0))
    async with serving(app) as server, streaming(server) as response:
        await gate.reached.wait()
        for path in ("/ask", "/ask/stream", "/ask/text"):
            refused = await server.client.post(path, json=QUESTION)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert "1 requests are running" in refused.json()["detail"]
        gate.open()
        assert (await frames_of(response))[-1][1] == "request_completed"
        accepted = await server.client.post("/ask", json=QUESTION)
        assert accepted.status_code == 200


class Watched(Runtime):
    """A runtime that tells when it begins to drain."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.draining = anyio.Event()

    async def drain(self, *, grace_seconds: float | None = None) -> int:
        self.draining.set()
        return await super().drain(grace_seconds=grace_seconds)


async def test_while_the_runtime_closes_new_requests_get_503_and_running_ones_end() -> None:
    gate = Gate()
    runtime = gated_runtime(gate)
    async with serving(create_app(runtime)) as server, streaming(server) as response:
        await gate.reached.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(runtime.drain)
            refused = await server.client.post("/ask", json=QUESTION)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            assert "is closing" in refused.json()["detail"]
            gate.open()
        assert (await frames_of(response))[-1][1] == "request_completed"


async def test_shutting_down_drains_the_requests_that_run_on_without_a_client() -> None:
    gate = Gate()
    runtime = cast("Watched", gated_runtime(gate, Watched))
    endings: list[RequestCompleted | RequestCancelled] = []
    runtime.bus.connect((RequestCompleted, RequestCancelled), endings.append)
    async with serving(create_app(runtime)) as server:
        async with streaming(server, "/ask/stream?on_disconnect=continue"):
            await gate.reached.wait()
        with anyio.fail_after(5):
            await server.left.wait()
            server.stop()
            await runtime.draining.wait()
        assert endings == []
        gate.open()
    assert [type(each) for each in endings] == [RequestCompleted]


async def test_shutting_down_lets_an_open_stream_end() -> None:
    gate = Gate()
    async with serving(create_app(gated_runtime(gate))) as server, streaming(server) as response:
        await gate.reached.wait()
        server.stop()
        gate.open()
        assert (await frames_of(response))[-1][1] == "request_completed"


@pytest.mark.parametrize(("path", "ending"), [("/ask/stream", "request_cancelled"), ("/ask/text", "end")])
@pytest.mark.parametrize("query", ["", "?on_disconnect=continue"])
async def test_a_stream_that_the_server_waits_for_no_longer_ends_with_an_ending(
    path: str, ending: str, query: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    app = create_app(gated_runtime(gate, drain_seconds=0))
    async with serving(app, graceful_seconds=0) as server, streaming(server, path + query) as response:
        await gate.reached.wait()
        server.stop()
        with anyio.fail_after(5):
            _, event, data = (await frames_of(response))[-1]
    assert (event, data["reason"]) == (ending, "the runtime is closing")
    assert "Cancel 1 running task(s)" in caplog.text
    assert not [each for each in caplog.records if each.exc_info]


async def test_an_answer_that_the_server_waits_for_no_longer_says_that_it_was_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Gate()
    app = create_app(gated_runtime(gate, drain_seconds=0))
    answers: list[httpx2.Response] = []
    async with serving(app, graceful_seconds=0) as server, anyio.create_task_group() as asking:

        async def ask() -> None:
            answers.append(await server.client.post("/ask", json=QUESTION))

        asking.start_soon(ask)
        await gate.reached.wait()
        server.stop()
    assert (answers[0].status_code, answers[0].json()["outcome"]) == (200, "cancelled")
    assert not [each for each in caplog.records if each.exc_info]


async def test_a_stream_that_ends_while_the_runtime_drains_ends_as_it_would_have() -> None:
    gate = Gate()
    runtime = cast("Watched", gated_runtime(gate, Watched))
    async with serving(create_app(runtime), graceful_seconds=0) as server, streaming(server) as response:
        await gate.reached.wait()
        server.stop()
        with anyio.fail_after(5):
            await runtime.draining.wait()
            gate.open()
            assert (await frames_of(response))[-1][1] == "request_completed"


# ------------------------------------------------------------------------------------------------- as it is started


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


def test_it_starts_as_a_module_answers_from_files_and_stops_on_a_signal(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("The harbour of Palermo is painted green.\n")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TOOLBUS_", "OPENAI_", "OLLAMA_"))
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.fastapi_app"],
        cwd=ROOT,
        env={**environment, "PORT": "0", "ASK_DIR": str(tmp_path)},
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
            asked = {"prompt": "Which colour is the harbour of Palermo painted?"}
            answer = httpx2.post(f"{address}/ask", json=asked, timeout=10, trust_env=False).json()
            process.send_signal(signal.SIGTERM)
            log = process.stderr.read()
        finally:
            process.kill()
    assert answer["provider"] == "extractive"
    assert "**`notes.txt:1`**" in answer["text"]
    assert "1  The harbour of Palermo is painted green." in answer["text"]
    assert "Finished server process" in log


SERVES_FOR_EVER = """
import anyio, uvicorn
from examples.fastapi_app import create_app
from toolbus import Runtime
from toolbus.testing import ScriptedProvider, calls

async def wait() -> None:
    "Wait for ever."
    await anyio.sleep_forever()

runtime = Runtime(ScriptedProvider([calls(("wait", {}))] * 9), tools=[wait], drain_seconds=0)
uvicorn.run(create_app(runtime), port=0, timeout_graceful_shutdown=0)
"""


def test_after_a_stop_signal_streams_have_an_ending_and_no_traceback_is_logged() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVES_FOR_EVER], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert process.stderr is not None
    with process, process.stderr:
        try:
            address = next(
                found[0] for line in process.stderr if (found := re.search(r"http://127\.0\.0\.1:\d+", line))
            )
            lines: list[str] = []
            with httpx2.stream("POST", f"{address}/ask/stream", json=QUESTION, timeout=10, trust_env=False) as response:
                for line in response.iter_lines():
                    lines.append(line)
                    if line == "event: tool_call_started":
                        process.send_signal(signal.SIGTERM)
            log = process.stderr.read()
        finally:
            process.kill()
    assert [line for line in lines if line.startswith("event: ")][-1] == "event: request_cancelled"
    assert "Finished server process" in log
    assert "Traceback" not in log
