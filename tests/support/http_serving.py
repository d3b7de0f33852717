"""A real server on a real socket for tests: uvicorn on a free port of the loopback, in the test's own event loop."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

import anyio
import httpx2
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from .quick_uvicorn import QuickServer


class Serving:
    """A running server: `client` speaks to it; `left` is set whenever the application is done with a request."""

    def __init__(
        self, app: ASGIApp, client: httpx2.AsyncClient, listener: socket.socket, graceful_seconds: float
    ) -> None:
        self.client = client
        self.left = anyio.Event()
        self._app = app
        self._listener = listener
        config = uvicorn.Config(
            self._watched,
            interface="asgi3",
            lifespan="on",
            log_config=None,
            ws="none",
            timeout_graceful_shutdown=cast("int", graceful_seconds),  # any number of seconds does
        )
        self._up = anyio.Event()
        self._server = QuickServer(config, self._up.set)

    async def _watched(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            if scope["type"] == "http":
                self.left.set()

    async def run(self) -> None:
        await self._server.serve(sockets=[self._listener])

    async def wait_up(self) -> None:
        await self._up.wait()

    def stop(self) -> None:
        """Do the same as a stop signal: take no new connections, then end the lifespan."""
        self._server.stop()


@asynccontextmanager
async def serving(app: ASGIApp, *, graceful_seconds: float = 5) -> AsyncGenerator[Serving]:
    """Serve `app` inside the block. Leaving it stops the server and waits for its end.

    A server that stops waits `graceful_seconds` for open responses before it cancels them.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx2.AsyncClient(base_url=address, timeout=60, trust_env=False) as client:
            server = Serving(app, client, listener, graceful_seconds)
            async with anyio.create_task_group() as group:
                group.start_soon(server.run)
                await server.wait_up()
                try:
                    yield server
                finally:
                    server.stop()
