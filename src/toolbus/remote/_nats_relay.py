"""The relay over NATS: see `NatsRelay`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from ._nats_connection import Broker, Connection
from ._transport import Unavailable

_LOST_SECONDS = 0.05


class NatsRelay:
    """Carries events and wake-ups between the processes of one store, over core NATS, which keeps nothing.

        Runtime(provider, store=PostgresStore(dsn), relay=NatsRelay("nats://broker:4222"))

    All processes that share the store have the same `url` and `prefix`. Each listens on `<prefix>.relay.<name>`, and
    the broker's credentials decide who may read and write there. While the server is away, readers continue with the
    store. Entering a runtime or client with it raises `ConfigurationError` if no server answers, or if it refuses the
    credentials, and on trio; making it raises `MissingExtra` without nats-py.
    """

    def __init__(self, url: str, *, prefix: str = "toolbus") -> None:
        self._broker = Broker(url, prefix, "")

    @asynccontextmanager
    async def connected(self, address: str, heard: Callable[[bytes], None]) -> AsyncGenerator[_Link]:
        """Connect under an address: see `Relay`."""
        async with self._broker.connected(with_streams=False) as connection:

            async def on_message(message: Any) -> None:
                heard(message.data)

            await connection.client.subscribe(self._broker.relay(address), cb=on_message)
            await connection.client.flush()
            yield _Link(self._broker, connection)


class _Link:
    def __init__(self, broker: Broker, connection: Connection) -> None:
        self._broker, self._connection = broker, connection

    @property
    def max_bytes(self) -> int:
        return self._connection.max_bytes()

    async def send(self, address: str, body: bytes) -> None:
        try:
            await self._connection.tell(self._broker.relay(address), body)
        except Unavailable:
            # The driver's buffer is full, while it reconnects: the message is lost. Do not come back at once.
            await anyio.sleep(_LOST_SECONDS)
