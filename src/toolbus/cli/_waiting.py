"""The calls that wait for a person, handed from the loop's thread, where they are heard of, to the one that asks."""

from __future__ import annotations

from queue import SimpleQueue

from ..events import ApprovalDecided, ApprovalRequested, Event, ToolCallCompleted, ToolCallFailed

__all__ = ["Waiting"]


class Waiting:
    """The questions of one request, sub-requests included, in the order in which they came.

    Bounded by the calls that may be open. `hear`, `end` and `close` belong to the loop's thread, `next` to the one that
    asks; `is_open` may be called on both.
    """

    __slots__ = ("_open", "_queue")

    def __init__(self) -> None:
        self._queue: SimpleQueue[ApprovalRequested | None] = SimpleQueue()
        self._open: set[tuple[str, str]] = set()

    def hear(self, event: Event) -> None:
        """Take note of questions, and of what settles them: a decision, or the end of the call without one."""
        if isinstance(event, ApprovalRequested):
            self._open.add((event.request_id, event.call_id))
            self._queue.put(event)
        elif isinstance(event, (ApprovalDecided, ToolCallCompleted, ToolCallFailed)):
            self._open.discard((event.request_id, event.call_id))

    def is_open(self, question: ApprovalRequested) -> bool:
        """Whether somebody still has to decide."""
        return (question.request_id, question.call_id) in self._open

    def end(self) -> None:
        """The request is over: nothing has to be decided any more."""
        self._open.clear()

    def close(self) -> None:
        """Let `next` return None, once it has been through what is there."""
        self._queue.put(None)

    def next(self) -> ApprovalRequested | None:
        """Wait for the next question that is still open. None at the end of the request."""
        while (question := self._queue.get()) is not None:
            if self.is_open(question):
                return question
        return None
