"""Tasks of ours in which other people's code has left a cancel scope or a task group open. Knows anyio alone.

The usual case is a client that is opened lazily: `await self.group.__aenter__()` in a handler, and no `async with`
around it. A cancel scope is part of its task from then on. When it is cancelled (a task group does that by itself when
one of its tasks fails), whatever the task does at that moment is cancelled. And a task that ends inside of such a scope
breaks the task group that it belongs to, since anyio and trio raise `RuntimeError` there.

So such a task may neither run anybody else's code nor end. It waits, shielded, until its own task group is left. Tasks
in a group that was left open, such as the reader of a client's connection, run on until then: to end them at once would
turn a tool that works into one that hangs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import anyio
import anyio.abc
import anyio.lowlevel

__all__ = ["StrandedTasks", "asyncio_task", "raise_elsewhere", "trio_task"]


class _Stranded(Exception):
    """A task has ended inside of a scope that was left open in it. Nothing but `StrandedTasks.leave` sees this."""


class StrandedTasks:
    """The tasks of one task group that cannot do anything else any more."""

    __slots__ = ("_group", "_is_left", "_scopes")

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()

    async def open(self) -> anyio.abc.TaskGroup:
        """Make the task group and enter it. Its owner leaves it by `leave`."""
        self._group = anyio.create_task_group()
        self._is_left = False
        return await self._group.__aenter__()

    def __len__(self) -> int:
        return len(self._scopes)

    async def stay(self, failed: BaseException | None = None) -> NoReturn:
        """Keep this task until `leave`. What it would have raised, unless it is a cancellation, another task raises."""
        if failed is not None and not isinstance(failed, anyio.get_cancelled_exc_class()):
            self._group.start_soon(raise_elsewhere, failed)
        if not self._is_left:
            scope = anyio.CancelScope(shield=True)
            self._scopes.add(scope)
            try:
                with scope:
                    while True:
                        with contextlib.suppress(RuntimeError):  # trio wakes it when another task closes the group
                            await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():  # by asyncio itself, whose loop ends
                pass
            finally:
                self._scopes.discard(scope)
        raise _Stranded

    async def contain(self, told: Callable[[], object], work: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Do `work` in this task. When it leaves something open, call `told` and keep the task."""
        task, scope = trio_task(), anyio.CancelScope()
        failed: BaseException | None = None
        scope.__enter__()  # by hand, as it is not left where trio's task groups are open
        try:
            await work(*arguments)
        except BaseException as exc:  # raised again below
            failed = exc
        if task is not None and task.child_nurseries:
            told()
            await self.stay(failed)
        try:
            scope.__exit__(None, None, None)
        except RuntimeError:
            told()
            await self.stay(failed)
        if failed is not None:
            raise failed

    async def leave(self) -> None:
        """Leave the task group and let these tasks end. Raises what it raises, without the errors of their ends."""
        self._is_left = True
        for scope in tuple(self._scopes):
            scope.cancel()
        try:
            await self._group.__aexit__(None, None, None)  # so that the caller's exception stays as it is, in no group
        except BaseExceptionGroup as errors:
            others = [each for each in errors.exceptions if not _is_stranded(each)]
            if len(others) == len(errors.exceptions):
                raise
            if others:
                raise BaseExceptionGroup(errors.message, others) from None
            await anyio.lowlevel.checkpoint_if_cancelled()  # which those errors may have hidden


def asyncio_task() -> Any:
    """Return this task where it is asyncio's, and None on trio.

    `cancelling` of it is not 0 when code has cancelled the task that it runs in, and not waited for that.
    """
    import asyncio  # noqa: PLC0415 -- not before an event loop runs

    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def trio_task() -> Any:
    """Return this task where it is trio's, and None on asyncio.

    Trio cancels what is in a scope when a scope around it is left. Its tasks name the task groups that are open in them
    (`child_nurseries`), so there is no need to leave a scope to find these.
    """
    trio = sys.modules.get("trio")
    try:
        return None if trio is None else trio.lowlevel.current_task()
    except RuntimeError:
        return None


async def raise_elsewhere(exc: BaseException) -> None:
    """Raise `exc`, in a task of its own: what a task raises inside of a scope that was left open arrives nowhere."""
    raise exc


def _is_stranded(exc: BaseException | None) -> bool:
    """Whether `exc` comes of a task's end in a scope that was left open: it is raised in the place of ours."""
    while exc is not None and type(exc) is not _Stranded:
        exc = exc.__context__
    return exc is not None
