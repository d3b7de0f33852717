"""Bounds on the responses of HTTP servers: on each body, on each event of a stream, and on what a cut one affects.

They raise errors of the classes that the SDK turns into an answer to the call.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, cast

import anyio.lowlevel
import httpx2
import orjson

from ...schemas import with_whole_characters
from ._bounds import excess
from ._transport import CUT, HTTP, UNSENT, SignInFailed, is_one_way, method_of


def bounding(
    max_bytes: int, note: Callable[[httpx2.Response], object], shorten: Callable[[bytes], Awaitable[bytes]]
) -> Callable[[httpx2.Response], Awaitable[None]]:
    """Return a hook that calls `note` with each response, and bounds what is read of the response.

    `shorten` is awaited with each message that answers a request for the list of tools.
    """

    async def unchanged(message: bytes) -> bytes:
        # The SDK reads the message at once, which takes its time too.
        await anyio.lowlevel.checkpoint()
        return message

    async def bound(response: httpx2.Response) -> None:
        note(response)
        change = shorten if method_of(response.request) == b"tools/list" else unchanged
        if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = _Events(response, max_bytes, change)
            response.headers["content-type"] = "text/event-stream"
        else:
            response.stream = _Body(response, max_bytes, change)
        await anyio.lowlevel.checkpoint()

    return bound


class Client(httpx2.AsyncClient):
    """A client that returns an error response to a request whose connection is cut, or which cannot be authenticated.

    Otherwise the SDK would end all calls to the server. Before the client is connected, there are no calls, and errors
    are raised.
    """

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request, and return the response; an error response if the connection is cut: see the class."""
        send, method = super().send, method_of(request)
        try:
            if is_one_way(request):
                return await send(request, **options)
            return await HTTP.get().read(lambda: send(request, **options), httpx2.ReadError)
        except (httpx2.TransportError, SignInFailed) as exc:
            if is_one_way(request):
                return httpx2.Response(202, request=request)
            if request.method != "POST" or method in _CONNECTING:
                raise
            code = 401 if isinstance(exc, SignInFailed) else 503
            error = _error(-32000, _failure(exc))
            return httpx2.Response(code, headers={"content-type": "application/json"}, content=error, request=request)


_CONNECTING = (b"server/discover", b"initialize")


def _failure(exc: Exception) -> str:
    if isinstance(exc, SignInFailed):
        return str(exc)
    is_unsent = isinstance(exc, httpx2.ConnectError | httpx2.ConnectTimeout)
    return (f"{UNSENT}: " if is_unsent else CUT) + (str(exc) or type(exc).__name__)


def _error(code: int, why: str) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": why}})


_MAX_ERROR_BYTES = 65_536
# The times, in ms, after which the SDK asks for the rest of a stream, whatever the server wants: with 0 the SDK would
# ask without a pause, and with a large number a request would wait for the rest long after its call has ended.
_MIN_RETRY_MS, _MAX_RETRY_MS = 250, 30_000
# The code that the SDK uses for a response that it cannot read.
_PARSE_ERROR = -32700
_CODED = "the response is compressed, which was not asked for"


class _Bounded(httpx2.AsyncByteStream):
    """The content of a response within the bounds. `change` returns what is read in place of a message."""

    def __init__(self, response: httpx2.Response, max_bytes: int, change: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._stream: Any = response.stream
        self._headers = httpx2.Headers(response.headers)
        self._request = response.request
        self._max_bytes = max_bytes
        self._change = change
        self._is_coded = response.headers.get("content-encoding", "identity").lower() != "identity"

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Body(_Bounded):
    """A body, which is read as a whole."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_coded:
            raise httpx2.StreamError(_CODED)
        body = bytearray()

        async def receive() -> None:
            nonlocal body
            async with contextlib.aclosing(aiter(self._stream)) as pieces:
                async for piece in pieces:
                    body += piece
                    if len(body) > self._max_bytes:
                        break

        try:
            await HTTP.get().read(receive, httpx2.ReadError)
        except httpx2.TransportError as exc:
            # For an exception, the SDK would log a traceback.
            body = bytearray(_error(_PARSE_ERROR, f"the response was cut: {exc}"))
        whole = with_whole_characters(bytes(body))
        if why := excess(whole, self._max_bytes):
            raise httpx2.StreamError(f"the response {why}")
        yield await self._change(self._addressed(whole))

    def _addressed(self, body: bytes) -> bytes:
        """Return an error that names no request as the answer to the one that was sent; the SDK would drop it."""
        if len(body) > _MAX_ERROR_BYTES or b'"error"' not in body or b"null" not in body:
            return body
        try:
            message: Any = orjson.loads(body)
            asked: Any = orjson.loads(self._request.content)
        except orjson.JSONDecodeError:
            return body
        is_lost = isinstance(message, dict) and cast("dict[str, Any]", message).get("id", "") is None
        return orjson.dumps({**message, "id": asked.get("id")}) if is_lost else body


class _Events(_Bounded):
    """A stream of events, each of which is read as a whole and written again."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_coded:
            raise httpx2.SSEError(_CODED)
        inner = httpx2.Response(200, headers=self._headers, stream=self._stream, request=self._request)
        events = cast("AsyncGenerator[Any]", aiter(httpx2.EventSource(inner, max_event_size=self._max_bytes)))

        async def receive() -> Any:
            async for event in events:
                return event
            return None

        async with contextlib.aclosing(events):
            while (event := await HTTP.get().read(receive, httpx2.SSEError)) is not None:
                data = with_whole_characters(event.data.encode("utf-8", "replace"))
                if why := excess(data, self._max_bytes):
                    raise httpx2.SSEError(f"an event {why}")
                fields = [f"event: {event.event}", f"id: {event.id}"]
                if event.retry is not None:
                    fields.append(f"retry: {min(max(event.retry, _MIN_RETRY_MS), _MAX_RETRY_MS)}")
                head = "".join(f"{each}\n" for each in fields).encode("utf-8", "replace")
                lines = (await self._change(data)).replace(b"\n", b"\ndata: ")
                yield head + b"data: " + lines + b"\n\n"
