"""Measure each call of a store while it has many requests: the constants of docs/explanation/scale.md.

    python -m benchmarks.store_calls [--parked 100000] [--held 10000] [--mongo URL]

The store first gets `--parked` requests that wait for people, and `--held` requests of one running process. Then each
call is made one after the other, as a process makes it, on SQLite and on PostgreSQL (a server of the tests, whose
commits wait for the disk), and on MongoDB if a URL is given. Times are wall time for each call.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio

from toolbus.events import CancelRequested, MessageAppended, new_id
from toolbus.messages import UserMessage
from toolbus.storage import Entry
from toolbus.stores.mongo import MongoStore
from toolbus.stores.postgres import PostgresStore
from toolbus.stores.sqlite import SqliteStore

_REPEATS = 50
_AT_ONCE = 500
_YEAR = 3.2e7
_PATIENCE_SECONDS = 60.0
AGREED = {
    "limits": {"max_rounds": 50, "timeout_seconds": 600.0},
    "providers": ["openai:a-model"],
    "output_mode": "auto",
}


def entry(request_id: str, seq: int = 0, owner: str = "holder") -> Entry:
    """Return a step with one fact of about 300 bytes."""
    fact = MessageAppended(request_id=request_id, message=UserMessage(content="x" * 100))
    begins: dict[str, Any] = {"owner": owner, "lease_seconds": _YEAR, "agreed": AGREED} if seq == 0 else {}
    return Entry(request_id=request_id, conversation_id=f"c{request_id}", epoch=1, seq=seq, facts=[fact], **begins)


async def fill(store: Any, parked: int, held: int) -> tuple[list[str], list[str]]:
    """Begin requests, park the first of them, and return the ids of the parked and of the held ones."""
    ids = [new_id() for _ in range(parked + held)]

    async def begin(some: list[str]) -> None:
        for each in some:
            await store.append(entry(each))

    async with anyio.create_task_group() as tasks:
        for part in range(200):
            tasks.start_soon(begin, ids[part::200])
    for each in ids[:parked]:
        await store.park(each, 1, _YEAR)
    return ids[:parked], ids[parked:]


async def timed(call: Callable[[int], Coroutine[Any, Any, Any]], repeats: int = _REPEATS) -> float:
    """Return the milliseconds of a call, of `repeats` that are made one after the other."""
    await call(0)
    began = time.perf_counter()
    for number in range(1, repeats + 1):
        await call(number)
    return (time.perf_counter() - began) / repeats * 1_000


async def together(call: Callable[[int], Coroutine[Any, Any, Any]]) -> float:
    """Return the milliseconds of a call, of `_AT_ONCE` that are made at once."""
    began = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for number in range(_AT_ONCE):
            tasks.start_soon(call, number)
    return (time.perf_counter() - began) / _AT_ONCE * 1_000


def command(request_id: str) -> CancelRequested:
    """Return an input for a request."""
    return CancelRequested(request_id=request_id, reason="enough")


async def measure(name: str, store: Any, parked_count: int, held_count: int) -> None:
    """Print the figures of one store."""
    parked, held = await fill(store, parked_count, held_count)
    some, more, late = parked[:_AT_ONCE], parked[_AT_ONCE : 2 * _AT_ONCE], held[-_AT_ONCE:]

    async def let_go(number: int) -> None:
        await store.release(some[number], 2)

    figures = {
        f"renew, of an owner with {held_count:,}": await timed(lambda _: store.renew("holder", 2 * _YEAR), 10),
        f"unfinished, none of {parked_count + held_count:,} is free": await timed(
            lambda _: store.unfinished(limit=100)
        ),
        "waiting, no input": await timed(lambda _: store.waiting("holder", limit=20)),
        "receipt": await timed(lambda number: store.receipt(held[number], "none")),
        "request": await timed(lambda number: store.request(held[number])),
        "facts, one": await timed(lambda number: store.facts(held[number])),
        "append, one after the other": await timed(lambda number: store.append(entry(held[number], 1))),
        f"append, {_AT_ONCE} at once, each": await together(lambda number: store.append(entry(late[number], 1))),
        "send, one after the other": await timed(lambda number: store.send(command(some[number]))),
        "take": await timed(lambda number: store.take(some[number], "heir", _YEAR)),
        "release": await timed(let_go),
        "park": await timed(lambda number: store.park(some[number], 2, _YEAR)),
        f"send, {_AT_ONCE} at once, each": await together(lambda number: store.send(command(more[number]))),
        f"unfinished, 100 of {_AT_ONCE} that are free": await timed(lambda _: store.unfinished(limit=100)),
        "waiting, 20 inputs": await timed(lambda _: store.waiting("heir", limit=20)),
    }
    for what, milliseconds in figures.items():
        print(f"{name:11} {what:48} {milliseconds:9.3f} ms", flush=True)
    await store.aclose()


async def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        await measure(
            "SQLite",
            SqliteStore(Path(folder) / "store.db", timeout_seconds=_PATIENCE_SECONDS),
            options.parked,
            options.held,
        )
    # This is the server that the tests use, from a wheel with PostgreSQL's own programs.
    from tests.support.postgres_server import shared

    with shared().database() as url:
        await measure("PostgreSQL", PostgresStore(url, timeout_seconds=_PATIENCE_SECONDS), options.parked, options.held)
    if options.mongo:
        await measure(
            "MongoDB",
            MongoStore(options.mongo, f"toolbus_{new_id()}", timeout_seconds=_PATIENCE_SECONDS),
            options.parked,
            options.held,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parked", type=int, default=100_000)
    parser.add_argument("--held", type=int, default=10_000)
    parser.add_argument("--mongo", default="", help="the URL of a MongoDB server")
    anyio.run(main, parser.parse_args())
