"""How many calls run at once, in which order the others wait, and what is counted."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import anyio
import pytest
from dispatch_desk import Desk, View

from toolbus import EventBus, ToolDispatcher, ToolRegistry
from toolbus.events import ToolCallStarted
from toolbus.tools import Tool

pytestmark = pytest.mark.leaves("buses", reason="requests are opened by hand, and no session ends them")


class Gates:
    """A tool whose calls wait to be let through, one by one, by the number that they were called with."""

    def __init__(self, name: str = "wait", **options: Any) -> None:
        self.begun: list[int] = []
        self.tasks: set[int] = set()
        self._gates: dict[int, anyio.Event] = {}

        async def wait(number: int) -> int:
            self.begun.append(number)
            self.tasks.add(anyio.get_current_task().id)
            await self._gate(number).wait()
            return number

        self.tool = Tool(name, handler=wait, **options)

    def _gate(self, number: int) -> anyio.Event:
        return self._gates.setdefault(number, anyio.Event())

    def open(self, *numbers: int) -> None:
        for number in numbers:
            self._gate(number).set()


def counts(dispatcher: ToolDispatcher) -> tuple[int, int]:
    statistics = dispatcher.statistics()
    return statistics.running, statistics.queued


async def test_calls_run_at_once_up_to_the_bound_and_the_others_wait_in_order():
    desk, gates = Desk(), Gates()
    async with ToolDispatcher(desk.bus, ToolRegistry([gates.tool]), max_concurrency=2) as dispatcher:
        for number in range(5):
            desk.ask("wait", str(number), number=number)
        await anyio.wait_all_tasks_blocked()
        assert sorted(gates.begun) == [0, 1]
        assert counts(dispatcher) == (2, 3)
        for number in range(5):
            gates.open(number)
            await desk.completed(str(number))
            await anyio.wait_all_tasks_blocked()
            assert sorted(gates.begun) == list(range(min(number + 3, 5))), "in the order of asking"
        assert counts(dispatcher) == (0, 0)
        statistics = dispatcher.statistics()
        assert (statistics.running_peak, statistics.queued_peak) == (2, 3)
        assert statistics.overdue == ()


async def test_a_call_that_waits_is_not_started_yet():
    desk, gates = Desk(), Gates()
    async with ToolDispatcher(desk.bus, ToolRegistry([gates.tool]), max_concurrency=1):
        desk.ask("wait", "0", number=0)
        desk.ask("wait", "1", number=1)
        await anyio.wait_all_tasks_blocked()
        assert [each.call_id for each in desk.seen(ToolCallStarted)] == ["0"]
        gates.open(0, 1)
        await desk.completed("1")


async def test_a_tools_own_bound_holds_over_all_requests_and_blocks_no_other_tool():
    bus = EventBus()
    one, other = Desk(bus, request_id="one"), Desk(bus, request_id="other")
    narrow, wide = Gates("narrow", max_concurrency=1), Gates("wide")
    async with ToolDispatcher(bus, ToolRegistry([narrow.tool, wide.tool])) as dispatcher:
        one.ask("narrow", "c0", number=0)
        other.ask("narrow", "c1", number=1)
        one.ask("narrow", "c2", number=2)
        other.ask("wide", "c3", number=3)
        wide.open(3)
        await other.completed("c3")
        assert narrow.begun == [0]
        assert counts(dispatcher) == (1, 2)
        narrow.open(0, 1, 2)
        await one.completed("c2")
        assert narrow.begun == [0, 1, 2]


async def test_a_call_that_waits_for_its_tool_takes_no_place_from_others():
    desk = Desk()
    narrow, wide = Gates("narrow", max_concurrency=1), Gates("wide")
    async with ToolDispatcher(desk.bus, ToolRegistry([narrow.tool, wide.tool]), max_concurrency=2) as dispatcher:
        for number in range(3):
            desk.ask("narrow", f"n{number}", number=number)
        desk.ask("wide", "w0", number=0)
        desk.ask("wide", "w1", number=1)
        await anyio.wait_all_tasks_blocked()
        assert (narrow.begun, wide.begun) == ([0], [0])
        assert counts(dispatcher) == (2, 3)
        narrow.open(0)  # now the next narrow one waits for a place behind w1
        await desk.completed("n0")
        await anyio.wait_all_tasks_blocked()
        assert (narrow.begun, wide.begun) == ([0], [0, 1])
        wide.open(0, 1)
        narrow.open(1, 2)
        await desk.completed("n2")
        assert (narrow.begun, wide.begun) == ([0, 1, 2], [0, 1])
        assert counts(dispatcher) == (0, 0)


async def test_workers_are_reused():
    desk, gates = Desk(), Gates()
    async with ToolDispatcher(desk.bus, ToolRegistry([gates.tool])) as dispatcher:
        for number in range(20):
            gates.open(number)
            desk.ask("wait", str(number), number=number)
            await desk.completed(str(number))
            await anyio.wait_all_tasks_blocked()
        assert len(gates.tasks) == 1
        assert dispatcher.statistics().idle_workers == 1


async def test_a_bursts_surplus_of_workers_ends():
    before = len(anyio.get_running_tasks())
    desk, gates = Desk(), Gates()
    async with ToolDispatcher(desk.bus, ToolRegistry([gates.tool])) as dispatcher:
        for number in range(300):
            desk.ask("wait", str(number), number=number)
        await anyio.wait_all_tasks_blocked()
        assert dispatcher.statistics().running == 300
        gates.open(*range(300))
        for number in range(300):
            await desk.completed(str(number))
        await anyio.wait_all_tasks_blocked()
        assert dispatcher.statistics().idle_workers == 256
        assert len(anyio.get_running_tasks()) - before == 256
    assert len(anyio.get_running_tasks()) == before
    assert dispatcher.statistics().idle_workers == 0


@pytest.mark.parametrize("bound", ["dispatcher", "tool"])
async def test_a_call_that_is_settled_while_it_waits_leaves_the_queue_at_once_and_never_runs(bound: str):
    desk = Desk()
    gates = Gates(max_concurrency=1 if bound == "tool" else None)
    options: dict[str, Any] = {"max_concurrency": 1} if bound == "dispatcher" else {}
    async with ToolDispatcher(desk.bus, ToolRegistry([gates.tool]), **options) as dispatcher:
        for number in range(4):
            desk.ask("wait", str(number), number=number)
        await anyio.wait_all_tasks_blocked()
        assert counts(dispatcher) == (1, 3)
        assert desk.settle("2")
        assert counts(dispatcher) == (1, 2)
        gates.open(0, 1, 2, 3)
        await desk.completed("3")
        await anyio.wait_all_tasks_blocked()
        assert gates.begun == [0, 1, 3]
        assert counts(dispatcher) == (0, 0)
        assert len(desk.endings("2")) == 1
        assert dispatcher.statistics().overdue == ()


@pytest.mark.parametrize("worker", ["new", "idle"])
async def test_a_call_that_is_settled_between_its_admission_and_its_worker_never_runs(worker: str):
    desk, gates = Desk(), Gates(max_concurrency=1)
    async with ToolDispatcher(desk.bus, ToolRegistry([gates.tool])) as dispatcher:
        if worker == "idle":
            gates.open(0)
            desk.ask("wait", "0", number=0)
            await desk.completed("0")
            await anyio.wait_all_tasks_blocked()
            assert dispatcher.statistics().idle_workers == 1
        desk.ask("wait", "1", number=1)
        desk.settle("1")
        assert dispatcher.statistics().overdue == (), "it has its place, and has not begun"
        gates.open(2)
        desk.ask("wait", "2", number=2)
        await desk.completed("2")
        assert 1 not in gates.begun
        assert "1" not in [each.call_id for each in desk.seen(ToolCallStarted)]
        assert counts(dispatcher) == (0, 0)
        assert dispatcher.statistics().overdue == ()


async def test_a_tool_of_one_request_leaves_nothing_behind():
    bus = EventBus()
    async with ToolDispatcher(bus):
        view = View([Gates(max_concurrency=1).tool])
        desk = Desk(bus, view)
        made = weakref.ref(view.tools.get("wait") or view)
        desk.ask("wait", number=0)
        await anyio.wait_all_tasks_blocked()
        desk.settle()
        await anyio.wait_all_tasks_blocked()
        desk.leave()
        del view, desk
        gc.collect()
        assert made() is None


async def test_a_place_that_the_first_in_line_cannot_use_goes_to_the_next_one_at_once():
    desk, narrow, wide = Desk(), Gates("narrow", max_concurrency=1), Gates("wide")
    async with ToolDispatcher(desk.bus, ToolRegistry([narrow.tool, wide.tool]), max_concurrency=2) as dispatcher:
        for call_id, name in (("0", "narrow"), ("1", "wide"), ("2", "narrow"), ("3", "wide")):
            desk.ask(name, call_id, number=int(call_id))
        await anyio.wait_all_tasks_blocked()
        assert (narrow.begun, wide.begun, counts(dispatcher)) == ([0], [1], (2, 2))
        wide.open(1)
        await desk.completed("1")
        await anyio.wait_all_tasks_blocked()
        assert narrow.begun == [0], "its tool has a bound of its own, and waits for that one now"
        assert (wide.begun, counts(dispatcher)) == ([1, 3], (2, 1)), "a place that is free is not kept for it"
        narrow.open(0, 2)
        wide.open(3)
        for call_id in "023":
            await desk.completed(call_id)
