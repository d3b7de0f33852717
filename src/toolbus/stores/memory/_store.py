"""`MemoryStore`: the conversations, and optionally the journal, in this process's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..._option_checks import check, whole
from ...messages import Message
from ...storage import ConversationRecord, JournalStore
from ._conversations import MemoryConversations
from ._journal import MemoryJournal


@dataclass(slots=True, frozen=True)
class MemoryStatistics:
    """The numbers of a `MemoryStore` now. `dropped` counts the conversations that its bounds have dropped so far."""

    conversations: int
    size_bytes: int
    dropped: int


class MemoryStore:
    """A `Store` in memory, bounded in conversations and in bytes.

    Bytes are an estimate: one for each character of an ASCII text, four for each character of any other text, and some
    overhead. Beyond either bound the conversation that was read or written longest ago is dropped as a whole; the
    newest one is kept even if it is larger than `max_bytes` by itself. Costs O(messages added). With `journal`, it also
    keeps the facts of requests, as long as the store lives and without a bound: then requests can be resumed in another
    runtime of the process (`Runtime.resume`).

    Example:
        from toolbus.stores.memory import MemoryStatistics, MemoryStore

        store = MemoryStore(max_conversations=10_000, journal=True)  # Runtime(..., store=store)
        statistics: MemoryStatistics = store.statistics()
        print(statistics.conversations, statistics.dropped)  # 0 0
    """

    def __init__(
        self, *, max_conversations: int = 1_000, max_bytes: int = 64 * 1024 * 1024, journal: bool = False
    ) -> None:
        check("max_conversations", max_conversations, whole(1))
        check("max_bytes", max_bytes, whole(1))
        self._conversations = MemoryConversations(max_conversations, max_bytes)
        self._journal = MemoryJournal(self._conversations) if journal else None

    @property
    def journal(self) -> JournalStore | None:
        """The journal, or None unless the store was made with `journal=True`: then sessions wait for no writes."""
        return self._journal

    async def history(self, conversation_id: str) -> Sequence[Message]:
        """See `Store.history`. Never suspends."""
        return self._conversations.history(conversation_id)

    async def remember(self, conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> None:
        """See `Store.remember`. Never suspends."""
        if not request_id or (self._journal and await self._journal.request(request_id)):
            self._conversations.add(conversation_id, messages)

    async def conversations(
        self, *, search: str = "", prefix: str = "", limit: int = 100
    ) -> Sequence[ConversationRecord]:
        """See `Store.conversations`. Never suspends."""
        return self._conversations.listed(search, prefix, limit)

    async def forget(self, conversation_id: str) -> bool:
        """See `Store.forget`. Never suspends."""
        had_requests = self._journal is not None and self._journal.forget(conversation_id)
        return self._conversations.drop(conversation_id) or had_requests

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close, and the data stays with the object."""

    def statistics(self) -> MemoryStatistics:
        """Return the numbers of what is held now."""
        kept = self._conversations
        return MemoryStatistics(conversations=len(kept), size_bytes=kept.size_bytes, dropped=kept.dropped)
