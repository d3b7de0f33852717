"""Calls that wait for a person's approval, passed from the loop's thread to the thread that asks."""

from __future__ import annotations

from queue import Empty, SimpleQueue

from ..events import ApprovalDecided, ApprovalRequested, Event, TerminalEvent

# The kernel may give a signal to another thread, which does not wake the one that waits here; and Python runs the
# handlers of signals only in the main thread. So the wait is cut into pieces, after each of which handlers run.
_LOOK_SECONDS = 0.1


class PendingApprovals:
    """The questions of one request, including its sub-requests, in the order in which they arrived.

    Their number is bounded by the number of open calls. `receive`, `end` and `close` are called on the loop's thread,
    `next` on the thread that asks; `is_open` may be called on both.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[ApprovalRequested | None] = SimpleQueue()
        self._open: set[tuple[str, str]] = set()

    def receive(self, event: Event) -> None:
        """Record questions, and the events that settle them: a decision, or the end of the call without one."""
        if isinstance(event, ApprovalRequested):
            self._open.add((event.request_id, event.call_id))
            self._queue.put(event)
        elif isinstance(event, ApprovalDecided | TerminalEvent):
            self._open.discard((event.request_id, event.call_id))

    def is_open(self, question: ApprovalRequested) -> bool:
        """Return whether somebody still has to decide."""
        return (question.request_id, question.call_id) in self._open

    def end(self) -> None:
        """Close all questions, because the request is over."""
        self._open.clear()

    def close(self) -> None:
        """Make `next` return None once it has returned the questions that are already queued."""
        self._queue.put(None)

    def next(self) -> ApprovalRequested | None:
        """Wait for the next question that is still open. Return None at the end of the request."""
        while True:
            try:
                question = self._queue.get(timeout=_LOOK_SECONDS)
            except Empty:
                continue
            if question is None or self.is_open(question):
                return question
