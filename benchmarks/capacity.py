"""Measure the CPU time of each side for a request and for a call: constants of docs/explanation/scale.md.

    python -m benchmarks.capacity [--requests 1000] [--calls 3000]

The request is that of `work.py`: three rounds of two calls, then a text, 100 at once, journaled on PostgreSQL. Calls
run on a worker in another process over NATS, 100 at once. CPU time is that of whole processes, with their children and
threads, so a busy machine changes it little. `store_calls.py` has the calls of stores one by one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import psutil

from toolbus import Runtime
from toolbus.events import new_id
from toolbus.stores.postgres import PostgresStore

from . import remote
from .work import Model, lookup

AT_ONCE = 100


def cpu_of(processes: Sequence[psutil.Process]) -> float:
    """Return the CPU seconds of processes and of their children so far."""
    total = 0.0
    for process in processes:
        for each in (process, *process.children(recursive=True)):
            times = each.cpu_times()
            total += times.user + times.system
        total += process.cpu_times().children_user + process.cpu_times().children_system
    return total


async def many(work: Callable[[], Awaitable[Any]], count: int) -> None:
    """Do the work so often, `AT_ONCE` at a time."""
    left = iter(range(count))

    async def lane() -> None:
        for _ in left:
            await work()

    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(lane)


def say(what: str, value: float, unit: str) -> None:
    """Print a figure."""
    print(f"{what:60} {value:10.1f} {unit}", flush=True)


async def requests(count: int) -> None:
    """Print the figures of journaled requests."""
    # This is the server that the tests use, from a wheel with PostgreSQL's own programs.
    from tests.support.postgres_server import shared

    server = psutil.Process(shared().pid)
    with shared().database() as url:
        store = PostgresStore(url)
        async with Runtime(Model(), tools=[lookup], store=store, max_sessions=AT_ONCE) as runtime:
            await many(lambda: runtime.run("go"), AT_ONCE)
            before, here, there = await store.statistics(), time.process_time(), cpu_of([server])
            await many(lambda: runtime.run("go"), count)
            after, here, there = await store.statistics(), time.process_time() - here, cpu_of([server]) - there
    say("a journaled request: CPU of its process", here / count * 1e6, "us")
    say("a journaled request: CPU of PostgreSQL", there / count * 1e6, "us")
    say("a journaled request: appends", (after.appends - before.appends) / count, "")
    say("a journaled request: commits, with 100 at once", (after.commits - before.commits) / count, "")
    say("a journaled request: facts and messages", (after.size_bytes - before.size_bytes) / count, "bytes")


async def calls(count: int) -> None:
    """Print the figures of calls on another machine."""
    # This is the server that the tests use, from a wheel with the broker's own program.
    from tests.support.nats_server import NatsServer

    broker, name = NatsServer(), f"t{new_id()}"
    try:
        with remote.worker_process("toolbus", broker.url, name) as worker:
            sides = [[psutil.Process(broker.pid)], [psutil.Process(worker.pid)]]
            async with remote.toolbus_calls(broker.url, name) as call:
                await many(call, AT_ONCE)
                before, here = [cpu_of(each) for each in sides], time.process_time()
                await many(call, count)
                here = time.process_time() - here
                there = [cpu_of(each) - was for each, was in zip(sides, before, strict=True)]
    finally:
        broker.close()
    say("a call over NATS: CPU beside the session", here / count * 1e6, "us")
    say("a call over NATS: CPU of the broker", there[0] / count * 1e6, "us")
    say("a call over NATS: CPU of the worker", there[1] / count * 1e6, "us")


async def main(options: argparse.Namespace) -> None:
    """Print all figures."""
    await requests(options.requests)
    await calls(options.calls)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--calls", type=int, default=3_000)
    anyio.run(main, parser.parse_args())
