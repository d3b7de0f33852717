"""What a runtime keeps in mind of conversations beside their messages: so that the next turn goes on from the last one.

In this process's memory alone. Knows sessions, and neither stores nor the runtime.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.history import Memo
from ..messages import Message
from ..secrets import Vault
from ..session import RequestSession
from ._bounded import Shelf
from ._late_results import LateShelf

__all__ = ["ConversationState"]

_MOST_CONVERSATIONS = 10_000


class ConversationState:
    """Remembered decisions, secrets, what was left out of what is sent, and results that came too late.

    Each is bounded in conversations: the one that was put there longest ago makes room. `late` is to be connected to
    `ToolCallLate`.
    """

    def __init__(self) -> None:
        self.late = LateShelf()
        self._granted = Shelf[dict[str, bool]](_MOST_CONVERSATIONS)
        self._left_out = Shelf[Memo](_MOST_CONVERSATIONS)
        self._vaults = Shelf[Vault](_MOST_CONVERSATIONS)

    def hand_to(self, session: RequestSession, earlier: Sequence[Message]) -> None:
        """Give a turn that is about to begin what is known; `earlier` are the conversation's messages so far."""
        conversation_id = session.conversation_id
        session.beginning.notes = self.late.take(conversation_id, earlier)
        session.granted.update(self._granted.get(conversation_id) or {})
        session.sending.memo = self._left_out.get(conversation_id) if earlier else None
        self.hand_secrets_to(session)

    def hand_secrets_to(self, session: RequestSession) -> None:
        """Give a turn that goes on the secrets, which are in no journal. All else of it is."""
        session.share_vault(self._vaults.get(session.conversation_id))

    def keep(self, session: RequestSession) -> None:
        """Keep what a turn that has ended, or was left, leaves for the next one."""
        conversation_id = session.conversation_id
        if session.granted and not session.leaves:  # else nobody knows which of these decisions are in the journal
            self._granted.put(conversation_id, session.granted)
        if session.secrecy is not None and session.secrecy.vault.given:
            self._vaults.put(conversation_id, session.secrecy.vault)
        if not session.sending.is_plain:
            self._left_out.put(conversation_id, session.sending.conversation_memo())
