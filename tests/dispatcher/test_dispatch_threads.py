"""Threads of sync handlers: bounded, counted until they end, named when they outlive their call."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from dispatch_desk import Desk, View

from toolbus import Interceptor, ToolDispatcher, ToolError, ToolRegistry, ToolResult
from toolbus.dispatcher._thread_run import HandlerNotStarted, ThreadRun
from toolbus.events import ToolCallLate
from toolbus.tool_results import render
from toolbus.tools import Tool

pytestmark = [
    pytest.mark.guarantee("G14"),
    pytest.mark.leaves("buses", reason="requests are opened by hand, and no session ends them"),
]


class Threads:
    """A sync tool whose calls wait in their threads until they are let go, by the number they were called with."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.answer: Any = None
        self.raises: BaseException | None = None
        self._gates: dict[int, threading.Event] = {}
        self._lock = threading.Lock()

    def tool(self, name: str = "block", **options: Any) -> Tool:
        return Tool(name, handler=self._block, **options)

    def _block(self, number: int) -> Any:
        gate = self._gate(number)
        self.begun.append(number)
        assert gate.wait(60)
        if self.raises is not None:
            raise self.raises
        return self.answer

    def _gate(self, number: int) -> threading.Event:
        with self._lock:
            return self._gates.setdefault(number, threading.Event())

    def let_go(self, *numbers: int) -> None:
        for number in numbers or tuple(self._gates):
            self._gate(number).set()


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads()
    yield made
    made.let_go()


async def begun(threads: Threads, count: int) -> None:
    """Wait until that many threads are in their handlers."""
    with anyio.fail_after(30):
        while len(threads.begun) < count:
            await anyio.wait_all_tasks_blocked()


async def given_up(threads: Threads, desk: Desk) -> None:
    """Settle a call from elsewhere while its thread runs, so that whatever the thread returns is late."""
    desk.ask("block", number=0)
    await begun(threads, 1)
    desk.settle()
    await anyio.wait_all_tasks_blocked()


async def test_at_most_so_many_threads_run_and_the_loop_goes_on(threads: Threads):
    async def quick() -> str:
        return "quick"

    desk = Desk()
    registry = ToolRegistry([threads.tool(), Tool("quick", handler=quick)])
    async with ToolDispatcher(desk.bus, registry, max_threads=2) as dispatcher:
        for number in range(3):
            desk.ask("block", str(number), number=number)
        await begun(threads, 2)
        desk.ask("quick", "async")
        assert (await desk.completed("async")).content == "quick", "async handlers need no thread"
        statistics = dispatcher.statistics()
        assert (statistics.threads, statistics.running, statistics.queued) == (2, 2, 1)
        assert sorted(threads.begun) == [0, 1]
        threads.let_go(0, 1, 2)
        for number in range(3):
            await desk.completed(str(number))
        statistics = dispatcher.statistics()
        assert (statistics.threads, statistics.threads_peak, statistics.queued) == (0, 2, 0)


@pytest.mark.guarantee("G13")
async def test_a_handler_that_failed_in_its_thread_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    attempts: list[int] = []

    def at_once(attempt: int, _seed: str) -> float:
        attempts.append(attempt)
        return 0.0

    def work() -> str:
        if len(attempts) < 2:
            raise ConnectionError
        return f"after {len(attempts)}"

    monkeypatch.setattr("toolbus.dispatcher._retries.backoff_seconds", at_once)
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([Tool("work", handler=work, retries=5)])) as dispatcher:
        desk.ask("work")
        assert (await desk.completed()).content == "after 2"
        await anyio.wait_all_tasks_blocked()
        statistics = dispatcher.statistics()
        assert (statistics.running, statistics.threads, statistics.threads_peak) == (0, 0, 1)
    assert attempts == [1, 2]


async def test_a_thread_that_outlives_its_call_is_named_and_keeps_its_place_until_it_ends(
    threads: Threads, caplog: pytest.LogCaptureFixture
):
    threads.answer = ToolResult(message="done at last")
    desk = Desk()
    tools = ToolRegistry([threads.tool()])
    async with ToolDispatcher(desk.bus, tools, max_threads=2, grace_seconds=0) as dispatcher:
        desk.ask("block", "0", number=0)
        await begun(threads, 1)
        desk.settle("0")
        await anyio.wait_all_tasks_blocked()
        statistics = dispatcher.statistics()
        assert (statistics.threads, statistics.overdue) == (1, ("block",))
        assert statistics.running == 0, "its place among the handlers is free"
        assert [each.getMessage() for each in caplog.records] == ["call 0: the thread of tool block outlives its call"]
        assert caplog.records[0].call_id == "0"  # type: ignore[attr-defined]
        threads.let_go(0)
        (late,) = await desk.hear(ToolCallLate)
        statistics = dispatcher.statistics()
        assert (statistics.threads, statistics.overdue) == (0, ())
    assert (late.call_id, late.event_type, late.content) == (
        "0",
        "tool_call_completed",
        '{"ok":true,"message":"done at last"}',
    )
    assert len(desk.endings("0")) == 1


