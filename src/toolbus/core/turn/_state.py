"""The state of a request: the data that the turn machine decides on. It contains no decisions.

A `TurnState` belongs to one session. `core.turn.apply` changes it in place, as a fold owns its accumulator; all other
code only reads it, except that the session sets what no fact carries.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from msgspec import Struct

from ...events import ModelRetrying, PlanStep, RequestEnding, Spent, TerminalEvent
from ...messages import Message, ToolCall, Usage
from ...protocols import OutputMode, ToolSpec
from ..approval import ApprovalPolicy
from ..limits import Limits
from ..output import OutputType
from ..prices import Price
from ..result_size import DEFAULT_RESULT_CHARS


class _Compared(Struct, eq=False):
    """The base of states, which are equal if their fields are, without those in `_beside`: no fact carries these.

    A struct is made in a sixth of the time of a dataclass, and each call of a tool has a state.
    """

    _beside: ClassVar[frozenset[str]] = frozenset()

    def __eq__(self, other: object) -> bool:
        names = [name for name in self.__struct_fields__ if name not in self._beside]
        return type(other) is type(self) and all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # pyright: ignore[reportAssignmentType] -- a state changes


class Phase(enum.Enum):
    """The phase of the machine. `changes` has the functions that apply the facts which are legal in it."""

    changes: dict[type[Any], Callable[[TurnState, Any], None]]  # set in `_apply`, which has the table

    NEW = "new"
    READY = "ready"  # nothing is under way; the next round or the ending follows
    MODEL = "model"  # the model is being called
    TOOLS = "tools"  # calls are open
    ENDED = "ended"


# The members have names of their own, since looking one up in its class costs ten times as much on CPython 3.11.
NEW, READY, MODEL, TOOLS, ENDED = Phase


class CallStatus(enum.Enum):
    """The status of a call."""

    OPEN = "open"  # not judged yet: its reply is new, or an earlier sequential call has to end first
    WAITING = "waiting"  # waiting for a person's approval
    REQUESTED = "requested"  # published as `ToolCallRequested`, so it may be running
    INTERRUPTED = "interrupted"  # requested by a process that is gone, so it may have run
    SETTLED = "settled"


OPEN, WAITING, REQUESTED, INTERRUPTED, SETTLED = CallStatus


NO_PIECES: tuple[Sequence[str], Sequence[str]] = (), ()
"""The pieces of a reply of which nothing has arrived: those of its text, and those of its reasoning."""


class SubRequest(Protocol):
    """A request that the tool of a call has made. `waits` is whether it waits for a person."""

    waits: bool

    @property
    def request_id(self) -> str: ...

    @property
    def state(self) -> TurnState: ...

    @property
    def spent(self) -> Spent:
        """The tokens, calls and cost that it has used so far."""
        ...


class CallState(_Compared, eq=False):
    """One tool call of a reply. `arguments` is set once it waits for approval or is requested, `outcome` once settled.

    `arguments` belong to the state: no event has the same object, at any depth, since all listeners share an event.
    `bound` is the tool that has validated them, with the result of its `validate`; no fact carries it.

    `deadline` is a moment on the session's clock, in seconds: of the person's decision while the call waits for one,
    then of the result; infinite before. `definition` is the digest of the tool with which the approval was asked for or
    the call was requested (`core.approval.definition_of`).
    """

    _beside = frozenset({"asked", "bound", "spent", "sub_requests"})

    call: ToolCall
    round: int
    status: CallStatus = OPEN
    arguments: dict[str, Any] | None = None
    bound: tuple[ToolSpec, dict[str, Any] | None] | None = None
    requested_at: float | None = None
    deadline: float = float("inf")
    definition: str = ""
    remaining_seconds: float | None = None  # until its deadline, while the call is paused
    is_background: bool = False  # whether it was requested as a background call
    has_ticket: bool = False  # whether the model has read a ticket in place of its result
    sub_requests: tuple[SubRequest, ...] = ()  # the requests that its tool has made and that have not ended
    spent: Spent | None = None  # what those that have ended have used
    asked: tuple[str, ...] | None = None  # the ids of their open questions, while any of them waits for a person
    outcome: TerminalEvent | None = None


class Stop(Struct, frozen=True):
    """The reason for which no more work is started. `reason` names the limit with its value.

    `last_answer` is whether the model may be asked once more, without tools; `at_once` is whether running calls are
    given up.
    """

    reason: str
    last_answer: bool = False
    at_once: bool = False


class RoundState(Struct):
    """One round, for the report at the end. `seconds` is the time from the round's start to its whole reply, if any."""

    round: int
    started_at: float
    seconds: float | None = None
    given_up: int = 0  # the number of replies that were begun before the newest one and not used
    retries: tuple[ModelRetrying, ...] = ()
    finish_reason: str = ""
    native_output: bool = False  # whether the provider was asked to enforce the output's schema on the newest reply
    model: str = ""
    usage: Usage = Usage()
    calls: list[CallState] = []
    # The last call's id, and that of the fact that settled it, or requested it in the background.
    settled_last: tuple[str, str] | None = None
    results_at: int = 0  # the index of their first result in the transcript, once `settled_last` is set


