"""The mailbox: how the bus reaches one session, whatever the broadcast does. Knows events and anyio."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import anyio

from .events import CancelRequested, Event, SteeringAdded, ToolCallCompleted, ToolCallFailed
from .protocols import LateResults, RequestView

__all__ = ["Mailbox"]


class Mailbox:
    """A session's control path: the terminal events of its calls, and what people ask of it. Lossless, in order.

    Bounded by what the session opened, and by one entry for each thing that a person asked. `on_put` is called with
    each event that comes in, at once and in the publisher's stack: it must only wake its session. `open_calls` is how
    many calls wait for their terminal event; the bus counts them. `late` says what becomes of second results. `told`
    gives an event that is published for the request without its secrets; None for a request that has none.
    """

    __slots__ = ("_causes", "_items", "_woken", "late", "on_put", "open_calls", "request_id", "told", "view")

    def __init__(self, request_id: str, view: RequestView | None) -> None:
        self.request_id = request_id
        self.view = view
        self.open_calls = 0
        self.late: LateResults = "event"
        self.on_put: Callable[[Event], object] | None = None
        self.told: Callable[[Event], Event] | None = None
        self._items: list[Any] = []  # a deque takes half a kilobyte while it is empty
        self._woken: anyio.Event | None = None
        self._causes: dict[str, BaseException] | None = None  # until there is one

    def put(self, event: Event, cause: BaseException | None = None) -> None:
        """Put an event in and wake the session. Called by the bus."""
        self._items.append(event)
        if cause is not None and isinstance(event, ToolCallFailed):
            self._causes = {**(self._causes or {}), event.call_id: cause}
        if self._woken is not None:
            self._woken.set()
        elif self.on_put is not None:
            self.on_put(event)

    def __len__(self) -> int:
        return len(self._items)

    def has(self, kind: type[Event]) -> bool:
        """Whether an event of `kind` came in since the last time."""
        return any(isinstance(event, kind) for event in self._items)

    @contextmanager
    def unless_cancelled(self, deadline: float = math.inf) -> Generator[anyio.CancelScope]:
        """A block that is left when somebody cancels the request, or at `deadline` on the loop's clock."""
        with anyio.CancelScope(deadline=deadline) as scope:
            self.on_put = lambda event: scope.cancel() if isinstance(event, CancelRequested) else None
            try:
                if self.has(CancelRequested):
                    scope.cancel()
                yield scope
            finally:
                self.on_put = None

    def drain(self) -> list[Any]:
        """All events that came in since the last time: results first, so that a cancel loses nothing that is done.

        Otherwise oldest first.
        """
        events, self._items = self._items, []
        if len(events) > 1:
            events.sort(key=_is_asked)
        return events

    def drain_what_counts(self, *, goes_on: bool = False) -> list[Any]:
        """`drain`, when the request is given up: what is done and why it ends; no call may begin any more.

        With `goes_on`, which it will elsewhere, what was said to it as well; an answered question is asked again there.
        """
        kinds = (*_COUNTS, SteeringAdded) if goes_on else _COUNTS
        return [event for event in self.drain() if isinstance(event, kinds)]

    def cause(self, call_id: str) -> BaseException | None:
        """The exception behind a call's failure, where it was raised in this process."""
        return None if self._causes is None else self._causes.get(call_id)

    async def wait(self) -> None:
        """Return once there is an event; at once, and without giving way, when there is one already."""
        if self._items:
            return
        self._woken = anyio.Event()
        try:
            await self._woken.wait()
        finally:
            self._woken = None


_COUNTS = (ToolCallCompleted, ToolCallFailed, CancelRequested)


def _is_asked(event: Event) -> bool:
    return not isinstance(event, (ToolCallCompleted, ToolCallFailed))
