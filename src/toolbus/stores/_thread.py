"""A thread that owns one connection to a database, and the queue in front of it.

A blocking driver in a thread works the same with every event loop. One thread also collects the appends of many
sessions: all appends that wait when a transaction begins are written in it, and so are inputs that are sent. This
module knows `Database`, and neither SQL nor the data that is written.

A thread is started by its first job and is a daemon thread: a program that forgets to close its store still ends, after
the queued jobs are done (`atexit`). A forked child starts with an empty queue and its own connection. The child
neither uses nor closes its parent's connections, because closing them would end them for the parent too.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import anyio
import anyio.lowlevel

from ..errors import StoreError, StoreUnavailable

if TYPE_CHECKING:  # The engine imports this module.
    from .sql import Database

TIMEOUT_SECONDS = 4.0
"""The time within which a job is done or fails: less than the 5 s of guarantee G21, which includes the way back."""

# The most appends in one transaction: larger transactions gain nothing, and delay the other jobs.
_GROUP = 1_024
# The time that an exiting interpreter waits for the queued jobs of each thread.
_EXIT_SECONDS = 5.0
_D = TypeVar("_D", bound="Database")
_T = TypeVar("_T")
_A = TypeVar("_A")
_I = TypeVar("_I")

_running: weakref.WeakSet[DatabaseThread[Any, Any]] = weakref.WeakSet()
_left_to_the_parent: list[object] = []


@dataclass(slots=True, eq=False)
class _Job:
    """A job and the task that waits for it, in the event loop that makes the job.

    `item` is a function of the database, or with `group` an item that this function takes together with others. `until`
    is the deadline, on the clock `time.monotonic`.
    """

    item: Any
    until: float
    group: Callable[[Any, Sequence[Any]], Any] | None = None
    loop: Any = field(default_factory=lambda: anyio.lowlevel.current_token().native_token)
    """An asyncio loop, or a token of trio."""
    waiter: Any = None
    is_taken: bool = False
    is_withdrawn: bool = False
    is_done: bool = False
    result: Any = None
    error: BaseException | None = None

    async def settled(self) -> None:
        """Wait until the job is done. Uses a future if the event loop has them: an event costs four times as much."""
        if self.is_done:
            return
        make = getattr(self.loop, "create_future", None)
        if make is None:
            self.waiter = event = anyio.Event()
            await event.wait()
        else:
            self.waiter = make()
            await self.waiter

    def settle(self) -> None:
        """Mark the job as done and wake the task that waits for it. Called in the event loop of that task."""
        self.is_done = True
        if isinstance(self.waiter, anyio.Event):
            self.waiter.set()
        elif self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


@dataclass(slots=True, eq=False)
class _End:
    """The item of the queue at which the thread closes its connection and ends; `waiter` is set when it has ended."""

    waiter: _Job | None = None


class _Queue:
    """The queue of jobs for a thread."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | _End] = SimpleQueue()
        self._lock = threading.Lock()
        self._under_way: tuple[_Job, Database] | None = None
        self.put = self._jobs.put

    def __len__(self) -> int:
        return self._jobs.qsize()

    def take(self) -> tuple[list[_Job], _End | None]:
        """Wait for a job, and take all queued jobs up to `_GROUP`; and the end, if it is queued after them."""
        get = self._jobs.get
        taken = [get()]
        taken += [get() for _ in range(min(self._jobs.qsize(), _GROUP - 1))]
        last = taken[-1]
        end = last if isinstance(last, _End) else None
        jobs: list[_Job] = []
        with self._lock:
            for each in taken:
                if isinstance(each, _Job) and not each.is_withdrawn:
                    each.is_taken = True
                    jobs.append(each)
        return jobs, end

    def begin(self, job: _Job, database: Database) -> None:
        """Note that a job is running, and give the database the job's deadline."""
        with self._lock:
            self._under_way = (job, database)
            database.deadline = job.until

    def withdraw(self, job: _Job, *, hurries: bool = False) -> bool:
        """Withdraw a job that the thread has not taken; return False if it was taken.

        With `hurries`, the deadline of a job that was taken is over.
        """
        with self._lock:
            job.is_withdrawn = not job.is_taken
            if job.is_taken and hurries:
                job.until = -math.inf
                if self._under_way is not None and self._under_way[0] is job:
                    self._under_way[1].deadline = -math.inf
            return job.is_withdrawn


