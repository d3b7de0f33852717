"""Queries for people, which no session needs: lists of requests, ids by prefix, and what a prune would delete.

Each function is called with a reader's connection, within a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...errors import StoreError
from ...events import RequestStarted
from ...storage import ConversationRecord, PruneReport, RequestRecord
from .._encoding import UNREADABLE, conversation_from, fact_from, stored
from . import _read
from ._database import Database
from ._upkeep import OLD_CONVERSATIONS

__all__ = ["FoundRequest", "conversation", "ids_that_begin", "prunable", "requests"]

_BEGINNINGS = {
    "conversation": "SELECT conversation_id FROM conversations WHERE substr(conversation_id, 1, ?) = ? LIMIT 2",
    "request": "SELECT request_id FROM requests WHERE substr(request_id, 1, ?) = ? LIMIT 2",
}
_OLD_REQUESTS = "SELECT count(*), coalesce(sum(size_bytes), 0) FROM requests WHERE ended_at < ?"
_OLD_CONVERSATIONS = f"SELECT count(*), coalesce(sum(size_bytes), 0) {OLD_CONVERSATIONS}"


@dataclass(slots=True, frozen=True)
class FoundRequest:
    """A request and its prompt, which is empty if the first fact cannot be read.

    Of a request whose record is damaged, at least the ids are there: it must not hide the others.
    """

    record: RequestRecord
    prompt: str


def requests(
    database: Database,
    conversation_id: str | None,
    is_unfinished: bool,  # noqa: FBT001 -- see `ThreadedStore`
    limit: int,
) -> Sequence[FoundRequest]:
    """Return the newest requests, oldest first, with their prompts: see `JournalStore.requests`."""
    found = _read.requests(database, conversation_id, "", is_unfinished, limit)
    return [FoundRequest(each, _prompt_of(database, each.request_id)) for each in reversed(found)]


def _prompt_of(database: Database, request_id: str) -> str:
    """Return the prompt in the first fact. Only that fact is read, so that damage after it does no harm."""

    def fetch(digest: bytes) -> bytes:
        return stored(database.rows("SELECT data FROM blobs WHERE digest = ?", (digest,))[0][0])

    rows = database.rows("SELECT data FROM facts WHERE request_id = ? AND seq = 0", (request_id,))
    try:
        first = fact_from(stored(rows[0][0]), fetch, "the first fact") if rows else None
    except (StoreError, *UNREADABLE):
        return ""
    return first.prompt if isinstance(first, RequestStarted) else ""


def ids_that_begin(database: Database, kind: Literal["conversation", "request"], beginning: str) -> Sequence[str]:
    """Return at most two ids that begin with a text, or only that text if it is an id itself."""
    found = [row[0] for row in database.rows(_BEGINNINGS[kind], (len(beginning), beginning))]
    return [beginning] if beginning in found else found


def conversation(database: Database, conversation_id: str) -> ConversationRecord | None:
    """Return the record of one conversation; None for an unknown one."""
    row = database.one(f"{_read.LISTED} WHERE conversation_id = ?", (conversation_id,))
    return None if row is None else conversation_from(row)


def prunable(database: Database, before: float, conversations: bool) -> PruneReport:  # noqa: FBT001 -- as above
    """Count what `JournalStore.prune` would delete."""
    [[requests_, size]] = database.rows(_OLD_REQUESTS, (before,))
    talks = talks_size = 0
    if conversations:
        [[talks, talks_size]] = database.rows(_OLD_CONVERSATIONS, (before, before))
    return PruneReport(requests=requests_, conversations=talks, size_bytes=int(size + talks_size))
