"""Calls whose handlers were cancelled and still run: counted, and reported when they outlive their grace period.

Knows a call and the event loop's clock. Cancels nothing and waits for no handler: the dispatcher has cancelled them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from ._reports import Reports
    from ._schedule import Job, Key


class Overdue:
    """The overdue calls of one dispatcher, in the order in which they became so.

    A call that still runs `grace_seconds` later is logged once, at WARNING. One task does this: it is started by
    `start(function, scope)` when the first call becomes overdue, and ended when no call is left to be logged, since
    most handlers end at once when they are cancelled.

    The end of the dispatcher's block waits for handlers, so these are logged while it waits. It does not wait for
    threads, so these are logged at once then: nothing could log them later.
    """

    __slots__ = ("_grace_seconds", "_is_closing", "_reports", "_start", "_unlogged", "_watch", "jobs")

    def __init__(self, grace_seconds: float, reports: Reports, start: Callable[..., Any]) -> None:
        self._reports = reports
        self._grace_seconds = grace_seconds
        self._start = start
        self.jobs: dict[Key, Job] = {}
        self._unlogged: dict[Key, float] = {}  # the loop's time at which each call is to be logged
        self._watch: anyio.CancelScope | None = None
        self._is_closing = False

    def __iter__(self) -> Iterator[Job]:
        return iter([*self.jobs.values()])

    def add(self, job: Job) -> None:
        """Count a call from now on: as a thread if `job.run` is a thread that was given up, otherwise as a handler."""
        if job.key not in self.jobs:
            self.jobs[job.key] = job
            self._unlogged[job.key] = anyio.current_time() + self._grace_seconds
            if self._watch is None and not (self._is_closing and job.run is not None):
                self._watch = anyio.CancelScope(shield=True)
                self._start(self._log_in_time, self._watch)
        if self._is_closing:
            self._log_threads()

    def discard(self, job: Job) -> None:
        """Forget a call that has ended, if it is counted."""
        if self.jobs.pop(job.key, None) is not None:
            self._unlogged.pop(job.key, None)
            self._end_watch()

    def threads(self) -> int:
        """Return the number of overdue calls that are threads which were given up. Costs O(overdue calls)."""
        return sum(job.run is not None for job in self.jobs.values())

    def open(self) -> None:
        """Note that the dispatcher has been entered."""
        self._is_closing = False

    def close(self, running: Iterable[Job]) -> None:
        """Note that the dispatcher closes: it cancels the calls in `running`, and does not wait for threads."""
        self._is_closing = True
        for job in running:
            self.add(job)
        self._log_threads()

    def _log_threads(self) -> None:
        for key in tuple(self._unlogged):
            if self.jobs[key].run is not None:
                self._log(key)
        self._end_watch()

    def _end_watch(self) -> None:
        """End the watching task if no call is left to be logged."""
        if self._watch is not None and not self._unlogged:
            self._watch.cancel()
            # This task is about to end, so the next overdue call starts another one.
            self._watch = None

    async def _log_in_time(self, scope: anyio.CancelScope) -> None:
        with scope:
            # The calls are in the order of their times, since the grace period is the same.
            while self._unlogged:
                key, moment = next(iter(self._unlogged.items()))
                await anyio.sleep_until(moment)
                if self._unlogged.get(key) == moment:
                    self._log(key)
        if self._watch is scope:
            self._watch = None

    def _log(self, key: Key) -> None:
        del self._unlogged[key]
        self._reports.overdue(self.jobs[key], self._grace_seconds)
