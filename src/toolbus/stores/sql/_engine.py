"""A store in a database: the engine that `SqliteStore` and `PostgresStore` share.

Combines the two threads with the functions of `append`, `read`, `upkeep` and `archive`. Knows no dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from ...errors import StoreError
from ...messages import Message
from ...storage import ConversationRecord, Entry, PruneReport, RequestRecord, StoredFact
from .._encoding import turn_of
from .._thread import TIMEOUT_SECONDS
from .._threaded_store import ThreadedStore
from ..archive import Input, Salvaged
from . import _archive, _functions, _inbox, _order, _read, _upkeep
from ._append import append_all, remember
from ._database import Database

# The requests or conversations that one transaction deletes, because appends wait for it.
_BATCH = 100
# The time for reading or checking much data, which no running request waits for.
_LONG_SECONDS = 600.0


class DatabaseStore(ThreadedStore[Database]):
    """A store in a database: `Store`, `JournalStore`, `Inbox` and `Archive`, for several event loops at once.

    One thread writes, and puts all appends that wait into one transaction. Another thread, with a connection of its
    own, reads, so that long reads do not delay commits. Both start at their first job, and each call is answered
    within five seconds. A call that writes and is cancelled has been done as a whole, or not at all.
    """

    def __init__(
        self, name: str, connect: Callable[[float, bool], Database], *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        super().__init__(name, _functions, connect, append_all, timeout_seconds)

    async def open(self) -> None:
        """Connect, check that the database can be used, and create its tables if it has none.

        Otherwise the first call does so. Raises `StoreError`, whose text says what is wrong and what to do.
        """
        await self._writer.run(lambda _database: None)  # Only the connection that is made before is needed.

    def _around(self, database: Database, *, reads: bool) -> AbstractContextManager[None]:
        return database.transaction(reading=reads)

    # ----------------------------------------------------------------------------------------- conversations

    async def remember(self, conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> None:
        """See `Store.remember`."""
        await self._write(remember, [turn_of(conversation_id, messages, request_id=request_id)], request_id)

    async def forget(self, conversation_id: str) -> bool:
        """See `Store.forget`. The conversation is gone after one transaction; others then delete its data in pieces.

        If it is cancelled or fails in between, the next call of `forget` or `prune`, for whatever conversation, deletes
        what is left.
        """
        there_was = await self._write(_upkeep.forget, conversation_id)
        await self._delete_rest()
        return there_was

    async def _delete_rest(self) -> None:
        while await self._write(_upkeep.delete_some):
            pass

    # -------------------------------------------------------------------------------------------- the journal

    async def append(self, entry: Entry) -> int:
        """See `JournalStore.append`."""
        return await self._writer.append(await self._encoded(entry))

    async def salvage(self, request_id: str) -> Salvaged:
        """Return a request's facts up to the last whole step before the first damage, and the damage, if any."""
        return await self._read(_read.salvage, request_id, seconds=_LONG_SECONDS)

    async def cut(self, request_id: str, epoch: int) -> int | None:
        """Delete the facts that `salvage` leaves out, so that the request can be resumed; return how many are left.

        `epoch` is that of the caller's lease. Returns None if another process has taken the request since.
        """
        return await self._write(_upkeep.cut, request_id, epoch)

    async def take(self, request_id: str, owner: str, seconds: float) -> RequestRecord | None:
        """See `JournalStore.take`."""
        return await self._write(_upkeep.take, request_id, owner, seconds)

    async def abandon(self, request_id: str, epoch: int) -> bool:
        """See `JournalStore.abandon`."""
        return await self._write(_upkeep.abandon, request_id, epoch)

    async def take_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        """See `JournalStore.take_turn`."""
        wanted = _order.WantedTurn(conversation_id, request_id, owner, seconds)
        return await self._writer.together(_order.take_all, wanted)

    async def prune(self, *, before: float, conversations: bool = False) -> PruneReport:
        """See `JournalStore.prune`. Uses many small transactions, with appends in between; may be cancelled."""
        done = PruneReport()
        steps = [_upkeep.prune_requests, *([_upkeep.prune_conversations] if conversations else [])]
        for step in steps:
            while True:
                some = await self._write(step, before, _BATCH)
                if not some.requests and not some.conversations:
                    break
                done += some
        await self._delete_rest()
        # Most of them were deleted with their requests: all of them could take longer than a call may.
        await self._write(_order.drop_old, before)
        return done

    # ------------------------------------------------------------------------------------------- the archive

    async def request_ids(self, *, after: str = "") -> Sequence[str]:
        """See `Archive`."""
        return await self._read(_archive.request_ids, after)

    async def conversation_records(self, *, after: str | None = None) -> Sequence[ConversationRecord]:
        """See `Archive`."""
        return await self._read(_archive.conversation_records, after)

    async def turns(self, conversation_id: str) -> Sequence[tuple[str, Message]]:
        """See `Archive`."""
        return await self._read(_read.turns, conversation_id, seconds=_LONG_SECONDS)

    async def faults(self) -> Sequence[str]:
        """See `Archive`."""
        return await self._read(_archive.faults, seconds=_LONG_SECONDS)

    async def inputs(self, request_id: str) -> Sequence[Input | StoreError]:
        """See `Archive`."""
        return await self._read(_inbox.inputs, request_id, seconds=_LONG_SECONDS)

    async def restore_request(
        self, record: RequestRecord, facts: Sequence[StoredFact], inputs: Sequence[Input]
    ) -> None:
        """See `Archive`."""
        await self._write(_archive.restore_request, record, facts, inputs, seconds=_LONG_SECONDS)

    async def restore_conversation(self, record: ConversationRecord, turns: Sequence[tuple[str, Message]]) -> None:
        """See `Archive`."""
        await self._write(_archive.restore_conversation, record, turns, seconds=_LONG_SECONDS)
