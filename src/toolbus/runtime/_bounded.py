"""Something small for each of many conversations, kept in memory and bounded: the oldest goes first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ["Shelf"]

T = TypeVar("T")


class Shelf(Generic[T]):
    """Values by conversation. At most `most` of them; the one that was put there longest ago makes room."""

    __slots__ = ("_kept", "_most")

    def __init__(self, most: int) -> None:
        self._kept: OrderedDict[str, T] = OrderedDict()
        self._most = most

    def get(self, conversation_id: str) -> T | None:
        """What is kept of this conversation, if anything."""
        return self._kept.get(conversation_id)

    def put(self, conversation_id: str, value: T | None) -> None:
        """Keep `value` in the place of what was there; None keeps nothing."""
        if value is None:
            self._kept.pop(conversation_id, None)
            return
        self._kept[conversation_id] = value
        self._kept.move_to_end(conversation_id)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
