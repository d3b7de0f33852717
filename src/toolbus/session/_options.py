"""The options of a request, defined once for `RequestSession`, for a runtime's requests and for sub-requests. Data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypedDict, cast, get_args

from pydantic import SecretStr

from .._option_checks import FLAG, TEXT, Rule, is_async, no_option, one_of, shown, takes, whole
from ..core.approval import ApprovalPolicy, OnApproval
from ..core.compression import Compression
from ..core.limits import Budget, Limits
from ..core.prices import Price
from ..core.shorten import MIN_CHARS
from ..errors import ConfigurationError
from ..instrumentation import Instrumentation
from ..interceptors import Interceptor
from ..protocols import LateResults, ModelSettings, OutputMode, Provider
from ..secrets import MIN_SECRET_CHARS, NamedSecret
from ..tools import DepsT, ToolLike, ToolRegistry
from ._inputs import Instructions, MessagesLike

ProviderForRound: TypeAlias = Callable[[int], Provider | str | None]
"""The model to ask in a round, by its number from 0; None for the usual one."""


OnBusy: TypeAlias = Literal["queue", "refuse", "replace"]
"""The treatment of a turn while an earlier turn of its conversation runs: it waits, is refused, or replaces that."""


class SessionOptions(TypedDict, Generic[DepsT], total=False):
    """The options of a request, whether a `RequestSession`, a runtime or a tool starts it."""

    limits: Limits | None
    settings: ModelSettings | None
    instructions: Instructions | None
    """The system prompt, or a function of the context that returns it."""
    guidance: bool
    """Add a paragraph to the instructions that lists the tools and says when to use them and when to stop."""
    deps: DepsT | None
    """The application's own object, which handlers get as `ToolContext.deps`, and validators of `output` as
    `info.context`. A request without it is refused if the handler of one of its tools takes a `ToolContext[Deps]`."""
    metadata: Mapping[str, Any] | None
    """The application's own data, which every event and log record of the request carries. With a journal, values of
    JSON."""
    needs_approval: ApprovalPolicy | None
    """The calls that a person has to approve: all (True), none (False), or those for which a function of
    (spec, arguments) returns True. Without it, the calls of tools that are marked `needs_approval` or `destructive`."""
    on_approval: OnApproval | None
    """The async function that decides on such a call: it gets the `ApprovalRequested`, and returns True, False or
    `question.decided(...)`. With "wait" a question waits for whoever looks at `pending_approvals`. Without either, a
    question that nobody can answer is denied at once: nobody listens for `ApprovalRequested` when it is asked, and the
    request has no journal."""
    interceptors: Sequence[Interceptor]
    """The application's own functions around model and tool calls (guardrails), in order: see `Interceptor`."""
    instrumentation: Sequence[Instrumentation]
    """The application's context managers around the request, its model calls and its tool calls, for tracing and
    metrics: see `Instrumentation`."""
    prices: Mapping[str, Price] | None
    """The prices of models by "vendor:model", the model's name, or "*", for `RequestResult.cost` and `max_cost`."""
    budget: Budget | Sequence[Budget] | None
    """An amount of money or tokens that requests share; several to spend from all of them. Those of a request and of
    its runtime count both, and those of a sub-request and of the request above."""
    note_failures: bool
    """Add a system message after the results of a round in which calls failed, which says what went wrong."""
    provider_for_round: ProviderForRound | None
    """The model for each round, for example so that a cheaper one digests results."""
    compression: Compression | None
    """The way in which the history is shortened where it is sent to the model, and the window of tokens that it has to
    fit."""
    max_result_chars: int | None
    """The number of characters of one result that are sent to the model; 4,000 by default. The whole result stays in
    the history, where the model can read the rest with `read_result`."""
    include_data: bool
    """Send the data of tools' results to the model (True, the default) or only their message (False), for tools that do
    not set this themselves. Text is not data. Listeners, and the request's result, always have everything."""
    output_mode: OutputMode
    """The way in which a request with `output` is asked for its value: "native" by the provider's own means (a JSON
    schema that the server enforces), "tool" by a call of the tool `final_answer`. "auto" (the default) is native if the
    provider supports it and no other tool is offered, otherwise by the tool."""
    secrets: Sequence[NamedSecret] | None
    """Values that are never published, logged or sent to the model: references stand for them there. They are added to
    those of a runtime. Texts, or `pydantic.SecretStr`, of at least 4 characters each. A value in a pair with your own
     name, such as ("mail password", value), keeps its reference over restarts."""
    late_results: LateResults
    """The treatment of a result that comes after its call was given up. "event" (the default) publishes `ToolCallLate`.
    "drop" publishes nothing. "next_turn" publishes it, and a runtime also puts the result in front of the
    conversation's next turn."""


