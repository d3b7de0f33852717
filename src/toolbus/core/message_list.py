"""A read-only view of a transcript. The transcript only grows at its end, so a view stays correct and needs no copy.

Example:
    from toolbus.core.message_list import Messages
    from toolbus.messages import SystemMessage, UserMessage

    transcript = [UserMessage(content="Hello?")]
    view = Messages(transcript, SystemMessage(text="Be brief."))
    print([message.text for message in view])  # ['Be brief.', 'Hello?']
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from ..messages import Message, SystemMessage

__all__ = ["Messages"]


class Messages(Sequence[Message]):
    """A read-only view of the messages that a transcript has now, after an optional system message.

    Messages that are appended to the transcript later are not part of the view.
    """

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
        position = range(len(self))[index]
        if self._system is not None:
            if position == 0:
                return self._system
            position -= 1
        return self._messages[position]

    def __iter__(self) -> Iterator[Message]:
        if self._system is not None:
            yield self._system
        messages = self._messages
        for index in range(self._length):
            yield messages[index]
