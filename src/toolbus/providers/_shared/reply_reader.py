"""Reads an answer's body into a reply, within a size, and leaves no connection behind.

Knows HTTP responses by their few methods, which httpx2 and the older httpx have alike; no vendor, and no SDK.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol, cast

import anyio
import anyio.lowlevel

from ...protocols import Emit, SignOfLife
from ...schemas import MAX_VALUES
from .errors import ErrorTranslator
from .wire_text import TooManyValues, loads, start_of

__all__ = ["MAX_REPLY_PARTS", "Building", "Lines", "Response", "leave", "read_object", "read_reply"]

MAX_REPLY_PARTS = 10_000
"""Blocks or items of one reply, those that are no calls included: each takes a kilobyte of memory, however short."""

_DRAIN_SECONDS = 0.5  # the end of the body comes with the reply's, as a rule; without it the connection is lost
_CLOSE_SECONDS = 2.0
_SLICE_BYTES = 2**16  # a thousand small events, some 50 ms of the event loop
_FIELDS = (b"data:", b"event:", b":")  # with which events begin: some gateways stream under the name of JSON


class Response(Protocol):
    """An answer whose body is still to come."""

    @property
    def headers(self) -> Mapping[str, str]: ...
    def aiter_bytes(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...


class Lines(Protocol):
    """Splits a body into events: `EventLines` or `JsonLines`."""

    def feed(self, piece: bytes) -> list[tuple[str, bytes]]: ...
    def finish(self) -> list[tuple[str, bytes]]: ...


class Building(Protocol):
    """What puts a reply together. `done` is true once the server said that there is no more."""

    @property
    def done(self) -> bool: ...
    def feed(self, event: str, data: bytes) -> None: ...
    def whole(self, completion: Mapping[str, Any]) -> None: ...


async def read_reply(
    response: Response, reply: Building, lines: Lines, *, emit: Emit, limit_bytes: int, errors: ErrorTranslator
) -> None:
    """Feed the body's events to `reply`, or the whole body where the server did not stream; then close `response`.

    Whatever comes is a `SignOfLife` for `emit`, comments and pings included: only a server that is there sends them.
    Much that comes at once is read in slices, between which others have their turn.

    Under cancellation, and where reading fails, the connection is closed at once; after a whole reply what is left of
    the body is read for half a second, so that the connection can be used again. Raises what `reply` raises, what the
    HTTP library raises, and `ProviderRejected`, `ProviderUnavailable` and `ReplyTooLarge` for the body as such.
    """
    body = response.aiter_bytes()
    pieces: AsyncIterator[bytes] = _Slices(body, emit)
    try:
        content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type == "text/html":
            raise errors.no_such_service(content_type)
        begun = await _beginning(pieces) if content_type == "application/json" else b""
        if content_type == "application/json" and not begun.startswith(_FIELDS):
            reply.whole(await _whole_body(begun, pieces, limit_bytes, errors))
        else:
            await _events(begun, pieces, reply, lines)
    finally:
        await leave(response, body)


class _Slices:
    """A body in pieces of a bounded size. No generator: one that is left half way would have to be closed."""

    __slots__ = ("_at", "_body", "_emit", "_piece")

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
            self._emit(SignOfLife())
        start = self._at
        self._at += _SLICE_BYTES
        return self._piece[start : self._at]


async def leave(response: Response, pieces: AsyncIterator[bytes]) -> None:
    """Close `response`, and end the reading of its `pieces`. Not to be cancelled, for two seconds at most."""
    with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
        await response.aclose()
        # The HTTP library nests generators that do not close each other, and trio complains of one that is left half
        # way. Reading on after the close takes what is buffered and ends in an error in all of them.
        with contextlib.suppress(Exception):
            async for _ in pieces:
                pass


async def _beginning(pieces: AsyncIterator[bytes]) -> bytes:
    """The body's first bytes that are not blank."""
    async for piece in pieces:
        if begun := piece.lstrip():
            return begun
    return b""


async def _events(begun: bytes, pieces: AsyncIterator[bytes], reply: Building, lines: Lines) -> None:
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
    # The reply is whole: what comes after it only decides whether the connection can be used again.
    with contextlib.suppress(Exception), anyio.move_on_after(_DRAIN_SECONDS):
        async for _ in pieces:
            pass


async def _whole_body(
    begun: bytes, pieces: AsyncIterator[bytes], limit_bytes: int, errors: ErrorTranslator
) -> Mapping[str, Any]:
    """The body of a server that does not stream."""
    body = bytearray(begun)
    async for piece in pieces:
        body += piece
        if len(body) > limit_bytes:
            break
    if len(body) > limit_bytes:
        raise errors.too_large(limit_bytes)
    return read_object(bytes(body), errors, "a body")


def read_object(data: bytes, errors: ErrorTranslator, what: str) -> Mapping[str, Any]:
    """The object that the data of an event is; `what` names it in errors, as "a chunk".

    Raises `ProviderUnavailable` for anything else, and `ReplyTooLarge` for one with more values than are read.
    """
    try:
        found: Any = loads(data)
    except TooManyValues:
        raise errors.too_many(MAX_VALUES, f"values in {what}") from None
    except ValueError:
        found = None
    if not isinstance(found, Mapping):
        raise errors.unavailable(f"sent {what} that is no JSON object: {start_of(data)}")
    return cast("Mapping[str, Any]", found)
