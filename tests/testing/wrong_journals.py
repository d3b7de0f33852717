"""Journals that are wrong in one way each: see `wrong_stores`."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
from wrong_stores import MIB, BreaksWhenAReadingIsCancelled, Right

from toolbus.errors import LeaseLost, StoreError
from toolbus.events import Event, ToolCallCompleted
from toolbus.messages import AssistantMessage, Message, UserMessage
from toolbus.records import replace
from toolbus.storage import ConversationRecord, Entry, PruneReport, RequestRecord, StoredFact, StoreStatistics
from toolbus.stores.memory import MemoryStore

# ------------------------------------------------------------------------------------------------- appending


class StartsAtSteps(Right):
    """Leaves out the rest of a step that `start` is in the middle of."""

    async def facts(self, request_id: str, *, start: int = 0) -> Sequence[StoredFact]:
        every = await super().facts(request_id)
        firsts = [0, *(each.seq + 1 for each in every if each.seq == each.step_end)]
        start = min((first for first in firsts if first >= start), default=len(every))
        return every[start:]


class ForgetsWhatWasAgreed(Right):
    async def append(self, entry: Entry) -> int:
        return await super().append(replace(entry, agreed=None))


class CountsMilliseconds(Right):
    async def request(self, request_id: str) -> RequestRecord | None:
        record = await super().request(request_id)
        return record and replace(record, started_at=record.started_at * 1_000, lease_until=record.lease_until * 1_000)


class ForgetsMetadata(Right):
    async def facts(self, request_id: str, *, start: int = 0) -> Sequence[StoredFact]:
        return [
            replace(each, fact=replace(each.fact, metadata=None))
            for each in await super().facts(request_id, start=start)
        ]


class KeepsTheObjects(Right):
    """Gives the very facts that it was given, whatever has become of them."""

    kept: ClassVar[dict[str, Event]] = {}

    async def append(self, entry: Entry) -> int:
        self.kept.update({fact.event_id: fact for fact in entry.facts})
        return await super().append(entry)

    async def facts(self, request_id: str, *, start: int = 0) -> Sequence[StoredFact]:
        found = await super().facts(request_id, start=start)
        return [replace(each, fact=self.kept[each.fact.event_id]) for each in found]


class RefusesHalfCharactersInFacts(Right):
    async def append(self, entry: Entry) -> int:
        for each in entry.facts:
            message: Any = getattr(each, "message", None)
            if isinstance(message, UserMessage) and isinstance(message.content, str):
                message.content.encode()
        return await super().append(entry)


class CutsLargeFacts(Right):
    async def append(self, entry: Entry) -> int:
        facts = [
            replace(each, content=each.content[: 4 * MIB]) if isinstance(each, ToolCallCompleted) else each
            for each in entry.facts
        ]
        return await super().append(replace(entry, facts=facts))


class TellsTheStepsSize(Right):
    async def append(self, entry: Entry) -> int:
        before = await super().request(entry.request_id)
        return await super().append(entry) - (before.size_bytes if before else 0)


class ShowsHalfSteps(Right):
    """Readers see half a step."""

    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.appearing: set[str] = set()

    async def append(self, entry: Entry) -> int:
        size = await super().append(entry)
        self.appearing.add(entry.request_id)
        try:
            await anyio.lowlevel.checkpoint()
        finally:
            self.appearing.discard(entry.request_id)
        return size

    async def facts(self, request_id: str, *, start: int = 0) -> Sequence[StoredFact]:
        found = await super().facts(request_id, start=start)
        return found[:-1] if request_id in self.appearing else found


class BeginsAgain(Right):
    async def append(self, entry: Entry) -> int:
        if entry.seq == 0 and (record := await super().request(entry.request_id)) is not None:
            return record.size_bytes
        return await super().append(entry)


class LeavesNoGaps(Right):
    """Puts what comes behind a gap in front of it."""

    async def append(self, entry: Entry) -> int:
        record = await super().request(entry.request_id)
        if record is not None and entry.seq > record.fact_count:
            entry = replace(entry, seq=record.fact_count)
        return await super().append(entry)


class KeepsEndsInMind(Right):
    """Reckons with the size that it has told last, though another store may have written meanwhile."""

    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.reported: dict[str, int] = {}

    async def append(self, entry: Entry) -> int:
        before = await super().request(entry.request_id)
        size = await super().append(entry)
        if before is not None and entry.request_id in self.reported:
            size = self.reported[entry.request_id] + size - before.size_bytes
        self.reported[entry.request_id] = size
        return size


class SaysNotWhy(Right):
    """A place that is taken is an error like any other."""

    async def append(self, entry: Entry) -> int:
        record = await super().request(entry.request_id)
        if (
            record is not None
            and record.ending is None
            and record.epoch == entry.epoch
            and entry.seq < record.fact_count
        ):
            raise StoreError(f"place {entry.seq} is taken")
        return await super().append(entry)


class LooksBeforeItWrites(Right):
    """Somebody else may have written meanwhile."""

    async def append(self, entry: Entry) -> int:
        record = await super().request(entry.request_id)
        if record is None or record.ending is not None or entry.epoch != record.epoch or entry.seq != record.fact_count:
            return await super().append(entry)
        await anyio.lowlevel.checkpoint()
        return await super().append(replace(entry, seq=(await self.known(entry.request_id)).fact_count))


class BreaksWhenAReadingOfFactsIsCancelled(BreaksWhenAReadingIsCancelled):
    async def history(self, conversation_id: str) -> Sequence[Message]:
        return await Right.history(self, conversation_id)

    async def facts(self, request_id: str, *, start: int = 0) -> Sequence[StoredFact]:
        return await self.read(super().facts(request_id, start=start))


class _WhenCancelled(Right):
    """Does something wrong when an append is cancelled."""

    async def append(self, entry: Entry) -> int:
        try:
            await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class():
            await self.cancelled(entry)
            raise
        return await super().append(entry)

    async def cancelled(self, entry: Entry) -> None:
        raise NotImplementedError


class BeginsInPart(_WhenCancelled):
    async def cancelled(self, entry: Entry) -> None:
        if entry.seq == 0:
            await super(_WhenCancelled, self).append(replace(entry, facts=entry.facts[:2]))


class WritesInPart(_WhenCancelled):
    async def cancelled(self, entry: Entry) -> None:
        if entry.seq > 0 and entry.ending is None:
            await super(_WhenCancelled, self).append(replace(entry, facts=entry.facts[:2]))


class EndsInPart(_WhenCancelled):
    async def cancelled(self, entry: Entry) -> None:
        if entry.ending is not None:
            await super(_WhenCancelled, self).append(replace(entry, turn=()))


class WritesLate(_WhenCancelled):
    """A thread goes on with what was cancelled, and nobody waits for it."""

    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.late: list[Entry] = []

    async def append(self, entry: Entry) -> int:
        while self.late:
            await super(_WhenCancelled, self).append(self.late.pop())
        return await super().append(entry)

    async def cancelled(self, entry: Entry) -> None:
        if entry.seq > 0 and entry.ending is None:
            self.late.append(entry)


# ------------------------------------------------------------------------------------------------- ending


class KeepsLeasesOfTheEnded(Right):
    async def request(self, request_id: str) -> RequestRecord | None:
        record = await super().request(request_id)
        if record is not None and record.ending not in (None, "abandoned") and record.fact_count == 2:
            return replace(record, owner="worker", lease_until=record.started_at + 3_600)
        return record


class NeverEndsAtOnce(Right):
    async def append(self, entry: Entry) -> int:
        return await super().append(replace(entry, ending=None) if entry.seq == 0 else entry)


class AppendsForDeletedRequests(Right):
    async def remember(self, conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> None:
        del request_id
        await super().remember(conversation_id, messages)


class PutsTurnsInFront(Right):
    async def append(self, entry: Entry) -> int:
        size = await super().append(entry)
        kept: Any = self.data
        if entry.turn:
            messages = kept._conversations._conversations[entry.conversation_id].messages
            messages[:] = [*entry.turn, *messages[: -len(entry.turn)]]
        return size


class ListsTheRememberedAlone(Right):
    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.remembered: set[str] = set()

    async def remember(self, conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> None:
        self.remembered.add(conversation_id)
        await super().remember(conversation_id, messages, request_id=request_id)

    async def conversations(
        self, *, search: str = "", prefix: str = "", limit: int = 100
    ) -> Sequence[ConversationRecord]:
        found = await super().conversations(search=search, prefix=prefix, limit=limit)
        return [each for each in found if each.conversation_id in self.remembered]


class EndsBeforeItRemembers(Right):
    async def append(self, entry: Entry) -> int:
        with anyio.CancelScope(shield=True):
            size = await super().append(replace(entry, turn=()))
            if entry.turn:
                await anyio.lowlevel.checkpoint()
                await self.remember(entry.conversation_id, entry.turn)
        return size


class EndsInPieces(Right):
    """The turns of requests that end at once mix."""

    async def append(self, entry: Entry) -> int:
        with anyio.CancelScope(shield=True):
            size = await super().append(replace(entry, turn=entry.turn[:1]))
            for each in entry.turn[1:]:
                await anyio.lowlevel.checkpoint()
                await self.remember(entry.conversation_id, [each])
        return size


class AbandonsForAnybody(Right):
    async def abandon(self, request_id: str, epoch: int) -> bool:
        record = await super().request(request_id)
        return record is not None and await super().abandon(request_id, record.epoch)


class AbandonsWhatHasEnded(Right):
    async def abandon(self, request_id: str, epoch: int) -> bool:
        record = await super().request(request_id)
        return await super().abandon(request_id, epoch) or (record is not None and record.epoch == epoch)


class ForgetsWhatCanBeTaken(Right):
    async def forget(self, conversation_id: str) -> bool:
        for each in await super().unfinished():
            if each.conversation_id == conversation_id:
                await super().abandon(each.request_id, each.epoch)
        return await super().forget(conversation_id)


class ForgetsWhatIsComing(Right):
    async def take_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        self.newest = conversation_id, request_id
        return await super().take_turn(conversation_id, request_id, owner, seconds)

    async def forget(self, conversation_id: str) -> bool:
        if vars(self).get("newest", ("",))[0] == conversation_id:
            await super().return_turn(*self.newest)
        return await super().forget(conversation_id)


class PrunesTheMomentToo(Right):
    async def prune(self, *, before: float, conversations: bool = False) -> PruneReport:
        return await super().prune(before=math.nextafter(before, math.inf), conversations=conversations)


class PrunesTheUnfinished(Right):
    async def prune(self, *, before: float, conversations: bool = False) -> PruneReport:
        for each in await super().unfinished():
            await super().abandon(each.request_id, each.epoch)
        return await super().prune(before=before, conversations=conversations)


class PrunesBusyConversations(Right):
    async def prune(self, *, before: float, conversations: bool = False) -> PruneReport:
        pruned = await super().prune(before=before)
        kept: Any = self.data
        if conversations:
            dropped = kept._conversations.prune(before, ())
            pruned = replace(pruned, conversations=dropped.conversations, size_bytes=pruned.size_bytes + 1)
        return pruned


class CountsNoConversations(Right):
    async def statistics(self) -> StoreStatistics:
        return replace(await super().statistics(), conversations=0, messages=0)


class DeletesSharedTexts(Right):
    """With the first of those that have them."""

    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.deleted: set[str] = set()

    async def forget(self, conversation_id: str) -> bool:
        for each in await super().history(conversation_id):
            if isinstance(each, AssistantMessage) and len(each.text) > 100_000:
                self.deleted.add(each.text)
        return await super().forget(conversation_id)

    async def history(self, conversation_id: str) -> Sequence[Message]:
        return [
            replace(each, text="") if isinstance(each, AssistantMessage) and each.text in self.deleted else each
            for each in await super().history(conversation_id)
        ]


class LeavesBytes(Right):
    """What large values take is not given back."""

    async def statistics(self) -> StoreStatistics:
        reported = await super().statistics()
        return replace(reported, size_bytes=reported.size_bytes + reported.appends)


# ------------------------------------------------------------------------------------------------- leases


class ListsTheOldestFirst(Right):
    async def requests(
        self,
        *,
        conversation_id: str | None = None,
        prefix: str = "",
        is_unfinished: bool = False,
        limit: int = 100,
    ) -> Sequence[RequestRecord]:
        found = await super().requests(
            conversation_id=conversation_id, prefix=prefix, is_unfinished=is_unfinished, limit=1_000
        )
        return [*reversed(found)][:limit]


class MixesConversations(Right):
    async def requests(
        self,
        *,
        conversation_id: str | None = None,
        prefix: str = "",
        is_unfinished: bool = False,
        limit: int = 100,
    ) -> Sequence[RequestRecord]:
        return await super().requests(prefix=prefix, is_unfinished=is_unfinished, limit=limit)


class MixesOwners(Right):
    async def requests(
        self,
        *,
        conversation_id: str | None = None,
        prefix: str = "",
        is_unfinished: bool = False,
        limit: int = 100,
    ) -> Sequence[RequestRecord]:
        return await super().requests(conversation_id=conversation_id, is_unfinished=is_unfinished, limit=limit)


class BoundsAllRequests(Right):
    """Of the newest, those that have not ended."""

    async def requests(
        self,
        *,
        conversation_id: str | None = None,
        prefix: str = "",
        is_unfinished: bool = False,
        limit: int = 100,
    ) -> Sequence[RequestRecord]:
        found = await super().requests(conversation_id=conversation_id, prefix=prefix, limit=limit)
        return [each for each in found if not (is_unfinished and each.ending)]


class ListsTheNewestFirst(Right):
    async def unfinished(self, *, limit: int = 1_000) -> Sequence[RequestRecord]:
        return [*await super().unfinished()][::-1][:limit]


class BoundsBeforeItLooks(Right):
    """Of the oldest, those that are free."""

    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.begun: list[str] = []

    async def append(self, entry: Entry) -> int:
        if entry.seq == 0:
            self.begun.append(entry.request_id)
        return await super().append(entry)

    async def unfinished(self, *, limit: int = 1_000) -> Sequence[RequestRecord]:
        return [each for each in await super().unfinished() if each.request_id in self.begun[:limit]]


class TakesFromItself(Right):
    async def take(self, request_id: str, owner: str, seconds: float) -> RequestRecord | None:
        record = await super().request(request_id)
        if record is not None and record.owner == owner:
            await super().release(request_id, record.epoch)
        return await super().take(request_id, owner, seconds)


class TakesForMilliseconds(Right):
    async def take(self, request_id: str, owner: str, seconds: float) -> RequestRecord | None:
        return await super().take(request_id, owner, seconds / 1_000)


class LosesWhatHasRunOut(Right):
    """Though nobody has taken it."""

    async def append(self, entry: Entry) -> int:
        if entry.request_id in [each.request_id for each in await super().unfinished()]:
            raise LeaseLost(entry.request_id, entry.epoch)
        return await super().append(entry)


class NeverRenewsTheLate(Right):
    async def renew(self, owner: str, seconds: float) -> Collection[str]:
        late = {each.request_id for each in await super().unfinished()}
        return {*await super().renew(owner, seconds)} - late


class RenewsForAll(Right):
    owners: ClassVar[set[str]] = set()

    async def append(self, entry: Entry) -> int:
        if entry.owner:
            self.owners.add(entry.owner)
        return await super().append(entry)

    async def renew(self, owner: str, seconds: float) -> Collection[str]:
        renewed = await super().renew(owner, seconds)
        if seconds > 3_600:
            for each in self.owners - {owner}:
                await super().renew(each, seconds)
        return renewed


class ReleasesForAnybody(Right):
    async def release(self, request_id: str, epoch: int) -> bool:
        record = await super().request(request_id)
        return record is not None and await super().release(request_id, record.epoch)


class LooksBeforeItTakes(Right):
    """Somebody else may have taken it meanwhile."""

    async def take(self, request_id: str, owner: str, seconds: float) -> RequestRecord | None:
        if request_id not in [each.request_id for each in await super().unfinished()]:
            return None
        await anyio.lowlevel.checkpoint()
        await super().release(request_id, (await self.known(request_id)).epoch)
        return await super().take(request_id, owner, seconds)


class LocksInItsProcess(Right):
    """And in no other."""

    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.lock = anyio.Lock()

    async def take(self, request_id: str, owner: str, seconds: float) -> RequestRecord | None:
        async with self.lock:
            if request_id not in [each.request_id for each in await super().unfinished()]:
                return None
            await anyio.lowlevel.checkpoint()
            await super().release(request_id, (await self.known(request_id)).epoch)
            return await super().take(request_id, owner, seconds)


class NamesTheNewestLease(Right):
    async def append(self, entry: Entry) -> int:
        try:
            return await super().append(entry)
        except LeaseLost as exc:
            record = await self.request(exc.request_id)
            raise LeaseLost(exc.request_id, exc.epoch if record is None else record.epoch) from exc


class KeepsEpochsInMind(Right):
    """Believes that it holds what it held."""

    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.mine: dict[str, int] = {}

    async def take(self, request_id: str, owner: str, seconds: float) -> RequestRecord | None:
        record = await super().take(request_id, owner, seconds)
        if record is not None:
            self.mine[request_id] = record.epoch
        return record

    async def append(self, entry: Entry) -> int:
        if entry.seq == 0:
            self.mine[entry.request_id] = entry.epoch
        elif self.mine.get(entry.request_id) == entry.epoch:
            entry = replace(entry, epoch=(await self.known(entry.request_id)).epoch)
        return await super().append(entry)


class LooksAtItsLeaseFirst(Right):
    """Somebody else may have taken it meanwhile."""

    async def append(self, entry: Entry) -> int:
        record = await super().request(entry.request_id)
        if record is None or record.epoch != entry.epoch:
            return await super().append(entry)
        await anyio.lowlevel.checkpoint()
        return await super().append(replace(entry, epoch=(await self.known(entry.request_id)).epoch))


class KeepsEndingsInMind(Right):
    """What it has not ended itself goes on, it believes, and says that it has written it."""

    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.running: dict[str, int] = {}

    async def append(self, entry: Entry) -> int:
        record = await super().request(entry.request_id)
        mine = self.running.get(entry.request_id) == entry.epoch
        if mine and record is not None and record.ending is not None and record.epoch == entry.epoch:
            return record.size_bytes
        size = await super().append(entry)
        self.running[entry.request_id] = entry.epoch if entry.ending is None else 0
        return size

    async def abandon(self, request_id: str, epoch: int) -> bool:
        self.running.pop(request_id, None)
        return await super().abandon(request_id, epoch)
