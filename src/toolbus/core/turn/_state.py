"""What a request is: the data that the turn machine decides on. No decisions in here.

A `TurnState` belongs to one session. `core.turn.apply` changes it in place, as a fold owns its accumulator; everybody
else only reads.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...events import PlanStep, RequestEnding, Spent, TerminalEvent
from ...messages import Message, ToolCall, Usage
from ...protocols import OutputMode, ToolSpec
from ..approval import ApprovalPolicy
from ..limits import Limits
from ..output import OutputType
from ..prices import Price
from ..result_size import DEFAULT_RESULT_CHARS

__all__ = [
    "ENDED",
    "INTERRUPTED",
    "MODEL",
    "NEW",
    "OPEN",
    "READY",
    "REPLIED",
    "REQUESTED",
    "SETTLED",
    "TOOLS",
    "WAITING",
    "CallState",
    "CallStatus",
    "Phase",
    "RoundState",
    "Stop",
    "SubRequest",
    "TurnState",
]


# `list[Message]` as a factory costs five times as much: a generic alias tries to note itself on what it makes.
def _new_list() -> list[Any]:
    return []


def _new_dict() -> dict[str, Any]:
    return {}


class Phase(enum.Enum):
    """Where the machine stands. Which facts are legal in which phase is the table in `core.reducer`."""

    NEW = "new"
    READY = "ready"  # nothing is owed; the next round or the ending follows
    MODEL = "model"  # the model is being called
    REPLIED = "replied"  # the reply is known, its message not yet appended
    TOOLS = "tools"  # calls are open, or their results not yet appended
    ENDED = "ended"


# Members under names of their own: to look one up in its class costs ten times as much on CPython 3.11.
NEW, READY, MODEL, REPLIED, TOOLS, ENDED = Phase


class CallStatus(enum.Enum):
    """Where a call stands."""

    OPEN = "open"  # not judged yet: its reply is new, or an earlier sequential call has to end first
    WAITING = "waiting"  # for a person's approval
    REQUESTED = "requested"  # on the bus; it may run
    INTERRUPTED = "interrupted"  # it was on the bus of a process that is gone; it may have run
    SETTLED = "settled"


OPEN, WAITING, REQUESTED, INTERRUPTED, SETTLED = CallStatus


class SubRequest(Protocol):
    """A request that works for a call. `waits` is whether it waits for a person."""

    waits: bool

    @property
    def spent(self) -> Spent:
        """What it has used up so far."""
        ...


@dataclass(slots=True)
class CallState:
    """One call of a reply. `arguments` is set once it was asked about or requested; `outcome` once it is settled.

    `arguments` are the request's own: no event has the same object, at any depth, since all listeners share an event.

    `deadline` is a moment on the session's clock: of the person's decision while the call waits for one, then of its
    result; infinite before. `definition` is the tool's, as the call was asked about or requested: `core.approval`.
    """

    call: ToolCall
    round: int
    status: CallStatus = OPEN
    arguments: dict[str, Any] | None = None
    requested_at: float | None = None
    deadline: float = float("inf")
    definition: str = ""
    left: float | None = None  # seconds until its deadline, while its clock stands still
    sub_requests: tuple[SubRequest, ...] = field(default=(), compare=False)  # those that its tool made
    outcome: TerminalEvent | None = None


@dataclass(slots=True, frozen=True)
class Stop:
    """Why no more work is begun. `reason` names the limit with its value.

    `last_answer` is whether the model may be asked once more, without tools; `at_once`, whether calls that run are
    given up.
    """

    reason: str
    last_answer: bool = False
    at_once: bool = False


@dataclass(slots=True)
class RoundState:
    """One call of the model, for the report afterwards. `seconds` runs from the round's start to its whole reply."""

    round: int
    started_at: float
    seconds: float = 0.0
    finish_reason: str = ""
    native_output: bool = False  # whether the provider was to hold the newest reply to the output's schema
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    calls: list[CallState] = field(default_factory=_new_list)


@dataclass(slots=True)
class TurnState:
    """Everything that the machine knows of one request."""

    request_id: str
    conversation_id: str = ""
    parent_id: str = ""
    metadata: Mapping[str, Any] | None = None
    # What was agreed for the request; `tools` as the session last saw them. No facts change these.
    limits: Limits = field(default_factory=Limits)
    providers: int = 1  # how many there are to turn to, one after the other
    tools: Mapping[str, ToolSpec] = field(default_factory=_new_dict)
    approval: ApprovalPolicy | None = None
    prices: Mapping[str, Price] | None = None
    output: OutputType[Any] | None = None
    output_mode: OutputMode = "auto"
    note_failures: bool = False
    max_result_chars: int = DEFAULT_RESULT_CHARS  # how much of one result is sent, and is on a page of `read_result`

    phase: Phase = NEW
    messages: list[Message] = field(default_factory=_new_list)
    history_count: int = 0
    round: int = -1  # the number of the current round, from 0
    rounds: list[RoundState] = field(default_factory=_new_list)
    calls: list[CallState] = field(default_factory=_new_list)  # of the current round, in call order
    open_calls: dict[str, CallState] = field(default_factory=_new_dict)  # of these, not settled yet
    unjudged: int = 0  # how many of these are still to be judged
    waiting: int = 0  # how many of these wait for a person; the request's own clock stands still meanwhile
    paused_at: float = 0.0  # since when
    interrupted: int = 0  # how many of these belong to a process that is gone, and are still to be decided on
    appended: int = 0  # how many results of the current round are in the transcript
    tools_offered: bool = True
    started_at: float = 0.0
    deadline: float = float("inf")
    not_before: float = 0.0  # when the model may be called again; 0 for at once
    model_deadline: float = float("inf")

    facts: int = 0  # applied so far: the next fact's `seq`
    journal_bytes: int = 0  # that the request's journal holds, where there is one that counts
    resumptions: int = 0  # how often it went on in another process
    replies: int = 0  # of the model to which tools were offered; empty ones do not count
    tool_calls: int = 0
    consecutive_errors: int = 0
    last_call: tuple[str, dict[str, Any]] | None = None
    repeats: int = 0
    empty_replies: int = 0  # in the current round
    overflowed: bool = False  # whether the current round's request was too long once already
    attempts: int = 0  # calls of the current provider in the current round, the one under way included
    provider: int = 0  # the place of the current provider; a request stays with the one that it has turned to
    steering: list[str] = field(default_factory=_new_list)
    steered: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float = 0.0
    vendor: str = ""  # of the newest reply
    native_refused: bool = False  # whether a server did not take the output's schema
    repairs: int = 0  # texts that were sent back because they were not the structured output
    plan: tuple[PlanStep, ...] = ()
    granted: dict[str, bool] = field(default_factory=_new_dict)  # decisions to be remembered, by definition

    stop: Stop | None = None
    cancel: str | None = None  # the reason, once somebody asked
    last_text: str = ""
    ending: RequestEnding | None = None

    def envelope(self, at: float) -> dict[str, Any]:
        """The fields that every event of this request carries."""
        return {
            "request_id": self.request_id,
            "conversation_id": self.conversation_id,
            "parent_id": self.parent_id,
            "at": at,
            "metadata": self.metadata,
        }
