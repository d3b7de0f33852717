"""Calls whose handlers were cancelled and still run: counted, and named in the log when they outlive their grace.

Knows a call and the event loop's clock. Cancels nothing and waits for nobody: the dispatcher has cancelled already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import anyio

from ._reports import ids_of, logger

if TYPE_CHECKING:
    from ._schedule import Job, Key

__all__ = ["Overdue"]


class Overdue:
    """The overdue calls of one dispatcher, in the order in which they became so.

    One that still runs `grace_seconds` later is logged once, at WARNING. For that there is one task, started by
    `start(function, scope)` when the first call becomes overdue and ended when no call is left to be logged: most
    handlers end at once when they are cancelled.

    Leaving the dispatcher's block waits for handlers, so they are named while it does. It does not wait for threads,
    so these are named at once then: nobody could do it later.
    """

    __slots__ = ("_grace_seconds", "_is_closing", "_start", "_unnamed", "_watch", "jobs")

    def __init__(self, grace_seconds: float, start: Callable[..., Any]) -> None:
        self._grace_seconds = grace_seconds
        self._start = start
        self.jobs: dict[Key, Job] = {}
        self._unnamed: dict[Key, float] = {}  # those that are not logged yet, each with the loop's time of its grace
        self._watch: anyio.CancelScope | None = None
        self._is_closing = False

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs.values())

    def add(self, job: Job) -> None:
        """Count a call from now on, as one whose `job.run` is a thread that was given up, or as a handler."""
        if job.key not in self.jobs:
            self.jobs[job.key] = job
            self._unnamed[job.key] = anyio.current_time() + self._grace_seconds
            if self._watch is None and not (self._is_closing and job.run is not None):
                self._watch = anyio.CancelScope(shield=True)
                self._start(self._name_in_time, self._watch)
        if self._is_closing:
            self._name_threads()

    def discard(self, job: Job) -> None:
        """Forget a call that has ended, if it is counted."""
        if self.jobs.pop(job.key, None) is not None:
            self._unnamed.pop(job.key, None)
            self._end_watch()

    def threads(self) -> int:
        """How many of them are threads that were given up. Costs O(overdue calls)."""
        return sum(job.run is not None for job in self.jobs.values())

    def open(self) -> None:
        """The dispatcher begins."""
        self._is_closing = False

    def close(self, running: Iterable[Job]) -> None:
        """The dispatcher cancels what is `running`, and leaves its threads."""
        self._is_closing = True
        for job in running:
            self.add(job)
        self._name_threads()

    def _name_threads(self) -> None:
        for key in tuple(self._unnamed):
            if self.jobs[key].run is not None:
                self._name(key)
        self._end_watch()

    def _end_watch(self) -> None:
        """When nothing is left to be named."""
        if self._watch is not None and not self._unnamed:
            self._watch.cancel()
            self._watch = None  # it is on its way out, so the next call gets another one

    async def _name_in_time(self, scope: anyio.CancelScope) -> None:
        with scope:
            while self._unnamed:  # in the order of their moments, since all have the same grace
                key, moment = next(iter(self._unnamed.items()))
                await anyio.sleep_until(moment)
                if self._unnamed.get(key) == moment:
                    self._name(key)
        if self._watch is scope:
            self._watch = None

    def _name(self, key: Key) -> None:
        del self._unnamed[key]
        job = self.jobs[key]
        what = "handler" if job.run is None else "thread"
        logger.warning("the %s of tool %s outlives its call", what, job.tool.name, extra=ids_of(job.request))
