"""The part of a simulated world that outlives its processes: a store with faults, and each process's handle on it.

The disk knows which facts are durable, which process holds each request and which faults happened, and the checks read
this. Its faults have the effects of a full disk, a locked database or a broken connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn, TypeVar

import anyio
import anyio.lowlevel
import orjson

from ...clock import wall_time
from ...errors import LeaseLost, StoreError, StoreUnavailable, TurnLost
from ...events import Event, RequestResumed, RequestStarted, TerminalEvent, decode, encode
from ...failures import passes
from ...messages import Message
from ...storage import (
    TIMEOUT_SECONDS,
    ConversationRecord,
    Entry,
    Inbox,
    JournalStore,
    PruneReport,
    RequestRecord,
    StoredFact,
    StoreStatistics,
)
from ...stores.memory import MemoryStore
from ._archive import Archive

if TYPE_CHECKING:
    from ._process import Process
    from ._world import World

# True in a task that reads for a person. Its reads affect no request, and none of the checks of writes.
IS_READER: ContextVar[bool] = ContextVar("toolbus_simulated_reader", default=False)

T = TypeVar("T")

_SECONDS = {"well": [0.01, 0.5], "ill": [0.01, 0.5, 4.0, 6.0]}
_FAULTS = {"refused": 4.0, "locked": 2.0, "full": 2.0, "written, and then refused": 1.5, "no answer": 1.0}
_WRITTEN_FIRST = "written, and then refused"
_PATIENCE_SECONDS = TIMEOUT_SECONDS - 0.001  # after which the writer gives up; moments are rounded
_SILENCE_SECONDS = 20.0  # longer than any caller waits


class Disk:
    """A store in memory that has faults for a while, as its chance decides. With `journals` it has a journal."""

    def __init__(self, world: World, *, journals: bool) -> None:
        chance = world.chance("disk")
        self.faults = world.faults
        self.chance = chance
        self.memory = MemoryStore(journal=journals)
        self.journals = journals
        self._faulty_from = chance.pick([0.0, 0.5, 2.0, 8.0]) if chance.says(0.35) else float("inf")
        self._faulty_until = self._faulty_from + chance.pick([1.0, 5.0, 30.0])
        self._fault_probability = chance.pick([0.1, 0.3, 1.0])  # the probability of a fault during that time
        self.newest_fault = float("-inf")
        self._written: dict[str, list[Event]] = {}
        self._durable: dict[str, Event] = {}
        self.holders: dict[str, Process] = {}  # by request, the process that took it last
        self.turns: dict[str, dict[str, Process]] = {}  # by conversation: the requests that run, and where
        self.endings: dict[str, str] = {}
        # The requests that continued after an append that failed or was not answered: `on_store_failure="warn"`.
        self.given_up: set[str] = set()
        self.ran: dict[tuple[str, str], tuple[Process, str]] = {}  # by call, the first process, and its key
        self.reported: dict[tuple[str, str], str] = {}  # by call, the first terminal event of any process
        self.sent: dict[str, Event] = {}  # by id, what was sent to an inbox
        self.news = anyio.Event()  # set when a request begins
        self.remembered: set[str] = set()  # conversations in which a person's decision was to be remembered
        self.archive = Archive()

    @property
    def journal(self) -> JournalStore:
        """The journal without faults, for the checks."""
        assert self.memory.journal is not None
        return self.memory.journal

    @property
    def inbox(self) -> Inbox:
        """The inbox without faults."""
        assert isinstance(self.journal, Inbox)
        return self.journal

    # ---------------------------------------------------------------------------------------------- durable facts

    def is_durable(self, fact: Event) -> bool:
        """Return whether the journal has this fact, and not another one at its position."""
        return self._durable.get(fact.event_id) is fact

    def facts(self, request_id: str) -> Sequence[Event]:
        """Return the facts of a request in the journal, in order."""
        return self._written.get(request_id, ())

    def begun(self) -> list[str]:
        """Return the requests that have durable facts."""
        return list(self._written)

    def unfinished(self) -> list[str]:
        """Return the requests that have durable facts and no ending."""
        return [request_id for request_id in self._written if request_id not in self.endings]

    def note(self, entry: Entry, *, has_turn: bool) -> None:
        """Record that an entry is durable. `has_turn`: its process runs one turn of a conversation at a time."""
        if entry.request_id not in self._written:
            self.news.set()
            self.news = anyio.Event()
        self._written.setdefault(entry.request_id, []).extend(entry.facts)
        self._durable.update((fact.event_id, fact) for fact in entry.facts)
        self.archive.begins(entry.request_id, entry.conversation_id, has_turn=has_turn)
        if entry.ending is not None:
            self.endings[entry.request_id] = entry.ending
            self.archive.adds(entry.conversation_id, entry.turn or ())

    # --------------------------------------------------------------------------------------------------- faults

    def recover(self) -> None:
        """Have no more faults from now on."""
        self._faulty_until = 0.0

    @property
    def is_faulty(self) -> bool:
        """Return whether the store may have a fault now."""
        return self._faulty_from <= anyio.current_time() < self._faulty_until

    def fault(self) -> str:
        """Return the fault of the next operation; empty for no fault."""
        if not (self.is_faulty and self.chance.says(self._fault_probability)):
            return ""
        self.newest_fault = anyio.current_time()
        return self.chance.weighted(_FAULTS)

    def delay(self) -> float:
        """Return the seconds that an answer takes."""
        if not self.chance.says(0.2):
            return 0.0
        if not self.is_faulty:
            return self.chance.pick(_SECONDS["well"])
        self.newest_fault = anyio.current_time()
        return self.chance.pick(_SECONDS["ill"])


class Handle:
    """One process's access to the `disk`: a `Store`, and a `JournalStore`. After `die` it is closed for good.

    Its operations have the faults of the disk, except those that only the checks and people use.
    """

    def __init__(self, disk: Disk, process: Process) -> None:
        self.disk = disk
        self._process = process
        self._is_dead = False
        self._failed: set[str] = set()  # requests with an append of this process that failed
        self._unanswered: set[str] = set()  # those of `_failed` without an answer that says who holds the lease
        self._stopped: dict[str, set[str]] = {}  # the facts that failed, by request, unless it was taken over again
        self.given_up: set[str] = set()  # requests that continue in this process without their journal
        # The time at which each request's write began, even if it was cut short since.
        self.asked_at: dict[str, float] = {}
        self._goals: dict[str, int] = {}  # the number of facts that each of these requests has after its write
        self._answered: set[str] = set()  # those of `asked_at` whose write has failed since
        self._under_way: set[str] = set()  # those of `asked_at` whose write is being tried
        self._continues = process.on_store_failure == "warn"
        self._turns: set[str] = set()  # the requests that have taken the turn of their conversation

    def die(self) -> None:
        """Write nothing any more: the process was killed."""
        self._is_dead = True

    @property
    def journal(self) -> JournalStore | None:
        """The journal: see `Store`."""
        return self if self.disk.journals else None

    async def _ask(self, what: Callable[[], Awaitable[T]]) -> T:
        """Perform an operation of the disk: slowly, not at all, or without an answer."""
        disk = self.disk
        self._check()
        fault = disk.fault()
        if fault:
            disk.faults[f"store: {fault}"] += 1
        written_first = fault == _WRITTEN_FIRST or disk.chance.says(0.3)
        try:
            if written_first and fault in ("", _WRITTEN_FIRST, "no answer"):
                answer = await what()
                await self._pass(fault)
                return answer
            await self._pass(fault)
        except BaseException:
            self._check()
            raise
        self._check()
        return await what()

    async def _pass(self, fault: str) -> None:
        if fault == "no answer":
            await anyio.sleep(_SILENCE_SECONDS)
        elif seconds := self.disk.delay():
            await anyio.sleep(seconds)
        if fault:
            _refuse(fault)

    def _check(self) -> None:
        if self._is_dead:
            raise StoreError("the process is dead")

    # --------------------------------------------------------------------------------------------- for the checks

    def has_failed(self, request_id: str) -> bool:
        """Return whether an append by this process for this request has failed."""
        return request_id in self._failed

    def is_unanswered(self, request_id: str) -> bool:
        """Return whether an append by this process has failed without saying who holds the request's lease."""
        return request_id in self._unanswered

    def is_ours(self, request_id: str) -> bool:
        """Return whether no other process has taken the request over."""
        return self.disk.holders.get(request_id, self._process) is self._process

    def reports(self, event: TerminalEvent) -> bool:
        """Record a terminal event, and return whether no process has published another one for the call."""
        return self.disk.reported.setdefault((event.request_id, event.call_id), event.event_id) == event.event_id

    def begins(self, request_id: str, call_id: str, key: str) -> tuple[bool, str]:
        """Record that a handler begins; return whether no other process has begun it, and the first one's key."""
        process, first = self.disk.ran.setdefault((request_id, call_id), (self._process, key))
        return process is self._process, first

    # ------------------------------------------------------------------------------------------------ the journal

    async def append(self, entry: Entry) -> int:
        request_id, watch = entry.request_id, self._process.watch
        failed = self._stopped.get(request_id)
        written = {each.event_id for each in entry.facts}
        # A request that is left for another process tries the same facts once more.
        may_write = self._continues or failed is None or written <= failed
        watch.note("G11", may_write, f"{request_id} continues after its journal failed")
        if request_id in self._answered or request_id not in self.asked_at:
            self._answered.discard(request_id)
            self.asked_at[request_id] = anyio.current_time()

        async def write() -> int:
            if self._process.count_append(is_before=True):
                await anyio.lowlevel.checkpoint()  # A process that was paused writes after its pause.
            self._check()
            size_bytes = await self.disk.journal.append(entry)
            known = self.disk.facts(request_id)
            watch.note("G01", entry.seq == len(known), f"the journal of {request_id} has a gap at {entry.seq}")
            if entry.seq == 0:
                self.disk.holders[request_id] = self._process
            is_holder = self.disk.holders.get(request_id) is self._process
            watch.note("G20", is_holder, f"{request_id} belongs to another process, and this one writes it")
            watch.hides(entry, "the journal is given")
            self.disk.note(entry, has_turn=self._process.has_turns)
            await self._check_turn(entry)
            self._process.count_append(is_before=False)
            return size_bytes

        self._under_way.add(request_id)
        self._goals[request_id] = entry.seq + len(entry.facts)
        try:
            size_bytes = await self._ask(write)
        except BaseException as exc:
            # A session repeats a write that a cancellation interrupts, unless the writer has waited long enough.
            is_sure = not passes(exc) or anyio.current_time() >= self.asked_at[request_id] + _PATIENCE_SECONDS
            if is_sure:
                self._answered.add(request_id)
                self._stopped[request_id] = written
                if not self._continues:  # The request does not run any more, though this process may hold its lease.
                    self.disk.turns.get(entry.conversation_id, {}).pop(request_id, None)
            self._note_failure(request_id, exc, is_sure=is_sure)
            raise
        finally:
            self._under_way.discard(request_id)
        self.asked_at.pop(request_id, None)
        return size_bytes

    async def _check_turn(self, entry: Entry) -> None:
        """Check that no other process runs a turn of the conversation when a request writes in its turn."""
        running, request_id = self.disk.turns.setdefault(entry.conversation_id, {}), entry.request_id
        if isinstance(entry.facts[0], (RequestStarted, RequestResumed)) and entry.ending is None:
            if self._continues and request_id not in self._turns:
                return  # Without its store, a request may continue without the turn.
            running[request_id] = self._process
        if running.get(request_id) is self._process:
            others = [each for each, process in running.items() if process is not self._process]
            found = [await self.disk.journal.request(each) for each in others]
            held = [each.request_id for each in found if each and each.owner and each.lease_until > wall_time()]
            self._process.watch.note("G34", not held, f"{request_id} runs beside {', '.join(held)}")
        if entry.ending is not None:
            running.pop(request_id, None)

    def _note_failure(self, request_id: str, exc: BaseException, *, is_sure: bool) -> None:
        """Note that a write has failed, or may have: during faults, a cancellation may be that of the writer."""
        if self._is_dead or not (is_sure or self.disk.is_faulty):
            return
        self._failed.add(request_id)
        if not isinstance(exc, (LeaseLost, TurnLost)):
            self._unanswered.add(request_id)
        if self._continues and not isinstance(exc, (LeaseLost, TurnLost)):
            self.disk.given_up.add(request_id)
            if not passes(exc):
                self.given_up.add(request_id)
        self.disk.faults["journal failed"] += 1

    async def facts(self, request_id: str, *, start: int = 0) -> Sequence[StoredFact]:
        """Implement `JournalStore`, with faults. The facts have been encoded and decoded, as in a database."""
        found = await self._ask(lambda: self.disk.journal.facts(request_id, start=start))
        return [replace(each, fact=decode(encode(each.fact))) for each in found]

    async def request(self, request_id: str) -> RequestRecord | None:
        if IS_READER.get():
            return _as_written(await self._ask(lambda: self.disk.journal.request(request_id)))
        if request_id in self._answered:  # The writer may ask this before it appends again.
            self._answered.discard(request_id)
            del self.asked_at[request_id]
        try:
            found = await self._ask(lambda: self.disk.journal.request(request_id))
        except BaseException as exc:
            # After a write that was cut short, the writer asks how much was written. Leases are renewed during a write.
            if request_id in self.asked_at and request_id not in self._under_way:
                self._note_failure(request_id, exc, is_sure=not passes(exc))
            raise
        if (
            found is not None
            and request_id not in self._under_way
            and found.fact_count >= self._goals.get(request_id, 0)
        ):
            self.asked_at.pop(request_id, None)
        return _as_written(found)

    async def requests(
        self,
        *,
        conversation_id: str | None = None,
        prefix: str = "",
        is_unfinished: bool = False,
        limit: int = 100,
    ) -> Sequence[RequestRecord]:
        return await self.disk.journal.requests(
            conversation_id=conversation_id, prefix=prefix, is_unfinished=is_unfinished, limit=limit
        )

    async def unfinished(self, *, limit: int = 1_000) -> Sequence[RequestRecord]:
        return await self._ask(lambda: self.disk.journal.unfinished(limit=limit))

    async def take(self, request_id: str, owner: str, seconds: float) -> RequestRecord | None:
        async def take() -> RequestRecord | None:
            taken = await self.disk.journal.take(request_id, owner, seconds)
            if taken is not None:
                self._stopped.pop(request_id, None)
                self.asked_at.pop(request_id, None)
                self._answered.discard(request_id)
                self.disk.holders[request_id] = self._process
                self.disk.faults["taken over"] += 1
                self.disk.turns[taken.conversation_id].pop(request_id, None)  # It waits for its turn.
            return taken

        return _as_written(await self._ask(take))

    async def renew(self, owner: str, seconds: float) -> Collection[str]:
        return await self._ask(lambda: self.disk.journal.renew(owner, seconds))

    async def release(self, request_id: str, epoch: int) -> bool:
        return await self._ask(lambda: self.disk.journal.release(request_id, epoch))

    async def abandon(self, request_id: str, epoch: int) -> bool:
        async def abandon() -> bool:
            is_ours = await self.disk.journal.abandon(request_id, epoch)
            if is_ours:
                self.disk.endings[request_id] = "abandoned"
            return is_ours

        return await self._ask(abandon)

    async def take_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        async def take() -> bool:
            is_taken = await self.disk.journal.take_turn(conversation_id, request_id, owner, seconds)
            if is_taken:
                self._turns.add(request_id)
                self.disk.archive.takes_turn(request_id, conversation_id)
            return is_taken

        if self._continues:
            self._turns.discard(request_id)  # It may be resumed here, and continue without the turn this time.
        return await self._ask(take)

    async def renew_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        return await self._ask(lambda: self.disk.journal.renew_turn(conversation_id, request_id, owner, seconds))

    async def return_turn(self, conversation_id: str, request_id: str) -> None:
        await self._ask(lambda: self.disk.journal.return_turn(conversation_id, request_id))

    async def prune(self, *, before: float, conversations: bool = False) -> PruneReport:
        return await self.disk.journal.prune(before=before, conversations=conversations)

    async def statistics(self) -> StoreStatistics:
        return await self.disk.journal.statistics()

    # ----------------------------------------------------------------------------------------------- conversations

    async def history(self, conversation_id: str) -> Sequence[Message]:
        return await self._ask(lambda: self.disk.memory.history(conversation_id))

    async def remember(self, conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> None:
        async def remember() -> None:
            if not request_id or await self.disk.journal.request(request_id) is not None:
                await self.disk.memory.remember(conversation_id, messages)
                self.disk.archive.adds(conversation_id, messages)

        await self._ask(remember)

    async def conversations(
        self, *, search: str = "", prefix: str = "", limit: int = 100
    ) -> Sequence[ConversationRecord]:
        return await self.disk.memory.conversations(search=search, prefix=prefix, limit=limit)

    async def forget(self, conversation_id: str) -> bool:
        async def forget() -> bool:
            is_forgotten = await self.disk.memory.forget(conversation_id)
            if is_forgotten:
                self.disk.faults["conversation deleted"] += 1
                self.disk.archive.deletes(conversation_id)
                self.disk.remembered.discard(conversation_id)
            return is_forgotten

        # Without a journal, nothing refuses a deletion because a request has begun meanwhile.
        return await (self._ask(forget) if self.disk.journals else forget())

    async def aclose(self) -> None:
        """Do nothing: the disk outlives the process."""


def _refuse(fault: str) -> NoReturn:
    if fault == "full":
        raise OSError(28, "no space left")  # an application's own store may raise this
    if fault == "locked":
        raise StoreUnavailable("the database is locked")
    raise StoreError(f"the disk has a fault: {fault}")


def _as_written(record: RequestRecord | None) -> RequestRecord | None:
    """Return a record as a database returns it: with its agreement from JSON."""
    return None if record is None else replace(record, agreed=orjson.loads(orjson.dumps(dict(record.agreed))))
