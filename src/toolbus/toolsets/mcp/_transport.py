"""From a server's description to one client of the SDK's, ready to be entered: once, in the task that will leave it.

Adds to the SDK's transports what they do not have: a program's last words, bounds on HTTP responses, word of a
connection that has ended, and mending of what the SDK would refuse.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from ...errors import MissingExtra
from ...network import check_allowed
from ._repair import mended
from ._servers import McpServer, environment_of

if TYPE_CHECKING:
    import mcp

__all__ = ["LastWords", "client_for", "need_sdk"]

_logger = logging.getLogger("toolbus.mcp")
_CONNECT_SECONDS = 30.0  # of a TCP connection and for each write, as the SDK has it
_REFUSALS = (401, 403, 407, 429)  # the other 4xx are how it is found out which protocol a server speaks
_WORDS_SECONDS = 0.5  # how long what a program has said last is waited for, once it has ended


def need_sdk() -> None:
    """Raise `MissingExtra` where the SDK, or the library that checks arguments, is not installed."""
    for package in ("mcp", "jsonschema-rs"):
        try:
            __import__(package.replace("-", "_"))
        except ImportError as exc:
            raise MissingExtra("mcp", package) from exc


class LastWords:
    """The last that a program has said on its stderr, or an HTTP server by its statuses: 20 lines of 500 bytes."""

    def __init__(self, server: str) -> None:
        self._lines: deque[str] = deque(maxlen=20)
        self._server = server
        self._rest = b""

    def __str__(self) -> str:
        return " | ".join(self._lines)

    def hear(self, piece: bytes) -> None:
        """What was read; empty at the end."""
        *lines, self._rest = (self._rest + piece).split(b"\n") if piece else (self._rest, b"")
        for line in lines:
            if told := line.decode("utf-8", "replace").strip()[:500]:
                self._lines.append(told)
                _logger.debug("MCP server %s says: %s", self._server, told)
        self._rest = self._rest[:500]


def client_for(
    server: McpServer,
    words: LastWords,
    on_message: Callable[[Any], None],
    on_end: Callable[[], None],
    left_out: Callable[[str, str], None],
) -> mcp.Client:
    """A client that is not entered yet. `on_message` is told of each message that no call waits for.

    `on_end` is called when the server ends the connection, `left_out(tool, why)` for each definition that is none.
    """
    import mcp  # noqa: PLC0415 -- an extra

    async def hear(message: Any) -> None:
        on_message(message)
        await anyio.lowlevel.checkpoint()

    def mend(item: Any) -> Any:
        return mended(item, lambda: client.protocol_version, left_out)

    if server.connect is not None:
        target = server.connect()
        if hasattr(target, "__aenter__"):
            target = _watched(target, on_end, mend)
    elif server.url is not None:
        target = _watched(_http(server, server.url, words), on_end, mend)
    else:
        target = _watched(_stdio(server, words), on_end, mend)
    # No cache of the SDK's: what is listed is kept here, and every list is asked for because it may have changed.
    client = mcp.Client(target, mode=server.protocol, message_handler=hear, cache=None)
    return client


# ------------------------------------------------------------------------------------------------------ programs


@asynccontextmanager
async def _stdio(server: McpServer, words: LastWords) -> AsyncGenerator[Any]:
    from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: PLC0415 -- an extra

    parameters = StdioServerParameters(
        command=server.command or "",
        args=list(server.args),
        env=environment_of(server),
        cwd=server.cwd,
        encoding_error_handler="replace",  # what some print beside their answers; else a byte of it ends the connection
    )
    async with _ears(words) as errlog:
        with contextlib.ExitStack() as ours:  # our end, which has to be closed for the other to see the end
            file = ours.enter_context(os.fdopen(errlog, "w"))
            async with stdio_client(parameters, errlog=file) as streams:
                ours.close()
                yield streams


@asynccontextmanager
async def _ears(words: LastWords) -> AsyncGenerator[int]:
    """A file descriptor to write to, for a program's stderr. What comes is heard in a task of its own."""
    if sys.platform == "win32":  # no event loop waits for pipes there
        yield os.open(os.devnull, os.O_WRONLY)
        return
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    heard = anyio.Event()

    async def hear() -> None:
        try:
            piece = b"-"
            while piece:
                await anyio.wait_readable(reading)
                with contextlib.suppress(BlockingIOError):
                    piece = os.read(reading, 65_536)
                    words.hear(piece)
        finally:
            heard.set()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(hear)
            try:
                yield writing
            finally:
                with anyio.move_on_after(_WORDS_SECONDS, shield=True):  # a child of it may hold its stderr open
                    await heard.wait()
                group.cancel_scope.cancel()
    finally:
        os.close(reading)


