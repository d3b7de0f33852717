"""Runs seeds: builds the world of each on a loop of its own, lets it go, and looks at what is left."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import anyio

from ...clock import wall_time_from
from ...errors import ConversationBusy, NotRunning, Overloaded
from ...events import FACT_TYPES, ApprovalRequested, Event, RequestStarted, ToolCallRequested
from ...events._base import ids_from
from ...outcome import RequestResult
from ...runtime import Runtime
from .._loop import VirtualDeadlock, VirtualTimeLoop
from ._findings import Broken, SeedReport, SimulationFailed
from ._timeline import timeline
from ._tools import NEEDS_APPROVAL, RETRIES, TOOLS, WORLD
from ._watch import Watch
from ._world import World

__all__ = ["run_seed"]

_EPOCH = 1_000_000_000.0
_LONGEST_SECONDS = 100_000.0  # of virtual time: far over any sum of deadlines in a world
_LOGGERS = ("toolbus", "asyncio")


def run_seed(seed: int) -> SeedReport:
    """Run one seed, on asyncio in virtual time. The same seed is the same run, event for event.

    Raises `SimulationFailed`. Changes the process while it runs (ids, the wall clock that toolbus reads, logging), so
    one at a time, and not inside an event loop.
    """
    world: list[World] = []

    async def main() -> SeedReport:
        world.append(World(seed))
        return await _Run(world[0]).go()

    try:
        with ids_from(f"s{seed}_"), wall_time_from(lambda: _EPOCH), _quiet():
            return anyio.run(main, backend="asyncio", backend_options={"loop_factory": _SteadyLoop})
    except Broken as exc:
        raise SimulationFailed(seed, exc.guarantee, str(exc), timeline(world[0].watch.heard)) from None
    except VirtualDeadlock as exc:
        raise SimulationFailed(seed, "G10", f"G10: {exc}", timeline(world[0].watch.heard)) from exc
    except BaseException as exc:  # whatever came through, nobody in the world may have raised it
        if isinstance(exc, KeyboardInterrupt):
            raise
        problem = f"G15: {type(exc).__name__} came through: {exc}"
        heard = world[0].watch.heard if world and hasattr(world[0], "watch") else []
        raise SimulationFailed(seed, "G15", problem, timeline(heard)) from exc


@contextmanager
def _quiet() -> Generator[None]:
    """Failures by the thousand need no lines in the log."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


class _Task(asyncio.Task[Any]):
    """A task whose place in a set is its number, not its address: task groups cancel in the order of a set."""

    numbers = itertools.count()

    _number: int

    def __new__(cls, *_args: Any, **_keywords: Any) -> _Task:
        made = super().__new__(cls)
        made._number = next(cls.numbers)
        return made

    def __hash__(self) -> int:
        return self._number

    __eq__ = object.__eq__


class _SteadyLoop(VirtualTimeLoop):
    """Virtual time, and the same order of everything each time."""

    def __init__(self) -> None:
        super().__init__()
        _Task.numbers = itertools.count()
        self.set_task_factory(_steady)  # type: ignore[arg-type] -- asyncio's own signature is wider than it says


def _steady(loop: Any, coroutine: Any, **keywords: Any) -> _Task:
    return _Task(coroutine, loop=loop, **keywords)


