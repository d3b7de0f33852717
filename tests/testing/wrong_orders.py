"""Journals that let two processes have the turn of a conversation, or keep it from all: see `wrong_stores`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
from wrong_stores import Right

from toolbus.clock import wall_time
from toolbus.errors import TurnLost
from toolbus.storage import Entry, PruneReport
from toolbus.stores.memory import MemoryStore


class BeginsWithoutTheTurn(Right):
    async def append(self, entry: Entry) -> int:
        return await super().append(replace(entry, has_turn=False))


def _nothing(*_given: object) -> None: ...


class LeavesLeasesThatHaveRunOut(Right):
    async def take_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        journal: Any = self.records
        setattr(journal, "_fence", _nothing)  # noqa: B010 -- a method of one object
        return await super().take_turn(conversation_id, request_id, owner, seconds)


class RenewsALostTurn(Right):
    async def renew_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        return await super().renew_turn(conversation_id, request_id, owner, seconds) or await super().take_turn(
            conversation_id, request_id, owner, seconds
        )


class LooksAtItsTurnFirst(Right):
    """Somebody else may be given it meanwhile."""

    async def append(self, entry: Entry) -> int:
        turn = (entry.conversation_id, entry.request_id, entry.owner)
        journal: Any = self.records
        if entry.has_turn and not journal._is_given(*turn):
            raise TurnLost(entry.request_id)
        await anyio.lowlevel.checkpoint()
        return await super().append(replace(entry, has_turn=False))


class GivesTheTurnToAnybody(Right):
    async def take_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        return await super().take_turn(conversation_id, request_id, "the only owner", seconds)


class ForgetsTheTurnOfWhatRuns(Right):
    """Knows only who has taken the turn, and for how long."""

    async def take_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        for each in await super().requests(conversation_id=conversation_id):
            if each.ending is None:
                await super().return_turn(conversation_id, each.request_id)
        return await super().take_turn(conversation_id, request_id, owner, seconds)


class KeepsTheTurnOfTheEnded(Right):
    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.first: dict[str, str] = {}

    async def take_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        if self.first.setdefault(conversation_id, owner) != owner:
            return False
        return await super().take_turn(conversation_id, request_id, owner, seconds)


class MakesAnOwnerWaitForItself(Right):
    async def take_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        return await super().take_turn(conversation_id, request_id, request_id, seconds)


class ReturnsTheTurnOfAnybody(Right):
    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.holders: dict[str, str] = {}

    async def take_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        taken = await super().take_turn(conversation_id, request_id, owner, seconds)
        if taken:
            self.holders[conversation_id] = request_id
        return taken

    async def return_turn(self, conversation_id: str, request_id: str) -> None:
        await super().return_turn(conversation_id, self.holders.get(conversation_id, request_id))


class NeverReturnsTheTurn(Right):
    async def return_turn(self, conversation_id: str, request_id: str) -> None: ...


class MakesContinuedRequestsWaitForEachOther(Right):
    async def take_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        for each in await super().requests(conversation_id=conversation_id):
            runs = each.ending is None and each.owner and each.lease_until > wall_time()
            if runs and each.owner != owner and each.request_id != request_id:
                return False
        return await super().take_turn(conversation_id, request_id, owner, seconds)


class KeepsTheTurnOfTheParked(Right):
    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.parked: set[str] = set()

    async def park(self, request_id: str, epoch: int, seconds: float) -> bool:
        self.parked.add((await self.known(request_id)).conversation_id)
        return await super().park(request_id, epoch, seconds)

    async def take_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        return conversation_id not in self.parked and await super().take_turn(
            conversation_id, request_id, owner, seconds
        )


class PrunesTheTurnsOfWhatRuns(Right):
    async def prune(self, *, before: float, conversations: bool = False) -> PruneReport:
        journal: Any = self.records
        journal._turns.clear()
        for each in await super().requests():
            if each.ending is None and each.owner:
                await super().release(each.request_id, each.epoch)
        return await super().prune(before=before, conversations=conversations)


class LooksBeforeItTakesTheTurn(Right):
    """Somebody else may have taken it meanwhile."""

    async def take_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        journal: Any = self.records
        is_free = conversation_id not in journal._turns
        await anyio.lowlevel.checkpoint()
        if is_free:
            journal._turns.pop(conversation_id, None)
        return await super().take_turn(conversation_id, request_id, owner, seconds)


class OrdersTurnsInItsProcess(LooksBeforeItTakesTheTurn):
    """And in no other."""

    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.lock = anyio.Lock()

    async def take_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        async with self.lock:
            return await super().take_turn(conversation_id, request_id, owner, seconds)


class KeepsTheTurnOfThePruned(Right):
    async def prune(self, *, before: float, conversations: bool = False) -> PruneReport:
        journal: Any = self.records
        turns = {} if conversations else dict(journal._turns)
        pruned = await super().prune(before=before, conversations=conversations)
        journal._turns.update({each: turn for each, turn in turns.items() if each not in journal._turns})
        return pruned
