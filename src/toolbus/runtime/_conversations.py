"""What a runtime keeps in mind of conversations beside their messages: so that the next turn goes on from the last one.

In this process's memory alone. Knows sessions, and neither stores nor the runtime.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.history import Memo
from ..messages import Message
from ..secrets import Vault
from ..session import Earlier, SessionSnapshot
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

    def for_next_turn(self, conversation_id: str, messages: Sequence[Message]) -> Earlier:
        """Return what a turn that is about to begin gets; `messages` are the conversation's so far."""
        return Earlier(
            messages=messages,
            notes=self.late.take(conversation_id, messages),
            granted=self._granted.get(conversation_id) or {},
            memo=self._left_out.get(conversation_id) if messages else None,
            vault=self._vaults.get(conversation_id),
        )

    def for_resumed_turn(self, conversation_id: str) -> Earlier:
        """Return what a turn that is continued gets: the secrets, since the journal has everything else."""
        return Earlier(vault=self._vaults.get(conversation_id))

    def keep(self, found: SessionSnapshot) -> None:
        """Keep what a turn that has ended, or was left, hands to the next one."""
        conversation_id = found.state.conversation_id
        # Of a turn that was left, nobody knows which of its decisions are in the journal.
        if found.state.granted and not found.left:
            self._granted.put(conversation_id, found.state.granted)
        vault, window = found.view.secrets.vault, found.view.window
        if vault is not None and vault.given:
            self._vaults.put(conversation_id, vault)
        if not window.is_plain:
            self._left_out.put(conversation_id, window.conversation_memo())
