"""A worker's bus: calls that sessions in other processes have requested are adopted, run and answered."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from toolbus import EventBus, tool
from toolbus.dispatcher import ToolDispatcher
from toolbus.errors import BusError
from toolbus.events import Event, ToolCallCompleted, ToolCallFailed, ToolCallLate, ToolCallRequested
from toolbus.testing import advance, settle, virtual_backends
from toolbus.tools import ToolRegistry

anyio_backend = virtual_backends()


@tool
async def wait(seconds: float) -> str:
    """Wait."""
    await anyio.sleep(seconds)
    return f"waited {seconds:g} s"


def requested(call_id: str, seconds: float = 1.0, **fields: Any) -> ToolCallRequested:
    known: dict[str, Any] = {"request_id": "r", "round": 0, "deadline": 60.0, "idempotency_key": call_id, **fields}
    return ToolCallRequested(call_id=call_id, name="wait", arguments={"seconds": seconds}, **known)


class Worker:
    """A bus with a dispatcher, and what it has published about calls."""

    def __init__(self) -> None:
        self.bus = EventBus()
        self.dispatcher = ToolDispatcher(self.bus, ToolRegistry([wait]))
        self.published: list[Event] = []
        kinds = (ToolCallCompleted, ToolCallFailed, ToolCallLate)
        self.bus.connect(kinds, self.published.append)

    @property
    def open_now(self) -> tuple[int, int]:
        statistics = self.bus.statistics()
        return statistics.mailboxes, statistics.open_calls


async def test_two_calls_of_one_request_run_side_by_side_and_leave_nothing_behind() -> None:
    worker = Worker()
    async with worker.dispatcher:
        assert worker.bus.arbitration.adopt(requested("a", 1))
        assert worker.bus.arbitration.adopt(requested("b", 2))
        await advance(1.5)
        assert worker.open_now == (1, 1)
        await advance(1)
        assert worker.open_now == (0, 0)
    assert [getattr(each, "content", "") for each in worker.published] == ["waited 1 s", "waited 2 s"]


async def test_a_call_that_is_delivered_twice_runs_once() -> None:
    worker = Worker()
    async with worker.dispatcher:
        assert worker.bus.arbitration.adopt(requested("a"))
        assert not worker.bus.arbitration.adopt(requested("a"))
        await advance(2)
    assert [each.type for each in worker.published] == ["tool_call_completed"]


async def test_a_call_that_was_settled_elsewhere_is_stopped_and_answers_nothing() -> None:
    worker = Worker()
    async with worker.dispatcher:
        worker.bus.arbitration.adopt(requested("a"))
        await settle()
        assert worker.bus.arbitration.claim("r", "a")
        await advance(2)
        assert worker.open_now == (0, 0)
        assert worker.dispatcher.statistics().running == 0
    assert worker.published == []


async def test_a_request_of_a_call_that_was_not_adopted_runs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker()
    async with worker.dispatcher:
        worker.bus.arbitration.adopt(requested("a", 5))
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
            worker.bus.arbitration.adopt(requested("a"))
        worker.bus.arbitration.close_mailbox(mailbox)
    assert worker.published == []
