"""Which call may run now: gates that bound how many do something at once, and the calls that wait for them in order.

Knows a call, its tool and its gates. Starts no task, publishes nothing and keeps no timers: the dispatcher does.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

import anyio

if TYPE_CHECKING:
    from ..events import Spent, ToolCallRequested
    from ..protocols import RequestView
    from ..tools import Tool
    from ._thread_run import ThreadRun
    from ._workers import Worker

__all__ = ["Flight", "Gate", "Job", "Key", "Schedule"]

Key: TypeAlias = tuple[str, str]
"""A call among all of the bus: its request's id and its own."""


class Gate:
    """A bound on how many calls do something at once, and those that wait for it, in order."""

    __slots__ = ("capacity", "peak", "used", "waiting")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.peak = 0
        self.waiting: OrderedDict[Job, None] = OrderedDict()  # leaving from the middle costs no search


class Job:
    """One call on its way through the dispatcher. Made in the stack of the session that asks.

    `arguments` are the request's own where it runs in this process: anybody may change those of the event.
    What most calls never have is the class's until it is set: that costs nothing to make.
    """

    attempt = 1
    back: anyio.Event | None = None  # set when it has its places again
    flight: Flight | None = None  # the equal calls that share one run
    held: tuple[Gate, ...] = ()  # where it has its places: in all of its gates, or in none
    outside = 0  # how many of its handler's tasks have stepped out
    run: ThreadRun | None = None  # a thread that was given up and still runs
    settled = False  # it has its terminal event, ours or somebody else's
    spent: Spent | None = None  # by the requests that its handler has made
    started_at = 0.0
    waits_at: Gate | None = None
    worker: Worker | None = None

    def __init__(
        self,
        request: ToolCallRequested,
        tool: Tool[..., Any],
        gates: tuple[Gate, ...],
        view: RequestView | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.request = request
        self.arguments: Mapping[str, Any] = request.arguments if arguments is None else arguments
        self.view = view  # of the request that called, where it runs in this process
        self.tool = tool
        self.gates = gates
        self.context = contextvars.copy_context()  # the caller's: this runs in the session's stack
        self.key: Key = (request.request_id, request.call_id)

    @property
    def stops(self) -> bool:
        """Whether no handler of its request may begin any more: the session is about to settle the call."""
        return self.view is not None and self.view.stops


class Flight:
    """Equal calls: one that runs, and those that wait for its result, in order. Each job knows the flight it is in."""

    __slots__ = ("followers", "key", "leader")

    def __init__(self, key: Any, leader: Job) -> None:
        self.key = key
        self.leader = leader
        self.followers: OrderedDict[Job, None] = OrderedDict()


class Schedule:
    """The gates of one dispatcher. A call takes a place in each of its gates, or waits at the first full one.

    `ready` are the calls that have their places, in order; `on_ready(1)` is called for each that joins them. `queued`
    counts those that wait. A call whose handler waits for other calls steps out meanwhile, so that they can have its
    places; `outside` counts those. Nothing here suspends or raises, but for `step_in`, and each step costs O(gates of a
    call), of which there are three at most.
    """

    __slots__ = (
        "_on_ready",
        "_per_tool",
        "everything",
        "outside",
        "processes",
        "queued",
        "queued_peak",
        "ready",
        "threads",
    )

    def __init__(
        self,
        max_concurrency: int,
        max_threads: int,
        max_processes: int,
        ready: deque[Job],
        on_ready: Callable[[int], object],
    ) -> None:
        self.everything = Gate(max_concurrency)
        self.threads = Gate(max_threads)
        self.processes = Gate(max_processes)
        self._per_tool: WeakKeyDictionary[Tool[..., Any], Gate] = WeakKeyDictionary()  # a request may bring its own
        self.ready = ready
        self.queued = 0
        self.queued_peak = 0
        self.outside = 0
        self._on_ready = on_ready

    def gates_of(self, tool: Tool[..., Any]) -> tuple[Gate, ...]:
        """The gates that a call of `tool` has to pass. The first one is everybody's."""
        gates: tuple[Gate, ...] = (self.everything,)
        if tool.max_concurrency is not None:
            gate = self._per_tool.get(tool)
            if gate is None:
                gate = self._per_tool[tool] = Gate(tool.max_concurrency)
            gates = (*gates, gate)
        if tool.is_async:
            return gates
        return (*gates, self.processes if tool.isolation == "process" else self.threads)

    def admit(self, job: Job) -> None:
        """Give `job` its places, or a place in the queue of the first gate that is full."""
        for gate in job.gates:
            if gate.used >= gate.capacity:
                gate.waiting[job] = None
                job.waits_at = gate
                self.queued += 1
                self.queued_peak = max(self.queued_peak, self.queued)
                return
        self._enter(job)

    def _enter(self, job: Job) -> None:
        for gate in job.gates:
            gate.used += 1
            gate.peak = max(gate.peak, gate.used)
        job.held = job.gates
        if job.back is None:
            self.ready.append(job)
            self._on_ready(1)
        else:
            self._come_back(job)

    def _come_back(self, job: Job) -> None:
        assert job.back is not None
        job.back.set()
        job.back = None
        self.outside -= 1

    def leave(self, job: Job, *, thread_goes_on: bool = False) -> None:
        """The call has ended: give its places back, and admit who waited for them.

        One whose thread goes on keeps those of the thread and of its tool; it leaves again when that has ended.
        """
        kept = job.gates[1:] if thread_goes_on else ()
        freed, job.held = job.held, job.held and kept
        job.gates = kept
        self._release(freed[:1] if kept else freed)
        if job.back is not None:  # a task that its handler has left behind waits to come in
            self.unqueue(job)
            self.admit(job)

    def step_out(self, job: Job) -> None:
        """Give the places of a call back while its handler waits, and admit who waited for them.

        Several tasks of a handler may step out: the call is in again when the last one has come back.
        """
        job.outside += 1
        if job.outside > 1:
            return
        if job.back is not None:  # another task waits to come in, and need not any more
            self.unqueue(job)
            self._come_back(job)
        self.outside += 1
        held, job.held = job.held, ()
        self._release(held)

    async def step_in(self, job: Job) -> None:
        """Take the places of a call again that has stepped out, behind those who wait for them already.

        When this is cancelled, a call that is settled stays out: its handler is to end. One that is not settled goes
        on with a time-out of its handler's own: it has its places then, though others may have them as well.
        """
        job.outside -= 1
        if job.outside:
            return
        job.back = back = anyio.Event()
        self.admit(job)
        try:
            await back.wait()
        finally:
            if job.back is back:
                self.unqueue(job)
                if job.settled:
                    self._come_back(job)
                else:
                    self._enter(job)

    @contextlib.asynccontextmanager
    async def stepped_out(self, job: Job) -> AsyncGenerator[None]:
        """Let a handler wait in this block for calls that may need its places, as those of a child request.

        Otherwise as many handlers as there are places could wait for ever for what has no place to run. The handler
        continues after those who wait for a place already. Cancelled as the handler is; see `step_in`.
        """
        self.step_out(job)
        try:
            yield
        finally:
            await self.step_in(job)

    def _release(self, gates: tuple[Gate, ...]) -> None:
        for gate in gates:
            gate.used -= 1
        if not self.queued:
            return
        for gate in gates:
            while gate.waiting and gate.used < gate.capacity:
                job = next(iter(gate.waiting))
                self.unqueue(job)
                self.admit(job)

    def unqueue(self, job: Job) -> None:
        """Take `job` out of the queue that it waits in, if it does."""
        if job.waits_at is not None:
            del job.waits_at.waiting[job]
            job.waits_at = None
            self.queued -= 1

    def waiting(self) -> Iterator[Job]:
        """All calls that wait, gate by gate. They may leave meanwhile."""
        for gate in (self.everything, self.threads, self.processes, *self._per_tool.values()):
            yield from list(gate.waiting)
