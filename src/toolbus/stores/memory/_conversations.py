"""Conversations in memory, within bounds. Knows messages, and neither events nor requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import count

from ...clock import wall_time
from ...messages import Message, size_of
from ...storage import ConversationRecord, PruneReport, StoreStatistics
from .._texts import folded, title_of


@dataclass(slots=True)
class _Conversation:
    messages: list[Message] = field(default_factory=list[Message])
    size_bytes: int = 0
    started_at: float = 0.0
    updated_at: float = 0.0
    # The number of the conversation's newest turn among all turns, which orders them even if they have the same time.
    change: int = 0


class MemoryConversations:
    """Conversations by id, bounded in number and bytes: see `MemoryStore`. `dropped` counts those that were dropped."""

    def __init__(self, max_conversations: int, max_bytes: int) -> None:
        self.size_bytes = 0
        self.dropped = 0
        self._max_conversations = max_conversations
        self._max_bytes = max_bytes
        self._conversations: OrderedDict[str, _Conversation] = OrderedDict()
        self._changes = count()

    def __len__(self) -> int:
        return len(self._conversations)

    def history(self, conversation_id: str) -> Sequence[Message]:
        """Return the messages of a conversation, and mark it as read last."""
        found = self._conversations.get(conversation_id)
        if found is None:
            return ()
        self._conversations.move_to_end(conversation_id)
        return tuple(found.messages)

    def add(self, conversation_id: str, messages: Sequence[Message]) -> None:
        """Add a turn; beyond the bounds, drop other conversations."""
        now = wall_time()
        kept = self._conversations.setdefault(conversation_id, _Conversation(started_at=now))
        kept.updated_at, kept.change = now, next(self._changes)
        self._conversations.move_to_end(conversation_id)
        kept.messages.extend(messages)
        added = size_of(messages)
        kept.size_bytes += added
        self.size_bytes += added
        while len(self._conversations) > self._max_conversations or (
            self.size_bytes > self._max_bytes and len(self._conversations) > 1
        ):
            _, oldest = self._conversations.popitem(last=False)
            self.size_bytes -= oldest.size_bytes
            self.dropped += 1

    def listed(self, search: str, prefix: str, limit: int) -> list[ConversationRecord]:
        wanted = folded(search)
        found = [
            (conversation_id, kept)
            for conversation_id, kept in self._conversations.items()
            if conversation_id.startswith(prefix)
            and (not wanted or any(wanted in folded(message.text) for message in kept.messages))
        ]
        found.sort(key=lambda each: each[1].change, reverse=True)
        return [
            ConversationRecord(
                conversation_id=conversation_id,
                title=title_of(kept.messages),
                message_count=len(kept.messages),
                started_at=kept.started_at,
                updated_at=kept.updated_at,
            )
            for conversation_id, kept in found[: max(0, limit)]
        ]

    def drop(self, conversation_id: str) -> bool:
        """Forget a conversation, and return whether there was one."""
        kept = self._conversations.pop(conversation_id, None)
        if kept is not None:
            self.size_bytes -= kept.size_bytes
        return kept is not None

    def prune(self, before: float, keep: Collection[str]) -> PruneReport:
        """Drop the conversations that have not changed since `before`, except those in `keep`."""
        old = [each for each, kept in self._conversations.items() if kept.updated_at < before and each not in keep]
        size_bytes = self.size_bytes
        for conversation_id in old:
            self.drop(conversation_id)
        return PruneReport(conversations=len(old), size_bytes=size_bytes - self.size_bytes)

    def count(self) -> StoreStatistics:
        """Count the conversations, their messages and their bytes."""
        return StoreStatistics(
            conversations=len(self._conversations),
            messages=sum(len(kept.messages) for kept in self._conversations.values()),
            size_bytes=self.size_bytes,
        )
