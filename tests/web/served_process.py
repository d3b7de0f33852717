"""One process of a server: `forked.Process(served_process.main, STORE, NAME)` serves `create_app` on a store that others share.

Prints its address when it serves. The process named `dies` never ends its reply, so that it can be killed in the middle of it;
it prints the id of each request whose reply has begun. Any other process continues what is left.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import uvicorn

from toolbus import Runtime, Tool, tool
from toolbus.messages import ImagePart, TextPart
from toolbus.providers.scripted import ScriptedProvider, calls, hang, text
from toolbus.stores.postgres import PostgresStore
from toolbus.stores.sqlite import SqliteStore
from toolbus.web import create_app

PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
ANSWER = "It is gone, and you are in Київ 🌍."


@tool(needs_approval=True)
async def remove(path: str) -> list[TextPart | ImagePart]:
    """Remove a file."""
    return [TextPart(text=f"removed {path}"), ImagePart(url=PIXEL)]


LOCATE: Tool = Tool(name="locate", description="Ask.", schema={"type": "object"}, external=True)


class Model:
    """A model that asks for two calls, and then answers; in a process that `dies`, it never ends that answer."""

    vendor = "scripted"

    def __init__(self, *, dies: bool) -> None:
        self._dies = dies
        script = [calls(("remove", {"path": "/a"}), ("locate", {}), text="One moment. "), text(ANSWER, delays=0.01)]
        self._model = ScriptedProvider(lambda request: script[request.round])

    async def respond(self, request: Any, emit: Any) -> Any:
        if request.round == 1 and self._dies:
            # The reply has begun when the model hangs after its only piece.
            def noted(piece: Any) -> Any:
                found = emit(piece)
                sys.stdout.write(f"{request.request_id}\n")
                sys.stdout.flush()
                return found

            return await ScriptedProvider(lambda _: hang(after=text("It is go"))).respond(request, noted)
        return await self._model.respond(request, emit)


def runtime_of(store: str, name: str) -> Runtime:
    kind: Any = PostgresStore if store.startswith("postgres") else SqliteStore
    kept = kind(store, timeout_seconds=30)
    model: Any = Model(dies=name == "dies")
    return Runtime(
        model,
        tools=[remove, LOCATE],
        store=kept,
        on_approval="wait",
        lease_seconds=5,  # longer than a machine stands still
        inbox_poll_seconds=0.05,
        drain_seconds=0,
    )


def main(store: str, name: str) -> None:
    runtime = runtime_of(store, name)
    app = create_app(runtime, authorize=lambda _: "ann", client_tools=["locate"], heartbeat_seconds=0.2)
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(served: Any) -> AsyncGenerator[Any]:
        if name != "dies":
            await runtime.resume(watch=True)
        async with inner(served) as state:
            yield state

    app.router.lifespan_context = lifespan
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        sys.stdout.write(f"http://127.0.0.1:{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        config = uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=0)
        anyio.run(uvicorn.Server(config).serve, [listening])
