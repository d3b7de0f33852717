"""The seam to what outlives a process: conversations, the journal of requests, and the leases on them.

Three protocols, from small to large. A `Journal` is what a session writes to. A `Store` keeps conversations, and may
have a `JournalStore`, which keeps the facts of requests so that another process can go on with them. Contracts are
documented here; `toolbus.testing.check_store` holds implementations to them. Knows messages and events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from .events import Event, RequestCancelled, RequestCompleted, RequestFailed
from .messages import Message

__all__ = [
    "ConversationRecord",
    "Durability",
    "Ending",
    "Entry",
    "FactReader",
    "Journal",
    "JournalStore",
    "Pruned",
    "RequestRecord",
    "Store",
    "StoreStatistics",
    "StoredFact",
    "ending_of",
]


class Journal(Protocol):
    """Where a session writes its facts before it has effects."""

    async def append(self, request_id: str, seq: int, facts: Sequence[Event]) -> int | None:
        """Write `facts`, of which the first has place `seq` in its request; durable when this returns.

        Places are dense from 0. Called by one session, one append at a time, and never again after a request's ending
        is written. Cancellation leaves either all or none of the facts written; the next append then begins with them
        again, at the same place. Returns the bytes that the request's journal takes now, where that is counted. Raises
        `LeaseLost` when the request is another process's by now, and `StoreError`.
        """
        ...


@runtime_checkable
class FactReader(Protocol):
    """A journal that can be read as well, by those who come late to a request that runs."""

    async def facts_of(self, request_id: str) -> Sequence[Event]:
        """The request's facts that are durable, in order. Raises `StoreError`."""
        ...


Durability: TypeAlias = Literal["power", "process"]
"""What a commit survives: the loss of power, or the death of the process."""

Ending: TypeAlias = Literal["completed", "stopped", "failed", "cancelled", "abandoned"]
"""How a request ended: its outcome, or "abandoned" for one whose ending could not be written when it ended."""


def ending_of(fact: Event) -> Ending | None:
    """The ending that a request has whose last fact this is; None for one that goes on, or was abandoned."""
    if isinstance(fact, RequestCompleted):
        return fact.outcome
    if isinstance(fact, RequestFailed):
        return "failed"
    return "cancelled" if isinstance(fact, RequestCancelled) else None


@dataclass(slots=True, kw_only=True)
class Entry:
    """One step of one request: facts that belong together, written all or not at all.

    `seq` is the first one's place. `epoch` is that of the lease that the writer holds. With `seq` 0 the request begins:
    `owner` and `lease_seconds` are those of its first lease, and `agreed` is what else has to be known to go on with
    it, as JSON values. With `ending` it ends: `turn` are the messages that it adds to its conversation, in the same
    transaction, and the lease is given back.
    """

    request_id: str
    conversation_id: str
    epoch: int
    seq: int
    facts: Sequence[Event]
    owner: str = ""
    lease_seconds: float = 0.0
    agreed: Mapping[str, Any] | None = None
    ending: Ending | None = None
    turn: Sequence[Message] = ()


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """What a store knows of one request, beside its facts. Times are seconds since the epoch, by the store's clock.

    `epoch` is that of the newest lease, from 1; `owner` is empty and `lease_until` 0 where nobody holds one. `ending`
    is None while the request is unfinished. `facts` are how many there are, `size_bytes` what they take.
    """

    request_id: str
    conversation_id: str
    epoch: int = 1
    owner: str = ""
    lease_until: float = 0.0
    begun_at: float = 0.0
    ended_at: float | None = None
    ending: Ending | None = None
    facts: int = 0
    size_bytes: int = 0
    agreed: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True, kw_only=True)
class StoredFact:
    """A fact at its place. `step_end` is the place of its step's last fact: a request can go on behind that."""

    seq: int
    step_end: int
    fact: Event


@dataclass(slots=True, kw_only=True)
class ConversationRecord:
    """A conversation in a list. `messages` are how many there are; `title` is the beginning of the first prompt.

    Times are seconds since the epoch, by the store's clock, of the first and of the newest turn.
    """

    conversation_id: str
    title: str
    messages: int
    begun_at: float
    changed_at: float


@dataclass(slots=True, kw_only=True)
class Pruned:
    """What a pruning took away. `size_bytes` are those of facts and messages, not of the file."""

    requests: int = 0
    conversations: int = 0
    size_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class StoreStatistics:
    """What a store holds, and what it has done since it was opened.

    `size_bytes` is what facts, large values and messages take; `appends` and `commits` are counts: many appends share
    one commit. `queue_peak` is the most appends that have waited at once.
    """

    requests: int = 0
    unfinished: int = 0
    facts: int = 0
    conversations: int = 0
    messages: int = 0
    size_bytes: int = 0
    appends: int = 0
    commits: int = 0
    queue_peak: int = 0


