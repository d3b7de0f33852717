"""The mailbox: how the bus reaches one session, whatever the broadcast does. Knows events and anyio."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio

from ..core.approval import bound
from ..events import ApprovalDecided, CancelRequested, Event, ToolCallCompleted, ToolCallFailed, ToolCallLate
from ..protocols import LateResults, RequestView

__all__ = ["Mailbox"]


class Mailbox:
    """A session's control path: the terminal events of its calls, and what people ask of it. Lossless, in order.

    Bounded by what the session opened, and by one entry for each thing that a person asked. `on_put` is called with
    each event that comes in, at once and in the publisher's stack: it must only wake its session. `on_trouble` is
    called in the same way with each failure of a call and each cancel. `open_calls` is how many calls wait for their
    terminal event; the bus counts them. `late` says what becomes of second results. `masked` gives an event that is
    published for the request without its secrets; None for a request that has none.

    `publishes_facts` says that the owner is a session, which alone publishes the facts of its request. With
    `publishes_inputs` it broadcasts what is put here too, after its journal has it (G31): `unpublished` are the calls
    that are settled and whose terminal event is not broadcast yet. A late result of one of them waits for it.
    """

    __slots__ = (
        "_causes",
        "_items",
        "_late_results",
        "_woken",
        "late",
        "masked",
        "on_put",
        "on_trouble",
        "open_calls",
        "publishes_facts",
        "publishes_inputs",
        "request_id",
        "unpublished",
        "view",
    )

    def __init__(self, request_id: str, view: RequestView | None) -> None:
        self.request_id = request_id
        self.view = view
        self.open_calls = 0
        self.late: LateResults = "event"
        self.on_put: Callable[[Event], object] | None = None
        self.on_trouble: Callable[[ToolCallFailed | CancelRequested], object] | None = None
        self.masked: Callable[[Event], Event] | None = None
        self.publishes_facts = False
        self.publishes_inputs = False
        self.unpublished: set[str] = set()
        self._late_results: list[ToolCallLate] = []
        self._items: list[Any] = []  # a deque takes half a kilobyte while it is empty
        self._woken: anyio.Event | None = None
        self._causes: dict[str, BaseException] | None = None  # until there is one

    def put(self, event: Event, cause: BaseException | None = None) -> None:
        """Put an event in and wake the session. Called by the bus."""
        self._items.append(bound(event) if isinstance(event, ApprovalDecided) else event)
        if self.on_trouble is not None and isinstance(event, _TROUBLE):
            self.on_trouble(event)
        if cause is not None and isinstance(event, ToolCallFailed):
            self._causes = {**(self._causes or {}), event.call_id: cause}
        if self._woken is not None:
            self._woken.set()
        elif self.on_put is not None:
            self.on_put(event)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, event: Event) -> bool:
        return any(each.event_id == event.event_id for each in self._items)

    def holds(self, late: ToolCallLate) -> bool:
        """Keep a late result until its call's terminal event is broadcast. False when it can be broadcast now."""
        if late.call_id not in self.unpublished:
            return False
        self._late_results.append(late)
        return True

    def published(self, facts: Sequence[Event]) -> Sequence[ToolCallLate]:
        """Note that the owner has broadcast `facts`. Returns the late results that waited for one of them."""
        self.unpublished.difference_update(
            [each.call_id for each in facts if isinstance(each, (ToolCallCompleted, ToolCallFailed))]
        )
        late, self._late_results = self._late_results, []
        return [each for each in late if not self.holds(each)]

    def close(self) -> Sequence[ToolCallLate]:
        """The owner broadcasts nothing more. Returns the late results that still waited."""
        self.unpublished.clear()
        late, self._late_results = self._late_results, []
        return late

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


_TROUBLE = (ToolCallFailed, CancelRequested)


def _is_asked(event: Event) -> bool:
    return not isinstance(event, (ToolCallCompleted, ToolCallFailed))
