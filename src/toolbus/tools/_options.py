"""The options of a tool, and what is checked of them and of its handler when it is made.

Knows Python's functions, and no tool. Raises `ConfigurationError`, with what to do.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias, TypedDict, cast, get_args

from ..core.shorten import MIN_CHARS
from ..errors import ConfigurationError
from ..protocols import ApprovalRule, ToolKind

__all__ = ["Isolation", "RetryOn", "Summarize", "ToolOptions", "check_options", "check_running", "is_async", "takes"]

Isolation: TypeAlias = Literal["thread", "process"]
RetryOn: TypeAlias = tuple[type[Exception], ...] | Callable[[Exception], bool]
Summarize: TypeAlias = Callable[[Any], str]


class ToolOptions(TypedDict, total=False):
    """How a tool is run, beside what it is: see `Tool`."""

    timeout_seconds: float | None
    """The deadline of one call, in the place of the request's `tool_timeout_seconds`; retries included."""
    max_concurrency: int | None
    """How many calls of this tool run at once in one dispatcher, over all requests."""
    external: bool
    """There is no handler here: somebody else on the bus answers."""
    destructive: bool
    """It destroys or sends what cannot be taken back: a person has to approve each call, unless `approval` is given."""
    approval: bool | ApprovalRule | None
    """Whether a person has to approve each call: always, never, or where a function of the arguments says so."""
    sequential: bool
    """Calls of sequential tools in one reply run one after another, in call order; all others run in parallel."""
    status: str
    """The sentence for people while a call runs: a template over its arguments, such as "Looking {city} up"."""
    idempotent: bool
    """Running it twice with the same arguments and the same `ToolContext.idempotency_key` does no more than running it
    once. Only such a call is run again after the process was killed in it; any other ends as `interrupted`."""
    retries: int
    """How often a call that failed is tried again, with growing waits, within its deadline. 0 to 10."""
    retry_on: RetryOn
    """Which exceptions are tried again: types, or a function. Without it, all but `ToolError`. `ToolRetry` never is."""
    cache_seconds: float | None
    """For a pure tool: how long a result serves calls with the same arguments, of all requests. Calls under way are
    shared as well. Not for handlers that take a `ToolContext`."""
    isolation: Isolation
    """Where a sync handler runs: in a "thread", which cannot be killed, or in a "process", which is killed at the
    call's deadline and when it is cancelled. A process takes a function that can be imported, and no context."""
    kind: ToolKind
    """What the history keeps of older results. A "query" reads what changes: they become a line, also when the same is
    asked again. An "action" does something: they are cut short. Of any other tool they stay whole."""
    sensitive_history: bool
    """Older results are never shortened, as of a login whose token is needed later."""
    max_result_chars: int | None
    """How many characters of a result are sent to the model, in the place of the request's; at least 200."""
    include_data: bool | None
    """Whether the model gets the data of results, in the place of the request's; without, their message alone. Text is
    no data. Listeners always get all of it."""
    summarize: Summarize | None
    """A function of the data, as JSON has it (of a text result, the text), that gives the text for the model in its
    place. Quick, on the event loop. Where it raises, the model gets the data, and the log a warning."""


_OPTIONS = tuple(ToolOptions.__annotations__)
_MAX_RETRIES = 10  # with waits that double, the tenth is minutes past any deadline that makes sense


def check_options(name: str, options: ToolOptions) -> None:
    """Refuse what is no option (`TypeError`), and options that make no sense, alone or together."""
    if unknown := options.keys() - _OPTIONS:
        raise TypeError(f"tool {name!r}: {no_option(unknown, _OPTIONS)}")
    for option in ("timeout_seconds", "cache_seconds"):
        seconds: Any = options.get(option)
        if seconds is not None and not (is_number(seconds) and 0 < seconds < math.inf):
            raise ConfigurationError(f"tool {name!r}: {option} is {seconds!r}; it must be above 0 and finite")
    most: Any = options.get("max_concurrency")
    if most is not None and not (is_number(most) and most >= 1):
        raise ConfigurationError(f"tool {name!r}: max_concurrency is {most!r}; it must be at least 1")
    retries: Any = options.get("retries", 0)
    if not (isinstance(retries, int) and 0 <= retries <= _MAX_RETRIES):
        raise ConfigurationError(f"tool {name!r}: retries is {retries!r}; it must be 0 to {_MAX_RETRIES}")
    _check_retry_on(name, options.get("retry_on"))
    if options.get("isolation", "thread") not in ("thread", "process"):
        raise ConfigurationError(f"tool {name!r}: isolation is {options.get('isolation')!r}; say 'thread' or 'process'")
    _check_form(name, options)


