"""The list of requests that a runtime and its store know. Knows sessions and the records of stores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..handles import record_of
from ..session import RequestSession
from ..storage import RequestRecord

__all__ = ["requests_listed"]


def requests_listed(
    sessions: Iterable[RequestSession], stored: Sequence[RequestRecord], conversation_id: str | None, limit: int
) -> list[RequestRecord]:
    """Return the records of a conversation's requests, or of all, at most `limit`, the newest first.

    `sessions` are those of this process, the oldest first. One that the store knows has the store's record.
    """
    known = {each.request_id for each in stored}
    # Only requests that have not begun, or that no journal has, are not in the store. These are the newest ones.
    own = [
        record_of(each)
        for each in sessions
        if each.request_id not in known and conversation_id in (None, each.conversation_id)
    ]
    own.sort(key=lambda each: each.begun_at)
    return [*reversed(own), *stored][: max(0, limit)]
