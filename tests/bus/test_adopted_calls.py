"""A worker's bus: calls that sessions in other processes have requested are adopted, run and answered."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from toolbus import EventBus, ToolContext, tool
from toolbus.dispatcher import ToolDispatcher
from toolbus.errors import BusError
from toolbus.events import (
    Event,
    ReceiverFailed,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallRequested,
    ToolCallRetrying,
)
from toolbus.records import replace
from toolbus.testing import advance, settle, virtual_backends
from toolbus.tools import ToolRegistry

anyio_backend = virtual_backends()


@tool(retries=1)
async def fail(context: ToolContext[None]) -> str:
    """Fail."""
    raise ConnectionError(f"attempt {context.attempt}")


@tool
async def which(context: ToolContext[None]) -> int:
    """Tell which attempt this is."""
    return context.attempt


@tool
async def wait(seconds: float) -> str:
    """Wait."""
    await anyio.sleep(seconds)
    return f"waited {seconds:g} s"


def requested(call_id: str, seconds: float = 1.0, **fields: Any) -> ToolCallRequested:
    known: dict[str, Any] = {
        "request_id": "r",
        "round": 0,
        "timeout_seconds": 60.0,
        "idempotency_key": call_id,
        **fields,
    }
    return ToolCallRequested(call_id=call_id, name="wait", arguments={"seconds": seconds}, **known)


def without_arguments(name: str) -> ToolCallRequested:
    return replace(requested("a"), name=name, arguments={})


class Worker:
    """A bus with a dispatcher, and what it has published about calls."""

    def __init__(self) -> None:
        self.bus = EventBus()
        self.dispatcher = ToolDispatcher(self.bus, ToolRegistry([wait, which, fail]))
        self.published: list[Event] = []
        kinds = (ToolCallCompleted, ToolCallFailed, ToolCallLate, ToolCallRetrying)
        self.bus.connect(kinds, self.published.append)

    def adopt(self, call: ToolCallRequested, *, remaining_seconds: float = 60.0, attempt: int = 1) -> bool:
        return self.bus.arbitration.adopt(call, remaining_seconds=remaining_seconds, attempt=attempt)

    @property
    def open_now(self) -> tuple[int, int]:
        statistics = self.bus.statistics()
        return statistics.mailboxes, statistics.open_calls


async def test_two_calls_of_one_request_run_side_by_side_and_leave_nothing_behind() -> None:
    worker = Worker()
    async with worker.dispatcher:
        assert worker.adopt(requested("a", 1))
        assert worker.adopt(requested("b", 2))
        await advance(1.5)
        assert worker.open_now == (1, 1)
        await advance(1)
        assert worker.open_now == (0, 0)
    assert [getattr(each, "content", "") for each in worker.published] == ["waited 1 s", "waited 2 s"]


async def test_a_call_that_is_delivered_twice_runs_once() -> None:
    worker = Worker()
    async with worker.dispatcher:
        assert worker.adopt(requested("a"))
        assert worker.adopt(requested("a"))
        await advance(2)
    assert [each.type for each in worker.published] == ["tool_call_completed"]


async def test_a_call_that_was_settled_elsewhere_is_stopped_and_answers_nothing() -> None:
    worker = Worker()
    async with worker.dispatcher:
        worker.adopt(requested("a"))
        await settle()
        assert worker.bus.arbitration.claim("r", "a")
        await advance(2)
        assert worker.open_now == (0, 0)
        assert worker.dispatcher.statistics().running == 0
    assert worker.published == []


async def test_a_request_of_a_call_that_was_not_adopted_runs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker()
    async with worker.dispatcher:
        worker.adopt(requested("a", 5))
        worker.bus.publish(requested("forged"))
        worker.bus.publish(requested("forged", request_id="another"))
        await advance(2)
        assert worker.dispatcher.statistics().running == 1
        worker.bus.arbitration.claim("r", "a")
    assert worker.published == []
    assert caplog.text.count("was not run: no session here has opened it") == 2


async def test_a_call_of_a_request_that_runs_here_is_not_adopted() -> None:
    worker = Worker()
    async with worker.dispatcher:
        mailbox = worker.bus.arbitration.open_mailbox("r")
        with pytest.raises(BusError, match="'a' cannot be adopted: its request 'r' runs on this bus"):
            worker.adopt(requested("a"))
        worker.bus.arbitration.close_mailbox(mailbox)
    assert worker.published == []


async def test_a_handler_learns_how_often_its_call_was_delivered() -> None:
    worker = Worker()
    async with worker.dispatcher:
        worker.adopt(without_arguments("which"), attempt=3)
        await settle()
    assert [getattr(each, "data", None) for each in worker.published] == [3]


@pytest.mark.parametrize(("remaining_seconds", "tries"), [(60.0, 2), (0.1, 1)])
async def test_the_time_that_is_left_counts_and_not_the_clock_of_the_other_machine(
    remaining_seconds: float, tries: int
) -> None:
    worker = Worker()
    slow = replace(without_arguments("fail"), at=0.0)  # by a clock that is decades behind
    async with worker.dispatcher:
        worker.adopt(slow, remaining_seconds=remaining_seconds)
        await advance(30)
    assert [each.type for each in worker.published] == ["tool_call_retrying"] * (tries - 1) + ["tool_call_failed"]


async def test_a_call_that_no_executor_takes_on_is_given_back_and_leaves_nothing_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = Worker()
    async with worker.dispatcher:
        assert not worker.adopt(without_arguments("no_such_tool"))
    assert not worker.adopt(requested("b"))  # the dispatcher has been left
    assert (worker.open_now, worker.published) == ((0, 0), [])
    assert "call a: tool no_such_tool was not run: no executor here has taken it on" in caplog.text


async def test_a_receiver_cannot_adopt_a_call() -> None:
    worker = Worker()
    failed: list[ReceiverFailed] = []
    worker.bus.connect(ReceiverFailed, failed.append)
    worker.bus.connect(ToolCallRequested, lambda heard: worker.adopt(replace(heard, call_id="b")))
    async with worker.dispatcher:
        worker.adopt(requested("a"))
        await settle()
    assert [each.error for each in failed] == [
        "BusError: a receiver cannot adopt a call: executors would hear it only afterwards"
    ]
