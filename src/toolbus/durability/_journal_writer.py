"""The journal writer of one runtime: its requests' steps, their leases, and what the store has not taken yet.

It is the one `Journal` of all sessions of a runtime. Knows sessions and the protocol of stores. Must not know the
runtime.
"""

from __future__ import annotations

import logging
import os
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import anyio

from .._option_checks import POSITIVE, check, check_implements, one_of, shown
from .._timers import EARLY_SECONDS
from ..clock import SessionClock, wall_time
from ..core.limits import Limits
from ..errors import ConfigurationError, ConversationBusy, InboxFull, LeaseLost, StoreDamaged, StoreError, TurnLost
from ..events import Event, ToolCallRequested, new_id
from ..records import event_json
from ..session import RequestSession
from ..storage import TIMEOUT_SECONDS, Entry, Inbox, JournalStore, RequestRecord, Store, ending_of
from ._agreed_options import agreed_options, fields_of, messages_to_json, provider_name
from ._store_calls import PendingCalls, call_store, call_store_in_time, no_answer

OnStoreFailure: TypeAlias = Literal["stop", "warn"]
"""The treatment of a request whose step the store does not take: see `JournalWriter`."""

REPLACED = "replaced by a newer message"
"""The reason for which a turn is cancelled that a newer one of its conversation replaces."""

_logger = logging.getLogger("toolbus.store")
# A lease is renewed this often in its time, so that a renewal that fails does no harm.
_RENEWALS = 3
# A result is there after this time at the latest, even if the store fails (G21).
_RESULT_SECONDS = 4.8
# The time between two attempts to take the turn of a conversation: the first, and the longest.
_TURN_SECONDS, _MAX_TURN_SECONDS = 0.1, 1.0
# The time after which a step that the store refuses each time is given up: before, the disk may only have been full.
_REFUSED_SECONDS = 3_600.0
# The log warns when this part of a limit is used up.
_WARN_AT = 0.8


@dataclass(slots=True)
class _JournaledRequest:
    """One request of this runtime that has a journal.

    `history_length` is the number of messages that `history=` gave. `epoch` is that of its lease, and `written` the
    number of its facts in the store. `unwritten` is one entry with all facts that the store has not taken, also while
    the store is taking them. `is_unsure` is true while a write has no known outcome, so that some of `unwritten` may
    be in the store. `has_ended` and `is_abandoned` are true once the store has its ending, or has it as abandoned.
    `has_turn` is true if the request was given the turn of its conversation, which other processes wait for, and
    `may_have_turn` also while the store has not said whether it gives the turn. `asked_at` is the time at which the
    request began to wait for the turn, and `replaces` true if it ends the turns before it. `known` are the other
    requests of the conversation that it has found in the store, None until it has looked.
    `tries_since` is the time, on the loop's clock, at which the first step was first given to the store, and
    `began_at` the time at which the write under way was, also after a cancellation has cut it short. `refused_since` is
    the time at which the store first refused what is missing at the end, and `is_given_up` true once that is given up.
    """

    session: RequestSession
    limits: Limits
    history_length: int
    asked_at: float
    replaces: bool
    epoch: int = 1
    written: int = 0
    unwritten: Entry | None = None
    is_unsure: bool = False
    has_ended: bool = False
    is_abandoned: bool = False
    has_turn: bool = False
    may_have_turn: bool = False
    known: set[str] | None = None
    tries_since: float = 0.0
    began_at: float | None = None
    refused_since: float | None = None
    is_given_up: bool = False
    has_warned_of_failure: bool = False
    has_warned_of_size: bool = False


def journal_of(store: Store) -> JournalStore | None:
    """Return the journal of a store, or None if it has none. Raises `ConfigurationError` for what is not a store."""
    if isinstance(store, type) or not hasattr(store, "journal"):
        raise ConfigurationError(f"store is {shown(store)}; pass a Store, such as SqliteStore('toolbus.db')")
    check_implements(store, Store)
    if store.journal is not None:
        check_implements(store.journal, JournalStore)
    return store.journal


def journal_writer_of(store: Store, lease_seconds: float, on_failure: OnStoreFailure) -> JournalWriter | None:
    """Return a journal writer for the store, or None if the store has no journal.

    Raises `ConfigurationError` for an argument that cannot be used.
    """
    check("on_store_failure", on_failure, one_of(*get_args(OnStoreFailure)))
    check("lease_seconds", lease_seconds, POSITIVE)
    journal = journal_of(store)
    return None if journal is None else JournalWriter(journal, lease_seconds=lease_seconds, on_failure=on_failure)


