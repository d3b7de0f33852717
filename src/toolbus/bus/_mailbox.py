"""The mailbox: the path by which the bus reaches one session, independent of the broadcast. Knows events and anyio."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio

from ..events import (
    CancelRequested,
    Event,
    Spent,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallPaused,
    ToolCallResumed,
)
from ..protocols import LateResults, RequestView


class Mailbox:
    """A session's control path: the terminal events of its calls, and the inputs from people. Lossless, in order.

    Bounded by the calls that the session opened, plus one entry for each input from a person: the session publishes at
    most 100 of a kind, and only what others publish is not bounded. `on_put` is called with each event that comes in,
    at once and in the publisher's stack: it must only wake its session. `on_trouble` is called in the same way with
    each failure of a call and each `CancelRequested`. `open_calls` are the calls that wait for their terminal event, by
    id, each with the function of the executor that has taken it on. `late` is the treatment of second results. `masked`
    returns an event of the request without the request's secrets; a request without secrets has None. `spent` returns
    what the sub-requests of an open call have used, by the call's id; a request that has made none has None.

    `publishes_facts` means that the owner is a session, and that nobody else publishes the facts of its request. With
    `publishes_inputs` the session also broadcasts the events that are put in here, after its journal has them (G31).
    `unpublished` are the ids of calls that are settled but whose terminal event is not broadcast yet; a late result of
    such a call is held back until then. `is_adopted` means that the request runs in another process, and only calls of
    it run here: nobody reads the mailbox.
    """

    __slots__ = (
        "_causes",
        "_items",
        "_late_results",
        "_new_event",
        "_woken",
        "is_adopted",
        "late",
        "masked",
        "on_put",
        "on_trouble",
        "open_calls",
        "publishes_facts",
        "publishes_inputs",
        "request_id",
        "spent",
        "unpublished",
        "view",
    )

    def __init__(self, request_id: str, view: RequestView | None, new_event: Callable[[], anyio.Event]) -> None:
        self.request_id = request_id
        self.view = view
        self.open_calls: dict[str, Callable[[], None] | None] = {}
        self.late: LateResults = "event"
        self.on_put: Callable[[Event], object] | None = None
        self.on_trouble: Callable[[ToolCallFailed | CancelRequested], object] | None = None
        self.masked: Callable[[Event], Event] | None = None
        self.spent: Callable[[str], Spent | None] | None = None
        self.is_adopted = False
        self.publishes_facts = False
        self.publishes_inputs = False
        self.unpublished: dict[str, None] = {}  # an empty set takes three times as much
        self._late_results: list[ToolCallLate] = []
        self._items: list[Any] = []  # a list, because an empty deque takes half a kilobyte
        self._new_event = new_event
        self._woken: anyio.Event | None = None
        self._causes: dict[str, BaseException] | None = None  # by call id; None until there is one

    def put(self, event: Event, cause: BaseException | None = None) -> None:
        """Put an event in and wake the session. Only the bus calls this."""
        self._items.append(event)
        if self.on_trouble is not None and isinstance(event, _TROUBLE):
            self.on_trouble(event)
        if cause is not None and isinstance(event, ToolCallFailed):
            self._causes = {**(self._causes or {}), event.call_id: cause}
        if self._woken is not None:
            self._woken.set()
            self._woken = None
        elif self.on_put is not None:
            self.on_put(event)

    @property
    def waiting(self) -> Sequence[Event]:
        """The events that have come in since the last `drain`."""
        return tuple(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, event: Event) -> bool:
        return any(each.event_id == event.event_id for each in self._items)

    def holds(self, late: ToolCallLate) -> bool:
        """Hold a late result back until its call's terminal event is broadcast. False if it can be broadcast now."""
        if late.call_id not in self.unpublished:
            return False
        self._late_results.append(late)
        return True

    def published(self, facts: Sequence[Event]) -> Sequence[ToolCallLate]:
        """Note that the owner has broadcast `facts`. Returns the late results that were held back for one of them."""
        for each in facts:
            if isinstance(each, (ToolCallCompleted, ToolCallFailed)):
                self.unpublished.pop(each.call_id, None)
        late, self._late_results = self._late_results, []
        return [each for each in late if not self.holds(each)]

    def close(self) -> Sequence[ToolCallLate]:
        """Note that the owner broadcasts nothing more. Returns the late results that were still held back."""
        self.unpublished.clear()
        late, self._late_results = self._late_results, []
        return late

    def has(self, kind: type[Event]) -> bool:
        """Return whether an event of `kind` has come in since the last `drain`."""
        return any(isinstance(event, kind) for event in self._items)

    @contextmanager
    def unless_cancelled(self, deadline: float = math.inf) -> Generator[anyio.CancelScope]:
        """Run a block that is cancelled when somebody cancels the request, or at `deadline` on the loop's clock."""
        with anyio.CancelScope(deadline=deadline) as scope:
            self.on_put = lambda event: scope.cancel() if isinstance(event, CancelRequested) else None
            try:
                if self.has(CancelRequested):
                    scope.cancel()
                yield scope
            finally:
                self.on_put = None

    def drain(self) -> list[Any]:
        """Return all events that have come in since the last `drain`, and remove them.

        What executors report is first, so that a cancellation does not lose a call that has ended; otherwise oldest
        first. A pause stays before the result of its call, after which it would mean nothing.
        """
        events, self._items = self._items, []
        if len(events) > 1:
            events.sort(key=_is_input)
        return events

    def cause(self, call_id: str) -> BaseException | None:
        """Return the exception that caused a call's failure, if it was raised in this process."""
        return None if self._causes is None else self._causes.get(call_id)

    async def wait(self) -> None:
        """Return once there is an event; at once, and without a checkpoint, if there is one already."""
        if self._items:
            return
        self._woken = woken = self._new_event()
        try:
            await woken.wait()
        finally:
            self._woken = None


_TROUBLE = (ToolCallFailed, CancelRequested)


_REPORTS = (ToolCallCompleted, ToolCallFailed, ToolCallPaused, ToolCallResumed)


def _is_input(event: Event) -> bool:
    """Return whether an event is an input from a person rather than the report of an executor."""
    return not isinstance(event, _REPORTS)
