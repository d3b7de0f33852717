"""The requests that have not ended, in all processes, with the questions that wait for a person: see `OpenRequest`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..clock import wall_time
from ..core.approval import OpenQuestions
from ..durability import call_store_in_time
from ..errors import StoreDamaged, UnsupportedStoreFormat
from ..events import ApprovalRequested, Event, RequestEnding, RequestStarted
from ..session import RequestSession
from ..storage import JournalStore, RequestRecord

OpenState: TypeAlias = Literal["queued", "running", "parked", "released"]
"""Where an open request is.

"queued": it waits in this process for its turn, or for a slot. "running": a process has it, and may wait for a person.
"parked": no process has it until somebody answers, or its next deadline passes. "released": no process has it; it
continues when a runtime resumes it.
"""


@dataclass(slots=True, frozen=True, kw_only=True)
class OpenRequest:
    """A request that has not ended. `pending_approvals` are the questions to a person, in the order of asking.

    Those of its sub-requests are included, and are answered through the same handle: that of `record.request_id`. A
    question whose decision is "queued" is among them until the request has taken the decision. `problem` is empty, or
    says why the journal of the request cannot be read; then there are no questions.
    """

    record: RequestRecord
    state: OpenState
    prompt: str = ""
    pending_approvals: tuple[ApprovalRequested, ...] = ()
    problem: str = ""


async def open_requests(
    records: Sequence[RequestRecord],
    journal: JournalStore | None,
    local: Callable[[str], RequestSession | None],
) -> list[OpenRequest]:
    """Return the requests of `records`, which `journal` has or which run here. Raises `StoreError`."""
    found: list[OpenRequest] = []
    for record in records:
        session, facts, problem = local(record.request_id), list[Event](), ""
        if session is not None and session.ended:
            session = None  # It was left here, so the journal has it.
        if session is not None:
            facts = list(session.snapshot().facts[:1])
        elif journal is not None:
            try:
                facts = [each.fact for each in await call_store_in_time(journal.facts(record.request_id))]
            except (StoreDamaged, UnsupportedStoreFormat) as exc:
                problem = str(exc)
        if (session is None and not (facts or problem)) or (facts and isinstance(facts[-1], RequestEnding)):
            continue  # It was deleted, or has ended, since its record was read.
        questions = OpenQuestions()
        for fact in facts:
            questions.feed(fact)
        found.append(
            OpenRequest(
                record=record,
                state=_state_of(record, session),
                prompt=_prompt_of(facts, session),
                pending_approvals=tuple(questions) if session is None else session.pending_approvals,
                problem=problem,
            )
        )
    return found


def _prompt_of(facts: Sequence[Event], session: RequestSession | None) -> str:
    if facts:
        return facts[0].prompt if isinstance(facts[0], RequestStarted) else ""
    given = None if session is None else session.snapshot().prompt
    return "" if given is None else given.text


def _state_of(record: RequestRecord, session: RequestSession | None) -> OpenState:
    if session is not None:
        return "running" if record.fact_count else "queued"
    if record.lease_until <= wall_time():
        return "released"
    return "running" if record.owner else "parked"
