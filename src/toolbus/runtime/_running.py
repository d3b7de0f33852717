"""The requests that run or wait in one runtime: their sessions, tickets and tasks, and how they are stopped.

Knows sessions, admission and turns. Must not know providers, tools or options: it is given ready sessions.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc

from .._open_scopes import StrandedTasks
from ..bus import EventBus
from ..durability import REPLACED
from ..events import ApprovalRequested, ToolCallCompleted, ToolCallFailed
from ..handles import record_of
from ..session import RequestSession
from ..storage import WRITE_SECONDS, RequestRecord
from ._admission import Admission, Ticket
from ._ended import EndedRequests
from ._turns import Turns

if TYPE_CHECKING:
    from ..request_result import RequestResult

CANCELLED = "the runtime was cancelled"
CLOSING = "the runtime is closing"
_logger = logging.getLogger("toolbus.runtime")


class RunningRequests:
    """The requests of one runtime that run or wait, by their ids, and those that have `ended` a short time ago.

    `turns` adds the turn of each request to its conversation. With a journal (`has_journal`), a request that is stopped
    is left for another process; without one, it is cancelled. `tickets` are those of the requests that have their own
    task, and `failed` counts the requests that have failed, by their reasons.
    """

    group: anyio.abc.TaskGroup
    """The task group of the requests that have their own task, from `open` to `leave`."""
    _stranded: StrandedTasks

    def __init__(
        self, bus: EventBus, admission: Admission, turns: Turns, ended: EndedRequests, *, has_journal: bool
    ) -> None:
        self._bus = bus
        self._admission = admission
        self._turns = turns
        self._has_journal = has_journal
        self.ended = ended
        self.sessions: dict[str, RequestSession] = {}
        self.tickets: dict[str, Ticket] = {}
        self.failed = Counter[str]()

    def find(self, request_id: str) -> RequestSession | None:
        """Return the session of a request that runs, waits, or has ended here a short time ago without a journal."""
        return self.sessions.get(request_id) or self.ended.get(request_id)

    def listed(
        self, stored: Sequence[RequestRecord], matches: Callable[[str], bool], *, is_unfinished: bool, limit: int
    ) -> list[RequestRecord]:
        """Return the records of the requests here and of those that are `stored`, at most `limit`, the newest first.

        `matches` says of the id of a conversation whether its requests are wanted. A request that the store knows has
        the store's record.
        """
        known = {each.request_id for each in stored}
        ended = () if is_unfinished else self.ended.records(matches)
        # A program that looks for the requests of each of its conversations must not make a record of all each time.
        running = [each for each in self.sessions.values() if matches(each.conversation_id)]
        here = [each for each in (*ended, *map(record_of, running)) if not (is_unfinished and each.ending)]
        # One that is not among `stored` has not begun, is in no journal, or began before all of these.
        own = [each for each in here if each.request_id not in known]
        return sorted([*reversed(own), *stored], key=lambda each: -each.started_at)[: max(0, limit)]

    # ---------------------------------------------------------------------------------------------- carrying out

    async def open(self) -> None:
        """Open the task group, in which `spawn` begins tasks."""
        self._stranded = StrandedTasks()
        self.group = await self._stranded.open()

    def spawn(self, session: RequestSession, ticket: Ticket) -> None:
        """Carry a request out in its own task, which is cancelled only together with the whole runtime."""
        self.tickets[session.request_id] = ticket
        why = CANCELLED if self._has_journal else ""
        report = session.snapshot().view.report_left_open
        self.group.start_soon(self._stranded.contain, report, self.carry_out, session, ticket, why)

    async def carry_out(
        self, session: RequestSession, ticket: Ticket, release_when_cancelled: str = ""
    ) -> RequestResult[Any]:
        """Run a session in this task, add its turn to its conversation, and give its ticket back."""
        try:
            return await session.run(release_when_cancelled=release_when_cancelled)
        finally:
            found = session.snapshot()
            try:
                clock = self._bus.clock
                with clock.timers.new_scope(shield=True, deadline=clock.loop_time() + WRITE_SECONDS):
                    await self._turns.remember(session, found)
            finally:
                del self.sessions[session.request_id]
                if found.result is not None and found.result.outcome == "failed":
                    self.failed[found.result.reason] += 1
                self.ended.add(session, found)
                self.tickets.pop(session.request_id, None)
                ticket.give_back()

    async def leave(self) -> None:
        """Wait for all tasks. Raises what the task group raises."""
        try:
            await self._stranded.leave()
        finally:  # asyncio may have cancelled tasks before they began, so their requests still have to end.
            for request_id, ticket in list(self.tickets.items()):
                await self.carry_out(self.sessions[request_id], ticket, CANCELLED)

    # ------------------------------------------------------------------------------------------------- stopping

    def replace(self, conversation_id: str) -> None:
        """Cancel the requests of a conversation here, because a newer turn replaces them."""
        for each in [*self.sessions.values()]:
            if each.conversation_id == conversation_id:
                each.cancel(REPLACED)

    def stop_all(self, reason: str) -> set[str]:
        """Stop all requests, and return the ids of those that had not ended."""
        stop = RequestSession.release if self._has_journal else RequestSession.cancel
        return {request_id for request_id, session in [*self.sessions.items()] if stop(session, reason)}

    def cancel_now(self, reason: str) -> None:
        """Stop all requests, and cancel their tasks."""
        self.stop_all(reason)
        self.group.cancel_scope.cancel()

    async def drain(self, seconds: float) -> int:
        """Wait `seconds` until no request runs, stop the rest, and return their number.

        With a journal, a request that only waits for a person is left at once.
        """
        left = set[str]()

        def leave_if_it_only_waits(request_id: str) -> None:
            session = self.sessions.get(request_id)
            if session is not None and session.snapshot().view.only_waits and session.release(CLOSING):
                left.add(request_id)

        with ExitStack() as stack, anyio.move_on_after(seconds):
            if self._has_journal:
                kinds = (ApprovalRequested, ToolCallCompleted, ToolCallFailed)
                stack.callback(self._bus.connect(kinds, lambda each: leave_if_it_only_waits(each.request_id)))
                for request_id in list(self.sessions):
                    leave_if_it_only_waits(request_id)
            await self._admission.wait_empty()
        left |= self.stop_all(CLOSING)
        await self._admission.wait_empty()
        if left and self._has_journal:
            _logger.info("%d request%s left for resume", len(left), "s were" if len(left) > 1 else " was")
        return len(left)
