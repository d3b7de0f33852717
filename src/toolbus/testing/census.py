"""A census: the tasks, requests, threads and processes that are still there at a test's end.

The module knows the bus's statistics, anyio's tasks, the threads of its pools and of this process, and the child
processes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeAlias

import anyio
import anyio.lowlevel
import anyio.to_process

from ..bus import EventBus
from ._virtual_loop import suspended_at

__all__ = ["Census", "Remains", "assert_idle"]

_CHECKPOINTS = 20
"""Checkpoints that anything about to end gets to end: a task group's last child needs two or three."""

_PATIENCE_SECONDS = 10.0
"""Real seconds in which a thread or process that has answered may end, on a machine that also stands still."""
_LOOKS = 200
"""The least number of looks in that time: while this process stands still, its threads cannot end either."""
_POLL_SECONDS = 0.001

_POOLS = frozenset({"concurrent.futures.thread", "trio._core._thread_cache", "asyncio.unix_events"})
"""Modules whose code an idle thread of a pool runs; or, for the last one, a thread that waits for a child process. The
child process is counted itself."""

Remains: TypeAlias = Literal["tasks", "threads", "processes", "buses"]
"""The kinds of remains: see `Census`."""

_Left: TypeAlias = tuple[Remains, str]


async def assert_idle(*buses: EventBus, ignore: Iterable[anyio.TaskInfo] = ()) -> None:
    """Fail unless nothing is left: no task, and on `buses` no request, no open call and no subscription.

    These tasks may remain: the current one and its ancestors, the test runner's own, and those in `ignore` (pass
    `anyio.get_running_tasks()` from the beginning of the test if fixtures of a wider scope keep tasks). First yields to
    the event loop a few times, for anything that is about to end. Raises `AssertionError`, which names everything that
    is left. For threads and processes see `Census`.

    Example:
        from toolbus import EventBus
        from toolbus.testing.census import assert_idle

        bus = EventBus()
        await assert_idle(bus)  # at the end of a test: no task or request still runs, and no subscription is open
    """
    known = _held(ignore)
    await _assert_none(lambda: _remains(known, buses), ())


class Census:
    """A snapshot of everything that exists when it is made, inside an event loop, to find what a test leaves over.

        census = Census()
        ...
        await census.assert_nothing_left(bus)

    Anything that was there before does not count. Threads and processes may stay if they wait in a pool to be used
    again (anyio's, trio's, an executor's), because they end with the event loop. A thread that works counts, whether
    anybody waits for it or not, and so does any thread outside a pool. A child process that has ended also counts if
    nobody has waited for it. Processes are seen only on Linux.

    Example:
        from toolbus import Runtime
        from toolbus.testing.census import Census
        from toolbus.testing import ScriptedProvider, text

        census = Census()
        async with Runtime(ScriptedProvider([text("Hello.")])) as runtime:
            await runtime.run("Hello?")
        await census.assert_nothing_left()
    """

    def __init__(self) -> None:
        self._tasks = _held(anyio.get_running_tasks())
        self._working = _settled_threads()
        self._children = _children()

    async def assert_nothing_left(self, *buses: EventBus, but: Collection[Remains] = ()) -> None:
        """Fail as `assert_idle` does, and also for threads that work and for child processes.

        `but` names kinds of remains that are permitted. Takes about 0.1 ms if nothing is left.
        """
        await _assert_none(lambda: self._remains(buses), but)

    def _remains(self, buses: Iterable[EventBus]) -> Iterator[_Left]:
        yield from _remains(self._tasks, buses)
        for thread in _working_threads():
            if thread not in self._working:
                yield "threads", f"thread {thread.name} {_location(thread)}"
        for pid in sorted(_children() - self._children - _pooled_processes()):
            yield "processes", f"process {pid}"


async def _assert_none(remains: Callable[[], Iterator[_Left]], but: Collection[Remains]) -> None:
    patience_ends = 0.0
    steps = looks = 0
    while True:
        await anyio.lowlevel.checkpoint()
        left = [each for each in remains() if each[0] not in but]
        if not left:
            return
        steps += 1
        if steps < _CHECKPOINTS:
            continue
        patience_ends = patience_ends or time.monotonic() + _PATIENCE_SECONDS
        looks += 1
        is_over = looks > _LOOKS and time.monotonic() > patience_ends
        if is_over or not any(kind in {"threads", "processes"} for kind, _ in left):
            raise AssertionError("left over: " + "; ".join(said for _, said in left))
        time.sleep(_POLL_SECONDS)  # noqa: ASYNC251 -- real time; the event loop's may be virtual


_Known: TypeAlias = Mapping[int, object]


