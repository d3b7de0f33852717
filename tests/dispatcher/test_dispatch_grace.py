"""Handlers and threads that go on after their cancellation: counted at once, named past their grace. Virtual time."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator

import anyio
import anyio.lowlevel
import pytest
from dispatch_desk import Desk

from toolbus import EventBus, ToolDispatcher, ToolRegistry, tool
from toolbus.errors import ConfigurationError
from toolbus.events import ToolCallOverdue
from toolbus.testing import advance, assert_idle, settle, virtual_backends
from toolbus.tools import Tool

anyio_backend = virtual_backends()
pytestmark = [
    pytest.mark.guarantee("G17"),
    pytest.mark.leaves("buses", reason="requests are opened by hand, and no session ends them"),
]


def named(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """What was told of whom."""
    return [
        (each.getMessage(), each.call_id)  # type: ignore[attr-defined]
        for each in caplog.records
        if each.levelno == logging.WARNING and each.name == "toolbus.dispatcher"
    ]


def stubborn(seconds: float = math.inf, name: str = "stubborn") -> Tool[..., object]:
    """A tool that goes on for so long after its cancellation."""

    async def go_on() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(seconds)

    return Tool(name, handler=go_on)


class Block:
    """A sync tool that blocks its thread until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.tool = Tool("block", handler=self._block)

    def _block(self) -> None:
        self.begun.set()
        assert self.go.wait(60)

    async def wait(self) -> None:
        while not self.begun.is_set():
            await anyio.lowlevel.checkpoint()


@pytest.fixture
def block() -> Iterator[Block]:
    made = Block()
    yield made
    made.go.set()


async def test_a_handler_that_still_runs_past_its_grace_is_named_once(caplog: pytest.LogCaptureFixture):
    desk = Desk()
    published: list[ToolCallOverdue] = []
    desk.bus.connect(ToolCallOverdue, published.append)
    async with ToolDispatcher(desk.bus, ToolRegistry([stubborn(60)]), grace_seconds=5) as dispatcher:
        desk.ask("stubborn")
        await settle()
        desk.settle()
        await advance(4.9)
        assert named(caplog) == []
        assert dispatcher.statistics().overdue == ("stubborn",), "it is counted at once"
        await advance(0.2)
        assert named(caplog) == [("call c: the handler of tool stubborn outlives its call", "c")]
        await advance(50)
        assert (len(named(caplog)), dispatcher.statistics().overdue) == (1, ("stubborn",))
        await advance(10)
        assert (len(named(caplog)), dispatcher.statistics().overdue) == (1, ())
    assert [(each.call_id, each.name, each.runs_in, each.seconds) for each in published] == [
        ("c", "stubborn", "task", 5)
    ]


async def test_a_handler_that_ends_within_its_grace_is_not_named(caplog: pytest.LogCaptureFixture):
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([stubborn(4)])) as dispatcher:
        desk.ask("stubborn")
        await settle()
        desk.settle()
        await advance(60)
        assert dispatcher.statistics().overdue == ()
    assert named(caplog) == []


async def test_each_call_has_its_own_grace(caplog: pytest.LogCaptureFixture):
    desk = Desk()
    tools = ToolRegistry([stubborn(60, "one"), stubborn(4, "two"), stubborn(60, "three")])
    async with ToolDispatcher(desk.bus, tools, grace_seconds=5) as dispatcher:
        for name in ("one", "two", "three"):
            desk.ask(name, name)
            await settle()
            desk.settle(name)
            await advance(2)
        assert dispatcher.statistics().overdue == ("one", "three")
        await advance(0)
        assert named(caplog) == [("call one: the handler of tool one outlives its call", "one")]
        await advance(4)
        assert [call_id for _, call_id in named(caplog)] == ["one", "three"]


async def test_a_dispatcher_closes_at_once_when_its_overdue_calls_have_ended():
    desk = Desk()
    tools = ToolRegistry([stubborn(1, "one"), stubborn(1, "two")])
    async with ToolDispatcher(desk.bus, tools, grace_seconds=5) as dispatcher:
        for name in ("one", "two"):
            desk.ask(name, name)
        await settle()
        for name in ("one", "two"):
            desk.settle(name)
        await settle()
        assert dispatcher.statistics().overdue == ("one", "two")
        await advance(1)
        assert dispatcher.statistics().overdue == ()
        began = anyio.current_time()
    assert anyio.current_time() == began


async def test_a_call_that_becomes_overdue_after_another_one_was_named_is_named_too(caplog: pytest.LogCaptureFixture):
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([stubborn(60)]), grace_seconds=5):
        for call_id in ("one", "two"):
            desk.ask("stubborn", call_id)
        await settle()
        desk.settle("one")
        await advance(6)
        desk.settle("two")
        await advance(6)
        assert [call_id for _, call_id in named(caplog)] == ["one", "two"]


