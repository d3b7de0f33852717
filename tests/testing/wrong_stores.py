"""Stores that are wrong in one way each: a right one, in memory, and what they do otherwise."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Collection, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

import anyio
import anyio.lowlevel

from toolbus.errors import StoreError
from toolbus.events import Event
from toolbus.messages import AssistantMessage, Message, UserMessage
from toolbus.records import replace
from toolbus.storage import (
    ConversationRecord,
    Entry,
    InboxReceipt,
    JournalStore,
    PruneReport,
    RequestRecord,
    SettledState,
    StoredFact,
    StoreStatistics,
)
from toolbus.stores.memory import MemoryStore
from toolbus.stores.memory._journal import MemoryJournal

MIB = 2**20
T = TypeVar("T")


class Right:
    """A store over data in memory, which several of them can share. Those below differ in one thing."""

    def __init__(self, data: MemoryStore | None = None) -> None:
        self.data = data or MemoryStore(journal=True)
        assert isinstance(self.data.journal, MemoryJournal)
        self.records = self.data.journal

    def reopened(self) -> Right:
        return type(self)(self.data)

    @property
    def journal(self) -> JournalStore | None:
        return self

    async def history(self, conversation_id: str) -> Sequence[Message]:
        return await self.data.history(conversation_id)

    async def remember(self, conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> None:
        await self.data.remember(conversation_id, messages, request_id=request_id)

    async def conversations(
        self, *, search: str = "", prefix: str = "", limit: int = 100
    ) -> Sequence[ConversationRecord]:
        return await self.data.conversations(search=search, prefix=prefix, limit=limit)

    async def forget(self, conversation_id: str) -> bool:
        return await self.data.forget(conversation_id)

    async def aclose(self) -> None: ...

    async def append(self, entry: Entry) -> int:
        return await self.records.append(entry)

    async def facts(self, request_id: str, *, start: int = 0) -> Sequence[StoredFact]:
        return await self.records.facts(request_id, start=start)

    async def request(self, request_id: str) -> RequestRecord | None:
        return await self.records.request(request_id)

    async def requests(
        self,
        *,
        conversation_id: str | None = None,
        prefix: str = "",
        is_unfinished: bool = False,
        limit: int = 100,
    ) -> Sequence[RequestRecord]:
        return await self.records.requests(
            conversation_id=conversation_id, prefix=prefix, is_unfinished=is_unfinished, limit=limit
        )

    async def unfinished(self, *, limit: int = 1_000) -> Sequence[RequestRecord]:
        return await self.records.unfinished(limit=limit)

    async def take(self, request_id: str, owner: str, seconds: float) -> RequestRecord | None:
        return await self.records.take(request_id, owner, seconds)

    async def renew(self, owner: str, seconds: float) -> Collection[str]:
        return await self.records.renew(owner, seconds)

    async def release(self, request_id: str, epoch: int) -> bool:
        return await self.records.release(request_id, epoch)

    async def abandon(self, request_id: str, epoch: int) -> bool:
        return await self.records.abandon(request_id, epoch)

    async def take_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        return await self.records.take_turn(conversation_id, request_id, owner, seconds)

    async def renew_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        return await self.records.renew_turn(conversation_id, request_id, owner, seconds)

    async def return_turn(self, conversation_id: str, request_id: str) -> None:
        await self.records.return_turn(conversation_id, request_id)

    async def prune(self, *, before: float, conversations: bool = False) -> PruneReport:
        return await self.records.prune(before=before, conversations=conversations)

    async def statistics(self) -> StoreStatistics:
        return await self.records.statistics()

    async def send(self, event: Event) -> InboxReceipt:
        return await self.records.send(event)

    async def receipt(self, request_id: str, event_id: str) -> InboxReceipt:
        return await self.records.receipt(request_id, event_id)

    async def waiting(
        self, owner: str, *, request_id: str = "", without: Collection[str] = (), limit: int = 100
    ) -> Sequence[Event]:
        return await self.records.waiting(owner, request_id=request_id, without=without, limit=limit)

    async def settle(self, request_id: str, event_id: str, state: SettledState, reason: str = "") -> None:
        await self.records.settle(request_id, event_id, state, reason)

    async def park(self, request_id: str, epoch: int, seconds: float) -> bool:
        return await self.records.park(request_id, epoch, seconds)

    async def known(self, request_id: str) -> RequestRecord:
        record = await self.records.request(request_id)
        assert record is not None
        return record


# ------------------------------------------------------------------------------------------------- histories


class GivesItsOwnList(Right):
    """A history that was given grows."""

    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.given: dict[str, list[Message]] = {}

    async def history(self, conversation_id: str) -> Sequence[Message]:
        given = self.given.setdefault(conversation_id, [])
        given[:] = await super().history(conversation_id)
        return given


class ForgetsVendorData(Right):
    async def history(self, conversation_id: str) -> Sequence[Message]:
        return [
            replace(each, vendor_data=None) if isinstance(each, AssistantMessage) else each
            for each in await super().history(conversation_id)
        ]


class RefusesHalfCharacters(Right):
    async def remember(self, conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> None:
        for each in messages:
            if isinstance(each, UserMessage) and isinstance(each.content, str):
                each.content.encode()
        await super().remember(conversation_id, messages, request_id=request_id)


class StripsIds(Right):
    async def history(self, conversation_id: str) -> Sequence[Message]:
        return await super().history(conversation_id.strip(" "))

    async def remember(self, conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> None:
        await super().remember(conversation_id.strip(" "), messages, request_id=request_id)


class RefusesLargeTurns(Right):
    async def remember(self, conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> None:
        if sum(len(repr(each)) for each in messages) > 4 * MIB:
            raise StoreError("the turn is too large")
        await super().remember(conversation_id, messages, request_id=request_id)


class RemembersInPieces(Right):
    """Readers see half a turn."""

    async def remember(self, conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> None:
        if len(messages) != 3:
            return await super().remember(conversation_id, messages, request_id=request_id)
        with anyio.CancelScope(shield=True):
            for each in messages:
                await super().remember(conversation_id, [each], request_id=request_id)
                await anyio.lowlevel.checkpoint()
        return None


class WritesHistoriesAnew(Right):
    """A turn is added to what was read before, under a lock that the other store does not have."""

    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.lock = anyio.Lock()

    async def remember(self, conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> None:
        if not conversation_id.startswith("many-turns"):
            return await super().remember(conversation_id, messages, request_id=request_id)
        async with self.lock:
            before = [*await super().history(conversation_id)]
            await anyio.lowlevel.checkpoint()
            if before:
                await self.data.forget(conversation_id)
            await super().remember(conversation_id, [*before, *messages], request_id=request_id)
        return None


class RemembersHalfWhenCancelled(Right):
    async def remember(self, conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> None:
        try:
            await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class():
            await super().remember(conversation_id, messages[:2], request_id=request_id)
            raise
        await super().remember(conversation_id, messages, request_id=request_id)


class RemembersLateWhenCancelled(Right):
    """A thread goes on with what was cancelled, and nobody waits for it."""

    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.late: list[tuple[str, Sequence[Message]]] = []

    async def remember(self, conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> None:
        try:
            await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class():
            self.late.append((conversation_id, messages))
            raise
        while self.late:
            await super().remember(*self.late.pop())
        await super().remember(conversation_id, messages, request_id=request_id)


class BreaksWhenAReadingIsCancelled(Right):
    """Its connection is left in the middle of an answer."""

    is_broken = False

    async def history(self, conversation_id: str) -> Sequence[Message]:
        return await self.read(super().history(conversation_id))

    async def read(self, reading: Awaitable[T]) -> T:
        found = await reading
        if self.is_broken:
            raise StoreError("another answer is being read")
        try:
            await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class():
            self.is_broken = True
            raise
        return found


class ListsByBeginning(Right):
    async def conversations(
        self, *, search: str = "", prefix: str = "", limit: int = 100
    ) -> Sequence[ConversationRecord]:
        found = await super().conversations(search=search, prefix=prefix)
        return sorted(found, key=lambda each: -each.started_at)[:limit]


class HasWildCardsInPrefixes(Right):
    async def conversations(
        self, *, search: str = "", prefix: str = "", limit: int = 100
    ) -> Sequence[ConversationRecord]:
        pattern = prefix.replace("%", "*").replace("_", "?") + "*"
        found = await super().conversations(search=search)
        return [each for each in found if fnmatchcase(each.conversation_id, pattern)][:limit]


class TitlesAreWholePrompts(Right):
    async def conversations(
        self, *, search: str = "", prefix: str = "", limit: int = 100
    ) -> Sequence[ConversationRecord]:
        found = await super().conversations(search=search, prefix=prefix, limit=limit)
        return [replace(each, title=each.title + " word" * 1_000) if "word" in each.title else each for each in found]


class _Searches(Right):
    async def conversations(
        self, *, search: str = "", prefix: str = "", limit: int = 100
    ) -> Sequence[ConversationRecord]:
        found: list[ConversationRecord] = []
        for each in await super().conversations(prefix=prefix):
            texts = [
                str(getattr(m, "text", getattr(m, "content", ""))) for m in await self.history(each.conversation_id)
            ]
            if not search or any(self.has(text, search) for text in texts):
                found.append(each)
        return found[:limit]

    def has(self, text: str, search: str) -> bool:
        raise NotImplementedError


class HasWildCards(_Searches):
    def has(self, text: str, search: str) -> bool:
        pattern = re.escape(search).replace("%", ".*").replace("_", ".")
        return re.search(pattern, text, re.IGNORECASE | re.ASCII | re.DOTALL) is not None


class FoldsAllLetters(_Searches):
    def has(self, text: str, search: str) -> bool:
        return search.casefold() in text.casefold()


class AlwaysForgets(Right):
    async def forget(self, conversation_id: str) -> bool:
        await super().forget(conversation_id)
        return True


class RemembersNothingWhenClosed(Right):
    is_open = True

    async def aclose(self) -> None:
        self.is_open = False

    async def remember(self, conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> None:
        if not self.is_open:
            raise StoreError("the store is closed")
        await super().remember(conversation_id, messages, request_id=request_id)


# ------------------------------------------------------------------------------------------------- outliving


class AppendsNothingWhenClosed(Right):
    is_open = True

    async def aclose(self) -> None:
        self.is_open = False

    async def append(self, entry: Entry) -> int:
        if not self.is_open and entry.request_id.startswith("closing-with-a-journal"):
            raise StoreError("the store is closed")
        return await super().append(entry)


class ForgetsForItselfAlone(Right):
    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.forgotten: dict[str, int] = {}

    async def history(self, conversation_id: str) -> Sequence[Message]:
        return (await super().history(conversation_id))[self.forgotten.get(conversation_id, 0) :]

    async def forget(self, conversation_id: str) -> bool:
        if not conversation_id.startswith("survival"):
            return await super().forget(conversation_id)
        self.forgotten[conversation_id] = len(await super().history(conversation_id))
        return True


class GivesLeasesBackWhenClosed(Right):
    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.begun: list[str] = []

    async def append(self, entry: Entry) -> int:
        self.begun.append(entry.request_id)
        return await super().append(entry)

    async def aclose(self) -> None:
        for each in self.begun:
            await super().release(each, 1)


class KeepsHistoriesInMind(Right):
    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.read: dict[str, Sequence[Message]] = {}

    async def history(self, conversation_id: str) -> Sequence[Message]:
        if conversation_id not in self.read:
            self.read[conversation_id] = await super().history(conversation_id)
        return self.read[conversation_id]

    async def remember(self, conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> None:
        self.read.pop(conversation_id, None)
        await super().remember(conversation_id, messages, request_id=request_id)

    async def append(self, entry: Entry) -> int:
        self.read.pop(entry.conversation_id, None)
        return await super().append(entry)

    async def forget(self, conversation_id: str) -> bool:
        self.read.pop(conversation_id, None)
        return await super().forget(conversation_id)

    async def prune(self, *, before: float, conversations: bool = False) -> PruneReport:
        self.read.clear()
        return await super().prune(before=before, conversations=conversations)


class DropsItsQueue(Right):
    """What is under way when it is closed is said to be written."""

    closing = False

    async def append(self, entry: Entry) -> int:
        if entry.seq > 0:
            await anyio.lowlevel.checkpoint()
            if self.closing:
                return 0
        return await super().append(entry)

    async def aclose(self) -> None:
        self.closing = True
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        self.closing = False