class RequestOptions(SessionOptions[DepsT], Generic[DepsT], total=False):
    """The options of one request of a runtime, which replace the runtime's own."""

    provider: Provider | str | None
    """The model: a `Provider`, or "vendor:model"."""
    providers: Sequence[Provider | str] | None
    """The model, and the models to fail over to when it stays overloaded, silent or out of reach. Instead of
    `provider`."""
    tools: Iterable[ToolLike] | ToolRegistry | None
    """The tools, instead of the runtime's."""
    conversation_id: str | None
    """The conversation whose next turn the request is. Its turns run one at a time, in the order of `start`, with the
    messages of the earlier ones; with a journal, in all processes that share the store."""
    history: MessagesLike | None
    """The earlier messages of a conversation that the application stores itself (copied): toolbus messages, or
    dictionaries of OpenAI (chat completions or Responses), Anthropic, Ollama or Vercel's AI SDK."""
    repair_history: bool
    """Repair a `history` that breaks the rules of tool calling (`core.transcript.repair`), instead of refusing it."""
    on_busy: OnBusy
    """The treatment of the request while an earlier turn of the conversation runs: "queue" waits for it, "refuse"
    raises `ConversationBusy`, and "replace" cancels it, and all that wait for it, and begins after it has ended."""


def merged_options(
    defaults: SessionOptions, given: RequestOptions, resolve: Callable[[Provider | str], Provider]
) -> SessionOptions:
    """Return the options of one session: those that the request was given, over `defaults`.

    Metadata, secrets and budgets are added to the defaults, the others replace them. `resolve` makes providers from the
    names that a `provider_for_round` returns.
    """
    merged: dict[str, Any] = dict(defaults)
    options: dict[str, Any] = dict(given)
    for name, value in options.items():
        if value is None or name not in _SESSION_OPTIONS:
            continue
        if name == "metadata":
            merged[name] = {**(merged.get(name) or {}), **value}
        elif name == "budget":
            merged[name] = budgets_in(merged, options)
        else:
            merged[name] = [*(merged.get(name) or ()), *value] if name == "secrets" else value
    for_round: ProviderForRound | None = merged.get("provider_for_round")
    if for_round is not None:
        merged["provider_for_round"] = _resolving(for_round, resolve)
    return SessionOptions(**merged)


def budgets_in(*options: Mapping[str, Any]) -> tuple[Budget, ...]:
    """Return the budgets in these options, each once, so that no call counts twice."""
    given = [each.get("budget") or () for each in options]
    return tuple(dict.fromkeys(each for some in given for each in ((some,) if isinstance(some, Budget) else some)))


def _resolving(for_round: ProviderForRound, resolve: Callable[[Provider | str], Provider]) -> ProviderForRound:
    def chosen(number: int) -> Provider | None:
        named = for_round(number)
        return None if named is None else resolve(named)

    return chosen


_SESSION_OPTIONS = frozenset(SessionOptions.__annotations__)


