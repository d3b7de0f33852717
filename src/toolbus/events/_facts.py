"""Facts: events that change the state of a session. They are journalled in order, and never lost."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

from .._option_checks import FLAG, TEXT, Rule, check, or_none
from ..errors import ConfigurationError
from ..messages import AssistantMessage, Message, Part, ToolMessage, Usage
from ..records import HandlerRecord, Record, event_json
from ._base import Event

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


_OBJECT = or_none(Rule(lambda given: isinstance(given, dict), "pass a dictionary"), "to leave them as they are")


class CallOutcome(Record, kw_only=True, frozen=True):
    """The outcome of one call of the previous round."""

    name: str
    ok: bool


class Artifact(HandlerRecord, kw_only=True, frozen=True):
    """Content that a tool made and that is not sent to the model. Binary content is encoded as base64."""

    name: str
    content: str
    media_type: str = "text/plain"
    encoding: Literal["utf-8", "base64"] = "utf-8"


class PlanStep(Record, kw_only=True, frozen=True):
    """One step of the model's plan."""

    text: str
    status: Literal["pending", "active", "done", "dropped"] = "pending"


class Spent(Record, kw_only=True, frozen=True):
    """The tokens, tool calls and cost that the sub-sessions of one call have used up.

    They count towards the limits of the request that made the call.
    """

    usage: Usage = Usage()
    tool_calls: int = 0
    cost: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            usage=self.usage + other.usage,
            tool_calls=self.tool_calls + other.tool_calls,
            cost=self.cost + other.cost,
        )


class RequestStarted(Event, kw_only=True, frozen=True):
    """A request was accepted and its session runs.

    Its time ends `timeout_seconds` after `at`. `history_count` is the number of messages of earlier turns that it
    starts with. `parent_request_id` and `parent_call_id` are set for a session that a tool of another session started.
    """

    prompt: str = ""
    history_count: int = 0
    timeout_seconds: float
    parent_request_id: str = ""
    parent_call_id: str = ""
    is_fact: ClassVar[bool] = True


class RequestResumed(Event, kw_only=True, frozen=True):
    """A request continues in another process or runtime than the one it began in.

    `resumption` counts from 1. It is not known whether the calls that were open before the resumption have run: after
    this fact, each of them is requested again if its tool is `idempotent`, `external` or of a pool, and otherwise ends
    as `interrupted`. `timeout_seconds` is set where the request got new time, from `at` on; with None, it keeps its
    deadline.
    """

    resumption: int
    timeout_seconds: float | None = None
    is_fact: ClassVar[bool] = True


class MessageAppended(Event, kw_only=True, frozen=True):
    """A message, with its `message_id`, was appended to the transcript.

    Prompts, notes, steering, requests to repair an output and answers by `return_direct` tools are facts of their own.
    A reply and the results of its calls are not: for them, listeners get an event that is derived from the
    `ModelResponded`, or from the event that settles the last call of the round, and that follows it at once. Its
    `event_id` is that of its cause with `_m0`, `_m1` and so on. Its `is_derived` is true.
    """

    message: Message
    is_fact: ClassVar[bool] = True

    @property
    def is_derived(self) -> bool:
        """True for a reply or a result, which another fact has appended."""
        if isinstance(self.message, AssistantMessage):  # An answer by tools has the id of a fact.
            return not self.event_id.rpartition("_f")[2].isdecimal()
        return isinstance(self.message, ToolMessage)


class RoundStarted(Event, kw_only=True, frozen=True):
    """The model is being called. `call_outcomes` are those of the calls whose results it now reads; none in round 0.

    `tools_offered` is false when a limit was reached and the model is asked for a last answer.
    """

    round: int
    message_count: int
    call_outcomes: tuple[CallOutcome, ...] = ()
    tools_offered: bool = True
    is_fact: ClassVar[bool] = True


class ModelResponded(Event, kw_only=True, frozen=True):
    """The model's whole reply. `finish_reason` is the reason why it ended: see `toolbus.protocols.FinishReason`.

    If the request ends while a reply arrives, `finish_reason` is `interrupted`, and the `message`, whose `interrupted`
    is true, has the text so far; the ending follows at once. `usage` and `cost` are then those of replies that arrived
    but could not be used, and the text may be empty.

    `cost` follows the request's price table; without a table, or a price in it, `cost` stays None. `native_output` is
    true where the provider was asked to constrain the reply to the schema of the request's `output`.
    """

    round: int
    message: AssistantMessage
    finish_reason: str = ""
    usage: Usage = Usage()
    vendor: str = ""
    model: str = ""
    cost: float | None = None
    native_output: bool = False
    is_fact: ClassVar[bool] = True


