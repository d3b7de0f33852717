"""Conversations in this process's memory: the default store. Nothing outlives the process, so it has no journal.

Knows messages and the `Store` protocol. With `journal=True` it has one all the same, for tests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..clock import wall_time
from ..errors import ConfigurationError
from ..messages import AssistantMessage, Message, SystemMessage, ToolMessage
from ..storage import ConversationRecord, JournalStore
from ._memory_journal import MemoryJournal
from ._texts import folded, message_text, title_of

__all__ = ["MemoryStatistics", "MemoryStore"]

_OVERHEAD_BYTES = 400  # of a message's objects and its places in lists, measured on CPython 3.11
_WIDEST = 4  # bytes of a character that is not ASCII


@dataclass(slots=True, frozen=True)
class MemoryStatistics:
    """What is held now, and how many conversations the bounds have dropped so far."""

    conversations: int
    size_bytes: int
    dropped: int


@dataclass(slots=True)
class _Conversation:
    messages: list[Message] = field(default_factory=list[Message])
    size_bytes: int = 0
    begun_at: float = 0.0
    changed_at: float = 0.0


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
        self._max_conversations = max_conversations
        self._max_bytes = max_bytes
        self._conversations: OrderedDict[str, _Conversation] = OrderedDict()
        self._size_bytes = 0
        self._dropped = 0
        self._journal = MemoryJournal(self._add) if journal else None

    @property
    def journal(self) -> JournalStore | None:
        """There is none, unless it was asked for: sessions wait for nothing."""
        return self._journal

    async def history(self, conversation_id: str) -> Sequence[Message]:
        """See `Store.history`. Never suspends."""
        found = self._conversations.get(conversation_id)
        if found is None:
            return ()
        self._conversations.move_to_end(conversation_id)
        return tuple(found.messages)

    async def remember(self, conversation_id: str, messages: Sequence[Message]) -> None:
        """See `Store.remember`. Never suspends."""
        self._add(conversation_id, messages)

    def _add(self, conversation_id: str, messages: Sequence[Message]) -> None:
        now = wall_time()
        kept = self._conversations.setdefault(conversation_id, _Conversation(begun_at=now))
        kept.changed_at = now
        self._conversations.move_to_end(conversation_id)
        kept.messages.extend(messages)
        added = _size(messages)
        kept.size_bytes += added
        self._size_bytes += added
        while len(self._conversations) > self._max_conversations or (
            self._size_bytes > self._max_bytes and len(self._conversations) > 1
        ):
            _, oldest = self._conversations.popitem(last=False)
            self._size_bytes -= oldest.size_bytes
            self._dropped += 1

    async def conversations(self, *, search: str = "", limit: int = 100) -> Sequence[ConversationRecord]:
        """See `Store.conversations`. Never suspends."""
        wanted = folded(search)
        found = [
            (conversation_id, kept)
            for conversation_id, kept in self._conversations.items()
            if not wanted or any(wanted in folded(message_text(message)) for message in kept.messages)
        ]
        found.sort(key=lambda each: each[1].changed_at, reverse=True)
        return [
            ConversationRecord(
                conversation_id=conversation_id,
                title=title_of(kept.messages),
                messages=len(kept.messages),
                begun_at=kept.begun_at,
                changed_at=kept.changed_at,
            )
            for conversation_id, kept in found[:limit]
        ]

    async def forget(self, conversation_id: str) -> bool:
        """See `Store.forget`. Never suspends."""
        had_requests = self._journal is not None and self._journal.forget(conversation_id)
        kept = self._conversations.pop(conversation_id, None)
        if kept is not None:
            self._size_bytes -= kept.size_bytes
        return kept is not None or had_requests

    async def aclose(self) -> None:
        """Nothing to let go of: what is remembered stays with the object."""

    def statistics(self) -> MemoryStatistics:
        """What is held now."""
        return MemoryStatistics(
            conversations=len(self._conversations), size_bytes=self._size_bytes, dropped=self._dropped
        )


def _size(messages: Sequence[Message]) -> int:
    """The bytes that the messages hold, about. One pass without calls: this is done for every request."""
    size = _OVERHEAD_BYTES * len(messages)
    for message in messages:
        if isinstance(message, ToolMessage):
            text = message.content
        elif isinstance(message, AssistantMessage):
            text = message.text
            size += len(message.reasoning) * _WIDEST
            for call in message.tool_calls:
                size += _OVERHEAD_BYTES + len(call.arguments) * (1 if call.arguments.isascii() else _WIDEST)
        elif isinstance(message, SystemMessage):
            text = message.text
        elif isinstance(message.content, str):
            text = message.content
        else:
            text = "".join(getattr(part, "text", "") or getattr(part, "url", "") for part in message.content)
        size += len(text) * (1 if text.isascii() else _WIDEST)
    return size
