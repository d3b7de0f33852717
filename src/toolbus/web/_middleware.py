"""The lifetime of a runtime inside of a web application, and responses that end before their server does.

A server that stops waits for open responses, and then cancels those that are still open (uvicorn after
`timeout_graceful_shutdown`). That would cut a stream in the middle. Here a task of the application sends each response,
which the server cannot cancel: the response ends when its request ends, and the runtime ends all requests when it
drains.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, cast

import anyio
from anyio.abc import TaskGroup

from .._option_checks import NOT_NEGATIVE, Rule, check

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    _AnyASGIApp = Callable[..., Awaitable[None]]  # Each framework has its own types for the three arguments.

IS_RUNTIME = Rule(lambda given: hasattr(given, "dispatcher") and not isinstance(given, type), "pass a Runtime")
_CAN_BE_ENTERED = Rule(lambda given: hasattr(given, "__aenter__") and not isinstance(given, type), "pass a Runtime")


class RuntimeMiddleware:
    """An ASGI middleware that enters a runtime before its application starts, and drains it when the server stops.

        app = FastAPI()
        app.add_middleware(RuntimeMiddleware, runtime=runtime)
        app = RuntimeMiddleware(Litestar(...), runtime=runtime)  # around any other ASGI application

    The runtime is entered before the application's own lifespan begins, and left before that ends, so what tools use
    may be opened there. While the server stops, running requests have the runtime's `drain_seconds`; the open responses
    end with them, each with its last frame, and clients that read slowly have `end_seconds` more. A runtime that cannot
    be entered or left fails the start or the stop of the server with its error. In an application that is mounted into
    another one, which gets no lifespan, this does nothing; add it to the outer one. The same holds for a framework that
    gives its middleware no lifespan, such as Litestar; there, put this around the whole application.
    """

    def __init__(
        self, app: _AnyASGIApp, *, runtime: AbstractAsyncContextManager[object], end_seconds: float = 5.0
    ) -> None:
        self._app = app
        self._runtime = check("runtime", runtime, _CAN_BE_ENTERED)
        self._end_seconds = check("end_seconds", end_seconds, NOT_NEGATIVE)
        self._responses: TaskGroup | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or the lifespan, as an ASGI application does."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif scope["type"] != "http" or self._responses is None:
            await self._app(scope, receive, send)
        else:
            await self._respond(self._responses, scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the lifespan of the application, with the runtime in its own task.

        The application opens task groups in the task of its lifespan, which end later than the runtime.
        """
        running = _Running(self)

        async def received() -> Message:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await running.begin(group)
                except Exception as exc:
                    # The application has not begun, so it does not report this. Without a report, a server may take
                    # the application for one without a lifespan, and serve it (uvicorn does, by default).
                    await send({"type": "lifespan.startup.failed", "message": str(exc)})
                    raise
            elif message["type"] == "lifespan.shutdown":
                await running.end()  # The application closes in the usual way, also if this has failed.
            return message

        async def sent(message: Message) -> None:
            if message["type"] == "lifespan.shutdown.complete" and running.failure is not None:
                message = {"type": "lifespan.shutdown.failed", "message": str(running.failure)}
            await send(message)

        failures: list[Exception] = []
        async with anyio.create_task_group() as group:
            try:
                await self._app(scope, received, sent)
                running.check()
            except Exception as exc:  # The task group would wrap it.
                failures.append(exc)
            finally:
                with anyio.CancelScope(shield=True):
                    await running.end()
        if failures:
            raise failures[0]

    async def run(self, entered: anyio.Event, leaves: anyio.Event) -> None:
        """Hold the runtime open until `leaves` is set, and then let responses end. Set `entered` meanwhile."""
        async with anyio.create_task_group() as responses:
            try:
                async with self._runtime:
                    self._responses = responses
                    entered.set()
                    await leaves.wait()
            finally:
                self._responses = None
                responses.cancel_scope.deadline = anyio.current_time() + self._end_seconds

    async def _respond(self, responses: TaskGroup, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request to its end, even if the server cancels this call."""
        ended = anyio.Event()
        failures: list[Exception] = []

        async def answer() -> None:
            try:
                await self._app(scope, receive, send)
            except Exception as exc:
                failures.append(exc)
            finally:
                ended.set()

        responses.start_soon(answer)
        try:
            await ended.wait()
        except anyio.get_cancelled_exc_class():
            # The server does not wait any longer. It ends the lifespan next, where the runtime drains.
            with anyio.CancelScope(shield=True):
                await ended.wait()
        if failures:
            raise failures[0]  # The server logs it.


class _Running:
    """The task that holds the runtime open."""

    def __init__(self, middleware: RuntimeMiddleware) -> None:
        self._middleware = middleware
        self._entered = anyio.Event()
        self._leaves = anyio.Event()
        self._left = anyio.Event()
        self._has_begun = False
        self.failure: Exception | None = None

    async def begin(self, group: TaskGroup) -> None:
        """Enter the runtime. Raises what entering it raises."""
        self._has_begun = True
        group.start_soon(self._run)
        await self._entered.wait()
        self.check()

    async def end(self) -> None:
        """Leave the runtime, and wait until all responses have ended."""
        self._leaves.set()
        if self._has_begun:
            await self._left.wait()

    def check(self) -> None:
        """Raise what entering or leaving the runtime has raised."""
        if self.failure is not None:
            raise self.failure

    async def _run(self) -> None:
        try:
            await self._middleware.run(self._entered, self._leaves)
        except Exception as exc:
            self.failure = exc
            while isinstance(self.failure, ExceptionGroup):  # The task group of the responses has wrapped it.
                self.failure = cast("ExceptionGroup[Exception]", self.failure).exceptions[0]
        finally:
            self._entered.set()
            self._left.set()