def check_options(options: Mapping[str, Any], known: type[Any], what: str, *, beside: Iterable[str] = ()) -> None:
    """Check the names of options against `known`, a TypedDict, and their values.

    `what` names the function or class whose options they are, and `beside` its other parameters, for the error's list.
    Raises `TypeError` for an unknown option, and `ConfigurationError` for a value of the wrong kind.
    """
    if not options:
        return
    names: Mapping[str, Any] = known.__annotations__
    if not options.keys() <= names.keys():
        raise TypeError(f"{what}: {no_option(options.keys() - names.keys(), [*beside, *names])}")
    for name, value in options.items():
        rule = _RULES.get(name)
        if rule is not None and value is not None and not rule.holds(value):
            # The values of secrets must not get into an error message.
            problem = "secrets is not valid" if name == "secrets" else f"{name} is {shown(value)}"
            raise ConfigurationError(f"{problem}; {rule.advice}")


def _all(kind: type[Any]) -> Callable[[Any], bool]:
    return lambda given: (
        isinstance(given, Sequence) and all(isinstance(each, kind) for each in cast("Sequence[object]", given))
    )


def _are_prices(given: Any) -> bool:
    return isinstance(given, Mapping) and all(
        isinstance(name, str) and isinstance(price, Price)
        for name, price in cast("Mapping[object, object]", given).items()
    )


def _are_secrets(given: Any) -> bool:
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        return False
    return all(_is_secret(each) for each in cast("Sequence[Any]", given))


def _is_secret(given: Any) -> bool:
    if isinstance(given, tuple):
        pair = cast("tuple[Any, ...]", given)
        return len(pair) == 2 and isinstance(pair[0], str) and pair[0] != "" and _is_secret(pair[1])
    value = given.get_secret_value() if isinstance(given, SecretStr) else given
    return isinstance(value, str) and len(value) >= MIN_SECRET_CHARS


def _is(kind: type[Any]) -> Callable[[Any], bool]:
    return lambda given: isinstance(given, kind)


_RULES: Mapping[str, Rule] = {
    "limits": Rule(_is(Limits), "pass Limits, for example Limits(max_rounds=3)"),
    "budget": Rule(
        lambda given: isinstance(given, Budget) or _all(Budget)(given),
        "pass a Budget, for example Budget(max_tokens=100_000), or a list of them",
    ),
    "settings": Rule(_is(ModelSettings), "pass ModelSettings, for example ModelSettings(temperature=0)"),
    "instructions": Rule(
        lambda given: isinstance(given, str) or takes(given, 1),
        "pass a string, or a function of the context that returns one",
    ),
    "guidance": FLAG,
    "metadata": Rule(_is(Mapping), "pass a dictionary"),
    "needs_approval": Rule(
        lambda given: isinstance(given, bool) or (takes(given, 2) and not is_async(given)),
        "use True, False or a function of (spec, arguments), not async, that returns one of them",
    ),
    "on_approval": Rule(
        lambda given: given == "wait" or (is_async(given) and takes(given, 1)),
        "pass an async function that takes the question and returns whether the call may run, or 'wait'",
    ),
    "interceptors": Rule(_all(Interceptor), "pass a list of objects whose classes derive from toolbus.Interceptor"),
    "instrumentation": Rule(
        _all(Instrumentation),
        "pass a list of objects whose classes derive from toolbus.instrumentation.Instrumentation",
    ),
    "prices": Rule(_are_prices, "pass {'vendor:model': Price(input_per_million=..., output_per_million=...)}"),
    "note_failures": FLAG,
    "compression": Rule(_is(Compression), "pass Compression, for example Compression(max_context_tokens=100_000)"),
    "secrets": Rule(
        _are_secrets,
        f"pass a list of strings or SecretStr, each of at least {MIN_SECRET_CHARS} characters, or in a pair after a "
        "name",
    ),
    "max_result_chars": whole(MIN_CHARS),
    "repair_history": FLAG,
    "conversation_id": TEXT,
    "provider_for_round": Rule(
        lambda given: takes(given, 1) and not is_async(given),
        "pass a function, not async, of the round's number, from 0",
    ),
    "include_data": FLAG,
    "late_results": one_of(*get_args(LateResults)),
    "output_mode": one_of(*get_args(OutputMode)),
    "on_busy": one_of(*get_args(OnBusy)),
}
