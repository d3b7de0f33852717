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

    Its deadline is `timeout_seconds` after `at`. `history_count` is the number of earlier messages that it starts with.
    `parent_request_id` and `parent_call_id` are set for a session that a tool of another session started.
    """

    prompt: str = ""
    history_count: int = 0
    timeout_seconds: float
    parent_request_id: str = ""
    parent_call_id: str = ""
    is_fact: ClassVar[bool] = True


class RequestResumed(Event, kw_only=True, frozen=True):
    """A request continues in another process or runtime.

    `resumption` counts from 1. The calls that were open before may have run. After this fact, such a call is requested
    again if its tool is `idempotent` or `external`, or has a `pool`; any other ends as `interrupted`. `timeout_seconds`
    is the request's new time, counted from `at`; None if its deadline stays.
    """

    resumption: int
    timeout_seconds: float | None = None
    is_fact: ClassVar[bool] = True


class MessageAppended(Event, kw_only=True, frozen=True):
    """A message, with its `message_id`, was appended to the transcript.

    This event is a fact of its own for prompts, notes, steering, requests to repair an output and answers by
    `return_direct` tools. It is derived for a reply and for the results of a reply's calls: it follows directly after
    the `ModelResponded`, or after the event that settles the last call of the round. The `event_id` of a derived event
    is that of its cause with `_m0`, `_m1` and so on, and its `is_derived` is true.
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
    """The model is being called.

    `call_outcomes` are the outcomes of the calls whose results the model now reads; it is empty in round 0.
    `tools_offered` is false if a limit was reached and the model is asked for a last answer.
    """

    round: int
    message_count: int
    call_outcomes: tuple[CallOutcome, ...] = ()
    tools_offered: bool = True
    is_fact: ClassVar[bool] = True


class ModelResponded(Event, kw_only=True, frozen=True):
    """The model's whole reply. `finish_reason` is the reason why it ended: see `toolbus.protocols.FinishReason`.

    If the request ends while a reply arrives, the `message` has the text and the reasoning so far. Its `interrupted` is
    true, `finish_reason` is `interrupted`, and the ending follows at once. Without a text, it does not join the
    transcript. `usage` and `cost` are then those of replies that arrived but could not be used.

    `cost` follows the request's price table. It is None if there is no table, or no price for the model.
    `native_output` is true if the provider was asked to constrain the reply to the schema of the request's `output`.
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

    The pieces of its reply that were streamed so far are void. `reason` is an error code such as `provider_unavailable`
    or `empty_reply`. `provider_index` is the position, from 0, of the provider that is asked next, among the request's
    providers. `vendor` and `model` name the model that failed, by its newest reply, or by its provider if there was no
    reply. `usage` and `cost` are those of replies that arrived but could not be used; no `ModelResponded` reports
    these.
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

    Its deadline is `timeout_seconds` after `at`. All listeners share `arguments` and must not change it; a call that
    runs in the process of its request uses a copy. To answer from the bus: `bus.publish(event.completed("42"))`, or
    `event.failed("no such thing")`. `definition` is a digest of the tool's name, description and schema, and of
    `external`, `pool` and `idempotent`, at the time when the call was checked. After a restart, a call that may run
    twice, or that runs elsewhere, is requested again: `resumed` is true, and `call_id` and `idempotency_key` are the
    same. `attempt` counts, from 1, how often the call was delivered to workers on other machines; it is 1 everywhere
    else. With `background`, the model continues without the result, which joins the transcript as a note once it is
    there.
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

    `content` is the text for the model, and `parts` are the images and files for it. `content` is always complete here;
    what exceeds the request's `max_result_chars` is left out only when it is sent to the model. `spent` is what the
    sub-requests of the tool consumed. A call that toolbus itself answers (`final_answer`, `task_complete`, `give_up`,
    `update_plan`, `read_result`) has no `ToolCallRequested`.
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

    `error` is text for people and the model, without a traceback. `outcome_unknown` is true if the tool may have had
    its effect in spite of the failure. If `reason` is `limit`, `limit` names the limit that refused the call, with its
    value ("max_tool_calls=100"). `detail` is for operators: the class, text and line of an exception whose text the
    model does not read, at most 1,000 characters. Do not show it to users; `toolbus.web` leaves it out. A call that is
    refused before it can run, for example as `unknown_tool` or `denied`, has no `ToolCallRequested`.
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
    once. It covers this call, these arguments (even if a listener changes the dictionary, which all listeners share),
    and the tool as it was when the question was asked. `definition` is a digest of the tool's name, description and
    schema, and of where and how often it may run. If the tool has changed meanwhile, the question is asked again.
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
    """A person decided on one call.

    `arguments`, if given, replace those of the call and are validated again. `by` names the person, for the record. The
    model reads `reason` together with a denial. With `remember`, the decision also holds for later calls of the same
    tool in this conversation, whatever their arguments, as long as the tool's definition is the same. `definition` is
    that of the question. A decision on an older definition does not count, and the question is asked again.
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
    """A running call waits for a person, for example because one of its sub-requests asks for approval. Its time stops.

    Whoever runs the call publishes this event, and `ToolCallResumed` when the wait is over. The pause is bounded by
    `approval_timeout_seconds`. `pending_approvals` are the open questions of the call's sub-requests, in the order of
    asking, for readers in other processes. When they change, the call is resumed and paused again.
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
    """Somebody asked for the cancellation of the request. `reason` is shown to people."""

    reason: str = ""
    is_fact: ClassVar[bool] = True


class PlanChanged(Event, kw_only=True, frozen=True):
    """The model wrote or changed its plan."""

    steps: tuple[PlanStep, ...]
    is_fact: ClassVar[bool] = True


class HistoryCompressed(Event, kw_only=True, frozen=True):
    """Less than the whole history is sent to the model, and the part that is sent has changed.

    The stored history stays complete. `before_tokens` estimates the tokens of all messages, and `after_tokens` those of
    the messages that are sent. Among these, the results of `results_shortened` calls are shortened or replaced by a
    line of text, and `turns_omitted` earlier turns are left out. If a model was asked for a summary of these turns,
    `summary` has its text, and `usage`, `vendor`, `model` and `cost` are those of that model call.
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

    `reason` is empty for `completed`. Otherwise it names the limit with its value, or is the model's own term. `limit`
    is the limit's name, and empty for the model's own term. `output` is the structured output, as JSON values, if the
    request asked for one and the model gave it. `usage` and `cost` are those of the whole request, as in every ending.
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
