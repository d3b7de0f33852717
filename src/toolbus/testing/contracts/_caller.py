"""A request without a model and without a session: it requests calls on its own bus, and collects the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

import anyio

from ...bus import EventBus
from ...events import (
    DeadLetter,
    Event,
    TerminalEvent,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallProgress,
    ToolCallRequested,
)
from ...protocols import RequestView
from ._checks import Ledger

numbers = count(1)
"""Numbers for ids and keys; each number is used once in a process."""


class Caller:
    """One request on its own bus. Handlers see `view` of the request; failures are recorded in `ledger`."""

    def __init__(self, ledger: Ledger, patience_seconds: float, view: RequestView | None = None) -> None:
        self.ledger = ledger
        self.patience_seconds = patience_seconds
        self.bus = EventBus()
        self.request_id = f"request-{next(numbers)}"
        self.events: list[Event] = []
        self._changed = anyio.Event()
        self.bus.connect(
            (ToolCallCompleted, ToolCallFailed, ToolCallLate, ToolCallProgress, DeadLetter), self._on_event
        )
        self.mailbox = self.bus.arbitration.open_mailbox(self.request_id, view)

    def leave(self) -> None:
        """End the request."""
        self.bus.arbitration.close_mailbox(self.mailbox)

    def _on_event(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()
        self._changed = anyio.Event()

    # ------------------------------------------------------------------------------------------- requesting

    def open_call(
        self, name: str, arguments: Mapping[str, Any], *, deadline_seconds: float = 3_600.0, key: str = ""
    ) -> ToolCallRequested:
        """Open a call without publishing it. `key` is its idempotency key; by default the call has its own key."""
        call_id = f"{self.request_id}_{next(numbers)}"
        self.bus.arbitration.open_calls(self.mailbox, [call_id])
        return ToolCallRequested(
            request_id=self.request_id,
            conversation_id=f"conversation of {self.request_id}",
            parent_id=f"parent of {call_id}",
            metadata={"tenant": "Zürich"},
            at=self.bus.clock(),
            call_id=call_id,
            name=name,
            arguments=dict(arguments),
            round=0,
            timeout_seconds=deadline_seconds,
            idempotency_key=key or f"key of {call_id}",
        )

    def request(self, name: str, arguments: Mapping[str, Any], *, key: str = "") -> ToolCallRequested:
        requested = self.open_call(name, arguments, key=key)
        self.bus.publish(requested)
        return requested

    def settle(self, requested: ToolCallRequested, how: str = "timeout") -> None:
        """Settle a call before the executor does: with a result ("completed"), or as failed with the reason `how`."""
        failed: Any = how
        ending = requested.completed("another's") if how == "completed" else requested.failed(how, reason=failed)
        if not self.bus.publish(ending):
            what = f"{requested.name}, about to be settled by somebody else"
            self.ledger.give_up(what, "open", self.endings(requested))

    # ------------------------------------------------------------------------------------------- listening

    def endings(self, requested: ToolCallRequested) -> list[TerminalEvent]:
        """Return the terminal events of a call so far."""
        return [each for each in self.events if isinstance(each, TerminalEvent) and each.call_id == requested.call_id]

    def late_events(self, requested: ToolCallRequested) -> list[ToolCallLate]:
        """Return the late events of a call: those published after the call was settled."""
        return [each for each in self.events if isinstance(each, ToolCallLate) and each.call_id == requested.call_id]

    async def until(self, what: Callable[[], bool]) -> bool:
        """Wait until a condition is true, which is tested at each event. Returns False after `patience_seconds`."""
        with anyio.move_on_after(self.patience_seconds):
            while not what():
                await self._changed.wait()
        return what()

    async def answers(self, calls: Iterable[ToolCallRequested]) -> list[TerminalEvent]:
        """Return the first terminal event of each call. A call without a terminal event ends the check."""
        wanted = [*calls]
        await self.until(lambda: all(self.endings(each) for each in wanted))
        for each in wanted:
            if not self.endings(each):
                self.ledger.give_up(f"the call of {each.name}", "answered", "no terminal event")
        return [self.endings(each)[0] for each in wanted]

    async def answer(self, requested: ToolCallRequested) -> TerminalEvent:
        """Return the first terminal event of a call."""
        return (await self.answers([requested]))[0]
