"""Tasks of toolbus in which the application's code has left a cancel scope or a task group open. Knows only anyio.

The usual case is a client that is opened lazily: `await self.group.__aenter__()` in a handler, without an `async with`
around it. From then on the cancel scope is part of the task. When the scope is cancelled (a task group cancels its
scope when one of its tasks fails), whatever the task does at that moment is cancelled. And a task that ends inside such
a scope breaks the task group that it belongs to, because anyio and trio raise `RuntimeError` then.

So such a task is stranded: it may neither run other code nor end. It waits, shielded, until its own task group is left.
The tasks in a group that was left open, such as the reader of a client's connection, run until then: ending them at
once would make a tool that works hang.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import anyio
import anyio.abc
import anyio.lowlevel


class _Stranded(Exception):
    """The end of a stranded task, inside a scope that was left open. Only `StrandedTasks.leave` sees this."""


class StrandedTasks:
    """The stranded tasks of one task group. Their number is its length."""

    __slots__ = ("_group", "_is_left", "_scopes")

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()

    async def open(self) -> anyio.abc.TaskGroup:
        """Make the task group and enter it. Its owner leaves it with `leave`."""
        self._group = anyio.create_task_group()
        self._is_left = False
        return await self._group.__aenter__()

    def __len__(self) -> int:
        return len(self._scopes)

    async def stay(self, failed: BaseException | None = None) -> NoReturn:
        """Keep this task until `leave`. Unless `failed` is a cancellation, another task of the group raises it."""
        if failed is not None and not isinstance(failed, anyio.get_cancelled_exc_class()):
            self._group.start_soon(raise_elsewhere, failed)
        if not self._is_left:
            scope = anyio.CancelScope(shield=True)
            self._scopes.add(scope)
            try:
                with scope:
                    while True:
                        # trio raises here when another task closes the group.
                        with contextlib.suppress(RuntimeError):
                            await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                # asyncio itself cancels the task when its loop ends.
                pass
            finally:
                self._scopes.discard(scope)
        raise _Stranded

    async def contain(
        self, on_left_open: Callable[[], object], work: Callable[..., Awaitable[Any]], *arguments: Any
    ) -> None:
        """Do `work` in this task. If it leaves a scope or a group open, call `on_left_open` and keep the task."""
        task, scope = trio_task(), anyio.CancelScope()
        failed: BaseException | None = None
        # A `with` block would leave the scope even while trio's task groups are open in it.
        scope.__enter__()
        try:
            await work(*arguments)
        except BaseException as exc:
            # This is raised again below.
            failed = exc
        if task is not None and task.child_nurseries:
            on_left_open()
            await self.stay(failed)
        try:
            scope.__exit__(None, None, None)
        except RuntimeError:
            on_left_open()
            await self.stay(failed)
        if failed is not None:
            raise failed

    async def leave(self) -> None:
        """Leave the task group and let the stranded tasks end. Raises what the group raises, without their errors."""
        self._is_left = True
        for scope in tuple(self._scopes):
            scope.cancel()
        try:
            # Without arguments, the group does not wrap the caller's exception.
            await self._group.__aexit__(None, None, None)
        except BaseExceptionGroup as errors:
            others = [each for each in errors.exceptions if not _is_stranded(each)]
            if len(others) == len(errors.exceptions):
                raise
            if others:
                raise BaseExceptionGroup(errors.message, others) from None
            # Those errors may have hidden a cancellation.
            await anyio.lowlevel.checkpoint_if_cancelled()


def asyncio_task() -> Any:
    """Return this task if it is asyncio's, and None on trio.

    The task's `cancelling()` is not 0 if code has cancelled the task that it runs in, and has not waited since.
    """
    import asyncio  # noqa: PLC0415 -- not before an event loop runs

    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def trio_task() -> Any:
    """Return this task if it is trio's, and None on asyncio.

    Trio cancels everything in a scope when a scope around it is left. Its tasks list the task groups that are open in
    them (`child_nurseries`), so these can be found without leaving a scope.
    """
    trio = sys.modules.get("trio")
    try:
        return None if trio is None else trio.lowlevel.current_task()
    except RuntimeError:
        return None


async def raise_elsewhere(exc: BaseException) -> None:
    """Raise `exc`, in its own task: an exception from a task with an open scope would not reach the group."""
    raise exc


def _is_stranded(exc: BaseException | None) -> bool:
    """Return whether `exc` was raised because a stranded task ended: it replaces `_Stranded`, which is its context."""
    while exc is not None and type(exc) is not _Stranded:
        exc = exc.__context__
    return exc is not None
