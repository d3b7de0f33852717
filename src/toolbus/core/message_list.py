"""A view of a transcript. The transcript only ever grows, so that a view of it stays true and costs nothing to take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from ..messages import Message, SystemMessage

__all__ = ["Messages"]


class Messages(Sequence[Message]):
    """A read-only view of the first `length` messages of a transcript that only grows, behind a system message."""

    __slots__ = ("_length", "_messages", "_system")

    def __init__(self, messages: list[Message], system: SystemMessage | None = None) -> None:
        self._messages = messages
        self._length = len(messages)
        self._system = system

    def __len__(self) -> int:
        return self._length + (self._system is not None)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return list(self)[index]
        place = range(len(self))[index]
        if self._system is not None:
            if place == 0:
                return self._system
            place -= 1
        return self._messages[place]

    def __iter__(self) -> Iterator[Message]:
        if self._system is not None:
            yield self._system
        messages = self._messages
        for index in range(self._length):
            yield messages[index]
