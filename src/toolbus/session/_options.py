"""The options of a request, said once: for `RequestSession`, for a runtime's requests and for sub-requests. Data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, cast, get_args

from pydantic import SecretStr

from ..core.approval import ApprovalPolicy
from ..core.compression import Compression
from ..core.limits import Limits
from ..core.prices import Price
from ..core.shorten import MIN_CHARS
from ..errors import ConfigurationError
from ..interceptors import Interceptor
from ..protocols import LateResults, ModelSettings, OutputMode, Provider
from ..secrets import SHORTEST, NamedSecret
from ..tools import Toolish, ToolRegistry, no_option, takes
from ._inputs import Instructions, MessagesLike, shown

__all__ = [
    "OnBusy",
    "ProviderForRound",
    "RequestOptions",
    "SessionOptions",
    "check_options",
    "check_word",
    "merged_options",
]

ProviderForRound: TypeAlias = Callable[[int], Provider | str | None]
"""The model to ask in a round, by its number from 0; None for the usual one."""


OnBusy: TypeAlias = Literal["queue", "refuse"]
"""What becomes of a turn while an earlier one of its conversation runs: it waits, or is refused."""


class SessionOptions(TypedDict, total=False):
    """How a request is carried out, whoever runs it."""

    limits: Limits | None
    settings: ModelSettings | None
    instructions: Instructions | None
    """The system prompt, or a function of the context that gives it."""
    guidance: bool
    """Add a paragraph to the instructions that lists the tools and says when to use them and when to stop."""
    deps: Any
    """What handlers get as `ToolContext.deps`."""
    metadata: Mapping[str, Any] | None
    """Rides on every event and log record of the request."""
    approval: ApprovalPolicy | None
    """Which calls a person has to approve: all, none, or where a function of (spec, arguments) says so. Without it,
    those of tools that are marked `approval` or `destructive`."""
    interceptors: Sequence[Interceptor]
    """The application's own functions around model and tool calls, in order: see `Interceptor`."""
    prices: Mapping[str, Price] | None
    """What models cost, by "vendor:model", the model's name, or "*": for `RequestResult.cost` and `max_cost`."""
    note_failures: bool
    """Add a system message behind the results of a round in which calls failed, which says what went wrong."""
    provider_for_round: ProviderForRound | None
    """The model for each round, so that a cheaper one can digest results, say."""
    compression: Compression | None
    """How the history is shortened where it is sent to the model, and the window of tokens that it has to fit."""
    max_result_chars: int | None
    """How many characters of one result are sent to the model, 4,000 unless said otherwise; the whole stays in the
    history, where the model can read on with `read_result`."""
    include_data: bool
    """Whether the model gets the data of tools' results (the default) or their message alone, where a tool does not say
    so itself. Text is no data. Listeners, and the request's result, always have all of it."""
    output_mode: OutputMode
    """How a request with `output` is asked for its value: "native" by the provider's own means (a JSON schema that the
    server holds the reply to), "tool" by a call of the tool `final_answer`. "auto" (the default): natively where the
    provider can and no other tool is offered, else by the tool."""
    secrets: Sequence[NamedSecret] | None
    """Values that are never told: in events, logs and what the model is sent, references stand in their place. With
    those of a runtime. At least 4 characters each; texts, or `pydantic.SecretStr`. In a pair with a name of your own,
    such as ("mail password", value), one keeps its reference over restarts."""
    late_results: LateResults
    """What becomes of a result that comes after its call was given up. "event" (the default): `ToolCallLate` tells
    of it. "drop": nothing does. "next_turn": a runtime also puts it in front of the conversation's next turn."""


class RequestOptions(SessionOptions, total=False):
    """What a request may be given, in the place of the runtime's own."""

    provider: Provider | str | None
    """The model: a `Provider`, or "vendor:model"."""
    providers: Sequence[Provider | str] | None
    """The model and those to turn to when it stays overloaded, silent or out of reach; instead of `provider`."""
    tools: Iterable[Toolish] | ToolRegistry | None
    """The tools, instead of the runtime's."""
    conversation_id: str | None
    """Makes the request this conversation's next turn: one at a time, in the order of `start`, with what was said."""
    history: MessagesLike | None
    """Begins a conversation that the application kept itself (copied): toolbus messages, or dictionaries of an API:
    OpenAI's chat completions or Responses, Anthropic's, or Ollama's."""
    repair_history: bool
    """Mend a `history` that breaks the rules of tool calling (`core.transcript.repair`), instead of refusing it."""
    raise_on_failure: bool
    """Raise the matching `ToolbusError` where the outcome is not `completed`."""
    on_busy: OnBusy
    """While an earlier turn of the conversation runs: "queue" behind it, or "refuse" with `ConversationBusy`."""


