"""The reminders of questions that nobody has answered for a long time.

Knows the bus and its open questions. Must not know sessions: an overdue question is still open.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import AsyncGenerator

import anyio

from ..bus import EventBus
from ..events import ApprovalOverdue, ApprovalRequested

_logger = logging.getLogger("toolbus.runtime")


class Reminders:
    """Reports each question to a person once, when it has been open for `seconds`. `overdue` counts those.

    One task does this. It looks at all open questions when one is asked, and when the next one is due.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._reported: set[str] = set()  # the ids of the open questions that were reported

    def overdue(self, bus: EventBus) -> int:
        """Return the number of questions that are open for so long. Costs O(open questions)."""
        return sum(each.event_id in self._reported for each in bus.arbitration.pending_approvals())

    @contextlib.asynccontextmanager
    async def attach(self, bus: EventBus) -> AsyncGenerator[None]:
        """Report the questions of `bus` in this block."""
        asked = anyio.Event()

        def wake(_question: ApprovalRequested) -> None:
            asked.set()

        disconnect = bus.connect(ApprovalRequested, wake)
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                nonlocal asked
                while True:
                    asked = anyio.Event()
                    with anyio.CancelScope(deadline=self._report(bus)):
                        await asked.wait()

            group.start_soon(watch)
            try:
                yield
            finally:
                disconnect()
                group.cancel_scope.cancel()

    def _report(self, bus: EventBus) -> float:
        """Report what is overdue. Return when the next question is, on the event loop's clock."""
        now = bus.clock()
        due_at = [(each.at + self.seconds, each) for each in bus.arbitration.pending_approvals()]
        overdue = [each for moment, each in due_at if moment <= now]
        before, self._reported = self._reported, {each.event_id for each in overdue}
        for each in overdue:
            if each.event_id in before:
                continue
            ids = {"request_id": each.request_id, "call_id": each.call_id, "metadata": each.metadata}
            words = each.call_id, each.name, now - each.at
            _logger.warning("call %s: tool %s has waited for a person's decision for %.0f s", *words, extra=ids)
            bus.publish(
                ApprovalOverdue(
                    request_id=each.request_id,
                    conversation_id=each.conversation_id,
                    parent_id=each.parent_id,
                    metadata=each.metadata,
                    at=now,
                    call_id=each.call_id,
                    name=each.name,
                    seconds=now - each.at,
                )
            )
        return bus.clock.on_loop(min([moment for moment, _ in due_at if moment > now], default=math.inf))
