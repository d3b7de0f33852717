"""What a request costs, counted and not timed: the same numbers on every machine, and the same at every length.

The request is fixed: rounds of two tool calls each, then a text, by a model and a tool that answer at once, without a
store that lasts and, unless said, without a listener. One request goes before, so that what is made once (workers,
schemas) is not counted.

A number that has fallen is to be written down here, lower. One that has risen is a cost that every user pays at every
round: find the commit (`git bisect run` with this file), and keep it only if what it buys is worth that, with a
sentence here on what it is. `benchmarks/instructions.py` then says what the change costs in all.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import math
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import blinker
import pytest
import trio

import toolbus
from toolbus import Limits, Runtime, tool
from toolbus.events import DeadLetter, Event
from toolbus.messages import AssistantMessage, ToolCall
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.stores.memory import MemoryStore

pytestmark = pytest.mark.usefixtures("nothing_else_to_collect")

HOME = str(Path(toolbus.__file__).parent)
CALLS = 2
BOUNDLESS = Limits(max_rounds=1_000, max_tool_calls=10_000, max_repeats=10_000)


@dataclass
class Costs:
    """What something cost.

    tasks: those that were started on the event loop.
    timers: deadlines that were set on it, moved ones included.
    switches: what it was asked to run: callbacks on asyncio, steps of tasks on trio.
    built: event objects, by type, however they were made. Each costs about a microsecond.
    published: the bus's positions, one for each event that is told, be there anybody to hear it or not.
    sends: of blinker's, which costs 2.5 us with nobody there; so toolbus asks a dictionary of its own first.
    calls: of Python functions in toolbus's own files, of which a generated `__init__` is none; a coroutine that goes on
        counts again. Newer Pythons count fewer, as they call no function for a comprehension.
    """

    tasks: int = 0
    timers: int = 0
    switches: int = 0
    published: int = 0
    sends: int = 0
    calls: int = 0
    built: Counter[str] = field(default_factory=Counter[str])

    def numbers(self) -> dict[str, float]:
        return {**vars(self), "built": self.built.total()}

    def of_a_round(self, more: Costs, rounds: int) -> dict[str, float]:
        """What each of the `rounds` cost that `more` had more than this."""
        mine, others = self.numbers(), more.numbers()
        return {name: (others[name] - mine[name]) / rounds for name in mine}


@tool
async def lookup(city: str, n: int) -> dict[str, Any]:
    """Look a city up."""
    return {"ok": True, "city": city, "n": n}


class Model:
    """Asks for two calls in each of `rounds`, then says so."""

    vendor = "counted"
    rounds = 0

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        if request.round == self.rounds:
            return ModelReply(message=AssistantMessage(text="done"))
        wanted = [f'{{"city": "Paris", "n": {number}}}' for number in range(CALLS)]
        calls = tuple(ToolCall(name="lookup", arguments=each, provider_call_id=f"{request.round}") for each in wanted)
        return ModelReply(message=AssistantMessage(tool_calls=calls))


# ------------------------------------------------------------------------------------------------ counting


class TrioSteps(trio.abc.Instrument):
    def __init__(self, costs: Costs) -> None:
        self.costs = costs

    def task_spawned(self, task: object) -> None:
        self.costs.tasks += 1

    def before_task_step(self, task: object) -> None:
        self.costs.switches += 1


@contextlib.contextmanager
def counting_on_trio(costs: Costs, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    deadline, enter = trio.CancelScope.deadline, trio.CancelScope.__enter__

    def set_deadline(scope: trio.CancelScope, moment: float) -> None:
        costs.timers += moment != math.inf
        deadline.__set__(scope, moment)

    def entering(scope: trio.CancelScope) -> trio.CancelScope:
        costs.timers += scope.deadline != math.inf
        return enter(scope)

    steps = TrioSteps(costs)
    with monkeypatch.context() as patched:
        patched.setattr(trio.CancelScope, "deadline", property(deadline.__get__, set_deadline))
        patched.setattr(trio.CancelScope, "__enter__", entering)
        trio.lowlevel.add_instrument(steps)
        yield
        trio.lowlevel.remove_instrument(steps)


@contextlib.contextmanager
def counting_on_asyncio(costs: Costs, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    loop = asyncio.get_running_loop()
    call_at, call_soon = loop.call_at, loop.call_soon

    def counted_at(*arguments: Any, **options: Any) -> asyncio.TimerHandle:
        costs.timers += 1
        return call_at(*arguments, **options)

    def counted_soon(*arguments: Any, **options: Any) -> asyncio.Handle:
        costs.switches += 1
        return call_soon(*arguments, **options)

    def make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        costs.tasks += 1
        return asyncio.Task(coroutine, loop=loop, **options)

    with monkeypatch.context() as patched:
        patched.setattr(loop, "call_at", counted_at)  # which `call_later` calls as well
        patched.setattr(loop, "call_soon", counted_soon)
        loop.set_task_factory(make_task)
        yield
        loop.set_task_factory(None)


@contextlib.contextmanager
def counting_events(costs: Costs, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Events by how they end, as an object may be made without its class being called: what dies, and what is left."""

    def living() -> Counter[str]:
        gc.collect()
        return Counter(type(each).__name__ for each in gc.get_objects() if issubclass(type(each), Event))

    def dies(event: Event) -> None:
        costs.built[type(event).__name__] += 1

    before = living()
    with monkeypatch.context() as patched:
        patched.setattr(Event, "__del__", dies, raising=False)
        yield
        costs.built += living()
        costs.built -= before


