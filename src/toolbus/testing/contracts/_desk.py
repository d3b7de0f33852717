"""A request without a model and without a session: calls are requested on a bus of its own, and answers heard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any, TypeAlias

import anyio

from ...bus import EventBus
from ...events import (
    DeadLetter,
    Event,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallProgress,
    ToolCallRequested,
)
from ...protocols import RequestView
from ._checks import Abandoned, Ledger

__all__ = ["Desk", "Terminal", "numbers"]

Terminal: TypeAlias = ToolCallCompleted | ToolCallFailed
_TERMINAL = (ToolCallCompleted, ToolCallFailed)
numbers = count(1)
"""For ids and keys: each once in a process."""


class Desk:
    """One request on a bus of its own. `view` is what handlers may see of it; `ledger` takes what is wrong."""

    def __init__(self, ledger: Ledger, patience_seconds: float, view: RequestView | None = None) -> None:
        self.ledger = ledger
        self.patience_seconds = patience_seconds
        self.bus = EventBus()
        self.request_id = f"request-{next(numbers)}"
        self.events: list[Event] = []
        self._changed = anyio.Event()
        self.bus.connect((*_TERMINAL, ToolCallLate, ToolCallProgress, DeadLetter), self._hear)
        self.mailbox = self.bus.arbitration.open_mailbox(self.request_id, view)

    def leave(self) -> None:
        """End the request."""
        self.bus.arbitration.close_mailbox(self.mailbox)

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()
        self._changed = anyio.Event()

    # ------------------------------------------------------------------------------------------- requesting

    def open_call(
        self, name: str, arguments: Mapping[str, Any], *, deadline_seconds: float = 3_600.0, key: str = ""
    ) -> ToolCallRequested:
        """Open a call, and tell nobody. `key` is its idempotency key; without it, one of its own."""
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
            deadline=deadline_seconds,
            idempotency_key=key or f"key of {call_id}",
        )

    def request(self, name: str, arguments: Mapping[str, Any], *, key: str = "") -> ToolCallRequested:
        """Request a call."""
        requested = self.open_call(name, arguments, key=key)
        self.bus.publish(requested)
        return requested

    def settle(self, requested: ToolCallRequested, how: str = "timeout") -> None:
        """Settle a call in the executor's place: by another's result, or as failed for that reason."""
        failed: Any = how
        ending = requested.completed("another's") if how == "completed" else requested.failed(how, reason=failed)
        if not self.bus.publish(ending):
            self.ledger.fail(f"{requested.name}, about to be settled by somebody else", "open", self.endings(requested))
            raise Abandoned

    # --------------------------------------------------------------------------------------------- hearing

    def endings(self, requested: ToolCallRequested) -> list[Terminal]:
        """The terminal events of a call so far."""
        return [each for each in self.events if isinstance(each, _TERMINAL) and each.call_id == requested.call_id]

    def lates(self, requested: ToolCallRequested) -> list[ToolCallLate]:
        """What was told of a call after it was settled."""
        return [each for each in self.events if isinstance(each, ToolCallLate) and each.call_id == requested.call_id]

    async def until(self, what: Callable[[], bool]) -> bool:
        """Wait until something is so, which is asked at each event; False after `patience_seconds`."""
        with anyio.move_on_after(self.patience_seconds):
            while not what():
                await self._changed.wait()
        return what()

    async def answers(self, calls: Iterable[ToolCallRequested]) -> list[Terminal]:
        """The first terminal event of each call. A call without one ends the check."""
        wanted = [*calls]
        await self.until(lambda: all(self.endings(each) for each in wanted))
        for each in wanted:
            if not self.endings(each):
                self.ledger.fail(f"the call of {each.name}", "answered", "no terminal event")
                raise Abandoned
        return [self.endings(each)[0] for each in wanted]

    async def answer(self, requested: ToolCallRequested) -> Terminal:
        """The terminal event of a call."""
        return (await self.answers([requested]))[0]
