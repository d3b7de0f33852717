"""What is checked of a handler and the ways in which it is to be run, when a tool is made.

Knows Python's functions, and no tool. Raises `ConfigurationError`, with what to do.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from .errors import ConfigurationError

__all__ = ["check_retry_on", "check_running", "is_async"]


def check_retry_on(name: str, retry_on: Any) -> None:
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
    elif not _has_a_name(handler):
        problem = "its handler cannot be imported there; define it as a function of a module, by def"
    elif callable(options.get("retry_on")):
        problem = "its retry_on is a function, and exceptions stay there; give exception types"
    else:
        return
    raise ConfigurationError(f"tool {name!r} cannot run in a process: {problem}")


def _has_a_name(handler: Any) -> bool:
    """Whether a handler can be found by its module and name: no closure, lambda, partial, object or bound method."""
    is_plain = inspect.isfunction(handler) or inspect.isclass(handler)
    is_class_method = inspect.ismethod(handler) and inspect.isclass(handler.__self__)
    return (is_plain or is_class_method) and "<" not in handler.__qualname__


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether calling `handler` gives a coroutine: an async function, a partial of one, or an object that has one."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
