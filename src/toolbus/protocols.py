"""The seams: what toolbus asks of a model provider, a store, a tool's executor and an observer.

Contracts are documented here, those of stores in `toolbus.storage`; implementations write down only where they differ.
This module knows messages and events, and no implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from .events import Event
from .messages import AssistantMessage, Message, Usage
from .storage import Journal, JournalStore, Store
from .tool_results import Rendered

__all__ = [
    "MAX_REPLY_CALLS",
    "ApprovalRule",
    "ArgumentsPiece",
    "CallView",
    "Control",
    "Delta",
    "Emit",
    "FinishReason",
    "HistorySummarizer",
    "Journal",
    "JournalStore",
    "KnowsMarks",
    "LateResults",
    "ModelReply",
    "ModelRequest",
    "ModelSettings",
    "NativeOutput",
    "NativeOutputProvider",
    "Observer",
    "OutputMode",
    "Provider",
    "ReasoningPiece",
    "RequestView",
    "SecretHandling",
    "SignOfLife",
    "Store",
    "Summary",
    "TextPiece",
    "ToolChoice",
    "ToolExecutor",
    "ToolKind",
    "ToolSource",
    "ToolSpec",
]

ToolChoice: TypeAlias = str
""""auto", "none", "required", or the name of a tool that has to be called."""


# ------------------------------------------------------------------------------------------------- tools


ApprovalRule: TypeAlias = Callable[[Mapping[str, Any]], bool]
"""Whether a call with these validated arguments has to be approved by a person. Must be quick and pure."""

Control: TypeAlias = Literal["", "complete", "give_up", "plan", "output", "read"]
"""What a tool of the turn machine's own does: end the request, with an answer or without, keep a plan, or give the
request's structured output. Empty for a tool that is run."""


ToolKind: TypeAlias = Literal["", "query", "action"]
"""What a tool is for the history: a "query" reads a state that changes, so its older results are worth little; an
"action" does something, so that it was done counts and the details less. Of any other, results stay whole."""


def _accept(_arguments: Mapping[str, Any]) -> None:
    """The validator of a tool that takes any object."""


@dataclass(slots=True, kw_only=True, frozen=True)
class ToolSpec:
    """What the model and the turn machine need to know of a tool; not how it runs.

    `parameters` is a JSON schema of type object. `validate` raises `InvalidArguments` for arguments that break it.
    `timeout_seconds` replaces the request's `tool_timeout_seconds`. `external` tools are answered by somebody else
    on the bus, so no dispatcher runs them. A call of a tool with `approval` waits for a person first, always or where
    the rule says so. Calls of `sequential` tools in one reply run one after another, in call order. `status` is the
    sentence for people while it runs, such as "Looking {city} up". `control` tools are answered by the turn machine.
    What is `idempotent` may run twice with the same key, as a call does that a process was killed in.
    `kind` and `sensitive_history` say how its results may be shortened in the history that is sent, the latter that
    they may not. `max_result_chars` replaces the request's: longer results are cut for the model.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    validate: Callable[[Mapping[str, Any]], None] = field(default=_accept, repr=False, compare=False)
    timeout_seconds: float | None = None
    external: bool = False
    approval: bool | ApprovalRule = field(default=False, compare=False)
    sequential: bool = False
    status: str = ""
    control: Control = ""
    kind: ToolKind = ""
    sensitive_history: bool = False
    max_result_chars: int | None = None
    idempotent: bool = False


class ToolSource(Protocol):
    """Something that says which tools there are now. The mapping is a snapshot: it never changes once given."""

    @property
    def specs(self) -> Mapping[str, ToolSpec]:
        """The tools by name, in the order of registration."""
        ...


LateResults: TypeAlias = Literal["drop", "event", "next_turn"]
"""What becomes of a result that comes after its call was settled: nothing, a `ToolCallLate`, or that and a note in
front of the conversation's next turn."""


class CallView(Protocol):
    """An open call of a request, as its executor may see it. `arguments` are the request's own: copy, never change.

    `requested_at` is None for a call that has not been requested (yet): nobody may run it.
    """

    @property
    def arguments(self) -> dict[str, Any] | None: ...
    @property
    def requested_at(self) -> float | None: ...


