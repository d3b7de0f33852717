"""What toolbus costs, against the loop that a careful engineer writes by hand.

    python benchmarks/overhead.py [--requests 2000] [--repeats 7] [--waiting 10000] [--json]

The work: one request is 3 rounds of 2 tool calls, then a text; the model answers at once, so that what is measured is
the runtime's own cost. `careful` validates arguments, has a time-out around every model call and tool call, and turns
errors into data. It keeps no conversation, so toolbus keeps one alone: a thousand of them cost the garbage collector
as much as a tenth of each request. Both sides run in one process, in turn, serial and 100 at once; figures are CPU
time, and the ratio is the median of the ratios of neighbouring runs, because machines are noisy. Then the bytes that a
session holds while it waits for its model, with the task that awaits it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from pydantic import BaseModel, ConfigDict

from toolbus import EventBus, Runtime, tool
from toolbus.events import Event
from toolbus.messages import AssistantMessage, ToolCall
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.stores.memory import MemoryStore

ROUNDS, CALLS = 3, 2
One = Callable[[], Awaitable[str]]


async def lookup(city: str, n: int) -> dict[str, Any]:
    """Look a city up."""
    return {"ok": True, "city": city, "n": n}


# ------------------------------------------------------------------------------------------------- by hand


class Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")
    city: str
    n: int


async def _model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    done = sum(message["role"] == "assistant" for message in messages)
    if done == ROUNDS:
        return {"role": "assistant", "content": "done"}
    calls = [
        {
            "id": f"call_{done}_{index}",
            "type": "function",
            "function": {"name": "lookup", "arguments": json.dumps({"city": "Paris", "n": index})},
        }
        for index in range(CALLS)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


async def _run_call(call: dict[str, Any]) -> dict[str, Any]:
    try:
        async with asyncio.timeout(30):
            arguments = Arguments.model_validate_json(call["function"]["arguments"])
            result = await lookup(**arguments.__dict__)
    except Exception as exc:
        result = {"ok": False, "error": str(exc)}
    return {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)}


async def careful() -> str:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    async with asyncio.timeout(120):
        while True:
            async with asyncio.timeout(60):
                message = await _model(messages)
            messages.append(message)
            if not message.get("tool_calls"):
                return message["content"]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_run_call(call)) for call in message["tool_calls"]]
            messages.extend(task.result() for task in tasks)


# ------------------------------------------------------------------------------------------------- toolbus


class Model:
    """Answers at once, from the transcript alone."""

    vendor = "benchmark"

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:  # noqa: ARG002
        done = request.round
        if done == ROUNDS:
            return ModelReply(message=AssistantMessage(text="done"))
        calls = tuple(
            ToolCall(
                name="lookup",
                arguments=json.dumps({"city": "Paris", "n": index}),
                provider_call_id=f"call_{done}_{index}",
            )
            for index in range(CALLS)
        )
        return ModelReply(message=AssistantMessage(tool_calls=calls))


class SilentModel:
    """Never answers."""

    vendor = "benchmark"

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:  # noqa: ARG002
        await anyio.sleep_forever()
        raise AssertionError


# ------------------------------------------------------------------------------------------------ measuring


async def _serial(one: One, requests: int) -> None:
    for _ in range(requests):
        if await one() != "done":
            raise RuntimeError("wrong answer")


async def _at_once(one: One, requests: int, width: int = 100) -> None:
    for _ in range(requests // width):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_serial(one, 1)) for _ in range(width)]
        for task in tasks:
            task.result()


async def _cpu_microseconds(work: Callable[[One, int], Awaitable[None]], one: One, requests: int) -> float:
    gc.collect()
    started = time.process_time()
    await work(one, requests)
    return (time.process_time() - started) / requests * 1e6


async def _compare(
    one: One, requests: int, repeats: int, work: Callable[[One, int], Awaitable[None]]
) -> dict[str, float]:
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(repeats):
        theirs.append(await _cpu_microseconds(work, careful, requests))
        ours.append(await _cpu_microseconds(work, one, requests))
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return {
        "toolbus_us": statistics.median(ours),
        "careful_us": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
    }


async def overhead(requests: int, repeats: int) -> dict[str, dict[str, float]]:
    heard = 0

    def listener(_event: Event) -> None:
        nonlocal heard
        heard += 1

    rows: dict[str, dict[str, float]] = {}
    for listening in (False, True):
        bus = EventBus()
        if listening:
            bus.connect(Event, listener)
        async with Runtime(Model(), tools=[tool(lookup)], bus=bus, store=MemoryStore(max_conversations=1)) as runtime:

            async def by_run(runtime: Runtime = runtime) -> str:
                return (await runtime.run("go")).text

            async def by_start(runtime: Runtime = runtime) -> str:
                return (await runtime.start("go").result()).text

            suffix = ", one listener on everything" if listening else ""
            await _at_once(by_run, 200)
            rows["run(), serial" + suffix] = await _compare(by_run, requests, repeats, _serial)
            rows["run(), 100 at once" + suffix] = await _compare(by_run, requests, repeats, _at_once)
            rows["start(), 100 at once" + suffix] = await _compare(by_start, requests, repeats, _at_once)
    return rows


async def bytes_per_waiting_session(sessions: int) -> dict[str, float]:
    async def waiting_task() -> None:
        await asyncio.get_running_loop().create_future()

    async def held(start: Callable[[], asyncio.Task[Any]]) -> float:
        tasks: list[asyncio.Task[Any]] = []
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        tasks.extend(start() for _ in range(sessions))
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return (after - before) / sessions

    task = await held(lambda: asyncio.create_task(waiting_task()))
    async with Runtime(SilentModel(), tools=[tool(lookup)], max_sessions=sessions) as runtime:
        session = await held(lambda: asyncio.create_task(runtime.run("go")))
    return {"session_bytes": session, "task_bytes": task}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000, help="requests in each run")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each side")
    parser.add_argument("--waiting", type=int, default=10_000, help="sessions that wait at once; 0 leaves it out")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    rows = anyio.run(overhead, options.requests, options.repeats)
    waiting = anyio.run(bytes_per_waiting_session, options.waiting) if options.waiting else {}
    if options.json:
        print(json.dumps({"overhead": rows, "waiting": waiting}))
        return
    print(f"{'':50s} toolbus us  careful us   ratio (lowest - highest)")
    for name, row in rows.items():
        spread = f"({row['lowest']:.2f} - {row['highest']:.2f})"
        print(f"{name:50s} {row['toolbus_us']:10.0f} {row['careful_us']:11.0f}   {row['ratio']:5.2f} {spread}")
    if waiting:
        print(
            f"a waiting session holds {waiting['session_bytes'] / 1024:.1f} KiB with its caller's task; "
            f"a bare task {waiting['task_bytes'] / 1024:.1f} KiB ({options.waiting:,} at once)"
        )


if __name__ == "__main__":
    main()
