"""The protocols of model providers, tool executors and stores, and the data that they exchange.

The contracts are documented here (those of stores in `toolbus.storage`); implementations document only their
differences. This module knows messages and the protocols of stores, and must not know an implementation.

Example:
    from collections.abc import Mapping
    from typing import Any

    from toolbus import ModelSettings, Runtime, tool
    from toolbus.messages import AssistantMessage
    from toolbus.protocols import ApprovalRule, Emit, ModelReply, ModelRequest, Provider, TextPiece

    class Parrot:
        "The smallest provider: it repeats the last message."

        vendor = "parrot"

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            said = request.messages[-1].text
            emit(TextPiece(text=said))
            return ModelReply(message=AssistantMessage(text=said))

    def is_large(arguments: Mapping[str, Any]) -> bool:
        return arguments["amount"] > 100

    rule: ApprovalRule = is_large

    @tool(needs_approval=rule)
    async def refund(order: int, amount: float) -> str:
        return "refunded"

    provider: Provider = Parrot()
    async with Runtime(provider, settings=ModelSettings(temperature=0.0), tools=[refund]) as runtime:
        print((await runtime.run("Hello?")).text)  # Hello?
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from ._option_checks import FLAG, NOT_BLANK, NOT_NEGATIVE, Rule, check, hints_at_names, or_none, whole
from .messages import AssistantMessage, Message, Usage
from .records import Record
from .storage import Journal, JournalStore, Store
from .tool_results import RenderedResult

__all__ = [
    "MAX_REPLY_CALLS",
    "ApprovalRule",
    "ArgumentsPiece",
    "CallView",
    "Control",
    "Delta",
    "Emit",
    "FinishReason",
    "Heartbeat",
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
    "OutputMode",
    "Provider",
    "ReasoningPiece",
    "RequestView",
    "SecretHandling",
    "Store",
    "Summary",
    "TextPiece",
    "ToolExecutor",
    "ToolKind",
    "ToolSource",
    "ToolSpec",
]


# ------------------------------------------------------------------------------------------------- tools


ApprovalRule: TypeAlias = Callable[[Mapping[str, Any]], bool]
"""A function of a call's validated arguments that returns whether a person has to approve the call (human in the loop).
It must be quick and pure."""

Control: TypeAlias = Literal["", "complete", "give_up", "plan", "output", "read"]
"""The effect of a tool that the turn machine answers itself: to end the request with an answer ("complete") or without
one ("give_up"), to keep a plan ("plan"), to give the request's structured output ("output"), or to read the rest of a
shortened result ("read"). Empty for a tool that is run."""


ToolKind: TypeAlias = Literal["", "query", "action"]
"""The kind of a tool, for the history. A "query" reads a state that changes, so its older results are worth little. An
"action" does something, so it matters that it was done, and the details matter less. Results of any other tool stay
whole."""


def _accept(_arguments: Mapping[str, Any]) -> None:
    """The validator of a tool that takes any object."""


@dataclass(slots=True, kw_only=True, frozen=True)
class ToolSpec:
    """The definition of a tool for the model and the turn machine. It does not say how the tool runs.

    `parameters` is a JSON schema of type object. `validate` raises `InvalidArguments` for arguments that break it, and
    may return the keyword arguments for the handler, so that a call is validated only once: see `CallView.bound`.
    `timeout_seconds` replaces the request's `tool_timeout_seconds`. Calls of `external` tools are answered by another
    executor on the bus, so no dispatcher runs them. `pool` names the executors that run the calls of the tool; it is
    empty for the dispatcher of the request's own process. A call of a tool with `needs_approval` waits for a person
    first: always, or if the rule says so. Calls of `sequential` tools in one reply run one after another, in call
    order. `status` is the sentence for people while a call runs, such as "Looking {city} up". `control` tools are
    answered by the turn machine. An `idempotent` tool may run twice with the same key, as happens to a call during
    which a process was killed. The model continues without the results of a `background` tool, which come as notes.
    Calls of a `repeatable` tool do not count for `max_repeats`. The results of `return_direct` tools are the answer:
    the request ends with them. `kind` says how older results may be shortened in the history, and with
    `keep_full_results` they are never shortened. `max_result_chars` replaces the request's: longer results are cut for
    the model.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    validate: Callable[[Mapping[str, Any]], dict[str, Any] | None] = field(default=_accept, repr=False, compare=False)
    timeout_seconds: float | None = None
    external: bool = False
    pool: str = ""
    needs_approval: bool | ApprovalRule = field(default=False, compare=False)
    sequential: bool = False
    status: str = ""
    control: Control = ""
    kind: ToolKind = ""
    keep_full_results: bool = False
    max_result_chars: int | None = None
    idempotent: bool = False
    repeatable: bool = False
    background: bool = False
    return_direct: bool = False


