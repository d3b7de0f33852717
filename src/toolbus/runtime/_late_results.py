"""Results that came too late for their request, kept for the next turn of its conversation. Knows the bus."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from ..core.result_size import DEFAULT_RESULT_CHARS
from ..core.shorten import shorten
from ..events import ToolCallLate, new_id
from ..messages import AssistantMessage, Message, SystemMessage

__all__ = ["LateShelf"]

_MOST_CONVERSATIONS = 1_000
_MOST_NOTES = 20  # of one conversation; the oldest go first


class LateShelf:
    """Bounded in conversations and in results of each. A receiver of `ToolCallLate`."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, list[ToolCallLate]] = OrderedDict()

    def __call__(self, event: ToolCallLate) -> None:
        """Keep the success of a call whose request wants it told later."""
        if not event.for_next_turn or event.late != "tool_call_completed":
            return
        kept = self._kept.setdefault(event.conversation_id, [])
        kept.append(event)
        del kept[:-_MOST_NOTES]
        self._kept.move_to_end(event.conversation_id)
        if len(self._kept) > _MOST_CONVERSATIONS:
            self._kept.popitem(last=False)

    def take(self, conversation_id: str, earlier: Iterable[Message]) -> list[SystemMessage]:
        """What came late, as notes for the model, oldest first; `earlier` is where the calls stand. Given once."""
        kept = self._kept.pop(conversation_id, ())
        if not kept:
            return []
        asked = {
            call.call_id: call.arguments
            for message in earlier
            if isinstance(message, AssistantMessage)
            for call in message.tool_calls
        }
        return [
            SystemMessage(
                text=f"A call that was given up earlier has ended since. {each.name}({asked.get(each.call_id, '')}) "
                f"gave: {shorten(each.content, DEFAULT_RESULT_CHARS)}{_left_out(each)}",
                message_id=f"n{new_id()}",
            )
            for each in kept
        ]


def _left_out(event: ToolCallLate) -> str:
    """A word on what a note cannot show, since no vendor takes images there."""
    count = len(event.parts)
    return f"\n(images and files left out: {count})" if count else ""
