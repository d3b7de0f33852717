"""Runs of single seeds: each builds a world on an event loop of its own, runs it, and checks the remains."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio

from ...clock import wall_time_from
from ...events.ids import ids_from
from .._timeline import event_line
from .._virtual_loop import VirtualDeadlock
from ._broker import driver_of
from ._end import check_disk, check_process, check_results
from ._findings import Broken, SeedReport, SimulationFailed
from ._loop import PausingLoop, SteadyLoop, steady_scopes
from ._people import Desk
from ._plans import Plan
from ._process import Process
from ._world import World

_EPOCH = 1_000_000_000.0
_MAX_SECONDS = 100_000.0  # virtual; far more than the sum of all deadlines in a world
_MAX_RESTARTS = 4  # more than needed if nothing goes wrong
_MAX_LINES = 200  # lines of a timeline; the newest are the most useful
_SILENT = logging.CRITICAL + 1


def run_seed(seed: int) -> SeedReport:
    """Run one seed, on asyncio in virtual time. The same seed is the same run, event for event.

    Raises `SimulationFailed`. Changes global state while it runs (ids, the wall clock of toolbus, logging), so call it
    once at a time, and not inside an event loop.

    Example:
        from toolbus.testing.simulation import SeedReport, SimulationFailed, run_seed

        try:
            report: SeedReport = run_seed(7)
            print(report.seed, report.requests > 0)  # 7 True
        except SimulationFailed as failed:
            print(failed.guarantee, failed.problem)
    """
    world = World(seed)
    run = _Run(world)
    pauses = any(plan.way == "paused" for plan in world.plans) or (world.fleet is not None and world.fleet.pauses)
    loops = PausingLoop if pauses else SteadyLoop
    broker = driver_of(world.fleet and world.fleet.server)
    try:
        with ids_from(f"s{seed}_"), wall_time_from(_wall_time), broker, _quiet(run.log):
            return anyio.run(run.go, backend="asyncio", backend_options={"loop_factory": loops})
    except Broken as exc:
        raise SimulationFailed(seed, exc.guarantee, str(exc), run.timeline()) from None
    except VirtualDeadlock as exc:
        raise SimulationFailed(seed, "G10", f"G10: {exc}", run.timeline()) from exc
    except BaseException as exc:  # an exception of an actor must not get here
        if isinstance(exc, KeyboardInterrupt):
            raise
        problem = f"G15: {type(exc).__name__} came through: {exc}"
        raise SimulationFailed(seed, "G15", problem, run.timeline()) from exc


def _wall_time() -> float:
    return _EPOCH + asyncio.get_running_loop().time()


@contextmanager
def _quiet(collector: _LogCollector) -> Generator[None]:
    """Pass log lines to the collector, and print none of them, because failures would fill the screen."""
    levels = {
        "toolbus": logging.INFO if collector.secrets else _SILENT,
        "asyncio": _SILENT,
        "toolbus.store": logging.WARNING,
    }
    loggers = [logging.getLogger(name) for name in levels]
    kept = [(each.level, each.propagate) for each in loggers]
    for each, level in zip(loggers, levels.values(), strict=True):
        each.setLevel(level)
        each.propagate = False
        each.addHandler(collector)
    try:
        yield
    finally:
        for each, (level, propagates) in zip(loggers, kept, strict=True):
            each.removeHandler(collector)
            each.setLevel(level)
            each.propagate = propagates


class _LogCollector(logging.Handler):
    """A handler that collects the requests that the store's warnings name, and lines with secrets."""

    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__()
        self.secrets = secrets
        self.warned: set[str] = set()
        self.leaks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "toolbus.store":
            self.warned.add(getattr(record, "request_id", ""))
        if self.secrets and any(each in (line := self.format(record)) for each in self.secrets):
            self.leaks.append(line)


