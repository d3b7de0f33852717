"""A subscription whose reader is too slow is reported once: a log line and an event."""

from __future__ import annotations

import pytest

from toolbus import EventBus
from toolbus.bus import Overflow
from toolbus.events import Event, StatusChanged, SubscriberLagged, SubscriptionFull, ToolCallCompleted

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G02")]


def signal(bus: EventBus, request_id: str = "") -> None:
    bus.publish(StatusChanged(stage="executing", text="x", request_id=request_id))


def heard_on(bus: EventBus) -> list[tuple[str, int, bool]]:
    heard: list[tuple[str, int, bool]] = []
    bus.connect(SubscriptionFull, lambda full: heard.append((full.name, full.capacity, full.ended)))
    return heard


@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest", "coalesce"])
async def test_a_slow_reader_is_reported_once_until_it_has_come_to_what_was_lost(
    overflow: Overflow, caplog: pytest.LogCaptureFixture
):
    bus = EventBus()
    heard = heard_on(bus)
    async with bus.subscribe(StatusChanged, capacity=2, overflow=overflow, name="page") as events:
        for _ in range(2):
            signal(bus)
        assert heard == []
        for _ in range(50):
            signal(bus)
        assert heard == [("page", 2, False)]
        found: list[Event] = []
        while (event := events.receive_nowait()) is not None:
            found.append(event)
        assert any(isinstance(each, SubscriberLagged) for each in found)
        for _ in range(50):
            signal(bus)
        assert heard == [("page", 2, False)] * 2
    lines = [each.getMessage() for each in caplog.records]
    assert lines == ["subscription 'page': its reader is too slow for its 2 events, so signals are dropped"] * 2
    assert {each.levelname for each in caplog.records} == {"WARNING"}


async def test_a_subscription_that_ends_because_it_is_full_says_so(caplog: pytest.LogCaptureFixture):
    bus = EventBus()
    heard = heard_on(bus)
    async with bus.subscribe(StatusChanged, request_id="r", capacity=1, overflow="disconnect", name="once"):
        for _ in range(3):
            signal(bus, "r")
    assert heard == [("once", 1, True)]
    (line,) = caplog.records
    assert line.getMessage() == "subscription 'once': its reader is too slow for its 1 events, so it has ended"
    assert line.request_id == "r"  # type: ignore[attr-defined]


async def test_results_do_not_report_a_reader_that_has_room_for_them():
    bus = EventBus()
    heard = heard_on(bus)
    async with bus.subscribe(StatusChanged, ToolCallCompleted, capacity=2) as events:
        for _ in range(10):
            signal(bus)
            assert events.receive_nowait() is not None
    assert heard == []
