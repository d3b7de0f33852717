"""The tools that `check_executor` calls: plain functions, to be registered wherever an executor runs its tools.

    ToolRegistry(CONTRACT_TOOLS)

Handlers record what happens to them, and wait until they are released, under keys that the suite makes up. This module
keeps the notes and releases of one process; the suite reads those of another process by calls of `contract_notes` and
`contract_release`. Every other tool depends only on its arguments.

Example:
    from toolbus.testing.contract_tools import CONTRACT_TOOLS

    print("contract_external" in [tool.name for tool in CONTRACT_TOOLS])  # True
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias

import anyio
import anyio.from_thread
import anyio.lowlevel

from ..errors import ToolError, ToolRetry
from ..events import Artifact
from ..messages import ImagePart
from ..tool_results import ToolResult
from ..tools import Tool, ToolContext, ToolRegistry

__all__ = ["CONTRACT_TOOLS"]

# A handler that cannot be stopped holds at most this long, if nobody releases it.
_MAX_SECONDS = 30.0
# Calls that wait for each other wait this long, because the others may not come.
_MEETING_SECONDS = 2.0

Way: TypeAlias = Literal["tool_error", "retry", "error", "base_exception", "exit"]


class ContractExit(BaseException):
    """An exception outside `Exception` that does not harm an event loop which it reaches."""


class _Board:
    """The notes of handlers, and the keys that are released. Safe for all threads and event loops of this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._notes: dict[str, list[str]] = {}
        self._released: set[str] = set()
        self._inside: dict[str, int] = {}
        self._waiting: list[tuple[Any, anyio.Event]] = []

    def note(self, key: str, text: str) -> None:
        with self._changed:
            self._notes.setdefault(key, []).append(text)
        self._wake()

    def notes(self, key: str) -> list[str]:
        with self._changed:
            return [*self._notes.get(key, ())]

    def release(self, key: str) -> None:
        with self._changed:
            self._released.add(key)
        self._wake()

    def is_released(self, key: str) -> bool:
        return key in self._released

    def enter(self, key: str) -> int:
        """Count one more call inside, and return how many there are."""
        with self._changed:
            self._inside[key] = inside = self._inside.get(key, 0) + 1
        return inside

    def leave(self, key: str) -> None:
        with self._changed:
            self._inside[key] -= 1

    async def change(self) -> None:
        """Wait for the next change.

        A caller that reads the board and then calls this misses no change, because nothing yields in between.
        """
        waiting = (anyio.lowlevel.current_token(), anyio.Event())
        with self._changed:
            self._waiting.append(waiting)
        try:
            await waiting[1].wait()
        finally:
            with self._changed:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)

    def hold_thread(self, key: str) -> None:
        """Block this thread until the key is released, or for `_MAX_SECONDS`."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._released, _MAX_SECONDS)

    def _wake(self) -> None:
        with self._changed:
            waiting, self._waiting = self._waiting, []
            self._changed.notify_all()
        try:
            here = anyio.lowlevel.current_token()
        except anyio.NoEventLoopError:
            here = None
        for token, event in waiting:
            if token == here:
                event.set()
            else:
                with contextlib.suppress(anyio.RunFinishedError):
                    anyio.from_thread.run_sync(event.set, token=token)


_board = _Board()
_mark: ContextVar[str] = ContextVar("contract_mark", default="")

# --------------------------------------------------------------------------------------- tools that return or fail


async def contract_echo(said: str) -> str:
    """Return a text."""
    return said


def contract_echo_sync(said: str) -> str:
    """Return a text, from a function that is not async."""
    return said


async def contract_value(value: dict[str, Any] | None = None) -> Any:
    """Return an object, or nothing."""
    return value


async def contract_result(message: str, data: dict[str, Any]) -> ToolResult:
    """Return a result with every field."""
    return ToolResult(
        message=message,
        data=data,
        artifacts=[Artifact(name="notes.txt", content="kept 😀")],
        affected=["a.txt", "b.txt"],
        parts=[ImagePart(url="data:image/png;base64,aGVsbG8=")],
    )


async def contract_unwritable(kind: Literal["bytes", "cycle"]) -> Any:
    """Return a value that JSON does not have."""
    if kind == "bytes":
        return b"\x00\xff"
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


async def contract_fail(way: Way, text: str) -> None:
    """Fail."""
    _fail(way, text)


def contract_fail_sync(way: Way, text: str) -> None:
    """Fail, in a function that is not async."""
    _fail(way, text)


def _fail(way: Way, text: str) -> None:
    kinds: dict[Way, type[BaseException]] = {
        "tool_error": ToolError,
        "retry": ToolRetry,
        "error": RuntimeError,
        "base_exception": ContractExit,
        "exit": SystemExit,
    }
    raise kinds[way](text)


async def contract_add(a: int, b: int, key: str = "") -> int:
    """Add two numbers, and note the call."""
    _board.note(key, "ran")
    return a + b


async def contract_scribble(items: list[int], inner: dict[str, Any]) -> int:
    """Change the arguments, as handlers may."""
    count = len(items)
    items.clear()
    inner.clear()
    return count


# ------------------------------------------------------------------------------------------------- tools that wait


async def contract_hold(key: str, deaf: bool = False) -> str:  # noqa: FBT001, FBT002 -- a tool's argument
    """Hold until the key is released. A `deaf` call holds even when it is cancelled."""
    _board.note(key, "began")
    try:
        with anyio.move_on_after(_MAX_SECONDS if deaf else None, shield=deaf):
            while not _board.is_released(key):
                await _board.change()
    except BaseException:
        _board.note(key, "stopped")
        raise
    _board.note(key, "ended")
    return f"held {key}"


def contract_hold_sync(key: str) -> str:
    """Hold a thread until the key is released."""
    _board.note(key, "began")
    _board.hold_thread(key)
    return f"held {key}"


async def contract_meet(key: str, wanted: int) -> int:
    """Wait until `wanted` calls are inside at once, for at most two seconds; return how many were."""
    inside = _board.enter(key)
    try:
        if inside >= wanted:
            _board.release(key)
        with anyio.move_on_after(_MEETING_SECONDS):
            while not _board.is_released(key):
                await _board.change()
        # One call too many can come in while this one is inside.
        await anyio.lowlevel.checkpoint()
    finally:
        _board.leave(key)
    return inside


async def contract_notes(key: str, count: int = 0, seconds: float = 0.0) -> list[str]:
    """Return the notes under a key, once there are `count` of them, or after `seconds`."""
    with anyio.move_on_after(seconds):
        while len(_board.notes(key)) < count:
            await _board.change()
    return _board.notes(key)


async def contract_release(key: str) -> None:
    """Release every handler that holds under a key, now and later."""
    release(key)


def release(key: str) -> None:
    """Release a key at once; for the suite, in this process."""
    _board.release(key)


# -------------------------------------------------------------------------------- tools that use their context


async def contract_about(context: ToolContext[Any]) -> dict[str, Any]:
    """Return the fields of the call's context."""
    return {
        "request_id": context.request_id,
        "conversation_id": context.conversation_id,
        "call_id": context.call_id,
        "name": context.name,
        "idempotency_key": context.idempotency_key,
        "metadata": None if context.metadata is None else dict(context.metadata),
    }


