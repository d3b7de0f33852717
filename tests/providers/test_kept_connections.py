"""A server may close a connection that it has promised to keep, at the moment when the next request is sent over it."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import pytest
from test_provider_contract import MAKERS

from toolbus.errors import ProviderUnavailable
from toolbus.messages import UserMessage
from toolbus.protocols import ModelRequest
from toolbus.testing.wire import WireReply, WireServer

REQUEST = ModelRequest(messages=[UserMessage(content="hi")])


def answer(_request: object) -> WireReply:
    return WireReply(text="Sunny.")


def ignore(_piece: object) -> None:
    pass


class Gateway:
    """Forwards `kept` requests of each connection to a server, and closes it at the next one without an answer."""

    def __init__(self, target: int, kept: int, *, resets: bool) -> None:
        self.opened = 0
        self.closed = 0
        self._target = target
        self._kept = kept
        self._resets = resets

    async def serve(self, client: anyio.abc.SocketStream) -> None:
        self.opened += 1
        left = self._kept
        async with (
            client,
            await anyio.connect_tcp("127.0.0.1", self._target) as server,
            anyio.create_task_group() as on,
        ):
            on.start_soon(self._answer, server, client)
            async for piece in client:
                left -= piece.startswith(b"POST ")
                if left < 0:
                    self.closed += 1
                    if self._resets:
                        raw = client.extra(anyio.abc.SocketAttribute.raw_socket)
                        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
                await server.send(piece)
            on.cancel_scope.cancel()

    async def _answer(self, server: anyio.abc.SocketStream, client: anyio.abc.SocketStream) -> None:
        async for piece in server:
            await client.send(piece)


@asynccontextmanager
async def gateway(server: WireServer, *, kept: int, resets: bool = False) -> AsyncGenerator[tuple[Gateway, str]]:
    """A gateway to a server, and the URL by which the server is reached through it."""
    port = int(server.base_url.partition("//")[2].partition("/")[0].rpartition(":")[2])
    between = Gateway(port, kept, resets=resets)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, between.serve)
        own = listener.extra(anyio.abc.SocketAttribute.local_port)
        yield between, server.base_url.replace(f":{port}", f":{own}")
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("resets", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("dialect", MAKERS)
async def test_a_request_is_sent_again_where_the_kept_connection_was_closed(dialect: str, resets: bool) -> None:
    with WireServer(answer, dialect=dialect) as server:
        async with gateway(server, kept=1, resets=resets) as (between, url):
            provider: Any = MAKERS[dialect](url)
            for _ in range(3):
                reply = await provider.respond(REQUEST, ignore)
                assert reply.message.text == "Sunny."
            await provider.aclose()
        assert (between.opened, between.closed) == (3, 2)
        assert len(server.requests) == 3, "no request came to the server twice"


@pytest.mark.parametrize("resets", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("dialect", MAKERS)
async def test_a_request_over_a_new_connection_is_not_sent_again(dialect: str, resets: bool) -> None:
    with WireServer(answer, dialect=dialect) as server:
        async with gateway(server, kept=0, resets=resets) as (between, url):
            provider: Any = MAKERS[dialect](url)
            with pytest.raises(ProviderUnavailable, match="broke the connection before the reply was whole"):
                await provider.respond(REQUEST, ignore)
            await provider.aclose()
        assert (between.opened, between.closed) == (1, 1)
