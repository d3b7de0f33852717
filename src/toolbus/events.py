"""The events: what happens to a request, as data, and their coding to and from JSON.

An event is a slotted dataclass, keyword-only, read-only by contract: the type checker refuses to assign to it, and
with `TOOLBUS_DEBUG=1` in the environment (the test suite sets it) so does Python. `type` on the wire is the class
name in snake case. Facts change what a session is and are journalled; signals only tell what is going on.

Ids: `request_id` is one request, served by one session; `conversation_id` the thread of turns; `parent_id` the user
message that started it; `call_id` one tool call. `at` is seconds since the epoch, on a clock that is set once and
then runs monotonically, so differences between events of one process can be trusted.

This module knows messages, and neither bus nor clocks: an event does not know its place (`seq`, `position`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar, Union, dataclass_transform

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from .errors import DecodeError
from .messages import Message, Usage

__all__ = [
    "EVENT_TYPES",
    "FACT_TYPES",
    "ApprovalDecided",
    "ApprovalRequested",
    "Artifact",
    "CallOutcome",
    "CancelRequested",
    "DeadLetter",
    "Event",
    "FailureReason",
    "HistoryCompressed",
    "MessageAppended",
    "ModelResponded",
    "ModelRetrying",
    "Outcome",
    "PlanChanged",
    "PlanStep",
    "ReasoningDelta",
    "ReceiverFailed",
    "RequestCancelled",
    "RequestCompleted",
    "RequestEnding",
    "RequestFailed",
    "RequestStarted",
    "RoundStarted",
    "Stage",
    "StatusChanged",
    "SteeringAdded",
    "SubscriberLagged",
    "TerminalEvent",
    "TextDelta",
    "ToolArgumentsDelta",
    "ToolCallCompleted",
    "ToolCallFailed",
    "ToolCallLate",
    "ToolCallProgress",
    "ToolCallRequested",
    "ToolCallRetrying",
    "ToolCallStarted",
    "decode",
    "encode",
    "json_schema",
    "new_id",
]

_DEBUG = os.environ.get("TOOLBUS_DEBUG", "") not in ("", "0")
_E = TypeVar("_E")

FailureReason: TypeAlias = Literal[
    "error",
    "invalid_arguments",
    "unknown_tool",
    "limit",
    "timeout",
    "denied",
    "cancelled",
    "interrupted",
    "lost",
]
Outcome: TypeAlias = Literal["completed", "stopped"]
Stage: TypeAlias = Literal[
    "idle", "submitted", "streaming", "executing", "waiting", "processing", "complete", "error"
]

_declared: list[type[Any]] = []
_process_prefix = os.urandom(8).hex()
_next_number = count(1).__next__


def _reset_prefix() -> None:
    global _process_prefix  # noqa: PLW0603 -- a forked child must not repeat its parent's ids
    _process_prefix = os.urandom(8).hex()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_prefix)


def new_id() -> str:
    """A fresh id, unique over processes: 64 random bits for the process, then a counter. Thread-safe."""
    return f"{_process_prefix}{_next_number():x}"


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def _event(cls: type[_E]) -> type[_E]:
    """Make `cls` an event: slotted, keyword-only, frozen to the type checker, and in fact while debugging."""
    made = dataclass(slots=True, kw_only=True, frozen=_DEBUG)(cls)
    _declared.append(made)
    return made


@_event
class Event:
    """What every event carries. `metadata` (tenant, user) is the application's and rides on every event and log."""

    type: str
    event_id: str = field(default_factory=new_id)
    request_id: str = ""
    conversation_id: str = ""
    parent_id: str = ""
    at: float = field(default_factory=time.time)
    metadata: Mapping[str, Any] | None = None

    is_fact: ClassVar[bool] = False


# ---------------------------------------------------------------------------------------------- payloads


@dataclass(slots=True, kw_only=True)
class CallOutcome:
    """How one call of the previous round ended."""

    name: str
    success: bool


@dataclass(slots=True, kw_only=True)
class Artifact:
    """Something a tool made that does not go to the model: text as it is, binary content as base64."""

    name: str
    content: str
    media_type: str = "text/plain"
    encoding: Literal["utf-8", "base64"] = "utf-8"


@dataclass(slots=True, kw_only=True)
class PlanStep:
    """One step of the model's plan."""

    text: str
    status: Literal["pending", "active", "done", "dropped"] = "pending"


# ------------------------------------------------------------------------------------------------- facts


@_event
class RequestStarted(Event):
    """A request was accepted and its session runs.

    `deadline` is seconds from `at`; `history_count` is how many messages of earlier turns it starts with.
    `parent_request_id` and `parent_call_id` are set for a session that a tool of another one started.
    """

    type: Literal["request_started"] = "request_started"
    prompt: str = ""
    history_count: int = 0
    deadline: float
    parent_request_id: str = ""
    parent_call_id: str = ""
    is_fact: ClassVar[bool] = True


