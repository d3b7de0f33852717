"""The inputs and commands of the turn machine: what may happen to a request, and what has to be done. Only data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from ...records import Record
from ..history import Shape
from ._state import CallState, TurnState


class Start(Record, frozen=True):
    """The input that begins a request: `history` is a valid transcript, `prompt` the user's message after it, or None.

    `notes` come between the two. With `refused`, a guardrail's verdict, the request fails at once, and the prompt does
    not join the transcript.
    """

    prompt: UserMessage | None
    history: Sequence[Message] = ()
    notes: Sequence[SystemMessage] = ()
    refused: ModelFailed | None = None
    parent_request_id: str = ""
    parent_call_id: str = ""


class Resume(Record, frozen=True):
    """The input that continues a request in another process, or another runtime, than the one in which it began.

    `seconds` is the time that it gets from now; None where its deadline stays the same by the wall clock.
    """

    seconds: float | None = None


class ModelReplied(Record, frozen=True):
    """The model's whole reply. `denied` has the reasons of interceptors, by the call's position in the reply.

    `native_output` is whether the provider was asked to enforce the output's schema.
    """

    reply: ModelReply
    denied: Mapping[int, str] | None = None
    native_output: bool = False


class LostReplies(Record, frozen=True):
    """The tokens and the cost of a model call's replies that may not be used, and the name of the model.

    Example:
        from toolbus.core.turn import LostReplies, ModelFailed
        from toolbus.messages import Usage

        lost = LostReplies(usage=Usage(input_tokens=9), vendor="openai", model="gpt-5-mini")
        print(ModelFailed("provider_unavailable", "busy", retryable=True, lost=lost).lost.model)  # gpt-5-mini
    """

    usage: Usage = Usage()
    cost: float = 0.0
    vendor: str = ""
    model: str = ""


class ModelFailed(Record, frozen=True):
    """The failure of a model call.

    `code` is a `ToolbusError.code`; `retry_after_seconds` is the wait that the server asks for, if it does.
    """

    code: str
    error: str
    retryable: bool = False
    retry_after_seconds: float | None = None
    lost: LostReplies = LostReplies()


class HistoryShaped(Record, frozen=True):
    """A change of the history that is sent. `summary` is the new summary of the turns that were left out, if any."""

    shape: Shape
    summary: Summary | None = None


class OutOfBudget(Record, frozen=True):
    """The input instead of a model call while a shared budget is used up. `reason` names its bound with the value."""

    reason: str


class Elapsed(Record, frozen=True):
    """The input for a pending command whose deadline has passed, or for a model call that a cancellation has ended.

    Replies may have come to an interceptor before.
    """

    lost: LostReplies = LostReplies()


Input: TypeAlias = (
    Start
    | Resume
    | ModelReplied
    | ModelFailed
    | HistoryShaped
    | OutOfBudget
    | Elapsed
    | ToolCallCompleted
    | ToolCallFailed
    | ApprovalDecided
    | ToolCallPaused
    | ToolCallResumed
    | CancelRequested
    | SteeringAdded
)


class CallModel(Record, frozen=True):
    """Call the model, and return `ModelReplied`, `ModelFailed`, or `Elapsed` if no piece has come by `deadline`.

    `not_before` is the moment to wait for first, 0 for none. `provider` is the index of the provider to ask among those
    of the request.
    """

    round: int
    message_id: str
    offer_tools: bool
    not_before: float
    deadline: float
    provider: int


class AwaitCalls(Record, frozen=True):
    """Wait for terminal events of `calls`; at `deadline` return `Elapsed`."""

    calls: Mapping[str, CallState]
    deadline: float


class Finish(Record, frozen=True):
    """The request has ended: do nothing more."""


Command: TypeAlias = CallModel | AwaitCalls | Finish


def reply_id(state: TurnState) -> str:
    """Return the `message_id` that the current round's reply has or will have; a reply that is begun anew gets another.

    Otherwise a reader could take the pieces of two replies for one.
    """
    given_up = state.rounds[-1].given_up
    return f"{state.request_id}_r{state.round}{f'_{given_up}' if given_up else ''}"
