"""Who may begin, and when: places for requests, a bounded queue, and one turn at a time for each conversation.

Knows anyio and no session: it hands out `Ticket`s. Order is the order of asking, on every backend.
"""

from __future__ import annotations

import math
from collections import deque

import anyio

from ..errors import ConfigurationError, ConversationBusy, Overloaded
from ..tools import is_number

__all__ = ["Admission", "Ticket"]

_LONGEST_WAIT_SECONDS = 60.0  # that anybody is told to wait
_WEIGHT = 0.2  # of the newest gap between endings in the running mean behind `Overloaded.retry_after_seconds`


class Ticket:
    """The right to begin, once `ready` has returned. Given back exactly once, whatever happened.

    `waits` is set while an earlier turn of the conversation is out, `running` once the ticket has a place.
    """

    __slots__ = ("_admission", "conversation_id", "running", "waits")

    def __init__(self, admission: Admission, conversation_id: str) -> None:
        self._admission = admission
        self.running = False
        self.waits: anyio.Event | None = None
        self.conversation_id = conversation_id

    def try_ready(self) -> bool:
        """Take a place without waiting. False when an earlier turn is out, or no place is free."""
        return self.waits is None and self._admission.try_place(self)

    async def ready(self) -> None:
        """Wait for the conversation's earlier turns, then for a place. Does not suspend when both are free."""
        if self.waits is not None:
            await self.waits.wait()
        await self._admission.take_place(self)

    def give_back(self) -> None:
        """Let the next one begin."""
        self._admission.give_back(self)


class Admission:
    """At most `max_running` requests run and `max_queued` wait; one more raises `Overloaded`."""

    def __init__(self, max_running: int, max_queued: int) -> None:
        if not (is_number(max_running) and is_number(max_queued) and max_running >= 1 and max_queued >= 0):
            raise ConfigurationError(
                f"max_sessions is {max_running!r} and max_queued {max_queued!r}; they must be at least 1 and at least 0"
            )
        self._max_running = max_running
        self._max_queued = max_queued
        self._running = 0
        self._held = 0
        self._places: deque[tuple[Ticket, anyio.Event]] = deque()
        self._turns: dict[str, list[Ticket]] = {}  # lists, as an empty deque takes 0.6 KiB and most turns are alone
        self._last_end = math.nan
        self._mean_gap = 0.0
        self._empty: anyio.Event | None = None

    @property
    def running(self) -> int:
        """Requests that have begun and not ended."""
        return self._running

    @property
    def queued(self) -> int:
        """Requests that wait for a place or for their conversation."""
        return self._held - self._running

    def take(self, conversation_id: str, *, queue: bool = True) -> Ticket:
        """A ticket, at once. Raises `Overloaded` when places and queue are full.

        Without `queue`, raises `ConversationBusy` while another ticket of the conversation is out.
        """
        if not queue and conversation_id in self._turns:
            raise ConversationBusy(
                f"conversation {conversation_id!r} has a turn that has not ended yet; try again then"
            )
        if self._held >= self._max_running + self._max_queued:
            seconds = min(max(1.0, math.ceil(self._mean_gap)), _LONGEST_WAIT_SECONDS)
            raise Overloaded(seconds, self._running, self.queued)
        self._held += 1
        ticket = Ticket(self, conversation_id)
        turns = self._turns.get(conversation_id)
        if turns is None:
            self._turns[conversation_id] = [ticket]
        else:
            ticket.waits = anyio.Event()
            turns.append(ticket)
        return ticket

    async def wait_empty(self) -> None:
        """Return once no ticket is out."""
        if self._held:
            self._empty = self._empty or anyio.Event()
            await self._empty.wait()

    async def take_place(self, ticket: Ticket) -> None:
        """Wait for a place. For `Ticket.ready`."""
        if not self.try_place(ticket):
            free = anyio.Event()
            self._places.append((ticket, free))
            await free.wait()

    def try_place(self, ticket: Ticket) -> bool:
        """Take a place if one is free. For `Ticket`."""
        if ticket.running:
            return True
        if self._running >= self._max_running:
            return False
        self._running += 1
        ticket.running = True
        return True

    def give_back(self, ticket: Ticket) -> None:
        """Pass place and turn on. For `Ticket.give_back`."""
        self._held -= 1
        turns = self._turns[ticket.conversation_id]
        first = turns[0] is ticket
        turns.remove(ticket)
        if not turns:
            del self._turns[ticket.conversation_id]
        elif first and (waits := turns[0].waits) is not None:
            waits.set()
        if ticket.running:
            self._free_place()
        else:  # it gave up while it waited
            self._places = deque(each for each in self._places if each[0] is not ticket)
        if not self._held and self._empty is not None:
            self._empty.set()
            self._empty = None

    def _free_place(self) -> None:
        if self._places:
            now = anyio.current_time()  # only gaps while somebody waits tell how long a wait is
            if not math.isnan(self._last_end):
                self._mean_gap += _WEIGHT * (now - self._last_end - self._mean_gap)
            self._last_end = now
            ticket, free = self._places.popleft()
            ticket.running = True  # the place goes from hand to hand, so nobody can slip in between
            free.set()
        else:
            self._last_end = math.nan
            self._running -= 1
