"""The requests of a journal: the rows of the list, and one request that is followed. Knows journals and handles."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel

from ...clock import wall_time
from ...errors import StoreError
from ...events import Event
from ...handles import RequestHandle
from ...storage import JournalStore, RequestRecord
from ._fold import RequestFold, ToolFacts
from ._shown import shown_text

_MAX_EVENTS = 5_000
_MAX_READ = 30  # requests whose facts are read for one answer; the others come with the next one
_MAX_KEPT = 600
_LOOK_SECONDS = 0.3
_SLICE = 50


@dataclass(slots=True, eq=False)
class _Listed:
    """The facts of one request of the list, as far as they were read. Its fold is dropped once it has ended.

    `problem` is the reason why they could not be read.
    """

    facts: int = 0
    fold: RequestFold | None = None
    problem: str = ""
    summary: dict[str, Any] | None = None


class StoredList:
    """The newest requests of a journal as rows, and the older ones that are open. Facts are read once each."""

    def __init__(self, journal: JournalStore) -> None:
        self._journal = journal
        self._known: OrderedDict[str, _Listed] = OrderedDict()

    async def rows(self, limit: int, *, without: Container[str] = ()) -> list[dict[str, Any]]:
        """Return at most `limit` requests, but not those in `without`, the newest first. Raises `StoreError`."""
        found: list[dict[str, Any]] = []
        left = _MAX_READ
        newest = await self._journal.requests(limit=limit)
        known_ids = {each.request_id for each in newest}
        older = await self._journal.requests(is_unfinished=True, limit=limit)
        for record in [*newest, *(each for each in older if each.request_id not in known_ids)]:
            if record.request_id in without:
                continue
            known = self._known.setdefault(record.request_id, _Listed())
            self._known.move_to_end(record.request_id)
            if (known.summary is None or known.facts < record.fact_count) and left:
                left -= 1
                await self._read(record, known)
            row = _row(record, known.summary)
            found.append({**row, "doing": known.problem} if known.problem else row)
        while len(self._known) > _MAX_KEPT:
            self._known.popitem(last=False)
        return shortened(found, limit)

    async def _read(self, record: RequestRecord, known: _Listed) -> None:
        fold = known.fold or RequestFold(record.request_id)
        if known.fold is None:
            known.facts = 0
        try:
            stored = await self._journal.facts(record.request_id, start=known.facts)
        except StoreError as exc:
            known.facts, known.summary = record.fact_count, fold.summary()
            known.problem = shown_text(str(exc), 300)
            return
        for number, each in enumerate(stored):
            fold.feed(each.fact)
            if number % _SLICE == 0:
                await anyio.lowlevel.checkpoint()
        known.facts += len(stored)
        known.summary, known.problem = fold.summary(), ""
        known.fold = None if record.ending is not None else fold


def shortened(rows: list[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """Return at most `limit` of the rows, the newest first: an open request is left out after all that have ended."""
    kept = sorted(range(len(rows)), key=lambda number: (rows[number]["ended_at"] is not None, number))[:limit]
    return [rows[number] for number in sorted(kept)]


def _row(record: RequestRecord, summary: dict[str, Any] | None) -> dict[str, Any]:
    """Return a row of the list, made of the facts that were read and of the record."""
    row = summary or RequestFold(record.request_id).summary()
    row = {**row, "conversation_id": record.conversation_id, "started_at": row["started_at"] or record.started_at}
    if record.ending is not None:
        return {**row, "state": record.ending, "ended_at": row["ended_at"] or record.ended_at}
    is_held = bool(record.owner) and record.lease_until > wall_time()
    if not is_held:
        waits = bool(row["questions"]) or record.lease_until > wall_time()  # The latter is parked.
        row["doing"] = (
            f"{row['doing']}; no process holds it" if waits else "is held by no process, and waits to be resumed"
        )
        row["state"] = "waiting" if waits else "released"
    return row


class FollowedRequest:
    """One request that is followed through its handle, wherever it runs. Any number of readers may share it."""

    def __init__(self, handle: RequestHandle, tool_facts: ToolFacts) -> None:
        self.fold = RequestFold(handle.request_id, tool_facts)
        self.version = 0
        self.is_closed = False
        self.events: deque[Event] = deque(maxlen=_MAX_EVENTS)  # the newest ones
        self._reader = handle.events()
        self._lock = anyio.Lock()

    @property
    def first(self) -> int:
        """The number of the first event that is kept."""
        return self.version - len(self.events)

    async def update(self) -> None:
        """Read what is new, for at most 0.3 s. Raises what `RequestEvents` raises."""
        async with self._lock:
            with anyio.move_on_after(_LOOK_SECONDS):
                async for event in self._reader:
                    self.fold.feed(event)
                    self.events.append(event)
                    self.version += 1
                    if self.version % _SLICE == 0:
                        await anyio.lowlevel.checkpoint()

    def close(self) -> None:
        self.is_closed = True
        self._reader.close()
