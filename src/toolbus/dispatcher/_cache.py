"""Results that serve several calls: kept for a while, and shared among equal calls that are under way.

Knows calls and how they are answered. Runs nothing: it says which call has to run, and who takes over from it.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from ..secrets import secrets_of
from ..tool_results import Rendered
from ._reports import as_sent
from ._schedule import Flight

if TYPE_CHECKING:
    from ..failures import Failure
    from ..tools import Tool
    from ._reports import Reports
    from ._schedule import Job

__all__ = ["ResultCache"]

_MOST_RESULTS = 1_000

CacheKey: TypeAlias = "tuple[weakref.ref[Tool[..., Any]], bytes]"
"""A tool, which this does not keep alive, and a call's arguments as JSON with sorted keys."""


class _Kept:
    """A whole result with its data as JSON, so that each call it serves has fresh objects."""

    __slots__ = ("_data", "_rendered", "until")

    def __init__(self, rendered: Rendered, until: float) -> None:
        self._data = orjson.dumps(rendered.data)
        self._rendered = replace(rendered, data=None)
        self.until = until

    def result(self) -> Rendered:
        kept = self._rendered
        artifacts = tuple(replace(each) for each in kept.artifacts)
        parts = tuple(replace(each) for each in kept.parts)
        return replace(kept, data=orjson.loads(self._data), artifacts=artifacts, parts=parts)


class ResultCache:
    """The results of one dispatcher's tools with `cache_seconds`, at most 1,000; the one unused for longest goes first.

    Two calls are equal when their tool is the same object and their arguments are the same JSON; of a tool that takes
    secrets, in the same conversation. A result is kept for
    the tool's `cache_seconds` on `clock`; a failure is shared with the calls that wait for it, and not kept. `hits`
    counts the calls that were answered with another one's result. Nothing here suspends; each step costs O(1), and
    the end of a call O(calls that wait for it).
    """

    __slots__ = ("_clock", "_flights", "_reports", "_results", "hits")

    def __init__(self, reports: Reports, clock: Callable[[], float]) -> None:
        self._reports = reports
        self._clock = clock
        self._results: OrderedDict[CacheKey, _Kept] = OrderedDict()
        self._flights: dict[CacheKey, Flight] = {}
        self.hits = 0

    def __len__(self) -> int:
        return len(self._results)

    def enter(self, job: Job) -> bool:
        """Whether `job` has to run. Else it was answered at once, or waits for an equal one that is under way."""
        try:
            arguments = orjson.dumps(job.arguments, option=orjson.OPT_SORT_KEYS)
        except TypeError:  # an integer beyond 64 bits, say: for the handler to refuse
            return True
        if job.tool.secrets is not None:
            arguments = secrets_of(job.view).digest(arguments)
        key = (weakref.ref(job.tool), arguments)
        now = self._clock()
        kept = self._results.get(key)
        if kept is not None and now < kept.until:
            self._results.move_to_end(key)
            self.hits += 1
            self._reports.completed(job, as_sent(job, kept.result()))
            return False
        flight = self._flights.get(key)
        if flight is None:
            job.flight = self._flights[key] = Flight(key, job)
            return True
        job.flight = flight
        job.started_at = now
        flight.followers[job] = None
        return False

    def leave(self, job: Job) -> Job | None:
        """Somebody else settled `job`, which is in a flight. Returns the call that has to run in its place, if any."""
        flight, job.flight = job.flight, None
        assert flight is not None
        if flight.leader is not job:
            del flight.followers[job]
            return None
        if not flight.followers:
            del self._flights[flight.key]
            return None
        flight.leader, _ = flight.followers.popitem(last=False)
        return flight.leader

    def completed(self, job: Job, rendered: Rendered) -> None:
        """Answer `job`, which ran for its flight, and all that wait for it. `rendered` is whole: see `as_sent`."""
        flight = self._land(job)
        seconds = job.tool.cache_seconds
        assert seconds is not None
        kept = self._results[flight.key] = _Kept(rendered, self._clock() + seconds)
        self._results.move_to_end(flight.key)
        if len(self._results) > _MOST_RESULTS:
            self._results.popitem(last=False)
        self._reports.completed(job, as_sent(job, rendered))
        for each in flight.followers:
            if not each.settled:  # meanwhile, by whoever was told of the ones before it
                self.hits += 1
                self._reports.completed(each, as_sent(each, kept.result()))

    def failed(self, job: Job, failure: Failure, cause: BaseException | None) -> None:
        """Tell `job`, which ran for its flight, and all that wait for it, that it failed."""
        flight = self._land(job)
        self._reports.failed(job, failure, cause)
        for each in flight.followers:
            if not each.settled:
                self._reports.failed(each, failure, cause)

    def _land(self, job: Job) -> Flight:
        """End the flight of its leader before anybody is told: who asks from then on is not in it."""
        flight = job.flight
        assert flight is not None
        del self._flights[flight.key]
        for each in (job, *flight.followers):
            each.flight = None
        return flight
