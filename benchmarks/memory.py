"""The memory of a session that waits for its model, and of a process with a hundred thousand of them.

Bytes are those of Python's allocator (`tracemalloc`), and include the task that awaits the session. The resident set is
that of a separate process, as the operating system reports it; it includes the interpreter and its modules.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import anyio.lowlevel

from toolbus import Runtime, Tool
from toolbus.messages import AssistantMessage, ToolCall
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.stores.sqlite import SqliteStore

from .plumbing import Effort, Goal, Row, alternate, compared, measured, run, shown
from .work import SilentModel, lookup, sessions

WAITING, STARTED, PARKED = 10_000, 100_000, 10_000
ROOT = Path(__file__).parents[1]


async def _settle() -> None:
    for _ in range(5):
        await anyio.lowlevel.checkpoint()


async def _bytes_each(one: Callable[[], Awaitable[Any]], count: int) -> float:
    tasks: list[asyncio.Task[Any]] = []

    async def awaited() -> None:
        await one()

    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    # The collector runs once, below. Otherwise it would look at all that waits again and again, for most of the time.
    gc.disable()
    tasks.extend(asyncio.create_task(awaited()) for _ in range(count))
    await _settle()
    gc.enable()
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return (after - before) / count / 1_024


async def _waiting(effort: Effort) -> list[Row]:
    count = effort.of(WAITING, least=10)

    async def waiting_task() -> None:
        await asyncio.get_running_loop().create_future()

    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(sessions(SilentModel()))
        runtime = await stack.enter_async_context(Runtime(SilentModel(), tools=[lookup], max_sessions=count))
        by_session, by_runtime, by_hand = await alternate(
            effort.repeats,
            lambda: _bytes_each(session, count),
            lambda: _bytes_each(lambda: runtime.run("go"), count),
            lambda: _bytes_each(waiting_task, count),
        )
    rows: list[Row] = []
    for name, ours, goal in (("session", by_session, Goal(12.0)), ("Runtime.run", by_runtime, None)):
        figures = compared(ours, by_hand)
        rows.append(
            Row(
                f"{name} that waits for its model, with its caller's task",
                f"{shown(figures.ours)} KiB",
                f"a task that waits, {shown(figures.theirs)} KiB",
                figures.ours,
                min(ours),
                max(ours),
                unit="KiB",
                goal=goal,
                remark=f"{count:,} at once, {shown(figures.ratio)} times as much as a task",
            )
        )
    return rows


def resident_mib() -> float:
    """The resident set of this process in MiB, or its maximum where the system reports only that."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1_024
    except (OSError, StopIteration):
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / (1_048_576 if sys.platform == "darwin" else 1_024)


def print_resident(count: int, *, toolbus: bool) -> None:
    """Print the resident set of this separate process with so many waiting sessions, or bare tasks.

    The process ends without cleaning up, which would take longer than all else. The garbage collector is off, since it
    would take two thirds of the time and find nothing; garbage, if there were any, would be counted as well.
    """
    gc.disable()

    async def print_size() -> None:
        async with Runtime(SilentModel(), tools=[lookup], max_sessions=count) as runtime:
            start = (lambda: runtime.start("go")) if toolbus else lambda: asyncio.create_task(asyncio.sleep(3_600))
            tasks = [start() for _ in range(count)]
            await _settle()
            if toolbus and runtime.bus.statistics().mailboxes != len(tasks):
                raise RuntimeError("not all sessions wait")
            print(json.dumps(resident_mib()), flush=True)
            os._exit(0)

    anyio.run(print_size)


async def _resident_of_a_process(count: int, *, toolbus: bool) -> float:
    code = f"from benchmarks.memory import print_resident as p; p({count}, toolbus={toolbus})"
    command = [sys.executable, "-c", code]
    done = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, text=True, cwd=ROOT)
    return float(json.loads(done.stdout)) / 1_024


async def _resident(effort: Effort) -> list[Row]:
    count = effort.of(STARTED, least=10)
    ours, theirs = await alternate(
        effort.repeats,
        lambda: _resident_of_a_process(count, toolbus=True),
        lambda: _resident_of_a_process(count, toolbus=False),
    )
    against = f"with as many tasks, {shown(statistics.median(theirs))} GiB"
    return [measured(f"process with {count:,} started sessions", ours, "GiB", Goal(0.7), against=against)]


class _Caller:
    """A model that calls the background tool whose answer comes from outside, after days, and then waits for it."""

    vendor = "bench"

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:  # noqa: ARG002 -- the protocol
        if request.messages[-1].role == "tool":  # the ticket
            return ModelReply(message=AssistantMessage(text="I am waiting for the answer."))
        return ModelReply(message=AssistantMessage(tool_calls=(ToolCall(name="outside", arguments="{}"),)))


def print_parked(count: int) -> None:
    """Print by how many MiB the resident set of this process grows while `count` requests are begun and parked.

    The requests are in a SQLite file. Some are parked before, so that the caches of the driver and of Python are full.
    """
    outside: Tool = Tool(
        "outside", "Ask outside.", {"type": "object"}, external=True, background=True, validate=lambda _arguments: None
    )

    async def park(runtime: Runtime[None], number: int) -> None:
        """Park requests, at most 200 at once."""
        for begins in range(0, number, 200):
            sessions = [runtime.start("go") for _ in range(min(200, number - begins))]
            for session in sessions:
                result = await session.result()
                if result.reason != "parked":
                    raise RuntimeError(f"a request was not parked: {result}")

    async def print_growth() -> None:
        with TemporaryDirectory() as folder:
            store = SqliteStore(f"{folder}/parked.db", durability="process")
            async with Runtime(_Caller(), tools=[outside], store=store, park_after_seconds=0.05) as runtime:
                await runtime.resume(watch=True)
                await park(runtime, 400)
                gc.collect()
                before = resident_mib()
                await park(runtime, count)
                gc.collect()
                # A page is the least that can be seen.
                print(json.dumps(max(resident_mib() - before, 4 / 1_024)), flush=True)

    anyio.run(print_growth)


async def _parked(effort: Effort) -> list[Row]:
    count, grown = effort.of(PARKED, least=10), list[float]()
    for _ in range(min(effort.repeats, 3)):
        command = [sys.executable, "-c", f"from benchmarks.memory import print_parked as p; p({count})"]
        done = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, text=True, cwd=ROOT)
        grown.append(float(json.loads(done.stdout)))
    remark = "each waits for an external answer, on SQLite"
    name = f"growth of a process by {count:,} parked requests"
    return [measured(name, grown, "MiB", Goal(50.0), remark=remark)]


def parked(effort: Effort) -> list[Row]:
    """Measure the memory that parked requests take."""
    return run(_parked, effort)


def memory(effort: Effort) -> list[Row]:
    """Measure the bytes of a waiting session."""
    return run(_waiting, effort)


def resident_set(effort: Effort) -> list[Row]:
    """Measure the resident set of a process with many started sessions."""
    return run(_resident, effort)
