"""The result of a request (one run of the agent): `RequestResult`, its calls, and the matching errors.

Built from a turn's final state. Knows `core`, and must not know the bus.

Example:
    from toolbus import Runtime, tool
    from toolbus.request_result import CallRecord, RequestOutcome, RequestResult, RoundRecord
    from toolbus.testing import ScriptedProvider, calls, text

    @tool
    def add(a: int, b: int) -> int:
        return a + b

    model = ScriptedProvider([calls(("add", {"a": 2, "b": 3})), text("It is 5.")])
    async with Runtime(model, tools=[add]) as runtime:
        result: RequestResult = await runtime.run("What is 2 + 3?")
    outcome: RequestOutcome = result.outcome
    print(outcome, result.text, result.usage.output_tokens)  # completed It is 5. 0
    call: CallRecord = result.tool_calls[0]
    print(call.name, call.arguments, call.content)  # add {'a': 2, 'b': 3} 5
    rounds: list[RoundRecord] = result.trace
    print(len(rounds), rounds[0].calls[0].name)  # 2 add
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias

from .core.endings import explain
from .core.output import OutputType
from .core.result_size import max_chars_of
from .core.shorten import MIN_CHARS
from .core.turn import CallState, RoundState, TurnState
from .errors import (
    ApplicationError,
    ConfigurationError,
    ContextOverflow,
    Denied,
    InvalidArguments,
    InvalidOutput,
    LimitReached,
    ProviderError,
    RequestCancelledError,
    ToolbusError,
)
from .events import (
    Artifact,
    ModelRetrying,
    RequestCompleted,
    RequestEnding,
    RequestFailed,
    ToolCallCompleted,
    ToolCallFailed,
)
from .messages import Message, Usage
from .records import asdict

__all__ = ["CallRecord", "OutputT", "RequestOutcome", "RequestResult", "RoundRecord"]

RequestOutcome: TypeAlias = Literal["completed", "failed", "cancelled", "stopped"]
if TYPE_CHECKING:
    from typing_extensions import TypeVar  # with a default, which Python itself has from 3.13 on

    OutputT = TypeVar("OutputT", default=Any)
else:
    from typing import TypeVar

    OutputT = TypeVar("OutputT")


@dataclass(slots=True, kw_only=True, repr=False)
class CallRecord:
    """One tool call of the request. `reason` and `error` are empty for a success.

    `arguments` are the parsed arguments, or None if the call was refused before it could run. `exception` is the
    exception that the handler raised, with its traceback, if the handler ran in this process. `outcome_unknown` is true
    for a failed call that may have had its effect. `detail` is for operators: see `ToolCallFailed`.
    """

    call_id: str
    name: str
    arguments: dict[str, Any] | None
    round: int
    ok: bool
    content: str = ""
    data: Any = None
    reason: str = ""
    error: str = ""
    outcome_unknown: bool = False
    started_at: float | None = None
    duration_seconds: float = 0.0
    exception: BaseException | None = None
    detail: str = ""

    def __repr__(self) -> str:
        return _described(
            self,
            ("name", self.name),
            ("arguments", self.arguments),
            ("content", self.content),
            ("reason", self.reason),
            ("error", self.error),
            ("detail", self.detail),
        )


@dataclass(slots=True, kw_only=True)
class RoundRecord:
    """One round: a call of the model, then the tool calls in its reply.

    `model_seconds` is the time until the whole reply, or None if no reply came. `retries` has an event for each time
    that the model was asked again.
    """

    round: int
    started_at: float
    model_seconds: float | None
    retries: Sequence[ModelRetrying]
    finish_reason: str
    model: str
    usage: Usage
    calls: list[CallRecord]


@dataclass(slots=True, kw_only=True, repr=False)
class RequestResult(Generic[OutputT]):
    """The result of a request. `output` is the validated value if `output=` asked for one and the model gave it.

    `outcome` is "completed", "stopped", "failed" or "cancelled". A request is "stopped" by a limit (`reason` names it
    with its value, for example `max_rounds=10`, and `limit` is the field of `Limits`, or "budget.max_cost" for that of
    a `Budget`) or by the model itself (`reason` is the model's text and `limit` is empty). For "failed", `reason` is an
    error code and `error` the exception. `explanation` says the same to people, in one sentence; it is empty for
    "completed".

    `text` is the answer, or the last text of the model, which may have been cut off. `messages` is the valid
    transcript: the history, and from `messages[history_count]` on this turn. `artifacts` has the files that tools made,
    and the complete text of each result that was cut for the model. `affected` has the names of the things that tools
    changed, in call order, without duplicates. `usage` and `cost` (by the price table; 0 without one) include the
    sub-requests. Times are in seconds.

    `resumable` says whether the request was left unfinished in its store, so that any process may continue it with
    `Runtime.resume`. It is also set if the store failed, until the store has the ending, or reports that it has nothing
    of the request. A result that is not resumable is final. `journaled` says whether the journal has the whole request
    with its ending; it is false without a journal. If an answer was valid but cannot be loaded any more, for example in
    another process, `output` is empty (None), and `error` says why.
    """

    outcome: RequestOutcome
    reason: str
    text: str
    output: OutputT
    messages: list[Message]
    history_count: int
    artifacts: list[Artifact]
    affected: list[str]
    usage: Usage
    cost: float
    rounds: int
    request_id: str
    conversation_id: str
    duration_seconds: float
    error: ToolbusError | None = None
    limit: str = ""
    explanation: str = ""
    resumable: bool = False
    journaled: bool = False
    _rounds: Sequence[RoundState] = ()
    _cause: Callable[[str], BaseException | None] = field(default=lambda _call_id: None, compare=False)
    _trace: list[RoundRecord] | None = None

    def __repr__(self) -> str:
        return _described(
            self,
            ("outcome", self.outcome),
            ("reason", self.reason),
            ("text", self.text),
            ("output", self.output),
            ("error", self.error),
            ("rounds", self.rounds),
            ("tool_calls", sum(len(each.calls) for each in self._rounds)),
        )

    @property
    def trace(self) -> list[RoundRecord]:
        """The rounds, with their calls. The list is made at the first access."""
        if self._trace is None:
            self._trace = [_round_record(each, self._cause) for each in self._rounds]
        return self._trace

    @property
    def tool_calls(self) -> list[CallRecord]:
        """All calls of the request, in call order."""
        return [call for each in self.trace for call in each.calls]

    @property
    def ok(self) -> bool:
        """True if the outcome is "completed": there is an answer."""
        return self.outcome == "completed"

    @property
    def new_messages(self) -> list[Message]:
        """The messages that this turn has added to the history."""
        return self.messages[self.history_count :]

    def raise_for_outcome(self) -> None:
        """Raise the matching `ToolbusError` unless the outcome is `completed`. Its `result` is this one."""
        error = self.error
        if self.outcome == "stopped":
            error = LimitReached(self.reason, limit=self.limit)
        elif self.outcome == "cancelled":
            error = RequestCancelledError(self.reason or "the request was cancelled")
        if error is not None:
            error.result = self
            raise error

    def summary(self) -> dict[str, Any]:
        """Return the result as JSON values, for clients and logs.

        Without messages, `output`, `error`, and the data and exceptions of calls.
        """
        calls = [
            {
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.arguments,
                "round": call.round,
                "ok": call.ok,
                "reason": call.reason,
                "error": call.error,
                "duration_seconds": call.duration_seconds,
            }
            for call in self.tool_calls
        ]
        return {
            "outcome": self.outcome,
            "reason": self.reason,
            "limit": self.limit,
            "explanation": self.explanation,
            "text": self.text,
            "tool_calls": calls,
            "artifacts": [asdict(each) for each in self.artifacts],
            "affected": self.affected,
            "usage": asdict(self.usage),
            "cost": self.cost,
            "rounds": self.rounds,
            "request_id": self.request_id,
            "conversation_id": self.conversation_id,
            "duration_seconds": self.duration_seconds,
        }

    def timeline(self) -> str:
        """Return a report for people, with a line for each model call, each tool call and the ending."""
        lines = [f"request {self.request_id}"]
        for each in self.trace:
            started = self.trace[0].started_at
            lines.append(f"{each.started_at - started:8.3f}s  {_model_words(each)}")
            lines.extend(f"{retry.at - started:8.3f}s    asked again: {_why(retry)}" for retry in each.retries)
            lines.extend(_call_line(call, started, each) for call in each.calls)
        reason = f": {self.reason}" if self.reason else ""
        reason += f": {self.error}" if self.error is not None else ""
        tokens = f"{self.usage.input_tokens} tokens in, {self.usage.output_tokens} out"
        lines.append(f"{self.duration_seconds:8.3f}s  {self.outcome}{reason}; {tokens}")
        return "\n".join(lines)


_MAX_CHARS = 60  # the characters that a representation shows of one value


def _described(record: object, *values: tuple[str, Any]) -> str:
    """Return a short representation of `record` for logs and notebooks: these values, without None and empty texts."""
    shown = [
        (name, repr(value[:_MAX_CHARS] if isinstance(value, str) else value))
        for name, value in values
        if value is not None and not (isinstance(value, str) and not value)
    ]
    parts = [f"{name}={text if len(text) <= _MAX_CHARS else f'{text[: _MAX_CHARS - 3]}...'}" for name, text in shown]
    return f"{type(record).__name__}({', '.join(parts)})"


def _model_words(each: RoundRecord) -> str:
    if each.model_seconds is None:
        return "model did not answer"
    calls = f", {len(each.calls)} call{'s' if len(each.calls) != 1 else ''}" if each.calls else ""
    model = f" ({each.model})" if each.model else ""
    did = "was interrupted after" if each.finish_reason == "interrupted" else "answered in"
    return f"model{model} {did} {each.model_seconds:.3f}s{calls}"


def _why(retry: ModelRetrying) -> str:
    return f"{retry.reason}: {retry.error}" if retry.error else retry.reason


def _call_line(call: CallRecord, started: float, in_round: RoundRecord) -> str:
    at = (
        call.started_at if call.started_at is not None else in_round.started_at + (in_round.model_seconds or 0.0)
    ) - started
    mark, ending = ("✓", "") if call.ok else ("✗", f": {call.reason}: {call.error}{_detail(call)}")
    return f"{at:8.3f}s    {mark} {call.name} in {call.duration_seconds:.3f}s{ending}"


def _detail(call: CallRecord) -> str:
    return f" ({call.detail})" if call.detail else ""


def result_from(
    state: TurnState,
    cause: Callable[[str], BaseException | None],
    error: ToolbusError | None,
) -> RequestResult[Any]:
    """Return the result of a turn that has ended. `cause` returns the exception of a failed call by the call's id."""
    ending = state.ending
    assert ending is not None
    output, unloaded = _loaded(ending, state.output)
    completed = [
        call.outcome for each in state.rounds for call in each.calls if isinstance(call.outcome, ToolCallCompleted)
    ]
    return RequestResult(
        outcome=ending.outcome,
        reason=ending.reason,
        text=ending.text if isinstance(ending, RequestCompleted) else state.last_text,
        output=output,
        messages=list(state.messages),
        history_count=state.history_count,
        artifacts=[artifact for outcome in completed for artifact in _artifacts(outcome, state)],
        affected=list(dict.fromkeys(name for outcome in completed for name in outcome.affected)),
        usage=state.usage,
        cost=state.cost,
        rounds=len(state.rounds),
        request_id=state.request_id,
        conversation_id=state.conversation_id,
        duration_seconds=max(0.0, ending.at - state.started_at) if state.started_at else 0.0,
        error=_error(ending, error) or unloaded,
        limit=ending.limit if isinstance(ending, RequestCompleted) else "",
        explanation=explain(ending),
        _rounds=state.rounds,
        _cause=cause,
    )


def _artifacts(outcome: ToolCallCompleted, state: TurnState) -> Sequence[Artifact]:
    """Return the artifacts of a tool call, and the whole of its result if that was cut for the model."""
    content = outcome.content
    if len(content) <= MIN_CHARS or len(content) <= max_chars_of(state.tools.get(outcome.name), state.max_result_chars):
        return outcome.artifacts
    media_type = "application/json" if content[:1] in ("{", "[") else "text/plain"
    return (*outcome.artifacts, Artifact(name=f"result of {outcome.call_id}", content=content, media_type=media_type))


def _loaded(ending: RequestEnding, output: OutputType[Any] | None) -> tuple[Any, ToolbusError | None]:
    """Return the output value, or the reason why a value that was valid cannot be loaded any more; each may be None.

    That may happen in another process, for example. Without an output there is neither.
    """
    given = ending.output if isinstance(ending, RequestCompleted) else None
    if given is None or output is None:
        return None, None
    try:
        return output.load(given), None
    except InvalidArguments as exc:
        return None, InvalidOutput(str(exc))


def _round_record(each: RoundState, cause: Callable[[str], BaseException | None]) -> RoundRecord:
    return RoundRecord(
        round=each.round,
        started_at=each.started_at,
        model_seconds=each.seconds,
        retries=each.retries,
        finish_reason=each.finish_reason,
        model=each.model,
        usage=each.usage,
        calls=[_record(call, cause) for call in each.calls],
    )


_ERRORS: dict[str, type[ProviderError]] = {
    each.code: each for each in (ProviderError, *ProviderError.__subclasses__()) if each is not ContextOverflow
}
_PLAIN_ERRORS: dict[str, type[ToolbusError]] = {
    each.code: each for each in (ConfigurationError, ContextOverflow, Denied, InvalidOutput)
}


def _error(ending: RequestEnding, raised: ToolbusError | None) -> ToolbusError | None:
    """Return the exception of a failed request: the one that was raised, or one made from the ending's texts."""
    if not isinstance(ending, RequestFailed):
        return None
    if raised is not None and raised.code == ending.reason:
        return raised
    kind = _ERRORS.get(ending.reason)
    if kind is not None:
        return kind(ending.error, retryable=ending.retryable)
    return _PLAIN_ERRORS.get(ending.reason, ApplicationError)(ending.error)


def _record(state: CallState, cause: Callable[[str], BaseException | None]) -> CallRecord:
    outcome = state.outcome
    record = CallRecord(
        call_id=state.call.call_id,
        name=state.call.name,
        arguments=state.arguments,
        round=state.round,
        ok=isinstance(outcome, ToolCallCompleted),
        started_at=state.requested_at,
        duration_seconds=outcome.duration_seconds if outcome is not None else 0.0,
    )
    if isinstance(outcome, ToolCallCompleted):
        record.content, record.data = outcome.content, outcome.data
    elif isinstance(outcome, ToolCallFailed):
        record.reason, record.error = outcome.reason, outcome.error
        record.outcome_unknown, record.detail = outcome.outcome_unknown, outcome.detail
        record.exception = cause(record.call_id)
    return record
