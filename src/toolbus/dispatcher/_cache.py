"""Results that serve several calls: kept for a while, and shared among equal calls that are under way.

Knows calls and how they are answered. Runs nothing: it decides which call has to run, and which one takes over from it.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from hashlib import sha256
from typing import TYPE_CHECKING, TypeAlias

import orjson

from ..records import json_bytes, replace
from ..secrets import secrets_of
from ..tool_results import RenderedResult
from ._reports import as_sent
from ._schedule import Flight

if TYPE_CHECKING:
    from ..failures import Failure
    from ..tools import Tool
    from ._reports import Reports
    from ._schedule import Job

_MAX_RESULTS = 1_000
_MAX_BYTES = 64 * 2**20

CacheKey: TypeAlias = "tuple[weakref.ref[Tool], bytes]"
"""A weak reference to a tool, and a digest of a call's arguments as JSON with sorted keys, which may be megabytes."""


class _Kept:
    """A whole result with its data as JSON, so that each call that it serves gets fresh objects."""

    __slots__ = ("_data", "_rendered", "size_bytes", "until")

    def __init__(self, rendered: RenderedResult, until: float) -> None:
        # A copy, because orjson's own bytes keep the memory in which they were written: 4 KiB for a word.
        self._data = bytes(memoryview(orjson.dumps(rendered.data)))
        self._rendered = replace(rendered, data=None)
        self.size_bytes = len(self._data) + len(json_bytes(self._rendered))
        self.until = until

    def result(self) -> RenderedResult:
        kept = self._rendered
        artifacts = tuple(replace(each) for each in kept.artifacts)
        parts = tuple(replace(each) for each in kept.parts)
        return replace(kept, data=orjson.loads(self._data), artifacts=artifacts, parts=parts)


class ResultCache:
    """The results of one dispatcher's tools with `cache_seconds`; the least recently used goes first.

    At most 1,000 are kept, and 64 MiB, but always the newest one.

    Two calls are equal when their tool is the same object and their arguments are the same JSON; for a tool that takes
    secrets, they must also be in the same conversation. A result is kept for the tool's `cache_seconds`. A
    failure is shared with the calls that wait for it, and not kept. `hits` counts the calls that were answered with
    another call's result. Nothing here suspends. Each step costs O(1), and the end of a call O(calls that wait for it).
    """

    __slots__ = ("_bytes", "_flights", "_reports", "_results", "hits")

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._results: OrderedDict[CacheKey, _Kept] = OrderedDict()
        self._flights: dict[CacheKey, Flight] = {}
        self._bytes = 0
        self.hits = 0

    def __len__(self) -> int:
        return len(self._results)

    def enter(self, job: Job) -> bool:
        """Return whether `job` has to run. If not, it was answered at once, or waits for an equal call under way."""
        try:
            arguments = orjson.dumps(job.arguments, option=orjson.OPT_SORT_KEYS)
        except TypeError:
            # For example, an integer is beyond 64 bits; the handler may refuse it.
            return True
        if job.tool.secrets is not None:
            arguments = secrets_of(job.view).digest(arguments)
        key = (weakref.ref(job.tool), sha256(arguments).digest())
        now = self._reports.now()
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
        """Take `job`, which was settled elsewhere, out of its flight. Returns the call to run instead, if any."""
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

    def completed(self, job: Job, rendered: RenderedResult) -> None:
        """Publish the result of `job`, which ran for its flight, for all calls in it. `rendered` is the whole result.

        Each call gets its own form of it, by `as_sent`.
        """
        flight = self._end_flight(job)
        seconds = job.tool.cache_seconds
        assert seconds is not None
        before = self._results.pop(flight.key, None)
        kept = self._results[flight.key] = _Kept(rendered, self._reports.now() + seconds)
        self._bytes += kept.size_bytes - (0 if before is None else before.size_bytes)
        while len(self._results) > _MAX_RESULTS or (self._bytes > _MAX_BYTES and len(self._results) > 1):
            self._bytes -= self._results.popitem(last=False)[1].size_bytes
        self._reports.completed(job, as_sent(job, rendered))
        for each in flight.followers:
            # A listener to the events before may have settled this call.
            if not each.settled:
                self.hits += 1
                self._reports.completed(each, as_sent(each, kept.result()))

    def failed(self, job: Job, failure: Failure, cause: BaseException | None) -> None:
        """Publish the failure of `job`, which ran for its flight, for all calls in it."""
        flight = self._end_flight(job)
        self._reports.failed(job, failure, cause)
        for each in flight.followers:
            if not each.settled:
                self._reports.failed(each, failure, cause)

    def _end_flight(self, job: Job) -> Flight:
        """End a flight, whose leader is `job`, before its results are published: later calls do not join it."""
        flight = job.flight
        assert flight is not None
        del self._flights[flight.key]
        for each in (job, *flight.followers):
            each.flight = None
        return flight
