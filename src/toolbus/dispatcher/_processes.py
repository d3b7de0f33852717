"""Handlers in processes of their own, which are killed when their call is cancelled, and the protocol between the two.

Knows tools and anyio's worker processes. Only plain data is sent: the name of the handler, the arguments as JSON, and
back the rendered result, or a failure with its texts. Both sides are in this module: `run_in_process` runs in this
process, and `run_handler` in the worker process.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import anyio

from ..errors import ConfigurationError
from ..failures import Failure, ReportedFailure, classify, leaves_of, raised_at
from ..instrumentation import CarriedBy, continued_here
from ..tool_results import RenderedResult, render
from ..tools import Tool

Kinds: TypeAlias = frozenset[tuple[str, str]]
"""The type of an exception in another process: module and qualified name of its class and of all base classes."""


class ProcessFailure(ReportedFailure):
    """The failure of a handler in its process, or of the process. The text is the traceback from that process.

    `kinds` has an entry for each exception: more than one only if the handler raised a group.
    """

    def __init__(self, failure: Failure, text: str, kinds: tuple[Kinds, ...], raised: str = "") -> None:
        super().__init__(failure, text, raised)
        self.kinds = kinds


async def run_in_process(tool: Tool, arguments: Mapping[str, Any], carried: Sequence[CarriedBy] = ()) -> RenderedResult:
    """Run the handler of `tool` in one of anyio's worker processes, which are kept until the event loop ends.

    Returns the handler's value, rendered. `carried` is what instrumentations make current there. When cancelled, it
    kills the process and waits until the process is gone.
    Raises `InvalidArguments`, before a process is used, and `ProcessFailure`. The caller bounds how many run at once.
    """
    # Invalid arguments are refused here, which is cheaper than in the process.
    tool.prepare(arguments, None)
    from anyio import to_process  # noqa: PLC0415 -- a twentieth of toolbus's import time, for those who need it

    handler: Any = tool.handler
    await _ensure_idle_process()
    try:
        reply = await to_process.run_sync(
            run_handler,
            handler.__module__,
            handler.__qualname__,
            tool.has_schema,
            json.dumps(arguments),
            carried,
            cancellable=True,
            limiter=_NO_LIMITER,
        )
    except anyio.BrokenWorkerProcess as exc:
        failure = Failure("error", "The tool's process ended before it answered.", shown=False, unknown=True)
        raise ProcessFailure(failure, "the process ended before it answered", (kinds_of(exc),)) from None
    if isinstance(reply, RenderedResult):
        return reply
    kinds = reply.pop("kinds")
    text, raised = reply.pop("traceback"), reply.pop("raised")
    raise ProcessFailure(Failure(**reply), text, kinds, raised)


# A real limiter could wait, which must not happen between `_ensure_idle_process` and the call.
_NO_LIMITER = cast("anyio.CapacityLimiter", contextlib.nullcontext())
_MAX_START_SECONDS = 30.0  # anyio waits 20 s for the interpreter; the rest is for importing the main script
_MAX_STARTS = 3  # an idle process may have died unnoticed, and then the next one is tried


async def _ensure_idle_process() -> None:
    """Make sure that there is a living idle process; a caller that does not wait in between gets it for its next call.

    So a process that died while it was idle fails no call, and no process is lost: anyio forgets a process whose start
    is cancelled, and that process would live as long as this one. Therefore a cancellation waits until the start has
    ended. Costs one exchange with the process (about 0.1 ms), and the start of one if necessary (about 300 ms).
    """
    from anyio import to_process  # noqa: PLC0415 -- as above

    failure = Failure("error", "The tool's process could not be started.", shown=False)
    for again in reversed(range(_MAX_STARTS)):
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _MAX_START_SECONDS):
            try:
                await to_process.run_sync(_do_nothing, cancellable=True, limiter=_NO_LIMITER)
            except anyio.BrokenWorkerProcess as exc:
                if again:
                    continue
                raise ProcessFailure(failure, "the process could not be started", (kinds_of(exc),)) from exc
            return
        text = "the process did not start in time; is the main script guarded by `if __name__ == '__main__'`?"
        raise ProcessFailure(failure, text, (kinds_of(TimeoutError()),))


def kinds_of(exc: BaseException) -> Kinds:
    """Return the names of the class of `exc` and of its base classes. The main script is `__main__` on both sides."""
    return frozenset(
        ("__main__" if each.__module__ == "__mp_main__" else each.__module__, each.__qualname__)
        for each in type(exc).__mro__
    )


# ----------------------------------------------------------------------------------------- in the worker process


def _do_nothing() -> None:
    """Do nothing: that this can be called shows that the process has started."""


def run_handler(
    module: str,
    name: str,
    has_schema: bool,  # noqa: FBT001 -- sent
    arguments: str,
    carried: Sequence[CarriedBy] = (),
) -> RenderedResult | dict[str, Any]:
    """Run the handler in this process. Returns what it gave, or the fields of a `Failure` and more.

    With a failure come the names of its classes (`kinds`), its line and its traceback.
    """
    try:
        with _standard_streams_replaced(), continued_here(carried):
            call = _prepared(module, name, json.loads(arguments), has_schema=has_schema)
            rendered = render(call())
    except BaseException as exc:
        # A handler may raise anything, and nothing else runs in this process.
        failure = classify(exc)
        return {
            "reason": failure.reason,
            "error": failure.error,
            "retryable": failure.retryable,
            "shown": failure.shown,
            "kinds": tuple(kinds_of(each) for each in leaves_of(exc)),
            "raised": raised_at(exc),
            "traceback": "".join(traceback.format_exception(exc)).rstrip(),
        }
    # The secrets in it are in clear, like the arguments, and only for this process's parent.
    return rendered


def _prepared(module: str, name: str, arguments: dict[str, Any], *, has_schema: bool) -> Callable[[], Any]:
    found = _find(module, name)
    if isinstance(found, Tool):
        return cast("Tool", found).prepare(arguments, None)
    if has_schema:
        return functools.partial(found, **arguments)
    return _as_tool(found).prepare(arguments, None)


@functools.cache
def _find(module: str, name: str) -> Any:
    """Return what is defined under a handler's name: the handler, or the tool that the decorator made of it."""
    found: Any = importlib.import_module(module)
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as exc:
        raise ConfigurationError(
            f"the tool's process found no {name} in {module}; define it where an import of the module reaches it"
        ) from exc
    handler: Any = cast("Tool", found).handler if isinstance(found, Tool) else found
    if getattr(handler, "__qualname__", None) != name:
        raise ConfigurationError(f"{name} in {module} is {found!r} in the tool's process, and not the tool's handler")
    return cast("Any", found)


@functools.cache
def _as_tool(handler: Callable[..., Any]) -> Tool:
    return Tool("handler", handler=handler)


@contextlib.contextmanager
def _standard_streams_replaced() -> Generator[None]:
    """Keep the handler, and programs that it starts, from reading and writing the pipes to the parent process.

    The pipes are this process's standard streams. Meanwhile there is nothing to read, and output is dropped. Stderr,
    which is a pipe too, stays replaced afterwards: nobody reads it, and a full pipe would block every writer for ever.
    A fork of this process that returns from the handler ends here; otherwise it would answer calls as well.
    """
    process = os.getpid()
    kept = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(_exit_status(sys.exc_info()[1]))
        for number, pipe in enumerate(kept):
            os.dup2(pipe, number)
            os.close(pipe)


def _exit_status(exc: BaseException | None) -> int:
    """Return the exit status of a program that ends with `exc`."""
    code = exc.code if isinstance(exc, SystemExit) else None if exc is None else 1
    return code & 0xFF if isinstance(code, int) else int(code is not None)
