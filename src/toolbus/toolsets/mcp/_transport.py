"""The client of the SDK for one server, ready to be entered once, in the task that will leave it.

Adds to the SDK's transports: the last lines of a program's stderr, bounds on what comes, a callback when a connection
has ended, and the repair of messages that the SDK would refuse.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from ..._version import __version__
from ...errors import MissingExtra
from ...network import check_allowed
from ._bounds import LINES, bounded_lines
from ._repair import Repair
from ._servers import McpServer, environment_of

if TYPE_CHECKING:
    import httpx2
    import mcp

    from ._auth import Authentication

_T = TypeVar("_T")
_logger = logging.getLogger("toolbus.mcp")
# The time-out of a TCP connection and of each write, the same as in the SDK.
_CONNECT_SECONDS = 30.0
# The time for the answer to a one-way message, for which all later messages wait, and to the end of a session.
_ONE_WAY_SECONDS = 5.0
# The times that a server may ask back during a call, which its deadline bounds too.
_MAX_ROUNDS = 1_000
# The beginning of a message that is not an answer, as the SDK writes it.
_METHOD = re.compile(rb'\{"jsonrpc":"2\.0",(?:"id":[^,]*,)?"method":"([^"]*)"')
# The time to wait for the last output of a program after it has ended.
_OUTPUT_SECONDS = 0.5


def need_sdk() -> None:
    """Raise `MissingExtra` if the SDK, or the library that checks arguments, is not installed."""
    for package in ("mcp", "jsonschema-rs"):
        try:
            __import__(package.replace("-", "_"))
        except ImportError as exc:
            raise MissingExtra("mcp", package) from exc


ENDED = "the call has ended"
"""The end of the error by which the SDK ends a request after `HttpStatus.end`; no server has sent it."""


UNSENT = "it cannot be reached"
"""The beginning of the error of a request that could not be sent."""


CUT = "Connection closed: "
"""The beginning of the error of a request whose connection was cut."""


FAILED = "the sign-in failed: "
"""The beginning of the error of a request that could not be authenticated."""


NOT_YET = "the sign-in has not been completed yet"
"""The error of a call that has waited for a person who signs in."""


class SignInFailed(Exception):
    """A request was not sent, or was refused, and signing in has failed. The text has no secrets."""


class HttpStatus:
    """The HTTP status of the answer to the newest request that was sent with this as `HTTP`; 0 without an answer.

    After `end`, nothing is read for the requests that were sent with it.
    """

    code = 0
    said = ""
    """The status and its reason, such as "HTTP 429 Too Many Requests"."""

    def __init__(self) -> None:
        self._reads = set[anyio.CancelScope]()
        self._is_over = False

    def end(self) -> None:
        self._is_over = True
        for read in self._reads:
            read.cancel()

    async def read(self, receive: Callable[[], Awaitable[_T]], error: type[Exception]) -> _T:
        """Return what `receive` returns. Raises `error` after `end`."""
        with anyio.CancelScope() as read:
            self._reads.add(read)
            try:
                if not self._is_over:
                    return await receive()
            finally:
                self._reads.discard(read)
        raise error(ENDED)


HTTP: ContextVar[HttpStatus] = ContextVar("the HTTP status for the task that asks an MCP server")
"""The SDK sends each request in the context of the task that makes it, and does not report why a server refuses it."""


class LastOutput:
    """The last lines of a program: its stderr, and what is not a JSON object on its stdout.

    At most 20 lines of 500 characters are kept.
    """

    def __init__(self, server: str) -> None:
        self._lines: deque[str] = deque(maxlen=20)
        self._server = server
        self._rest = b""

    def __str__(self) -> str:
        return " | ".join(self._lines)

    def hear(self, piece: bytes) -> None:
        """Add a piece that was read, which is empty at the end."""
        *lines, self._rest = (self._rest + piece).split(b"\n") if piece else (self._rest, b"")
        for line in lines:
            self.add(line.decode("utf-8", "replace"))
        self._rest = self._rest[:500]

    def add(self, line: str) -> None:
        """Add a whole line."""
        if text := line.strip()[:500]:
            self._lines.append(text)
            _logger.debug("MCP server %s says: %s", self._server, text)


def client_for(
    server: McpServer,
    era: str,
    output: LastOutput,
    on_heard: Callable[[], None],
    on_message: Callable[[Any], None],
    on_end: Callable[[], None],
    repair: Repair,
    authentication: Authentication | None,
    **callbacks: Any,
) -> mcp.Client:
    """Return a client for an era, which is not entered yet. `on_heard` is called for each message of the server.

    `on_message` is called with each message that no call waits for, and `on_end` when the server ends the connection.
    The other `callbacks` are those of the SDK's client.
    """
    import mcp  # noqa: PLC0415 -- an extra

    async def hear(message: Any) -> None:
        on_message(message)
        await anyio.lowlevel.checkpoint()

    async def take(item: Any) -> Any:
        error = getattr(getattr(item, "message", None), "error", None)
        if error is None or not error.message.endswith(ENDED):
            on_heard()
        return await repair(item)

    repair.version = lambda: client.protocol_version

    if server.connect is not None:
        target = server.connect()
        if hasattr(target, "__aenter__"):
            target = _watched(target, on_end, take)
    elif server.url is not None:
        target = _watched(_http(server, server.url, authentication, repair), on_end, take)
    else:
        target = _watched(_stdio(server, output, on_end), on_end, take)
    # The SDK's cache is not used, because a list is requested only if it may have changed.
    client = mcp.Client(
        target,
        mode=era,
        client_info=mcp.types.Implementation(name="toolbus", version=__version__),
        message_handler=hear,
        cache=None,
        input_required_max_rounds=_MAX_ROUNDS,
        **callbacks,
    )
    return client


# ------------------------------------------------------------------------------------------------------ programs


@asynccontextmanager
async def _stdio(server: McpServer, output: LastOutput, on_end: Callable[[], None]) -> AsyncGenerator[Any]:
    from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: PLC0415 -- an extra

    parameters = StdioServerParameters(
        command=server.command or "",
        args=list(server.args),
        env=environment_of(server),
        cwd=server.cwd,
        encoding=LINES,
        # Some programs print other bytes beside their answers; without this one such byte would end the connection.
        encoding_error_handler="replace",
    )

    def give_up(why: str) -> None:
        output.add(why)
        on_end()

    async with _stderr_pipe(output) as errlog:
        # Our copy of the writing end is closed, so that the reader sees the end when the program ends.
        with contextlib.ExitStack() as ours:
            file = ours.enter_context(os.fdopen(errlog, "w"))
            ours.enter_context(bounded_lines(server.max_response_bytes, give_up, output.add))
            async with stdio_client(parameters, errlog=file) as streams:
                ours.close()
                yield streams


@asynccontextmanager
async def _stderr_pipe(output: LastOutput) -> AsyncGenerator[int]:
    """Yield a file descriptor for a program's stderr. Its own task reads what the program writes there."""
    if sys.platform == "win32":
        # No event loop can wait for pipes on Windows.
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
                    output.hear(piece)
        finally:
            heard.set()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(hear)
            try:
                yield writing
            finally:
                # The wait is bounded, because a child of the program may keep its stderr open.
                with anyio.move_on_after(_OUTPUT_SECONDS, shield=True):
                    await heard.wait()
                group.cancel_scope.cancel()
    finally:
        os.close(reading)