@pytest.mark.parametrize("seconds", [1.0, 10.0], ids=["ends in time", "is named"])
async def test_no_task_watches_while_nothing_is_overdue(seconds: float):
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([stubborn(seconds)]), grace_seconds=5):
        for number in range(3):
            before = len(anyio.get_running_tasks())
            desk.ask("stubborn", str(number))
            await settle()
            desk.settle(str(number))
            await settle()
            assert len(anyio.get_running_tasks()) == before + 2, "the handler's worker, and the one that watches"
            await advance(20)
            assert len(anyio.get_running_tasks()) == before


async def test_a_call_that_becomes_overdue_while_the_watch_ends_is_watched(caplog: pytest.LogCaptureFixture):
    desk = Desk()
    go = anyio.Event()

    @tool
    async def brief() -> None:
        """End when it is let go."""
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await go.wait()
            desk.settle("next")  # in the step in which the first one leaves

    async with ToolDispatcher(desk.bus, ToolRegistry([brief, stubborn(60)]), grace_seconds=5):
        desk.ask("stubborn", "next")
        desk.ask("brief")
        await settle()
        desk.settle()
        await settle()
        go.set()
        await advance(6)
        assert [call_id for _, call_id in named(caplog)] == ["next"]


@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("entered_before", [0, 1])
async def test_a_thread_that_still_runs_past_its_grace_is_named_once(
    entered_before: int, block: Block, caplog: pytest.LogCaptureFixture
):
    desk = Desk()
    published: list[ToolCallOverdue] = []
    desk.bus.connect(ToolCallOverdue, published.append)
    dispatcher = ToolDispatcher(desk.bus, ToolRegistry([block.tool]), grace_seconds=5)
    for _ in range(entered_before):
        async with dispatcher:
            await settle()
    async with dispatcher:
        desk.ask("block")
        await block.wait()
        desk.settle()
        await advance(4.9, wait_for_threads=False)
        assert (named(caplog), dispatcher.statistics().overdue) == ([], ("block",))
        await advance(20, wait_for_threads=False)
        assert named(caplog) == [("call c: the thread of tool block outlives its call", "c")]
        block.go.set()
        while dispatcher.statistics().overdue:
            await anyio.lowlevel.checkpoint()
    assert len(named(caplog)) == 1
    assert [each.runs_in for each in published] == ["thread"]


async def test_leaving_the_block_waits_for_a_handler_and_names_it(caplog: pytest.LogCaptureFixture):
    desk = Desk()
    began = anyio.current_time()
    async with ToolDispatcher(desk.bus, ToolRegistry([stubborn(60)]), grace_seconds=5) as dispatcher:
        desk.ask("stubborn")
        await settle()
    assert anyio.current_time() - began == pytest.approx(60)
    assert named(caplog) == [("call c: the handler of tool stubborn outlives its call", "c")]
    assert dispatcher.statistics().overdue == ()


async def test_leaving_the_block_does_not_wait_for_a_thread(block: Block, caplog: pytest.LogCaptureFixture):
    bus = EventBus()
    desk = Desk(bus)
    began = anyio.current_time()
    async with ToolDispatcher(bus, ToolRegistry([block.tool]), max_threads=1, grace_seconds=3600) as dispatcher:
        desk.ask("block")
        await block.wait()
        desk.ask("block", "waits for a thread")
        desk.settle()
        await settle(wait_for_threads=False)
    assert anyio.current_time() - began < 10
    assert named(caplog) == [("call c: the thread of tool block outlives its call", "c")]
    assert dispatcher.statistics().overdue == ("block",)
    assert (await desk.failed("waits for a thread")).reason == "cancelled"
    assert dispatcher.statistics().queued == 0
    desk.leave()
    await assert_idle(bus)


async def test_a_dispatcher_that_is_entered_again_watches_again(caplog: pytest.LogCaptureFixture):
    desk = Desk()
    dispatcher = ToolDispatcher(desk.bus, ToolRegistry([stubborn(60)]), grace_seconds=5)
    for call_id in ("one", "two"):
        async with dispatcher:
            desk.ask("stubborn", call_id)
            await settle()
            desk.settle(call_id)
            await advance(70)
    assert [call_id for _, call_id in named(caplog)] == ["one", "two"]


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan])
def test_a_grace_that_is_no_time_is_refused(seconds: float):
    with pytest.raises(ConfigurationError, match="grace_seconds is"):
        ToolDispatcher(EventBus(), grace_seconds=seconds)
