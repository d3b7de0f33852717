"""The state of each request and call in one process, as the checks know it from events. Data only."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...core.limits import Limits
from ...events import Event, RequestStarted, Spent, TerminalEvent, ToolCallRequested
from ...messages import AssistantMessage, ToolCall


@dataclass(slots=True, eq=False)
class Call:
    """One call. `before` is the event that requested it in an earlier process, whose outcome is unknown.

    `settled_at` does not count the time in which the process was paused. `ticket` is the state of a background call
    whose request continues without its result: "given" once a round has begun without the result, and "noted" once the
    transcript has the note with the result.
    """

    name: str
    is_background: bool = False
    requested: ToolCallRequested | None = None
    before: ToolCallRequested | None = None
    deadline: float = math.inf
    terminal: TerminalEvent | None = None
    settled_at: float = math.inf
    asked: bool = False
    approved: bool = False
    attempts: int = 0
    ticket: str = ""


@dataclass(slots=True, eq=False)
class Request:
    """One request, as one process knows it."""

    request_id: str
    limits: Limits
    started: RequestStarted | None = None
    ending: Event | None = None
    calls: dict[str, Call] = field(default_factory=dict[str, Call])
    facts: list[Event] = field(default_factory=list[Event])
    answered: set[str] = field(default_factory=set[str])  # calls whose results have joined the transcript
    reply: AssistantMessage | None = None  # the newest reply
    spent: Spent = field(default_factory=Spent)  # by its model calls and its sub-requests
    provider: int = 0  # the position of the provider whose turn it is
    not_before: float = 0.0  # the time before which it does not want to be asked; infinite if it has refused
    whole: Sequence[ToolCall] | None = None  # the calls of the newest reply that is whole, once a provider was asked
    replies: int = 0
    requested: int = 0
    # The conversation for which a person's decision is remembered: that of the topmost request.
    conversation: str = ""
    wants_output: bool = False  # whether it was asked for a structured output
    is_trusted: bool = False  # no call of the request needs a person's approval
    is_sub_request: bool = False  # a sub-request: it works for a call of another request, and has no journal
    settled_at: float = -math.inf  # the time at which the newest call was settled
    cancelled_at: float = math.inf
    said: dict[str, str] = field(default_factory=dict[str, str])  # what people have said while it runs, by event
    joined: list[str] = field(default_factory=list[str])  # the part of `said` that has joined the transcript
    paused: bool = False  # the request's clocks have been paused, so its deadlines have moved
    resumed_at: float | None = None  # the time at which this process resumed the request
    asked_elsewhere: set[str] = field(default_factory=set[str])  # calls whose question has to be asked again

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