class JournalWriter:
    """A `Journal` for the sessions of one runtime, which holds their leases under the name `owner`.

    With `on_failure="stop"`, a request whose step the store does not take is left: any process may continue it from
    the step before, once its lease is released or has run out. With "warn" the request continues, and the step is held
    in memory and written together with the next one; if the process dies before that, the end of the journal is
    missing.
    """

    def __init__(self, store: JournalStore, *, lease_seconds: float, on_failure: OnStoreFailure) -> None:
        self._host, self._pid, self._id = socket.gethostname(), os.getpid(), new_id()
        self.lease_seconds = lease_seconds
        self.store = store
        # The steps that the store has taken, the seconds that it took for all of them, and those that it refused.
        self.appends, self.append_seconds, self.append_failures = 0, 0.0, 0
        self._on_failure = on_failure
        # The ids of inputs from the inbox that sessions have and that the store still has as waiting.
        self.received: set[str] = set()
        self._requests: dict[str, _JournaledRequest] = {}
        self._pending = PendingCalls()
        self._clock: SessionClock | None = None  # None until `open`
        self.watch_fails = False  # whether the last look for requests to take over has failed
        self._begun = anyio.Event()  # set when a request is registered, and replaced when somebody waits for it
        # It spreads attempts of several processes over time. The id is the same in each run of a simulation.
        self.chance = random.Random(self._id)  # noqa: S311 -- no secret
        self._leaving: set[str] = set()  # requests that do not run any more, and whose end is being written

    @property
    def owner(self) -> str:
        """The name of this process. A runtime that was made before a fork has another one in each child."""
        return f"{self._host}:{os.getpid()}:{self._id}"

    def open(self) -> None:
        """Bind the writer to the event loop that runs now."""
        self._clock, self.watch_fails = SessionClock(), False
        if os.getpid() != self._pid:  # Children that a process has forked would all have its chance.
            self._pid = os.getpid()
            self.chance.seed(self.owner)

    @property
    def store_unavailable(self) -> bool:
        """True if the store is away, as far as is known from the last call that wrote something, or from the watch."""
        return self._pending.fails or self.watch_fails

    @property
    def leases(self) -> int:
        """The number of requests whose leases this process holds, as far as it knows. Costs O(requests)."""
        return sum(each.written > 0 and not each.has_ended for each in [*self._requests.values()])

    @property
    def calls_pending(self) -> int:
        """The number of calls that the store has still to take."""
        return len(self._pending)

    def is_registered(self, request_id: str) -> bool:
        """Return whether the request runs or waits in this runtime."""
        return request_id in self._requests

    def is_pending(self, request_id: str) -> bool:
        """Return whether the store has still to learn that the request was left here, or has ended."""
        return request_id in self._pending or request_id in self._leaving

    async def wait_for_requests(self) -> None:
        """Return once a request runs or waits in this runtime, or has begun to; at once if one does."""
        if not self._requests:
            self._begun = anyio.Event()
            await self._begun.wait()

    def session(self, request_id: str) -> RequestSession | None:
        """Return the session of a request that runs or waits in this runtime; None for any other."""
        request = self._requests.get(request_id)
        return None if request is None else request.session

    def register(
        self,
        session: RequestSession,
        *,
        history_length: int = 0,
        replaces: bool = False,
        resumed: RequestRecord | None = None,
    ) -> None:
        """Take a request on, before it runs. `history_length` is the number of messages that `history=` gave.

        One that `replaces` ends the earlier turns of its conversation: see `apply_replacements`.
        `resumed` is the store's record of a request that continues here, as it was when its lease was taken. Raises
        `ConfigurationError` for metadata that no journal can keep.
        """
        if session.metadata and resumed is None:
            try:
                event_json(dict(session.metadata))
            except TypeError as exc:
                raise ConfigurationError(f"metadata is not JSON, so the journal cannot keep it: {exc}") from exc
        limits = session.snapshot().view.state.limits
        request = _JournaledRequest(session, limits, history_length, wall_time(), replaces)
        self._requests[session.request_id] = request
        self._begun.set()
        if resumed is not None:
            request.epoch, request.written = resumed.epoch, resumed.fact_count

    async def apply_replacements(self, request_id: str, cancel: Callable[[str], Awaitable[object]]) -> None:
        """Let the newest turn of a conversation that replaces others do so, in all processes.

        Called for a turn that waits. Those that the store has when it looks first are older, by the order of the store
        and not by clocks: if it replaces, it cancels them, each once. Later it cancels those that began since and have
        waited for longer than itself; and if one of them replaces and has waited for less time, it is cancelled itself.
        Where the store has no inbox, it only waits for the requests of other processes. Raises `StoreError`.
        """
        request = self._requests[request_id]
        is_first, known = request.known is None, request.known or set()
        request.known = known
        conversation_id = request.session.conversation_id
        found = await call_store_in_time(self.store.requests(conversation_id=conversation_id, is_unfinished=True))
        for each in found:
            # Admission and the runtime have ordered those of this process.
            if each.request_id in known or self.is_registered(each.request_id):
                continue
            with suppress(InboxFull):  # The next look tries again.
                if is_first or each.agreed.get("asked_at", each.started_at) < request.asked_at:
                    if request.replaces and isinstance(self.store, Inbox):
                        await cancel(each.request_id)
                elif each.agreed.get("replaces"):
                    request.session.cancel(REPLACED)
                known.add(each.request_id)

    async def take_turn(
        self,
        request_id: str,
        conversation_id: str,
        stand_aside: Callable[[float], Awaitable[None]] | None,
        cancel: Callable[[str], Awaitable[object]] | None = None,
    ) -> None:
        """Take the turn of its conversation for a request, which waits while other processes run turns of it.

        Called before the history is read, and before a request continues. `stand_aside` waits for so many seconds, in
        which this process may continue the request that the other processes wait for. Without it, raises
        `ConversationBusy` instead of waiting. A new turn gives `cancel`, to `apply_replacements` while it waits. Raises
        `StoreError`, unless requests continue without their store: then it continues without the turn.
        """
        request, seconds = self._requests[request_id], _TURN_SECONDS
        while True:
            try:
                # The end of the turn before may still have to be written here: its messages belong to this turn.
                if (problem := await self._pending.flush(conversation_id)) is not None:
                    raise problem
                request.may_have_turn = True
                request.has_turn = await call_store_in_time(self._take_turn(request_id, conversation_id))
                request.may_have_turn = request.has_turn
                if request.has_turn:
                    return
                if cancel is not None and stand_aside is not None:
                    await self.apply_replacements(request_id, cancel)
            except StoreError as exc:
                if self._on_failure == "stop":
                    self._report(exc)  # No append follows that would.
                    raise
                self._warn(request, exc)
                return
            if stand_aside is None:
                raise ConversationBusy(
                    f"conversation {conversation_id!r} has a turn that has not ended yet in another process; "
                    "try again when it has"
                )
            if seconds == _TURN_SECONDS:
                _logger.info(
                    "request %s waits for a turn of its conversation in another process",
                    request_id,
                    extra={"request_id": request_id, "conversation_id": conversation_id},
                )
            await stand_aside(seconds * self.chance.uniform(0.5, 1))
            seconds = min(2 * seconds, _MAX_TURN_SECONDS)

    def _take_turn(self, request_id: str, conversation_id: str) -> Awaitable[bool]:
        return self.store.take_turn(conversation_id, request_id, self.owner, self.lease_seconds)

    # ---------------------------------------------------------------------------------------------- writing

    async def append(self, request_id: str, seq: int, facts: Sequence[Event]) -> int | None:
        """See `Journal`."""
        request = self._requests[request_id]
        entry = self._entry(request, seq, facts)
        if request.unwritten is not None:
            entry = _joined(request.unwritten, entry)
        request.unwritten = entry
        try:
            size_bytes = await self._write(request, entry)
        except LeaseLost:
            request.unwritten = None
            raise
        except StoreError as exc:
            self.append_failures += 1
            # A value that is not JSON is not the store's fault, and whoever resumed the request would meet it again.
            request.is_given_up = isinstance(exc.__cause__, TypeError)
            self._report(exc)
            if self._on_failure == "stop" or isinstance(exc, TurnLost):
                raise
            self._warn(request, exc)
            # It runs beside the others of its conversation from now on.
            request.has_turn = request.unwritten.has_turn = False
            return None
        if self._pending.fails and not self._pending:
            self._pending.report(None)
        self._watch_size(request, size_bytes)
        return size_bytes

    def _entry(self, request: _JournaledRequest, seq: int, facts: Sequence[Event]) -> Entry:
        session = request.session
        entry = Entry(
            request_id=session.request_id,
            conversation_id=session.conversation_id,
            epoch=request.epoch,
            seq=seq,
            facts=facts,
        )
        if seq == 0:
            if request.unwritten is None:  # The session repeats a write that was cut short.
                request.tries_since = anyio.current_time()
            entry.owner, entry.lease_seconds = self.owner, self.lease_seconds
            entry.agreed, entry.has_turn = self._agreed(request), request.has_turn
        if self.received:
            entry.received = [fact.event_id for fact in facts if fact.event_id in self.received]
        if (ending := ending_of(facts[-1])) is not None:
            entry.ending, entry.turn = ending, tuple(session.snapshot().turn)
        return entry

    def _agreed(self, request: _JournaledRequest) -> dict[str, Any]:
        found = request.session.snapshot()
        state, memo = found.view.state, found.view.window.memo
        more = {
            "providers": [provider_name(each) for each in found.view.providers],
            "history_stored": found.stored,
            "history": messages_to_json(state.messages[found.earlier : found.earlier + request.history_length]),
            "memo": None if memo is None else fields_of(memo),
            "output": None if state.output is None else state.output.spec.name,
            "asked_at": request.asked_at if request.has_turn else None,
            "replaces": request.replaces,
        }
        return {**agreed_options(found.view), **{name: value for name, value in more.items() if value}}

    async def _write(self, request: _JournaledRequest, entry: Entry) -> int:
        """Append an entry, and return the size of the journal in bytes. Raises `StoreError`.

        The caller cancels it after `TIMEOUT_SECONDS`. If it is then called again, it raises `StoreUnavailable` at once.
        """
        assert self._clock is not None
        began, request.began_at = request.began_at, None
        now = self._clock.loop_time()
        if began is None:
            began = now
        elif now >= began + TIMEOUT_SECONDS - EARLY_SECONDS:
            raise no_answer()
        try:
            if request.is_unsure and (record := await self._find_written(request, entry)) is not None:
                entry = replace(entry, seq=record.fact_count, facts=entry.facts[record.fact_count - entry.seq :])
                if not entry.facts:
                    return record.size_bytes
            request.is_unsure = True
            size_bytes = await call_store(self.store.append(entry))
        except StoreError:
            raise
        except BaseException:  # The write was cut short.
            request.began_at = began
            raise
        request.is_unsure, request.unwritten = False, None
        request.written = entry.seq + len(entry.facts)
        request.has_ended = entry.ending is not None
        self.appends += 1
        self.append_seconds += self._clock.loop_time() - began
        return size_bytes

    async def _find_written(self, request: _JournaledRequest, entry: Entry) -> RequestRecord | None:
        """Return the request as the store has it, if the store has taken some of `entry` without answering."""
        record = await call_store(self.store.request(entry.request_id))
        if record is None or record.fact_count <= entry.seq:
            return None
        request.written = record.fact_count
        if record.epoch != request.epoch:
            raise LeaseLost(entry.request_id, request.epoch)
        request.has_ended = record.ending is not None
        if record.fact_count >= entry.seq + len(entry.facts):
            request.is_unsure, request.unwritten = False, None
        return record

    def _report(self, exc: StoreError) -> None:
        """Note that the store is away, unless the error is about one journal only."""
        if not isinstance(exc, (StoreDamaged, TurnLost)) and not isinstance(exc.__cause__, TypeError):
            self._pending.report(exc)

    def _warn(self, request: _JournaledRequest, exc: StoreError) -> None:
        if not request.has_warned_of_failure:
            request.has_warned_of_failure = True
            request_id = request.session.request_id
            text = "request %s continues without its store, and would not survive a crash: %s"
            _logger.warning(text, request_id, exc, extra={"request_id": request_id})

    def _watch_size(self, request: _JournaledRequest, size_bytes: int) -> None:
        limits, written = request.limits, request.written
        if not request.has_warned_of_size and (
            written > _WARN_AT * limits.max_facts or size_bytes > _WARN_AT * limits.max_journal_bytes
        ):
            request.has_warned_of_size = True
            _logger.warning(
                "request %s: its journal has %d of max_facts=%d facts, and %d of max_journal_bytes=%d bytes",
                request.session.request_id,
                written,
                limits.max_facts,
                size_bytes,
                limits.max_journal_bytes,
                extra={"request_id": request.session.request_id},
            )

    # --------------------------------------------------------------------------------------- endings, leases

    async def release(self, session: RequestSession) -> bool:
        """Write that a request has ended here, or was left; if the store fails, that is retried until it is written.

        Returns whether the journal keeps the request's turn: the entry with the ending has the turn's messages,
        whichever process writes it. If not, the caller has to add the turn to the conversation, once.
        """
        request = self._requests.pop(session.request_id, None)
        if request is None:
            return False
        if not (request.written or request.unwritten):
            if request.may_have_turn:  # It may change nothing, so it does not count as a write that has succeeded.
                turn = session.conversation_id, session.request_id
                self._pending.add(session.request_id, partial(self.store.return_turn, *turn), writes=False)
            return False
        if request.has_ended:
            self._note_end(request)
            return True
        self._leaving.add(session.request_id)
        result = session.snapshot().result
        if result is not None and request.unwritten is not None and (request.written or request.is_unsure):
            # The store has the request as unfinished, so another process may continue it once the lease has run out.
            result.resumable = not request.is_given_up
        try:
            if request.unwritten is None or request.is_given_up:
                await self._settle(request)
            else:
                await self._settle_later(request)
        finally:
            self._leaving.discard(session.request_id)
        return session.snapshot().view.is_released or not request.is_abandoned

    async def _settle(self, request: _JournaledRequest) -> None:
        """Write how a request was left or ended; if that fails, it is retried later."""
        is_written, session = False, request.session
        try:
            is_written = await self._pending.attempt(self._end(request)) is None
        finally:  # The deadline of the caller, or a further cancellation by asyncio, may interrupt the attempt.
            if not is_written:
                self._pending.add(session.request_id, lambda: self._end(request), session.conversation_id)

    async def _settle_later(self, request: _JournaledRequest) -> None:
        """Write the end of a request later, because the store has failed before and may fail again.

        Waits only if the request was not accepted, until it is gone, and no longer than a result may take (G21).
        """
        done = anyio.Event()

        async def end() -> None:
            await self._end(request)
            done.set()

        session, writes = request.session, self._was_accepted(request)
        self._pending.add(session.request_id, end, session.conversation_id, writes=writes)
        if not writes:
            with anyio.CancelScope(deadline=request.tries_since + _RESULT_SECONDS):
                await done.wait()

    def _was_accepted(self, request: _JournaledRequest) -> bool:
        """Return whether the request was accepted, so that another process may continue it.

        Its first step is in the store, or it has continued without its store. Any other first step is not repeated
        later: the store may have had it, and lost it again when the conversation was deleted.
        """
        return request.written > 0 or request.has_warned_of_failure

    async def _end(self, request: _JournaledRequest) -> None:
        """Write the missing steps; then give the lease back, or abandon a request that nobody is to continue."""
        session, was_accepted = request.session, self._was_accepted(request)
        if request.unwritten is not None and was_accepted:
            await self._write_missing(request, request.unwritten)
        if not request.has_ended:
            is_released = session.snapshot().view.is_released and was_accepted and not request.is_given_up
            await (self._release_lease(request) if is_released else self._abandon(request))
        self._note_end(request)

    def _note_end(self, request: _JournaledRequest) -> None:
        """Note in the request's result that the store has the end of the request, if it is the end reported here."""
        found = request.session.snapshot()
        if found.result is not None and (request.is_abandoned or (request.has_ended and not found.view.is_released)):
            found.result.journaled, found.result.resumable = request.has_ended, False

    async def _write_missing(self, request: _JournaledRequest, entry: Entry) -> None:
        """Write the steps that the store has refused, so that no result and no input from a person is lost.

        With "stop", a step that requests tool calls is left out: its calls have not begun, and in the journal they
        would look as if they had. With "warn" they have begun, so that only a step that is refused for long is left
        out, and then nobody continues the request.
        """
        stops_on_failure = self._on_failure == "stop"
        if stops_on_failure and any(isinstance(fact, ToolCallRequested) for fact in entry.facts):
            return
        request.began_at = None  # This is a new attempt.
        try:
            await self._write(request, entry)
        except StoreError as exc:
            if exc.retryable or not (stops_on_failure or self._gives_up(request, exc)):
                raise

    def _gives_up(self, request: _JournaledRequest, exc: StoreError) -> bool:
        """Return whether the end of a request was refused for so long that it is not tried any more."""
        now = anyio.current_time()
        if request.refused_since is None:
            request.refused_since = now
        if now >= request.refused_since + _REFUSED_SECONDS and not request.is_given_up:
            request.is_given_up = True
            request_id = request.session.request_id
            text = "request %s: the store refuses its last steps, which are given up: %s"
            _logger.error(text, request_id, exc, extra={"request_id": request_id})
        return request.is_given_up

    async def _release_lease(self, request: _JournaledRequest) -> None:
        session, seconds = request.session, request.session.snapshot().view.parks_for
        if seconds and isinstance(self.store, Inbox):
            await self.store.park(session.request_id, request.epoch, seconds)
        else:
            await self.store.release(session.request_id, request.epoch)

    async def _abandon(self, request: _JournaledRequest) -> None:
        """End a request that nobody is to continue, unless another process has taken it already."""
        session, request_id = request.session, request.session.request_id
        request.is_abandoned = await self.store.abandon(request_id, request.epoch)
        if not request.is_abandoned and await self.store.request(request_id) is None:
            if request.has_turn:  # It has not begun. If its first step is still on its way, that is refused now.
                await self.store.return_turn(session.conversation_id, request_id)
            request.is_abandoned = True

    async def take_lease(self, request_id: str) -> RequestRecord | None:
        """Take a lease: see `JournalStore.take`.

        After an error that leaves it open whether the lease was taken, the lease is given back once the store answers.
        A `StoreDamaged` means that it was not taken.
        """
        try:
            return await call_store_in_time(self.store.take(request_id, self.owner, self.lease_seconds))
        except StoreDamaged:
            raise
        except StoreError:
            self._pending.add(request_id, lambda: self._return_unused_lease(request_id))
            raise

    async def _return_unused_lease(self, request_id: str) -> None:
        """Give a lease of this process back if no request runs on it: it would be renewed with all the others."""
        record = await call_store(self.store.request(request_id))
        if record is not None and record.owner == self.owner and not self.is_registered(request_id):
            await self.store.release(request_id, record.epoch)

    async def return_lease(self, record: RequestRecord, *, abandons: bool) -> bool:
        """Give back the lease of a request that cannot continue here, for another attempt, or abandon the request.

        Returns False if the lease was lost: another process has the request, or has ended it.
        """
        self._requests.pop(record.request_id, None)
        is_lost = False

        async def leave() -> None:
            nonlocal is_lost
            call = self.store.abandon if abandons else self.store.release
            is_lost = not await call(record.request_id, record.epoch)

        if await self._pending.attempt(leave()) is not None:
            self._pending.add(record.request_id, leave)
        return not is_lost

    async def run(self) -> None:
        """Renew the leases, and retry what the store has not taken in time. Runs until it is cancelled."""
        seconds = self.lease_seconds / _RENEWALS
        renew_at = anyio.current_time() + seconds
        while True:
            await self._pending.wait(renew_at)
            if anyio.current_time() >= renew_at:
                renew_at = anyio.current_time() + seconds
                if self._requests or self._pending or self._pending.fails:
                    await self._pending.attempt(self._renew())
            await self._pending.flush()

    async def flush(self) -> None:
        """Try once more to write what the store has not taken in time."""
        await self._pending.flush()

    async def _renew(self) -> None:
        """Renew the leases, and leave the requests whose leases another process has.

        Such a request would otherwise run until its next step is refused. A request that has its conversation's turn
        and has not begun has no lease: its turn is renewed by itself.
        """
        mine = [each for each in self._requests.values() if each.written]
        held = {*await call_store(self.store.renew(self.owner, self.lease_seconds))}
        if not held and self._pending.fails:
            # The store may have had nothing to write, and its disk may be full. No conversation has this id.
            await call_store(self._take_turn(self.owner, self.owner))
            await call_store(self.store.return_turn(self.owner, self.owner))
        for request_id, each in [*self._requests.items()]:
            if each.has_turn and not each.written and self.is_registered(request_id):
                # If the turn is lost, the first step will be refused.
                turn = (each.session.conversation_id, request_id, self.owner, self.lease_seconds)
                await call_store(self.store.renew_turn(*turn))
        for request in mine:
            request_id = request.session.request_id
            if request_id in held or request.has_ended or self._requests.get(request_id) is not request:
                continue
            if request.is_unsure:  # Its ending may be on its way.
                record = await call_store(self.store.request(request_id))
                if record is None or record.epoch == request.epoch:
                    continue
            request.session.lose(LeaseLost(request_id, request.epoch))


def _joined(before: Entry, after: Entry) -> Entry:
    """Return two entries of one request as one. `after` may repeat the end of `before`, whose write was cut short."""
    facts = [*before.facts[: after.seq - before.seq], *after.facts]
    received = [*{**dict.fromkeys(before.received), **dict.fromkeys(after.received)}]
    return replace(before, facts=facts, ending=after.ending, turn=after.turn, received=received)
