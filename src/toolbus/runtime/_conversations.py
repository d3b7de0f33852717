"""The memory of conversations beside their messages, so that the next turn continues from the last one.

It is in this process only. Knows sessions, and the events of late results. Must not know stores or the runtime.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar

from ..core.history import History, Memo
from ..core.result_notes import late_note, late_note_id
from ..events import ToolCallLate
from ..messages import AssistantMessage, Message, SystemMessage
from ..secrets import Vault
from ..session import Earlier, SessionSnapshot

_MAX_CONVERSATIONS = 10_000
_MAX_WITH_LATE_RESULTS = 1_000  # conversations
_MAX_FOLDED_BYTES = 64 * 2**20  # of the messages in the folds of all conversations
_MAX_LATE_RESULTS = 20  # of one conversation; the oldest are dropped first

T = TypeVar("T")


class BoundedMapping(Generic[T]):
    """Values by conversation. While they weigh more than `limit`, the one that was put in longest ago is dropped.

    `weigh` returns the weight of a value, which must not change while the value is kept; by default each weighs 1.
    """

    __slots__ = ("_limit", "_values", "_weigh", "_weight")

    def __init__(self, limit: int, weigh: Callable[[T], int] = lambda _value: 1) -> None:
        self._values: OrderedDict[str, T] = OrderedDict()
        self._limit = limit
        self._weigh = weigh
        self._weight = 0

    def get(self, conversation_id: str) -> T | None:
        """Return the conversation's value, or None if it has no value."""
        return self._values.get(conversation_id)

    def pop(self, conversation_id: str) -> T | None:
        """Remove and return the conversation's value; None if it has no value."""
        value = self._values.pop(conversation_id, None)
        if value is not None:
            self._weight -= self._weigh(value)
        return value

    def put(self, conversation_id: str, value: T | None) -> None:
        """Replace the conversation's value. None removes it."""
        self.pop(conversation_id)
        if value is None:
            return
        self._values[conversation_id] = value
        self._weight += self._weigh(value)
        while self._weight > self._limit:
            self.pop(next(iter(self._values)))


class LateResultNotes:
    """The results that came too late for their request, as notes for the next turn of its conversation.

    It is a receiver of `ToolCallLate`. Bounded in conversations, and in results of each conversation.
    """

    def __init__(self) -> None:
        self._results = BoundedMapping[list[ToolCallLate]](_MAX_WITH_LATE_RESULTS)

    def __call__(self, event: ToolCallLate) -> None:
        """Keep the late success of a call, if its request wants the next turn to know it."""
        if event.for_next_turn and event.event_type == "tool_call_completed":
            results = [*self.of(event.conversation_id), event]
            self._results.put(event.conversation_id, results[-_MAX_LATE_RESULTS:])

    def of(self, conversation_id: str) -> Sequence[ToolCallLate]:
        """Return the late results of a conversation, oldest first."""
        return self._results.get(conversation_id) or ()

    def take(
        self, conversation_id: str, earlier: Sequence[Message], results: Collection[ToolCallLate]
    ) -> list[SystemMessage]:
        """Return late results of a conversation as notes for the model, and forget them.

        `earlier` are the messages of the conversation: the arguments of the calls are read from them.
        """
        if not results:
            return []
        left = [each for each in self.of(conversation_id) if each not in results]
        self._results.put(conversation_id, left or None)
        known = {message.message_id for message in earlier if isinstance(message, SystemMessage)}
        # A result may have come twice, or be in the stored conversation already.
        results = {each.call_id: each for each in results if late_note_id(each.call_id) not in known}.values()
        asked = {
            call.call_id: call.arguments
            for message in earlier
            if isinstance(message, AssistantMessage)
            for call in message.tool_calls
        }
        return [late_note(each.call_id, each.name, asked.get(each.call_id, ""), each) for each in results]


class ConversationState:
    """Remembered approvals, secrets, the record of what was left out of model calls, its fold, and late results.

    A store may delete a conversation, which may then begin again under its id, here or in another process. So all but
    the secrets is kept under the id and the first message, and a late result is only for a turn that knows its call.
    Folds are bounded in bytes, and all else in conversations; the one that was stored longest ago is dropped. `late`
    has to be connected to `ToolCallLate`.
    """

    def __init__(self) -> None:
        self.late = LateResultNotes()
        self._granted = BoundedMapping[dict[str, bool]](_MAX_CONVERSATIONS)
        self._memos = BoundedMapping[Memo](_MAX_CONVERSATIONS)
        self._folded = BoundedMapping[History](_MAX_FOLDED_BYTES, lambda folded: folded.size_bytes)
        self._vaults = BoundedMapping[Vault](_MAX_CONVERSATIONS)

    def for_next_turn(
        self, conversation_id: str, messages: Sequence[Message], late: Collection[ToolCallLate]
    ) -> Earlier:
        """Return the state for a turn that is about to begin.

        `messages` are the conversation's so far, and `late` those of its late results that the turn takes.
        """
        asked = {call.call_id for each in messages if isinstance(each, AssistantMessage) for call in each.tool_calls}
        key = _key(conversation_id, messages)
        return Earlier(
            messages=messages,
            notes=self.late.take(conversation_id, messages, [each for each in late if each.call_id in asked]),
            granted=self._granted.get(key) or {},
            memo=self._memos.get(key),
            folded=self._folded.pop(key),
            vault=self._vaults.get(conversation_id),
        )

    def for_resumed_turn(self, conversation_id: str) -> Earlier:
        """Return the state for a turn that is resumed: only the secrets, since the journal has everything else."""
        return Earlier(vault=self._vaults.get(conversation_id))

    def keep(self, found: SessionSnapshot) -> None:
        """Store the state that a turn which has ended, or was left, hands to the next turn."""
        state = found.view.state
        # Nobody knows which decisions of a turn that was left are in the journal, so none of them is remembered.
        if state.granted and not found.view.is_released:
            self._granted.put(_key(state.conversation_id, state.messages), state.granted)
        vault, window = found.view.secrets.vault, found.view.window
        if vault is not None and vault.given:
            self._vaults.put(state.conversation_id, vault)
        if not window.is_plain:
            key = _key(state.conversation_id, state.messages)
            self._memos.put(key, window.conversation_memo())
            self._folded.put(key, window.for_next_turn)


def _key(conversation_id: str, messages: Sequence[Message]) -> str:
    """Return the key of what is kept beside a conversation that has these messages."""
    return f"{conversation_id} {messages[0].message_id if messages else ''}"
