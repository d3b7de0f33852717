"""A store in a database: the engine that `SqliteStore` and `PostgresStore` share.

Combines the two threads with the functions of `append`, `read`, `upkeep` and `archive`. Knows no dialect.

Example:
    import tempfile
    from pathlib import Path

    from toolbus.stores.sql.engine import DatabaseStore
    from toolbus.stores.sqlite import SqliteStore

    store: DatabaseStore = SqliteStore(Path(tempfile.mkdtemp(), "toolbus.db"))
    print(await store.history("user-1"))  # []
    await store.aclose()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ...errors import StoreError
from ...messages import Message
from ...storage import ConversationRecord, Entry, PruneReport, RequestRecord, StoredFact
from .._encoding import Written, turn_of
from .._thread import TIMEOUT_SECONDS, DatabaseThread
from .._threaded_store import ThreadedStore
from ..archive import Input
from . import archive as _archiving
from . import functions as _functions
from . import inbox as _inbox
from . import order as _order
from . import read as _reading
from . import upkeep as _upkeep
from .append import append_all, remember
from .database import Database
from .read import Salvage

__all__ = ["DatabaseStore"]

# The requests or conversations that one transaction deletes, because appends wait for it.
_BATCH = 100
# The time for reading or checking much data, which no running request waits for.
_LONG_SECONDS = 600.0
_T = TypeVar("_T")


class DatabaseStore(ThreadedStore):
    """A store in a database: `Store`, `JournalStore` and `Inbox`. May be used from several event loops at once.

    One thread writes, and puts all appends that wait into one transaction. Another thread, with a connection of its
    own, reads, so that long reads do not delay commits. Both start at their first job, and each call is answered
    within five seconds. A call that writes and is cancelled has been done as a whole, or not at all.
    """

    def __init__(
        self, name: str, connect: Callable[[float, bool], Database], *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        writer: DatabaseThread[Database, Written] = DatabaseThread(
            f"{name} writer", lambda deadline: connect(deadline, False), append_all, timeout_seconds=timeout_seconds
        )
        reader: DatabaseThread[Database, Written] = DatabaseThread(
            f"{name} reader", lambda deadline: connect(deadline, True), timeout_seconds=timeout_seconds
        )
        super().__init__(_functions, writer, reader)

    @property
    def journal(self) -> DatabaseStore:
        """The store itself."""
        return self

    async def open(self) -> None:
        """Connect, check that the database can be used, and create its tables if it has none.

        Otherwise the first call does so. Raises `StoreError`, whose text says what is wrong and what to do.
        """
        await self._write(_nothing)

    async def _read(self, function: Callable[[Database], _T], seconds: float | None = None) -> _T:
        def reading(database: Database) -> _T:
            with database.transaction(reading=True):
                return function(database)

        return await super()._read(reading, seconds)

    # ----------------------------------------------------------------------------------------- conversations

    async def remember(self, conversation_id: str, messages: Sequence[Message]) -> None:
        """See `Store.remember`."""
        turn = turn_of(conversation_id, messages)

        def write(database: Database) -> None:
            with database.transaction():
                remember(database, [turn])

        await self._write(write)

    async def forget(self, conversation_id: str) -> bool:
        """See `Store.forget`. The conversation is gone after one transaction; others then delete its data in pieces.

        If it is cancelled or fails in between, the next call of `forget` or `prune`, for whatever conversation, deletes
        what is left.
        """
        there_was = await self._write(lambda database: _upkeep.forget(database, conversation_id))
        await self._delete_rest()
        return there_was

    async def _delete_rest(self) -> None:
        while await self._write(_upkeep.delete_some):
            pass

    # -------------------------------------------------------------------------------------------- the journal

    async def append(self, entry: Entry) -> int:
        """See `JournalStore.append`."""
        return await self._writer.append(await self._encoded(entry))

    async def salvage(self, request_id: str) -> Salvage:
        """Return a request's facts up to the last whole step before the first damage, and the damage, if any."""

        def read(database: Database) -> Salvage:
            found = _reading.salvage(database, request_id)
            found.cut_to_a_step()
            return found

        return await self._read(read, _LONG_SECONDS)

    async def cut(self, request_id: str, epoch: int) -> int | None:
        """Delete the facts that `salvage` leaves out, so that the request can be resumed; return how many are left.

        `epoch` is that of the caller's lease. Returns None if another process has taken the request since.
        """
        return await self._write(lambda database: _upkeep.cut(database, request_id, epoch))

    async def take(self, request_id: str, owner: str, seconds: float) -> RequestRecord | None:
        """See `JournalStore.take`."""
        return await self._write(lambda database: _upkeep.take(database, request_id, owner, seconds))

    async def abandon(self, request_id: str, epoch: int) -> bool:
        """See `JournalStore.abandon`."""
        return await self._write(lambda database: _upkeep.abandon(database, request_id, epoch))

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
                some = await self._write(lambda database, step=step: step(database, before, _BATCH))
                if not some.requests and not some.conversations:
                    break
                done.requests += some.requests
                done.conversations += some.conversations
                done.size_bytes += some.size_bytes
        await self._delete_rest()
        # Most of them were deleted with their requests: all of them could take longer than a call may.
        await self._write(lambda database: _order.drop_old(database, before))
        return done

    # ------------------------------------------------------------------------------------------- the archive

    async def request_ids(self, *, after: str = "", limit: int = 1_000) -> Sequence[str]:
        """See `Archive`."""
        return await self._read(lambda database: _archiving.request_ids(database, after, limit))

    async def conversation_records(
        self, *, after: str | None = None, limit: int = 1_000
    ) -> Sequence[ConversationRecord]:
        """See `Archive`."""
        return await self._read(lambda database: _archiving.conversation_ids(database, after, limit))

    async def turns(self, conversation_id: str) -> Sequence[tuple[str, Message]]:
        """See `Archive`."""
        return await self._read(lambda database: _reading.turns(database, conversation_id), _LONG_SECONDS)

    async def faults(self) -> Sequence[str]:
        """See `Archive`."""
        return await self._read(_archiving.faults, _LONG_SECONDS)

    async def inputs(self, request_id: str) -> Sequence[Input | StoreError]:
        """See `Archive`."""
        return await self._read(lambda database: _inbox.inputs(database, request_id), _LONG_SECONDS)

    async def restore_request(
        self, record: RequestRecord, facts: Sequence[StoredFact], inputs: Sequence[Input]
    ) -> None:
        """See `Archive`."""
        await self._write(
            lambda database: _archiving.restore_request(database, record, facts, inputs), seconds=_LONG_SECONDS
        )

    async def restore_conversation(self, record: ConversationRecord, turns: Sequence[tuple[str, Message]]) -> None:
        """See `Archive`."""
        await self._write(
            lambda database: _archiving.restore_conversation(database, record, turns), seconds=_LONG_SECONDS
        )


def _nothing(_database: Database) -> None:
    """Do nothing: `open` only needs the connection that is made before."""
