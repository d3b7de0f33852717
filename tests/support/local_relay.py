"""A relay between the runtimes of one test, which may lose messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from random import Random

import anyio


class LocalRelay:
    """Carries messages within one process. With `loses`, that share of them is lost, chosen by `seed`."""

    def __init__(self, *, loses: float = 0.0, seed: int = 0, max_bytes: int = 1_000_000) -> None:
        self.heard: dict[str, Callable[[bytes], None]] = {}
        self.sent: list[tuple[str, bytes]] = []
        self.loses = loses
        self.hangs = False
        self.max_bytes = max_bytes
        self._random = Random(seed)

    @asynccontextmanager
    async def connected(self, address: str, heard: Callable[[bytes], None]) -> AsyncGenerator[LocalRelay]:
        self.heard[address] = heard
        yield self
        self.heard.pop(address, None)

    async def send(self, address: str, body: bytes) -> None:
        assert len(body) <= self.max_bytes
        self.sent.append((address, body))
        if self.hangs:
            await anyio.sleep_forever()
        if address in self.heard and self._random.random() >= self.loses:
            self.heard[address](body)
