"""A TCP proxy for tests of networks that fail: it can stop to forward, which nobody notices, and cut connections.

async with TcpProxy("127.0.0.1", port) as proxy:
    connect("127.0.0.1", proxy.port)
    proxy.hold()            # what is sent waits, in both directions
    proxy.forward()         # ... and arrives now
    proxy.cut()             # or never: all connections end
"""

from __future__ import annotations

from types import TracebackType

import anyio
import anyio.abc


class TcpProxy:
    """Forwards connections to one port of a host."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._scopes: set[anyio.CancelScope] = set()
        self.port = 0

    async def __aenter__(self) -> TcpProxy:
        self.forward()
        self._group = await anyio.create_task_group().__aenter__()
        self._listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self.port = self._listener.extra(anyio.abc.SocketAttribute.local_port)
        self._group.start_soon(self._listener.serve, self._serve)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)
        await self._listener.aclose()

    def hold(self) -> None:
        """Forward nothing until `forward`, and keep what is sent."""
        self._open = anyio.Event()

    def forward(self) -> None:
        """Forward what was kept, and everything from now on."""
        if "_open" not in vars(self):
            self._open = anyio.Event()
        self._open.set()

    def cut(self) -> None:
        """End all connections, and lose what was kept. New connections are forwarded."""
        for scope in self._scopes:
            scope.cancel()
        self._scopes.clear()
        self.forward()

    async def _serve(self, client: anyio.abc.SocketStream) -> None:
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                async with client, await anyio.connect_tcp(*self._target) as server, anyio.create_task_group() as group:
                    group.start_soon(self._pump, client, server, group.cancel_scope)
                    group.start_soon(self._pump, server, client, group.cancel_scope)
            except OSError:
                # The server is away: the client is disconnected.
                return
            finally:
                self._scopes.discard(scope)

    async def _pump(
        self, source: anyio.abc.SocketStream, target: anyio.abc.SocketStream, scope: anyio.CancelScope
    ) -> None:
        try:
            while True:
                data = await source.receive()
                await self._open.wait()
                await target.send(data)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            scope.cancel()
