"""The methods that all stores in databases have alike: each runs one function of an engine in one of two threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from ..messages import Message
from ..storage import ConversationRecord, RequestRecord, StoredFact, StoreStatistics
from ._thread import DatabaseThread

__all__ = ["Engine", "ThreadedStore"]

_T = TypeVar("_T")


class Engine(Protocol):
    """The functions of one kind of database. A module is one; each function gets a connection first.

    Each is described by the method of `Store` or `JournalStore` that has its name.
    """

    @property
    def history(self) -> Callable[[Any, str], Sequence[Message]]: ...
    @property
    def conversations(self) -> Callable[[Any, str, str, int], Sequence[ConversationRecord]]: ...
    @property
    def facts(self) -> Callable[[Any, str, int], Sequence[StoredFact]]: ...
    @property
    def request(self) -> Callable[[Any, str], RequestRecord | None]: ...
    @property
    def requests(self) -> Callable[[Any, str | None, int], Sequence[RequestRecord]]: ...
    @property
    def unfinished(self) -> Callable[[Any, int], Sequence[RequestRecord]]: ...
    @property
    def renew(self) -> Callable[[Any, str, float], int]: ...
    @property
    def release(self) -> Callable[[Any, str, int], bool]: ...
    @property
    def statistics(self) -> Callable[[Any], StoreStatistics]: ...


class ThreadedStore:
    """A base of stores. One thread writes and another one reads, each with a connection of its own.

    So long reads do not delay commits, and the event loop waits for no driver. Both threads start at their first job.
    """

    def __init__(self, functions: Engine, writer: DatabaseThread[Any, Any], reader: DatabaseThread[Any, Any]) -> None:
        self._functions = functions
        self._writer = writer
        self._reader = reader

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

    async def requests(self, *, conversation_id: str | None = None, limit: int = 100) -> Sequence[RequestRecord]:
        """See `JournalStore.requests`."""
        return await self._read(lambda database: self._functions.requests(database, conversation_id, limit))

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
