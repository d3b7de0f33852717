"""Facts: they change what a session is, are journalled in order, and none is ever lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from ..messages import Message, Part, Usage
from ._base import Event, event

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


@dataclass(slots=True, kw_only=True)
class Spent:
    """What the sub-sessions of one call have used up; it counts towards the limits of the request that called."""

    usage: Usage = field(default_factory=Usage)
    tool_calls: int = 0
    cost: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            usage=self.usage + other.usage,
            tool_calls=self.tool_calls + other.tool_calls,
            cost=self.cost + other.cost,
        )


@event
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


@event
class RequestResumed(Event):
    """A request goes on in another process, or another runtime, than it was begun in.

    `resumption` counts from 1. Of the calls that had been requested before it, nobody knows whether they ran: behind
    it each of them is requested once more (tools that are `idempotent`), or ends as `interrupted`. `deadline` is
    seconds from `at`, where the request got new time; None where the deadline that it had stays.
    """

    type: Literal["request_resumed"] = "request_resumed"
    resumption: int
    deadline: float | None = None
    is_fact: ClassVar[bool] = True


@event
class MessageAppended(Event):
    """A message joined the transcript, with its `message_id`. The only fact that changes the transcript."""

    type: Literal["message_appended"] = "message_appended"
    message: Message
    is_fact: ClassVar[bool] = True


@event
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


@event
class ModelResponded(Event):
    """The model's whole reply. `finish_reason` is why it ended: see `toolbus.protocols.FinishReason`.

    `cost` is what it cost by the request's price table; None where there is none, or no price in it. `native_output` is
    whether the provider was to hold the reply to the schema of the request's `output`.
    """

    type: Literal["model_responded"] = "model_responded"
    round: int
    message: Message
    finish_reason: str = ""
    usage: Usage = field(default_factory=Usage)
    vendor: str = ""
    model: str = ""
    cost: float | None = None
    native_output: bool = False
    is_fact: ClassVar[bool] = True


@event
class ModelRetrying(Event):
    """The model will be called again for the same round, `delay_seconds` from `at`; its pieces so far are void.

    `reason` is an error code such as `provider_unavailable` or `empty_reply`. `provider` is the place of the provider
    that is asked next among those of the request.
    """

    type: Literal["model_retrying"] = "model_retrying"
    round: int
    reason: str
    error: str = ""
    delay_seconds: float = 0.0
    provider: int = 0
    is_fact: ClassVar[bool] = True


@event
class ToolCallRequested(Event):
    """A tool call that may run: arguments are parsed and valid. Whoever runs it publishes one terminal event.

    `deadline` is seconds from `at`. `arguments` is shared by all listeners and must not be changed; the call of a
    request in this process runs with the request's own copy all the same. To answer from the bus:
    `bus.publish(event.completed("42"))`, or `event.failed("no such thing")`. `definition` is a digest of the tool's
    name, description and schema as the call was judged by them; `idempotency_key` is the same each time that the call
    is requested: after a restart, it may be a second time.
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
    definition: str = ""
    is_fact: ClassVar[bool] = True

    def completed(
        self,
        content: str,
        *,
        parts: tuple[Part, ...] = (),
        data: Any = None,
        artifacts: tuple[Artifact, ...] = (),
        affected: tuple[str, ...] = (),
        duration_seconds: float = 0.0,
    ) -> ToolCallCompleted:
        """The terminal event of this call's success. `content` is the text for the model, `data` any JSON value.

        Raises `TypeError` for a content that is no text.
        """
        if not isinstance(content, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- untyped callers
            raise TypeError(
                f"the content of a result is text for the model, not of type {type(content).__name__}; "
                "write the text, and give the value as data=: event.completed(json.dumps(value), data=value)"
            )
        return ToolCallCompleted(
            request_id=self.request_id,
            conversation_id=self.conversation_id,
            parent_id=self.parent_id,
            metadata=self.metadata,
            call_id=self.call_id,
            name=self.name,
            content=content,
            parts=parts,
            data=data,
            artifacts=artifacts,
            affected=affected,
            duration_seconds=duration_seconds,
        )

    def failed(
        self,
        error: str,
        *,
        reason: FailureReason = "error",
        retryable: bool = False,
        outcome_unknown: bool = False,
        duration_seconds: float = 0.0,
    ) -> ToolCallFailed:
        """The terminal event of this call's failure. `error` is text for people and the model.

        Raises `TypeError` for an error that is no text.
        """
        if not isinstance(error, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- untyped callers
            raise TypeError(
                f"the error of a call is text for the model, not of type {type(error).__name__}; "
                "say in words what went wrong: event.failed('there is no such city')"
            )
        return ToolCallFailed(
            request_id=self.request_id,
            conversation_id=self.conversation_id,
            parent_id=self.parent_id,
            metadata=self.metadata,
            call_id=self.call_id,
            name=self.name,
            reason=reason,
            error=error,
            retryable=retryable,
            outcome_unknown=outcome_unknown,
            duration_seconds=duration_seconds,
        )


@event
class ToolCallCompleted(Event):
    """The call's one terminal event, on success. `content` is the text for the model, `parts` images and files for it.

    A content over the request's `max_result_chars` is whole here, and cut where it is sent to the model. `spent` is
    what requests that the tool made itself have used up.
    """

    type: Literal["tool_call_completed"] = "tool_call_completed"
    call_id: str
    name: str
    content: str
    parts: tuple[Part, ...] = ()
    data: Any = None
    artifacts: tuple[Artifact, ...] = ()
    affected: tuple[str, ...] = ()
    duration_seconds: float = 0.0
    spent: Spent | None = None
    is_fact: ClassVar[bool] = True


@event
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
    spent: Spent | None = None
    is_fact: ClassVar[bool] = True


@event
class ApprovalRequested(Event):
    """A call waits for a person. `deadline` is seconds from `at`; then it is denied.

    To decide, from anywhere: `bus.publish(event.decided(approved=True))`. The first decision counts, and once. It is
    for this call, these arguments (whatever a listener does to the dictionary, which all share) and the tool as it was
    when it was asked: `definition` is a digest of its name, description and schema; of a tool that has changed
    meanwhile, the question is asked again.
    """

    type: Literal["approval_requested"] = "approval_requested"
    call_id: str
    name: str
    arguments: dict[str, Any]
    deadline: float
    definition: str = ""
    is_fact: ClassVar[bool] = True

    def decided(
        self,
        *,
        approved: bool,
        arguments: dict[str, Any] | None = None,
        by: str = "",
        reason: str = "",
        remember: bool = False,
    ) -> ApprovalDecided:
        """The decision on this call, to be published: see `ApprovalDecided`."""
        return ApprovalDecided(
            request_id=self.request_id,
            conversation_id=self.conversation_id,
            parent_id=self.parent_id,
            metadata=self.metadata,
            call_id=self.call_id,
            definition=self.definition,
            approved=approved,
            arguments=arguments,
            by=by,
            reason=reason,
            remember=remember,
        )


@event
class ApprovalDecided(Event):
    """A person decided on one call. `arguments`, where given, replace the call's and are validated again.

    `by` says who, for the record; `reason` is told to the model with a denial. With `remember`, later calls of the
    same tool (by its definition, whatever the arguments) in this conversation are decided likewise. `definition` is
    that of the question; a decision on an older one is no decision, and the question is asked again.
    """

    type: Literal["approval_decided"] = "approval_decided"
    call_id: str
    definition: str = ""
    approved: bool
    arguments: dict[str, Any] | None = None
    by: str = ""
    reason: str = ""
    remember: bool = False
    is_fact: ClassVar[bool] = True


@event
class ToolCallPaused(Event):
    """A call that runs waits for a person, as one whose sub-request asks for approval: its clocks stand still.

    Whoever runs the call publishes it, and `ToolCallResumed` when the wait is over. The pause is bounded by
    `approval_timeout_seconds`.
    """

    type: Literal["tool_call_paused"] = "tool_call_paused"
    call_id: str
    is_fact: ClassVar[bool] = True


@event
class ToolCallResumed(Event):
    """A paused call goes on, with the time that it had left."""

    type: Literal["tool_call_resumed"] = "tool_call_resumed"
    call_id: str
    is_fact: ClassVar[bool] = True


@event
class SteeringAdded(Event):
    """The user said something while the request ran; it joins the transcript at the next round boundary."""

    type: Literal["steering_added"] = "steering_added"
    text: str
    is_fact: ClassVar[bool] = True


@event
class CancelRequested(Event):
    """Somebody asked to end the request. `reason` is shown to people."""

    type: Literal["cancel_requested"] = "cancel_requested"
    reason: str = ""
    is_fact: ClassVar[bool] = True


@event
class PlanChanged(Event):
    """The model wrote or changed its plan."""

    type: Literal["plan_changed"] = "plan_changed"
    steps: tuple[PlanStep, ...]
    is_fact: ClassVar[bool] = True


@event
class HistoryCompressed(Event):
    """What is sent to the model is shorter than the history, which stays whole: told when that changes.

    Tokens are estimates of the messages alone: of the whole history, and of what is sent of it. Of that, the results of
    `results_shortened` calls are cut or replaced by a line, and `turns_left_out` earlier turns are left out;
    `summary` is what stands for these, where a model was asked for one, with what that has used and cost.
    """

    type: Literal["history_compressed"] = "history_compressed"
    before_tokens: int
    after_tokens: int
    results_shortened: int = 0
    turns_left_out: int = 0
    summary: str = ""
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    is_fact: ClassVar[bool] = True


@event
class RequestCompleted(Event):
    """The request ended with an answer (`completed`), or because a limit or the model stopped it (`stopped`).

    `reason` is empty for `completed`, else it names the limit with its value, or is the model's own word. `output` is
    the structured output, as JSON values, where one was asked for and given.
    """

    type: Literal["request_completed"] = "request_completed"
    outcome: Outcome = "completed"
    reason: str = ""
    text: str = ""
    output: Any = None
    usage: Usage = field(default_factory=Usage)
    is_fact: ClassVar[bool] = True


@event
class RequestFailed(Event):
    """The request ended by an error. `reason` is a `ToolbusError.code`, `error` its text for people."""

    type: Literal["request_failed"] = "request_failed"
    reason: str
    error: str
    retryable: bool = False
    usage: Usage = field(default_factory=Usage)
    is_fact: ClassVar[bool] = True


@event
class RequestCancelled(Event):
    """The request was cancelled. Completed work stays in the transcript."""

    type: Literal["request_cancelled"] = "request_cancelled"
    reason: str = ""
    usage: Usage = field(default_factory=Usage)
    is_fact: ClassVar[bool] = True


TerminalEvent: TypeAlias = ToolCallCompleted | ToolCallFailed
RequestEnding: TypeAlias = RequestCompleted | RequestFailed | RequestCancelled
