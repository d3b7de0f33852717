"""The time from the last result of a round to the next call of the model, while other sessions run.

This is an open loop: sessions arrive at random moments of a seeded Poisson process, whether or not earlier sessions
have ended, at a rate at which requests keep the processor busy for about `LOAD` of the time. Model and tools wait for a
moment, so that sessions overlap. The clock starts when a receiver of the bus gets `ToolCallCompleted`, and stops in the
provider's `respond`; in the loop by hand, it starts at the end of the call's task and stops in the model.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio

from toolbus import EventBus, RequestSession, ToolDispatcher, ToolRegistry
from toolbus.events import ToolCallCompleted
from toolbus.protocols import Emit, ModelReply, ModelRequest

from .plumbing import Effort, Goal, Row, alternate, cpu_us, measured, run, shown
from .work import CALLS, ROUNDS, Arguments, Model, at_once, lookup, model_by_hand, sessions

SESSIONS = 1_000
LOAD = 0.3
THINKING, WORKING = 0.02, 0.005  # seconds, on average, that the model and a tool wait
SEED = 8


class Waits:
    """The times that models and tools wait: seeded, so that they are the same in each run."""

    def __init__(self) -> None:
        self._random = random.Random(SEED)

    def gaps(self, count: int, rate: float) -> list[float]:
        """The moments, in seconds from the start, at which sessions arrive."""
        moments: list[float] = []
        now = 0.0
        for _ in range(count):
            now += self._random.expovariate(rate)
            moments.append(now)
        return moments

    async def think(self) -> None:
        """Wait as long as the model takes."""
        await anyio.sleep(self._random.uniform(0, 2 * THINKING))

    async def work(self) -> None:
        """Wait as long as a tool takes."""
        await anyio.sleep(self._random.uniform(0, 2 * WORKING))


async def _arrive(one: Callable[[], Coroutine[Any, Any, None]], moments: list[float]) -> None:
    gc.collect()
    started = anyio.current_time()
    async with anyio.create_task_group() as group:
        for moment in moments:
            await anyio.sleep_until(started + moment)
            group.start_soon(one)


def _percentiles(waited: list[float]) -> tuple[float, float]:
    """p50 and p99, in milliseconds."""
    cuts = statistics.quantiles(waited, n=100, method="inclusive")
    return 1_000 * cuts[49], 1_000 * cuts[98]


class PacedModel(Model):
    """A model that records how long ago the last result was published, and then waits."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits
        self.published_at: dict[str, float] = {}
        self.waited: list[float] = []

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        now = time.perf_counter()
        if request.round:
            self.waited.append(now - self.published_at.pop(request.request_id))
        await self._waits.think()
        return await super().respond(request, emit)


async def _toolbus(count: int, rate: float) -> tuple[float, float]:
    waits = Waits()
    moments = waits.gaps(count, rate)
    model = PacedModel(waits)
    bus = EventBus()

    async def paced_lookup(city: str, n: int) -> dict[str, object]:
        """Look a city up."""
        await waits.work()
        return await lookup(city, n)

    paced_lookup.__name__ = "lookup"
    registry = ToolRegistry([paced_lookup])

    def note(event: ToolCallCompleted) -> None:
        model.published_at[event.request_id] = time.perf_counter()

    async def one() -> None:
        result = await RequestSession(bus, model, "go", tools=registry).run()
        if result.text != "done":
            raise RuntimeError(f"{result.outcome}: {result.reason} {result.error}")

    bus.connect(ToolCallCompleted, note)
    async with ToolDispatcher(bus, registry):
        await _arrive(one, moments)
    return _percentiles(model.waited)


async def _by_hand(count: int, rate: float) -> tuple[float, float]:
    waits = Waits()
    moments = waits.gaps(count, rate)
    waited: list[float] = []

    async def one() -> None:
        messages: list[dict[str, object]] = [{"role": "user", "content": "go"}]
        results: dict[str, dict[str, object]] = {}
        published_at = 0.0

        async def run_call(call: dict[str, dict[str, str]], call_id: str) -> None:
            nonlocal published_at
            with anyio.fail_after(30):
                arguments = Arguments.model_validate_json(call["function"]["arguments"])
                await waits.work()
                result = await lookup(**arguments.__dict__)
            results[call_id] = {"role": "tool", "tool_call_id": call_id, "content": json.dumps(result)}
            published_at = time.perf_counter()

        with anyio.fail_after(120):
            while True:
                with anyio.fail_after(60):
                    if published_at:
                        waited.append(time.perf_counter() - published_at)
                    await waits.think()
                    message = await model_by_hand(messages)
                messages.append(message)
                calls = message.get("tool_calls")
                if not calls:
                    return
                async with anyio.create_task_group() as group:
                    for call in calls:
                        group.start_soon(run_call, call, call["id"])
                messages.extend(results[call["id"]] for call in calls)

    await _arrive(one, moments)
    return _percentiles(waited)


async def _figure(effort: Effort) -> list[Row]:
    count = effort.of(SESSIONS, least=5)
    async with sessions() as one:
        some = effort.of(500, least=5)
        await at_once(one, some)
        rate = LOAD / (await cpu_us(at_once(one, some), some) / 1e6)
    found: dict[Callable[[int, float], Awaitable[tuple[float, float]]], list[tuple[float, float]]] = {
        _toolbus: [],
        _by_hand: [],
    }

    async def noted(side: Callable[[int, float], Awaitable[tuple[float, float]]]) -> float:
        found[side].append(await side(count, rate))
        return 0.0

    await alternate(effort.repeats, lambda: noted(_toolbus), lambda: noted(_by_hand))
    rows: list[Row] = []
    for index, (name, goal) in enumerate((("p50", None), ("p99", Goal(2.0)))):
        ours = [figures[index] for figures in found[_toolbus]]
        theirs = [figures[index] for figures in found[_by_hand]]
        rows.append(
            measured(
                f"from the last result to the next model call, {name}",
                ours,
                "ms",
                goal,
                against=f"by hand, {shown(statistics.median(theirs))} ms",
                remark=f"{count:,} sessions, {rate:,.0f} come in a second, {count * ROUNDS:,} rounds of {CALLS} calls",
            )
        )
    return rows


def latency(effort: Effort) -> list[Row]:
    """Measure the wall-clock time from a round's last result to the next call of the model."""
    return run(_figure, effort)