async def contract_mark(text: str) -> str:
    """Set a context variable, and return its previous value."""
    before = _mark.get()
    _mark.set(text)
    await anyio.lowlevel.checkpoint()
    return before


async def contract_progress(message: str, context: ToolContext[Any]) -> str:
    """Report progress, twice."""
    await context.progress(message, done=1, total=2)
    await context.progress(message, done=2, total=2)
    return "done"


async def contract_elsewhere() -> str:
    """Do nothing: the tool of another pool."""
    return "run in the wrong pool"


def _any(arguments: Mapping[str, Any]) -> None:
    """Accept any arguments: the validator of the tool that others answer."""


_HANDLERS: tuple[Callable[..., Any], ...] = (
    contract_echo,
    contract_echo_sync,
    contract_value,
    contract_result,
    contract_unwritable,
    contract_fail,
    contract_fail_sync,
    contract_add,
    contract_scribble,
    contract_hold,
    contract_hold_sync,
    contract_meet,
    contract_notes,
    contract_release,
    contract_about,
    contract_mark,
    contract_progress,
)

CONTRACT_TOOLS: tuple[Tool, ...] = (
    *ToolRegistry(_HANDLERS),
    Tool("contract_external", "A tool that others answer.", {"type": "object"}, validate=_any, external=True),
    Tool(handler=contract_elsewhere, pool="contract-elsewhere"),
)
"""All of the tools, including two that an executor has to leave to others: `contract_external`, which has no handler,
and `contract_elsewhere`, which runs in another pool."""