def test_a_handler_that_is_given_up_before_its_thread_begins_never_runs():
    ran: list[str] = []
    run = ThreadRun(lambda: ran.append("handler"), lambda: True, lambda _value, _error: ran.append("late"))
    assert not run.abandon()
    run._run()  # pyright: ignore[reportPrivateUsage]
    value, error = run._outcome  # pyright: ignore[reportPrivateUsage]
    assert (ran, value, type(error)) == ([], None, HandlerNotStarted)


class Broken(list[str]):
    """A list that cannot be read."""

    def __iter__(self) -> Any:
        raise ValueError("secret")


@pytest.mark.parametrize(
    ("answer", "raises", "reported"),
    [
        (None, ValueError("secret"), "internal error"),
        (object(), None, "type object"),
        (ToolResult(affected=Broken()), None, "internal error"),
    ],
    ids=["raises", "unwritable", "broken"],
)
async def test_a_late_failure_is_reported_as_late_too(threads: Threads, answer: Any, raises: Any, reported: str):
    threads.answer, threads.raises = answer, raises
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([threads.tool()])) as dispatcher:
        await given_up(threads, desk)
        threads.let_go(0)
        (late,) = await desk.hear(ToolCallLate)
        assert dispatcher.statistics().threads == 0
    assert late.event_type == "tool_call_failed"
    assert reported in late.error


async def test_a_coroutine_that_comes_late_is_closed(threads: Threads):
    async def never() -> None:
        raise AssertionError

    threads.answer = answer = never()
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([threads.tool()])):
        await given_up(threads, desk)
        threads.let_go(0)
        (late,) = await desk.hear(ToolCallLate)
    assert "coroutine" in late.error
    assert inspect.getcoroutinestate(answer) == inspect.CORO_CLOSED


@pytest.mark.parametrize("fails", [False, True])
async def test_a_result_that_a_thread_gives_late_is_screened_before_anybody_hears_of_it(threads: Threads, fails: bool):
    class Screen(Interceptor):
        async def after_tool(self, call: Any, result: Any, context: Any) -> Any:
            if fails:
                raise ToolError("not for you")
            return render("screened")

    view = View()
    view.interceptors = [Screen()]
    threads.answer = "raw"
    desk = Desk(view=view)
    async with ToolDispatcher(desk.bus, ToolRegistry([threads.tool()])):
        await given_up(threads, desk)
        threads.let_go(0)
        (late,) = await desk.hear(ToolCallLate)
    expected = ("tool_call_failed", "", "not for you") if fails else ("tool_call_completed", "screened", "")
    assert (late.event_type, late.content, late.error) == expected


@pytest.mark.parametrize("fails", [False, True])
async def test_a_late_result_that_is_still_screened_when_the_block_is_left_is_heard_by_nobody(
    threads: Threads, caplog: pytest.LogCaptureFixture, fails: bool
):
    screening = anyio.Event()

    class Screen(Interceptor):
        async def after_tool(self, call: Any, result: Any, context: Any) -> Any:
            screening.set()
            try:
                await anyio.sleep_forever()
            finally:
                if fails:
                    raise ToolError("not for you")

    view = View()
    view.interceptors = [Screen()]
    desk = Desk(view=view)
    async with ToolDispatcher(desk.bus, ToolRegistry([threads.tool()])):
        await given_up(threads, desk)
        threads.let_go(0)
        with anyio.fail_after(30):
            await screening.wait()
    assert desk.seen(ToolCallLate) == []
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


async def test_a_late_result_that_would_be_screened_is_heard_by_nobody_after_the_block(threads: Threads):
    class Screen(Interceptor):
        async def after_tool(self, call: Any, result: Any, context: Any) -> Any:
            raise AssertionError

    view = View()
    view.interceptors = [Screen()]
    desk = Desk(view=view)
    async with ToolDispatcher(desk.bus, ToolRegistry([threads.tool()])) as dispatcher:
        await given_up(threads, desk)
    threads.let_go(0)
    with anyio.fail_after(30):
        while dispatcher.statistics().threads:
            await anyio.lowlevel.checkpoint()
    assert desk.seen(ToolCallLate) == []