class ModelRetrying(Event, kw_only=True, frozen=True):
    """The model will be called again for the same round, `delay_seconds` after `at`.

    The pieces of its reply that were streamed so far are void. `reason` is an error code such as
    `provider_unavailable` or `empty_reply`. `provider_index` is the position, among the request's providers, of the
    one that is asked next, from 0. `vendor` and `model` name the model that failed: as its newest reply does, or, where
    none arrived, as its provider does. `usage` and `cost` are those of replies that arrived but could not be used,
    which no `ModelResponded` reports.
    """

    round: int
    reason: str
    error: str = ""
    delay_seconds: float = 0.0
    provider_index: int = 0
    usage: Usage = Usage()
    vendor: str = ""
    model: str = ""
    cost: float = 0.0
    is_fact: ClassVar[bool] = True


class ToolCallRequested(Event, kw_only=True, frozen=True):
    """A tool call may run: its arguments are parsed and valid. Whoever runs it publishes one terminal event.

    Its time ends `timeout_seconds` after `at`. `arguments` is shared by all listeners and must not be changed; a call
    that runs in the process of its request uses the request's own copy in any case. To answer from the bus:
    `bus.publish(event.completed("42"))`, or `event.failed("no such thing")`. `definition` is a digest of the tool's
    name, description and schema, and of `external`, `pool` and `idempotent`, at the time when the call was checked.
    `idempotency_key` is the same each time that the call is requested: after a restart, a call that may run twice, or
    runs elsewhere, is requested once more, with `resumed`, under the same `call_id` and key. `attempt` counts from 1
    how often the call was delivered to workers on other machines; it is 1 everywhere else. With `background`, the model
    continues without the result, which joins the transcript as a note once it is there.
    """

    call_id: str
    provider_call_id: str = ""
    vendor: str = ""
    name: str
    arguments: dict[str, Any]
    round: int
    timeout_seconds: float
    idempotency_key: str
    definition: str = ""
    resumed: bool = False
    background: bool = False
    attempt: int = 1
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
        """Return the terminal event of this call's success. `content` is text for the model, `data` any JSON value.

        Raises `TypeError` if `content` is not a string.
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
        """Return the terminal event of this call's failure. `error` is text for people and the model.

        Raises `TypeError` if `error` is not a string.
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


class ToolCallCompleted(Event, kw_only=True, frozen=True):
    """The one terminal event of a call that succeeded.

    `content` is the text for the model, `parts` the images and files for it. Content longer than the request's
    `max_result_chars` is complete here, and shortened only when it is sent to the model. `spent` is the consumption of
    requests that the tool itself made.
    """

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


class ToolCallFailed(Event, kw_only=True, frozen=True):
    """The one terminal event of a call that failed.

    `error` is text for people and the model, without a traceback. `outcome_unknown` is true where the tool may have had
    its effect in spite of the failure. Where `reason` is `limit`, `limit` names the limit that refused the call, with
    its value ("max_tool_calls=100"). `detail` is for operators: the class, text and line of an exception whose text
    the model does not read, at most 1,000 characters. Do not show it to users; `toolbus.web` leaves it out.
    """

    call_id: str
    name: str
    reason: FailureReason
    error: str
    detail: str = ""
    retryable: bool = False
    outcome_unknown: bool = False
    limit: str = ""
    duration_seconds: float = 0.0
    spent: Spent | None = None
    is_fact: ClassVar[bool] = True


class ApprovalRequested(Event, kw_only=True, frozen=True):
    """A call waits for the approval of a person (human in the loop). It is denied `timeout_seconds` after `at`.

    To decide, from anywhere: `bus.publish(event.decided(approved=True))`. Only the first decision counts, and only
    once. The decision covers this call, these arguments (even if a listener changes the dictionary, which all listeners
    share) and the tool as it was at the time of the question: `definition` is a digest of its name, description,
    schema, and where and how often it may run. If the tool has changed meanwhile, the question is asked again.
    """

    call_id: str
    name: str
    arguments: dict[str, Any]
    timeout_seconds: float
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
        """Return the decision on this call, ready to be published: see `ApprovalDecided`.

        Raises `ConfigurationError` for anything that a journal could not read again.
        """
        check("by", by, TEXT)
        check("reason", reason, TEXT)
        check("approved", approved, FLAG)
        check("remember", remember, FLAG)
        try:
            event_json(check("arguments", arguments, _OBJECT))
        except TypeError as exc:
            raise ConfigurationError(f"arguments are not JSON: {exc}") from exc
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