@runtime_checkable
class Store(Protocol):
    """Conversation memory; and where what it keeps survives a restart, the journal.

    A conversation's history is the transcript of its ended turns, in the order in which they ended: it only grows, so
    its beginning stays as it is.
    """

    @property
    def journal(self) -> JournalStore | None:
        """The journal, or None where nothing outlives the process: then sessions do not wait for it."""
        ...

    async def history(self, conversation_id: str) -> Sequence[Message]:
        """The messages of the conversation's ended turns, oldest first; empty for an unknown one."""
        ...

    async def remember(self, conversation_id: str, messages: Sequence[Message]) -> None:
        """Add a turn's messages behind the conversation's history. All or nothing under cancellation.

        For turns that no journal has: the ending of one that does brings its messages along (`Entry.turn`).
        """
        ...

    async def conversations(self, *, search: str = "", limit: int = 100) -> Sequence[ConversationRecord]:
        """The newest conversations first, at most `limit`. With `search`, those with a message that has this text.

        Capitals count as small letters where both are ASCII; the text is taken as it is, with no wild cards.
        """
        ...

    async def forget(self, conversation_id: str) -> bool:
        """Delete a conversation, with what the journal has of its finished requests. False where there is none.

        Raises `StoreError` while a request of it is unfinished.
        """
        ...

    async def aclose(self) -> None:
        """Let go of files, connections and threads, once what was begun is written. Idempotent.

        What is called afterwards opens them again.
        """
        ...


class JournalStore(Protocol):
    """The journal of many requests: their facts, and who may go on with each.

    A request belongs to who holds its lease. Each taking of a lease raises its `epoch` by one, and an append with an
    older epoch, or at a place that is taken, is refused with `LeaseLost` in the same transaction: so a process that was
    stopped for longer than its lease cannot write any more. A lease that has run out, and that nobody has taken, is
    still good for writing and can be renewed. Appends of several sessions may be called at once, and share a
    transaction where the database has them. A request that was forgotten may begin again. Ids are any texts: one that
    the database cannot keep apart from others (with a NUL, or half a surrogate pair) is refused by a `ToolbusError`.
    Every method raises `StoreError` for what goes wrong out there, within five seconds, and works again when that is
    over.
    """

    async def append(self, entry: Entry) -> int:
        """Write a step. Durable when this returns: the bytes that the request's journal takes now.

        Cancellation leaves either all or none of it written. Raises `LeaseLost`, and `StoreError` also for a request
        that has ended, or that begins a second time.
        """
        ...

    async def facts(self, request_id: str, *, start: int = 0) -> Sequence[StoredFact]:
        """The request's facts from place `start` on, in order; empty for an unknown one.

        Raises `StoreDamaged`, which names the first place where they are not what was written.
        """
        ...

    async def request(self, request_id: str) -> RequestRecord | None:
        """What is known of a request; None for an unknown one."""
        ...

    async def unfinished(self, *, limit: int = 1_000) -> Sequence[RequestRecord]:
        """Requests that have begun and not ended and whose lease nobody holds, or has run out: oldest first.

        Of one whose record is damaged there are the ids at least, so that the others can go on.
        """
        ...

    async def take(self, request_id: str, owner: str, seconds: float) -> RequestRecord | None:
        """Take the lease on an unfinished request, with the next epoch; the request as it is then.

        None when somebody holds it, when the request has ended, and for an unknown one. Atomic: of two at once, one
        gets it. Raises `StoreDamaged`, and takes nothing then.
        """
        ...

    async def renew(self, owner: str, seconds: float) -> int:
        """Have all leases of `owner` run out `seconds` from now; how many there are. Of nobody (""), none."""
        ...

    async def release(self, request_id: str, epoch: int) -> bool:
        """Give a lease back, so that the request can be taken at once. False when it is another's by now."""
        ...

    async def abandon(self, request_id: str, epoch: int) -> bool:
        """End a request whose ending cannot be written as a fact: it is not resumed. False when it is another's."""
        ...

    async def prune(self, *, before: float, conversations: bool = False) -> Pruned:
        """Delete the facts of requests that ended before this moment, which is not in it; of unfinished ones, none.

        With `conversations`, those as well that have not changed since, unless a request of theirs is unfinished or
        was begun or ended later; else their messages stay.
        """
        ...

    async def statistics(self) -> StoreStatistics:
        """What it holds."""
        ...