class SecretHandling(Protocol):
    """The secrets of one request, as executors handle them. Models, journals and listeners see only references."""

    def deliver(self, arguments: Mapping[str, Any], marks: Any) -> dict[str, Any]:
        """Return arguments with the values of marked fields, for a handler. Raises `InvalidArguments`."""
        ...

    def hide(self, rendered: Rendered) -> Rendered:
        """Return a result with references instead of the secrets in it."""
        ...

    def digest(self, arguments: bytes) -> bytes:
        """Return a key for these arguments in which a reference counts only within its own conversation."""
        ...

    def mask(self, event: Event) -> Event:
        """Return an event without secrets, as everybody may hear it."""
        ...


@runtime_checkable
class KnowsMarks(Protocol):
    """A `ToolSource` that knows which fields of its tools are secret, as a `ToolRegistry` does: by tool name."""

    @property
    def marked(self) -> Mapping[str, Any]: ...


class RequestView(Protocol):
    """What a handler may see of the request that it works for. Read-only; valid while the request runs.

    `stops` is whether the request is about to give up the calls that are open, because it is cancelled or one of them
    failed. No handler of it may begin from then on, even if its session has not had its turn yet. `is_left` is whether
    the request stops here so that another process continues it: then calls that are given up stay unanswered. `secrets`
    take secrets out of results and put them into arguments. `narrate` words the status line of a call that runs.
    """

    @property
    def request_id(self) -> str: ...
    @property
    def conversation_id(self) -> str: ...
    @property
    def deps(self) -> Any: ...
    @property
    def messages(self) -> Sequence[Message]: ...
    @property
    def metadata(self) -> Mapping[str, Any] | None: ...
    @property
    def tools(self) -> ToolSource: ...
    @property
    def interceptors(self) -> Sequence[Any]: ...
    @property
    def options(self) -> Mapping[str, Any]: ...
    @property
    def calls(self) -> Mapping[str, CallView]: ...
    @property
    def stops(self) -> bool: ...
    @property
    def is_left(self) -> bool: ...
    @property
    def secrets(self) -> SecretHandling: ...
    def narrate(self, call_id: str, text: str) -> None: ...
    def child(self, call_id: str, prompt: Any, **options: Any) -> Any: ...


class ToolExecutor(Protocol):
    """Runs tool calls that are requested on the bus, here or on another machine.

    Contract: for each `ToolCallRequested` that it takes on, it publishes exactly one `ToolCallCompleted` or
    `ToolCallFailed`; on a terminal event that somebody else published it stops the handler; it keeps no timers.
    """

    async def __aenter__(self) -> Any: ...
    async def __aexit__(self, *exc_info: object) -> bool | None: ...


# ------------------------------------------------------------------------------------------------- model


@dataclass(slots=True, kw_only=True, frozen=True)
class ModelSettings:
    """How to ask the model. None means: whatever the provider's default is.

    `temperature` is 0 to 2 for most vendors; `max_output_tokens` bounds one reply; `reasoning_effort` is the
    vendor's word ("low", "high"); `tool_choice` is "auto", "none", "required" or a tool's name; `extra_body` is
    merged into the vendor's request as it is.

    `tool_choice` holds for every round. "required" and a tool's name force a call each time, so a request with one of
    them never ends by itself: it is stopped by `max_rounds` (or another limit), whose last answer is without tools.
    """

    temperature: float | None = None
    max_output_tokens: int | None = None
    reasoning_effort: str | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    extra_body: Mapping[str, Any] | None = None


@dataclass(slots=True, kw_only=True)
class ModelRequest:
    """One call of the model. `messages` is a valid transcript, read-only; `tools` are in registration order.

    With `tools` empty the model must answer with text. With an `output_schema`, a JSON schema of type object, a reply
    without calls has to be JSON of that schema. Only a provider whose `native_output` says so is given one.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    settings: ModelSettings = field(default_factory=ModelSettings)
    request_id: str = ""
    conversation_id: str = ""
    round: int = 0
    output_schema: Mapping[str, Any] | None = None


FinishReason: TypeAlias = Literal["", "stop", "tool_calls", "length", "content_filter", "refusal", "other"]
"""Why a reply ended, in one form for all vendors: it was whole ("stop"), it asks for tools, it was cut off by a limit
of tokens ("length"), by the provider ("content_filter"), or the model would not ("refusal"). Empty: the provider did
not say. The vendor's own word is `ModelReply.vendor_finish_reason`."""


MAX_REPLY_CALLS = 1_000
"""Calls in one reply, at which reading stops with `ReplyTooLarge`: each makes facts and messages, refused or not."""