# ---------------------------------------------------------------------------------------------------------- HTTP


@asynccontextmanager
async def _http(server: McpServer, url: str, words: LastWords) -> AsyncGenerator[Any]:
    import httpx2  # noqa: PLC0415 -- the SDK's own
    from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415 -- an extra

    check_allowed("mcp", str(httpx2.URL(url).copy_with(userinfo=b"", query=None, fragment=None)))
    most = server.max_response_bytes
    # Calls have deadlines of their own, so no reading has one. The SDK follows redirects within the origin alone.
    client = httpx2.AsyncClient(
        headers={"accept-encoding": "identity", **server.headers},
        timeout=httpx2.Timeout(_CONNECT_SECONDS, read=None),
        follow_redirects=False,
        event_hooks={"response": [_bounding(most, words)]},
    )
    async with client, streamable_http_client(url, http_client=client, max_sse_event_size=most) as streams:
        yield streams


def _bounding(most: int, words: LastWords) -> Callable[[Any], Any]:
    """A hook that bounds the body of each response. That of an event stream has no end; its events are bounded.

    It also keeps the statuses that say why a server does not want to talk, which the SDK does not tell.
    """
    import httpx2  # noqa: PLC0415 -- the SDK's own

    class Bounded(httpx2.AsyncByteStream):
        def __init__(self, stream: Any, problem: str) -> None:
            self._stream = stream
            self._problem = problem

        async def __aiter__(self) -> AsyncIterator[bytes]:
            left = most
            async with contextlib.aclosing(self._stream.__aiter__()) as pieces:
                async for piece in pieces:
                    left -= len(piece)
                    if left < 0 or self._problem:
                        # An error of this kind is the one that the SDK makes an answer to the call of.
                        raise httpx2.StreamError(self._problem or f"the response has more than {most} bytes")
                    yield piece

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def bound(response: httpx2.Response) -> None:
        if response.status_code in _REFUSALS or response.status_code >= 500:
            words.hear(f"HTTP {response.status_code} {response.reason_phrase}\n".encode())
        coded = response.headers.get("content-encoding", "identity").lower() != "identity"
        problem = "the response is compressed, which was not asked for" if coded else ""
        if problem or not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = Bounded(response.stream, problem)
        await anyio.lowlevel.checkpoint()

    return bound


# ---------------------------------------------------------------------------------------------------- connections


@asynccontextmanager
async def _watched(
    transport: AbstractAsyncContextManager[Any], on_end: Callable[[], None], mend: Callable[[Any], Any]
) -> AsyncGenerator[Any]:
    async with transport as (reading, writing):
        yield _Watched(reading, on_end, mend), writing


class _Watched:
    """The stream that the client reads, which tells when it has come to its end, and mends what comes."""

    def __init__(self, stream: Any, on_end: Callable[[], None], mend: Callable[[Any], Any]) -> None:
        self._stream = stream
        self._on_end = on_end
        self._mend = mend

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        with self._telling():
            return self._mend(await self._stream.receive())

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> Any:
        with self._telling():
            return self._mend(await self._stream.__anext__())

    async def __aenter__(self) -> _Watched:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> Any:
        return await self._stream.__aexit__(*exc_info)

    @contextlib.contextmanager
    def _telling(self) -> Generator[None]:
        try:
            yield
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, StopAsyncIteration):
            self._on_end()
            raise
