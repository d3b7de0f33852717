"""The lifetime of a runtime in an application: entered first, drained while the server stops, its responses whole."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from uvicorn.lifespan.on import LifespanOn

from support.http_serving import serving
from toolbus import Runtime
from toolbus.errors import StoreUnavailable
from toolbus.providers.scripted import ScriptedProvider, hang, text
from toolbus.stores.memory import MemoryStore
from toolbus.stores.sqlite import SqliteStore
from toolbus.web import EventsResponse, RuntimeMiddleware, TextResponse, VercelResponse, create_app


def app_around(runtime: Runtime, **options: Any) -> Starlette:
    """An application whose own lifespan opens a task group, as many do, and notes what it finds."""
    order: list[str] = []

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncGenerator[None]:
        order.append(f"opened, {runtime.health().ready}")
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            yield
            group.cancel_scope.cancel()
        order.append(f"closed, {runtime.health().ready}")

    async def ask(_http: Request) -> Response:
        return JSONResponse((await runtime.start("hi").result()).summary())

    async def stream(http: Request) -> Response:
        kinds = {"events": EventsResponse, "text": TextResponse, "vercel": VercelResponse}
        return kinds[http.path_params["kind"]](runtime.start("hi"))

    app = Starlette(
        routes=[Route("/ask", ask), Route("/stream/{kind}", stream)],
        lifespan=lifespan,
        middleware=[Middleware(RuntimeMiddleware, runtime=runtime, **options)],
    )
    app.state.order = order
    return app


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_runtime_is_entered_before_its_application_and_left_before_it(backend: Any):
    runtime = Runtime(ScriptedProvider(lambda _: text("Hello.")))
    app = app_around(runtime)
    for _ in range(2):  # The application may be served again.
        with TestClient(app, backend=backend) as client:
            assert client.get("/ask").json()["text"] == "Hello."
    assert app.state.order == ["opened, True", "closed, False"] * 2
    assert runtime.statistics().running == 0


async def bare(_scope: Any, receive: Any, send: Any) -> None:
    """An application without a framework, which answers each message that it reads."""
    for _ in range(2):
        message = await receive()
        await send({"type": f"{message['type']}.complete"})


def bare_around(runtime: Runtime) -> RuntimeMiddleware:
    return RuntimeMiddleware(bare, runtime=runtime)


@pytest.mark.parametrize("make", [app_around, bare_around])
async def test_a_server_reads_that_its_application_has_started_and_stopped(make: Any):
    sent: list[str] = []
    comes = ["lifespan.startup", "lifespan.shutdown"]

    async def receive() -> dict[str, Any]:
        return {"type": comes.pop(0)}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await make(Runtime(ScriptedProvider([])))({"type": "lifespan", "state": {}}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_an_application_that_fails_after_its_start_leaves_the_runtime():
    runtime = Runtime(ScriptedProvider([]))

    async def fails(_scope: Any, receive: Any, _send: Any) -> None:
        await receive()
        assert runtime.health().ready
        raise ValueError("no database")

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(_message: Any) -> None:
        """Nobody reads it."""

    with anyio.fail_after(60), pytest.raises(ValueError, match="no database"):
        await RuntimeMiddleware(fails, runtime=runtime)({"type": "lifespan"}, receive, send)
    assert not runtime.health().ready


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_runtime_that_cannot_be_entered_or_left_fails_the_server(backend: Any, wrapped: bool):
    class Fails(MemoryStore):
        opens = False

        async def open(self) -> None:
            if not self.opens:
                raise StoreUnavailable("the disk is away")

        async def aclose(self) -> None:
            went = StoreUnavailable("the disk went away")
            raise ExceptionGroup("closing", [went]) if wrapped and self.opens else went

    store = Fails()
    app = app_around(Runtime(ScriptedProvider([]), store=store))
    with pytest.raises(StoreUnavailable, match="the disk is away"), TestClient(app, backend=backend):
        pass
    assert app.state.order == []
    store.opens = True
    with pytest.raises(StoreUnavailable, match="the disk went away"), TestClient(app, backend=backend):
        pass


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # uvicorn runs on asyncio only
async def test_uvicorn_does_not_serve_an_application_whose_runtime_cannot_be_entered(
    tmp_path: Path, anyio_backend: str
):
    runtime = Runtime(ScriptedProvider([]), store=SqliteStore(tmp_path / "nowhere" / "requests.db"))
    config = uvicorn.Config(create_app(runtime, authorize=lambda _: "ann"), log_config=None)
    config.load()
    lifespan = LifespanOn(config)
    assert config.lifespan_class is LifespanOn  # by default, it serves applications whose lifespan only raises
    await lifespan.startup()
    assert lifespan.should_exit
    assert not [each for each in threading.enumerate() if each.name.startswith("toolbus requests.db")]


def test_a_mounted_application_leaves_the_runtime_to_the_outer_one():
    runtime = Runtime(ScriptedProvider(lambda _: text("Hello.")))
    inner = create_app(runtime, authorize=lambda _: "ann")
    outer = Starlette(routes=[Mount("/api", inner)], middleware=[Middleware(RuntimeMiddleware, runtime=runtime)])
    with TestClient(outer) as client:
        assert client.post("/api/ask", json={"prompt": "hi"}).json()["text"] == "Hello."
    with TestClient(Starlette(routes=[Mount("/api", inner)])) as client:
        assert client.post("/api/ask", json={"prompt": "hi"}).status_code == 503


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # uvicorn runs on asyncio only
@pytest.mark.parametrize("kind", ["events", "text", "vercel"])
async def test_a_stopping_server_ends_each_stream_with_the_ending_of_its_request(kind: str, anyio_backend: str):
    runtime = Runtime(ScriptedProvider(lambda _: hang(after=text("I am beg"))), drain_seconds=0)
    async with (
        serving(app_around(runtime), graceful_seconds=0) as server,
        server.client.stream("GET", f"/stream/{kind}") as response,
    ):
        lines = response.aiter_lines()
        with anyio.fail_after(60):
            while '"I' not in await anext(lines):
                pass
            server.stop()
            rest = [each async for each in lines if each.startswith("data: {")]
    last = json.loads(rest[-1].removeprefix("data: "))
    assert last.get("type", last.get("outcome")) in {"request_cancelled", "cancelled", "abort"}


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_answer_that_is_waited_for_comes_while_the_server_stops(anyio_backend: str):
    runtime = Runtime(ScriptedProvider(lambda _: hang()), drain_seconds=0)
    found: list[Any] = []
    async with serving(app_around(runtime), graceful_seconds=0) as server, anyio.create_task_group() as group:

        async def ask() -> None:
            found.append((await server.client.get("/ask")).json())

        group.start_soon(ask)
        with anyio.fail_after(60):
            while not runtime.statistics().running:
                await anyio.lowlevel.checkpoint()
            server.stop()
    assert [each["outcome"] for each in found] == ["cancelled"]


async def test_a_client_that_never_reads_holds_a_stopping_server_only_for_a_while():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await (bare(scope, receive, send) if scope["type"] == "lifespan" else send({"type": "http.response.start"}))

    answered: list[str] = []
    has_started, responds = anyio.Event(), anyio.Event()
    comes = ["lifespan.startup", "lifespan.shutdown"]

    async def receive() -> dict[str, Any]:
        if len(comes) == 1:
            await responds.wait()
        return {"type": comes.pop(0)}

    async def answer(message: Any) -> None:
        answered.append(message["type"])
        has_started.set()

    async def send(_message: Any) -> None:
        responds.set()
        await anyio.sleep_forever()

    middleware = RuntimeMiddleware(app, runtime=Runtime(ScriptedProvider([])), end_seconds=0.05)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(middleware, {"type": "lifespan"}, receive, answer)
            await has_started.wait()
            await middleware({"type": "http"}, receive, send)
    assert answered == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_answer_that_another_process_continues_is_not_reported_as_cancelled(anyio_backend: str):
    store = MemoryStore(journal=True)
    runtime = Runtime(ScriptedProvider(lambda _: hang()), store=store, drain_seconds=0)
    found: list[httpx2.Response] = []
    async with (
        serving(create_app(runtime, authorize=lambda _: "ann"), graceful_seconds=0) as server,
        anyio.create_task_group() as group,
    ):

        async def ask() -> None:
            found.append(await server.client.post("/ask", json={"prompt": "hi"}))

        group.start_soon(ask)
        with anyio.fail_after(60):
            while not runtime.statistics().running:
                await anyio.lowlevel.checkpoint()
            server.stop()
    (answer,) = found
    assert (answer.status_code, [*answer.json()]) == (503, ["error"])
    assert answer.json()["error"] == "I stopped here because the work continues elsewhere."
    journal: Any = store.journal
    record = await journal.request(answer.headers["x-request-id"])
    assert record.ending is None
