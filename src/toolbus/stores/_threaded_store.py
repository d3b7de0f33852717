"""The methods that all stores in databases share: each runs one function of an engine in one of two threads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeVar

import anyio

from ..events import Event, MessageAppended, ModelResponded, ToolCallCompleted
from ..messages import Message, size_of
from ..storage import ConversationRecord, Entry, InboxReceipt, RequestRecord, SettledState, StoredFact, StoreStatistics
from ._encoding import Written, written
from ._thread import DatabaseThread

_T = TypeVar("_T")
_MAX_BYTES = 2**20  # of a turn and of facts that are encoded in the event loop
# The bytes that one call deletes: a slow disk needs a second for them.
_BATCH_BYTES = 16 * 2**20


def fitting(sizes: Iterable[object]) -> int:
    """Return how many of the things with these sizes one call can delete in time, at least one."""
    numbers = [size if isinstance(size, int) else 0 for size in sizes]  # A damaged size is not a number.
    return max(1, sum(each <= _BATCH_BYTES for each in accumulate(numbers)))


def _size_of(facts: Iterable[Event]) -> int:
    """Estimate the bytes of the facts that may be large: of messages, and of results."""
    size = 0
    for fact in facts:
        if isinstance(fact, (ModelResponded, MessageAppended)):
            size += size_of((fact.message,))
        elif isinstance(fact, ToolCallCompleted):
            size += len(fact.content) + sum([len(each.content) for each in fact.artifacts])
    return size


class ThreadedStore:
    """A base of stores. One thread writes and another one reads, each with its own connection.

    So long reads do not delay commits, and the event loop waits for no driver. Both threads start at their first job.
    `functions` is a module with a function for each method here, of the same name (`send_all` for `send`), which gets a
    connection first.
    """

    def __init__(self, functions: Any, writer: DatabaseThread[Any, Any], reader: DatabaseThread[Any, Any]) -> None:
        self._functions = functions
        self._writer = writer
        self._reader = reader

    async def _encoded(self, entry: Entry) -> Written:
        """Return the entry as it is stored. A thread encodes long texts, which may take 100 ms and more."""
        if (entry.agreed or {}).get("history") or size_of(entry.turn) + _size_of(entry.facts) > _MAX_BYTES:
            return await anyio.to_thread.run_sync(written, entry, abandon_on_cancel=True)
        return written(entry)

    async def aclose(self) -> None:
        """See `Store.aclose`. Ends both threads."""
        await self._reader.aclose()
        await self._writer.aclose()

    async def _read(self, function: Callable[[Any], _T], seconds: float | None = None) -> _T:
        return await self._reader.run(function, seconds=seconds)

    async def _write(self, function: Callable[[Any], _T], seconds: float | None = None) -> _T:
        return await self._writer.run(function, seconds=seconds)

    async def history(self, conversation_id: str) -> Sequence[Message]:
        """See `Store.history`. Raises `StoreDamaged` if the messages of toolbus are not what was written."""
        return await self._read(lambda database: self._functions.history(database, conversation_id))

    async def conversations(
        self, *, search: str = "", prefix: str = "", limit: int = 100
    ) -> Sequence[ConversationRecord]:
        """See `Store.conversations`. A search reads all messages."""
        return await self._read(lambda database: self._functions.conversations(database, search, prefix, limit))

    async def facts(self, request_id: str, *, start: int = 0) -> Sequence[StoredFact]:
        """See `JournalStore.facts`."""
        return await self._read(lambda database: self._functions.facts(database, request_id, start))

    async def request(self, request_id: str) -> RequestRecord | None:
        """See `JournalStore.request`."""
        return await self._read(lambda database: self._functions.request(database, request_id))

    async def requests(
        self, *, conversation_id: str | None = None, is_unfinished: bool = False, limit: int = 100
    ) -> Sequence[RequestRecord]:
        """See `JournalStore.requests`."""
        return await self._read(
            lambda database: self._functions.requests(database, conversation_id, is_unfinished, limit)
        )

    async def unfinished(self, *, limit: int = 1_000) -> Sequence[RequestRecord]:
        """See `JournalStore.unfinished`."""
        return await self._read(lambda database: self._functions.unfinished(database, limit))

    async def renew(self, owner: str, seconds: float) -> int:
        """See `JournalStore.renew`."""
        return await self._write(lambda database: self._functions.renew(database, owner, seconds))

    async def release(self, request_id: str, epoch: int) -> bool:
        """See `JournalStore.release`."""
        return await self._write(lambda database: self._functions.release(database, request_id, epoch))

    async def statistics(self) -> StoreStatistics:
        """See `JournalStore.statistics`."""
        found = await self._read(self._functions.statistics)
        writer = self._writer
        return replace(found, appends=writer.appends, commits=writer.commits, queued_peak=writer.queued_peak)

    async def renew_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        """See `JournalStore.renew_turn`."""
        wanted = (conversation_id, request_id, owner, seconds)
        return await self._write(lambda database: self._functions.renew_turn(database, *wanted))

    async def return_turn(self, conversation_id: str, request_id: str) -> None:
        """See `JournalStore.return_turn`."""
        await self._write(lambda database: self._functions.return_turn(database, conversation_id, request_id))

    async def send(self, event: Event) -> InboxReceipt:
        """See `Inbox.send`."""
        return await self._writer.together(self._functions.send_all, event)

    async def receipt(self, request_id: str, event_id: str) -> InboxReceipt:
        """See `Inbox.receipt`."""
        return await self._read(lambda database: self._functions.receipt(database, request_id, event_id))

    async def waiting(
        self, owner: str, *, request_id: str = "", without: Collection[str] = (), limit: int = 100
    ) -> Sequence[Event]:
        """See `Inbox.waiting`."""
        known = frozenset(without)  # The caller may change its collection while the thread reads.
        return await self._read(lambda database: self._functions.waiting(database, owner, request_id, known, limit))

    async def settle(self, request_id: str, event_id: str, state: SettledState, reason: str = "") -> None:
        """See `Inbox.settle`."""
        await self._write(lambda database: self._functions.settle(database, request_id, event_id, state, reason))

    async def park(self, request_id: str, epoch: int, seconds: float) -> bool:
        """See `Inbox.park`."""
        return await self._write(lambda database: self._functions.park(database, request_id, epoch, seconds))
