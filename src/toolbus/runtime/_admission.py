"""Admission: slots for requests, a bounded queue, and one turn at a time for each conversation.

A request begins once its `Ticket` is ready. Turns and slots are given in the order in which they were asked for, on
every backend. A request that finds that another process runs its conversation stands aside for a time, because that
process may itself wait for a request which is to be continued here. Knows anyio. Must not know sessions.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass

import anyio

from .._option_checks import check, whole
from ..errors import ConversationBusy, Overloaded

_logger = logging.getLogger("toolbus.runtime")
_MAX_WAIT_SECONDS = 60.0  # the upper bound of `Overloaded.retry_after_seconds`
# The weight of the newest gap between two endings in the running mean that `Overloaded.retry_after_seconds` is made of.
_WEIGHT = 0.2


@dataclass(slots=True, eq=False)
class Ticket:
    """The right to begin, once `ready` has returned. It has to be given back exactly once, whatever happened.

    `started_at` is set for a request that another process has begun: other processes may wait for it. `running` is true
    while the ticket has a slot, and `is_lined_up` while it has or waits for one: in each conversation, at most one
    ticket does. `is_aside` is true while it lets others go first, and `was_aside` from then on.
    """

    _admission: Admission
    conversation_id: str
    started_at: float | None
    running: bool = False
    is_lined_up: bool = False
    is_aside: bool = False
    was_aside: bool = False
    _begins: anyio.Event | None = None

    async def ready(self) -> None:
        """Wait for the conversation's earlier turns, then for a slot. Does not suspend if the ticket has a slot."""
        if not self.running:
            self._begins = anyio.Event()
            await self._begins.wait()

    async def stand_aside(self, seconds: float) -> None:
        """Let others have the slot for so long, and continued requests the conversation's turn; then wait again."""
        self._admission.put_aside(self)
        await anyio.sleep(seconds)
        self._admission.put_back(self)
        await self.ready()

    def begin(self) -> None:
        """Take a slot. Only `Admission` calls this."""
        self.running = True
        if self._begins is not None:
            self._begins.set()

    def give_back(self) -> None:
        """Let the next request begin."""
        self._admission.give_back(self)


