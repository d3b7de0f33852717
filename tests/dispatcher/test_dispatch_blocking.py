"""A handler that keeps the event loop from everything else is named in the log. The clock is moved by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from support.blocking import BLOCKING_SECONDS
from toolbus import Interceptor, Limits, Runtime, ToolContext, tool
from toolbus.events import ToolCallFailed, ToolCallRequested
from toolbus.testing import ScriptedProvider, calls, text, virtual_backends
from toolbus.tool_results import RenderedResult

anyio_backend = virtual_backends()


class Clock:
    """A clock that stands still unless a handler takes time."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("toolbus.dispatcher._thread_run.perf_counter", clock)
    monkeypatch.setattr("toolbus.dispatcher._thread_run._BLOCKING_SECONDS", BLOCKING_SECONDS)
    return clock


async def at_once(clock: Clock) -> None:
    clock.work(0.6)


async def failing(clock: Clock) -> None:
    clock.work(0.6)
    raise ValueError


async def after_a_wait(clock: Clock) -> None:
    await anyio.lowlevel.checkpoint()
    clock.work(0.6)
    await anyio.lowlevel.checkpoint()


async def in_two_steps(clock: Clock) -> None:
    clock.work(0.4)
    await anyio.lowlevel.checkpoint()
    clock.work(0.4)


async def waiting(clock: Clock) -> None:
    async def work_elsewhere() -> None:
        clock.work(60)

    async with anyio.create_task_group() as group:
        group.start_soon(work_elsewhere)


async def warnings_of(
    handler: Callable[[Clock], Any], clock: Clock, caplog: pytest.LogCaptureFixture, **options: Any
) -> list[str]:
    async def work() -> None:
        await handler(clock)

    async with Runtime(ScriptedProvider([calls(("work", {})), text("ok")]), tools=[work], **options) as runtime:
        await runtime.run("go")
    return [each.getMessage() for each in caplog.records if "blocked" in each.getMessage()]


@pytest.mark.parametrize("handler", [at_once, failing, after_a_wait])
async def test_a_step_of_more_than_half_a_second_is_reported_once_with_what_to_do(
    handler: Callable[[Clock], Awaitable[None]], clock: Clock, caplog: pytest.LogCaptureFixture
):
    (message,) = await warnings_of(handler, clock, caplog)
    assert ": tool work (or an interceptor of its result) blocked the event loop for 0.6 s, " in message
    assert "a plain `def`, which runs in a thread" in message


@pytest.mark.parametrize("handler", [in_two_steps, waiting])
async def test_short_steps_and_waits_are_not_reported(
    handler: Callable[[Clock], Awaitable[None]], clock: Clock, caplog: pytest.LogCaptureFixture
):
    assert await warnings_of(handler, clock, caplog) == []


async def test_time_that_passes_before_a_handler_is_cancelled_is_not_its_own(
    clock: Clock, caplog: pytest.LogCaptureFixture
):
    @tool
    async def wait() -> None:
        """Wait."""
        await anyio.sleep_forever()

    limits = Limits(tool_timeout_seconds=1)
    async with Runtime(ScriptedProvider([calls(("wait", {})), text("ok")]), tools=[wait], limits=limits) as runtime:
        runtime.bus.connect(ToolCallFailed, lambda _event: clock.work(60))
        await runtime.run("go")
    assert "blocked" not in caplog.text


async def test_an_interceptor_of_the_result_counts_too(clock: Clock, caplog: pytest.LogCaptureFixture):
    class Slow(Interceptor):
        async def after_tool(
            self, call: ToolCallRequested, result: RenderedResult, context: ToolContext[Any]
        ) -> RenderedResult:
            clock.work(0.7)
            return result

    assert len(await warnings_of(in_two_steps, clock, caplog, interceptors=[Slow()])) == 1
