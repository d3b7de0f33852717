"""A journal in this process's memory: for tests, and for requests that outlive a runtime but not the process.

Knows events and the `JournalStore` protocol. It is the simplest implementation, so it also explains the protocol.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush, nsmallest
from itertools import count, islice

from ...clock import wall_time
from ...errors import InboxFull, LeaseLost, StoreError, TurnLost
from ...events import Event, decode, encode
from ...storage import (
    MAX_WAITING_INPUTS,
    Ending,
    Entry,
    InboxReceipt,
    PruneReport,
    RequestRecord,
    SettledState,
    StoredFact,
    StoreStatistics,
)
from .._decisions import begun_already, receipt_of, refusal_of
from ._conversations import MemoryConversations


@dataclass(slots=True, eq=False)
class _Request:
    record: RequestRecord
    number: int  # in the order of beginning
    # Each fact as the position of its step's last fact, and its JSON.
    facts: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    # By id: the inputs that were sent to the request, and the receipts of those that do not wait any more.
    inputs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    settled: dict[str, InboxReceipt] = field(default_factory=dict[str, InboxReceipt])


class _Leases:
    """The leases of unfinished requests, in tables, so that no call has to go through all requests."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, _Request]] = {}  # by owner
        self._earliest: dict[str, float] = {}  # by owner: a time before which none of its leases has run out
        self._free: dict[str, _Request] = {}
        self._parked: dict[str, _Request] = {}
        self._due: list[tuple[float, str]] = []  # a heap, also of requests that are not parked any more

    def give(self, request: _Request, owner: str, seconds: float) -> None:
        """Give the lease of a request to `owner`."""
        self.drop(request)
        record = request.record
        record.owner, record.lease_until = owner, wall_time() + seconds
        self._earliest[owner] = min(self._earliest.get(owner, math.inf), record.lease_until)
        self._held.setdefault(owner, {})[record.request_id] = request

    def release(self, request: _Request) -> None:
        """Take the lease of a request from its owner; it is free at once."""
        self.drop(request)
        self._free[request.record.request_id] = request

    def park(self, request: _Request, until: float) -> None:
        """Take the lease of a request from its owner; it is free from `until` on."""
        self.drop(request)
        request_id, request.record.lease_until = request.record.request_id, until
        heappush(self._due, (until, request_id))
        self._parked[request_id] = request

    def drop(self, request: _Request) -> None:
        """Forget the lease of a request."""
        record = request.record
        for table in (self._free, self._parked, self._held.get(record.owner, {})):
            table.pop(record.request_id, None)
        if not self._held.get(record.owner, True):
            del self._held[record.owner], self._earliest[record.owner]
        record.owner, record.lease_until = "", 0.0

    def renew(self, owner: str, seconds: float) -> Collection[str]:
        """Renew the leases of `owner`, and return the ids of their requests."""
        until, held = wall_time() + seconds, self.of(owner)
        for request in held:
            request.record.lease_until = max(request.record.lease_until, until)
        if held:
            self._earliest[owner] = max(self._earliest[owner], until)
        return [each.record.request_id for each in held]

    def of(self, owner: str) -> Collection[_Request]:
        """Return the requests whose leases `owner` has; none for the owner ""."""
        return self._held.get(owner, {}).values() if owner else ()

    def free(self) -> list[_Request]:
        """Return the requests whose lease is free or has run out."""
        now = wall_time()
        while self._due and self._due[0][0] <= now:
            _, request_id = heappop(self._due)
            request = self._parked.get(request_id)
            if request is not None and request.record.lease_until <= now:
                del self._parked[request_id]
                self._free[request_id] = request
        out = [self._held[owner] for owner, earliest in self._earliest.items() if earliest <= now]
        tables = (self._free, *out)
        return [each for table in tables for each in table.values() if each.record.lease_until <= now]


@dataclass(slots=True, frozen=True)
class _Turn:
    """The holder of the turn of a conversation. Before its request begins, it has the turn until a moment."""

    request_id: str
    owner: str
    until: float


