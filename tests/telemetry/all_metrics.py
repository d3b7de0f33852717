"""A runtime that makes a point of every metric."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel

from toolbus import EventBus, Runtime, tool
from toolbus.core.prices import Price
from toolbus.errors import ProviderUnavailable
from toolbus.events import (
    ApprovalOverdue,
    ApprovalRequested,
    DeadLetter,
    LoopBlocked,
    RequestResumed,
    RequestTakenOver,
    SubscriptionFull,
    ToolCallLate,
    ToolCallOverdue,
)
from toolbus.messages import Usage
from toolbus.telemetry import OpenTelemetry
from toolbus.testing import ScriptedProvider, calls, error, text


@tool(needs_approval=True)
async def look() -> str:
    """Look."""
    await anyio.lowlevel.checkpoint()
    return "seen"


async def make_all(telemetry: OpenTelemetry) -> None:
    """Carry out a request, and publish what only trouble would."""
    bus = EventBus()
    busy = error(ProviderUnavailable("busy", retryable=True))
    usage = Usage(input_tokens=10, output_tokens=2)
    model: Any = ScriptedProvider([busy, calls(("look", {}), usage=usage), text("done")], vendor="maker")
    prices = {"*": Price(input_per_million=1.0, output_per_million=2.0)}
    async with Runtime(model, tools=[look], bus=bus, instrumentation=[telemetry], prices=prices) as runtime:
        bus.connect(ApprovalRequested, lambda asked: bus.publish(asked.decided(approved=True)))
        await runtime.run("go")
        for event in (
            ToolCallLate(call_id="c", name="look", event_type="tool_call_completed"),
            DeadLetter(event_type="tool_call_completed", rejected_event_id="e", reason="nobody waits"),
            ToolCallOverdue(call_id="c", name="look", runs_in="task", seconds=5),
            ApprovalOverdue(call_id="c", name="look", seconds=5),
            LoopBlocked(seconds=1, name="look"),
            SubscriptionFull(name="page", capacity=1, ended=False),
            RequestResumed(request_id="r", resumption=1),
            RequestTakenOver(request_id="r"),
        ):
            bus.arbitration.announce(event)
