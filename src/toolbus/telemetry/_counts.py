"""The metrics that are read when they are collected: what is published on buses, and the numbers of runtimes.

Counting an event costs an addition here, and nothing of the SDK. Imports the API of OpenTelemetry, so it is imported
late.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from .._version import __version__
from ..bus import EventBus
from ..events import (
    DeadLetter,
    Event,
    HistoryCompressed,
    LoopBlocked,
    ModelResponded,
    ModelRetrying,
    RequestResumed,
    RequestTakenOver,
    SubscriptionFull,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
)
from ..instrumentation import RuntimeNumbers
from . import _names as names
from ._texts import Labels


class _Total:
    """A counter. Without attributes it begins at 0, so that its first step is seen as one."""

    def __init__(self, meter: Meter, name: str, unit: str, description: str, *attributes: str) -> None:
        self._attributes = attributes
        self._lock = threading.Lock()  # Several runtimes may run in several threads.
        self._totals: dict[tuple[str, ...], float] = {} if attributes else {(): 0}
        meter.create_observable_counter(name, [self._observe], unit, description)

    def add(self, *values: str, by: float = 1) -> None:
        with self._lock:
            self._totals[values] = self._totals.get(values, 0) + by

    def _observe(self, _options: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            totals = [*self._totals.items()]
        for values, total in totals:
            pairs = zip(self._attributes, values, strict=True)
            yield Observation(total, {name: value for name, value in pairs if value})


class Counts:
    """The metrics of one meter provider: each is made once, however many instrumentations use the provider."""

    def __init__(self, meter_provider: metrics.MeterProvider | None, label: Labels) -> None:
        self._label = label
        self._runtimes: list[RuntimeNumbers] = []
        self._ended: dict[str, float] = {}  # the totals of runtimes that do not run any more
        meter = metrics.get_meter("toolbus", __version__, meter_provider)
        self._lock = threading.Lock()

        total = partial(_Total, meter)
        self._calls = total(names.TOOL_CALLS, "{call}", "Settled tool calls", names.TOOL_NAME, names.ERROR_TYPE)
        self._late = total(names.LATE_RESULTS, "{result}", "Results of calls that were settled", names.TOOL_NAME)
        self._letters = total(names.DEAD_LETTERS, "{event}", "Events for which nobody had a use", names.EVENT_TYPE)
        self._retries = total(names.MODEL_RETRIES, "{retry}", "Model calls that are made again", names.ERROR_TYPE)
        self._cost = total(names.MODEL_COST, "{currency}", "Cost of replies, by the price table", *_OF_A_REPLY)
        self._blocked = total(names.LOOP_BLOCKED, "s", "Time in which the event loop was blocked")
        self._full = total(names.SUBSCRIPTIONS_FULL, "{time}", "Slow readers that lose events")
        self._resumed = total(names.REQUESTS_RESUMED, "{request}", "Requests continued here")
        self._lost = total(names.LEASES_LOST, "{lease}", "Requests that others have taken over")
        for name, unit, description, number in _NOW:
            meter.create_observable_gauge(name, [self._observed(name, number)], unit, description)
        for name, unit, description, number in _SINCE:
            meter.create_observable_counter(name, [self._observed(name, number)], unit, description)
        self._counters: dict[type[Event], Callable[[Any], None]] = {
            ToolCallCompleted: lambda event: self._calls.add(label(names.TOOL_NAME, event.name), ""),
            ToolCallFailed: self._fail,
            ToolCallLate: lambda event: self._late.add(label(names.TOOL_NAME, event.name)),
            DeadLetter: lambda event: self._letters.add(label(names.EVENT_TYPE, event.event_type)),
            ModelRetrying: self._retry,
            ModelResponded: self._spend,
            HistoryCompressed: self._spend,
            LoopBlocked: lambda event: self._blocked.add(by=event.seconds),
            SubscriptionFull: lambda _event: self._full.add(),
            RequestResumed: lambda _event: self._resumed.add(),
            RequestTakenOver: lambda _event: self._lost.add(),
        }

    @contextlib.contextmanager
    def of(self, bus: EventBus, numbers: RuntimeNumbers | None) -> Generator[None]:
        """Count the events of `bus`, and the `numbers` of its runtime, in this block."""
        # The call of a worker is settled, and counted, in the process of its request too.
        without = (ToolCallCompleted, ToolCallFailed) if numbers is None else ()
        kinds = tuple([each for each in self._counters if each not in without])
        disconnect = bus.connect(kinds, lambda event: self._counters[type(event)](event))
        if numbers is not None:
            self._runtimes.append(numbers)
        try:
            yield
        finally:
            disconnect()
            if numbers is not None:
                with self._lock:
                    self._runtimes.remove(numbers)
                    for name, _, _, number in _SINCE:
                        self._ended[name] = self._ended.get(name, 0) + number(numbers)

    def _fail(self, event: ToolCallFailed) -> None:
        # The model may have made up the name of a tool, if the call was refused before anybody looked for the tool.
        is_checked = event.reason not in _MAYBE_NO_TOOL or event.duration_seconds > 0
        name = (self._label if is_checked else self._label.if_known)(names.TOOL_NAME, event.name)
        self._calls.add(name, self._label(names.ERROR_TYPE, event.reason))

    def _retry(self, event: ModelRetrying) -> None:
        self._retries.add(self._label(names.ERROR_TYPE, event.reason))
        self._spend(event)

    def _spend(self, event: ModelResponded | ModelRetrying | HistoryCompressed) -> None:
        if event.cost:
            vendor = names.VENDORS.get(event.vendor, event.vendor)
            about = [self._label(names.PROVIDER, vendor), self._label(names.RESPONSE_MODEL, event.model)]
            self._cost.add(*about, by=event.cost)

    def _observed(self, name: str, number: _Number) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            with self._lock:
                return [Observation(self._ended.get(name, 0) + sum(map(number, self._runtimes)))]

        return observe


_Number = Callable[[RuntimeNumbers], float]
_MAYBE_NO_TOOL = ("unknown_tool", "limit", "cancelled")
_OF_A_REPLY = (names.PROVIDER, names.RESPONSE_MODEL)

# The numbers of runtimes as they are now, and those that only grow.
_NOW: tuple[tuple[str, str, str, _Number], ...] = (
    (names.REQUESTS_RUNNING, "{request}", "Requests that have begun and not ended", lambda each: each.running),
    (names.REQUESTS_WAITING, "{request}", "Requests that wait for people only", lambda each: each.waiting),
    (names.REQUESTS_QUEUED, "{request}", "Requests that wait for a slot or their turn", lambda each: each.queued),
    (names.APPROVALS_PENDING, "{question}", "Questions that wait for a person", lambda each: each.pending_approvals),
    (names.APPROVALS_OVERDUE, "{question}", "Questions that wait for too long", lambda each: each.approvals_overdue),
    (names.CALLS_OVERDUE, "{call}", "Cancelled calls that still run", lambda each: each.calls_overdue),
    (names.LEASES, "{lease}", "Requests whose leases are held", lambda each: each.leases),
    (names.STORE_UNAVAILABLE, "{store}", "Stores that fail now", lambda each: each.store_unavailable),
    (
        names.SUBSCRIPTIONS_LAG,
        "{event}",
        "Events that the slowest reader has still to take",
        lambda each: each.lag,
    ),
)
_SINCE: tuple[tuple[str, str, str, _Number], ...] = (
    (names.REQUESTS_REFUSED, "{request}", "Requests that were refused: full", lambda each: each.refused),
    (names.JOURNAL_APPENDS, "{step}", "Steps that the store has taken", lambda each: each.appends),
    (names.JOURNAL_SECONDS, "s", "Time for all steps that the store has taken", lambda each: each.append_seconds),
    (names.JOURNAL_FAILURES, "{step}", "Steps that the store has refused", lambda each: each.append_failures),
)

_COUNTS: weakref.WeakKeyDictionary[object, Counts] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def counts_of(meter_provider: metrics.MeterProvider | None, label: Labels) -> Counts:
    """Return the metrics of a provider, which are made only once: an SDK drops the second of two that it has to ask."""
    key = meter_provider or metrics.get_meter_provider()
    with _LOCK:
        found = _COUNTS.get(key)
        if found is None:
            found = _COUNTS[key] = Counts(meter_provider, label)
        return found
