"""The command `toolbus serve`: a chat page in the browser, with the tools of the command line."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import socket
import webbrowser
from collections.abc import AsyncGenerator, Callable
from typing import Any

import anyio

from ...core.plain_text import clean
from ...errors import MissingExtra
from ...web.chat import create_chat
from .._approval import connect_approval
from .._log_lines import silenced
from .._loopback import LOOPBACK, listening_on, user_name
from .._requests import Configured, configured
from .._terminal.screen import Screen

try:
    import uvicorn
except ImportError as exc:
    raise MissingExtra("web", "uvicorn") from exc

_LEAVE_SECONDS = 1
"""The time that open streams get when the server ends, before their requests have to end, too."""
_DRAIN_SECONDS = 2.0
_POLL_SECONDS = 0.1


def serve(options: argparse.Namespace, screen: Screen) -> int:
    """Serve the page until Ctrl-C, and return the exit status. Raises `ToolbusError`."""
    with (
        # Failures are raised as well.
        contextlib.nullcontext() if options.log_level else silenced("uvicorn"),
        configured(options, screen, on_approval="wait", drain_seconds=_DRAIN_SECONDS) as found,
        listening_on(options.port) as listening,
    ):
        if options.approve != "ask":
            connect_approval(found.runtime, options, screen, found.stdout)
        token = secrets.token_urlsafe()
        address = f"http://{LOOPBACK}:{listening.getsockname()[1]}/#token={token}"

        def ready() -> None:
            if not options.quiet:
                screen.report(clean(f"toolbus serve with {found.provider}; Ctrl-C ends it."))
            screen.data(address)
            if options.open:
                webbrowser.open(address)

        failures: list[Exception] = []
        lifetime = _lifetime(found, failures, lambda: server.should_exit)
        app = create_chat(found.runtime, token=token, user=user_name(), lifetime=lifetime)
        server = _Server(app, ready)
        try:
            anyio.run(server.serve, [listening])
        except KeyboardInterrupt:
            pass  # The server has ended, and raises the signal once more.
        except SystemExit:  # uvicorn raises this if the page's lifetime cannot begin.
            if not failures:
                raise
        if failures:
            raise failures[0]
    return 0


class _Server(uvicorn.Server):
    """A server that calls `ready` once it serves."""

    def __init__(self, app: Any, ready: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app, log_config=None, lifespan="on", ws="none", timeout_graceful_shutdown=_LEAVE_SECONDS
        )
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        if self.started and not self.should_exit:
            self._ready()


@contextlib.asynccontextmanager
async def _lifetime(
    found: Configured, failures: list[Exception], is_ending: Callable[[], bool]
) -> AsyncGenerator[None]:
    """Enter the runtime and the servers of its tools, and continue what an earlier `toolbus serve` has left.

    If the server is to end meanwhile, nothing stays entered: uvicorn ends only once it has started, and a server of
    tools may keep it waiting.
    """
    has_begun = False
    async with anyio.create_task_group() as group:
        beginning = anyio.CancelScope()

        async def leave_early() -> None:
            with beginning:
                while not is_ending():  # noqa: ASYNC110 -- a signal sets it
                    await anyio.sleep(_POLL_SECONDS)
                group.cancel_scope.cancel()

        group.start_soon(leave_early)
        try:
            async with contextlib.AsyncExitStack() as stack:
                if found.mcp is not None:
                    await stack.enter_async_context(found.mcp)
                await stack.enter_async_context(found.runtime)
                if found.kept is not None:
                    await found.runtime.resume(watch=True)
                beginning.cancel()
                has_begun = True
                yield
        except Exception as exc:
            failures.append(exc)
            raise
    if not has_begun:
        yield