async def test_when_all_threads_are_held_by_the_overdue_a_call_is_refused_at_once(threads: Threads):
    desk = Desk()

    async def no_thread() -> str:
        return "done"

    tools = ToolRegistry([threads.tool(), Tool("no_thread", handler=no_thread)])
    async with ToolDispatcher(desk.bus, tools, max_threads=2) as dispatcher:
        for number in range(2):
            desk.ask("block", str(number), number=number)
        await begun(threads, 2)
        desk.settle("0")
        await anyio.wait_all_tasks_blocked()
        desk.ask("block", "2", number=2)
        assert desk.endings("2") == [], "one thread may still end in time, so the call waits"
        desk.settle("1")
        await anyio.wait_all_tasks_blocked()
        desk.ask("block", "3", number=3)
        (refused,) = desk.endings("3")
        assert (refused.reason, refused.retryable) == ("error", True)  # type: ignore[union-attr] # pyright: ignore[reportAttributeAccessIssue]
        assert "No thread is free" in refused.error  # type: ignore[union-attr] # pyright: ignore[reportAttributeAccessIssue]
        desk.ask("no_thread", "without a thread")
        assert (await desk.completed("without a thread")).content == "done"
        assert dispatcher.statistics().queued == 1
        threads.let_go(0, 2)
        await desk.completed("2")
        desk.ask("block", "4", number=4)
        threads.let_go(4)
        await desk.completed("4")
        assert sorted(threads.begun) == [0, 1, 2, 4]


async def test_the_next_call_gets_the_thread_only_when_the_overdue_one_has_ended(threads: Threads):
    desk = Desk()
    tools = ToolRegistry([threads.tool("narrow", max_concurrency=1), threads.tool("wide")])
    async with ToolDispatcher(desk.bus, tools, max_threads=2) as dispatcher:
        desk.ask("narrow", "0", number=0)
        await begun(threads, 1)
        desk.settle("0")
        desk.ask("narrow", "1", number=1)
        desk.ask("wide", "2", number=2)
        threads.let_go(2)
        await desk.completed("2")
        assert threads.begun == [0, 2], "the tool's own place is held as well"
        assert dispatcher.statistics().queued == 1
        threads.let_go(0, 1)
        await desk.completed("1")
        assert threads.begun == [0, 2, 1]


async def test_a_thread_that_outlives_the_dispatcher_is_still_counted_and_named(
    threads: Threads, caplog: pytest.LogCaptureFixture
):
    desk = Desk()
    dispatcher = ToolDispatcher(desk.bus, ToolRegistry([threads.tool()]), grace_seconds=3600)
    async with dispatcher:
        desk.ask("block", number=0)
        await begun(threads, 1)
    named = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert named == ["call c: the thread of tool block outlives its call"], "nobody could tell it later"
    event = await desk.failed()
    assert (event.reason, event.outcome_unknown) == ("cancelled", True)
    assert (dispatcher.statistics().threads, dispatcher.statistics().overdue) == (1, ("block",))
    threads.let_go(0)
    await desk.hear(ToolCallLate)
    assert (dispatcher.statistics().threads, dispatcher.statistics().overdue) == (0, ())


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_thread_that_outlives_its_event_loop_ends_in_silence(backend: str, monkeypatch: pytest.MonkeyPatch):
    begun, go = threading.Event(), threading.Event()
    workers: list[threading.Thread] = []
    complaints: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", complaints.append)

    def block() -> None:
        workers.append(threading.current_thread())
        begun.set()
        assert go.wait(60)

    async def main() -> ToolDispatcher:
        desk = Desk()
        async with ToolDispatcher(desk.bus, ToolRegistry([block])) as dispatcher:
            desk.ask("block")
            with anyio.fail_after(30):
                while not begun.is_set():
                    await anyio.lowlevel.checkpoint()
        return dispatcher

    dispatcher = anyio.run(main, backend=backend)
    go.set()
    if backend == "asyncio":  # trio keeps its threads for later
        workers[0].join(60)
        assert not workers[0].is_alive()
    assert complaints == []
    assert dispatcher.statistics().threads == 1, "nobody was left to count it down"
