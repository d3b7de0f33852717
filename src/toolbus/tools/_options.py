"""The options of a tool, and the checks of its options and its handler when the tool is made.

Knows Python's functions. Must not know `Tool`. Raises `ConfigurationError`, whose text says what to do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, TypedDict, cast, get_args

from .._option_checks import FLAG, POSITIVE, Rule, check, is_async, no_option, one_of, or_none, takes, whole
from ..core.shorten import MIN_CHARS
from ..errors import ConfigurationError
from ..protocols import ApprovalRule, ToolKind

Isolation: TypeAlias = Literal["thread", "process"]
RetryOn: TypeAlias = tuple[type[Exception], ...] | Callable[[Exception], bool]
Summarize: TypeAlias = Callable[[Any], str]


class ToolOptions(TypedDict, total=False):
    """The options that say how a tool is run and how its results are sent; `Tool` documents the others."""

    timeout_seconds: float | None
    """The deadline of one call, retries included, instead of the request's `tool_timeout_seconds`."""
    max_concurrency: int | None
    """The number of calls of this tool that run at once in one dispatcher, over all requests."""
    external: bool
    """True if the tool has no handler here, because another executor on the bus answers its calls."""
    pool: str
    """The pool of executors that run the calls, for example workers with a GPU: see `Runtime(executors=)`. By default
    they run in the process of their request. The deps of the handler are then those of the executor."""
    needs_transcript: bool
    """True if the handler reads `ToolContext.messages` on a worker of its pool: the transcript is sent along with each
    call. In the process of the request, a handler always has it."""
    destructive: bool
    """True if a call destroys or sends something and cannot be undone. A person has to approve each call then, unless
    `needs_approval` is given."""
    needs_approval: bool | ApprovalRule | None
    """The human in the loop: a person has to approve every call (True), no call (False), or each call for which this
    function of the arguments returns True. By default, `destructive` decides."""
    sequential: bool
    """Calls of sequential tools in one reply run one after another, in call order; all others run in parallel."""
    status: str
    """The sentence for people while a call runs: a template over its arguments, such as "Looking {city} up"."""
    idempotent: bool
    """True if running the tool twice with the same arguments and the same `ToolContext.idempotency_key` does no more
    than running it once. Only such a call is run again after the process was killed during the call; any other call
    ends as `interrupted`."""
    background: bool
    """True for long work: the model gets a ticket at once, and continues. The result wakes the request, which does not
    end by itself before. The deadline of a call is then `timeout_seconds`, or the request's
    `background_timeout_seconds`. Not for sequential tools."""
    return_direct: bool
    """True if the result is the answer: the request ends with it, without another call of the model, if each call of
    the reply succeeds and is of such a tool. Otherwise the model reads the results, as usual. Not for background
    tools."""
    repeatable: bool
    """True for a poll: a model may make the same call with the same result again and again, beyond `max_repeats`."""
    retries: int
    """The number of times that a failed call is tried again, with growing waits, within its deadline. 0 to 10."""
    retry_on: RetryOn
    """The exceptions after which a call is tried again: types, or a function. By default all but `ToolError`. A
    `ToolRetry` is never tried again."""
    cache_seconds: float | None
    """For a pure tool: the seconds for which a result serves calls with the same arguments, from all requests. Equal
    calls under way share one run as well. Not for handlers that take a `ToolContext`."""
    isolation: Isolation
    """The isolation of a sync handler: it runs in a "thread", which cannot be killed, or in a "process", which is
    killed at the call's deadline and when the call is cancelled. In a process, the handler must be a function that can
    be imported, and gets no context."""
    kind: ToolKind
    """The rule for older results in the history. Those of a "query", which reads something that changes, are replaced
    by a line, also when the same query is made again. Those of an "action", which does something, are cut short. Those
    of any other tool stay whole."""
    keep_full_results: bool
    """True if older results are never shortened, for example those of a login whose token is needed later."""
    max_result_chars: int | None
    """The number of characters of a result that are sent to the model, instead of the request's; at least 200."""
    include_data: bool | None
    """True if the model gets the data of results, and False if it gets only their message, instead of the request's
    option. Text does not count as data. Listeners always get all of it."""
    summarize: Summarize | None
    """A function that takes the data as JSON values (for a text result, the text) and returns the text that the model
    gets instead. It runs on the event loop, so it must be quick. If it raises, the model gets the data, and the error
    is logged."""


