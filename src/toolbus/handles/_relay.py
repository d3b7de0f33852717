"""The interface for whatever carries short messages between the handles of two processes: see `Relay`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class RelayLink(Protocol):
    """One process's connection to the others. A message has at most `max_bytes`."""

    @property
    def max_bytes(self) -> int: ...

    async def send(self, address: str, body: bytes) -> None:
        """Send a message to the process of that address, if there is one. It may be lost, and no error is raised."""
        ...


class Relay(Protocol):
    """Carries messages between processes at once, and keeps none: `toolbus.remote.nats.NatsRelay`.

    Everything that counts goes through the store; what a relay loses comes from there later. Messages from one process
    to another stay in order.
    """

    def connected(self, address: str, heard: Callable[[bytes], None]) -> AbstractAsyncContextManager[RelayLink]:
        """Connect under an address, which may be any text. `heard` is called for each message to it; it does not wait.

        Entering raises `ConfigurationError` if there is no connection.
        """
        ...
