"""The state of each request and call in one process, as the checks know it from events. Data only."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Protocol

from ...core.limits import Limits
from ...events import Event, RequestStarted, ToolCallCompleted, ToolCallFailed, ToolCallRequested
from ...messages import Message

__all__ = ["Call", "JournalState", "Request"]


class JournalState(Protocol):
    """The journal of a simulated world, as the checks of one process see it."""

    @property
    def remembered(self) -> set[str]:
        """The conversations in which any process was asked to remember a person's decision."""
        ...

    @property
    def asked_at(self) -> dict[str, float]:
        """The time of each request's newest append, on the event loop's clock."""
        ...

    def is_durable(self, fact: Event) -> bool:
        """Return whether the journal has this fact, and not another one at its position."""
        ...

    def written(self, request_id: str) -> Sequence[Event]:
        """Return the facts of a request in the journal, in order."""
        ...

    def has_failed(self, request_id: str) -> bool:
        """Return whether an append by this process for this request has failed."""
        ...

    def is_unanswered(self, request_id: str) -> bool:
        """Return whether an append by this process has failed without saying who holds the request's lease."""
        ...

    def has_given_up(self, request_id: str) -> bool:
        """Return whether any process has continued the request without its journal."""
        ...

    def failed_since(self, moment: float) -> bool:
        """Return whether the store has had a fault since this time on the event loop's clock."""
        ...

    def is_ours(self, request_id: str) -> bool:
        """Return whether no other process has taken the request over."""
        ...

    def reports(self, event: ToolCallCompleted | ToolCallFailed) -> bool:
        """Record a terminal event, and return whether no process has published another one for the call."""
        ...

    def begins(self, request_id: str, call_id: str, key: str) -> tuple[bool, str]:
        """Record that a handler begins; return whether no other process has begun it, and the first one's key."""
        ...


class Call:
    """One call. `before` is its request in another process; nobody knows the outcome of that one.

    `settled_at` does not count the time in which the process was paused. `ticket` says how far a background call has
    come whose request continues without its result: "given" when a round has begun without the result, then "noted".
    """

    __slots__ = (
        "approved",
        "asked",
        "attempts",
        "before",
        "deadline",
        "is_background",
        "name",
        "requested",
        "settled_at",
        "terminal",
        "ticket",
    )

    def __init__(self, name: str, *, is_background: bool = False) -> None:
        self.name = name
        self.requested: ToolCallRequested | None = None
        self.before: ToolCallRequested | None = None
        self.deadline = float("inf")
        self.terminal: ToolCallCompleted | ToolCallFailed | None = None
        self.settled_at = float("inf")
        self.asked = False
        self.approved = False
        self.attempts = 0
        self.is_background = is_background
        self.ticket = ""


class Request:
    """One request, as one process knows it."""

    __slots__ = (
        "answered",
        "asked_elsewhere",
        "calls",
        "cancelled_at",
        "conversation",
        "ending",
        "facts",
        "is_sub_request",
        "is_trusted",
        "limits",
        "paused",
        "replies",
        "reply",
        "request_id",
        "requested",
        "resumed_at",
        "settled_at",
        "started",
    )

    def __init__(self, request_id: str, limits: Limits) -> None:
        self.request_id = request_id
        self.limits = limits
        self.started: RequestStarted | None = None
        self.ending: Event | None = None
        self.calls: dict[str, Call] = {}
        self.facts: list[Event] = []
        self.answered: set[str] = set()  # calls whose results have joined the transcript
        self.reply: Message | None = None  # the newest reply
        self.replies = 0
        self.requested = 0
        # The conversation for which a person's decision is remembered: that of the topmost request.
        self.conversation = ""
        self.is_trusted = False  # no call of the request needs a person's approval
        self.is_sub_request = False  # a sub-request: it works for a call of another request, and has no journal
        self.settled_at = float("-inf")  # the time at which the newest call was settled
        self.cancelled_at = float("inf")
        self.paused = False  # the request's clocks have been paused, so its deadlines have moved
        self.resumed_at: float | None = None  # the time at which this process resumed the request
        self.asked_elsewhere: set[str] = set()  # calls whose question has to be asked again

    def until_now(self) -> Request:
        """Return a copy in which later events of its calls change nothing."""
        found = copy.copy(self)
        found.calls = {call_id: copy.copy(call) for call_id, call in self.calls.items()}
        return found

    def interrupt(self, now: float) -> None:
        """Note that all earlier events were those of another process, and that this process resumes the request now."""
        self.resumed_at, self.paused = now, True
        for call_id, call in self.calls.items():
            call.attempts, call.before, call.requested = 0, call.requested, None
            if call.asked and not call.approved and call.terminal is None and call.before is None:
                self.asked_elsewhere.add(call_id)
