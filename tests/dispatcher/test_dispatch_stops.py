"""A failure or a cancel that ends the request at once: no handler begins after it, whoever has its turn next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from toolbus import EventBus, Limits, RequestSession, ToolDispatcher, ToolRegistry
from toolbus.events import CancelRequested, Event, FailureReason, ToolCallFailed, ToolCallRequested
from toolbus.testing import ScriptedProvider, calls, text, virtual_backends
from toolbus.tools import Tool

anyio_backend = virtual_backends()
FAIL_FAST = Limits(on_failure="fail_fast")
STOP_ON = Limits(stop_on=frozenset({"error"}))


class Bench:
    """Tools that say when they begin, in one list with the failures and the cancels that are published."""

    def __init__(self, *, sync: bool = False) -> None:
        self.bus = EventBus()
        self.seen: list[str] = []
        self.bus.connect((ToolCallFailed, CancelRequested), self._hear)

        async def fail(seconds: float = 0) -> None:
            self.seen.append("fail begins")
            await anyio.sleep(seconds)
            raise LookupError

        def fail_in_thread(seconds: float = 0) -> None:
            self.seen.append("fail begins")
            raise LookupError

        async def note(number: int) -> None:
            self.seen.append(f"{number} begins")

        def note_in_thread(number: int) -> None:
            self.seen.append(f"{number} begins")

        self.tools: list[Tool] = [
            Tool("fail", handler=fail_in_thread if sync else fail),
            Tool("note", handler=note_in_thread if sync else note),
        ]

    def _hear(self, event: Event) -> None:
        if isinstance(event, ToolCallFailed):
            self.seen.append(f"{event.name} failed: {event.reason}")
        elif isinstance(event, CancelRequested):
            self.seen.append("cancelled")

    def session(self, *asked: tuple[str, dict[str, Any]], limits: Limits, **options: Any) -> RequestSession:
        script = ScriptedProvider([calls(*asked), text("done")])
        return RequestSession(self.bus, script, "go", tools=self.tools, limits=limits, **options)

    def dispatcher(self, **options: Any) -> ToolDispatcher:
        return ToolDispatcher(self.bus, ToolRegistry(self.tools), **options)


def notes(count: int) -> list[tuple[str, dict[str, Any]]]:
    return [("note", {"number": number}) for number in range(count)]


@pytest.mark.parametrize("limits", [FAIL_FAST, STOP_ON], ids=["fail_fast", "stop_on"])
@pytest.mark.parametrize(
    ("sync", "bounds"),
    [(False, {"max_concurrency": 1}), (True, {"max_concurrency": 1}), (True, {"max_threads": 1})],
    ids=["async", "sync", "threads"],
)
async def test_no_queued_call_begins_after_a_failure_that_ends_the_request(
    sync: bool, limits: Limits, bounds: dict[str, int]
):
    bench = Bench(sync=sync)
    async with bench.dispatcher(**bounds) as dispatcher:
        result = await bench.session(("fail", {}), *notes(5), limits=limits).run()
        await anyio.wait_all_tasks_blocked()
        statistics = dispatcher.statistics()
        assert (statistics.running, statistics.queued, statistics.threads) == (0, 0, 0)
    assert result.outcome == "stopped"
    assert bench.seen == ["fail begins", "fail failed: error", *["note failed: cancelled"] * 5]
    assert [call.reason for call in result.tool_calls] == ["error", *["cancelled"] * 5]


class SlowJournal:
    """Takes its time, in which the session has no turn."""

    async def append(self, _request_id: str, _position: int, _facts: Sequence[Event]) -> None:
        await anyio.sleep(2)


async def test_no_call_begins_while_the_session_writes_the_failure_that_ends_the_request():
    bench = Bench()
    async with bench.dispatcher(max_concurrency=1):
        session = bench.session(("fail", {}), *notes(3), limits=FAIL_FAST, journal=SlowJournal())
        result = await session.run()
    assert result.outcome == "stopped"
    assert [each for each in bench.seen if each.endswith("begins")] == ["fail begins"]


@pytest.mark.parametrize("reason", ["cancelled", "limit"])
async def test_no_queued_call_begins_after_a_failure_from_elsewhere_that_ends_the_request(reason: FailureReason):
    bench = Bench()
    asked: list[ToolCallRequested] = []
    bench.bus.connect(ToolCallRequested, lambda event: asked.append(event) if event.name == "ask" else None)

    async def refuse() -> None:
        bench.bus.publish(asked[0].failed("no", reason=reason))

    bench.tools += [
        Tool("ask", "Ask.", {"type": "object"}, external=True, validate=lambda _arguments: None),
        Tool("refuse", handler=refuse),
    ]
    async with bench.dispatcher(max_concurrency=1):
        result = await bench.session(("ask", {}), ("refuse", {}), *notes(2), limits=FAIL_FAST).run()
    assert result.outcome == "stopped"
    assert [each for each in bench.seen if each.endswith("begins")] == []


async def test_a_queued_call_begins_after_a_failure_that_ends_nothing():
    bench = Bench()
    async with bench.dispatcher(max_concurrency=1):
        result = await bench.session(("fail", {}), *notes(2), limits=Limits()).run()
    assert result.outcome == "completed"
    assert bench.seen == ["fail begins", "fail failed: error", "0 begins", "1 begins"]


async def test_a_failure_that_ends_one_request_keeps_no_call_of_another_from_beginning():
    bench = Bench()
    async with bench.dispatcher(max_concurrency=1), anyio.create_task_group() as group:
        failing = bench.session(("fail", {"seconds": 1}), *notes(2), limits=FAIL_FAST)
        other = bench.session(("note", {"number": 7}), ("note", {"number": 8}), limits=FAIL_FAST)
        group.start_soon(failing.run)
        group.start_soon(other.run)
        assert (await failing.result()).outcome == "stopped"
        assert (await other.result()).outcome == "completed"
    assert sorted(each for each in bench.seen if each.endswith("begins")) == ["7 begins", "8 begins", "fail begins"]


@pytest.mark.guarantee("G16")
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_no_queued_call_begins_after_a_cancel(sync: bool):
    bench = Bench(sync=sync)

    async def last() -> None:
        session.cancel("enough")

    bench.tools.append(Tool("cancel", handler=last))
    async with bench.dispatcher(max_concurrency=1):
        session = bench.session(("cancel", {}), *notes(3), limits=Limits())
        result = await session.run()
    assert result.outcome == "cancelled"
    assert bench.seen == ["cancelled", *["note failed: cancelled"] * 3]


async def test_no_attempt_begins_after_a_failure_that_ends_the_request():
    bench = Bench()
    attempts: list[float] = []

    async def flaky() -> None:
        attempts.append(anyio.current_time())
        raise ConnectionError

    async def fail_then() -> None:
        await anyio.sleep_until(attempts[0] + 0.25)
        raise LookupError

    bench.tools += [Tool("flaky", handler=flaky, retries=5), Tool("fail_then", handler=fail_then)]
    async with bench.dispatcher():
        result = await bench.session(("flaky", {}), ("fail_then", {}), limits=FAIL_FAST).run()
    assert result.outcome == "stopped"
    assert len(attempts) == 1
