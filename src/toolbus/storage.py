"""The protocols of storage, for all that outlives a process: conversations, the journal of requests, and their leases.

There are four protocols. A session writes its facts to a `Journal`. A `Store` keeps conversations, and may have a
`JournalStore`, which keeps the facts of requests so that another process can continue them. A journal that is an
`Inbox` as well brings the inputs of people and other systems to the process that runs a request. The contracts are
documented here; `toolbus.testing.check_store` checks implementations. Knows messages and events, and must not know a
store.

Example:
    from toolbus import Runtime
    from toolbus.storage import Durability, JournalStore, RequestRecord, Store, StoredFact, StoreStatistics, ending_of
    from toolbus.stores.memory import MemoryStore
    from toolbus.testing import ScriptedProvider, text

    store: Store = MemoryStore(journal=True)
    async with Runtime(ScriptedProvider([text("Hello.")]), store=store) as runtime:
        result = await runtime.run("Hello?", conversation_id="user-1")
        journal: JournalStore = store.journal
        record: RequestRecord = await journal.request(result.request_id)
        facts: list[StoredFact] = [*await journal.facts(result.request_id)]
        statistics: StoreStatistics = await journal.statistics()
        print(record.ending, ending_of(facts[-1].fact), statistics.requests)  # completed completed 1
        print([message.text for message in await store.history("user-1")])  # ['Hello?', 'Hello.']
    durability: Durability = "process"  # SqliteStore(path, durability="process"): survives a crash of the process
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from .events import Event, RequestEnding
from .messages import Message

__all__ = [
    "MAX_WAITING_INPUTS",
    "TIMEOUT_SECONDS",
    "WRITE_SECONDS",
    "ConversationRecord",
    "Durability",
    "Ending",
    "Entry",
    "Inbox",
    "InboxReceipt",
    "Journal",
    "JournalStore",
    "PruneReport",
    "RequestRecord",
    "SettledState",
    "Store",
    "StoreStatistics",
    "StoredFact",
    "ending_of",
]


WRITE_SECONDS = 5.0
"""The time after which a fault of the store has to be reported (G21), and the bound of each write that is shielded."""

TIMEOUT_SECONDS = 4.5
"""The time in which a store has to answer, so that what went wrong is known before `WRITE_SECONDS` have passed."""


class Journal(Protocol):
    """The journal of a session, which writes its facts there before they have effects."""

    async def append(self, request_id: str, seq: int, facts: Sequence[Event]) -> int | None:
        """Write `facts`, the first of which has position `seq` in its request. They are durable when this returns.

        Positions are dense, from 0. Called by one session, one append at a time, and never again after a request's
        ending is written. Cancellation leaves either all or none of the facts written; the next append then begins with
        them again, at the same position. The session cancels a write after `TIMEOUT_SECONDS`, and appends the same
        facts once more: by then, the journal has to say at once what becomes of them. Returns the bytes that the
        request's journal takes now, or None if they are not counted. Raises `LeaseLost` if another process has taken
        the request over, and `StoreError`.
        """
        ...


Durability: TypeAlias = Literal["power", "process"]
"""The durability of a commit: it survives a loss of power, or only the death of the process."""

Ending: TypeAlias = Literal["completed", "stopped", "failed", "cancelled", "abandoned"]
"""The ending of a request: its outcome, or "abandoned" if its ending could not be written, or it could not continue."""


def ending_of(fact: Event) -> Ending | None:
    """Return the ending of a request whose last fact is `fact`; None if the request continues, or was abandoned."""
    return fact.outcome if isinstance(fact, RequestEnding) else None


@dataclass(slots=True, kw_only=True)
class Entry:
    """One step of one request: facts that belong together, of which all or none are written.

    `seq` is the position of the first fact. `epoch` is that of the lease that the writer holds. With `seq` 0 the
    request begins: `owner` and `lease_seconds` are those of its first lease, and `agreed` is everything else that is
    needed to continue it, as JSON values; with `has_turn` it begins only if `owner` still has the turn that it took for
    this request (`JournalStore.take_turn`). With `ending` it ends: `turn` holds the messages that it adds to its
    conversation, in the same transaction, and the lease is released. `received` are the ids of those of the facts that
    came from the request's inbox: in the same transaction their inputs become "taken".
    """

    request_id: str
    conversation_id: str
    epoch: int
    seq: int
    facts: Sequence[Event]
    owner: str = ""
    lease_seconds: float = 0.0
    agreed: Mapping[str, Any] | None = None
    has_turn: bool = False
    ending: Ending | None = None
    turn: Sequence[Message] = ()
    received: Sequence[str] = ()


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """The record that a store has of one request. Times are seconds since the epoch, by the store's clock.

    `epoch` is that of the newest lease, and counts from 1. `owner` is empty and `lease_until` 0 while nobody holds a
    lease; with an empty owner and a later moment, the request is parked until then (`Inbox.park`). `ending` stays None
    while the request is unfinished. `fact_count` is the number of its facts, `size_bytes` their size.
    """

    request_id: str
    conversation_id: str
    epoch: int = 1
    owner: str = ""
    lease_until: float = 0.0
    started_at: float = 0.0
    ended_at: float | None = None
    ending: Ending | None = None
    fact_count: int = 0
    size_bytes: int = 0
    agreed: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True, kw_only=True)
class StoredFact:
    """A fact with its position. `step_end` is that of the last fact of its step; a request can continue after it."""

    seq: int
    step_end: int
    fact: Event


@dataclass(slots=True, kw_only=True)
class ConversationRecord:
    """A conversation in a list. `title` is the beginning of its first prompt, `message_count` counts its messages.

    The times are those of the first and of the newest turn, in seconds since the epoch, by the store's clock.
    """

    conversation_id: str
    title: str
    message_count: int
    started_at: float
    updated_at: float


@dataclass(slots=True, kw_only=True)
class PruneReport:
    """The numbers of pruned requests and conversations. `size_bytes` counts facts and messages, not the file."""

    requests: int = 0
    conversations: int = 0
    size_bytes: int = 0

    def __add__(self, other: PruneReport) -> PruneReport:
        return PruneReport(
            requests=self.requests + other.requests,
            conversations=self.conversations + other.conversations,
            size_bytes=self.size_bytes + other.size_bytes,
        )


@dataclass(slots=True, kw_only=True)
class StoreStatistics:
    """The content of a store, and its work since it was opened.

    `size_bytes` is the size of facts, large values and messages. `appends` and `commits` are counts; many appends may
    share one commit. `queued_peak` is the largest number of appends that have waited at once.
    """

    requests: int = 0
    unfinished: int = 0
    facts: int = 0
    conversations: int = 0
    messages: int = 0
    size_bytes: int = 0
    appends: int = 0
    commits: int = 0
    queued_peak: int = 0


@runtime_checkable
class Store(Protocol):
    """The memory of conversations; if it survives a restart, it has the journal of requests as well.

    A conversation's history is the transcript of its ended turns, in the order in which they ended. It only grows, so
    its beginning does not change.
    """

    @property
    def journal(self) -> JournalStore | None:
        """The journal, or None if nothing outlives the process; then sessions do not wait for one."""
        ...

    async def history(self, conversation_id: str) -> Sequence[Message]:
        """Return the messages of the conversation's ended turns, oldest first; empty for an unknown conversation."""
        ...

    async def remember(self, conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> None:
        """Append a turn's messages to the conversation's history. All or nothing under cancellation.

        This is for turns without a journal; with a journal, the ending brings the turn's messages (`Entry.turn`). For
        messages that come after the ending, `request_id` names their request. If the request was deleted since, nothing
        is appended, because its conversation may have been deleted with it.
        """
        ...

    async def conversations(
        self, *, search: str = "", prefix: str = "", limit: int = 100
    ) -> Sequence[ConversationRecord]:
        """Return conversations, the newest first, at most `limit`.

        With `prefix`, only conversations whose id begins with this text, taken as it is, are returned. With `search`,
        only conversations with a message that contains this text are returned. ASCII capitals match small letters. The
        text is taken literally, without wild cards.
        """
        ...

    async def forget(self, conversation_id: str) -> bool:
        """Delete a conversation and its finished requests in the journal.

        Returns False if there is no such conversation. Raises `StoreError` while a request of it is unfinished, or has
        its turn and is about to begin (`JournalStore.take_turn`): it would begin with the messages that are deleted. A
        store without a journal knows no requests, so the messages of a turn that runs are remembered at its end.
        """
        ...

    async def aclose(self) -> None:
        """Close files, connections and threads after all writes that have begun are done. Idempotent.

        A later call of a method opens them again.
        """
        ...


class JournalStore(Protocol):
    """The journal of many requests: their facts, and the leases on them, which say which process may continue each.

    A request belongs to the owner of its lease. Each time the lease is taken, its `epoch` grows by one. An append with
    an older epoch, at a position that is taken, or of a later step of an unknown request (another process has ended it,
    and it was deleted) is refused with `LeaseLost` in the same transaction, so a process that was suspended for longer
    than its lease cannot write any more. A lease that has run out and that nobody has taken still allows writing, and
    can be renewed. Several sessions may append at once, and share a transaction if the database has transactions. A
    request that was forgotten may begin again. An id is any text; an id that the database cannot distinguish from
    others (with a NUL, or half a surrogate pair) is refused with a `ToolbusError`. Every method raises `StoreError` for
    a failure of the database, within five seconds, and works again after the failure is over.
    """

    async def append(self, entry: Entry) -> int:
        """Write a step, which is durable when this returns. Returns the bytes that the request's journal takes now.

        Cancellation leaves either all or none of the step written. Raises `LeaseLost`; `TurnLost` for a beginning with
        `Entry.has_turn` whose turn was given to another request or owner, or given back; and `StoreError`, also for a
        request that has ended, or that begins a second time.
        """
        ...

    async def facts(self, request_id: str, *, start: int = 0) -> Sequence[StoredFact]:
        """Return the request's facts from position `start`, in order; empty for an unknown request.

        Raises `StoreDamaged`, which names the first position whose fact is not what was written.
        """
        ...

    async def request(self, request_id: str) -> RequestRecord | None:
        """Return the record of a request, or None for an unknown one."""
        ...

    async def requests(
        self,
        *,
        conversation_id: str | None = None,
        prefix: str = "",
        is_unfinished: bool = False,
        limit: int = 100,
    ) -> Sequence[RequestRecord]:
        """Return the requests of a conversation, or of all, at most `limit`: those that began last come first.

        With `prefix`, only those of conversations whose id begins with this text, as in `Store.conversations`.
        With `is_unfinished`, only those that have not ended are returned, whether somebody holds them or not. Of a
        request whose record is damaged, at least the ids are returned.
        """
        ...

    async def unfinished(self, *, limit: int = 1_000) -> Sequence[RequestRecord]:
        """Return the requests that have not ended and whose lease is free or has run out, oldest first.

        At most `limit`. For a request whose record is damaged, at least the ids are returned, so that the other
        requests can be continued.
        """
        ...

    async def take(self, request_id: str, owner: str, seconds: float) -> RequestRecord | None:
        """Take the lease on an unfinished request for `seconds`, with the next epoch. Returns the record after that.

        Returns None if another owner holds the lease, if the request has ended, and for an unknown request. Atomic: of
        two concurrent calls, one gets the lease. Raises `StoreDamaged`, and does not take the lease then.
        """
        ...

    async def renew(self, owner: str, seconds: float) -> Collection[str]:
        """Renew all leases of `owner`, so that they last for at least `seconds` from now.

        Returns the ids of the requests whose leases it has, in any order: a lease that is not among them was lost.
        A renewal shortens no lease. For the owner "" it does nothing, and returns no ids. Called by each process all
        the time, so it should not write each of its requests.
        """
        ...

    async def release(self, request_id: str, epoch: int) -> bool:
        """Release a lease, so that the request can be taken at once. Returns False if another owner has it by now."""
        ...

    async def abandon(self, request_id: str, epoch: int) -> bool:
        """End a request whose ending cannot be written as a fact, so that it is not resumed.

        Returns False if another owner has the request.
        """
        ...

    async def take_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        """Give a request the turn of its conversation, so that the turns of several processes run one after the other.

        Called before the request begins or continues. Returns False while a request of another owner has the turn: from
        the moment at which it takes it until it ends, its lease is released or runs out, or, before it begins, until
        `seconds` have passed. The same is true of a request that has begun earlier without taking the turn. Requests
        of one owner take the turn from each other, because each process puts its own into an order. Atomic: of two
        concurrent calls of two owners, one gets the turn. Cancellation leaves the turn taken or not taken; a turn that
        was taken ends by itself, or by `return_turn`.

        Whoever had the turn before cannot write any more: a request that has not begun is refused with `TurnLost`
        (`Entry.has_turn`), and the requests of other owners in this conversation whose leases have run out lose them,
        so that their `epoch` grows by one, and another process can take them. This request is among them, if another
        owner had it.
        """
        ...

    async def renew_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        """Let a turn that was taken last for `seconds` from now, while its request has not begun.

        Returns False, and does nothing, if another request or owner has the turn by now, or nobody.
        """
        ...

    async def return_turn(self, conversation_id: str, request_id: str) -> None:
        """Give back the turn of a request that will not begin. Does nothing if another request has the turn by now."""
        ...

    async def prune(self, *, before: float, conversations: bool = False) -> PruneReport:
        """Delete the facts of requests that ended before the time `before`, exclusively; unfinished requests stay.

        With `conversations`, also delete the conversations that have not changed since then, unless one of their
        requests is unfinished, is about to begin, or began or ended later. Otherwise their messages stay.
        """
        ...

    async def statistics(self) -> StoreStatistics:
        """Return the content of the store as numbers, and its work since it was opened."""
        ...


SettledState: TypeAlias = Literal["taken", "refused"]
"""The state of an input that does not wait any more."""


@dataclass(slots=True, kw_only=True, frozen=True)
class InboxReceipt:
    """The state of an input, as its inbox knows it now.

    "unknown": the store has no such request, or no such input. "waiting": the input is durable, and whoever holds the
    request's lease, now or later, takes it; `is_held` is true if somebody holds the lease now. "taken": it is a fact of
    the request. "refused": the request had no use for it; `reason` is empty, or says what was wrong with it. "ended":
    the request has ended, and the input is not part of it.
    """

    state: Literal["unknown", "ended", "waiting", "taken", "refused"]
    is_held: bool = False
    reason: str = ""


@runtime_checkable
class Inbox(Protocol):
    """The inputs that other processes have for requests: decisions, steering, cancellations, and external answers.

    Part of a `JournalStore` whose requests can be commanded from any process. An input is an event, and its `event_id`
    identifies it. It waits until the process that holds the lease has appended it as a fact (`Entry.received`) or has
    refused it, also if that is another process than the one that held the lease when the input came. A request that
    only waits for inputs may be parked: then no process has it. Inputs are deleted
    together with their request. The errors are those of `JournalStore`.
    """

    async def send(self, event: Event) -> InboxReceipt:
        """Put an input into the inbox of its request, and return its state; "waiting" is durable when this returns.

        An input that was sent before is not sent a second time. Nothing is kept for a request that is unknown or has
        ended. Cancellation leaves it either sent or not sent. Raises `InboxFull` if `MAX_WAITING_INPUTS` inputs wait
        for the request.
        """
        ...

    async def receipt(self, request_id: str, event_id: str) -> InboxReceipt:
        """Return the state of an input."""
        ...

    async def waiting(
        self, owner: str, *, request_id: str = "", without: Collection[str] = (), limit: int = 100
    ) -> Sequence[Event]:
        """Return inputs that wait for requests whose lease `owner` has, those of each request in the order of sending.

        At most `limit`, with `request_id` only those of that request, without those whose ids are in `without`, and
        none for the owner "". An input that cannot be read is left out, and logged by the store.
        """
        ...

    async def settle(self, request_id: str, event_id: str, state: SettledState, reason: str = "") -> None:
        """End the waiting of an input that is not part of an append. Does nothing for one that does not wait."""
        ...

    async def park(self, request_id: str, epoch: int, seconds: float) -> bool:
        """Release a lease; the request is not listed as unfinished, nor taken, for `seconds` or until an input comes.

        An input that waits already frees the request at once, and so does one that `send` puts in. Returns False if
        another owner has the lease by now, or if the request has ended.
        """
        ...


MAX_WAITING_INPUTS = 100
"""The number of inputs that may wait for one request: see `Inbox.send`."""