class MemoryJournal:
    """See `JournalStore` and `Inbox`. Never suspends. Sizes are those of the facts as JSON."""

    def __init__(self, conversations: MemoryConversations) -> None:
        self._conversations = conversations
        self._requests: dict[str, _Request] = {}
        self._leases = _Leases()
        self._turns: dict[str, _Turn] = {}  # by conversation
        self._unfinished: dict[str, list[_Request]] = {}  # by conversation, oldest first
        self._appends = 0
        self._numbers = count()

    async def append(self, entry: Entry) -> int:
        # The facts are kept as JSON, because others have the same objects and may change values in them.
        written = [encode(fact) for fact in entry.facts]
        size_bytes = sum(map(len, written))
        request = self._begin(entry) if entry.seq == 0 else self._running(entry)
        record, last = request.record, entry.seq + len(written) - 1
        request.facts += [(last, each) for each in written]
        record.fact_count = len(request.facts)
        record.size_bytes += size_bytes
        self._appends += 1
        for event_id in entry.received:
            await self.settle(entry.request_id, event_id, "taken")
        if entry.ending is not None:
            self._end(request, entry.ending)
            if entry.turn:
                self._conversations.add(entry.conversation_id, entry.turn)
        return record.size_bytes

    def _begin(self, entry: Entry) -> _Request:
        if entry.request_id in self._requests:
            raise begun_already(entry.request_id)
        if entry.has_turn and not self._is_given(entry.conversation_id, entry.request_id, entry.owner):
            raise TurnLost(entry.request_id)
        record = RequestRecord(
            request_id=entry.request_id,
            conversation_id=entry.conversation_id,
            epoch=entry.epoch,
            started_at=wall_time(),
            agreed=entry.agreed or {},
        )
        request = self._requests[entry.request_id] = _Request(record, next(self._numbers))
        self._unfinished.setdefault(entry.conversation_id, []).append(request)
        self._leases.give(request, entry.owner, entry.lease_seconds)
        return request

    def _running(self, entry: Entry) -> _Request:
        request = self._requests.get(entry.request_id)
        if request is None:
            raise LeaseLost(entry.request_id, entry.epoch)
        record = request.record
        refusal = refusal_of(entry, epoch=record.epoch, ending=record.ending, next_seq=len(request.facts))
        if refusal is not None:
            raise refusal
        return request

    async def facts(self, request_id: str, *, start: int = 0) -> Sequence[StoredFact]:
        request = self._requests.get(request_id)
        facts = [] if request is None else request.facts[start:]
        return [
            StoredFact(seq=seq, step_end=step_end, fact=decode(written))
            for seq, (step_end, written) in enumerate(facts, start)
        ]

    async def request(self, request_id: str) -> RequestRecord | None:
        request = self._requests.get(request_id)
        return None if request is None else replace(request.record)

    async def requests(
        self,
        *,
        conversation_id: str | None = None,
        prefix: str = "",
        is_unfinished: bool = False,
        limit: int = 100,
    ) -> Sequence[RequestRecord]:
        newest_first = reversed([each.record for each in self._requests.values()])
        found = (
            each
            for each in newest_first
            if conversation_id in (None, each.conversation_id)
            and each.conversation_id.startswith(prefix)
            and not (is_unfinished and each.ending)
        )
        return [replace(each) for each in islice(found, max(0, limit))]

    async def unfinished(self, *, limit: int = 1_000) -> Sequence[RequestRecord]:
        """See `JournalStore`. Costs O(owners + free requests)."""
        oldest = nsmallest(max(0, limit), self._leases.free(), key=lambda each: each.number)
        return [replace(each.record) for each in oldest]

    async def take(self, request_id: str, owner: str, seconds: float) -> RequestRecord | None:
        request = self._requests.get(request_id)
        if request is None or request.record.ending is not None or request.record.lease_until > wall_time():
            return None
        request.record.epoch += 1
        self._leases.give(request, owner, seconds)
        return replace(request.record)

    async def renew(self, owner: str, seconds: float) -> Collection[str]:
        return self._leases.renew(owner, seconds)

    async def release(self, request_id: str, epoch: int) -> bool:
        request = self._held(request_id, epoch)
        if request is not None:
            self._leases.release(request)
        return request is not None

    async def abandon(self, request_id: str, epoch: int) -> bool:
        request = self._held(request_id, epoch)
        if request is not None:
            self._end(request, "abandoned")
        return request is not None

    async def take_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        now, holder = wall_time(), self._turns.get(conversation_id)
        if holder is not None and self._has_turn(holder, now):
            if request_id != holder.request_id and owner != holder.owner:
                return False
        elif self._runs_earlier(conversation_id, request_id, owner, now):
            return False
        else:
            self._fence(conversation_id, owner, now)
        self._turns[conversation_id] = _Turn(request_id, owner, now + seconds)
        return True

    async def renew_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        is_given = self._is_given(conversation_id, request_id, owner)
        if is_given:
            self._turns[conversation_id] = _Turn(request_id, owner, wall_time() + seconds)
        return is_given

    def _is_given(self, conversation_id: str, request_id: str, owner: str) -> bool:
        """Return whether this request was the last one that was given the turn."""
        holder = self._turns.get(conversation_id)
        return holder is not None and (holder.request_id, holder.owner) == (request_id, owner)

    def _fence(self, conversation_id: str, owner: str, now: float) -> None:
        """End the leases of other owners that have run out, so that they cannot write in another request's turn."""
        for each in self._unfinished.get(conversation_id, ()):
            if each.record.owner not in ("", owner) and not _runs(each.record, now):
                each.record.epoch += 1
                self._leases.release(each)

    def _has_turn(self, holder: _Turn, now: float) -> bool:
        request = self._requests.get(holder.request_id)
        if request is None:
            return holder.until > now
        # Another owner, which continues the request, has to take the turn again.
        return request.record.owner == holder.owner and _runs(request.record, now)

    def _runs_earlier(self, conversation_id: str, request_id: str, owner: str, now: float) -> bool:
        """Return whether a request of another owner runs in the conversation that has begun before this one."""
        own = self._requests.get(request_id)
        return any(
            each.record.owner != owner and _runs(each.record, now)
            for each in self._unfinished.get(conversation_id, ())
            if own is None or each.number < own.number
        )

    async def return_turn(self, conversation_id: str, request_id: str) -> None:
        holder = self._turns.get(conversation_id)
        if holder is not None and holder.request_id == request_id:
            del self._turns[conversation_id]

    def _end(self, request: _Request, ending: Ending) -> None:
        self._leases.drop(request)
        request.record.ending, request.record.ended_at = ending, wall_time()
        unfinished = self._unfinished[request.record.conversation_id]
        unfinished.remove(request)
        if not unfinished:
            del self._unfinished[request.record.conversation_id]

    def _held(self, request_id: str, epoch: int) -> _Request | None:
        request = self._requests.get(request_id)
        if request is None or request.record.epoch != epoch or request.record.ending is not None:
            return None
        return request

    async def send(self, event: Event) -> InboxReceipt:
        request = self._requests.get(event.request_id)
        if request is not None and request.record.ending is None and event.event_id not in request.inputs:
            if len(request.inputs) - len(request.settled) >= MAX_WAITING_INPUTS:
                raise InboxFull(f"{MAX_WAITING_INPUTS} inputs wait for request {event.request_id}")
            request.inputs[event.event_id] = encode(event)
            if not request.record.owner:  # It may be parked.
                self._leases.release(request)
        return await self.receipt(event.request_id, event.event_id)

    async def receipt(self, request_id: str, event_id: str) -> InboxReceipt:
        request = self._requests.get(request_id)
        if request is None:
            return InboxReceipt(state="unknown")
        if (settled := request.settled.get(event_id)) is not None:
            return settled
        state = "waiting" if event_id in request.inputs else "unknown"
        return receipt_of(state, ending=request.record.ending, is_held=_runs(request.record, wall_time()))

    async def waiting(
        self, owner: str, *, request_id: str = "", without: Collection[str] = (), limit: int = 100
    ) -> Sequence[Event]:
        return [
            decode(written)
            for request in self._leases.of(owner)
            if request_id in {"", request.record.request_id}
            for event_id, written in request.inputs.items()
            if event_id not in request.settled and event_id not in without
        ][:limit]

    async def settle(self, request_id: str, event_id: str, state: SettledState, reason: str = "") -> None:
        request = self._requests.get(request_id)
        if request is not None and event_id in request.inputs and event_id not in request.settled:
            request.settled[event_id] = InboxReceipt(state=state, reason=reason)

    async def park(self, request_id: str, epoch: int, seconds: float) -> bool:
        request = self._held(request_id, epoch)
        if request is not None:
            if len(request.inputs) > len(request.settled):
                self._leases.release(request)
            else:
                self._leases.park(request, wall_time() + seconds)
        return request is not None

    async def prune(self, *, before: float, conversations: bool = False) -> PruneReport:
        now = wall_time()
        self._turns = {each: holder for each, holder in self._turns.items() if self._has_turn(holder, now)}
        old = [
            each.record
            for each in self._requests.values()
            if each.record.ended_at is not None and each.record.ended_at < before
        ]
        for record in old:
            del self._requests[record.request_id]
        pruned = PruneReport(requests=len(old), size_bytes=sum(record.size_bytes for record in old))
        if conversations:
            newer = {each.record.conversation_id for each in self._requests.values()}
            pruned += self._conversations.prune(before, newer | self._turns.keys())
        return pruned

    def forget(self, conversation_id: str) -> bool:
        """Drop the finished requests of a conversation, and return whether there were any.

        Raises `StoreError` if one of its requests is unfinished, or is about to begin.
        """
        of_it = [each.record for each in self._requests.values() if each.record.conversation_id == conversation_id]
        if unfinished := [each.request_id for each in of_it if each.ending is None]:
            raise StoreError(f"conversation {conversation_id!r} has an unfinished request: {unfinished[0]}")
        holder = self._turns.get(conversation_id)
        if holder is not None and self._has_turn(holder, wall_time()):
            raise StoreError(f"conversation {conversation_id!r} has a request that is about to begin")
        for record in of_it:
            del self._requests[record.request_id]
        self._turns.pop(conversation_id, None)
        return bool(of_it)

    async def statistics(self) -> StoreStatistics:
        records = [each.record for each in self._requests.values()]
        beside = self._conversations.count()
        return replace(
            beside,
            requests=len(records),
            unfinished=sum(record.ending is None for record in records),
            facts=sum(record.fact_count for record in records),
            size_bytes=beside.size_bytes + sum(record.size_bytes for record in records),
            appends=self._appends,
            commits=self._appends,
        )


def _runs(record: RequestRecord, now: float) -> bool:
    """Return whether a process holds the request."""
    return record.ending is None and bool(record.owner) and record.lease_until > now
