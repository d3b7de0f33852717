"""The fixtures of the pytest plugin in this very suite; `test_pytest_plugin.py` shows them in the suites of others."""

from __future__ import annotations

import anyio
import pytest

import toolbus.testing
from toolbus import EventBus
from toolbus.errors import ConfigurationError
from toolbus.events import ToolCallRequested
from toolbus.testing import Clock, HarnessFactory, calls, settle, text
from toolbus.testing.fixtures import on_virtual_time

SCRIPT = [calls(("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})), text("Rome has 24 °C.")]


async def test_one_of_two_parallel_calls_times_out(toolbus_harness: HarnessFactory, toolbus_clock: Clock):
    async with toolbus_harness(SCRIPT, tools=["get_weather"]) as harness:
        session = harness.start("Where is it warmer, in Paris or in Rome?")
        rome = await harness.expect(ToolCallRequested, arguments={"city": "Rome"})
        harness.complete(rome, {"celsius": 24})
        await harness.advance(seconds=30)
        result = await session.result()

    assert [call.reason for call in result.tool_calls] == ["timeout", ""]
    assert toolbus_clock.now == 30


async def test_the_clock_says_what_time_it_is_and_lets_it_pass(toolbus_clock: Clock):
    began: list[float] = []

    async def sleeper() -> None:
        await anyio.sleep(5)
        began.append(toolbus_clock.now)

    async with anyio.create_task_group() as group:
        group.start_soon(sleeper)
        await toolbus_clock.settle()
        assert (began, toolbus_clock.now) == ([], 0)
        await toolbus_clock.advance(30)
    assert (began, toolbus_clock.now) == ([5], 30)


async def test_harnesses_are_strict_and_know_which_exception_tells_of_them(toolbus_harness: HarnessFactory):
    with pytest.raises(AssertionError, match="not answered") as left:
        async with toolbus_harness(SCRIPT, tools=["get_weather"], bus=EventBus()) as harness:
            harness.start("?")
            await harness.expect(ToolCallRequested)
    async with toolbus_harness([text("Hello.")]) as other:
        await other.run("Hello?")
    assert list(toolbus_harness.timelines_missing_from(left.value)) == [("toolbus_harness 1", other.timeline())]
    assert [title for title, _ in toolbus_harness.timelines_missing_from(ValueError())] == [
        "toolbus_harness 0",
        "toolbus_harness 1",
    ]


async def test_without_the_clock_time_is_real_and_what_needs_another_says_how_to_get_it():
    with pytest.raises(ConfigurationError, match="toolbus_clock"):
        await settle()


def test_the_clock_is_for_the_two_loops_that_there_are():
    with pytest.raises(ConfigurationError, match="'curio' is not a backend"), on_virtual_time("curio"):
        pass


def test_the_kit_says_what_it_has():
    assert {*toolbus.testing.__all__} <= {*dir(toolbus.testing)}
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        toolbus.testing.nothing_of_the_kind  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