class ToolSource(Protocol):
    """A source of the tools that are available now. The mapping is a snapshot: it does not change later."""

    @property
    def specs(self) -> Mapping[str, ToolSpec]:
        """The tools by name, in the order of registration."""
        ...


LateResults: TypeAlias = Literal["drop", "event", "next_turn"]
"""The treatment of a result that comes after its call was settled: it is dropped, published as `ToolCallLate`, or
published and also added as a note before the conversation's next turn."""


class CallView(Protocol):
    """An open call of a request, for its executor. `arguments` are the request's own: copy them, never change them.

    `bound` is the definition by which the arguments were validated, and the result of its `validate`; only the executor
    that runs the call may use and change that result. `requested_at` has no value (None) until the call has been
    requested, and nobody may run it before.
    """

    @property
    def arguments(self) -> dict[str, Any] | None: ...
    @property
    def bound(self) -> tuple[ToolSpec, dict[str, Any] | None] | None: ...
    @property
    def requested_at(self) -> float | None: ...


RecordT = TypeVar("RecordT", bound=Record | str)


class SecretHandling(Protocol):
    """The secrets of one request, for executors. Models, journals and listeners see only references to them."""

    def deliver(self, arguments: Mapping[str, Any], marks: Any) -> dict[str, Any]:
        """Return the arguments for a handler: with secrets instead of references in marked fields.

        Raises `InvalidArguments`.
        """
        ...

    def hide(self, rendered: RenderedResult) -> RenderedResult:
        """Return a result with references instead of the secrets in it."""
        ...

    def digest(self, arguments: bytes) -> bytes:
        """Return a key for these arguments in which a reference counts only within its own conversation."""
        ...

    def mask(self, given: RecordT) -> RecordT:
        """Return an event, a message, another record or a text without secrets, which may be published."""
        ...


class KnowsMarks(ABC):
    """A base for a `ToolSource` that knows the secret fields of its tools, by tool name, as a `ToolRegistry` does.

    It is a base and no protocol, since every request asks for it, and CPython 3.11 needs 3 us to check a protocol.

    Example:
        from toolbus import ToolRegistry
        from toolbus.protocols import KnowsMarks

        source: KnowsMarks = ToolRegistry([])
        print(dict(source.marked))  # {}
    """

    @property
    @abstractmethod
    def marked(self) -> Mapping[str, Any]: ...


