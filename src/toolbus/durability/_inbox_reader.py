"""The reader of a runtime's inbox: it gives sessions the inputs that other processes have sent to their requests.

Knows sessions, the journal writer and the protocol of the inbox. Must not know who has sent an input, nor how.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import anyio
import anyio.abc
import anyio.lowlevel

from ..errors import BusError, InboxFull, StoreError
from ..events import Event, SteeringAdded
from ..session import RequestSession
from ..storage import Inbox, SettledState, Store
from ._journal_writer import JournalWriter
from ._store_calls import call_store_in_time

_logger = logging.getLogger("toolbus.store")
_MAX_ASKED = 10_000
INPUTS_AT_ONCE = 20
"""The most inputs that are read together: each may have 8 MiB."""


def inbox_of(store: Store) -> Inbox | None:
    """Return the inbox of a store, or None if it has none."""
    journal = store.journal
    return journal if isinstance(journal, Inbox) else None


class InboxReader:
    """The inputs for the requests of one runtime.

    It asks the store every `seconds` while requests run here, and at once when somebody says that an input is there.
    `looked_at` is the time, on the loop's clock, at which it began to look last: all inputs from before were given.
    """

    def __init__(self, inbox: Inbox, writer: JournalWriter, seconds: float) -> None:
        self._inbox = inbox
        self._writer = writer
        self._seconds = seconds
        self._fails = False
        self.looked_at = -math.inf
        self._wake = anyio.Event()
        self._asked: dict[str, list[Callable[[], None]]] = {}  # by inputs: those who want to know of their ends

    def look(self, event_id: str, settled: Callable[[], None]) -> None:
        """Look into the inbox at once. `settled` is called when an input does not wait any more, or is not there."""
        if len(self._asked) < _MAX_ASKED:
            self._asked.setdefault(event_id, []).append(settled)
        self._wake.set()

    def _say_settled(self, event_id: str) -> None:
        for settled in self._asked.pop(event_id, ()):
            settled()

    async def run(self) -> None:
        """Give inputs to sessions until cancelled."""
        # The runtime may have run in another event loop before.
        self._wake, self.looked_at = anyio.Event(), -math.inf
        if self._asked:
            self._wake.set()
        async with anyio.create_task_group() as tasks:
            while True:
                await self._writer.wait_for_requests()
                with anyio.move_on_after(self._seconds):
                    await self._wake.wait()
                self._wake = anyio.Event()
                asked, seen, early, full = [*self._asked], set[str](), set[str](), set[str]()
                now = anyio.current_time()
                while await self._look(tasks, seen, early, full):
                    await anyio.lowlevel.checkpoint()
                if self._fails:
                    continue
                self.looked_at = now
                # One that was seen and not given still waits: its sender would ask again at once, and always.
                for event_id in asked:
                    if event_id not in self._writer.received and event_id not in seen:
                        self._say_settled(event_id)

    async def _look(self, tasks: anyio.abc.TaskGroup, seen: set[str], early: set[str], full: set[str]) -> bool:
        """Give the inputs that wait to their sessions, and return whether to look for more of them at once.

        Those in `seen` were looked at before. Otherwise many inputs of one request that cannot have them yet would keep
        the inputs of all others waiting. The requests of these are in `early`: they wait for the next pass, as a later
        input would come before those in `seen`. So does the steering for those in `full`, for which too much waits.
        """
        try:
            known = self._writer.received | seen
            waiting = await call_store_in_time(
                self._inbox.waiting(self._writer.owner, without=known, limit=INPUTS_AT_ONCE)
            )
        except StoreError as exc:
            if not self._fails:
                _logger.warning("the store failed, and inputs from other processes wait until it answers: %s", exc)
            self._fails = True
            return False
        if self._fails:
            self._fails = False
            _logger.info("the store answers again, and inputs from other processes are read")
        for given in waiting:
            seen.add(given.event_id)
            session = self._writer.session(given.request_id)
            # A session that has not continued yet has not asked its open questions again.
            if session is None or not session.is_accepted:
                early.add(given.request_id)
            elif given.request_id not in early and not (isinstance(given, SteeringAdded) and given.request_id in full):
                self._writer.received.add(given.event_id)
                self._give(session, given, tasks, full)
        return len(waiting) == INPUTS_AT_ONCE

    def _give(self, session: RequestSession, given: Event, tasks: anyio.abc.TaskGroup, full: set[str]) -> None:
        """Give an input to a session, at once, since tasks may begin in another order than that of sending."""
        state: SettledState | None = "taken" if session.has_taken(given.event_id) else None
        reason = ""
        try:
            if state is None:
                # A decision on a sub-request's question is not a fact of this request, so no append settles it.
                is_given = session.deliver(given)
                state = "refused" if not is_given else "taken" if session.has_taken(given.event_id) else None
        except InboxFull:
            self._writer.received.discard(given.event_id)
            full.add(given.request_id)
            return
        except BusError as exc:
            state, reason = "refused", str(exc)
            _logger.warning("request %s: an input from another process is refused: %s", given.request_id, exc)
        tasks.start_soon(self._settle, session, given, state, reason)

    async def _settle(self, session: RequestSession, given: Event, state: SettledState | None, reason: str) -> None:
        """Settle an input. With None, the session has taken it, and the append of its fact settles it."""
        try:
            is_recorded = not reason and await session.recorded(given)
            if is_recorded and state is None:
                return
            # An input that a session refuses because it leaves its request is for the next holder of the lease.
            if is_recorded or not session.snapshot().view.is_released:
                settled: SettledState = "taken" if is_recorded else "refused"
                await call_store_in_time(self._inbox.settle(given.request_id, given.event_id, settled, reason))
        except StoreError:
            return  # It still waits, for this process or the next one that has the lease.
        finally:
            self._writer.received.discard(given.event_id)
            self._say_settled(given.event_id)
