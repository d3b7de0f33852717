"""Retries: bounded, for tools that allow them alone, told, and never past the deadline. On virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from dispatch_desk import Desk, View

from toolbus import EventBus, Limits, RequestSession, ToolDispatcher, ToolError, ToolRegistry, ToolRetry, tool
from toolbus.bus import Mailbox
from toolbus.core.backoff import backoff_seconds
from toolbus.errors import ConfigurationError, InvalidArguments
from toolbus.events import ToolCallRetrying, ToolCallStarted
from toolbus.testing import ScriptedProvider, advance, assert_idle, calls, settle, text, virtual_backends
from toolbus.tools import Tool, ToolContext

anyio_backend = virtual_backends()
pytestmark = pytest.mark.leaves("buses", reason="requests are opened by hand, and no session ends them")

GENERIC = "The tool failed with an internal error."
NEVER_RETRIED: list[BaseException] = [
    ToolRetry("ask with a country"),
    InvalidArguments("$.city: too short"),
    SystemExit(1),
    asyncio.CancelledError(),
    BaseExceptionGroup("", [SystemExit(1), ValueError()]),
    ExceptionGroup("", [ConnectionError(), ToolRetry("ask with a country")]),
]


class Flaky:
    """A tool that fails with one exception after the other, and then answers "done"."""

    def __init__(self, *failures: BaseException, sync: bool = False, **options: Any) -> None:
        self.began: list[float] = []
        self._failures = list(failures)
        clock = anyio.current_time

        async def work() -> str:
            self.began.append(clock())
            await anyio.lowlevel.checkpoint()
            return self._end()

        def work_in_thread() -> str:
            self.began.append(anyio.from_thread.run_sync(clock))
            return self._end()

        self.tool: Tool = Tool("work", handler=work_in_thread if sync else work, **options)

    def _end(self) -> str:
        if self._failures:
            raise self._failures.pop(0)
        return "done"


def always(_: Exception) -> bool:
    return True


def is_busy(exc: Exception) -> bool:
    return "busy" in str(exc)


def delays(count: int, request_id: str = "r", call_id: str = "c") -> list[float]:
    return [backoff_seconds(each, f"{request_id} {call_id} {each}") for each in range(1, count + 1)]


@pytest.mark.guarantee("G13")
async def test_a_handler_that_failed_is_tried_again_after_growing_waits_and_each_attempt_is_reported():
    flaky = Flaky(ConnectionError("the password is 123"), ValueError(), retries=2)
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([flaky.tool])) as dispatcher:
        desk.ask("work")
        event = await desk.completed()
        await settle()
        statistics = dispatcher.statistics()
        assert (statistics.running, statistics.retrying) == (0, 0)
    first, second = delays(2)
    assert 0.25 <= first <= 0.5 <= second <= 1.0
    begins = [each - flaky.began[0] for each in flaky.began]
    assert begins == [pytest.approx(each) for each in (0.0, first, first + second)]
    assert event.content == "done"
    assert event.duration_seconds == pytest.approx(first + second)
    reported = [each for each in desk.events if isinstance(each, (ToolCallStarted, ToolCallRetrying))]
    assert [(type(each), each.call_id, each.attempt) for each in reported] == [
        (ToolCallStarted, "c", 1),
        (ToolCallRetrying, "c", 1),
        (ToolCallStarted, "c", 2),
        (ToolCallRetrying, "c", 2),
        (ToolCallStarted, "c", 3),
    ]
    retrying = desk.seen(ToolCallRetrying)
    assert [(each.name, each.error) for each in retrying] == [("work", GENERIC)] * 2
    assert [each.delay_seconds for each in retrying] == [first, second]


async def test_no_further_attempt_begins_once_the_request_is_about_to_end():
    async def hang() -> None:
        await anyio.sleep_forever()

    flaky, view = Flaky(ConnectionError(), retries=2), View()
    desk = Desk(view=view)
    async with ToolDispatcher(desk.bus, ToolRegistry([flaky.tool, Tool("hang", handler=hang)])) as dispatcher:
        desk.ask("work")
        await settle()
        view.is_stopping = True
        await advance(5)
        assert (len(flaky.began), desk.endings()) == (1, [])
        statistics = dispatcher.statistics()
        assert (statistics.running, statistics.retrying, statistics.idle_workers) == (0, 0, 1)
        # The end of that call concerns neither its former worker nor the next call.
        view.is_stopping = False
        desk.ask("hang", "next")
        await settle()
        desk.settle()
        await settle()
        assert (dispatcher.statistics().running, dispatcher.statistics().overdue) == (1, ())


@pytest.mark.guarantee("G13")
async def test_retries_are_bounded_and_the_last_error_is_the_calls(caplog: pytest.LogCaptureFixture):
    failures = [ValueError("first"), ValueError("second"), ValueError("third"), ValueError("fourth")]
    flaky = Flaky(*failures, retries=2)
    bus = EventBus()
    provider = ScriptedProvider([calls(("work", {})), text("Sorry.")])
    async with ToolDispatcher(bus):
        result = await RequestSession(bus, provider, "Go.", tools=[flaky.tool]).run()
    await assert_idle(bus)
    assert len(flaky.began) == 3
    (call,) = result.tool_calls
    assert (call.error, call.exception) == (GENERIC, failures[2])
    logged = [each for each in caplog.records if each.name == "toolbus.dispatcher"]
    assert [each.levelno for each in logged] == [logging.WARNING, logging.WARNING, logging.ERROR]
    assert "in attempt 1 and is tried again in 0." in logged[0].getMessage()
    assert " s: ValueError: first at " in logged[0].getMessage()
    assert [each.exc_info[1] for each in logged if each.exc_info] == [failures[2]], (
        "a traceback is of the call's failure"
    )


@pytest.mark.guarantee("G13")
async def test_a_tool_that_does_not_allow_retries_runs_once():
    flaky = Flaky(ConnectionError())
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([flaky.tool])):
        desk.ask("work")
        assert (await desk.failed()).error == GENERIC
    assert len(flaky.began) == 1
    assert desk.seen(ToolCallRetrying) == []


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("exception", NEVER_RETRIED, ids=lambda each: type(each).__name__)
async def test_what_would_only_fail_again_or_is_not_the_tools_is_never_tried_again(
    exception: BaseException, sync: bool
):
    flaky = Flaky(exception, sync=sync, retries=3, retry_on=always)
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([flaky.tool])):
        desk.ask("work")
        await desk.failed()
    assert len(flaky.began) == 1


async def test_without_a_rule_the_tools_own_words_are_final():
    flaky = Flaky(ToolError("no such city"), retries=3)
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([flaky.tool])):
        desk.ask("work")
        assert (await desk.failed()).error == "no such city"
    assert len(flaky.began) == 1


async def test_a_result_that_cannot_be_written_is_not_asked_for_again():
    ran: list[int] = []

    @tool(retries=3)
    async def work() -> object:
        """Give what JSON has not."""
        ran.append(1)
        return object()

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([work])):
        desk.ask("work")
        assert "type object" in (await desk.failed()).error
    assert ran == [1]


def broken_rule(_: Exception) -> bool:
    raise LookupError("a bug in the rule")


RULES: list[tuple[Any, Exception, int]] = [
    ((ConnectionError,), ConnectionResetError(), 2),
    ((ConnectionError,), ValueError(), 1),
    ((ConnectionError, ToolError), ToolError("busy"), 2),
    ((), ValueError(), 1),
    (is_busy, ValueError("busy"), 2),
    (is_busy, ValueError("gone"), 1),
    ((ConnectionError,), ExceptionGroup("", [ConnectionError(), ExceptionGroup("", [ConnectionResetError()])]), 2),
    ((ConnectionError,), ExceptionGroup("", [ConnectionError(), ValueError()]), 1),
    (broken_rule, ValueError(), 1),
]


@pytest.mark.parametrize(("retry_on", "exception", "runs"), RULES)
async def test_retry_on_says_what_is_tried_again(
    retry_on: Any, exception: Exception, runs: int, caplog: pytest.LogCaptureFixture
):
    flaky = Flaky(exception, retries=1, retry_on=retry_on)
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([flaky.tool])):
        desk.ask("work")
        await desk.ending()
    assert len(flaky.began) == runs
    assert ("retry_on of tool work failed" in caplog.text) == (retry_on is broken_rule)


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize("spare", [-0.01, 0.01])
async def test_a_wait_that_would_reach_the_deadline_is_not_begun(spare: float):
    first, second = delays(2)
    flaky = Flaky(*(ValueError() for _ in range(9)), retries=9)
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([flaky.tool])):
        desk.ask("work", seconds=first + second + spare)
        event = await desk.failed()
    assert len(flaky.began) == (3 if spare > 0 else 2)
    assert event.duration_seconds == pytest.approx(first + second if spare > 0 else first)
    assert (event.reason, event.error) == ("error", GENERIC)


@pytest.mark.guarantee("G12", "G13")
async def test_a_session_sees_the_tools_error_and_not_a_time_out_when_no_time_is_left_for_another_attempt():
    flaky = Flaky(*(ValueError() for _ in range(10)), retries=10)
    bus = EventBus()
    provider = ScriptedProvider([calls(("work", {})), text("Sorry.")])
    began = anyio.current_time()
    async with ToolDispatcher(bus):
        result = await RequestSession(
            bus, provider, "Go.", tools=[flaky.tool], limits=Limits(tool_timeout_seconds=5)
        ).run()
    assert result.tool_calls[0].reason == "error"
    assert 1 < len(flaky.began) <= 6
    assert anyio.current_time() - began < 5


@pytest.mark.guarantee("G13", "G17")
async def test_a_call_that_is_settled_while_it_waits_is_not_tried_again():
    flaky = Flaky(ValueError(), ValueError(), retries=2)
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([flaky.tool])) as dispatcher:
        desk.ask("work")
        await desk.hear(ToolCallRetrying)
        statistics = dispatcher.statistics()
        assert (statistics.running, statistics.retrying) == (1, 1), "it keeps its place"
        desk.settle()
        await settle()
        statistics = dispatcher.statistics()
        assert (statistics.running, statistics.retrying, statistics.overdue) == (0, 0, ())
        await advance(60)
    assert len(flaky.began) == 1
    assert len(desk.endings()) == 1
    assert desk.bus.statistics().late_results == 0


async def test_a_handler_that_fails_because_it_is_cancelled_is_not_tried_again():
    ran: list[int] = []

    @tool(retries=2)
    async def untidy() -> None:
        """Fail to clean up."""
        ran.append(1)
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("untidy")

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([untidy])):
        desk.ask("untidy")
        await settle()
        desk.settle()
        await advance(60)
    assert ran == [1]
    assert desk.seen(ToolCallRetrying) == []


async def test_closing_the_dispatcher_ends_the_wait():
    flaky = Flaky(ValueError(), ValueError(), retries=2)
    desk = Desk()
    began = anyio.current_time()
    async with ToolDispatcher(desk.bus, ToolRegistry([flaky.tool])):
        desk.ask("work")
        await desk.hear(ToolCallRetrying)
    assert anyio.current_time() == began
    assert (await desk.failed()).reason == "cancelled"
    assert len(flaky.began) == 1


async def test_what_waits_keeps_its_place_and_holds_up_nobody_who_has_one():
    flaky = Flaky(ValueError(), retries=1)

    @tool
    async def quick() -> str:
        """Quick."""
        return "quick"

    @tool(retries=1)
    async def abrupt() -> None:
        """Fail without waiting for anything first."""
        raise ValueError

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([flaky.tool, quick, abrupt]), max_concurrency=2) as dispatcher:
        began = anyio.current_time()
        desk.ask("abrupt", "c1")
        desk.ask("quick", "c2")
        await desk.completed("c2")
        assert anyio.current_time() == began, "the call behind one that waits is not held up"
        desk.ask("work", "c3")
        desk.ask("quick", "c4")
        await settle()
        assert (dispatcher.statistics().retrying, dispatcher.statistics().queued) == (2, 1)
        await desk.completed("c4")
        assert anyio.current_time() > began


async def test_each_attempt_knows_its_number_and_has_its_own_arguments():
    seen: list[tuple[int, list[int], str]] = []

    @tool(retries=2)
    async def work(items: list[int], context: ToolContext[None]) -> str:
        """Work."""
        items.append(context.attempt)
        seen.append((context.attempt, items, context.idempotency_key))
        if context.attempt < 3:
            raise ValueError
        return "done"

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([work])):
        desk.ask("work", items=[0])
        await desk.completed()
    assert seen == [(1, [0, 1], "key-c"), (2, [0, 2], "key-c"), (3, [0, 3], "key-c")]


async def test_nobody_is_told_of_an_attempt_that_nobody_hears():
    flaky = Flaky(ValueError(), retries=1)
    bus = EventBus()
    mailbox: Mailbox = bus.arbitration.open_mailbox("r")
    bus.arbitration.open_calls(mailbox, ["c"])
    async with ToolDispatcher(bus, ToolRegistry([flaky.tool])):
        before = bus.statistics().position
        bus.publish(Desk(EventBus()).request("work"))
        await mailbox.wait()
    assert len(flaky.began) == 2
    assert bus.statistics().position - before == 2, "the request and its ending"


@pytest.mark.parametrize(
    "retry_on",
    [ConnectionError, (KeyboardInterrupt,), ("ConnectionError",), [ConnectionError], 3],
    ids=["class", "base", "names", "list", "number"],
)
def test_a_rule_that_is_none_is_refused_when_the_tool_is_made(retry_on: Any):
    with pytest.raises(ConfigurationError, match=r"tuple of exception types, such as \(ConnectionError,\)"):
        Flaky(retries=1, retry_on=retry_on)


def test_an_async_rule_is_refused_since_nobody_would_await_it():
    async def rule(exc: Exception) -> bool:
        raise AssertionError(exc)

    careless: Callable[[Exception], Any] = rule
    with pytest.raises(ConfigurationError, match="a function that takes the exception"):
        Flaky(retries=1, retry_on=careless)