class RequestView(Protocol):
    """The part of a request that its executor and its handlers may see. Read-only; valid while the request runs.

    `is_stopping` says whether the request is about to give up its open calls, because it is cancelled or one of them
    failed. No handler of it may begin from then on, even if its session task has not run yet. `is_released` says
    whether the request stops here so that another process continues it; then calls that are given up stay unanswered.
    `secrets` removes secrets from results and puts them into arguments. `narrate` sets the status line of a call that
    runs, and `child` makes the session of a sub-request that works for it. `original_metadata` is the metadata of the
    first event of a request that another process has begun; otherwise None.
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
    def instrumentation(self) -> Sequence[Any]: ...
    @property
    def original_metadata(self) -> Mapping[str, Any] | None: ...
    @property
    def options(self) -> Mapping[str, Any]: ...
    @property
    def calls(self) -> Mapping[str, CallView]: ...
    @property
    def is_stopping(self) -> bool: ...
    @property
    def is_released(self) -> bool: ...
    @property
    def secrets(self) -> SecretHandling: ...
    def narrate(self, call_id: str, text: str) -> None: ...
    def child(self, call_id: str, prompt: Any, **options: Any) -> Any: ...


class ToolExecutor(Protocol):
    """A runner of the tool calls that are requested on the bus, in this process or on another machine.

    Contract: for each `ToolCallRequested` that the executor takes on, it publishes exactly one `ToolCallCompleted` or
    `ToolCallFailed`. When a terminal event of the call comes from elsewhere, it stops the handler. It has no
    timers for deadlines.

    Example:
        from toolbus import EventBus, ToolDispatcher
        from toolbus.events import Event, ToolCallRequested
        from toolbus.protocols import CallView, RequestView, SecretHandling, ToolExecutor, ToolSource

        bus = EventBus()
        executor: ToolExecutor = ToolDispatcher(bus, [])  # a runtime has one

        def look(event: Event) -> None:  # what an executor of yours sees of a call
            if isinstance(event, ToolCallRequested):
                view: RequestView | None = bus.arbitration.view(event.request_id)
                if view is not None:
                    tools: ToolSource = view.tools
                    call: CallView = view.calls[event.call_id]
                    secrets: SecretHandling = view.secrets
                    print(tools.specs[event.name].description, call.arguments, secrets.digest(b""))

        bus.connect(Event, look)
    """

    async def __aenter__(self) -> Any: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


# ------------------------------------------------------------------------------------------------- model


@hints_at_names
@dataclass(slots=True, kw_only=True, frozen=True)
class ModelSettings:
    """The settings of a model call. None stands for the provider's default.

    `temperature` is 0 to 2 for most vendors. `max_output_tokens` bounds one reply. `reasoning_effort` is the vendor's
    word ("low", "high"). `tool_choice` is "auto", "none", "required" or a tool's name. `extra_body` is merged into the
    vendor's request as it is.

    `tool_choice` holds for every round. "required" and a tool's name force a call each time, so a request with one of
    them never ends by itself: it is stopped by `max_rounds` (or another limit), and its last answer is without tools.

    Raises `ConfigurationError` for a value of another kind.
    """

    temperature: float | None = None
    max_output_tokens: int | None = None
    reasoning_effort: str | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    extra_body: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, rule in _SETTINGS.items():
            check(name, getattr(self, name), rule)


_SETTINGS: Mapping[str, Rule] = {
    "temperature": or_none(NOT_NEGATIVE),
    "max_output_tokens": or_none(whole(1)),
    "reasoning_effort": or_none(NOT_BLANK),
    "tool_choice": or_none(NOT_BLANK),
    "parallel_tool_calls": or_none(FLAG),
    "extra_body": or_none(Rule(lambda given: isinstance(given, Mapping), "pass a dictionary")),
}


class ModelRequest(Record, kw_only=True, frozen=True):
    """One call of the model. `messages` is a valid transcript, read-only; `tools` are in registration order.

    If `tools` is empty, the model must answer with text. With an `output_schema`, a JSON schema of type object, a reply
    without calls has to be JSON of that schema. Only a provider whose `native_output` allows it is given a schema.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    settings: ModelSettings = ModelSettings()
    request_id: str = ""
    conversation_id: str = ""
    round: int = 0
    output_schema: Mapping[str, Any] | None = None


FinishReason: TypeAlias = Literal["", "stop", "tool_calls", "length", "content_filter", "refusal", "other"]
"""The reason why a reply ended, in one form for all vendors: it is whole ("stop"), it asks for tools ("tool_calls"), it
was cut off by a limit of tokens ("length") or by the provider ("content_filter"), or the model refused ("refusal"). It
is empty if the provider did not say. The vendor's own word is `ModelReply.vendor_finish_reason`."""


MAX_REPLY_CALLS = 1_000
"""The most calls in one reply; after that, reading stops with `ReplyTooLarge`. Each call makes facts and messages, even
if it is refused."""


class ModelReply(Record, kw_only=True, frozen=True):
    """The model's whole reply. The message's ids are empty: the session makes them.

    A reply with more than `MAX_REPLY_CALLS` calls is refused: its request fails as `reply_too_large`.
    """

    message: AssistantMessage
    finish_reason: FinishReason = ""
    vendor_finish_reason: str = ""
    usage: Usage = Usage()
    vendor: str = ""
    model: str = ""


class TextPiece(Record, gc=False, frozen=True):
    """A piece of text, to be appended to what came before."""

    text: str


class ReasoningPiece(Record, gc=False, frozen=True):
    """A piece of reasoning."""

    text: str


class ArgumentsPiece(Record, gc=False, frozen=True):
    """A piece of the argument text of the reply's call number `index`; `name` is the tool's name as far as known."""

    index: int
    name: str
    text: str


class Heartbeat(Record, gc=False, frozen=True):
    """A sign from the server without a piece of the reply: it uses its own tool, or keeps the connection alive.

    It restarts the timer for stalled streams, once a piece has started that timer. It is not published.
    """

    text: str = ""
    """Always empty; it exists because every piece has a text."""


Delta: TypeAlias = TextPiece | ReasoningPiece | ArgumentsPiece | Heartbeat
Emit: TypeAlias = Callable[[Delta], None]