class _Run:
    """One seed's run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._processes = world.processes
        self._scope: anyio.CancelScope
        self._broken: Broken | None = None
        self.log = _LogCollector(world.secrets)

    async def go(self) -> SeedReport:
        """Run the world to its end."""
        world = self._world
        self._scope = anyio.CancelScope()
        asyncio.get_running_loop().set_exception_handler(self._on_unhandled)
        with steady_scopes(), self._scope, anyio.move_on_after(_MAX_SECONDS) as patience:
            async with anyio.create_task_group() as beside:
                desk = Desk(world, _EPOCH, self._stop)
                if world.has_inbox:
                    beside.start_soon(desk.run)
                if world.fleet is not None:
                    beside.start_soon(world.fleet.run, _EPOCH, self._stop)
                await self._run_processes()
                desk.close()
                if world.fleet is not None:
                    world.fleet.close()
        if self._broken is not None:
            raise self._broken
        last = self._processes[-1].watch
        last.check("G10", not patience.cancelled_caught, "the world did not end")
        for process in self._processes:
            check_results(process)
            if not process.is_dead:
                check_process(process, self.log.warned)
        last.check("G36", not self.log.leaks, f"the log has a secret: {self.log.leaks}")
        await check_disk(world, last)
        if world.fleet is not None:
            world.fleet.check_end(last)
        tasks = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        last.check("G17", not tasks, f"tasks are left: {tasks}")
        for command in world.commands:
            await command.check(world, last)
        return self._report()

    def _on_unhandled(self, _loop: object, context: dict[str, Any]) -> None:
        self._stop(Broken("G15", f"G15: an exception in no task: {context.get('exception') or context['message']!r}"))

    async def _run_processes(self) -> None:
        world = self._world
        async with anyio.create_task_group() as group:
            for plan in world.plans:
                process = self._process(plan)
                group.start_soon(process.run)
                await process.next_may_begin.wait()
                await anyio.sleep(plan.next_after_seconds)
        world.disk.recover()
        while world.disk.unfinished() and len(self._processes) < len(world.plans) + _MAX_RESTARTS:
            await self._process(Plan(way="finished")).run()  # the application starts again

    def _process(self, plan: Plan) -> Process:
        process = Process(self._world, len(self._processes), plan, _EPOCH, self._stop)
        self._processes.append(process)
        return process

    def _stop(self, broken: Broken) -> None:
        """Keep the first broken invariant, and stop the world, in any order."""
        self._broken = broken
        for process in self._processes:
            process.watch.is_over = True
        SteadyLoop.running().wake_all()
        self._scope.cancel()

    def timeline(self) -> str:
        """Return a line for each of the newest events of all processes, with its time and its request."""
        heard = sorted((each for process in self._processes for each in process.watch.heard), key=lambda each: each[0])
        lines = [f"{moment:10.6f}s  {event.request_id:>8}  {event_line(event)}" for moment, event in heard]
        left_out = len(lines) - _MAX_LINES
        return "\n".join([f"  ({left_out} earlier events)", *lines[-_MAX_LINES:]] if left_out > 0 else lines)

    def _report(self) -> SeedReport:
        world = self._world
        outcomes: Counter[str] = Counter()
        checks: Counter[str] = Counter()
        digest = hashlib.sha256()
        for process in self._processes:
            outcomes.update("released" if result.resumable else result.outcome for result, _ in process.results)
            if process.refused:
                outcomes["refused"] += process.refused
            checks += process.watch.checks
            digest.update(process.watch.digest().encode())
        if world.fleet is not None:
            checks += world.fleet.watch.checks
        return SeedReport(
            seed=world.seed,
            digest=digest.hexdigest()[:16],
            events=sum(len(process.watch.heard) for process in self._processes),
            requests=len({request_id for process in self._processes for request_id in process.watch.requests}),
            virtual_seconds=anyio.current_time(),
            outcomes=outcomes,
            faults=Counter({name: count for name, count in world.faults.items() if count}),
            checks=checks,
        )
