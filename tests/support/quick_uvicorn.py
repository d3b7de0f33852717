"""A uvicorn that says when it is up, and that hears at once when it is to stop: uvicorn itself looks every 0.1 s."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager

import uvicorn


class QuickServer(uvicorn.Server):
    """A server that calls `up` when it is up, and leaves signals to the tests."""

    def __init__(self, config: uvicorn.Config, up: Callable[[], object]) -> None:
        super().__init__(config)
        self._up = up
        self._stops = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Do the same as a stop signal, from any thread: take no new connections, then end the lifespan."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stops.set)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the tests."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self._up()

    async def main_loop(self) -> None:
        """Wait for `stop`."""
        if not await self.on_tick(0):
            await self._stops.wait()
