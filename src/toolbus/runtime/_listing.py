"""The list of requests that a runtime and its store know. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..storage import RequestRecord


def requests_listed(here: Iterable[RequestRecord], stored: Sequence[RequestRecord], limit: int) -> list[RequestRecord]:
    """Return the records of requests in this process and in the store, at most `limit`, the newest first.

    `here` are those in this process. One that the store knows has the store's record.
    """
    known = {each.request_id for each in stored}
    # One that is not among `stored` has not begun, is in no journal, or began before all of these.
    own = [each for each in here if each.request_id not in known]
    return sorted([*reversed(own), *stored], key=lambda each: -each.started_at)[: max(0, limit)]
