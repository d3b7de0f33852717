"""The command `toolbus inspect`: serves the inspector's page for a store, a PostgreSQL database or a recording."""

from __future__ import annotations

import argparse
import contextlib
import socket
import webbrowser

import anyio

from ...core.plain_text import clean
from ...errors import ConfigurationError, MissingExtra, StoreError
from ...stores import PostgresStore
from ...web.inspector import Inspector, RecordingSource, Source, StoreSource
from .._log_lines import silenced
from .._loopback import LOOPBACK, listening_on, user_name
from .._open_store import existing
from .._recordings import recording_at
from .._terminal.screen import Screen

try:
    import uvicorn
except ImportError as exc:
    raise MissingExtra("web", "uvicorn") from exc

_LEAVE_SECONDS = 1
"""The time that open pages get when the server ends; their streams never end by themselves."""


def inspect(options: argparse.Namespace, screen: Screen) -> int:
    """Serve the page until Ctrl-C, and return the exit status. Raises `ToolbusError`."""
    source = _source(options)
    if source is None:
        screen.data("Nothing is kept yet: toolbus ask and toolbus chat keep their requests here.")
        return 0
    inspector = Inspector(source, by=user_name())
    with (
        silenced("uvicorn"),
        listening_on(options.port) as listening,
        contextlib.suppress(KeyboardInterrupt),  # uvicorn has ended the pages, and raises the signal once more.
    ):
        anyio.run(_serve, inspector, source, listening, options, screen)
    return 0


async def _serve(
    inspector: Inspector, source: Source, listening: socket.socket, options: argparse.Namespace, screen: Screen
) -> None:
    address = f"http://{LOOPBACK}:{listening.getsockname()[1]}/#token={inspector.token}"
    try:
        async with inspector.opened():
            screen.data(clean(f"Inspecting {source.name}. Ctrl-C ends it.\n{address}"))
            if options.open:
                webbrowser.open(address)
            config = uvicorn.Config(
                inspector, log_config=None, lifespan="off", timeout_graceful_shutdown=_LEAVE_SECONDS
            )
            await uvicorn.Server(config).serve([listening])
    except OSError as exc:
        raise StoreError(f"{source.name} cannot be opened: {exc.strerror or exc}") from exc


def _source(options: argparse.Namespace) -> Source | None:
    """Return what is to be inspected, or None if the default store was never created."""
    if options.recording is not None:
        return RecordingSource(recording_at(options.recording, "--recording: "))
    if options.url is not None:
        return StoreSource(_database(options.url), "the database")
    if (found := existing(options)) is None:
        return None
    store, _ = found
    return StoreSource(store, store.path.name)


def _database(url: str) -> PostgresStore:
    if not url.startswith(("postgresql://", "postgres://")):
        raise ConfigurationError("--url is the address of a PostgreSQL database, such as postgresql://user@host/name")
    return PostgresStore(url)