@runtime_checkable
class Provider(Protocol):
    """An adapter to a model.

    `respond` calls `emit` for each piece as it arrives, and returns the whole reply; a provider without streaming never
    emits. `emit` is synchronous, cheap when nobody listens, and restarts the timer for stalled streams. The joined
    pieces of text are the reply's text. A `Heartbeat` shows that a stream is alive although no piece has come. `emit`
    raises `ReplyTooLarge` for a piece of a call past `MAX_REPLY_CALLS`. A provider keeps no state between calls and may
    be called concurrently. It does not retry, because the turn machine does. It raises a `ProviderError` for every
    failure of the server or the connection.

    A provider must let cancellation pass, and soon: a time-out, a cancelled request and a closing runtime reach it that
    way. A provider that swallows cancellation, or shields itself from it, holds its request until `respond` returns.
    """

    @property
    def vendor(self) -> str:
        """The vendor's short name, such as "openai"; events have it as a field."""
        ...

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Ask the model once, and return its whole reply. Raises `ProviderError`."""
        ...


OutputMode: TypeAlias = Literal["auto", "native", "tool"]
"""The way of asking for a structured output: by the provider's own means ("native"), by a call of the tool
`final_answer` ("tool"), or natively if the provider can and no other tool is offered ("auto")."""

NativeOutput: TypeAlias = Literal["", "alone", "with_tools"]
"""The support of a provider for a JSON schema of the reply: none, only in requests without tools, or in any request."""


@runtime_checkable
class NativeOutputProvider(Provider, Protocol):
    """A provider that may be given a `ModelRequest.output_schema`. A provider without `native_output` never is.

    `respond` then gives the schema to the model and returns JSON of that schema as the reply's text, as far as the
    server enforces it: toolbus checks each answer anyway. If the server refuses the schema, `respond` raises
    `NativeOutputUnsupported`. If the server only reports that the model's JSON was invalid, `respond` returns the
    model's text.

    Example:
        from collections.abc import Mapping
        from typing import Any

        from toolbus.messages import AssistantMessage
        from toolbus.protocols import Emit, ModelReply, ModelRequest, NativeOutput, NativeOutputProvider
        from toolbus.protocols import ReasoningPiece, Heartbeat, TextPiece

        class Five:
            vendor = "five"

            def native_output(self, schema: Mapping[str, Any]) -> NativeOutput:
                return "alone"  # not together with tools

            async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
                emit(Heartbeat())
                emit(ReasoningPiece(text="2 and 3"))
                emit(TextPiece(text='{"value": 5}'))
                return ModelReply(message=AssistantMessage(text='{"value": 5}', reasoning="2 and 3"))

        provider: NativeOutputProvider = Five()
    """

    def native_output(self, schema: Mapping[str, Any]) -> NativeOutput:
        """Return the support for `schema`. Called before each request that may have it; must be quick and without I/O.

        After a `NativeOutputUnsupported` it is empty for the schema that the server has refused, or for every schema.
        """
        ...


class Summary(Record, kw_only=True, frozen=True):
    """A summary of a conversation's earlier turns, with the tokens, the vendor and the model that made it."""

    text: str
    usage: Usage = Usage()
    vendor: str = ""
    model: str = ""


class HistorySummarizer(Protocol):
    """A summarizer of the turns of a conversation that are no longer sent, such as `toolbus.Summarizer`.

    Example:
        from collections.abc import Sequence

        from toolbus import Compression
        from toolbus.messages import Message
        from toolbus.protocols import HistorySummarizer, Provider, Summary

        class FirstLines:
            async def summarize(self, earlier: str, messages: Sequence[Message], provider: Provider) -> Summary:
                return Summary(text=earlier + " ".join(message.text[:80] for message in messages))

        summarizer: HistorySummarizer = FirstLines()
        compression = Compression(summarizer=summarizer, max_context_tokens=100_000)
    """

    async def summarize(self, earlier: str, messages: Sequence[Message], provider: Provider) -> Summary:
        """Return a summary of `earlier`, the summary of the turns before (empty at first), and of `messages`.

        `messages` are whole turns, without results of tools with `keep_full_results`, which stay in the history.
        `provider` is the model that the request is about to ask, or the summarizer's own, if its attribute `provider`
        is a model; this is called before, and may take half of the model call's time. It may raise anything: then the
        turns are left out without a summary as soon as they do not fit any more. It must let cancellation pass.
        """
        ...
