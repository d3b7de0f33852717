"""Server-sent events: toolbus events and text as frames, and a response that keeps the connection alive.

This module knows HTTP and sessions; the routes are in `app`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

import anyio
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from toolbus import RequestSession
from toolbus.bus import Subscription
from toolbus.errors import SubscriptionOverflow
from toolbus.events import SubscriberLagged, encode


def frame(event: str, data: bytes, event_id: int | None = None) -> bytes:
    """One event on the wire. `data` is JSON, so it has no line break in it."""
    head = b"" if event_id is None else b"id: %d\n" % event_id
    return head + b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"


async def event_frames(events: Subscription) -> AsyncGenerator[bytes]:
    """The events of one request. Ids count them from 1, including missed ones, so that a jump in the ids is a gap.

    A client that reads too slowly misses signals such as text deltas, and `subscriber_lagged` says how many. Facts are
    never dropped: if it is too slow even for those, `stream_overflow` is the last frame.
    """
    number = 0
    async with events:
        try:
            async for event in events:
                number += event.count if isinstance(event, SubscriberLagged) else 1
                yield frame(event.type, encode(event, default=str), number)
        except SubscriptionOverflow as exc:
            yield frame("stream_overflow", json.dumps({"error": str(exc)}).encode(), number)


async def text_frames(session: RequestSession) -> AsyncGenerator[bytes]:
    """The model's text as it arrives, then `end` with the outcome: a stream without it was cut off."""
    async for piece in session.text():
        yield frame("text", json.dumps({"text": piece}).encode())
    result = await session.result()
    ending = {"request_id": result.request_id, "outcome": result.outcome, "reason": result.reason}
    yield frame("end", json.dumps(ending).encode())


async def until_disconnected(receive: Receive) -> None:
    """Return once the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStreamResponse(StreamingResponse):
    """A response that sends `frames`, and a comment whenever nothing was sent for `heartbeat_seconds`.

    Heartbeats keep proxies from closing a quiet connection, and detect that a client has vanished. `on_close` is called
    however the sending ends: after the last frame, when the client disconnects, or when the server gives up.

    This class sends by itself, because the base class leaves an async generator open when a client disconnects, and
    Python closes it only at some later time. Here, the effects of a disconnect follow at once.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes],
        *,
        heartbeat_seconds: float,
        on_close: Callable[[], object],
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(frames, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers})
        self._frames = frames
        self._heartbeat_seconds = heartbeat_seconds
        self._on_close = on_close
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 -- ASGI's
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch, receive, group.cancel_scope)
                await self._send_all(send)
                group.cancel_scope.cancel()
        except* OSError:  # servers of ASGI 2.4 raise it in `send` when the client has disconnected
            pass
        finally:
            self._on_close()

    async def _watch(self, receive: Receive, sending: anyio.CancelScope) -> None:
        await until_disconnected(receive)
        sending.cancel()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._sent_at = anyio.current_time()
        async with aclosing(self._frames) as frames, anyio.create_task_group() as heart:
            heart.start_soon(self._beat, send)
            async for each in frames:
                await self._send(send, each)
            heart.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _beat(self, send: Send) -> None:
        while True:
            await anyio.sleep_until(self._sent_at + self._heartbeat_seconds)
            if anyio.current_time() >= self._sent_at + self._heartbeat_seconds:
                await self._send(send, b": nothing happens\n\n")

    async def _send(self, send: Send, body: bytes) -> None:
        message: dict[str, Any] = {"type": "http.response.body", "body": body, "more_body": True}
        await send(message)
        self._sent_at = anyio.current_time()
