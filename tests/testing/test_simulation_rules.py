"""What the simulation's checks count as broken, and what they do not: one process, its events made by hand."""

# pyright: reportPrivateUsage=false
# What checks a world is private.

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from toolbus import EventBus
from toolbus.clock import wall_time_from
from toolbus.events import (
    Event,
    MessageAppended,
    RequestCompleted,
    RequestFailed,
    RequestResumed,
    RequestStarted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import AssistantMessage, ToolCall
from toolbus.testing import virtual_backends
from toolbus.testing.simulation._findings import Broken
from toolbus.testing.simulation._watch import Watch

anyio_backend = virtual_backends()

STARTED = RequestStarted(event_id="f0", request_id="r", prompt="hi", history_count=0, deadline=30.0)
ASKED = MessageAppended(
    event_id="f1",
    request_id="r",
    message=AssistantMessage(tool_calls=(ToolCall(name="work", arguments="{}", call_id="c"),)),
)
REQUESTED = ToolCallRequested(
    event_id="f2", request_id="r", call_id="c", name="work", arguments={}, round=0, deadline=9.0, idempotency_key="c"
)
FAILED = ToolCallFailed(event_id="f3", request_id="r", call_id="c", name="work", reason="error", error="no")


class Desk:
    """A process's bus under watch."""

    def __init__(self) -> None:
        self.bus = EventBus()
        self.broken: list[Broken] = []
        self.watch = Watch(self.bus, 0.0, self.broken.append)
        self.bus.connect(Event, self.watch)

    def tell(self, *events: Event) -> None:
        for event in events:
            self.bus.announce(event)


async def test_a_handler_that_runs_on_after_its_call_was_settled_breaks_g17() -> None:
    with wall_time_from(anyio.current_time):
        desk = Desk()
        desk.tell(STARTED, ASKED, REQUESTED, FAILED)
        desk.watch.runs("r", "c")
        assert desk.broken == []
        await anyio.sleep(1)
        desk.watch.runs("r", "c")
    assert [each.guarantee for each in desk.broken] == ["G17"]


@pytest.mark.parametrize("settled_first", [True, False])
async def test_the_time_in_which_a_process_stands_still_is_not_its_handlers(settled_first: bool) -> None:
    with wall_time_from(anyio.current_time):
        desk = Desk()
        desk.tell(STARTED, ASKED, REQUESTED)
        if settled_first:
            desk.tell(FAILED)
        desk.watch.stand_still(40.0)
        if not settled_first:
            desk.tell(FAILED)  # in the same moment
        await anyio.sleep(40)
        desk.watch.runs("r", "c")
        assert desk.broken == []
        await anyio.sleep(1)
        desk.watch.runs("r", "c")
    assert [each.guarantee for each in desk.broken] == ["G17"]
