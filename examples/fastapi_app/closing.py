"""Responses that end before their server does.

A server that stops waits for open responses, and then cancels those that are still open (uvicorn after
`timeout_graceful_shutdown`). That would cut a stream in the middle, and the server would log a traceback. Here a task
of the application sends each response, which the server cannot cancel: the response ends when its request ends, and
the runtime ends all requests when it drains.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["OpenResponses", "SentByOwnTask"]


class OpenResponses:
    """The tasks that send responses while the application runs."""

    def __init__(self) -> None:
        self._group: TaskGroup | None = None

    @asynccontextmanager
    async def kept(self, *, end_seconds: float) -> AsyncGenerator[None]:
        """Send responses in tasks of this block; open ones have `end_seconds` to end when the block does."""
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                yield
            finally:
                self._group = None
                group.cancel_scope.deadline = anyio.current_time() + end_seconds

    async def send(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request to its end, even if the server cancels this call."""
        if self._group is None:  # there is no lifespan, or it is over
            await app(scope, receive, send)
            return
        ended = anyio.Event()
        failures: list[Exception] = []

        async def answer() -> None:
            try:
                await app(scope, receive, send)
            except Exception as exc:
                failures.append(exc)
            finally:
                ended.set()

        self._group.start_soon(answer)
        try:
            await ended.wait()
        except anyio.get_cancelled_exc_class():
            # The server does not wait any longer. It ends the lifespan next, where the runtime drains.
            with anyio.CancelScope(shield=True):
                await ended.wait()
        if failures:
            raise failures[0]  # The server logs it.


class SentByOwnTask:
    """The ASGI middleware that sends the application's responses through `responses`."""

    def __init__(self, app: ASGIApp, responses: OpenResponses) -> None:
        self._app = app
        self._responses = responses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._responses.send(self._app, scope, receive, send)
        else:
            await self._app(scope, receive, send)