@contextlib.contextmanager
def counting_calls(costs: Costs) -> Generator[None]:
    def count(frame: Any, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            costs.calls += 1

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


@contextlib.contextmanager
def counting_sends(costs: Costs, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    send = blinker.Signal.send

    def counted(*arguments: Any, **options: Any) -> Any:
        costs.sends += 1
        return send(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(blinker.Signal, "send", counted)
        yield


class Bench:
    """A runtime, and what its requests cost."""

    def __init__(self, runtime: Runtime, model: Model, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
        self.runtime = runtime
        self.model = model
        self.monkeypatch = monkeypatch
        self.on_loop = {"asyncio": counting_on_asyncio, "trio": counting_on_trio}[backend]

    async def by_run(self) -> None:
        assert (await self.runtime.run("go", limits=BOUNDLESS)).text == "done"

    async def by_start(self) -> None:
        assert (await self.runtime.start("go", limits=BOUNDLESS).result()).text == "done"

    async def request(self, rounds: int, run: Callable[[], Awaitable[None]] | None = None) -> Costs:
        """What a request of so many rounds costs: one has gone before, so what is made once is there."""
        run = run or self.by_run
        self.model.rounds = 1
        await run()
        self.model.rounds = rounds
        costs, position = Costs(), self.runtime.bus.statistics().position
        with (
            counting_events(costs, self.monkeypatch),
            self.on_loop(costs, self.monkeypatch),
            counting_sends(costs, self.monkeypatch),
            counting_calls(costs),
        ):
            await run()
        costs.published = self.runtime.bus.statistics().position - position
        return costs


Make = Callable[[], Awaitable[Bench]]


@pytest.fixture
async def bench(anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Makes runtimes, which end with the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def make() -> Bench:
            model = Model()
            runtime = Runtime(model, tools=[lookup], store=MemoryStore(max_conversations=1), keep_ended_seconds=0)
            return Bench(await stack.enter_async_context(runtime), model, monkeypatch, anyio_backend)

        yield make


def hear_everything(bench: Bench) -> None:
    def listener(_event: Event) -> None: ...

    bench.runtime.bus.connect(Event, listener)


def assert_costs(numbers: dict[str, float], expected: dict[str, float]) -> None:
    """As expected; of calls at most that, since they differ with Python's version."""
    assert numbers["calls"] <= expected["calls"]
    assert {**numbers, "calls": 0} == {**expected, "calls": 0}


# ------------------------------------------------------------------------------------------------ the numbers


async def test_a_request_of_three_rounds_costs_what_is_written_here(bench: Make):
    costs = await (await bench()).request(3)
    assert_costs(
        costs.numbers(),
        {
            "tasks": 0,  # workers wait for calls, and `run` is carried out by the task that calls it
            "timers": 1,  # for the store that keeps the conversation: deadlines that are moved are no timers of the loop
            "switches": 6,  # each round's two
            "published": 23,  # each round's six, and five around them
            "built": 23,  # what goes into a journal is built with and without one
            "sends": 0,
            "calls": 772,
        },
    )
    assert costs.built == {
        "RequestStarted": 1,
        "RoundStarted": 4,
        "ModelResponded": 4,
        "ToolCallRequested": 6,
        "ToolCallCompleted": 6,
        "MessageAppended": 1,  # the question: replies and results append their own
        "RequestCompleted": 1,
    }


async def test_a_round_costs_the_same_at_10_and_at_40_rounds(bench: Make):
    one = await bench()
    at_10, at_12, at_40, at_42 = [await one.request(rounds) for rounds in (10, 12, 40, 42)]
    of_10 = at_10.of_a_round(at_12, 2)
    assert_costs(
        of_10,
        {
            "tasks": 0,
            "timers": 0,
            "switches": 2,  # to a worker, which runs both calls as neither waits, and back
            "published": 6,  # RoundStarted, ModelResponded, and two for each call
            "built": 6,
            "sends": 0,
            "calls": 194,
        },
    )
    assert at_40.of_a_round(at_42, 2) == of_10


async def test_a_listener_on_everything_adds_its_calls_and_the_events_that_nobody_else_wants(bench: Make):
    one = await bench()
    hear_everything(one)
    at_10, at_12, at_40, at_42 = [await one.request(rounds) for rounds in (10, 12, 40, 42)]
    of_10 = at_10.of_a_round(at_12, 2)
    assert_costs(
        of_10,
        {
            "tasks": 0,
            "timers": 0,
            "switches": 2,
            "published": 13,  # three messages, two ToolCallStarted and two StatusChanged, which are built where they are heard
            "built": 13,
            "sends": 0,  # receivers are called from a dictionary
            "calls": 266,
        },
    )
    assert at_40.of_a_round(at_42, 2) == of_10


async def test_a_request_that_is_started_costs_one_task(bench: Make):
    one = await bench()
    costs = await one.request(3, one.by_start)
    assert (costs.tasks, costs.timers, costs.published, costs.built.total(), costs.sends) == (1, 1, 23, 23, 0)


async def test_a_thousand_subscribers_that_want_something_else_cost_no_more_than_one(bench: Make):
    one = await bench()
    bus = one.runtime.bus
    async with bus.subscribe(DeadLetter), bus.subscribe(request_id="another"):
        before = await one.request(3)
        async with contextlib.AsyncExitStack() as stack:
            for number in range(500):
                await stack.enter_async_context(bus.subscribe(DeadLetter))
                await stack.enter_async_context(bus.subscribe(request_id=f"{number}"))
            assert await one.request(3) == before
    assert before.built.total() == 23


async def test_an_event_that_is_made_without_its_class_is_counted(monkeypatch: pytest.MonkeyPatch):
    costs = Costs()
    with counting_events(costs, monkeypatch):
        kept = copy.copy(
            DeadLetter(event_type="", rejected_event_id="", reason="is kept", metadata={"seen": []})
        )  # tracked
        DeadLetter(event_type="", rejected_event_id="", reason="dies at once")
    assert costs.built == {"DeadLetter": 3}
    assert isinstance(kept, Event)
