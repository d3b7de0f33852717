"""The decision on which call may run now: gates that bound how many run at once, each with a queue of waiting calls.

Knows a call, its tool and its gates. Starts no task, publishes nothing and has no timers; the dispatcher runs the call.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

import anyio
from msgspec import Struct, field

if TYPE_CHECKING:
    from ..events import Spent, ToolCallRequested
    from ..protocols import RequestView
    from ..tools import Tool
    from ._thread_run import ThreadRun
    from ._workers import Worker

Key: TypeAlias = tuple[str, str]
"""The key of a call on the bus: the request's id and the call's id."""


class Gate:
    """A bound on how many calls run at once, with the calls that wait for a slot, in order."""

    __slots__ = ("capacity", "peak", "used", "waiting")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.peak = 0
        # A call can leave the middle of an ordered dictionary without a search.
        self.waiting: OrderedDict[Job, None] = OrderedDict()


class Job(Struct, eq=False):
    """One call in the dispatcher, from its request to its terminal event. Made in the stack of the session that asks.

    `arguments` are the request's own where it runs in this process, since any listener may change those of the event.
    `bound` are the validated ones for the first attempt, whose handler may change them; None for the others. `view` is
    that of the call's request, if it runs here. `context` is that of the session, since the session makes the job.
    """

    request: ToolCallRequested
    tool: Tool
    gates: tuple[Gate, ...]
    arguments: Mapping[str, Any]
    bound: dict[str, Any] | None = None
    view: RequestView | None = None
    attempt: int = 1
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    started_at: float = 0.0
    settled: bool = False  # whether the call has its terminal event, from this dispatcher or from elsewhere
    worker: Worker | None = None
    held: tuple[Gate, ...] = ()  # the gates in which the call has slots: all of its gates, or none
    waits_at: Gate | None = None
    spent: Spent | None = None  # what the child requests of the handler have spent
    run: ThreadRun | None = None  # a thread that was given up
    flight: Flight | None = None  # the equal calls that share one run
    asks: tuple[anyio.CancelScope, ...] = ()  # those of the child requests that run
    outside: int = 0  # the number of the handler's tasks that have stepped out
    may_continue: anyio.Event | None = None  # set when the task that waits in `step_in` may continue

    @property
    def key(self) -> Key:
        """The call's key on the bus."""
        return self.request.request_id, self.request.call_id

    @property
    def stops(self) -> bool:
        """Return whether no handler of the request may begin any more: the session is about to settle its calls."""
        return self.view is not None and self.view.is_stopping


class Flight:
    """A group of equal calls: one that runs, and those that wait for its result, in order.

    Each job has a reference to its flight.
    """

    __slots__ = ("followers", "key", "leader")

    def __init__(self, key: Any, leader: Job) -> None:
        self.key = key
        self.leader = leader
        self.followers: OrderedDict[Job, None] = OrderedDict()


class Schedule:
    """The gates of one dispatcher. A call takes a slot in each of its gates, or waits at the first gate that is full.

    `ready` holds the calls that have their slots, in order; `on_ready(1)` is called for each call that joins them.
    `queued` counts the calls that wait. A call whose handler waits for other calls steps out meanwhile, so that those
    can use its slots; `outside` counts such calls. Only `step_in` suspends or raises. Each step costs O(gates of a
    call), and a call has at most three.
    """

    __slots__ = (
        "_all",
        "_on_ready",
        "_per_tool",
        "outside",
        "overall",
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
        self.overall = Gate(max_concurrency)
        self._all: tuple[Gate, ...] = (self.overall,)
        self.threads = Gate(max_threads)
        self.processes = Gate(max_processes)
        # The references are weak, because a request may bring tools of its own.
        self._per_tool: WeakKeyDictionary[Tool, Gate] = WeakKeyDictionary()
        self.ready = ready
        self.queued = 0
        self.queued_peak = 0
        self.outside = 0
        self._on_ready = on_ready

    def gates_of(self, tool: Tool) -> tuple[Gate, ...]:
        """Return the gates that a call of `tool` has to pass. The first one is shared by all calls."""
        gates = self._all
        if tool.max_concurrency is not None:
            gate = self._per_tool.get(tool)
            if gate is None:
                gate = self._per_tool[tool] = Gate(tool.max_concurrency)
            gates = (*gates, gate)
        if tool.is_async:
            return gates
        return (*gates, self.processes if tool.isolation == "process" else self.threads)

    def admit(self, job: Job) -> None:
        """Give `job` its slots, or queue it at the first gate that is full."""
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
        if job.may_continue is None:
            self.ready.append(job)
            self._on_ready(1)
        else:
            self._let_continue(job)

    def _let_continue(self, job: Job) -> None:
        """Wake the task that waits in `step_in`, whose call does not count as outside any more."""
        assert job.may_continue is not None
        job.may_continue.set()
        job.may_continue = None
        self.outside -= 1

    def leave(self, job: Job, *, thread_still_runs: bool = False) -> None:
        """Give back the slots of a call that has ended, and admit the calls that waited for them.

        With `thread_still_runs` the call keeps the slots of its thread and of its tool. It leaves again when the thread
        has ended.
        """
        kept = job.gates[1:] if thread_still_runs else ()
        freed, job.held = job.held, job.held and kept
        job.gates = kept
        self._release(freed[:1] if kept else freed)
        # A task that outlives the handler may wait in `step_in`; it waits only for the gates that are left.
        if job.may_continue is not None:
            self.unqueue(job)
            self.admit(job)

    def step_out(self, job: Job) -> None:
        """Give back the slots of a call while its handler waits, and admit the calls that waited for them.

        Several tasks of a handler may step out. The call takes its slots again after the last of them has called
        `step_in`.
        """
        job.outside += 1
        if job.outside > 1:
            return
        # Another task of the handler may wait for the slots, which it does not need any more.
        if job.may_continue is not None:
            self.unqueue(job)
            self._let_continue(job)
        self.outside += 1
        held, job.held = job.held, ()
        self._release(held)

    async def step_in(self, job: Job) -> None:
        """Take the slots of a call that has stepped out again, after the calls that wait for them already.

        When this is cancelled, a settled call stays out, because its handler has to end. A call that is not settled
        was cancelled by its handler's own time-out and continues: it takes its slots even if the gates are full.
        """
        job.outside -= 1
        if job.outside:
            return
        job.may_continue = may_continue = anyio.Event()
        self.admit(job)
        try:
            await may_continue.wait()
        finally:
            if job.may_continue is may_continue:
                self.unqueue(job)
                if job.settled:
                    self._let_continue(job)
                else:
                    self._enter(job)

    @contextlib.asynccontextmanager
    async def stepped_out(self, job: Job) -> AsyncGenerator[None]:
        """Let a handler wait in this block for calls that may need its slots, such as those of a child request.

        Otherwise, when handlers that wait hold all slots, the calls that they wait for could never run. The handler
        continues after the calls that wait for a slot already. Cancellation passes through; see `step_in`.
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
        """Take `job` out of its queue, if it is in one."""
        if job.waits_at is not None:
            del job.waits_at.waiting[job]
            job.waits_at = None
            self.queued -= 1

    def waiting(self) -> Iterator[Job]:
        """Iterate over all calls that wait, gate by gate. Calls may leave their queues meanwhile."""
        for gate in (self.overall, self.threads, self.processes, *self._per_tool.values()):
            yield from list(gate.waiting)
