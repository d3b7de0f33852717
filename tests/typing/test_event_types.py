"""Subscriptions are typed by what was asked for: pyright reads this file, and pytest runs it."""

from __future__ import annotations

from typing import Any, assert_type

from toolbus import EventBus, RequestResult
from toolbus.events import ApprovalRequested, Event, TextDelta


async def test_a_subscription_gives_events_of_the_types_that_were_asked_for() -> None:
    bus = EventBus()
    async with (
        bus.subscribe(TextDelta) as one,
        bus.subscribe(TextDelta, ApprovalRequested) as two,
        bus.subscribe() as every,
    ):
        bus.publish(TextDelta(message_id="m", round=0, text="hello"))
        assert_type(await anext(one), TextDelta)
        assert_type(await anext(two), TextDelta | ApprovalRequested)
        assert_type(await anext(every), Event)
        for subscription in (one, two, every):
            assert subscription.receive_nowait() is None


def test_a_result_without_a_type_is_of_any() -> None:
    def output_of(result: RequestResult) -> Any:
        return assert_type(result.output, Any)

    assert output_of.__annotations__["result"] == "RequestResult"
