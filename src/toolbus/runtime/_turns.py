"""The turn that a request is of its conversation: what it begins with, and what it leaves to the next one.

Knows the store, the journal and the order of turns, and must not know how a request is carried out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from ..durability import REPLACED, JournalWriter, StoredRequests, call_store_in_time
from ..errors import ApplicationError, ConfigurationError, ResumeMismatch, StoreDamaged, StoreError, UnknownRequest
from ..handles import RequestHandle
from ..session import Earlier, OnBusy, RequestSession, SessionSnapshot
from ..storage import Store
from ._admission import Ticket
from ._conversations import ConversationState

_logger = logging.getLogger("toolbus.runtime")


class Turns:
    """The turns of all conversations of one runtime. `stored` returns the requests of its journal, if it has one."""

    def __init__(
        self,
        store: Store,
        writer: JournalWriter | None,
        stored: Callable[[], StoredRequests] | None,
        handle: Callable[[str], RequestHandle],
    ) -> None:
        self.conversations = ConversationState()
        self._store = store
        self._writer = writer
        self._stored = stored
        self._handle = handle

    async def begin(
        self,
        request_id: str,
        conversation_id: str,
        ticket: Ticket,
        *,
        is_named: bool,
        on_busy: OnBusy,
        has_history: bool,
    ) -> Earlier:
        """Wait for the turn of a new request. Return the conversation so far, and what else its last turn hands over.

        `is_named` is false for a conversation that only this request knows. With "refuse", raises `ConversationBusy`
        instead of waiting for another process. Raises `ConfigurationError` if the application has given a history and
        there is another.
        """
        writer = self._writer if is_named else None
        if writer is not None and (on_busy == "replace" or not ticket.running):
            with suppress(StoreError):  # The turn cannot be taken either, which is reported there.
                await writer.apply_replacements(request_id, self._replace)
        await ticket.ready()
        if writer is not None:
            stand_aside = None if on_busy == "refuse" else ticket.stand_aside
            await writer.take_turn(request_id, conversation_id, stand_aside, self._replace)
        late = self.conversations.late.of(conversation_id)
        if self._stored is not None:
            # An answer may also be given through a handle, in any process: so the store has it, once.
            for each in late:
                # If the store cannot keep it with its request, it becomes a note of this turn.
                with suppress(ApplicationError, ResumeMismatch, StoreDamaged, UnknownRequest):
                    await self._stored().keep_late(each)
        earlier = await call_store_in_time(self._store.history(conversation_id))
        if earlier and has_history:
            raise ConfigurationError(
                f"conversation {conversation_id!r} has a history already; pass history= or its id, not both"
            )
        return self.conversations.for_next_turn(conversation_id, earlier, late)

    async def _replace(self, request_id: str) -> None:
        """Cancel a request in any process, as a newer turn of its conversation replaces it."""
        await self._handle(request_id).cancel(REPLACED)

    async def resume(self, request_id: str, conversation_id: str, ticket: Ticket) -> Earlier:
        """Wait for the turn of a request that another process has begun. Its messages are in its journal."""
        await ticket.ready()
        if self._writer is not None:
            await self._writer.take_turn(request_id, conversation_id, ticket.stand_aside)
        return self.conversations.for_resumed_turn(conversation_id)

    async def remember(self, session: RequestSession, found: SessionSnapshot) -> None:
        """Add the turn to its conversation, once. If the store fails, only this turn is lost from the conversation."""
        self.conversations.keep(found)
        if self._writer is not None and await self._writer.release(session):
            return
        try:
            if messages := found.turn:
                await self._store.remember(session.conversation_id, messages)
        except Exception as exc:
            ids = {"request_id": session.request_id, "conversation_id": session.conversation_id}
            bug = None if isinstance(exc, StoreError) else exc
            level = logging.WARNING if bug is None else logging.ERROR
            text = "request %s: the store failed, and this turn is not remembered: %s"
            _logger.log(level, text, session.request_id, exc, exc_info=bug, extra=ids)
