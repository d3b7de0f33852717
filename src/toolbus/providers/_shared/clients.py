"""One client of an SDK for each event loop, because connections belong to the loop that opened them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from anyio.lowlevel import RunVar

__all__ = ["Clients"]


class _Closable(Protocol):
    async def close(self) -> None: ...


ClientT = TypeVar("ClientT", bound=_Closable)


class Clients(Generic[ClientT]):
    """The clients of a provider, by event loop.

    The first client is built at once, so that wrong options are noticed early, unless a client is given.
    """

    __slots__ = ("_build", "_given", "_here", "_spare")

    def __init__(self, build: Callable[[], ClientT], *, given: ClientT | None = None) -> None:
        """Use `given`, in every loop and without ever closing it, or the clients of `build`. Raises what it raises."""
        self._build = build
        self._given = given
        self._here: RunVar[ClientT | None] = RunVar("toolbus_provider_client")
        self._spare = build() if given is None else None

    def get(self) -> ClientT:
        """Return the client of the running event loop."""
        if self._given is not None:
            return self._given
        client = self._here.get(None)
        if client is None:
            client, self._spare = self._spare or self._build(), None
            self._here.set(client)
        return client

    async def aclose(self) -> None:
        """Close the client of this event loop. Idempotent; `get` builds a new client afterwards."""
        clients = (self._here.get(None), self._spare)
        self._here.set(None)
        self._spare = None
        for client in clients:
            if client is not None:
                await client.close()
