"""Handlers that wait for other calls: they hold no place meanwhile, get theirs again in order, and leak none."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import anyio
import anyio.from_thread
import pytest
from dispatch_desk import Desk

from toolbus import EventBus, RequestSession, ToolDispatcher, ToolRegistry, tool
from toolbus.dispatcher._schedule import Gate, Job, Schedule
from toolbus.testing import ScriptedProvider, advance, assert_idle, calls, settle, text, virtual_backends
from toolbus.tools import Tool, ToolContext

anyio_backend = virtual_backends()
pytestmark = pytest.mark.leaves("buses", reason="requests are opened by hand, and no session ends them")

Outside: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]


class Nesting(ToolDispatcher):
    """Gives each handler the way out as its `deps`."""

    def _tool_context(self, job: Job) -> ToolContext[Any]:
        context = super()._tool_context(job)
        context.deps = functools.partial(self._schedule.stepped_out, job)
        return context


async def nothing() -> None:
    """Nothing."""


class Queue:
    """A schedule, and calls by their numbers."""

    def __init__(self, places: int = 1, **options: Any) -> None:
        self.schedule = Schedule(places, 1, 1, deque(), lambda _: None)
        self.tool: Tool = Tool("it", handler=nothing, **options)
        self.desk = Desk()

    def enter(self, number: int) -> Job:
        job = Job(self.desk.request("it", str(number)), self.tool, self.schedule.gates_of(self.tool), {})
        self.schedule.admit(job)
        return job

    def inside(self) -> list[str]:
        """Whoever became ready since the last time."""
        ready = [job.request.call_id for job in self.schedule.ready]
        self.schedule.ready.clear()
        return ready

    def counts(self) -> tuple[int, int, int]:
        return self.schedule.overall.used, self.schedule.queued, self.schedule.outside


# ------------------------------------------------------------------------------------------------- the schedule


async def test_stepping_out_lets_others_in_and_stepping_in_waits_behind_them():
    queue = Queue()
    first, second, third = (queue.enter(number) for number in range(3))
    assert (queue.inside(), queue.counts()) == (["0"], (1, 2, 0))
    queue.schedule.step_out(first)
    assert (queue.inside(), queue.counts()) == (["1"], (1, 1, 1))
    back: list[str] = []

    async def come_back() -> None:
        await queue.schedule.step_in(first)
        back.append("0")

    async with anyio.create_task_group() as group:
        group.start_soon(come_back)
        await settle()
        assert (back, queue.counts()) == ([], (1, 2, 1))
        queue.schedule.leave(second)
        await settle()
        assert (queue.inside(), back) == (["2"], []), "who waited first goes first"
        queue.schedule.leave(third)
        await settle()
    assert (back, queue.inside(), queue.counts()) == (["0"], [], (1, 0, 0))
    queue.schedule.leave(first)
    assert queue.counts() == (0, 0, 0)


async def test_all_places_of_a_call_are_given_back_and_taken_again():
    queue = Queue(10, max_concurrency=1)
    first, second = queue.enter(0), queue.enter(1)
    narrow: Gate = first.gates[1]
    assert queue.inside() == ["0"]
    queue.schedule.step_out(first)
    assert queue.inside() == ["1"]
    assert (narrow.used, queue.counts()) == (1, (1, 0, 1))
    queue.schedule.leave(second)
    await queue.schedule.step_in(first)
    assert (narrow.used, queue.counts()) == (1, (1, 0, 0))
    queue.schedule.leave(first)
    assert (narrow.used, queue.counts()) == (0, (0, 0, 0))


async def test_a_call_is_in_again_when_the_last_of_its_tasks_has_come_back():
    queue = Queue()
    first = queue.enter(0)
    queue.schedule.step_out(first)
    queue.schedule.step_out(first)
    assert queue.counts() == (0, 0, 1)
    await queue.schedule.step_in(first)
    assert queue.counts() == (0, 0, 1)
    await queue.schedule.step_in(first)
    assert queue.counts() == (1, 0, 0)
    queue.schedule.leave(first)


async def test_a_task_that_steps_out_lets_one_go_on_that_waits_to_come_in():
    queue = Queue()
    first, second = queue.enter(0), queue.enter(1)
    queue.schedule.step_out(first)
    async with anyio.create_task_group() as group:
        group.start_soon(queue.schedule.step_in, first)
        await settle()
        assert queue.counts() == (1, 1, 1)
        queue.schedule.step_out(first)
    assert queue.counts() == (1, 0, 1)
    queue.schedule.leave(second)
    await queue.schedule.step_in(first)
    assert queue.counts() == (1, 0, 0)
    queue.schedule.leave(first)
    assert queue.counts() == (0, 0, 0)


@pytest.mark.parametrize("settled", [True, False], ids=["its call", "its own time-out"])
async def test_a_cancelled_wait_to_come_in_leaks_no_place(settled: bool):
    queue = Queue()
    first, second = queue.enter(0), queue.enter(1)
    queue.schedule.step_out(first)
    first.settled = settled
    with anyio.move_on_after(1) as scope:
        await queue.schedule.step_in(first)
    assert scope.cancelled_caught
    assert queue.counts() == ((1, 0, 0) if settled else (2, 0, 0)), "a handler that goes on counts"
    third = queue.enter(2)
    queue.schedule.leave(first)
    queue.schedule.leave(second)
    assert (queue.inside(), queue.counts()) == (["0", "1", "2"], (1, 0, 0))
    queue.schedule.leave(third)
    assert queue.counts() == (0, 0, 0)


async def test_a_cancelled_wait_that_was_over_already_leaks_no_place():
    queue = Queue()
    first, second = queue.enter(0), queue.enter(1)
    queue.schedule.step_out(first)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(queue.schedule.step_in, first)
            await settle()
            queue.schedule.leave(second)
            scope.cancel()  # in the step in which its turn has come
    assert queue.counts() == (1, 0, 0)
    queue.schedule.leave(first)
    assert queue.counts() == (0, 0, 0)


@pytest.mark.parametrize("waits", [True, False], ids=["waiting to come in", "out"])
async def test_a_task_that_outlives_its_call_takes_no_place(waits: bool):
    queue = Queue()
    first, second = queue.enter(0), queue.enter(1)
    queue.schedule.step_out(first)
    async with anyio.create_task_group() as group:
        if waits:
            group.start_soon(queue.schedule.step_in, first)
            await settle()
        queue.schedule.leave(first)
        assert queue.counts() == (1, 0, 0 if waits else 1)
    if not waits:
        await queue.schedule.step_in(first)
    assert queue.counts() == (1, 0, 0)
    queue.schedule.leave(second)
    assert queue.counts() == (0, 0, 0)


# ------------------------------------------------------------------------------------------------- the dispatcher


@tool
async def leaf() -> str:
    """Do the work."""
    await anyio.sleep(1)
    return "leaf"


@tool
def leaf_in_thread() -> str:
    """Do the work in a thread."""
    return "leaf"


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("child", [leaf, leaf_in_thread], ids=["async", "sync"])
async def test_parents_that_hold_all_places_wait_for_children_with_tools_and_all_end(depth: int, child: Tool):
    bus = EventBus()

    async def ask(tools: list[Tool]) -> str:
        arguments: dict[str, Any] = {}
        script = ScriptedProvider([calls(*((each.name, arguments) for each in tools)), text("Done.")])
        result = await RequestSession(bus, script, "Go.", tools=tools).run()
        assert [each.ok for each in result.tool_calls] == [True] * len(tools)
        return result.text

    def parent_of(inner: Tool) -> Tool:
        # The dispatcher gives the deps here, and the request has none.
        async def parent(context: ToolContext[Any]) -> str:
            async with context.deps():
                return await ask([inner])

        return Tool("parent", "Ask somebody else.", handler=parent, max_concurrency=8)

    made = child
    for _ in range(depth):
        made = parent_of(made)
    async with Nesting(bus, max_concurrency=8, max_threads=1) as dispatcher:
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(ask, [made])
        await settle()
        statistics = dispatcher.statistics()
        assert (statistics.running, statistics.queued, statistics.suspended, statistics.threads) == (0, 0, 0, 0)
        assert statistics.running_peak <= 8
    await assert_idle(bus)


async def test_a_thread_that_waits_for_others_holds_no_place_and_is_counted_again_afterwards():
    seen: list[tuple[int, int, int]] = []

    def ask(context: ToolContext[Outside]) -> str:
        anyio.from_thread.run(look, context)
        return "asked"

    async def look(context: ToolContext[Outside]) -> None:
        async with context.deps():
            desk.ask("leaf_in_thread", "inner")
            await desk.completed("inner")
            seen.append(counted())
        seen.append(counted())

    def counted() -> tuple[int, int, int]:
        statistics = dispatcher.statistics()
        return statistics.running, statistics.threads, statistics.suspended

    desk = Desk()
    tools = ToolRegistry([Tool("ask", handler=ask), leaf_in_thread])
    async with Nesting(desk.bus, tools, max_concurrency=1, max_threads=1) as dispatcher:
        desk.ask("ask", "outer")
        assert (await desk.completed("outer")).content == "asked"
        await settle()
        assert counted() == (0, 0, 0)
    assert seen == [(0, 0, 1), (1, 1, 0)]


@pytest.mark.guarantee("G17")
@pytest.mark.parametrize("when", ["out", "coming in"])
@pytest.mark.parametrize("how", ["settled", "closed"])
async def test_a_call_that_is_cancelled_while_it_is_out_leaks_no_place(when: str, how: str):
    child_ends = anyio.Event()

    @tool
    async def ask(context: ToolContext[Outside]) -> None:
        """Wait for somebody."""
        async with context.deps():
            await child_ends.wait()

    @tool
    async def busy() -> None:
        """Hold the place."""
        await anyio.sleep_forever()

    desk = Desk()
    async with Nesting(desk.bus, ToolRegistry([ask, busy]), max_concurrency=1) as dispatcher:

        def counts() -> tuple[int, int, int]:
            statistics = dispatcher.statistics()
            return statistics.running, statistics.queued, statistics.suspended

        desk.ask("ask", "outer")
        desk.ask("busy", "inner")
        await settle()
        assert counts() == (1, 0, 1)
        if when == "coming in":
            child_ends.set()
            await settle()
            assert counts() == (1, 1, 1)
        if how == "settled":
            desk.settle("outer")
            await settle()
            assert (counts(), dispatcher.statistics().overdue) == ((1, 0, 0), ())
            desk.settle("inner")
            await settle()
            assert counts() == (0, 0, 0)
    assert counts() == (0, 0, 0)
    assert len(desk.endings("outer")) == len(desk.endings("inner")) == 1
    assert (await desk.failed("outer")).reason == ("timeout" if how == "settled" else "cancelled")
    assert desk.bus.statistics().late_results == 0
    desk.leave()
    await assert_idle(desk.bus)


async def test_a_handler_that_gives_its_child_up_goes_on_and_counts():
    @tool
    async def ask(context: ToolContext[Outside]) -> str:
        """Wait for a while."""
        with anyio.move_on_after(5):
            async with context.deps():
                await anyio.sleep_forever()
        await anyio.sleep(5)
        return "without"

    desk = Desk()
    async with Nesting(desk.bus, ToolRegistry([ask, leaf]), max_concurrency=1) as dispatcher:
        desk.ask("ask", "outer")
        await advance(6)
        assert (dispatcher.statistics().running, dispatcher.statistics().suspended) == (1, 0)
        assert (await desk.completed("outer")).content == "without"
        desk.ask("leaf", "next")
        await desk.completed("next")
        assert dispatcher.statistics().running == 0


async def test_a_failure_of_the_child_reaches_the_handler_inside_again():
    @tool
    async def ask(context: ToolContext[Outside]) -> str:
        """Wait for somebody who fails."""
        try:
            async with context.deps():
                raise LookupError
        except LookupError:
            return f"{dispatcher.statistics().running} inside"

    desk = Desk()
    async with Nesting(desk.bus, ToolRegistry([ask]), max_concurrency=1) as dispatcher:
        desk.ask("ask")
        assert (await desk.completed()).content == "1 inside"
