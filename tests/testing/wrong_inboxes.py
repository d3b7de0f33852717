"""Inboxes that are wrong in one way each: see `wrong_stores`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from wrong_stores import Right

from toolbus.events import Event
from toolbus.records import replace
from toolbus.storage import Entry, InboxReceipt, SettledState
from toolbus.stores.memory import MemoryStore


def requests_in(store: Right) -> dict[str, Any]:
    return vars(store.records)["_requests"]


class GivesTheNewestFirst(Right):
    async def waiting(self, owner: str, *, limit: int = 100, **options: Any) -> Sequence[Event]:
        return [*await super().waiting(owner, **options)][::-1][:limit]


class BoundsBeforeItLeavesOut(Right):
    async def waiting(self, owner: str, *, without: Collection[str] = (), **options: Any) -> Sequence[Event]:
        return [each for each in await super().waiting(owner, **options) if each.event_id not in without]


class GivesTheInputsOfOtherRequests(Right):
    async def waiting(self, owner: str, *, request_id: str = "", **options: Any) -> Sequence[Event]:
        return await super().waiting(owner, **options)


class BoundsBeforeItChoosesTheRequest(Right):
    async def waiting(self, owner: str, *, request_id: str = "", **options: Any) -> Sequence[Event]:
        found = await super().waiting(owner, **options)
        return [each for each in found if request_id in ("", each.request_id)]


class GivesTheInputsOfAll(Right):
    owners: ClassVar[list[str]] = []

    async def append(self, entry: Entry) -> int:
        if entry.owner:
            self.owners.append(entry.owner)
        return await super().append(entry)

    async def waiting(self, owner: str, *, limit: int = 100, **options: Any) -> Sequence[Event]:
        others = [each for each in dict.fromkeys(self.owners) if each != owner and each.split("-")[0] == "inbox"]
        found = [*await super().waiting(owner, **options)] if owner else []
        if len(found) > 1:
            for each in others:
                found += await super().waiting(each)
        return found[:limit]


class SettlesAgain(Right):
    """The last word on an input counts, and not the first."""

    async def settle(self, request_id: str, event_id: str, state: SettledState, reason: str = "") -> None:
        requests_in(self)[request_id].settled.pop(event_id, None)
        await super().settle(request_id, event_id, state, reason)


class SendsAgain(Right):
    async def send(self, event: Event) -> InboxReceipt:
        known = await self.receipt(event.request_id, event.event_id)
        if known.state in ("taken", "refused"):
            requests_in(self)[event.request_id].settled.pop(event.event_id, None)
        return await super().send(event)


class JoinsIds(Right):
    """Keeps an input under one text of both ids, which two inputs can share."""

    def __init__(self, data: MemoryStore | None = None) -> None:
        super().__init__(data)
        self.owners: dict[str, str] = {}

    async def send(self, event: Event) -> InboxReceipt:
        joined = f"{event.request_id}:{event.event_id}"
        if self.owners.setdefault(joined, event.request_id) != event.request_id:
            return InboxReceipt(state="waiting")
        return await super().send(event)


class KeepsWhatNobodyTakes(Right):
    """Says of an ended request that an input still waits."""

    async def receipt(self, request_id: str, event_id: str) -> InboxReceipt:
        known = await super().receipt(request_id, event_id)
        return InboxReceipt(state="waiting") if known.state == "ended" else known


class TakesBeforeItAppends(Right):
    async def append(self, entry: Entry) -> int:
        for event_id in entry.received:
            await self.settle(entry.request_id, event_id, "taken")
        return await super().append(entry)


class NeverTakes(Right):
    async def append(self, entry: Entry) -> int:
        return await super().append(replace(entry, received=()))


class HasNoBound(Right):
    async def send(self, event: Event) -> InboxReceipt:
        request = requests_in(self).get(event.request_id)
        if request is None or len(request.inputs) < 100:
            return await super().send(event)
        return InboxReceipt(state="waiting", is_held=True)


class KeepsInputs(Right):
    """Has the inputs of a request that was forgotten when one begins again under its id."""

    kept: ClassVar[dict[str, Event]] = {}

    async def send(self, event: Event) -> InboxReceipt:
        self.kept[event.request_id] = event
        return await super().send(event)

    async def append(self, entry: Entry) -> int:
        size = await super().append(entry)
        if entry.seq == 0 and (event := self.kept.get(entry.request_id)) is not None:
            await super().send(event)
        return size


class RemembersTheHolder(Right):
    """Gives the inputs to the holder that was there when they were sent."""

    holders: ClassVar[dict[str, str]] = {}

    async def send(self, event: Event) -> InboxReceipt:
        record = await self.request(event.request_id)
        if record is not None:
            self.holders.setdefault(event.event_id, record.owner)
        return await super().send(event)

    async def waiting(self, owner: str, *, limit: int = 100, **options: Any) -> Sequence[Event]:
        found = await super().waiting(owner, **options)
        return [each for each in found if self.holders.get(each.event_id) == owner][:limit]


class ParksWhatHasInputs(Right):
    async def park(self, request_id: str, epoch: int, seconds: float) -> bool:
        request = requests_in(self)[request_id]
        inputs, request.inputs = request.inputs, {}
        is_parked = await super().park(request_id, epoch, seconds)
        request.inputs = inputs
        return is_parked


class SleepsOn(Right):
    """Does not wake a parked request for an input."""

    async def send(self, event: Event) -> InboxReceipt:
        request = requests_in(self).get(event.request_id)
        until = 0.0 if request is None else request.record.lease_until
        receipt = await super().send(event)
        if request is not None and not request.record.ending:
            request.record.lease_until = until
        return receipt