@_event
class MessageAppended(Event):
    """A message joined the transcript, with its `message_id`. The only fact that changes the transcript."""

    type: Literal["message_appended"] = "message_appended"
    message: Message
    is_fact: ClassVar[bool] = True


@_event
class RoundStarted(Event):
    """The model is being called. `after` is the outcome of the calls it now processes, empty in round 0.

    `tools_offered` is false for the last answer after a limit.
    """

    type: Literal["round_started"] = "round_started"
    round: int
    message_count: int
    after: tuple[CallOutcome, ...] = ()
    tools_offered: bool = True
    is_fact: ClassVar[bool] = True


@_event
class ModelResponded(Event):
    """The model's whole reply. `finish_reason` is the provider's word for why it ended."""

    type: Literal["model_responded"] = "model_responded"
    round: int
    message: Message
    finish_reason: str = ""
    usage: Usage = field(default_factory=Usage)
    vendor: str = ""
    model: str = ""
    is_fact: ClassVar[bool] = True


@_event
class ToolCallRequested(Event):
    """A tool call that may run: arguments are parsed and valid. Whoever runs it publishes one terminal event.

    `deadline` is seconds from `at`. `arguments` is shared by all listeners and must not be changed.
    """

    type: Literal["tool_call_requested"] = "tool_call_requested"
    call_id: str
    provider_call_id: str = ""
    vendor: str = ""
    name: str
    arguments: dict[str, Any]
    round: int
    deadline: float
    idempotency_key: str
    is_fact: ClassVar[bool] = True


@_event
class ToolCallCompleted(Event):
    """The call's one terminal event, on success. `content` is the exact text for the model."""

    type: Literal["tool_call_completed"] = "tool_call_completed"
    call_id: str
    name: str
    content: str
    data: Any = None
    artifacts: tuple[Artifact, ...] = ()
    affected: tuple[str, ...] = ()
    duration_seconds: float = 0.0
    is_fact: ClassVar[bool] = True


@_event
class ToolCallFailed(Event):
    """The call's one terminal event, on failure. `error` is for people and the model; no traceback is in it.

    `outcome_unknown` is true where the tool may have had its effect all the same. `limit` says which limit refused
    the call, with its value ("max_tool_calls=100"), where `reason` is `limit`.
    """

    type: Literal["tool_call_failed"] = "tool_call_failed"
    call_id: str
    name: str
    reason: FailureReason
    error: str
    retryable: bool = False
    outcome_unknown: bool = False
    limit: str = ""
    duration_seconds: float = 0.0
    is_fact: ClassVar[bool] = True


@_event
class ApprovalRequested(Event):
    """A call waits for a person. `deadline` is seconds from `at`; then it is denied."""

    type: Literal["approval_requested"] = "approval_requested"
    call_id: str
    name: str
    arguments: dict[str, Any]
    deadline: float
    is_fact: ClassVar[bool] = True


@_event
class ApprovalDecided(Event):
    """A person decided on one call. `arguments`, where given, replace the call's and are validated again."""

    type: Literal["approval_decided"] = "approval_decided"
    call_id: str
    approved: bool
    arguments: dict[str, Any] | None = None
    by: str = ""
    remember: bool = False
    is_fact: ClassVar[bool] = True


@_event
class SteeringAdded(Event):
    """The user said something while the request ran; it joins the transcript at the next round boundary."""

    type: Literal["steering_added"] = "steering_added"
    text: str
    is_fact: ClassVar[bool] = True


@_event
class CancelRequested(Event):
    """Somebody asked to end the request. `reason` is shown to people."""

    type: Literal["cancel_requested"] = "cancel_requested"
    reason: str = ""
    is_fact: ClassVar[bool] = True


@_event
class PlanChanged(Event):
    """The model wrote or changed its plan."""

    type: Literal["plan_changed"] = "plan_changed"
    steps: tuple[PlanStep, ...]
    is_fact: ClassVar[bool] = True


@_event
class HistoryCompressed(Event):
    """What is sent to the model was shortened; the stored history stays whole."""

    type: Literal["history_compressed"] = "history_compressed"
    before_tokens: int
    after_tokens: int
    is_fact: ClassVar[bool] = True


@_event
class RequestCompleted(Event):
    """The request ended with an answer (`completed`), or because a limit or the model stopped it (`stopped`).

    `reason` is empty for `completed`, else it names the limit with its value.
    """

    type: Literal["request_completed"] = "request_completed"
    outcome: Outcome = "completed"
    reason: str = ""
    text: str = ""
    usage: Usage = field(default_factory=Usage)
    is_fact: ClassVar[bool] = True


@_event
class RequestFailed(Event):
    """The request ended by an error. `reason` is a `ToolbusError.code`, `error` its text for people."""

    type: Literal["request_failed"] = "request_failed"
    reason: str
    error: str
    retryable: bool = False
    usage: Usage = field(default_factory=Usage)
    is_fact: ClassVar[bool] = True