# ---------------------------------------------------------------------------------------------------------- HTTP


def method_of(request: httpx2.Request) -> bytes:
    """Return the method of the message in a request; empty for an answer to a question of the server."""
    # Such an answer may have a field of that name.
    found = _METHOD.match(request.content)
    return found[1] if found else b""


def is_one_way(request: httpx2.Request) -> bool:
    """Return whether a request has a notification or an answer, for which the server has no result."""
    method = method_of(request)
    return request.method == "POST" and (not method or method.startswith(b"notifications/"))


@asynccontextmanager
async def _http(
    server: McpServer, url: str, authentication: Authentication | None, repair: Repair
) -> AsyncGenerator[Any]:
    import httpx2  # noqa: PLC0415 -- the SDK's own
    from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415 -- an extra

    from ._http_bounds import Client, bounding  # noqa: PLC0415 -- an extra

    check_allowed("mcp", str(httpx2.URL(url).copy_with(userinfo=b"", query=None, fragment=None)))

    def note(request: httpx2.Request, code: int, said: str) -> None:
        status = HTTP.get(None)
        if status is not None and method_of(request):
            status.code, status.said = code, said

    async def prepare(request: httpx2.Request) -> None:
        note(request, 0, "")
        # Only a call and the stream of a GET request may take their time.
        if request.method == "DELETE" or is_one_way(request):
            request.extensions["timeout"] |= {"connect": _ONE_WAY_SECONDS, "read": _ONE_WAY_SECONDS}
        await anyio.lowlevel.checkpoint()

    def keep(response: httpx2.Response) -> None:
        note(response.request, response.status_code, f"HTTP {response.status_code} {response.reason_phrase}".rstrip())

    # It takes 90 ms and more to read the certificates of the authorities.
    certificates = await anyio.to_thread.run_sync(httpx2.create_ssl_context)
    # Calls have their own deadlines, so their reads have none. Connections are not limited, because a call that waits
    # too long for one would end all calls. The SDK follows redirects only within the origin.
    async with (
        contextlib.nullcontext() if authentication is None else authentication.opened(certificates) as auth,
        Client(
            auth=auth,
            verify=certificates,
            headers={"accept-encoding": "identity", **server.headers},
            timeout=httpx2.Timeout(_CONNECT_SECONDS, read=None),
            limits=httpx2.Limits(),
            event_hooks={
                "request": [prepare],
                "response": [bounding(server.max_response_bytes, keep, repair.shortened)],
            },
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=None) as streams,
    ):
        yield streams


# ---------------------------------------------------------------------------------------------------- connections


@asynccontextmanager
async def _watched(
    transport: AbstractAsyncContextManager[Any], on_end: Callable[[], None], take: Callable[[Any], Awaitable[Any]]
) -> AsyncGenerator[Any]:
    async with transport as (reading, writing):
        yield _Watched(reading, on_end, take), writing


class _Watched:
    """The stream that the client reads. It calls `on_end` at its end, and repairs each item."""

    def __init__(self, stream: Any, on_end: Callable[[], None], take: Callable[[Any], Awaitable[Any]]) -> None:
        self._stream = stream
        self._on_end = on_end
        self._take = take

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        with self._reporting_end():
            item = await self._stream.receive()
        return await self._take(item)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> Any:
        with self._reporting_end():
            item = await self._stream.__anext__()
        return await self._take(item)

    async def __aenter__(self) -> _Watched:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> Any:
        return await self._stream.__aexit__(*exc_info)

    @contextlib.contextmanager
    def _reporting_end(self) -> Generator[None]:
        try:
            yield
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, StopAsyncIteration):
            self._on_end()
            raise
