"""What the checks know of each request and call of one process: as its events tell of them. Data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...core.limits import Limits
from ...events import Event, RequestStarted, ToolCallCompleted, ToolCallFailed, ToolCallRequested
from ...messages import Message

__all__ = ["Call", "Durable", "Request"]


class Durable(Protocol):
    """What the journal of a simulated world tells the checks of one process."""

    @property
    def remembered(self) -> set[str]:
        """Conversations in which a person's word was to be remembered, in any process."""
        ...

    @property
    def asked_at(self) -> dict[str, float]:
        """When the newest append of each request was begun, on the loop's clock."""
        ...

    def is_durable(self, fact: Event) -> bool:
        """Whether the journal has this fact, and no other one in its place."""
        ...

    def written(self, request_id: str) -> Sequence[Event]:
        """What it has of a request, in order."""
        ...

    def has_failed(self, request_id: str) -> bool:
        """Whether an append by this process for this request has failed."""
        ...

    def is_unheard(self, request_id: str) -> bool:
        """Whether an append by this process has failed without a word on whose the request is."""
        ...

    def has_given_up(self, request_id: str) -> bool:
        """Whether any process has gone on with the request without its journal."""
        ...

    def failed_since(self, moment: float) -> bool:
        """Whether anything has gone wrong with the store from this moment on, on the loop's clock."""
        ...

    def is_ours(self, request_id: str) -> bool:
        """Whether no other process has taken the request over."""
        ...

    def reports(self, event: ToolCallCompleted | ToolCallFailed) -> bool:
        """A terminal event is heard: whether no process has reported another one of this call."""
        ...

    def begins(self, request_id: str, call_id: str, key: str) -> tuple[bool, str]:
        """A handler begins: whether no other process has begun it, and the key that the first one had."""
        ...


class Call:
    """One call. `before` is its request in another process, of which nobody knows what became.

    `settled_at` does not count the time in which the process stood still.
    """

    __slots__ = ("approved", "asked", "attempts", "before", "deadline", "name", "requested", "settled_at", "terminal")

    def __init__(self, name: str) -> None:
        self.name = name
        self.requested: ToolCallRequested | None = None
        self.before: ToolCallRequested | None = None
        self.deadline = float("inf")
        self.terminal: ToolCallCompleted | ToolCallFailed | None = None
        self.settled_at = float("inf")
        self.asked = False
        self.approved = False
        self.attempts = 0


class Request:
    """One request."""

    __slots__ = (
        "appended",
        "calls",
        "cancelled_at",
        "conversation",
        "ending",
        "facts",
        "is_below",
        "is_trusted",
        "limits",
        "paused",
        "replies",
        "request_id",
        "requested",
        "resumed_at",
        "settled_at",
        "started",
        "unasked",
    )

    def __init__(self, request_id: str, limits: Limits) -> None:
        self.request_id = request_id
        self.limits = limits
        self.started: RequestStarted | None = None
        self.ending: Event | None = None
        self.calls: dict[str, Call] = {}
        self.facts: list[Event] = []
        self.appended: list[Message] = []
        self.replies = 0
        self.requested = 0
        self.conversation = ""  # for which a person's word is remembered: that of the topmost request
        self.is_trusted = False  # none of its calls needs a person's word
        self.is_below = False  # it works for a call of another request, which is the one that the journal knows
        self.settled_at = float("-inf")  # when its newest call was
        self.cancelled_at = float("inf")
        self.paused = False  # its clocks have stood still at some time, so that its deadlines moved
        self.resumed_at: float | None = None  # when it went on in this process
        self.unasked: set[str] = set()  # calls that a person was asked about elsewhere, and has to be again

    def interrupt(self, now: float) -> None:
        """All that is known of it was in another process; now it goes on in this one."""
        self.resumed_at, self.paused = now, True
        for call_id, call in self.calls.items():
            call.attempts, call.before, call.requested = 0, call.requested, None
            if call.asked and not call.approved and call.terminal is None and call.before is None:
                self.unasked.add(call_id)
