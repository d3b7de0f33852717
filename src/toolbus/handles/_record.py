"""The record of a request that runs in this process, as a store would have it."""

from __future__ import annotations

from ..clock import wall_time
from ..session import RequestSession
from ..storage import RequestRecord


def record_of(session: RequestSession) -> RequestRecord:
    """Return the record of a session's request. One that has not begun has no facts, and begins now."""
    found = session.snapshot()
    state, result = found.view.state, found.result
    ending = None if result is None or result.resumable else result.outcome
    return RequestRecord(
        request_id=session.request_id,
        conversation_id=session.conversation_id,
        started_at=state.started_at or wall_time(),
        ended_at=found.facts[-1].at if ending is not None and found.facts else None,
        ending=ending,
        fact_count=state.facts,
    )
