"""CPU time of a journaled request, in all threads of this process, against the careful loop, which stores nothing.

`python -m benchmarks --only journaled`. The database of PostgreSQL is a server of its own, whose time is not counted.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from toolbus import Runtime
from toolbus.storage import Store
from toolbus.stores.postgres import PostgresStore
from toolbus.stores.sqlite import SqliteStore

from .overhead import ratio_to_careful
from .plumbing import Effort, Row, run
from .work import Model, One, lookup

AT_ONCE = 100


@asynccontextmanager
async def journaled(make_store: Callable[[], Store]) -> AsyncGenerator[One]:
    """Requests of `Runtime.run` with a store that lasts: each step is durable before it has effects."""
    store = make_store()
    async with Runtime(Model(), tools=[lookup], store=store, max_sessions=AT_ONCE) as runtime:

        async def one() -> str:
            result = await runtime.run("go")
            if not result.journaled:
                raise RuntimeError(f"the request is not in its journal: {result.outcome} {result.error}")
            return result.text

        yield one


async def _journaled(effort: Effort) -> list[Row]:
    # This is the server that the tests use, from a wheel with PostgreSQL's own programs.
    from tests.support.postgres_server import shared

    with tempfile.TemporaryDirectory(prefix="toolbus-") as folder, shared().database() as url:
        on_sqlite = journaled(lambda: SqliteStore(Path(folder) / "requests.db", durability="process"))
        on_postgres = journaled(lambda: PostgresStore(url))
        return [
            await ratio_to_careful(f"Runtime.run on SQLite, {AT_ONCE} at once", on_sqlite, effort, 4.5),
            await ratio_to_careful(f"Runtime.run on PostgreSQL, {AT_ONCE} at once", on_postgres, effort, 5.0),
        ]


def durable(effort: Effort) -> list[Row]:
    """Measure the CPU time of a request whose steps are written to a database."""
    return run(_journaled, effort)