class TurnState(_Compared, eq=False):
    """Everything that the machine knows about one request. All times are in seconds on the session's clock."""

    _beside = frozenset({"raised", "streamed"})

    request_id: str
    conversation_id: str = ""
    parent_id: str = ""
    metadata: Mapping[str, Any] | None = None
    # The options of the request, and `tools` as the session last saw them. No facts change these.
    limits: Limits = Limits()
    providers: int = 1  # the number of providers to turn to, one after the other
    tools: Mapping[str, ToolSpec] = {}
    needs_approval: ApprovalPolicy | None = None
    prices: Mapping[str, Price] | None = None
    has_cost_budget: bool = False  # whether a budget counts the cost of each reply
    output: OutputType[Any] | None = None
    output_mode: OutputMode = "auto"
    note_failures: bool = False
    max_result_chars: int = DEFAULT_RESULT_CHARS  # characters of one result that are sent, and of a page of one

    phase: Phase = NEW
    messages: list[Message] = []
    history_count: int = 0
    round: int = -1  # the number of the current round, from 0
    rounds: list[RoundState] = []
    calls: list[CallState] = []  # of the current round, in call order
    open_calls: dict[str, CallState] = {}  # the calls that are not settled yet, by id
    unjudged: int = 0  # the number of open calls that are still to be judged
    # The number of open calls that wait for a person, and one more while the request is idle. The request's clock is
    # paused while there are any.
    waiting: int = 0
    paused_at: float = 0.0  # the moment at which the request's clock was paused
    interrupted: int = 0  # the number of open calls that are `INTERRUPTED`, and still to be decided on
    background: int = 0  # the number of open calls that run in the background
    news: list[CallState] = []  # settled background calls that the model has not read of
    is_idle: bool = False  # whether the newest reply was an answer, and background calls were open then or had ended
    tools_offered: bool = True
    started_at: float = 0.0
    deadline: float = float("inf")
    not_before: float = 0.0  # the moment at which the model may be called again; 0 for at once
    model_deadline: float = float("inf")
    # The pieces of the reply that is arriving, of its text and its reasoning, set by the session; no fact carries them.
    streamed: tuple[Sequence[str], Sequence[str]] = NO_PIECES
    # Bugs in the application's validators and policies, which the session logs after each step: the call, or None for
    # the output in a text, then whether it was a policy that raised the exception.
    raised: tuple[tuple[ToolCall | None, bool, BaseException], ...] = ()

    facts: int = 0  # the number of facts applied so far, which is the next fact's `seq`
    journal_bytes: int = 0  # the size of the request in the journal, if the journal reports it
    resumptions: int = 0  # the number of times that the request was resumed
    replies: int = 0  # the number of replies to which tools were offered; empty ones do not count
    tool_calls: int = 0
    consecutive_errors: int = 0
    empty_replies: int = 0  # in the current round
    overflowed: bool = False  # whether the history was already too long for the provider in the current round
    attempts: int = 0  # calls of the current provider in the current round, including the one under way
    provider: int = 0  # the index of the current provider; a request stays with the one that it has turned to
    steering: list[str] = []  # texts that still have to join the transcript
    steered: int = 0  # the number of steering texts that have joined the transcript
    usage: Usage = Usage()
    cost: float = 0.0
    vendor: str = ""  # the vendor of the newest reply
    native_refused: bool = False  # whether a server has refused the output's schema
    repairs: int = 0  # the number of texts that were sent back because they were not the structured output
    plan: tuple[PlanStep, ...] = ()
    granted: dict[str, bool] = {}  # remembered decisions, by the tool's definition

    stop: Stop | None = None
    cancel: str | None = None  # the reason of the first cancel, or None
    last_text: str = ""
    ending: RequestEnding | None = None

    @property
    def needs_price(self) -> bool:
        """True if something counts the cost of each reply: a limit, or a budget."""
        return self.has_cost_budget or self.limits.max_cost is not None

    def envelope(self, at: float) -> dict[str, Any]:
        """Return the fields that every event of this request carries."""
        return {
            "request_id": self.request_id,
            "conversation_id": self.conversation_id,
            "parent_id": self.parent_id,
            "at": at,
            "metadata": self.metadata,
        }
