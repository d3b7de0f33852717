"""The numbers and the health of a runtime, from what its parts count anyway. Nothing is counted here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..bus import BusStatistics
from ..dispatcher import DispatcherStatistics
from ..durability import JournalWriter
from ..session import RequestSession
from ._admission import Admission
from ._tally import ModelStatistics, ToolStatistics

__all__ = ["RuntimeHealth", "RuntimeStatistics", "health_of", "requests_waiting"]


@dataclass(slots=True, frozen=True)
class RuntimeStatistics:
    """The numbers of a runtime now, with those of its parts.

    `running` counts the requests that have begun and not ended, sub-requests excluded. `waiting` counts those among
    them in which every open call waits for a person. `queued` counts the requests that wait for a slot or for their
    conversation, `places` those that could be taken now, and `refused` those that were refused with `Overloaded` since
    the runtime was made. `approvals` is the number of questions to people. `leases` counts the requests whose leases
    this process holds, and `store_calls_pending` the calls that the store has still to take; both are 0 without a
    journal. What the store has stored is in `await runtime.store.statistics()`, which reads the store. `tools` has the
    numbers of each tool, and `models` those of each model, by "VENDOR:MODEL", since the runtime was made, with those of
    sub-requests; both are empty without `Runtime(detailed_statistics=True)`.
    """

    running: int
    waiting: int
    queued: int
    places: int
    refused: int
    approvals: int
    leases: int
    store_calls_pending: int
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


def requests_waiting(sessions: Iterable[RequestSession]) -> int:
    """Return the number of requests in which every open call waits for a person."""
    return sum(each.snapshot().view.only_waits for each in sessions)


def health_of(
    admission: Admission,
    writer: JournalWriter | None,
    dispatcher: DispatcherStatistics,
    *,
    stopped: str,
    questions_overdue: int,
) -> RuntimeHealth:
    """Return the health of a runtime. `stopped` says why it takes no requests at all, or is empty."""
    reasons = [stopped] if stopped else []
    if not stopped and admission.places <= 0:
        reasons.append(f"{admission.running} requests run and {admission.queued} wait, so no other one is taken")
    ready = not reasons
    if writer is not None and writer.store_fails:
        reasons.append("the store fails")
    if dispatcher.overdue:
        names = ", ".join(sorted(set(dispatcher.overdue)))
        reasons.append(f"{len(dispatcher.overdue)} cancelled calls still run: {names}")
    if questions_overdue:
        reasons.append(f"{questions_overdue} calls have waited too long for a person's decision")
    if dispatcher.stranded:
        reasons.append(f"tools have left a cancel scope or a task group open in {dispatcher.stranded} tasks")
    return RuntimeHealth(ready=ready, reasons=tuple(reasons))
