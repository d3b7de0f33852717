"""A session's deadline, its cancel, or another answer stops the handler: on virtual time, without a sleep."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_process
import process_tools
import pytest
from dispatch_desk import Desk

from toolbus import EventBus, Limits, RequestSession, ToolDispatcher, ToolRegistry, tool
from toolbus.events import Event, ToolCallCompleted, ToolCallFailed, ToolCallLate
from toolbus.testing import ScriptedProvider, advance, assert_idle, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()
pytestmark = pytest.mark.leaves("buses", reason="requests are opened by hand, and no session ends them")


def session_of(bus: EventBus, *names: str, **options: Any) -> RequestSession:
    nothing: dict[str, Any] = {}
    provider = ScriptedProvider([calls(*((name, nothing) for name in names)), text("Done.")])
    return RequestSession(bus, provider, "Go.", **options)


@pytest.mark.guarantee("G12")
async def test_the_sessions_deadline_cancels_the_handler_and_the_request_goes_on():
    ended: list[float] = []

    @tool
    async def hang() -> None:
        """Hang."""
        try:
            await anyio.sleep(3600)
        finally:
            ended.append(anyio.current_time())

    bus = EventBus()
    began = anyio.current_time()
    async with ToolDispatcher(bus, ToolRegistry([hang])) as dispatcher:
        result = await session_of(bus, "hang", tools=[hang], limits=Limits(tool_timeout_seconds=30)).run()
        await settle()
        assert ended == [pytest.approx(began + 30)]  # pyright: ignore[reportUnknownMemberType]
        statistics = dispatcher.statistics()
        assert (statistics.running, statistics.overdue) == (0, ())
        assert (result.outcome, result.tool_calls[0].reason) == ("completed", "timeout")
        assert bus.statistics().late_results == 0, "a handler that lets itself be cancelled says nothing more"
    await assert_idle(bus)


@pytest.mark.guarantee("G07", "G12")
async def test_a_handler_that_swallows_the_cancellation_delays_nobody_and_its_result_comes_late():
    go = anyio.Event()

    @tool
    async def stubborn() -> str:
        """Go on whatever happens."""
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await go.wait()
        return "after all"

    bus = EventBus()
    late: list[Event] = []
    bus.connect(ToolCallLate, late.append)
    began = anyio.current_time()
    async with ToolDispatcher(bus) as dispatcher:
        result = await session_of(bus, "stubborn", tools=[stubborn], limits=Limits(tool_timeout_seconds=5)).run()
        assert anyio.current_time() == pytest.approx(began + 5)  # pyright: ignore[reportUnknownMemberType]
        assert result.tool_calls[0].reason == "timeout"
        assert dispatcher.statistics().overdue == ("stubborn",)
        assert dispatcher.statistics().running == 1, "a handler that still runs keeps its place"
        go.set()
        await settle()
        assert (dispatcher.statistics().overdue, dispatcher.statistics().running) == ((), 0)
    (reported,) = late
    assert isinstance(reported, ToolCallLate)
    assert (reported.event_type, reported.content) == ("tool_call_completed", "after all")
    assert "after all" not in str(result.messages)


@pytest.mark.guarantee("G07")
async def test_a_handler_whose_cleanup_raises_fails_late():
    @tool
    async def untidy() -> None:
        """Fail to clean up."""
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("untidy")

    bus = EventBus()
    late: list[ToolCallLate] = []
    bus.connect(ToolCallLate, late.append)
    async with ToolDispatcher(bus):
        result = await session_of(bus, "untidy", tools=[untidy], limits=Limits(tool_timeout_seconds=5)).run()
        await settle()
    assert result.tool_calls[0].reason == "timeout"
    assert [each.event_type for each in late] == ["tool_call_failed"]


@pytest.mark.guarantee("G12")
async def test_a_tools_own_timeout_is_its_deadline():
    @tool(timeout_seconds=2)
    async def hang() -> None:
        """Hang."""
        await anyio.sleep_forever()

    bus = EventBus()
    began = anyio.current_time()
    async with ToolDispatcher(bus):
        result = await session_of(bus, "hang", tools=[hang]).run()
    assert anyio.current_time() == pytest.approx(began + 2)  # pyright: ignore[reportUnknownMemberType]
    assert result.tool_calls[0].error == "hang did not answer in 2 s."


async def test_a_cancelled_request_stops_its_handlers_and_keeps_what_was_done():
    stopped = anyio.Event()

    @tool
    async def quick() -> str:
        """Quick."""
        return "done"

    @tool
    async def hang() -> None:
        """Hang."""
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    bus = EventBus()
    async with ToolDispatcher(bus), anyio.create_task_group() as group:
        session = session_of(bus, "quick", "hang", tools=[quick, hang])
        group.start_soon(session.run)
        await settle()
        assert session.cancel("enough")
        result = await session.result()
        await stopped.wait()
    assert result.outcome == "cancelled"
    assert [(each.name, each.content, each.reason) for each in result.tool_calls] == [
        ("quick", "done", ""),
        ("hang", "", "cancelled"),
    ]


async def test_another_answer_on_the_bus_stops_the_handler():
    desk = Desk()
    stopped: list[str] = []

    @tool
    async def hang() -> None:
        """Hang."""
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append("yes")

    async with ToolDispatcher(desk.bus, ToolRegistry([hang])):
        desk.ask("hang")
        await settle()
        desk.bus.publish(ToolCallCompleted(request_id="r", call_id="c", name="hang", content="somebody was quicker"))
        await settle()
        assert stopped == ["yes"]
    assert len(desk.endings()) == 1


@pytest.mark.guarantee("G12", "G14")
async def test_a_hanging_thread_delays_nobody_and_its_result_comes_late():
    go, begun = threading.Event(), threading.Event()

    @tool
    def block() -> str:
        """Block a thread."""
        begun.set()
        assert go.wait(60)
        return "at last"

    bus = EventBus()
    late: list[ToolCallLate] = []
    bus.connect(ToolCallLate, late.append)
    try:
        async with ToolDispatcher(bus) as dispatcher, anyio.create_task_group() as group:
            session = session_of(bus, "block", tools=[block], limits=Limits(tool_timeout_seconds=5))
            group.start_soon(session.run)
            while not begun.is_set():
                await anyio.lowlevel.checkpoint()
            await advance(5, wait_for_threads=False)
            result = await session.result()
            assert result.tool_calls[0].reason == "timeout"
            assert dispatcher.statistics().overdue == ("block",)
            go.set()
            while not late:
                await anyio.lowlevel.checkpoint()
            assert dispatcher.statistics().overdue == ()
    finally:
        go.set()
    assert [each.content for each in late] == ["at last"]


# ------------------------------------------------------------------------------------------------- closing


async def test_closing_answers_what_waits_and_what_runs():
    desk = Desk()
    begun: list[int] = []

    @tool(max_concurrency=1)
    async def wait(number: int) -> None:
        """Wait."""
        begun.append(number)
        await anyio.sleep_forever()

    async with ToolDispatcher(desk.bus, ToolRegistry([wait]), max_concurrency=3) as dispatcher:
        for number in range(5):
            desk.ask("wait", str(number), number=number)
        await settle()
        assert dispatcher.statistics().queued == 4
    assert begun == [0], "a call that was answered must not begin while the others are cancelled"
    for number in range(5):
        (ending,) = desk.endings(str(number))
        assert isinstance(ending, ToolCallFailed)
        assert (ending.reason, ending.error) == ("cancelled", "The dispatcher was closed.")
        assert ending.outcome_unknown == (number == 0)
    statistics = dispatcher.statistics()
    assert (statistics.running, statistics.queued, statistics.idle_workers) == (0, 0, 0)
    assert desk.bus.statistics().late_results == 0
    desk.leave()
    await assert_idle(desk.bus)


async def test_closing_waits_for_a_handler_that_cleans_up():
    desk = Desk()
    cleaned: list[str] = []

    @tool
    async def tidy() -> str:
        """Clean up."""
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
            cleaned.append("yes")
        raise AssertionError

    async with ToolDispatcher(desk.bus, ToolRegistry([tidy])):
        desk.ask("tidy")
        await settle()
    assert cleaned == ["yes"]
    assert (await desk.failed()).reason == "cancelled"


async def test_a_handler_that_swallows_the_closing_still_answers_once():
    desk = Desk()

    @tool
    async def stubborn() -> str:
        """Go on."""
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            pass
        return "all the same"

    async with ToolDispatcher(desk.bus, ToolRegistry([stubborn])):
        desk.ask("stubborn")
        await settle()
    assert (await desk.completed()).content == "all the same"


async def test_the_exception_of_the_block_passes_as_it_is():
    desk = Desk()

    @tool
    async def wait() -> None:
        """Wait."""
        await anyio.sleep_forever()

    with pytest.raises(LookupError, match=r"^ours$"):
        async with ToolDispatcher(desk.bus, ToolRegistry([wait])):
            desk.ask("wait")
            await settle()
            raise LookupError("ours")
    assert (await desk.failed()).reason == "cancelled"


async def test_a_process_that_does_not_start_in_time_is_a_failure_that_says_what_may_be_wrong(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def never(*_: Any, **__: Any) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(anyio.to_process, "run_sync", never)
    desk, began = Desk(), anyio.current_time()
    async with ToolDispatcher(desk.bus, ToolRegistry([process_tools.where])):
        desk.ask("where", seconds=100)
        event = await desk.ending(seconds=60)
    assert isinstance(event, ToolCallFailed)
    assert (event.error, event.outcome_unknown) == ("The tool's process could not be started.", False)
    assert anyio.current_time() - began == pytest.approx(30)
    assert "the process did not start in time; is the main script guarded" in caplog.text
