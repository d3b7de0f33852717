"""MCP servers on sockets of this machine: the SDK's own, in a thread, and one that sends given bytes."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.abc
import uvicorn
from mcp.server import MCPServer

from .quick_uvicorn import QuickServer


class Served:
    """An `MCPServer`, or another application, with a fixed port, by default one that is free.

    `stop` and `start` are a restart.
    """

    def __init__(self, make: Callable[[], Any], port: int = 0) -> None:
        self._make = make
        self._port = port
        self._thread: threading.Thread | None = None
        self._server: QuickServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/mcp"

    def start(self) -> None:
        up = threading.Event()

        def run() -> None:  # the application is also created outside the test's event loop
            made = self._make()
            app = made.streamable_http_app() if isinstance(made, MCPServer) else made
            config = uvicorn.Config(app, port=self._port, log_config=None, ws="none", timeout_graceful_shutdown=0)
            self._server = QuickServer(config, up.set)
            self._server.run()

        self._thread = threading.Thread(target=run, name="served-mcp")
        self._thread.start()
        assert up.wait(60)
        assert self._server is not None
        self._port = self._server.servers[0].sockets[0].getsockname()[1]

    def stop(self) -> None:
        """End running requests, as a crash would."""
        if self._server is not None and self._thread is not None:
            self._server.stop()
            self._thread.join(60)
            self._thread = None


@asynccontextmanager
async def written_down(
    answer: Callable[[str], bytes | Awaitable[bytes | None]],
) -> AsyncGenerator[tuple[str, list[str]]]:
    """A server that answers each request with `answer(body)`, each on a connection of its own.

    For None it sends a piece of an answer, and then nothing until the client closes the connection.

    Yields its address, and the list of the requests' bodies.
    """
    seen: list[str] = []

    async def handle(stream: anyio.abc.SocketStream) -> None:
        # The client may close the connection at any time.
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await serve(stream)

    async def serve(stream: anyio.abc.SocketStream) -> None:
        got = b""
        while b"\r\n\r\n" not in got:
            got += await stream.receive()
        head, _, body = got.partition(b"\r\n\r\n")
        length = int(next((line.split(b":")[1] for line in head.lower().split(b"\r\n") if b"-length:" in line), 0))
        while len(body) < length:
            body += await stream.receive()
        seen.append(body.decode())
        reply = answer(body.decode())
        reply = reply if isinstance(reply, bytes) else await reply
        if reply is not None:
            await stream.send(reply)
            return
        try:
            await stream.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: wait\n\n")
            await stream.receive()
        finally:
            seen.append("closed")

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, handle)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        yield f"http://127.0.0.1:{port}/mcp", seen
        group.cancel_scope.cancel()


def response(status: str, body: bytes = b"", **headers: str) -> bytes:
    reported = {"content-type": "application/json", "connection": "close", **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in reported.items())
    return f"HTTP/1.1 {status}\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body