@_event
class RequestCancelled(Event):
    """The request was cancelled. Completed work stays in the transcript."""

    type: Literal["request_cancelled"] = "request_cancelled"
    reason: str = ""
    usage: Usage = field(default_factory=Usage)
    is_fact: ClassVar[bool] = True


# ----------------------------------------------------------------------------------------------- signals


@_event
class TextDelta(Event):
    """A piece of the reply's text. `message_id` is the message it will become."""

    type: Literal["text_delta"] = "text_delta"
    message_id: str
    text: str
    round: int = 0


@_event
class ReasoningDelta(Event):
    """A piece of the model's reasoning."""

    type: Literal["reasoning_delta"] = "reasoning_delta"
    message_id: str
    text: str
    round: int = 0


@_event
class ToolArgumentsDelta(Event):
    """A piece of the argument text of the call at `index` in the reply. Not parsed, not validated."""

    type: Literal["tool_arguments_delta"] = "tool_arguments_delta"
    message_id: str
    index: int
    name: str
    text: str
    round: int = 0


@_event
class ToolCallStarted(Event):
    """A handler begins. `attempt` counts from 1."""

    type: Literal["tool_call_started"] = "tool_call_started"
    call_id: str
    name: str
    attempt: int = 1


@_event
class ToolCallProgress(Event):
    """A handler says how far it is. `total` is None where it does not know."""

    type: Literal["tool_call_progress"] = "tool_call_progress"
    call_id: str
    name: str
    message: str = ""
    done: float | None = None
    total: float | None = None


@_event
class ToolCallRetrying(Event):
    """A handler failed and will be tried again after `delay_seconds`."""

    type: Literal["tool_call_retrying"] = "tool_call_retrying"
    call_id: str
    name: str
    attempt: int
    error: str
    delay_seconds: float


@_event
class ModelRetrying(Event):
    """The model is called again for the same round: `reason` is an error code such as `empty_reply`."""

    type: Literal["model_retrying"] = "model_retrying"
    round: int
    reason: str
    error: str = ""
    delay_seconds: float = 0.0


@_event
class StatusChanged(Event):
    """Where the request stands, with a sentence for people."""

    type: Literal["status_changed"] = "status_changed"
    stage: Stage
    text: str


@_event
class ToolCallLate(Event):
    """A second terminal event for a call that was settled already. It never enters the transcript."""

    type: Literal["tool_call_late"] = "tool_call_late"
    call_id: str
    name: str
    late: Literal["tool_call_completed", "tool_call_failed"]
    content: str = ""
    error: str = ""


@_event
class SubscriberLagged(Event):
    """Put into one subscription in the place of events that it was too slow for. Positions are inclusive."""

    type: Literal["subscriber_lagged"] = "subscriber_lagged"
    first_position: int
    last_position: int
    count: int


@_event
class ReceiverFailed(Event):
    """A receiver raised while it was told of `event_type`. The others were told all the same."""

    type: Literal["receiver_failed"] = "receiver_failed"
    receiver: str
    event_type: str
    failed_event_id: str
    error: str


@_event
class DeadLetter(Event):
    """An event addressed to a call or request that the bus does not know. `letter_id` is its `event_id`."""

    type: Literal["dead_letter"] = "dead_letter"
    letter_type: str
    letter_id: str
    call_id: str = ""
    reason: str


TerminalEvent: TypeAlias = ToolCallCompleted | ToolCallFailed
RequestEnding: TypeAlias = RequestCompleted | RequestFailed | RequestCancelled

EVENT_TYPES: tuple[type[Event], ...] = tuple(cls for cls in _declared if cls is not Event)
FACT_TYPES: tuple[type[Event], ...] = tuple(cls for cls in EVENT_TYPES if cls.is_fact)


# ------------------------------------------------------------------------------------------------ coding


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[Union[EVENT_TYPES], Field(discriminator="type")])  # noqa: UP007 -- a tuple


def encode(event: Event, *, default: Callable[[Any], Any] | None = None) -> bytes:
    """The event as one line of JSON, without a line break.

    `default` is asked for values that JSON does not have (in `metadata` or `data`), as orjson does.
    Raises `TypeError` where such a value stays.
    """
    return orjson.dumps(event, default=default)


def decode(data: bytes | str) -> Event:
    """The event that `data` (one JSON object) describes, validated field by field.

    Unknown fields are ignored, so that a newer writer can be read. Raises `DecodeError` with the path and what was
    expected.
    """
    try:
        return _adapter().validate_json(data)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "event"
        raise DecodeError(f"{where}: {first['msg']}") from exc


def json_schema() -> dict[str, Any]:
    """The JSON schema of the union of all events, discriminated by `type`."""
    return _adapter().json_schema()
