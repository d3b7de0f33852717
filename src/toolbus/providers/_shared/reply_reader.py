"""Reading of an answer's body into a reply, within a size, without leaving a connection open.

The module knows the few methods of HTTP responses that httpx2 and the older httpx have in common; no vendor, no SDK.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

import anyio
import anyio.lowlevel

from ...protocols import Emit, Heartbeat
from .reply_parts import ReplyParts, read_object
from .stream_events import Lines

# The end of the body normally comes together with the end of the reply. Without it, the connection cannot be reused.
_DRAIN_SECONDS = 0.5
_CLOSE_SECONDS = 2.0
_SLICE_BYTES = 2**16  # about a thousand small events, or 50 ms of the event loop
_FIELDS = (b"data:", b"event:", b":")  # the beginnings of events; some gateways stream with the content type of JSON


class Response(Protocol):
    """An HTTP answer whose body is still to come."""

    @property
    def headers(self) -> Mapping[str, str]: ...
    def aiter_bytes(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...


async def read_reply(response: Response, reply: ReplyParts, lines: Lines, emit: Emit) -> None:
    """Feed the body's events to `reply`, or the whole body if the server did not stream; then close `response`.

    Every piece of the body, also a comment or a ping, is a `Heartbeat` for `emit`: only a running server sends it. A
    large piece is read in slices, between which other tasks can run.

    Under cancellation, and when reading fails, the connection is closed at once; after a whole reply the rest of the
    body is read for up to half a second, so that the connection can be reused. Raises what `reply` raises, what the
    HTTP library raises, and `ProviderRejected`, `ProviderUnavailable` and `ReplyTooLarge` for the body itself.
    """
    body = response.aiter_bytes()
    pieces: AsyncIterator[bytes] = _Slices(body, emit)
    try:
        content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type == "text/html":
            raise lines.errors.wrong_service(content_type)
        begun = await _beginning(pieces) if content_type == "application/json" else b""
        if content_type == "application/json" and not begun.startswith(_FIELDS):
            reply.whole(await _whole_body(begun, pieces, lines))
        else:
            await _events(begun, pieces, reply, lines)
    finally:
        await close_response(response, body)


class _Slices:
    """A body in pieces of a bounded size. It is not a generator, which would have to be closed if left half-way."""

    def __init__(self, body: AsyncIterator[bytes], emit: Emit) -> None:
        self._body = body
        self._emit = emit
        self._piece = b""
        self._at = 0

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._at < len(self._piece):
            await anyio.lowlevel.checkpoint()
        else:
            self._piece, self._at = await self._body.__anext__(), 0
            self._emit(Heartbeat())
        start = self._at
        self._at += _SLICE_BYTES
        return self._piece[start : self._at]


async def close_response(response: Response, pieces: AsyncIterator[bytes]) -> None:
    """Close `response`, and end the iteration over its `pieces`. Shielded from cancellation for at most two seconds."""
    with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
        await response.aclose()
        # The HTTP library nests generators that do not close each other, and trio complains about one that is left
        # half-way. Reading after the close takes the buffered pieces, and then ends all generators with an error.
        with contextlib.suppress(Exception):
            async for _ in pieces:
                pass


async def _beginning(pieces: AsyncIterator[bytes]) -> bytes:
    """Return the first piece of the body that is not blank, without the blanks at its start."""
    async for piece in pieces:
        if begun := piece.lstrip():
            return begun
    return b""


async def _events(begun: bytes, pieces: AsyncIterator[bytes], reply: ReplyParts, lines: Lines) -> None:
    for event, data in lines.feed(begun):
        reply.feed(event, data)
    if not reply.done:
        async for piece in pieces:
            for event, data in lines.feed(piece):
                reply.feed(event, data)
            if reply.done:
                break
        else:
            for event, data in lines.finish():
                reply.feed(event, data)
            return
    # The reply is whole. The rest of the body only decides whether the connection can be reused.
    with contextlib.suppress(Exception), anyio.move_on_after(_DRAIN_SECONDS):
        async for _ in pieces:
            pass


async def _whole_body(begun: bytes, pieces: AsyncIterator[bytes], lines: Lines) -> Mapping[str, Any]:
    """Return the object in the body of a server that does not stream."""
    body = bytearray(begun)
    lines.bound(len(body))
    async for piece in pieces:
        body += piece
        lines.bound(len(body))
    return read_object(bytes(body), lines.errors, "a body")