def merged_options(
    defaults: SessionOptions, given: RequestOptions, resolve: Callable[[Provider | str], Provider]
) -> SessionOptions:
    """The options of one session: those that the request was given, over `defaults`. Metadata and secrets add up.

    `resolve` makes providers of the names that a `provider_for_round` gives.
    """
    merged: dict[str, Any] = dict(defaults)
    options: dict[str, Any] = dict(given)
    for name, value in options.items():
        if value is None or name not in _SESSION_OPTIONS:
            continue
        if name == "metadata":
            merged[name] = {**(merged.get(name) or {}), **value}
        else:
            merged[name] = [*(merged.get(name) or ()), *value] if name == "secrets" else value
    for_round: ProviderForRound | None = merged.get("provider_for_round")
    if for_round is not None:
        merged["provider_for_round"] = _resolving(for_round, resolve)
    return SessionOptions(**merged)


def _resolving(for_round: ProviderForRound, resolve: Callable[[Provider | str], Provider]) -> ProviderForRound:
    def chosen(number: int) -> Provider | None:
        named = for_round(number)
        return None if named is None else resolve(named)

    return chosen


_SESSION_OPTIONS = frozenset(SessionOptions.__annotations__)


def check_options(options: Mapping[str, Any], known: type[Any], what: str, *, beside: Iterable[str] = ()) -> None:
    """Refuse an option that `known`, a TypedDict, does not have, and one of the wrong kind.

    `what` is whose options they are, and `beside` names what else it takes, for the list that is told. Raises
    `TypeError` for the former, `ConfigurationError` for the latter.
    """
    if not options:
        return
    names: Mapping[str, Any] = known.__annotations__
    if not options.keys() <= names.keys():
        raise TypeError(f"{what}: {no_option(options.keys() - names.keys(), [*beside, *names])}")
    for name, value in options.items():
        check = _CHECKS.get(name)
        if check is not None and value is not None and not check[0](value):
            told = "secrets is something else" if name == "secrets" else f"{name} is {shown(value)}"
            raise ConfigurationError(f"{told}; {check[1]}")


def check_word(name: str, given: object, words: tuple[str, ...]) -> None:
    """Raise `ConfigurationError` for what is none of `words`."""
    if given not in words:
        raise ConfigurationError(f"{name} is {given!r}; it must be {' or '.join(map(repr, words))}")


def _is_instructions(given: Any) -> bool:
    return isinstance(given, str) or callable(given)


def _is_policy(given: Any) -> bool:
    return isinstance(given, bool) or takes(given, 2)


def _are_interceptors(given: Any) -> bool:
    return isinstance(given, Sequence) and all(
        isinstance(each, Interceptor) for each in cast("Sequence[object]", given)
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
    return isinstance(value, str) and len(value) >= SHORTEST


def _is_size(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= MIN_CHARS


def _is(kind: type[Any]) -> Callable[[Any], bool]:
    return lambda given: isinstance(given, kind)


_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "limits": (_is(Limits), "give Limits(max_rounds=3), say"),
    "settings": (_is(ModelSettings), "give ModelSettings(temperature=0), say"),
    "instructions": (_is_instructions, "give a text, or a function of the context that gives one"),
    "guidance": (_is(bool), "say True or False"),
    "metadata": (_is(Mapping), "give a dictionary"),
    "approval": (_is_policy, "say True, False, or give a function of (spec, arguments) that does"),
    "interceptors": (_are_interceptors, "give a list of objects whose classes derive from toolbus.Interceptor"),
    "prices": (_are_prices, "give {'vendor:model': Price(input=..., output=...)}, per million tokens"),
    "note_failures": (_is(bool), "say True or False"),
    "compression": (_is(Compression), "give Compression(max_context_tokens=100_000), say"),
    "secrets": (
        _are_secrets,
        f"give a list of texts or SecretStr, each of at least {SHORTEST} characters, or in a pair behind a name for it",
    ),
    "max_result_chars": (_is_size, f"give a whole number of at least {MIN_CHARS}"),
    "repair_history": (_is(bool), "say True or False"),
    "raise_on_failure": (_is(bool), "say True or False"),
    "conversation_id": (_is(str), "give a text"),
    "provider_for_round": (lambda given: takes(given, 1), "give a function of the round's number, from 0"),
    "include_data": (_is(bool), "say True or False"),
    "late_results": (lambda given: given in _LATE, f"say {', '.join(map(repr, get_args(LateResults)))}"),
    "output_mode": (lambda given: given in _MODES, f"say {', '.join(map(repr, get_args(OutputMode)))}"),
    "on_busy": (lambda given: given in ("queue", "refuse"), "say 'queue' or 'refuse'"),
}
_LATE = get_args(LateResults)
_MODES = get_args(OutputMode)
