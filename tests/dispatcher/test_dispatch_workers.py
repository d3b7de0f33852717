"""Which worker runs what: handlers that do not wait share one, those that wait never hold each other up."""

from __future__ import annotations

import anyio
import pytest
from dispatch_desk import Desk

from toolbus import EventBus, Runtime, ToolDispatcher, ToolRegistry, tool
from toolbus.messages import AssistantMessage
from toolbus.protocols import ModelRequest
from toolbus.testing import ScriptedProvider, calls, text


async def test_handlers_that_do_not_wait_share_a_worker_and_keep_their_order() -> None:
    order: list[int] = []

    @tool
    async def note(number: int) -> int:
        """Note a number."""
        order.append(number)
        return number

    script = ScriptedProvider([calls(*(("note", {"number": number}) for number in range(20))), text("done")])
    async with Runtime(script, tools=[note]) as runtime:
        result = await runtime.run("go")
        assert runtime.dispatcher.statistics().idle_workers == 1
    assert order == list(range(20))
    assert all(call.ok for call in result.tool_calls)


@pytest.mark.parametrize("waits_first", [True, False])
async def test_handlers_that_wait_run_side_by_side_whatever_stands_before_them(waits_first: bool) -> None:
    inside = 0
    all_inside = anyio.Event()

    @tool
    async def meet(number: int) -> int:
        """Wait until everybody is here."""
        nonlocal inside
        inside += 1
        if inside == 10:
            all_inside.set()
        await all_inside.wait()
        return number

    @tool
    async def pass_by(number: int) -> int:
        """Do not wait."""
        return number

    meetings = [("meet", {"number": number}) for number in range(10)]
    others = [("pass_by", {"number": number}) for number in range(10)]
    asked = meetings + others if waits_first else [each for pair in zip(others, meetings, strict=True) for each in pair]
    async with Runtime(ScriptedProvider([calls(*asked), text("done")]), tools=[meet, pass_by]) as runtime:
        with anyio.fail_after(30):
            result = await runtime.run("go")
    assert [call.ok for call in result.tool_calls] == [True] * 20


async def test_a_call_that_two_dispatchers_could_run_is_run_by_one() -> None:
    ran: list[str] = []

    def registry(name: str) -> ToolRegistry:
        @tool
        async def note() -> str:
            """Note who ran."""
            ran.append(name)
            await anyio.lowlevel.checkpoint()
            return name

        return ToolRegistry([note])

    from toolbus import RequestSession

    def script(request: ModelRequest) -> object:
        return (
            text("ok") if isinstance(request.messages[-1], AssistantMessage) or request.round else calls(("note", {}))
        )

    bus = EventBus()
    first = registry("first")
    async with ToolDispatcher(bus, first), ToolDispatcher(bus, registry("second")):
        result = await RequestSession(
            bus,
            ScriptedProvider(script),  # pyright: ignore[reportArgumentType]
            "go",
            tools=list(first.specs.values()),
        ).run()
    assert (ran, result.tool_calls[0].content) == (["first"], "first")
    assert bus.statistics().late_results == 0


@pytest.mark.leaves("buses", reason="the request is opened by hand, and no session ends it")
@pytest.mark.guarantee("G16")
async def test_a_worker_whose_handler_swallowed_its_cancellation_takes_no_further_call() -> None:
    tasks: list[int] = []

    @tool
    async def stubborn() -> str:
        """Do not stop."""
        tasks.append(anyio.get_current_task().id)
        try:
            await anyio.Event().wait()
        except anyio.get_cancelled_exc_class():
            return "would not stop"
        raise AssertionError

    @tool
    async def innocent() -> str:
        """Wait a moment."""
        tasks.append(anyio.get_current_task().id)
        await anyio.lowlevel.checkpoint()
        return "fine"

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([stubborn, innocent]), max_concurrency=1):
        desk.ask("stubborn", "c1")
        desk.ask("innocent", "c2")
        await anyio.wait_all_tasks_blocked()
        desk.settle("c1")
        assert (await desk.completed("c2")).content == "fine"
    assert len(set(tasks)) == 2
