"""A fleet in virtual time: many requests, the processes that run them, and one store that takes time for each call.

    python -m soak.scale                            100,000 requests on 20 processes
    python -m soak.scale --requests 5000 --seed 7

Each request asks its model, calls a tool that may run twice and one that a person has to approve, is parked until the
person decides, and is continued by any process. Meanwhile processes are killed at random moments, half of them at once,
and all are replaced one after the other. The runtimes, sessions, leases, parking and handles are the project's own; so
is the store, in memory. Only the time that a call of the store takes is a model: `COSTS`, on one queue.

At the end, each request has ended once, each approval counted once, and no payment was made twice. The table says which
calls the store was asked for, how many a second, and how long requests without a process waited for one.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc

from toolbus import Runtime, tool
from toolbus.clock import wall_time_from
from toolbus.errors import StoreError, ToolbusError
from toolbus.events import ApprovalRequested, Event, RequestCancelled, RequestCompleted, RequestFailed
from toolbus.messages import AssistantMessage, ToolCall
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.storage import Entry
from toolbus.stores.memory import MemoryStore
from toolbus.testing import VirtualTimeLoop
from toolbus.tools import ToolContext

__all__ = ["COSTS", "Plan", "Report", "simulate"]

COSTS = {
    "append": 60e-6,
    "take": 300e-6,
    "take_turn": 300e-6,
    "facts": 250e-6,
    "unfinished": 150e-6,
    "renew": 150e-6,
    "waiting": 120e-6,
    "send": 350e-6,
    "park": 250e-6,
    "release": 150e-6,
    "history": 150e-6,
}
"""Seconds of the store's time for each call, about those of PostgreSQL on one core; 100 us for every other call."""
_A_ROW = 15e-6  # seconds for each request in a list
_ROUND_TRIP = 0.5e-3  # seconds between a process and the store
_MODEL_SECONDS = (1.0, 60.0)
_TOOL_SECONDS = 0.5
_OF_MEMORY = ("history", "remember", "conversations", "forget")
_CALLS = (
    *("append", "facts", "request", "requests", "unfinished", "take", "renew", "release", "abandon"),
    *("take_turn", "renew_turn", "return_turn"),
    *("prune", "statistics", "send", "receipt", "waiting", "settle", "park"),
    *_OF_MEMORY,
)
_ENDINGS = (RequestCompleted, RequestFailed, RequestCancelled)
_EPOCH = 1_000_000_000.0
_PATIENCE_SECONDS = 1_800.0  # virtual; far more than any lease
_RESTART_SECONDS = 5.0
_SAMPLE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The size of a simulation. Times are virtual seconds. `begin_seconds` is the time in which requests begin."""

    requests: int = 100_000
    processes: int = 20
    seed: int = 1
    begin_seconds: float = 600.0
    decide_seconds: float = 600.0  # until a person decides, at most
    park_after_seconds: float = 10.0
    kills: int = 20


@dataclass(slots=True)
class Report:
    """The outcome of a simulation. `problems` is empty if every promise was kept."""

    problems: list[str] = field(default_factory=list[str])
    calls: Counter[str] = field(default_factory=Counter[str])
    peaks: Counter[str] = field(default_factory=Counter[str])
    figures: dict[str, float] = field(default_factory=dict[str, float])

    def __str__(self) -> str:
        lines = [f"{name:42} {value:12,.2f}" for name, value in self.figures.items()]
        lines += [f"{'calls of the store':42} {'in all':>12} {'most in a second':>18}"]
        lines += [f"  {name:40} {count:12,} {self.peaks[name]:18,}" for name, count in self.calls.most_common()]
        return "\n".join([*lines, *self.problems])


def simulate(plan: Plan) -> Report:
    """Run a simulation, and return its outcome. Changes the wall clock of toolbus meanwhile; not in an event loop."""
    fleet = _Fleet(plan)
    began = time.process_time()
    with wall_time_from(lambda: _EPOCH + asyncio.get_running_loop().time()), _quiet():
        report = anyio.run(fleet.run, backend="asyncio", backend_options={"loop_factory": VirtualTimeLoop})
    report.figures["CPU of the simulation, ms a request"] = (time.process_time() - began) / plan.requests * 1_000
    return report


@contextmanager
def _quiet() -> Generator[None]:
    logger = logging.getLogger("toolbus")
    level, thresholds = logger.level, gc.get_threshold()
    logger.setLevel(logging.CRITICAL + 1)
    gc.set_threshold(100_000, 50, 1_000)
    try:
        yield
    finally:
        logger.setLevel(level)
        gc.set_threshold(*thresholds)


# ------------------------------------------------------------------------------------------------- the store


class _Database:
    """The store that all processes share, the queue of its calls, and what they were."""

    def __init__(self) -> None:
        self.memory = MemoryStore(journal=True, max_conversations=10**9, max_bytes=10**12)
        self.journal: Any = self.memory.journal
        self.calls = Counter[str]()
        self.refused_takes = 0
        self.busy_seconds = self.longest_queue = 0.0
        self.orphaned: dict[str, float] = {}  # requests whose process was killed, and when
        self.orphan_seconds: list[float] = []
        self._free_at = 0.0
        self._second = 0
        self._in_second = Counter[str]()
        self.peaks = Counter[str]()

    def wait(self, name: str, rows: int) -> float:
        """Put a call into the queue, and return the seconds until it is answered."""
        now = anyio.current_time()
        if int(now) != self._second:
            self._second = int(now)
            self.peaks |= self._in_second
            self._in_second.clear()
        self.calls[name] += 1
        self._in_second[name] += 1
        cost = COSTS.get(name, 100e-6) + rows * _A_ROW
        self._free_at = max(self._free_at, now) + cost
        self.busy_seconds += cost
        self.longest_queue = max(self.longest_queue, self._free_at - now)
        return self._free_at - now + _ROUND_TRIP

    def taken(self, request_id: str) -> None:
        """Note that a process has taken a request."""
        if (since := self.orphaned.pop(request_id, None)) is not None:
            self.orphan_seconds.append(anyio.current_time() - since)


class _Link:
    """One process's connection to the database: a `Store` and its journal. It ends with the process."""

    def __init__(self, database: _Database) -> None:
        self.database = database
        self.is_dead = False
        self._leases: set[str] = set()

    @property
    def journal(self) -> _Link:
        return self

    async def aclose(self) -> None:
        """Do nothing: the database outlives the process."""

    async def ask(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Ask the database, in the time that it takes."""
        database = self.database
        await self._wait(name, 0)
        owner: Any = database.memory if name in _OF_MEMORY else database.journal
        answer = await getattr(owner, name)(*args, **options)
        if name == "append":
            entry: Entry = args[0]
            self._note_lease(entry.request_id, has=entry.ending is None)
        elif name in ("release", "park", "abandon"):
            self._note_lease(args[0], has=False)
        elif name == "take" and answer is not None:
            self._note_lease(args[0], has=True)
            database.taken(args[0])
        elif name == "take":
            database.refused_takes += 1
        elif name == "unfinished" and answer:
            await self._wait("rows", len(answer))
        return answer

    async def _wait(self, name: str, rows: int) -> None:
        if not self.is_dead:
            await anyio.sleep(self.database.wait(name, rows))
        if self.is_dead:
            raise StoreError("the process is dead")

    def _note_lease(self, request_id: str, *, has: bool) -> None:
        (self._leases.add if has else self._leases.discard)(request_id)

    def die(self) -> None:
        """Write and read nothing any more. The requests whose leases this process has are orphans now."""
        self.is_dead = True
        self.database.orphaned |= dict.fromkeys(self._leases, anyio.current_time())


def _linked(name: str) -> Callable[..., Awaitable[Any]]:
    async def call(self: _Link, *args: Any, **options: Any) -> Any:
        return await self.ask(name, args, options)

    return call


for _name in _CALLS:
    setattr(_Link, _name, _linked(_name))


# ------------------------------------------------------------------------------------------------- requests


class _Model:
    """A model that looks something up and pays, then says so; each answer takes a while."""

    vendor = "simulated"

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:  # noqa: ARG002 -- it emits nothing
        await anyio.sleep(self._chance.uniform(*_MODEL_SECONDS))
        if request.messages[-1].role == "tool":
            return ModelReply(message=AssistantMessage(text="Paid."), finish_reason="stop")
        calls = tuple([ToolCall(name=each, provider_call_id=each) for each in ("look_up", "pay")])
        return ModelReply(message=AssistantMessage(tool_calls=calls), finish_reason="tool_calls")


class _Process:
    """A process of the fleet, until it is killed or replaced."""

    def __init__(self, fleet: _Fleet) -> None:
        self.fleet = fleet
        self.link = _Link(fleet.database)
        store: Any = self.link
        self.runtime = Runtime(
            _Model(fleet.chance),
            tools=fleet.tools,
            store=store,
            max_sessions=max(100, 3 * fleet.plan.requests // fleet.plan.processes),
            max_concurrency=fleet.plan.requests,
            park_after_seconds=fleet.plan.park_after_seconds,
        )
        self.is_ready = False
        self._scope = anyio.CancelScope()
        self._leaves = anyio.Event()

    async def live(self) -> None:
        with self._scope:
            try:
                async with self.runtime:
                    self.runtime.bus.connect(ApprovalRequested, self.fleet.ask_person)
                    self.runtime.bus.connect(_ENDINGS, self.fleet.note_end)
                    await self.runtime.resume(watch=True)
                    self.is_ready = True
                    await self._leaves.wait()
                    self.is_ready = False
            except ToolbusError:
                if not self.link.is_dead:
                    raise

    def kill(self) -> None:
        """End as by SIGKILL: nothing that this process does has an effect from now on."""
        self.is_ready = False
        self.link.die()
        self._scope.cancel()

    def leave(self) -> None:
        """Drain, and leave the requests to others."""
        self._leaves.set()


class _Fleet:
    """The processes, the people who decide, and what has happened."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.chance = random.Random(plan.seed)
        self.database = _Database()
        self.processes: list[_Process] = []
        self.paid = Counter[str]()
        self.ended = Counter[str]()
        self.decided = Counter[str]()
        self.most_sessions = 0
        self._asked: set[str] = set()
        self._questions: list[ApprovalRequested] = []
        self._people: anyio.abc.TaskGroup
        self._is_over = False
        self._all_ended = anyio.Event()
        self._faults = Counter[str]()
        self._decided_at: dict[str, float] = {}
        self._continued: list[float] = []

        @tool(idempotent=True)
        async def look_up() -> str:
            """Look up what is to be paid."""
            await anyio.sleep(_TOOL_SECONDS)
            return "100"

        @tool(needs_approval=True)
        async def pay(ctx: ToolContext[None]) -> str:
            """Pay."""
            if (since := self._decided_at.pop(ctx.request_id, None)) is not None:
                self._continued.append(anyio.current_time() - since)
            self.paid[ctx.request_id] += 1
            await anyio.sleep(_TOOL_SECONDS)
            return "paid"

        self.tools: list[Any] = [look_up, pay]

    async def run(self) -> Report:
        plan = self.plan
        took = 0.0
        async with anyio.create_task_group() as tasks, anyio.create_task_group() as self._people:
            for _ in range(plan.processes):
                tasks.start_soon(self._slot)
            tasks.start_soon(self._begin_all)
            tasks.start_soon(self._do_harm)
            tasks.start_soon(self._count_sessions)
            with anyio.move_on_after(3 * plan.begin_seconds + plan.decide_seconds + _PATIENCE_SECONDS):
                await self._all_ended.wait()
            took = anyio.current_time()
            self._is_over = True
            for each in self.processes:
                each.leave()
            self._people.cancel_scope.cancel()
        records = await self.database.journal.requests(limit=plan.requests + 1)
        return self._report(took, Counter(str(each.ending) for each in records))

    # ---------------------------------------------------------------------------------------------- the processes

    async def _slot(self) -> None:
        while not self._is_over:
            process = _Process(self)
            self.processes.append(process)
            await process.live()
            self.processes.remove(process)
            if not self._is_over:
                await anyio.sleep(_RESTART_SECONDS)

    def _ready(self) -> list[_Process]:
        return [each for each in self.processes if each.is_ready]

    async def _one_that_is_ready(self) -> _Process:
        while not (ready := self._ready()):  # noqa: ASYNC110 -- any of the processes may become ready
            await anyio.sleep(1)
        return self.chance.choice(ready)

    async def _do_harm(self) -> None:
        """Kill processes one at a time, then half of them at once, and replace all, one after the other."""
        plan = self.plan
        for _ in range(plan.kills):
            await anyio.sleep(self.chance.uniform(0, 1.5 * plan.begin_seconds / max(1, plan.kills)))
            self._kill(1)
        self._kill(plan.processes // 2)
        await anyio.sleep(90)
        for each in self._ready():
            if self._is_over:
                return
            each.leave()
            self._faults["replaced"] += 1
            await anyio.sleep(15)

    async def _count_sessions(self) -> None:
        while not self._is_over:
            here = sum(each.runtime.statistics().running for each in self.processes)
            self.most_sessions = max(self.most_sessions, here)
            await anyio.sleep(_SAMPLE_SECONDS)

    def _kill(self, count: int) -> None:
        ready = self._ready()
        for each in self.chance.sample(ready, min(count, len(ready))):
            each.kill()
            self._faults["killed"] += 1

    # ---------------------------------------------------------------------------------------------- the requests

    async def _begin_all(self) -> None:
        plan = self.plan
        for _ in range(plan.requests):
            await anyio.sleep(self.chance.expovariate(plan.requests / plan.begin_seconds))
            process = await self._one_that_is_ready()
            process.runtime.start("Pay the bill.")

    def ask_person(self, question: ApprovalRequested) -> None:
        """Let a person decide, after a while, in any process."""
        if question.call_id not in self._asked:
            self._asked.add(question.call_id)
            self._people.start_soon(self._decide, question)

    async def _decide(self, question: ApprovalRequested) -> None:
        await anyio.sleep(self.chance.uniform(1, self.plan.decide_seconds))
        self._decided_at[question.request_id] = anyio.current_time()
        while True:
            process = await self._one_that_is_ready()
            with suppress(ToolbusError):  # The process may be killed meanwhile; the person tries again.
                answer = await process.runtime.request(question.request_id).approve(question)
                self.decided[answer] += 1
                return

    def note_end(self, event: Event) -> None:
        """Count an ending that a process has reported."""
        self.ended[event.request_id] += 1
        if len(self.ended) == self.plan.requests:
            self._all_ended.set()

    # ---------------------------------------------------------------------------------------------- the outcome

    def _report(self, took: float, endings: Counter[str]) -> Report:
        database, plan = self.database, self.plan
        report = Report(calls=database.calls, peaks=database.peaks)
        if endings != {"completed": plan.requests}:
            report.problems.append(f"the endings are {dict(endings)}")
        if twice := [each for each, count in self.paid.items() if count > 1]:
            report.problems.append(f"{len(twice)} payments were made twice")
        if twice := [each for each, count in self.ended.items() if count > 1]:
            report.problems.append(f"{len(twice)} endings were reported twice")
        report.figures = {
            "requests": plan.requests,
            "processes": plan.processes,
            "processes killed": self._faults["killed"],
            "processes replaced": self._faults["replaced"],
            "virtual seconds": took,
            "most sessions in memory at once": self.most_sessions,
            "approvals done at once": self.decided["done"],
            "approvals queued": self.decided["queued"],
            "payments": self.paid.total(),
            "requests whose process was killed": len(database.orphan_seconds),
            "  seconds until another has it, median": _at(database.orphan_seconds, 0.5),
            "  seconds until another has it, longest": _at(database.orphan_seconds, 1.0),
            "seconds from a decision to its call, median": _at(self._continued, 0.5),
            "seconds from a decision to its call, 99 %": _at(self._continued, 0.99),
            "seconds from a decision to its call, longest": _at(self._continued, 1.0),
            "takes of leases that were refused": database.refused_takes,
            "calls of the store, for each request": (database.calls.total() - database.calls["rows"]) / plan.requests,
            "time of the store, ms for each request": database.busy_seconds / plan.requests * 1_000,
            "longest queue of the store, s": database.longest_queue,
        }
        return report


def _at(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def main() -> int:
    """Run a simulation, and print its table. The exit status is 1 if a promise was not kept."""
    parser = argparse.ArgumentParser("soak.scale", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, value in (("requests", 100_000), ("processes", 20), ("seed", 1), ("kills", 20)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    report = simulate(Plan(**vars(options)))
    print(report)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
