"""The methods that all stores in databases share: each runs one function of an engine in one of two threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar, TypeVarTuple

import anyio

from ..errors import StoreError
from ..events import Event, MessageAppended, ModelResponded, ToolCallCompleted
from ..messages import Message, size_of
from ..storage import ConversationRecord, Entry, InboxReceipt, RequestRecord, SettledState, StoredFact, StoreStatistics
from ._encoding import Written, written
from ._thread import DatabaseThread

_T = TypeVar("_T")
_D = TypeVar("_D")
_Arguments = TypeVarTuple("_Arguments")
_MAX_BYTES = 2**20  # of a turn and of facts that are encoded in the event loop


def _size_of(facts: Iterable[Event]) -> int:
    """Estimate the bytes of the facts that may be large: of messages, and of results."""
    size = 0
    for fact in facts:
        if isinstance(fact, (ModelResponded, MessageAppended)):
            size += size_of((fact.message,))
        elif isinstance(fact, ToolCallCompleted):
            size += len(fact.content) + sum([len(each.content) for each in fact.artifacts])
    return size


class ThreadedStore(ABC, Generic[_D]):
    """A base of stores. One thread writes and another one reads, each with its own connection.

    So long reads do not delay commits, and the event loop waits for no driver. Both threads start at their first job.
    `functions` is a module with a function for each method here, of the same name (`send_all` for `send`), which gets a
    connection first. `connect` makes a connection by a deadline, which only reads if its second argument is true, and
    `append_all` writes a group of appends: see `DatabaseThread`. The methods are described in `Store`, `JournalStore`
    and `Inbox`.
    """

    def __init__(
        self,
        name: str,
        functions: Any,
        connect: Callable[[float, bool], _D],
        append_all: Callable[[_D, Sequence[Any]], Sequence[int | StoreError]],
        timeout_seconds: float,
    ) -> None:
        self._functions = functions
        self._writer: DatabaseThread[Any, Any] = DatabaseThread(
            f"{name} writer", lambda deadline: connect(deadline, False), append_all, timeout_seconds=timeout_seconds
        )
        self._reader: DatabaseThread[Any, Any] = DatabaseThread(
            f"{name} reader", lambda deadline: connect(deadline, True), timeout_seconds=timeout_seconds
        )

    @property
    def journal(self) -> Self:
        """The store itself."""
        return self

    @abstractmethod
    def _around(self, database: _D, *, reads: bool) -> AbstractContextManager[None]:
        """Return what a function of the connection runs in, such as a transaction."""

    async def _read(
        self, function: Callable[[_D, *_Arguments], _T], *arguments: *_Arguments, seconds: float | None = None
    ) -> _T:
        """Call a function in the thread that reads, with its connection and the arguments."""
        return await self._run(self._reader, function, arguments, seconds)

    async def _write(
        self, function: Callable[[_D, *_Arguments], _T], *arguments: *_Arguments, seconds: float | None = None
    ) -> _T:
        """Call a function in the thread that writes, with its connection and the arguments."""
        return await self._run(self._writer, function, arguments, seconds)

    async def _run(
        self,
        thread: DatabaseThread[Any, Any],
        function: Callable[[_D, *_Arguments], _T],
        arguments: tuple[*_Arguments],
        seconds: float | None,
    ) -> _T:
        def run(database: _D) -> _T:
            with self._around(database, reads=thread is self._reader):
                return function(database, *arguments)

        return await thread.run(run, seconds=seconds)

    async def _encoded(self, entry: Entry) -> Written:
        """Return the entry as it is stored. A thread encodes long texts, which may take 100 ms and more."""
        if (entry.agreed or {}).get("history") or size_of(entry.turn) + _size_of(entry.facts) > _MAX_BYTES:
            return await anyio.to_thread.run_sync(written, entry, abandon_on_cancel=True)
        return written(entry)

    async def aclose(self) -> None:
        await self._reader.aclose()
        await self._writer.aclose()

    async def history(self, conversation_id: str) -> Sequence[Message]:
        """See `Store.history`. Raises `StoreDamaged` if the messages of toolbus are not what was written."""
        return await self._read(self._functions.history, conversation_id)

    async def conversations(
        self, *, search: str = "", prefix: str = "", limit: int = 100
    ) -> Sequence[ConversationRecord]:
        """See `Store.conversations`. A search reads all messages."""
        return await self._read(self._functions.conversations, search, prefix, limit)

    async def facts(self, request_id: str, *, start: int = 0) -> Sequence[StoredFact]:
        return await self._read(self._functions.facts, request_id, start)

    async def request(self, request_id: str) -> RequestRecord | None:
        return await self._read(self._functions.request, request_id)

    async def requests(
        self,
        *,
        conversation_id: str | None = None,
        prefix: str = "",
        is_unfinished: bool = False,
        limit: int = 100,
    ) -> Sequence[RequestRecord]:
        return await self._read(self._functions.requests, conversation_id, prefix, is_unfinished, limit)

    async def unfinished(self, *, limit: int = 1_000) -> Sequence[RequestRecord]:
        return await self._read(self._functions.unfinished, limit)

    async def renew(self, owner: str, seconds: float) -> Collection[str]:
        return await self._write(self._functions.renew, owner, seconds)

    async def release(self, request_id: str, epoch: int) -> bool:
        return await self._write(self._functions.release, request_id, epoch)

    async def statistics(self) -> StoreStatistics:
        found = await self._read(self._functions.statistics)
        writer = self._writer
        return replace(found, appends=writer.appends, commits=writer.commits, queued_peak=writer.queued_peak)

    async def renew_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        return await self._write(self._functions.renew_turn, conversation_id, request_id, owner, seconds)

    async def return_turn(self, conversation_id: str, request_id: str) -> None:
        await self._write(self._functions.return_turn, conversation_id, request_id)

    async def send(self, event: Event) -> InboxReceipt:
        return await self._writer.together(self._functions.send_all, event)

    async def receipt(self, request_id: str, event_id: str) -> InboxReceipt:
        return await self._read(self._functions.receipt, request_id, event_id)

    async def waiting(
        self, owner: str, *, request_id: str = "", without: Collection[str] = (), limit: int = 100
    ) -> Sequence[Event]:
        known = frozenset(without)  # The caller may change its collection while the thread reads.
        return await self._read(self._functions.waiting, owner, request_id, known, limit)

    async def settle(self, request_id: str, event_id: str, state: SettledState, reason: str = "") -> None:
        await self._write(self._functions.settle, request_id, event_id, state, reason)

    async def park(self, request_id: str, epoch: int, seconds: float) -> bool:
        return await self._write(self._functions.park, request_id, epoch, seconds)