class DatabaseThread(Generic[_D, _A]):
    """A thread that calls functions of a connection one after the other, and writes appends in groups.

    `connect` makes the connection, at the first job and again after the connection broke; it has to be ready by the
    deadline that it is given, on the clock `time.monotonic`. `append` writes a group of entries in one transaction and
    returns the outcome of each; an exception that it raises is the outcome of all of them.

    A queued job whose waiter is cancelled is dropped. If the job runs already, the cancellation waits for its end, so
    that the next job finds all of its changes or none. In a thread that only reads, without `append`, the cancellation
    does not wait: it ends the job's time. A job that fails because the connection broke is done once more on a new
    connection, unless the old one broke in a commit. May be used from several event loops and threads.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[float], _D],
        append: Callable[[_D, Sequence[_A]], Sequence[int | StoreError]] | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._name = name
        self._connect = connect
        self._append = append
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._begun: tuple[_Queue, threading.Thread] | None = None
        self.appends = 0
        self.commits = 0
        self.queued_peak = 0

    @property
    def is_running(self) -> bool:
        """Return whether the thread runs; it may have a connection then."""
        return self._begun is not None

    async def run(self, function: Callable[[_D], _T], *, seconds: float | None = None) -> _T:
        """Call `function` with the connection in the thread, and return its result.

        `seconds` is the time that it has from now on, instead of `timeout_seconds`. Raises the exceptions of
        `function`; those of the database as `StoreError`.
        """
        until = monotonic() + (self._timeout_seconds if seconds is None else seconds)
        return cast("_T", await self._done(_Job(function, until)))

    async def append(self, entry: _A) -> int:
        """Write an entry together with others, and return its outcome. Durable when this returns."""
        assert self._append is not None
        return cast("int", await self.together(self._append, entry))

    async def together(self, function: Callable[[_D, Sequence[_I]], Sequence[_T | Exception]], item: _I) -> _T:
        """Let `function` do an item together with those that wait beside it for the same function.

        It returns the outcome of each, in order: a result, or an error. Items of one task keep their order.
        """
        return cast("_T", await self._done(_Job(item, monotonic() + self._timeout_seconds, function)))

    async def _done(self, job: _Job) -> Any:
        with self._lock:
            if self._begun is None:
                self._begun = self._start()
            queue, _ = self._begun
            queue.put(job)
        try:
            await job.settled()
        except GeneratorExit:
            # The event loop has ended before the task, so there is no loop to wait in.
            queue.withdraw(job)
            raise
        except BaseException:
            only_reads = self._append is None
            if not queue.withdraw(job, hurries=only_reads) and not only_reads:
                # The wait is bounded, because each job has a deadline.
                with anyio.CancelScope(shield=True):
                    await job.settled()
            raise
        if job.error is not None:
            try:
                raise job.error
            finally:
                # The error holds this frame, and the frame holds the job: this breaks the reference cycle.
                job.error = None
        return job.result

    async def aclose(self) -> None:
        """End the thread after the queued jobs. A later call starts another thread."""
        with self._lock:
            begun, self._begun = self._begun, None
        if begun is None:
            return
        queue, thread = begun
        last = _Job(None, -math.inf)  # is never called
        queue.put(_End(last))
        # The wait is bounded, because each job has a deadline.
        with anyio.CancelScope(shield=True):
            await last.settled()
        thread.join()

    def finish(self, seconds: float) -> None:
        """Do the same as `aclose` outside of any event loop, and wait for at most `seconds`."""
        with self._lock:
            begun, self._begun = self._begun, None
        if begun is not None:
            queue, thread = begun
            queue.put(_End())
            thread.join(seconds)

    def _start(self) -> tuple[_Queue, threading.Thread]:
        queue = _Queue()
        me = weakref.ref(self)
        worker = _Worker(queue, self._connect, self._append, me)
        # The thread of a store that is garbage-collected without being closed ends too.
        weakref.finalize(self, queue.put, _End()).atexit = False
        thread = threading.Thread(target=worker.serve, name=self._name, daemon=True)
        thread.start()
        _running.add(self)
        return queue, thread

    def after_fork(self) -> None:
        """Start again in a forked child, because the thread and the connection belong to the parent."""
        _left_to_the_parent.append(self._begun)
        self._lock = threading.Lock()
        self._begun = None


class _Worker(Generic[_D, _A]):
    """The code that runs in the thread. Has no strong reference to its `DatabaseThread`, which can be collected."""

    def __init__(
        self,
        queue: _Queue,
        connect: Callable[[float], _D],
        append: Callable[[_D, Sequence[_A]], Sequence[int | StoreError]] | None,
        owner: Callable[[], DatabaseThread[_D, _A] | None],
    ) -> None:
        self._queue = queue
        self._connect = connect
        self._append = append
        self._owner = owner
        self._database: _D | None = None
        # Whether the job that failed last may have been written nevertheless.
        self._in_doubt = False

    def serve(self) -> None:
        """Do the queued jobs until the end is taken from the queue."""
        end: _End | None = None
        while end is None:
            jobs, end = self._queue.take()
            group: list[_Job] = []
            for job in jobs:
                if group and job.group is not group[0].group:
                    self._write(group)
                    group = []
                if job.group is not None:
                    group.append(job)
                else:
                    self._call(job)
            self._write(group)
            del jobs, group
        self._close()
        if end.waiter is not None:
            _wake([end.waiter])

    # ------------------------------------------------------------------------------------------------- jobs

    def _call(self, job: _Job) -> None:
        try:
            job.result = self._attempt(job.item, job)
        except BaseException as exc:
            job.error = exc
        _wake([job])

    def _write(self, jobs: list[_Job]) -> None:
        while jobs:
            jobs = self._write_group(jobs)

    def _write_group(self, jobs: list[_Job]) -> list[_Job]:
        """Write a group within the deadline of its oldest job. Return the jobs to try again, those with time left."""
        function = jobs[0].group
        assert function is not None
        items = [job.item for job in jobs]
        left: list[_Job] = []
        try:
            outcomes = self._attempt(lambda database: function(database, items), jobs[0])
        except BaseException as exc:
            now = monotonic()
            if isinstance(exc, StoreUnavailable) and now >= jobs[0].until and not self._in_doubt:
                left = [job for job in jobs if now < job.until]
                jobs = [job for job in jobs if now >= job.until]
            _fail_all(jobs, exc)
        else:
            done = 0
            for job, outcome in zip(jobs, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    job.error = outcome
                else:
                    job.result = outcome
                    done += 1
            if function is self._append:
                self._count(done, len(jobs))
        _wake(jobs)
        return left

    def _count(self, done: int, waited: int) -> None:
        owner = self._owner()
        if owner is not None:
            owner.appends += done
            owner.commits += done > 0
            owner.queued_peak = max(owner.queued_peak, waited + len(self._queue))

    def _attempt(self, function: Callable[[_D], _T], job: _Job) -> _T:
        """Call `function` with the database within the job's deadline, and return its result."""
        self._in_doubt = False
        is_second = False
        while True:
            if monotonic() >= job.until:
                raise StoreUnavailable("the database did not answer in time: other calls were queued before this one")
            try:
                if self._database is None:
                    self._database = self._connect(job.until)
                self._queue.begin(job, self._database)
                return function(self._database)
            except Exception as exc:
                error, may_try_again = self._understood(exc)
                if not may_try_again or is_second or monotonic() >= job.until:
                    if error is exc:
                        raise
                    raise error from exc
                is_second = True

    def _understood(self, exc: Exception) -> tuple[Exception, bool]:
        """Return the error for the waiting task, and whether another attempt may work. Closes a broken connection."""
        database = self._database
        if database is None:
            # The connection could not be made, and the exception says why.
            return exc, False
        # A database without `in_doubt` is one in which everything may be written twice.
        self._in_doubt = getattr(database, "in_doubt", False)
        error, may_try_again = database.translated(exc), database.may_try_again(exc)
        if database.is_broken(exc):
            self._close()
        return error, may_try_again

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()


def _fail_all(jobs: Sequence[_Job], exc: BaseException) -> None:
    """Give each job its own error: one error that is raised in many tasks would collect all their tracebacks."""
    for job in jobs:
        job.error = exc
        if isinstance(exc, StoreError):
            copy = exc.__class__.__new__(exc.__class__, *exc.args)
            copy.args = exc.args
            copy.__dict__.update(exc.__dict__)
            copy.__cause__ = exc.__cause__
            job.error = copy


def _wake(jobs: Sequence[_Job]) -> None:
    """Wake the tasks that wait for these jobs, with one call into each event loop."""
    by_loop: dict[Any, list[_Job]] = {}
    for job in jobs:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, done in by_loop.items():
        call = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
        # The loop may be closed (trio.RunFinishedError is a RuntimeError too); then nobody waits any more.
        with contextlib.suppress(RuntimeError):
            call(_settle_all, done)


def _settle_all(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        job.settle()


def _finish_all() -> None:
    for each in list(_running):
        each.finish(_EXIT_SECONDS)


def _after_fork() -> None:
    for each in list(_running):
        each.after_fork()


atexit.register(_finish_all)
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)