class Admission:
    """At most `max_running` requests run and `max_queued` wait; one more raises `Overloaded`, and counts as `refused`.

    The first refusal since a request was taken is logged.
    """

    def __init__(self, max_running: int, max_queued: int) -> None:
        self._max_running = check("max_sessions", max_running, whole(1))
        self._max_queued = check("max_queued", max_queued, whole(0))
        self.running = 0
        """The number of requests that have begun and not ended."""
        self._held = 0
        # The tickets that wait for a slot only, in order of `take`, or of the end of their conversation's earlier turn;
        # those that have stood aside, behind the first of the others.
        self._waiting: deque[Ticket] = deque()
        # The tickets of each conversation, oldest first. They are lists, because an empty deque takes 0.6 KiB, and most
        # conversations have one ticket at a time.
        self._turns: dict[str, list[Ticket]] = {}
        self._last_end = math.nan
        self._mean_gap = 0.0
        self._empty: anyio.Event | None = None
        self._is_full = False  # whether the newest request was refused
        self.refused = 0

    @property
    def free_capacity(self) -> int:
        """The number of requests that could be taken now."""
        return self._max_running + self._max_queued - self._held

    @property
    def queued(self) -> int:
        """The number of requests that wait for a slot or for their conversation."""
        return self._held - self.running

    def take(self, conversation_id: str, *, queue: bool = True, started_at: float | None = None) -> Ticket:
        """Return a ticket, without waiting. Raises `Overloaded` if the slots and the queue are full.

        `started_at` is the moment at which another process has begun the request. Without `queue`, raises
        `ConversationBusy` while another ticket of the conversation has not been given back.
        """
        if not queue and conversation_id in self._turns:
            raise ConversationBusy(
                f"conversation {conversation_id!r} has a turn that has not ended yet; try again when it has"
            )
        if self._held >= self._max_running + self._max_queued:
            self.refused += 1
            if not self._is_full:
                self._is_full = True
                _logger.warning("%d requests run and %d wait, so others are refused", self.running, self.queued)
            seconds = min(max(1.0, math.ceil(self._mean_gap)), _MAX_WAIT_SECONDS)
            raise Overloaded(seconds, self.running, self.queued)
        self._is_full = False
        self._held += 1
        ticket = Ticket(self, conversation_id, started_at)
        turns = self._turns.get(conversation_id)
        if turns is None:
            self._turns[conversation_id] = [ticket]
            self._line_up(ticket)
        else:
            turns.append(ticket)
            self._line_up_next(turns)
        return ticket

    async def wait_empty(self) -> None:
        """Return once all tickets have been given back."""
        if self._held:
            self._empty = self._empty or anyio.Event()
            await self._empty.wait()

    def _line_up(self, ticket: Ticket) -> None:
        """Give the ticket a slot, or a position in the queue for slots."""
        ticket.is_lined_up = True
        if self.running < self._max_running:
            self.running += 1
            ticket.begin()
        elif ticket.was_aside:
            # It has waited before, so it goes in front of all but one, which still gets a slot between two attempts.
            others = (at for at, each in enumerate(self._waiting) if not each.was_aside)
            self._waiting.insert(next(others, len(self._waiting)) + 1, ticket)
        else:
            self._waiting.append(ticket)

    def _line_up_next(self, turns: list[Ticket]) -> None:
        """Let the next ticket of a conversation line up, if none does: the oldest continued request, or else the first.

        A request that is continued does not wait for another one that stands aside, unless that one is older: a process
        that waits for a request waits for the oldest of its conversation first.
        """
        if any(each.is_lined_up for each in turns):
            return
        continued = [(each.started_at, at) for at, each in enumerate(turns) if each.started_at is not None]
        following = turns[min(continued)[1] if continued else 0]
        if not following.is_aside:
            self._line_up(following)

    def put_aside(self, ticket: Ticket) -> None:
        """Take the slot of a ticket. Only `Ticket.stand_aside` calls this."""
        ticket.running, ticket.is_lined_up, ticket.is_aside, ticket.was_aside = False, False, True, True
        self._free_slot()
        turns = self._turns[ticket.conversation_id]
        if ticket.started_at is not None:  # Of those that were begun at the same moment, the next one goes.
            turns.remove(ticket)
            turns.append(ticket)
        self._line_up_next(turns)

    def put_back(self, ticket: Ticket) -> None:
        """Let a ticket line up again that stood aside. Only `Ticket.stand_aside` calls this."""
        ticket.is_aside = False
        self._line_up_next(self._turns[ticket.conversation_id])

    def give_back(self, ticket: Ticket) -> None:
        """Hand the slot and the conversation's turn to the next ticket. Only `Ticket.give_back` calls this."""
        self._held -= 1
        turns = self._turns[ticket.conversation_id]
        turns.remove(ticket)
        if ticket.running:
            self._note_end()
            self._free_slot()
        elif ticket.is_lined_up:  # The request was cancelled while it waited.
            self._waiting.remove(ticket)
        if turns:
            self._line_up_next(turns)
        else:
            del self._turns[ticket.conversation_id]
        if not self._held and self._empty is not None:
            self._empty.set()
            self._empty = None

    def _note_end(self) -> None:
        """Note the gap between two endings. Only gaps while a request waits say how long a wait takes."""
        if not self._waiting:
            self._last_end = math.nan
            return
        now = anyio.current_time()
        if not math.isnan(self._last_end):
            self._mean_gap += _WEIGHT * (now - self._last_end - self._mean_gap)
        self._last_end = now

    def _free_slot(self) -> None:
        if self._waiting:
            # The slot is handed over without becoming free, so no other request can take it first.
            self._waiting.popleft().begin()
        else:
            self.running -= 1