class _Run:
    """One seed's run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._results: list[RequestResult[Any]] = []
        self._order: list[Event] = []
        self._scope = anyio.CancelScope()
        self._refused = 0

    async def go(self) -> SeedReport:
        world = self._world
        watch = world.watch = Watch(
            world.bus,
            _EPOCH,
            self._scope.cancel,
            needs_approval=NEEDS_APPROVAL,
            retries=RETRIES,
            journal=world.store.journal,
        )
        world.bus.connect(Event, watch)
        WORLD.set(world)
        with self._scope, anyio.move_on_after(_LONGEST_SECONDS) as patience:
            async with anyio.create_task_group() as world.group:
                self._listen()
                await self._live()
                world.group.cancel_scope.cancel()
        if watch.broken is not None:
            raise watch.broken
        watch.check("G10", not patience.cancelled_caught, "the world did not end")
        self._look_at_the_end()
        return self._report()

    def _listen(self) -> None:
        world, bus = self._world, self._world.bus
        chance = world.chance("listeners")
        bus.connect(RequestStarted, world.on_started)
        bus.connect(ApprovalRequested, world.on_question)
        bus.connect(ToolCallRequested, world.on_requested)
        if chance.says(0.5):
            bus.connect(chance.pick(FACT_TYPES), world.raising("one"))
            bus.connect(Event, world.raising("all"))
        if chance.says(0.5):
            bus.connect(ToolCallRequested, world.talking)
        for number in range(chance.whole(0, 2)):
            world.group.start_soon(world.subscriber, f"subscriber {number}")
        bus.connect(Event, self._order.append)

    async def _live(self) -> None:
        world = self._world
        chance = world.chance("life")
        runtime = Runtime(
            world.model,
            tools=TOOLS,
            store=world.store,
            bus=world.bus,
            max_sessions=world.places,
            max_queued=4,
            max_concurrency=world.workers,
            drain_seconds=chance.pick([1.0, 30.0]),
            grace_seconds=1.0,
        )
        async with runtime, anyio.create_task_group() as asking:
            for number in range(world.requests):
                asking.start_soon(self._ask, runtime, number)
            if world.leaves_early:
                await anyio.sleep(chance.around(world.model_seconds))
                await runtime.drain(grace_seconds=chance.below(3.0))
        world.watch.listeners()
        self._look_at_the_dispatcher(runtime)

    async def _ask(self, runtime: Runtime, number: int) -> None:
        world = self._world
        chance = world.chance(f"request {number}")
        await anyio.sleep(chance.pick([0.0, 0.0, 0.5, 3.0]))
        conversation = f"c{chance.whole(1, world.conversations)}"
        host = anyio.CancelScope()
        if chance.says(0.2):
            world.faults["host cancelled"] += 1
            host.deadline = world.moment(chance, world.tool_seconds)
        try:
            with host:
                if chance.says(0.3):
                    session = runtime.start(f"q{number}", conversation_id=conversation, **world.options(str(number)))
                    result = await session.result()
                else:
                    result = await runtime.run(f"q{number}", conversation_id=conversation, **world.options(str(number)))
                self._results.append(result)
        except (Overloaded, ConversationBusy, NotRunning):
            self._refused += 1

    # ---------------------------------------------------------------------------------------------- afterwards

    def _look_at_the_dispatcher(self, runtime: Runtime) -> None:
        watch, left = self._world.watch, runtime.dispatcher.statistics()
        watch.note("G17", not left.running, f"{left.running} handlers hold places after the runtime was left")
        watch.note("G17", not left.queued, f"{left.queued} calls wait after the runtime was left")
        watch.note("G17", not left.overdue, f"{left.overdue} run on after the runtime was left")
        watch.note("G13", not left.retrying, f"{left.retrying} calls wait to be retried after the runtime was left")

    def _look_at_the_end(self) -> None:
        world, watch = self._world, self._world.watch
        heard = [event for _, event in watch.heard]
        same = [id(each) for each in self._order] == [id(each) for each in heard]
        watch.check("G03", same, "listeners heard two orders")
        left = world.bus.statistics()
        watch.check("G10", not left.mailboxes, f"{left.mailboxes} mailboxes are left")
        watch.check("G06", not left.open_calls, f"{left.open_calls} calls are left open")
        watch.check("G02", not left.subscriptions, f"{left.subscriptions} are left")
        tasks = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        watch.check("G17", not tasks, f"tasks are left: {tasks}")
        for each in watch.requests.values():
            watch.check("G10", each.ending is not None, f"{each.request_id} has no ending")
        for result in self._results:
            watch.ended(result, broke=result.request_id in world.store.broken)

    def _report(self) -> SeedReport:
        world, watch = self._world, self._world.watch
        outcomes = Counter(result.outcome for result in self._results)
        if self._refused:
            outcomes["refused"] = self._refused
        return SeedReport(
            seed=world.seed,
            digest=watch.digest(),
            events=len(watch.heard),
            requests=len(watch.requests),
            virtual_seconds=anyio.current_time(),
            outcomes=Counter(outcomes),
            faults=Counter({name: count for name, count in world.faults.items() if count}),
            checks=watch.checks,
        )
