"""The numbers and the health of a runtime, from what its parts count anyway, and from the endings that it is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ..bus import BusStatistics, EventBus
from ..dispatcher import DispatcherStatistics, ToolDispatcher
from ..durability import JournalWriter
from ._admission import Admission
from ._reminders import Reminders
from ._running import RunningRequests
from ._tally import ModelStatistics, Tally, ToolStatistics


@dataclass(slots=True, frozen=True)
class RuntimeStatistics:
    """The numbers of a runtime now, with those of its parts.

    `running` counts the requests that have begun and not ended, sub-requests excluded. `phases` counts the same
    requests by what they wait for: a "model", "tools", "people" (every open call waits for a person), or nothing
    ("ready"). `queued` counts the requests that wait for a slot or for their conversation, `free_capacity` those that
    could be taken now, and `refused` those that were refused with `Overloaded` since the runtime was made. `failed`
    counts those that have failed since then, by their reasons, which are the codes of errors.
    `pending_approvals` is the number of questions to people, and `approvals_overdue` of those that wait for longer than
    `remind_after_seconds`.

    The next numbers are 0 without a journal. `leases` counts the requests whose leases this process holds, and
    `store_calls_pending` the calls that the store has still to take. Since the runtime was made, the store has taken
    `appends` steps of requests, has needed `append_seconds` for all of them together, and has refused
    `append_failures`; `store_unavailable` is true while it is away. What the store has stored is in
    `await runtime.store.journal.statistics()`, which reads the store.

    `tools` has the numbers of each tool, and `models` those of each model, by "VENDOR:MODEL", since the runtime was
    made, with those of sub-requests; both are empty without `Runtime(detailed_statistics=True)`.

    Example:
        from toolbus import Runtime
        from toolbus.runtime import ModelStatistics, RuntimeHealth, RuntimeStatistics, ToolStatistics
        from toolbus.testing import ScriptedProvider, text

        async with Runtime(ScriptedProvider([text("Hello.")]), detailed_statistics=True) as runtime:
            health: RuntimeHealth = runtime.health()
            await runtime.run("Hello?")
            statistics: RuntimeStatistics = runtime.statistics()
        print(health.ready, statistics.running, statistics.queued)  # True 0 0
        models: list[ModelStatistics] = [*statistics.models.values()]
        tools: dict[str, ToolStatistics] = dict(statistics.tools)
        print(models[0].calls, tools)  # 1 {}
    """

    running: int
    phases: Mapping[str, int]
    queued: int
    free_capacity: int
    refused: int
    failed: Mapping[str, int]
    pending_approvals: int
    approvals_overdue: int
    leases: int
    store_calls_pending: int
    appends: int
    append_seconds: float
    append_failures: int
    store_unavailable: bool
    dispatcher: DispatcherStatistics
    bus: BusStatistics
    tools: Mapping[str, ToolStatistics]
    models: Mapping[str, ModelStatistics]


@dataclass(slots=True, frozen=True)
class RuntimeHealth:
    """The answer to a probe. `ready` says whether a request would be taken now: it is for a readiness probe.

    `reasons` are sentences for operators, without ids: why the runtime is not ready, and what else is wrong. With
    reasons, a runtime that is `ready` is degraded.
    """

    ready: bool
    reasons: tuple[str, ...] = ()

    @property
    def degraded(self) -> bool:
        """True if something is wrong, though a request would be taken."""
        return self.ready and bool(self.reasons)


class Numbers:
    """The present numbers of a runtime, each found when it is read. See `RuntimeStatistics`, and `RuntimeNumbers`.

    They may be read from any thread: what the event loop may change meanwhile is copied first.
    """

    def __init__(
        self,
        bus: EventBus,
        dispatcher: ToolDispatcher,
        admission: Admission,
        requests: RunningRequests,
        writer: JournalWriter | None,
        reminders: Reminders | None,
    ) -> None:
        self._bus = bus
        self._dispatcher = dispatcher
        self._admission = admission
        self._requests = requests
        self._writer = writer
        self._reminders = reminders

    @property
    def running(self) -> int:
        return self._admission.running

    @property
    def phases(self) -> Mapping[str, int]:
        found = Counter(each.snapshot().view.phase for each in [*self._requests.sessions.values()])
        return {phase: found[phase] for phase in ("ready", "model", "tools", "people")}

    @property
    def waiting(self) -> int:
        return self.phases["people"]

    @property
    def queued(self) -> int:
        return self._admission.queued

    @property
    def refused(self) -> int:
        return self._admission.refused

    @property
    def pending_approvals(self) -> int:
        return self._bus.arbitration.count_questions()

    @property
    def approvals_overdue(self) -> int:
        return 0 if self._reminders is None else self._reminders.overdue(self._bus)

    @property
    def calls_overdue(self) -> int:
        return len(self._dispatcher.statistics().overdue)

    @property
    def lag(self) -> int:
        return max((each.buffered for each in self._bus.statistics().subscriptions), default=0)

    @property
    def leases(self) -> int:
        return 0 if self._writer is None else self._writer.leases

    @property
    def appends(self) -> int:
        return 0 if self._writer is None else self._writer.appends

    @property
    def append_seconds(self) -> float:
        return 0.0 if self._writer is None else self._writer.append_seconds

    @property
    def append_failures(self) -> int:
        return 0 if self._writer is None else self._writer.append_failures

    @property
    def store_unavailable(self) -> bool:
        return self._writer is not None and self._writer.store_unavailable

    def statistics(self, tally: Tally | None) -> RuntimeStatistics:
        """Return all of them as one value."""
        return RuntimeStatistics(
            running=self.running,
            phases=self.phases,
            queued=self.queued,
            free_capacity=self._admission.free_capacity,
            refused=self.refused,
            failed=dict(self._requests.failed),
            pending_approvals=self.pending_approvals,
            approvals_overdue=self.approvals_overdue,
            leases=self.leases,
            store_calls_pending=0 if self._writer is None else self._writer.calls_pending,
            appends=self.appends,
            append_seconds=self.append_seconds,
            append_failures=self.append_failures,
            store_unavailable=self.store_unavailable,
            dispatcher=self._dispatcher.statistics(),
            bus=self._bus.statistics(),
            tools={} if tally is None else tally.tools(),
            models={} if tally is None else tally.models(),
        )

    def health(self, stopped: str) -> RuntimeHealth:
        """Return the health of the runtime. `stopped` says why it takes no requests at all, or is empty."""
        reasons = [stopped] if stopped else []
        if not stopped and self._admission.free_capacity <= 0:
            reasons.append(f"no more requests are accepted: {self.running} running, {self.queued} waiting")
        ready = not reasons
        if self.store_unavailable:
            reasons.append("the store fails")
        dispatcher = self._dispatcher.statistics()
        if dispatcher.overdue:
            names = ", ".join(sorted(set(dispatcher.overdue)))
            reasons.append(f"cancelled calls that still run: {len(dispatcher.overdue)} ({names})")
        if overdue := self.approvals_overdue:
            reasons.append(f"overdue decisions of people: {overdue}")
        if dispatcher.leaked_tasks:
            reasons.append(f"tasks in which a tool left a cancel scope or a task group open: {dispatcher.leaked_tasks}")
        return RuntimeHealth(ready=ready, reasons=tuple(reasons))
