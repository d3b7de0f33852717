"""The tasks that run calls: reused, since a new task costs more than most handlers, and ended when they are too many.

Knows anyio. Must not know calls: the dispatcher defines what a worker takes and how that is run.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Literal, NoReturn, TypeAlias, TypeVar

import anyio
import anyio.lowlevel

from .._open_scopes import asyncio_task, trio_task
from ..failures import is_being_cancelled

T = TypeVar("T")

# So many idle workers are kept for reuse, and the surplus of a burst ends. An idle worker takes about 4 KiB.
_MAX_IDLE = 256


Then: TypeAlias = Literal["next", "end", "stay"]
"""The next step of a worker after a call: take the next call, end, or stay without one (`toolbus._open_scopes`)."""


class Worker:
    """A task that runs one call after the other. `scope` is the cancel scope of its newest call."""

    __slots__ = ("asyncio_task", "coming", "job", "scope", "trio_task", "wake")

    def __init__(self) -> None:
        self.job: Any = None  # the call that it runs now
        self.scope = anyio.CancelScope()
        self.asyncio_task: Any = None
        self.trio_task: Any = None
        self.wake = anyio.Event()
        self.coming = False  # whether it was called and has not begun to take calls yet


class WorkerPool(Generic[T]):
    """The workers of one dispatcher. They take the jobs in `ready`, in order.

    `perform(job, worker)` runs a job, and returns what its worker does next. `give_up(job)` ends a job that is ready
    when the host is cancelled. `start(function, worker)` starts a task. `stay()` keeps the task of a worker that has to
    stay. `idle` holds the workers that wait to be called.
    """

    __slots__ = ("_coming", "_give_up", "_perform", "_ready", "_start", "_stay", "_workers", "idle", "is_open")

    def __init__(
        self,
        ready: deque[T],
        perform: Callable[[T, Worker], Awaitable[Then]],
        give_up: Callable[[T], None],
        start: Callable[..., Any],
        stay: Callable[[], Awaitable[NoReturn]],
    ) -> None:
        self._ready = ready
        self._perform = perform
        self._give_up = give_up
        self._start = start
        self._stay = stay
        self._coming = 0
        self._workers: set[Worker] = set()
        self.idle: list[Worker] = []
        self.is_open = False

    def call(self, wanted: int) -> None:
        """Make sure that at least `wanted` workers are about to take jobs.

        A worker takes call after call as long as handlers end without waiting. Before the first handler that waits,
        the worker calls as many others as there are calls left. So handlers that do not wait cost no task switch each.
        """
        while self._coming < wanted and self.is_open:
            self._coming += 1
            if self.idle:
                worker = self.idle.pop()
                worker.coming = True
                worker.wake.set()
            else:
                worker = Worker()
                worker.coming = True
                self._start(self._work, worker)

    def on_wait(self) -> None:
        """Call workers for the other calls that are ready: a handler is about to wait."""
        if self._ready:
            self.call(len(self._ready))

    def running(self) -> list[T]:
        """Return the jobs that run now. Costs O(workers)."""
        return [worker.job for worker in self._workers if worker.job is not None]

    def close(self) -> None:
        """End the jobs that are ready and have not begun; the workers themselves end with their task group."""
        self.is_open = False
        self._give_up_ready()
        self.idle.clear()

    async def _work(self, worker: Worker) -> None:
        self._workers.add(worker)
        worker.asyncio_task, worker.trio_task = asyncio_task(), trio_task()
        stays = False
        try:
            stays = await self._take_calls(worker)
        finally:
            self._workers.discard(worker)
            self._retire(worker, is_host_cancelled=not stays and is_being_cancelled())
        if stays:
            await self._stay()

    async def _take_calls(self, worker: Worker) -> bool:
        """Run call after call. Returns whether the worker has to stay."""
        while not is_being_cancelled():
            self._arrive(worker)
            while self._ready:
                # A local variable would keep the last job alive.
                worker.job = self._ready.popleft()
                then = await self._perform(worker.job, worker)
                worker.job = None
                if then != "next":
                    return then == "stay"
                if worker.asyncio_task is not None and worker.asyncio_task.cancelling():
                    # The handler has cancelled its task by hand. The cancellation arrives at the next wait, and a task
                    # that ends before would cancel its task group.
                    with contextlib.suppress(anyio.get_cancelled_exc_class()):
                        await anyio.lowlevel.checkpoint()
                    return False
            if len(self.idle) >= _MAX_IDLE:
                break
            worker.wake = type(worker.wake)()  # `anyio.Event` looks for the backend each time.
            self.idle.append(worker)
            await worker.wake.wait()
        return False

    def _arrive(self, worker: Worker) -> None:
        if worker.coming:
            worker.coming = False
            self._coming -= 1

    def _retire(self, worker: Worker, *, is_host_cancelled: bool) -> None:
        """Note that a worker takes no more jobs; those that are ready go to another worker, or end with the host."""
        self._arrive(worker)
        with contextlib.suppress(ValueError):
            self.idle.remove(worker)
        if is_host_cancelled:
            self._give_up_ready()
        elif self._ready:
            self.call(1)

    def _give_up_ready(self) -> None:
        while self._ready:
            self._give_up(self._ready.popleft())