def _held(tasks: Iterable[anyio.TaskInfo]) -> _Known:
    """Return tasks by the id of their coroutine, and keep the coroutine, because Python reuses ids of freed objects."""
    return {id(task.coro): task.coro for task in tasks}


def _remains(known_tasks: _Known, buses: Iterable[EventBus]) -> Iterator[_Left]:
    for task in _tasks_left():
        if id(task.coro) not in known_tasks:
            yield "tasks", f"task {task.name} at {suspended_at(task.coro)}"
    for bus in buses:
        for said in _left_on(bus):
            yield "buses", said


def _left_on(bus: EventBus) -> list[str]:
    statistics = bus.statistics()
    left: list[str] = []
    if statistics.mailboxes:
        left.append(f"{statistics.mailboxes} request(s) that did not end")
    if statistics.open_calls:
        left.append(f"{statistics.open_calls} open call(s)")
    left += [f"subscription {each.name or '(unnamed)'}" for each in statistics.subscriptions]
    return left


# ------------------------------------------------------------------------------------------------- tasks


def _tasks_left() -> list[anyio.TaskInfo]:
    """Return the tasks that are not the current one, its ancestors, the event loop's or the test runner's own."""
    tasks = {task.id: task for task in anyio.get_running_tasks()}
    ours = _chain(tasks, anyio.get_current_task().id)
    if _on_asyncio():
        return [
            task
            for task in tasks.values()
            if task.id not in ours and getattr(task.coro, "__name__", "") not in _OF_ASYNCIO
        ]
    # The root and its other children are trio's own; the test's tasks are all below the main task.
    main = ours[-2] if len(ours) > 1 else ours[-1]
    return [task for task in tasks.values() if task.id not in ours and main in _chain(tasks, task.id)]


_OF_ASYNCIO = frozenset({"_call_in_runner_task", "_shutdown_process_pool_on_exit"})
"""Tasks that anyio starts besides the test's, without a parent: its pytest plugin waits for the test in one of them,
and another one ends the pool of processes with the event loop."""


def _chain(tasks: dict[int, anyio.TaskInfo], task_id: int) -> list[int]:
    """Return the ids of a task and its ancestors, upwards."""
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


# ------------------------------------------------------------------------------------------------- threads


def _working_threads() -> list[threading.Thread]:
    """Return all threads except this one that do something, whoever started them."""
    here = threading.current_thread()
    others = [each for each in threading.enumerate() if each is not here]
    frames = _frames() if others else {}
    return [each for each in others if _works(each, frames.get(each.ident or 0))]


def _settled_threads() -> set[threading.Thread]:
    """Return the working threads, except threads of a pool that have answered and are about to be idle."""
    working = set(_working_threads())
    for _ in range(_CHECKPOINTS):
        if not any(hasattr(each, "queue") for each in working):
            break
        time.sleep(_POLL_SECONDS)
        working.intersection_update(_working_threads())
    return working


def _works(thread: threading.Thread, frame: FrameType | None) -> bool:
    """Return whether a thread does something; False if it waits in a pool to be used.

    For anyio's threads on asyncio the answer is exact: work comes through a `queue.Queue`, which knows whether the work
    it gave out is done. For others the innermost code that they run decides: an idle thread runs its pool's own code.
    """
    unfinished: int | None = getattr(getattr(thread, "queue", None), "unfinished_tasks", None)
    if unfinished is not None:
        return unfinished > 0
    return frame is None or frame.f_globals.get("__name__") not in _POOLS


def _frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by the thread's ident."""
    return sys._current_frames()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- documented, for such uses


def _location(thread: threading.Thread) -> str:
    frame = _frames().get(thread.ident or 0)
    if frame is None:
        return "(about to end)"
    return f"in {frame.f_code.co_qualname} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"


# ------------------------------------------------------------------------------------------------- processes


def _children() -> set[int]:
    """Return the process ids of this process's children, of any thread; empty except on Linux, which lists them."""
    if sys.platform != "linux":
        return set()
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # takes a microsecond, and reaps no process
    except ChildProcessError:
        return set()  # there are no children
    children: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            children.update(map(int, path.read_text(encoding="ascii").split()))
        except OSError:  # the thread has ended meanwhile
            continue
    return children


def _pooled_processes() -> set[int]:
    """Return anyio's idle worker processes. anyio does not publish them; if it renames them, they count as left."""
    pool: Any = getattr(anyio.to_process, "_process_pool_idle_workers", None)
    try:
        return set() if pool is None else {process.pid for process, _ in pool.get()}
    except LookupError:  # no worker process was ever started on this loop
        return set()