def no_option(unknown: Iterable[str], known: Iterable[str]) -> str:
    """What to say of options that there are not: which there are, and which of them look alike."""
    wrong, names = sorted(unknown), list(known)
    alike = [near for each in wrong for near in difflib.get_close_matches(each, names, 1)]
    meant = f"; did you mean {', '.join(alike)}?" if alike else ""
    return f"there is no option {', '.join(wrong)}; the options are {', '.join(names)}{meant}"


def is_number(given: object) -> bool:
    """Whether `given` is one: callers without a type checker give anything."""
    return isinstance(given, (int, float)) and not isinstance(given, bool)


def _check_form(name: str, options: ToolOptions) -> None:
    """Refuse options that say nothing about what is sent of results."""
    if options.get("kind", "") not in get_args(ToolKind):
        raise ConfigurationError(f"tool {name!r}: kind is {options.get('kind')!r}; say 'query' or 'action', or nothing")
    for option in ("sensitive_history", "idempotent"):
        if not isinstance(options.get(option, False), bool):
            raise ConfigurationError(f"tool {name!r}: {option} is no truth value; say True or False")
    most: Any = options.get("max_result_chars")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < MIN_CHARS):
        raise ConfigurationError(
            f"tool {name!r}: max_result_chars is {most!r}; give a whole number of at least {MIN_CHARS}"
        )
    include: Any = options.get("include_data")
    if include is not None and not isinstance(include, bool):
        raise ConfigurationError(f"tool {name!r}: include_data is {include!r}; say True or False")
    summarize = options.get("summarize")
    if summarize is not None and (not takes(summarize, 1) or is_async(summarize)):
        told = "give a function, not async, that takes the data and returns a text"
        raise ConfigurationError(f"tool {name!r}: summarize is {summarize!r}; {told}")
    if summarize is not None and include is not None:
        told = "summarize replaces the data, and include_data says whether it is sent; give one of them"
        raise ConfigurationError(f"tool {name!r}: {told}")
    if options.get("external") and not (summarize is None and include is None):
        told = "it is external: who answers its calls writes what the model reads; leave summarize and include_data out"
        raise ConfigurationError(f"tool {name!r}: {told}")


def _check_retry_on(name: str, retry_on: Any) -> None:
    """Refuse what is no rule. A class alone is none: called as a function it makes an exception, which is true."""
    if isinstance(retry_on, tuple):
        kinds = cast("tuple[object, ...]", retry_on)
        if all(isinstance(each, type) and issubclass(each, Exception) for each in kinds):
            return
    elif retry_on is None or (callable(retry_on) and not isinstance(retry_on, type) and not is_async(retry_on)):
        return
    raise ConfigurationError(
        f"tool {name!r}: retry_on is {retry_on!r}; give a tuple of exception types, such as (ConnectionError,), or a "
        "function that takes the exception and returns whether to try again"
    )


def check_running(name: str, handler: Any, options: Mapping[str, Any], *, takes_context: bool) -> None:
    """Refuse `options` (those of a tool) in which this handler cannot be run."""
    in_process = options.get("isolation") == "process"
    if options.get("cache_seconds") is not None and (handler is None or takes_context):
        raise ConfigurationError(
            f"tool {name!r}: cache_seconds is for handlers whose result depends on their arguments alone; "
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
        problem = "its retry_on is a function, and exceptions stay there; give exception types"
    else:
        return
    raise ConfigurationError(f"tool {name!r} cannot run in a process: {problem}")


def _is_importable(handler: Any) -> bool:
    """Whether a handler can be found by its module and name: no closure, lambda, partial, object or bound method."""
    is_plain = inspect.isfunction(handler) or inspect.isclass(handler)
    is_class_method = inspect.ismethod(handler) and inspect.isclass(handler.__self__)
    return (is_plain or is_class_method) and "<" not in handler.__qualname__


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether calling `handler` gives a coroutine: an async function, a partial of one, or an object that has one."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def takes(given: Any, count: int) -> bool:
    """Whether `given` can be called with so many arguments; of what cannot be looked into, that it can be called."""
    if not callable(given):
        return False
    try:
        inspect.signature(given).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # some built-in functions have no signature
        return True
    return True
