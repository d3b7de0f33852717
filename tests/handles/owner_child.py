"""A process that owns requests: it begins some, or takes over what others have left, until it is killed or told to end.

Tests run its `main`, with the store's URL or path: see `support.forked`. It writes the id of each request that it has
begun, a line each, then the line "ready"; it ends when its input is closed.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import anyio
import anyio.to_thread
import psycopg  # pyright: ignore[reportUnusedImport] # noqa: F401 -- imported before the first fork

from toolbus import Runtime, ToolContext, tool
from toolbus.storage import Store
from toolbus.stores.mongo import MongoStore
from toolbus.stores.postgres import PostgresStore
from toolbus.stores.sqlite import SqliteStore
from toolbus.testing import ScriptedProvider, calls, text


def store_at(where: str) -> Store:
    """The store that parent and children share; what survives a power loss is not what these tests are about."""
    if where.startswith("mongodb:"):
        return MongoStore(*where.split(), durability="process", timeout_seconds=30)
    if where.startswith("postgres"):
        return PostgresStore(where, timeout_seconds=30)
    return SqliteStore(where, durability="process", timeout_seconds=30)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(where: str, ledger_path: str, begin: int, lease_seconds: float) -> None:
    ledger = os.open(ledger_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @tool(needs_approval=True, idempotent=True)
    async def wipe(context: ToolContext[Any], n: int) -> str:
        """Wipe it."""
        os.write(ledger, f"{context.idempotency_key} {n}\n".encode())
        return f"wiped {n}"

    model = ScriptedProvider(lambda request: (calls(("wipe", {"n": 1})), text("Wiped."))[request.round])
    async with Runtime(
        model,
        tools=[wipe],
        store=store_at(where),
        on_approval="wait",
        lease_seconds=lease_seconds,
        inbox_poll_seconds=0.05,
    ) as runtime:
        for _ in range(begin):
            session = runtime.start("go")
            await session.accepted()
            _say(session.request_id)
        await runtime.resume(watch=True)
        _say("ready")
        await anyio.to_thread.run_sync(sys.stdin.read)
