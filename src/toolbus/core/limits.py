"""The limits at which a request stops, and budgets that requests share. Data with its own checks.

`core.turn` counts what a request has used, and the session what it spends from budgets.

Example:
    from toolbus import Budget, Limits, Price, Runtime
    from toolbus.core.limits import OnFailure, OnLimit
    from toolbus.messages import Usage
    from toolbus.testing import ScriptedProvider, text

    on_limit: OnLimit = "answer"  # the model answers once more, without tools
    on_failure: OnFailure = "fail_fast"  # the first failed call ends the request
    limits = Limits(max_rounds=5, timeout_seconds=60, on_limit=on_limit, on_failure=on_failure)
    budget = Budget(max_cost=2.0)  # for all requests that have it
    script = [text("Hello.", usage=Usage(input_tokens=1_000, output_tokens=100))]
    prices = {"*": Price(input_per_million=1.0, output_per_million=5.0)}
    async with Runtime(ScriptedProvider(script), limits=limits, prices=prices) as runtime:
        result = await runtime.run("Hello?", budget=budget)
    print(result.cost, budget.cost)  # 0.0015 0.0015
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, cast, get_args

from .._option_checks import NOT_NEGATIVE, NUMBER, POSITIVE, Rule, check, hints_at_names, one_of, or_none, whole
from ..errors import ConfigurationError
from ..events import FailureReason
from ..messages import Usage

__all__ = ["Budget", "Limits", "OnFailure", "OnLimit"]

OnLimit: TypeAlias = Literal["answer", "stop"]
OnFailure: TypeAlias = Literal["collect", "fail_fast"]
_REASONS: tuple[str, ...] = get_args(FailureReason)


@hints_at_names
@dataclass(slots=True, frozen=True, kw_only=True)
class Limits:
    """The limits that stop a request, and their defaults. All of them except `max_cost` are finite.

    Reaching a limit is not an error: the request ends `stopped`, and `RequestResult.reason` names the limit with its
    value.

    max_rounds: replies of the model to which tools were offered; the last one's calls are still run. They are counted
        anew from a message that a person sends after an answer, while the request waits for background calls.
    max_calls_per_round: calls in one reply; those past it get an error result, and the request continues.
    max_tool_calls: calls over the whole request.
    max_consecutive_errors: replies in a row whose calls all failed. The model always gets to answer its first errors
        with tools, so 1 means the same as 2.
    max_repeats: replies in a row that make only one call, with the same arguments and the same result each time. The
        next such call is refused, and the model reads why; the one after that ends the request. Tools that are
        `repeatable` do not count.
    max_model_attempts: calls of one provider for one reply, while it is overloaded, unreachable or silent.
    max_output_repairs: requests to the model to repair a text that is not the structured output asked for.
    timeout_seconds: the whole request, from its start; the clock is paused while a person is asked for approval, and
        while there is nothing to do but to wait for background tools.
    tool_timeout_seconds: one tool call, from its request, including the wait for a free worker.
    background_timeout_seconds: one call of a background tool, from its request, also over restarts.
    model_timeout_seconds: one call of the model, from its start to the first piece of the reply; for a provider that
        does not stream, to the whole reply.
    approval_timeout_seconds: a person's decision on one call, from the question; then the call is `denied`.
    stream_idle_seconds: the silence of a stream that has begun (kept to within a tenth of it). A stream begins with the
        first piece of the reply; after that, work of a server's own tools, pings and comments count as activity too,
        and a stream that does not stall is bounded only by `timeout_seconds`.
    max_input_tokens, max_output_tokens: over all calls of the model, as the provider counts them.
    max_facts: facts of the request, which are what a journal keeps of it.
    max_journal_bytes: size of these facts in the journal, as the store counts it. Facts of a sub-request are not kept,
        so neither limit counts them.
    max_cost: over all calls of the model, in the currency of the price table that it needs (`prices=`).
    on_limit: "answer" asks the model once more with no tools offered, so that the user gets the best possible answer
        (not after `timeout_seconds`, the token limits and `max_cost`); "stop" ends at once, with the last text.
    on_failure: "collect" sends failures to the model beside the results; "fail_fast" ends the request `stopped` at
        the first failed call: calls that still run are cancelled, completed ones stay.
    stop_on: the reasons of failed calls that end the request in the same way, whatever `on_failure` is, for example
        {"unknown_tool"}.

    `Limits.brief()`, `Limits.standard()` and `Limits.thorough()` have 5, 10 and 20 rounds: the usual numbers of
    assistants that look one thing up, of those that carry out a task, and of those that work through many files.

    Raises `ConfigurationError`, which is a `ValueError`, for a value that is zero, negative, NaN or infinite.
    """

    max_rounds: int = 10
    max_calls_per_round: int = 64
    max_tool_calls: int = 100
    max_consecutive_errors: int = 3
    max_repeats: int = 5
    max_model_attempts: int = 3
    max_output_repairs: int = 2
    timeout_seconds: float = 600.0
    tool_timeout_seconds: float = 30.0
    background_timeout_seconds: float = 86_400.0
    model_timeout_seconds: float = 300.0
    approval_timeout_seconds: float = 3_600.0
    stream_idle_seconds: float = 120.0
    max_input_tokens: int = 1_000_000
    max_output_tokens: int = 100_000
    max_facts: int = 10_000
    max_journal_bytes: int = 50 * 1024 * 1024
    max_cost: float | None = None
    on_limit: OnLimit = "answer"
    on_failure: OnFailure = "collect"
    stop_on: AbstractSet[FailureReason] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop_on", _read_reasons(self.stop_on))
        for each in fields(self):
            check(each.name, getattr(self, each.name), *_RULES.get(each.name, _RULES.get(str(each.type), ())))

    @classmethod
    def brief(cls) -> Limits:
        """Return limits with 5 rounds, and 120 seconds for the whole request."""
        return cls(max_rounds=5, timeout_seconds=120.0)

    @classmethod
    def standard(cls) -> Limits:
        """Return the defaults, with 10 rounds."""
        return cls()

    @classmethod
    def thorough(cls) -> Limits:
        """Return limits with 20 rounds."""
        return cls(max_rounds=20)


def _read_reasons(given: object) -> frozenset[FailureReason]:
    try:
        reasons: frozenset[Any] = frozenset((given,) if isinstance(given, str) else cast("Iterable[Any]", given))
    except TypeError as exc:
        raise ConfigurationError(f"stop_on is {given!r}; it must be a set of reasons") from exc
    if unknown := sorted(map(repr, reasons - set(_REASONS))):
        raise ConfigurationError(f"stop_on has {', '.join(unknown)}; a call fails for one of: {', '.join(_REASONS)}")
    return reasons


@hints_at_names
class Budget:
    """An amount of money, of tokens, or of both, that requests spend together: `Budget(max_cost=5.0)`.

    It is passed to a runtime or to requests (`budget=`), and counts every model call of all of them, also those for
    summaries and of sub-requests. `max_cost` is in the currency of the price table that it needs (`prices=`);
    `max_tokens` counts input and output. `cost` and `tokens` are the amounts spent so far.

    A request that would ask the model while a budget is used up ends `stopped`, with the `limit` "budget.max_cost" or
    "budget.max_tokens". A call counts when its reply has arrived. So a request whose model call is running when the
    budget is used up exceeds the budget by that call: n concurrent requests (including sub-requests) by at most n
    calls. A call that is cut off reports no usage, and does not count.

    A budget belongs to one process, and to one thread: it is not stored, and a resumed request spends from the budgets
    of the runtime that resumes it, and from those that its `options=` give. Raises `ConfigurationError` for a bound
    that is not above 0, and without a bound.
    """

    __slots__ = ("cost", "max_cost", "max_tokens", "tokens")

    def __init__(self, *, max_cost: float | None = None, max_tokens: int | None = None) -> None:
        if max_cost is None and max_tokens is None:
            raise ConfigurationError("a Budget has no bound; pass max_cost, max_tokens or both")
        self.max_cost = check("max_cost", max_cost, or_none(POSITIVE))
        self.max_tokens = check("max_tokens", max_tokens, or_none(whole(1)))
        self.cost = 0.0
        self.tokens = 0

    def spend(self, usage: Usage, cost: float) -> None:
        """Count what a model call has used."""
        self.cost += cost
        self.tokens += usage.input_tokens + usage.output_tokens

    @property
    def used_up(self) -> str:
        """The bound that has been reached, with its value, such as "max_tokens=1000"; "" while something is left."""
        if self.max_cost is not None and self.cost >= self.max_cost:
            return f"max_cost={self.max_cost:g}"
        if self.max_tokens is not None and self.tokens >= self.max_tokens:
            return f"max_tokens={self.max_tokens}"
        return ""

    def __repr__(self) -> str:
        cost = [] if self.max_cost is None else [f"cost: {self.cost:g} of {self.max_cost:g}"]
        tokens = [] if self.max_tokens is None else [f"tokens: {self.tokens} of {self.max_tokens}"]
        return f"<Budget {', '.join([*cost, *tokens])}>"


# The rules of the fields, by their types.
_WHOLE = Rule(lambda given: isinstance(given, int), "it must be a whole number")
_RULES: dict[str, tuple[Rule, ...]] = {
    "max_output_repairs": (NUMBER, NOT_NEGATIVE, _WHOLE),
    "int": (NUMBER, POSITIVE, _WHOLE),
    "float": (NUMBER, POSITIVE),
    "float | None": (or_none(NUMBER), or_none(POSITIVE)),
    "OnLimit": (one_of(*get_args(OnLimit)),),
    "OnFailure": (one_of(*get_args(OnFailure)),),
}
