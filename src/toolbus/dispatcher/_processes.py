"""Handlers in processes of their own, which are killed when their call is cancelled, and what both sides say.

Knows tools and anyio's worker processes. What travels is plain data: the handler goes by its name, the arguments as
JSON, a result already rendered, and a failure in words. Both sides are here: `run_in_process` in this process, and
`run_handler` in the other one.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias, cast

import anyio

from ..errors import ConfigurationError
from ..events import Artifact
from ..failures import Failure, ReportedFailure, classify, leaves_of
from ..messages import FilePart, ImagePart, Part
from ..tool_results import Rendered, render
from ..tools import Tool

__all__ = ["Kinds", "ProcessFailure", "kinds_of", "run_handler", "run_in_process"]

Kinds: TypeAlias = frozenset[tuple[str, str]]
"""What an exception of another process is: module and qualified name of its class and of all above it."""


class ProcessFailure(ReportedFailure):
    """A handler failed in its process, or the process did. The text is the traceback's, as it was there.

    `kinds` has an entry for each exception: one, but for a handler that raised a group.
    """

    def __init__(self, failure: Failure, text: str, kinds: tuple[Kinds, ...]) -> None:
        super().__init__(failure, text)
        self.kinds = kinds


async def run_in_process(tool: Tool[..., Any], arguments: Mapping[str, Any]) -> Rendered:
    """Run the handler of `tool` in one of anyio's worker processes, which are kept until the event loop ends.

    Returns what it returned, rendered. When cancelled, kills the process and waits until it is gone. Raises
    `InvalidArguments`, before a process is asked, and `ProcessFailure`. How many run at once is the caller's to bound.
    """
    tool.prepare(arguments, None)  # cheaper here than there
    from anyio import to_process  # noqa: PLC0415 -- a twentieth of toolbus's import, for those who need it

    handler: Any = tool.handler
    await _have_one()
    try:
        reply = await to_process.run_sync(
            run_handler,
            handler.__module__,
            handler.__qualname__,
            tool.has_schema,
            json.dumps(arguments),
            cancellable=True,
            limiter=_NO_LIMITER,
        )
    except anyio.BrokenWorkerProcess as exc:
        failure = Failure("error", "The tool's process ended before it answered.", shown=False, unknown=True)
        raise ProcessFailure(failure, "the process ended before it answered", (kinds_of(exc),)) from exc
    if "content" in reply:
        reply["artifacts"] = tuple(Artifact(**each) for each in reply["artifacts"])
        reply["parts"] = tuple(_PARTS[each["type"]](**each) for each in reply["parts"])
        return Rendered(**reply)
    kinds = reply.pop("kinds")
    text = reply.pop("traceback")
    raise ProcessFailure(Failure(**reply), text, kinds)


_PARTS: dict[str, Callable[..., Part]] = {"image": ImagePart, "file": FilePart}
_NO_LIMITER = cast("anyio.CapacityLimiter", contextlib.nullcontext())  # one would wait: see `_have_one`
_MOST_START_SECONDS = 30.0  # anyio waits 20 s for the interpreter; the rest is for importing the main script
_MOST_STARTS = 3  # an idle process may have died unnoticed; then the next one is asked


async def _have_one() -> None:
    """See to it that there is an idle process, alive: the next call takes it, if it comes without waiting for anything.

    So a process that died while it was idle fails nobody's call, and none is lost: anyio forgets a process whose start
    is cancelled, and it would stay for as long as this one. Hence a cancellation waits for the start to end. Costs one
    exchange with the process, of some 0.1 ms, and its start when there is none, of some 300 ms.
    """
    from anyio import to_process  # noqa: PLC0415 -- as above

    failure = Failure("error", "The tool's process could not be started.", shown=False)
    for again in reversed(range(_MOST_STARTS)):
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _MOST_START_SECONDS):
            try:
                await to_process.run_sync(_greet, cancellable=True, limiter=_NO_LIMITER)
            except anyio.BrokenWorkerProcess as exc:
                if again:
                    continue
                raise ProcessFailure(failure, "the process could not be started", (kinds_of(exc),)) from exc
            return
        text = "the process did not start in time; is the main script guarded by `if __name__ == '__main__'`?"
        raise ProcessFailure(failure, text, (kinds_of(TimeoutError()),))


def kinds_of(exc: BaseException) -> Kinds:
    """The names of the class of `exc` and of all above it. The main script is `__main__` on both sides."""
    return frozenset(
        ("__main__" if each.__module__ == "__mp_main__" else each.__module__, each.__qualname__)
        for each in type(exc).__mro__
    )


# ------------------------------------------------------------------------------------------------- over there


def _greet() -> None:
    """Nothing: the process has started."""


def run_handler(module: str, name: str, has_schema: bool, arguments: str) -> dict[str, Any]:  # noqa: FBT001 -- sent
    """Run the handler in this process. Returns the fields of a `Rendered`, or those of a `Failure` and more."""
    try:
        with _streams_apart():
            call = _prepared(module, name, json.loads(arguments), has_schema=has_schema)
            rendered = render(call())
    except BaseException as exc:  # a handler may raise anything, and this process is nobody's but its own
        failure = classify(exc)
        return {
            "reason": failure.reason,
            "error": failure.error,
            "retryable": failure.retryable,
            "shown": failure.shown,
            "kinds": tuple(kinds_of(each) for each in leaves_of(exc)),
            "traceback": "".join(traceback.format_exception(exc)).rstrip(),
        }
    return {
        "content": rendered.content,
        "data": rendered.data,
        "artifacts": [asdict(each) for each in rendered.artifacts],
        "affected": rendered.affected,
        "parts": [asdict(each) for each in rendered.parts],
        "message": rendered.message,
        "secrets": rendered.secrets,  # in clear, like the arguments, and for this process's parent alone
    }


def _prepared(module: str, name: str, arguments: dict[str, Any], *, has_schema: bool) -> Callable[[], Any]:
    found = _find(module, name)
    if isinstance(found, Tool):
        return cast("Tool[..., Any]", found).prepare(arguments, None)
    if has_schema:
        return functools.partial(found, **arguments)
    return _as_tool(found).prepare(arguments, None)


@functools.cache
def _find(module: str, name: str) -> Any:
    """What stands at a handler's name: the handler, or the tool that the decorator has put there."""
    found: Any = importlib.import_module(module)
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as exc:
        raise ConfigurationError(f"a process has no {name} in {module}: is it defined when that is imported?") from exc
    handler: Any = cast("Tool[..., Any]", found).handler if isinstance(found, Tool) else found
    if getattr(handler, "__qualname__", None) != name:
        raise ConfigurationError(f"{name} in {module} is {found!r} in a process, and not the tool's handler")
    return cast("Any", found)


@functools.cache
def _as_tool(handler: Callable[..., Any]) -> Tool[..., Any]:
    return Tool("handler", handler=handler)


@contextlib.contextmanager
def _streams_apart() -> Generator[None]:
    """Keep the handler, and programs that it starts, from reading and writing the pipes to the other process.

    These are this process's standard streams. Meanwhile there is nothing to be read, and what is written is dropped. So
    it stays with stderr, which is a pipe too: nobody reads it, and a full one would hold every writer for ever. A fork
    of the process that comes back from the handler ends here, or it would answer calls as well.
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
    """That of a program which ends with `exc`."""
    code = exc.code if isinstance(exc, SystemExit) else None if exc is None else 1
    return code & 0xFF if isinstance(code, int) else int(code is not None)
