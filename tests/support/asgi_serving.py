"""An ASGI application on a loopback socket, served by uvicorn on the caller's event loop, which has to be asyncio's."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import uvicorn


@contextlib.asynccontextmanager
async def served(app: Any) -> AsyncGenerator[int]:
    """Serve an application at a free port of this machine."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [listening])
            try:
                yield listening.getsockname()[1]
            finally:
                server.should_exit = True