def check_options(name: str, options: ToolOptions) -> None:
    """Refuse unknown options with `TypeError`, and values that are wrong by themselves or together.

    Raises `ConfigurationError` for the latter.

    Example:
        from toolbus.errors import ConfigurationError
        from toolbus.tools import check_options

        try:
            check_options("get_order", {"retries": -1})
        except ConfigurationError as error:
            print("retries" in str(error))  # True
    """
    if unknown := options.keys() - _OPTIONS:
        raise TypeError(f"tool {name!r}: {no_option(unknown, _OPTIONS)}")
    for option, given in options.items():
        if (rule := _RULES.get(option)) is not None:
            check(f"tool {name!r}: {option}", given, rule)
    summarizes, includes = options.get("summarize") is not None, options.get("include_data") is not None
    if summarizes and includes:
        problem = "summarize replaces the data, and include_data says whether it is sent; pass one of them"
    elif options.get("external") and (summarizes or includes):
        problem = "it is external, so its executor decides what the model reads; leave summarize and include_data out"
    elif options.get("external") and options.get("pool"):
        problem = "it is external, so somebody else answers its calls; leave pool out, or give it a handler"
    elif options.get("needs_transcript") and not options.get("pool"):
        problem = "needs_transcript is for a worker, and the tool has no pool; leave it out"
    elif options.get("background") and options.get("sequential"):
        problem = "the calls after a sequential one wait for it, and nothing waits for background work; leave one out"
    elif options.get("background") and options.get("return_direct"):
        problem = "the model continues without the result of background work, so it cannot be the answer; leave one out"
    else:
        return
    raise ConfigurationError(f"tool {name!r}: {problem}")


def _is_retry_rule(given: Any) -> bool:
    """Return whether `given` says when to try again. A single class does not: called, it returns a true value."""
    if isinstance(given, tuple):
        kinds = cast("tuple[object, ...]", given)
        return all(isinstance(each, type) and issubclass(each, Exception) for each in kinds)
    return callable(given) and not isinstance(given, type) and not is_async(given)


def check_running(name: str, handler: Any, options: Mapping[str, Any], *, takes_context: bool) -> None:
    """Refuse `options` of a tool with which this handler cannot be run."""
    in_process = options.get("isolation") == "process"
    if options.get("cache_seconds") is not None and (handler is None or takes_context):
        raise ConfigurationError(
            f"tool {name!r}: cache_seconds is for handlers whose result depends only on their arguments; "
            + ("this one is external: cache where it runs" if handler is None else "do without the ToolContext")
        )
    if not in_process:
        return
    if handler is None:
        problem = "it is external, and has no handler here; leave isolation out"
    elif is_async(handler):
        problem = "its handler is async; make it a plain function, which may block there"
    elif takes_context:
        problem = "its handler takes a ToolContext, which stays here; do without, or leave isolation out"
    elif not _is_importable(handler):
        problem = "its handler cannot be imported there; define it as a function of a module, by def"
    elif callable(options.get("retry_on")):
        problem = "its retry_on is a function, and exceptions stay there; pass exception types"
    else:
        return
    raise ConfigurationError(f"tool {name!r} cannot run in a process: {problem}")


def _is_importable(handler: Any) -> bool:
    """Return whether a handler can be imported by module and name: no closure, lambda, partial, object, bound method.

    Bound class methods can be.
    """
    is_plain = inspect.isfunction(handler) or inspect.isclass(handler)
    is_class_method = inspect.ismethod(handler) and inspect.isclass(handler.__self__)
    return (is_plain or is_class_method) and "<" not in handler.__qualname__


_OPTIONS = tuple(ToolOptions.__annotations__)
_RULES: Mapping[str, Rule] = {
    "timeout_seconds": or_none(POSITIVE),
    "cache_seconds": or_none(POSITIVE),
    "max_concurrency": or_none(whole(1)),
    # The waits double, so the tenth retry would come minutes after any sensible deadline.
    "retries": Rule(lambda given: isinstance(given, int) and 0 <= given <= 10, "it must be 0 to 10"),
    "retry_on": or_none(
        Rule(
            _is_retry_rule,
            "pass a tuple of exception types, such as (ConnectionError,), or a function that takes the exception and "
            "returns whether to try again",
        )
    ),
    "isolation": one_of(*get_args(Isolation)),
    "external": FLAG,
    "status": Rule(lambda given: isinstance(given, str), "pass a sentence, such as 'Looking {city} up'"),
    "pool": Rule(lambda given: isinstance(given, str), "pass the name of a pool, such as 'gpu'"),
    "needs_transcript": FLAG,
    "kind": Rule(lambda given: given in get_args(ToolKind), "say 'query' or 'action', or nothing"),
    "keep_full_results": FLAG,
    "destructive": FLAG,
    "needs_approval": or_none(
        Rule(
            lambda given: isinstance(given, bool) or (takes(given, 1) and not is_async(given)),
            "use True, False or a function of the arguments, not async, that returns one of them",
        )
    ),
    "sequential": FLAG,
    "idempotent": FLAG,
    "repeatable": FLAG,
    "return_direct": FLAG,
    "background": FLAG,
    "max_result_chars": or_none(whole(MIN_CHARS)),
    "include_data": or_none(FLAG),
    "summarize": or_none(
        Rule(
            lambda given: takes(given, 1) and not is_async(given),
            "pass a function, not async, that takes the data and returns a text",
        )
    ),
}
