"""The application of `create_app` over a real socket: clients that leave, and a server that stops."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest

from support.http_serving import Serving, serving
from toolbus import Runtime
from toolbus.events import RequestCancelled, RequestCompleted
from toolbus.providers.scripted import ScriptedProvider, calls, text
from toolbus.web import create_app

pytestmark = pytest.mark.anyio
PROMPT = {"prompt": "Look outside."}
CHAT = {"id": "c1", "messages": [{"role": "user", "parts": [{"type": "text", "text": "Look outside."}]}]}
AGENT = {"threadId": "c1", "runId": "r", "messages": [{"id": "u", "role": "user", "content": "Look outside."}]}
BODIES: dict[str, Any] = {"/ask/events": PROMPT, "/ask/text": PROMPT, "/chat": CHAT, "/agent": AGENT}


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


def gated(gate: Gate, **options: Any) -> Runtime:
    script = [calls(("look_outside", {}), text="I will look. "), text("Sunny.")]
    return Runtime(ScriptedProvider(lambda request: script[request.round]), tools=[gate.look_outside], **options)


def app_of(runtime: Runtime, **options: Any) -> Any:
    return create_app(runtime, authorize=lambda http: http.headers.get("x-user", "ann"), **options)


@asynccontextmanager
async def streaming(server: Serving, path: str) -> AsyncGenerator[httpx2.Response]:
    async with server.client.stream("POST", path, json=BODIES[path]) as response:
        assert response.status_code == 200
        yield response


async def data_of(response: httpx2.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) async for line in response.aiter_lines() if line.startswith("data: {")]


@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_the_policy_says_what_becomes_of_a_request_whose_client_leaves(path: str, cancels: bool):
    gate = Gate()
    runtime = gated(gate)
    kinds = (RequestCancelled, RequestCompleted)
    async with serving(app_of(runtime, cancel_on_disconnect=cancels)) as server, runtime.bus.subscribe(*kinds) as ends:
        async with streaming(server, path):
            await gate.reached.wait()
        with anyio.fail_after(30):
            await server.left.wait()
            gate.open()
            ending = await anext(ends)
        assert isinstance(ending, RequestCancelled if cancels else RequestCompleted)
        assert len(runtime.bus.statistics().subscriptions) == 1  # the stream's own one was let go


@pytest.mark.parametrize("cancels", [False, True])
async def test_a_client_that_waits_for_the_result_may_leave_too(cancels: bool):
    gate = Gate()
    runtime = gated(gate)
    kinds = (RequestCancelled, RequestCompleted)
    async with serving(app_of(runtime, cancel_on_disconnect=cancels)) as server, runtime.bus.subscribe(*kinds) as ends:
        async with anyio.create_task_group() as leaving:
            leaving.start_soon(lambda: server.client.post("/ask", json=PROMPT))
            await gate.reached.wait()
            leaving.cancel_scope.cancel()
        with anyio.fail_after(30):
            await server.client.get("/conversations")  # once it is answered, the server has seen the other one go
            gate.open()
            assert isinstance(await anext(ends), RequestCancelled if cancels else RequestCompleted)


async def test_many_rejoin_at_once_and_strangers_do_not():
    gate = Gate()
    runtime = gated(gate)
    async with serving(app_of(runtime)) as server:
        async with streaming(server, "/chat") as response:
            request_id = response.headers["x-request-id"]
            await gate.reached.wait()
        found: dict[str, list[Any]] = {"events": [], "text": [], "chat": []}
        refused: list[int] = []

        async def rejoin(kind: str) -> None:
            path = "/chat/c1/stream" if kind == "chat" else f"/requests/{request_id}/{kind}"
            async with server.client.stream("GET", path) as again:
                found[kind].append(await data_of(again))

        async def intrude() -> None:
            strange = await server.client.get(f"/requests/{request_id}/events", headers={"x-user": "bob"})
            refused.append(strange.status_code)

        async with anyio.create_task_group() as group:
            for _ in range(10):
                for kind in found:
                    group.start_soon(rejoin, kind)
                group.start_soon(intrude)
            with anyio.fail_after(60):
                while len(runtime.bus.statistics().subscriptions) < 30:
                    await anyio.lowlevel.checkpoint()
            gate.open()
    assert refused == [404] * 10
    texts = ["".join(each.get("text", "") for each in one) for one in found["text"]]
    assert texts == ["I will look. \n\nSunny."] * 10
    assert all(one[-1]["type"] == "request_completed" for one in found["events"])
    said = ["".join(each.get("delta", "") for each in one if each["type"] == "text-delta") for one in found["chat"]]
    assert said == ["I will look. Sunny."] * 10


async def test_requests_that_run_on_without_a_client_are_drained():
    gate = Gate()
    runtime = gated(gate)
    ends: list[RequestCompleted | RequestCancelled] = []
    runtime.bus.connect((RequestCompleted, RequestCancelled), ends.append)
    async with serving(app_of(runtime)) as server:
        async with streaming(server, "/ask/events"):
            await gate.reached.wait()
        with anyio.fail_after(30):
            await server.left.wait()
            server.stop()
            while runtime.health().ready:
                await anyio.lowlevel.checkpoint()
        assert ends == []
        gate.open()
    assert [type(each) for each in ends] == [RequestCompleted]


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_that_the_server_waits_for_no_longer_ends_with_its_ending(
    path: str, caplog: pytest.LogCaptureFixture
):
    gate = Gate()
    app = app_of(gated(gate, drain_seconds=0))
    async with serving(app, graceful_seconds=0) as server, streaming(server, path) as response:
        await gate.reached.wait()
        server.stop()
        with anyio.fail_after(30):
            last = (await data_of(response))[-1]
    words = {"request_cancelled", "abort", "RUN_FINISHED", "cancelled"}
    assert words & {each for each in last.values() if isinstance(each, str)}
    assert not [each for each in caplog.records if each.exc_info]


async def test_a_stream_that_ends_while_the_runtime_drains_ends_as_it_would_have():
    gate = Gate()
    runtime = gated(gate)
    async with serving(app_of(runtime), graceful_seconds=0) as server, streaming(server, "/ask/events") as response:
        await gate.reached.wait()
        server.stop()
        with anyio.fail_after(30):
            while runtime.health().ready:
                await anyio.lowlevel.checkpoint()
            gate.open()
            assert (await data_of(response))[-1]["type"] == "request_completed"
