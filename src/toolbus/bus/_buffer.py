"""A bounded buffer of events for one slow reader, which drops or merges events when it is full. Synchronous and pure.

Facts are never dropped, only signals. Dropped events leave a gap at their position, which the reader gets as one
`SubscriberLagged`; neighbouring gaps are merged. At any time offered = taken + merged + dropped + those still inside.
Every operation costs the same, however full the buffer is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

from .._option_checks import check, one_of, whole
from ..events import Event, ReasoningDelta, SubscriberLagged, TextDelta, ToolArgumentsDelta
from ..records import replace

Overflow: TypeAlias = Literal["drop_oldest", "drop_newest", "coalesce", "disconnect"]
"""The treatment of a signal by a full buffer: drop the oldest signal, or the new one; merge neighbouring deltas of one
message, and then drop the oldest; or end the subscription."""
_OVERFLOWS = one_of(*get_args(Overflow))

_Delta: TypeAlias = TextDelta | ReasoningDelta | ToolArgumentsDelta
_DELTAS = (TextDelta, ReasoningDelta, ToolArgumentsDelta)


class _Node:
    """One slot of the list: an event, or a gap that stands for `count` events up to position `last`.

    `pieces` are the texts of the deltas that were merged into the event. They are joined when the event is read,
    because a join at each merge would cost the square of the message's length.
    """

    __slots__ = ("after", "before", "count", "event", "last", "pieces", "position")

    def __init__(self, position: int, event: Event | None) -> None:
        self.position = position
        self.last = position
        self.count = 1
        self.event = event
        self.pieces: list[str] | None = None
        self.before: _Node
        self.after: _Node


class EventBuffer:
    """Up to `capacity` events in order, and the gaps between them. Not thread-safe.

    A capacity below 1, or an unknown policy, raises `ConfigurationError`. `offer` puts an event in and returns whether
    the buffer still works. Once it does not, `failed_at` is the position of the event that did not fit, and the reader
    gets the events that are inside and no more. `on_full(buffer)` is called when the buffer fails, and
    when it drops its first event since the reader has come to a gap; it must not raise.
    """

    __slots__ = (
        "_head",
        "_is_full",
        "_on_full",
        "_signals",
        "capacity",
        "dropped",
        "failed_at",
        "length",
        "merged",
        "offered",
        "peak",
        "policy",
        "position",
        "taken",
    )

    def __init__(
        self, capacity: int, policy: Overflow, on_full: Callable[[EventBuffer], None] = lambda _: None
    ) -> None:
        self.capacity = check("capacity", capacity, whole(1))
        self.policy: Overflow = check("overflow", policy, _OVERFLOWS)
        self.length = 0
        self.peak = 0
        self.offered = 0
        self.taken = 0
        self.merged = 0
        self.dropped = 0
        self.position = 0
        self.failed_at: int | None = None
        self._on_full = on_full
        self._is_full = False  # whether `on_full` was called since the reader has come to a gap
        head = _Node(0, None)  # the fixed node of the ring: the oldest node is after it, and the newest before it
        self._head = head.before = head.after = head
        self._signals: deque[_Node] = deque()  # nodes that may be dropped, oldest first

    def offer(self, position: int, event: Event) -> bool:
        """Put `event` in; a full buffer applies the policy. False once the buffer has failed: see `failed_at`."""
        if self.failed_at is not None:
            return False
        self.offered += 1
        if self.policy == "coalesce" and self._merge(position, event):
            return True
        if self.length >= self.capacity and not self._free_slot(position, event):
            return self.failed_at is None
        node = self._append(_Node(position, event))
        if not event.is_fact:
            self._signals.append(node)
        self.length = length = self.length + 1
        if length > self.peak:  # noqa: PLR1730 -- a call of max() costs as much as the rest of these lines
            self.peak = length
        return True

    def take(self) -> Event | None:
        """Remove and return the oldest event or gap; None if there is nothing.

        Afterwards `position` is the bus position of the event, or the last position of the gap.
        """
        node = self._head.after
        if node is self._head:
            return None
        self._unlink(node)
        self.position = node.last
        if node.event is None:
            self._is_full = False
            return SubscriberLagged(first_position=node.position, last_position=node.last, count=node.count)
        if not node.event.is_fact:
            self._signals.popleft()
        self.length -= 1
        self.taken += 1
        return node.event if node.pieces is None else _joined(node.event, node.pieces)

    def _free_slot(self, position: int, event: Event) -> bool:
        """Free a slot by the policy. False if `event` itself was dropped, or the buffer has failed."""
        if self.policy == "disconnect" or (event.is_fact and not self._signals):
            self.offered -= 1
            self.failed_at = position
            self._on_full(self)
            return False
        if not self._is_full:
            self._is_full = True
            self._on_full(self)
        if not event.is_fact and (self.policy == "drop_newest" or not self._signals):
            self.dropped += 1
            self._make_gap(self._append(_Node(position, None)))
            return False
        victim = self._signals.pop() if self.policy == "drop_newest" else self._signals.popleft()
        victim.event = victim.pieces = None
        self.length -= 1
        self.dropped += victim.count
        self.merged -= victim.count - 1  # The deltas that were merged into it are dropped as well.
        self._make_gap(victim)
        return True

    def _make_gap(self, gap: _Node) -> None:
        """Merge `gap` with the gaps beside it."""
        before, after = gap.before, gap.after
        if before is not self._head and before.event is None:
            gap.position = before.position
            gap.count += before.count
            self._unlink(before)
        if after is not self._head and after.event is None:
            gap.last = after.last
            gap.count += after.count
            self._unlink(after)

    def _merge(self, position: int, event: Event) -> bool:
        """Merge a delta into the newest event, if that is a delta of the same message and kind."""
        node = self._head.before
        if not (isinstance(event, _DELTAS) and isinstance(node.event, _DELTAS) and _continues(node.event, event)):
            return False
        if node.pieces is None:
            node.pieces = [node.event.text]
        node.pieces.append(event.text)
        node.last = position
        node.count += 1
        self.merged += 1
        return True

    def _append(self, node: _Node) -> _Node:
        head = self._head
        newest = head.before
        node.before = newest
        node.after = head
        newest.after = head.before = node
        return node

    def _unlink(self, node: _Node) -> None:
        node.before.after = node.after
        node.after.before = node.before


def _continues(before: _Delta, event: _Delta) -> bool:
    """Return whether `event` is the next piece of the same text.

    It is if the request, the message, the kind and, for arguments, the call are the same.
    """
    if type(event) is not type(before) or (event.request_id, event.message_id) != (
        before.request_id,
        before.message_id,
    ):
        return False
    if isinstance(event, ToolArgumentsDelta) and isinstance(before, ToolArgumentsDelta):
        return event.index == before.index and event.name in {before.name, ""}
    return True


def _joined(event: Event, pieces: list[str]) -> Event:
    assert isinstance(event, _DELTAS)
    return replace(event, text="".join(pieces))
