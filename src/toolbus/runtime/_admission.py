"""Admission: slots for requests, a bounded queue, and one turn at a time for each conversation.

A request begins once its `Ticket` is ready. Turns and slots are given in the order in which they were asked for, on
every backend. Knows anyio. Must not know sessions.
"""

from __future__ import annotations

import math
from collections import deque

import anyio

from .._option_checks import at_least, check
from ..errors import ConversationBusy, Overloaded

__all__ = ["Admission", "Ticket"]

_LONGEST_WAIT_SECONDS = 60.0  # the upper bound of `Overloaded.retry_after_seconds`
# The weight of the newest gap between two endings in the running mean that `Overloaded.retry_after_seconds` is made of.
_WEIGHT = 0.2


class Ticket:
    """The right to begin, once `ready` has returned. It has to be given back exactly once, whatever happened.

    `waits` is not None if the conversation had an earlier turn when the ticket was taken: the event is set when this
    turn is next. `running` is true once the ticket has a slot.
    """

    __slots__ = ("_admission", "conversation_id", "running", "waits")

    def __init__(self, admission: Admission, conversation_id: str) -> None:
        self._admission = admission
        self.running = False
        self.waits: anyio.Event | None = None
        self.conversation_id = conversation_id

    def try_ready(self) -> bool:
        """Take a slot without waiting. False if an earlier turn has not ended, or no slot is free."""
        return self.waits is None and self._admission.try_slot(self)

    async def ready(self) -> None:
        """Wait for the conversation's earlier turns, then for a slot. Does not suspend if both are free."""
        if self.waits is not None:
            await self.waits.wait()
        await self._admission.take_slot(self)

    def give_back(self) -> None:
        """Let the next request begin."""
        self._admission.give_back(self)


class Admission:
    """At most `max_running` requests run and `max_queued` wait; one more raises `Overloaded`."""

    def __init__(self, max_running: int, max_queued: int) -> None:
        self._max_running = check("max_sessions", max_running, at_least(1))
        self._max_queued = check("max_queued", max_queued, at_least(0))
        self._running = 0
        self._held = 0
        self._waiting: deque[tuple[Ticket, anyio.Event]] = deque()
        # The tickets of each conversation, oldest first. They are lists, because an empty deque takes 0.6 KiB, and most
        # conversations have one ticket at a time.
        self._turns: dict[str, list[Ticket]] = {}
        self._last_end = math.nan
        self._mean_gap = 0.0
        self._empty: anyio.Event | None = None

    @property
    def running(self) -> int:
        """The number of requests that have begun and not ended."""
        return self._running

    @property
    def queued(self) -> int:
        """The number of requests that wait for a slot or for their conversation."""
        return self._held - self._running

    def take(self, conversation_id: str, *, queue: bool = True) -> Ticket:
        """Return a ticket, without waiting. Raises `Overloaded` if the slots and the queue are full.

        Without `queue`, raises `ConversationBusy` while another ticket of the conversation has not been given back.
        """
        if not queue and conversation_id in self._turns:
            raise ConversationBusy(
                f"conversation {conversation_id!r} has a turn that has not ended yet; try again when it has"
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
        """Return once all tickets have been given back."""
        if self._held:
            self._empty = self._empty or anyio.Event()
            await self._empty.wait()

    async def take_slot(self, ticket: Ticket) -> None:
        """Wait for a slot. Only `Ticket.ready` calls this."""
        if not self.try_slot(ticket):
            free = anyio.Event()
            self._waiting.append((ticket, free))
            await free.wait()

    def try_slot(self, ticket: Ticket) -> bool:
        """Take a slot if one is free. Only `Ticket` and `take_slot` call this."""
        if ticket.running:
            return True
        if self._running >= self._max_running:
            return False
        self._running += 1
        ticket.running = True
        return True

    def give_back(self, ticket: Ticket) -> None:
        """Hand the slot and the conversation's turn to the next ticket. Only `Ticket.give_back` calls this."""
        self._held -= 1
        turns = self._turns[ticket.conversation_id]
        first = turns[0] is ticket
        turns.remove(ticket)
        if not turns:
            del self._turns[ticket.conversation_id]
        elif first and (waits := turns[0].waits) is not None:
            waits.set()
        if ticket.running:
            self._free_slot()
        else:  # The request was cancelled while it waited.
            self._waiting = deque(each for each in self._waiting if each[0] is not ticket)
        if not self._held and self._empty is not None:
            self._empty.set()
            self._empty = None

    def _free_slot(self) -> None:
        if self._waiting:
            # Only gaps between endings while a request waits say how long a wait takes.
            now = anyio.current_time()
            if not math.isnan(self._last_end):
                self._mean_gap += _WEIGHT * (now - self._last_end - self._mean_gap)
            self._last_end = now
            ticket, free = self._waiting.popleft()
            # The slot is handed over without becoming free, so no other request can take it first.
            ticket.running = True
            free.set()
        else:
            self._last_end = math.nan
            self._running -= 1