class ApprovalDecided(Event, kw_only=True, frozen=True):
    """A person decided on one call. `arguments`, where given, replace those of the call and are validated again.

    `by` names the person, for the record; the model reads `reason` together with a denial. With `remember`, later calls
    of the same tool in this conversation are decided likewise, as long as its definition is the same and whatever their
    arguments. `definition` is that of the question; a decision on an older definition does not count, and the question
    is asked again.
    """

    call_id: str
    definition: str = ""
    approved: bool
    arguments: dict[str, Any] | None = None
    by: str = ""
    reason: str = ""
    remember: bool = False
    is_fact: ClassVar[bool] = True


class ToolCallPaused(Event, kw_only=True, frozen=True):
    """A running call waits for a person, for example because a sub-request of it asks for approval. Its time stops.

    Whoever runs the call publishes this event, and `ToolCallResumed` when the wait is over. The pause is bounded by
    `approval_timeout_seconds`. `pending_approvals` are those of the call's sub-requests that nobody has answered, in
    the order of asking: whoever reads the request in another process finds them here. When they change, the call is
    resumed and paused anew.
    """

    call_id: str
    pending_approvals: tuple[ApprovalRequested, ...] = ()
    is_fact: ClassVar[bool] = True


class ToolCallResumed(Event, kw_only=True, frozen=True):
    """A paused call continues, with the time that it had left."""

    call_id: str
    is_fact: ClassVar[bool] = True


class SteeringAdded(Event, kw_only=True, frozen=True):
    """The user sent a message while the request ran.

    It joins the transcript before the next round begins, or before the request ends.
    """

    text: str
    is_fact: ClassVar[bool] = True


class CancelRequested(Event, kw_only=True, frozen=True):
    """The cancellation of the request was asked for. `reason` is shown to people."""

    reason: str = ""
    is_fact: ClassVar[bool] = True


class PlanChanged(Event, kw_only=True, frozen=True):
    """The model wrote or changed its plan."""

    steps: tuple[PlanStep, ...]
    is_fact: ClassVar[bool] = True


class HistoryCompressed(Event, kw_only=True, frozen=True):
    """Less than the whole history is sent to the model, and the part that is sent has changed.

    The stored history stays complete. `before_tokens` and `after_tokens` are estimates of the messages only: of the
    whole history, and of the part that is sent. In that part, the results of `results_shortened` calls are shortened or
    replaced by a line of text, and `turns_omitted` earlier turns are left out. `summary` stands for these turns, where
    a model was asked for one; `usage`, `vendor`, `model` and `cost` are those of that summary.
    """

    before_tokens: int
    after_tokens: int
    results_shortened: int = 0
    turns_omitted: int = 0
    summary: str = ""
    usage: Usage = Usage()
    vendor: str = ""
    model: str = ""
    cost: float | None = None
    is_fact: ClassVar[bool] = True


class RequestCompleted(Event, kw_only=True, frozen=True):
    """The request ended with an answer (`completed`), or because a limit or the model stopped it (`stopped`).

    `reason` is empty for `completed`; otherwise it names the limit with its value, or is the model's own term. `limit`
    is the limit's name, and empty for the model's own term. `output` is the structured output, as JSON values, where
    the request asked for one and the model gave it. `usage` and `cost` are those of the whole request, as in every
    ending.
    """

    outcome: Outcome = "completed"
    reason: str = ""
    limit: str = ""
    text: str = ""
    output: Any = None
    usage: Usage = Usage()
    cost: float = 0.0
    is_fact: ClassVar[bool] = True


class RequestFailed(Event, kw_only=True, frozen=True):
    """The request ended with an error. `reason` is a `ToolbusError.code`, `error` its text for people."""

    reason: str
    error: str
    retryable: bool = False
    usage: Usage = Usage()
    cost: float = 0.0
    outcome: ClassVar[Literal["failed"]] = "failed"
    is_fact: ClassVar[bool] = True


class RequestCancelled(Event, kw_only=True, frozen=True):
    """The request was cancelled. Completed work stays in the transcript."""

    reason: str = ""
    usage: Usage = Usage()
    cost: float = 0.0
    outcome: ClassVar[Literal["cancelled"]] = "cancelled"
    is_fact: ClassVar[bool] = True


TerminalEvent: TypeAlias = ToolCallCompleted | ToolCallFailed
RequestEnding: TypeAlias = RequestCompleted | RequestFailed | RequestCancelled