@dataclass(slots=True, kw_only=True)
class ModelReply:
    """The model's whole reply. The message's ids are empty: the session mints them.

    With more than `MAX_REPLY_CALLS` calls it is not taken: its request fails as `reply_too_large`.
    """

    message: AssistantMessage
    finish_reason: FinishReason = ""
    vendor_finish_reason: str = ""
    usage: Usage = field(default_factory=Usage)
    vendor: str = ""
    model: str = ""


@dataclass(slots=True)
class TextPiece:
    """A piece of text, to be appended to what came before."""

    text: str


@dataclass(slots=True)
class ReasoningPiece:
    """A piece of reasoning."""

    text: str


@dataclass(slots=True)
class ArgumentsPiece:
    """A piece of the argument text of the reply's call number `index`; `name` is its tool as far as known."""

    index: int
    name: str
    text: str


@dataclass(slots=True)
class SignOfLife:
    """Something has come from the server that is no piece: it works with a tool of its own, or says that it is there.

    It feeds the timer for streams that stand still, once a piece has begun one. Nobody hears of it.
    """

    text: str = ""
    """Always empty, as every piece has a text."""


Delta: TypeAlias = TextPiece | ReasoningPiece | ArgumentsPiece | SignOfLife
Emit: TypeAlias = Callable[[Delta], None]


@runtime_checkable
class Provider(Protocol):
    """A model.

    `respond` calls `emit` for each piece as it arrives (synchronous, cheap when nobody listens, feeds the timer
    for streams that stand still) and returns the whole reply; a provider that does not stream never emits.
    Pieces of text, joined, are the reply's text. What shows that a stream is alive and is no piece is a `SignOfLife`.
    `emit` raises `ReplyTooLarge` for a piece of a call past `MAX_REPLY_CALLS`. It keeps no state between calls and may
    be called concurrently. It does not retry: the turn machine does. It raises a `ProviderError` for all that goes
    wrong out there.

    It must let cancellation pass, and soon: that is how a time-out, a cancelled request and a closing runtime reach
    it. One that swallows cancellation, or shields itself from it, holds its request until `respond` returns.
    """

    @property
    def vendor(self) -> str:
        """The vendor's short name, such as "openai"; it stands on events."""
        ...

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Ask the model once."""
        ...


OutputMode: TypeAlias = Literal["auto", "native", "tool"]
"""How a structured output is asked for: by the provider's own means ("native"), by a call of the tool `final_answer`
("tool"), or natively where the provider can and no other tool is offered ("auto")."""

NativeOutput: TypeAlias = Literal["", "alone", "with_tools"]
"""Whether a provider can hold a reply to a JSON schema: not at all, in a request without tools, or in any request."""


@runtime_checkable
class NativeOutputProvider(Provider, Protocol):
    """A provider that may be given a `ModelRequest.output_schema`. One without `native_output` never is.

    `respond` then sees to it that the model knows the schema and that the reply's text is JSON of it, as far as the
    server holds the model to it: toolbus checks each answer anyway. For a server that refuses the schema, `respond`
    raises `NativeOutputUnsupported`. For one that only says that the model's JSON was invalid, it returns what the
    model has written.
    """

    def native_output(self, schema: Mapping[str, Any]) -> NativeOutput:
        """Whether replies can be held to `schema`. Called before each request that may carry it; quick, no I/O.

        After a `NativeOutputUnsupported` it is empty for what the server has refused: that schema, or any.
        """
        ...


@dataclass(slots=True, kw_only=True)
class Summary:
    """What stands for a conversation's earlier turns, and what it took to make: tokens, by vendor and model."""

    text: str
    usage: Usage = field(default_factory=Usage)
    vendor: str = ""
    model: str = ""


class HistorySummarizer(Protocol):
    """Somebody who sums up the turns of a conversation that are no longer sent, such as `toolbus.Summarizer`."""

    async def summarize(self, earlier: str, messages: Sequence[Message], provider: Provider) -> Summary:
        """A summary of `messages`, whole turns, and of what was summed up before them, `earlier`, empty at first.

        Sensitive results stay, and are not told here. `provider` is the model that the request is about to ask. Called
        before it is, in half of its time. Raises whatever it likes: then the turns are left out without a summary, once
        there is no more room. Must let cancellation pass.
        """
        ...


# ------------------------------------------------------------------------------------------------ observer


class Observer(Protocol):
    """Somebody who wants to be told of every event, such as telemetry. Called inline; it must be quick."""

    def __call__(self, event: Event) -> None: ...
