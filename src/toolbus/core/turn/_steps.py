"""The turn machine's vocabulary: what may happen to a request (inputs), and what has to be done (commands). Data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ...events import (
    ApprovalDecided,
    CancelRequested,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallPaused,
    ToolCallResumed,
)
from ...messages import Message, SystemMessage, Usage, UserMessage
from ...protocols import ModelReply, Summary
from ..history import Shape
from ._state import CallState

__all__ = [
    "AwaitCalls",
    "CallModel",
    "Command",
    "Elapsed",
    "Finish",
    "HistoryShaped",
    "Input",
    "ModelFailed",
    "ModelReplied",
    "Resume",
    "Start",
    "reply_id",
]


@dataclass(slots=True)
class Start:
    """The request begins: `history` is a valid transcript, `prompt` the user's message behind it, if there is one.

    `notes` come between the two. With `refused`, a guardrail's verdict, the request fails at once, and the prompt does
    not join the transcript.
    """

    prompt: UserMessage | None
    history: Sequence[Message] = ()
    notes: Sequence[SystemMessage] = ()
    refused: ModelFailed | None = None
    parent_request_id: str = ""
    parent_call_id: str = ""


@dataclass(slots=True)
class Resume:
    """The request goes on in another process than it was begun in, or in another runtime.

    `seconds` is the time that it gets from now; None where its deadline goes on by the wall clock.
    """

    seconds: float | None = None


@dataclass(slots=True)
class ModelReplied:
    """The model's whole reply. `denied` are the reasons of interceptors, by the call's position in it.

    `native_output` is whether the provider was to hold the reply to the output's schema.
    """

    reply: ModelReply
    denied: Mapping[int, str] | None = None
    native_output: bool = False


@dataclass(slots=True)
class ModelFailed:
    """A call of the model failed. `code` is a `ToolbusError.code`; the server may have said how long to wait.

    `usage` is that of a reply that came, and may not be used.
    """

    code: str
    error: str
    retryable: bool = False
    retry_after_seconds: float | None = None
    usage: Usage = field(default_factory=Usage)


@dataclass(slots=True)
class HistoryShaped:
    """What is sent of the history is another than before. `summary` is what was just made of the turns that left."""

    shape: Shape
    summary: Summary | None = None


@dataclass(slots=True)
class Elapsed:
    """The deadline of the pending command has passed."""


Input: TypeAlias = (
    Start
    | Resume
    | ModelReplied
    | ModelFailed
    | HistoryShaped
    | Elapsed
    | ToolCallCompleted
    | ToolCallFailed
    | ApprovalDecided
    | ToolCallPaused
    | ToolCallResumed
    | CancelRequested
    | SteeringAdded
)


@dataclass(slots=True)
class CallModel:
    """Call the model, and give back `ModelReplied`, `ModelFailed`, or at `deadline` `Elapsed`.

    `not_before` is the moment to wait for first, 0 for none. `provider` is the place of the provider to ask among
    those of the request.
    """

    round: int
    message_id: str
    offer_tools: bool
    not_before: float
    deadline: float
    provider: int


@dataclass(slots=True)
class AwaitCalls:
    """Wait for terminal events of `calls`; at `deadline` give `Elapsed`."""

    calls: Mapping[str, CallState]
    deadline: float


@dataclass(slots=True)
class Finish:
    """Nothing is left to do."""


Command: TypeAlias = CallModel | AwaitCalls | Finish


def reply_id(request_id: str, round_number: int) -> str:
    """The `message_id` that a round's reply has or will have."""
    return f"{request_id}_r{round_number}"
