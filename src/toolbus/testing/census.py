"""A census: what is still there at a test's end. Knows the bus's statistics and anyio's list of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import anyio
import anyio.lowlevel

from ..bus import EventBus

__all__ = ["assert_idle"]

_CHECKPOINTS = 20
"""Steps for what is about to end, to end: a task group's last child needs two or three."""


async def assert_idle(*buses: EventBus, ignore: Iterable[anyio.TaskInfo] = ()) -> None:
    """Fail unless nothing is left: no task, and on `buses` no request, no open call and no subscription.

    Of tasks, the current one and its ancestors may be there, the test runner's own, and those in `ignore` (take
    `anyio.get_running_tasks()` at the beginning where fixtures of a wider scope keep tasks). Gives way a few times
    first, for what is about to end. Raises `AssertionError`, which names everything that is left.
    """
    known = {task.id for task in ignore}
    left: list[str] = []
    for _ in range(_CHECKPOINTS):
        await anyio.lowlevel.checkpoint()
        left = [f"task {task.name}" for task in _tasks_left() if task.id not in known]
        for bus in buses:
            left += _left_on(bus)
        if not left:
            return
    raise AssertionError("left over: " + "; ".join(left))


def _left_on(bus: EventBus) -> list[str]:
    statistics = bus.statistics()
    left: list[str] = []
    if statistics.mailboxes:
        left.append(f"{statistics.mailboxes} request(s) that did not end")
    if statistics.open_calls:
        left.append(f"{statistics.open_calls} open call(s)")
    left += [f"subscription {each.name or '(unnamed)'}" for each in statistics.subscriptions]
    return left


def _tasks_left() -> list[anyio.TaskInfo]:
    """The tasks that are neither ours, nor above us, nor the event loop's or the test runner's own."""
    tasks = {task.id: task for task in anyio.get_running_tasks()}
    ours = _chain(tasks, anyio.get_current_task().id)
    if _on_asyncio():
        # anyio's pytest plugin waits for the test in a task of its own, which is nobody's parent.
        return [
            task
            for task in tasks.values()
            if task.id not in ours and getattr(task.coro, "__name__", "") != "_call_in_runner_task"
        ]
    # The root is trio's own, and so are its other children: what is ours hangs below the main task.
    main = ours[-2] if len(ours) > 1 else ours[-1]
    return [task for task in tasks.values() if task.id not in ours and main in _chain(tasks, task.id)]


def _chain(tasks: dict[int, anyio.TaskInfo], task_id: int) -> list[int]:
    """A task and those above it, upwards."""
    chain: list[int] = []
    above: int | None = task_id
    while above is not None and above not in chain:
        chain.append(above)
        above = tasks[above].parent_id if above in tasks else None
    return chain


def _on_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
