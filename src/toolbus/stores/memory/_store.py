"""Conversations in this process's memory: the default store. Nothing outlives the process, so it has no journal.

Knows messages and the `Store` protocol. With `journal=True` it has one all the same, for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import ConfigurationError
from ...messages import Message
from ...storage import ConversationRecord, JournalStore
from ._conversations import MemoryConversations
from ._journal import MemoryJournal

__all__ = ["MemoryStatistics", "MemoryStore"]


@dataclass(slots=True, frozen=True)
class MemoryStatistics:
    """What is held now, and how many conversations the bounds have dropped so far."""

    conversations: int
    size_bytes: int
    dropped: int


class MemoryStore:
    """A `Store` in memory, bounded in conversations and in bytes.

    Bytes are an estimate: one for each character of ASCII text, four for any other, and some overhead. Past either
    bound the conversation that was read or written longest ago is forgotten, whole; the newest one is kept even when
    it alone is over `max_bytes`. Costs O(messages added). With `journal`, it keeps the facts of requests as well, as
    long as it lives and without a bound: then requests can go on in another runtime of the process (`Runtime.resume`).
    """

    def __init__(
        self, *, max_conversations: int = 1_000, max_bytes: int = 64 * 1024 * 1024, journal: bool = False
    ) -> None:
        if max_conversations < 1 or max_bytes < 1:
            raise ConfigurationError(
                f"max_conversations is {max_conversations} and max_bytes {max_bytes}; each must be at least 1"
            )
        self._conversations = MemoryConversations(max_conversations, max_bytes)
        self._journal = MemoryJournal(self._conversations) if journal else None

    @property
    def journal(self) -> JournalStore | None:
        """There is none, unless it was asked for: sessions wait for nothing."""
        return self._journal

    async def history(self, conversation_id: str) -> Sequence[Message]:
        """See `Store.history`. Never suspends."""
        return self._conversations.history(conversation_id)

    async def remember(self, conversation_id: str, messages: Sequence[Message]) -> None:
        """See `Store.remember`. Never suspends."""
        self._conversations.add(conversation_id, messages)

    async def conversations(self, *, search: str = "", limit: int = 100) -> Sequence[ConversationRecord]:
        """See `Store.conversations`. Never suspends."""
        return self._conversations.listed(search, limit)

    async def forget(self, conversation_id: str) -> bool:
        """See `Store.forget`. Never suspends."""
        had_requests = self._journal is not None and self._journal.forget(conversation_id)
        return self._conversations.drop(conversation_id) or had_requests

    async def aclose(self) -> None:
        """Nothing to let go of: what is remembered stays with the object."""

    def statistics(self) -> MemoryStatistics:
        """What is held now."""
        kept = self._conversations
        return MemoryStatistics(conversations=len(kept), size_bytes=kept.size_bytes, dropped=kept.dropped)
