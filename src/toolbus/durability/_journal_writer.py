"""Keeps the requests of one runtime in a store's journal: what they write, the leases on them, what could not be kept.

The one `Journal` of a runtime's sessions. Knows sessions and the protocol of stores, and no runtime.
"""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import anyio

from ..errors import ConfigurationError, LeaseLost, StoreDamaged, StoreError, StoreUnavailable
from ..events import Event, ToolCallRequested, new_id
from ..session import RequestSession, check_word, shown
from ..storage import Entry, JournalStore, RequestRecord, Store, ending_of
from ..tools import is_number
from ._agreement import agreed_by, fields_of, messages_to_json, provider_name
from ._store_calls import ANSWER_SECONDS, Owed, answered, asked

__all__ = ["Keeper", "OnStoreFailure", "keeper_of"]

OnStoreFailure: TypeAlias = Literal["stop", "warn"]

_logger = logging.getLogger("toolbus.store")
_RENEWALS = 3  # in the time of a lease: so that one which fails costs nothing
_RESULT_SECONDS = 4.8  # after which a result is there though the store fails (G21)
_WARN_AT = 0.8  # of a limit


@dataclass(slots=True)
class _Kept:
    """One request that is kept.

    `unwritten` is what the store has not taken, in one entry from its first place on: also what it takes just now.
    """

    session: RequestSession
    given: int
    epoch: int = 1
    written: int = 0
    unwritten: Entry | None = None
    is_unsure: bool = False  # whether some of it is written all the same: the store did not answer
    has_warned: bool = False
    has_ended: bool = False
    is_abandoned: bool = False
    tries_since: float = 0.0  # when its newest step was begun to be written
    has_told_size: bool = False


def keeper_of(store: Store, *, lease_seconds: float, on_failure: OnStoreFailure) -> Keeper | None:
    """The keeper of a store with a journal; None where it has none. Raises `ConfigurationError` for what is none."""
    check_word("on_store_failure", on_failure, get_args(OnStoreFailure))
    if not (is_number(lease_seconds) and 0 < lease_seconds < math.inf):
        raise ConfigurationError(f"lease_seconds is {lease_seconds!r}; it must be above zero and finite")
    if isinstance(store, type) or not hasattr(store, "journal"):
        raise ConfigurationError(f"store is {shown(store)}; give a Store, such as SqliteStore('toolbus.db')")
    journal = store.journal
    return None if journal is None else Keeper(journal, lease_seconds=lease_seconds, on_failure=on_failure)


class Keeper:
    """A `Journal` for the sessions of one runtime. `owner` is the name under which it holds their leases.

    With `on_failure="stop"`, a request whose step the store does not take is left: any process may go on with it from
    the step before, once its lease is released or has run out. With "warn" the request goes on, what was not taken is
    kept in memory and written with what comes next, and a process that dies meanwhile leaves a journal with its end
    missing.
    """

    def __init__(self, store: JournalStore, *, lease_seconds: float, on_failure: OnStoreFailure) -> None:
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{new_id()}"
        self.lease_seconds = lease_seconds
        self.store = store
        self._on_failure = on_failure
        self._kept: dict[str, _Kept] = {}
        self._owed = Owed()
        self._leaving: set[str] = set()  # requests that do not run any more, of which the store is being told

    def keeps(self, request_id: str) -> bool:
        """Whether the request runs here."""
        return request_id in self._kept

    def owes(self, request_id: str) -> bool:
        """Whether the store has still to be told how the request was left here, or has ended."""
        return request_id in self._owed or request_id in self._leaving

    def keep(self, session: RequestSession, *, given: int = 0, resumed: RequestRecord | None = None) -> None:
        """Take a request on, before it runs. `given` are how many messages `history=` gave.

        `resumed` is what the store knows of one that goes on, whose lease was taken.
        """
        kept = self._kept[session.request_id] = _Kept(session, given)
        if resumed is not None:
            kept.epoch, kept.written = resumed.epoch, resumed.facts

    # ---------------------------------------------------------------------------------------------- writing

    async def append(self, request_id: str, seq: int, facts: Sequence[Event]) -> int | None:
        """See `Journal`."""
        kept = self._kept[request_id]
        entry = self._entry(kept, seq, facts)
        if kept.unwritten is not None:
            entry = _joined(kept.unwritten, entry)
        kept.unwritten, kept.tries_since = entry, anyio.current_time()
        try:
            size_bytes = await self._write(kept, entry)
        except LeaseLost:
            kept.unwritten = None
            raise
        except StoreError as exc:
            if self._on_failure == "stop":
                raise
            self._warn(kept, exc)
            return None
        self._watch_size(kept, size_bytes)
        return size_bytes

    async def facts_of(self, request_id: str) -> Sequence[Event]:
        """See `FactReader`."""
        return [each.fact for each in await self.store.facts(request_id)]

    def _entry(self, kept: _Kept, seq: int, facts: Sequence[Event]) -> Entry:
        session = kept.session
        entry = Entry(
            request_id=session.request_id,
            conversation_id=session.conversation_id,
            epoch=kept.epoch,
            seq=seq,
            facts=facts,
        )
        if seq == 0:
            entry.owner, entry.lease_seconds = self.owner, self.lease_seconds
            entry.agreed = self._agreed(kept)
        if (ending := ending_of(facts[-1])) is not None:
            entry.ending, entry.turn = ending, tuple(session.snapshot().turn)
        return entry

    def _agreed(self, kept: _Kept) -> dict[str, Any]:
        found = kept.session.snapshot()
        state, memo = found.state, found.view.window.memo
        more = {
            "providers": [provider_name(each) for each in found.view.providers],
            "history_stored": found.stored,
            "history": messages_to_json(state.messages[found.earlier : found.earlier + kept.given]),
            "memo": None if memo is None else fields_of(memo),
            "output": None if state.output is None else state.output.spec.name,
        }
        return {**agreed_by(found.view), **{name: value for name, value in more.items() if value}}

    async def _write(self, kept: _Kept, entry: Entry) -> int:
        """Have the store take an entry, or say within its time why not. Raises `StoreError`."""
        with anyio.move_on_after(ANSWER_SECONDS):
            if kept.is_unsure:
                there = await self._look(kept, entry)
                if there is not None:
                    entry = replace(entry, seq=there.facts, facts=entry.facts[there.facts - entry.seq :])
                    if not entry.facts:
                        return there.size_bytes
            kept.is_unsure = True
            size_bytes = await asked(self.store.append(entry))
            kept.is_unsure, kept.unwritten = False, None
            kept.written = entry.seq + len(entry.facts)
            kept.has_ended = entry.ending is not None
            return size_bytes
        raise StoreUnavailable(f"the store did not answer in {ANSWER_SECONDS:g} s")

    async def _look(self, kept: _Kept, entry: Entry) -> RequestRecord | None:
        """The store may have taken what it did not answer to: the request as it has it, if it has some of `entry`."""
        there = await asked(self.store.request(entry.request_id))
        if there is None or there.epoch != kept.epoch or there.facts <= entry.seq:
            return None
        kept.written, kept.has_ended = there.facts, there.ending is not None
        if there.facts >= entry.seq + len(entry.facts):
            kept.is_unsure, kept.unwritten = False, None
        return there

    def _warn(self, kept: _Kept, exc: StoreError) -> None:
        if not kept.has_warned:
            kept.has_warned = True
            told = "the store failed: the request goes on, and would not survive a crash"
            _logger.warning("%s (%s)", told, exc, extra={"request_id": kept.session.request_id})

    def _watch_size(self, kept: _Kept, size_bytes: int) -> None:
        limits, written = kept.session.snapshot().state.limits, kept.written
        if not kept.has_told_size and (
            written > _WARN_AT * limits.max_facts or size_bytes > _WARN_AT * limits.max_journal_bytes
        ):
            kept.has_told_size = True
            _logger.warning(
                "the journal of the request has %d of max_facts=%d facts, and %d of max_journal_bytes=%d",
                written,
                limits.max_facts,
                size_bytes,
                limits.max_journal_bytes,
                extra={"request_id": kept.session.request_id},
            )

    # --------------------------------------------------------------------------------------- endings, leases

    async def let_go(self, session: RequestSession) -> bool:
        """A request has ended here, or was left: tell the store so, or owe it that.

        Returns whether its turn is the journal's: the ending brings it along, whoever writes that. Otherwise the caller
        is to remember the turn, once.
        """
        kept = self._kept.pop(session.request_id, None)
        if kept is None or not (kept.written or kept.unwritten):
            return False
        if kept.has_ended:
            self._note_end(kept)
            return True
        self._leaving.add(session.request_id)
        try:
            if kept.unwritten is None:
                await self._settle(kept)
            else:
                await self._settle_later(kept)
        finally:
            self._leaving.discard(session.request_id)
        return bool(session.snapshot().left) or not kept.is_abandoned

    async def _settle(self, kept: _Kept) -> None:
        """Tell the store how a request was left or ended, or owe it that."""
        is_told = False
        try:
            is_told = await self._owed.try_now(self._end(kept)) is None
        finally:  # a result waits no longer than it may, and asyncio may cancel once more
            if not is_told:
                self._owed.owe(kept.session.request_id, lambda: self._end(kept))

    async def _settle_later(self, kept: _Kept) -> None:
        """The store has failed, and may again: owe it what it has not taken.

        Only whether the request is gone is waited for, and no longer than a result may take (G21).
        """
        done = anyio.Event()

        async def end() -> None:
            await self._end(kept)
            done.set()

        self._owed.owe(kept.session.request_id, end)
        if not self._has_begun(kept):
            with anyio.CancelScope(deadline=kept.tries_since + _RESULT_SECONDS):
                await done.wait()

    def _has_begun(self, kept: _Kept) -> bool:
        """Whether a request may go on elsewhere: not where it was not accepted, as its first step was not taken."""
        return kept.written > 0 or self._on_failure == "warn"

    async def _end(self, kept: _Kept) -> None:
        """Have the store take what it has not taken yet; then give the lease back, or end what is not to go on."""
        session, has_begun = kept.session, self._has_begun(kept)
        if kept.unwritten is not None and has_begun:
            await self._offer(kept, kept.unwritten)
        if not kept.has_ended:
            await (self._release(kept) if session.snapshot().left and has_begun else self._abandon(kept))
        self._note_end(kept)

    def _note_end(self, kept: _Kept) -> None:
        """Tell a result that the store has an end of its request, unless that is not how it was reported here."""
        found = kept.session.snapshot()
        if found.result is not None and (kept.is_abandoned or (kept.has_ended and not found.left)):
            found.result.journaled, found.result.resumable = kept.has_ended, False

    async def _offer(self, kept: _Kept, entry: Entry) -> None:
        """Have the store take a step that it has refused, so that results and wishes are not lost.

        Except one that requests calls: they have not begun, and would look as if they had. With "warn" they have.
        """
        may_go_on = self._on_failure == "stop"
        if may_go_on and any(isinstance(fact, ToolCallRequested) for fact in entry.facts):
            return
        try:
            await self._write(kept, entry)
        except StoreError as exc:
            if exc.retryable or not may_go_on:
                raise

    async def _release(self, kept: _Kept) -> None:
        await self.store.release(kept.session.request_id, kept.epoch)

    async def _abandon(self, kept: _Kept) -> None:
        """End a request that nobody is to go on with, unless another process does already."""
        request_id = kept.session.request_id
        is_ours = await self.store.abandon(request_id, kept.epoch)
        kept.is_abandoned = is_ours or await self.store.request(request_id) is None

    async def take(self, request_id: str) -> RequestRecord | None:
        """See `JournalStore.take`. Where nobody knows whether the lease was taken, it is given back in time."""
        try:
            return await answered(self.store.take(request_id, self.owner, self.lease_seconds))
        except StoreDamaged:  # which takes nothing
            raise
        except StoreError:
            self._owed.owe(request_id, lambda: self._disown(request_id))
            raise

    async def _disown(self, request_id: str) -> None:
        """Give a lease back that is ours, and that nobody here knows of: it would be renewed with all the others."""
        there = await asked(self.store.request(request_id))
        if there is not None and there.owner == self.owner and not self.keeps(request_id):
            await self.store.release(request_id, there.epoch)

    async def give_up(self, record: RequestRecord) -> None:
        """A request whose lease was taken cannot go on: leave it for another attempt."""
        self._kept.pop(record.request_id, None)

        def release() -> Awaitable[object]:
            return self.store.release(record.request_id, record.epoch)

        if await self._owed.try_now(release()) is not None:
            self._owed.owe(record.request_id, release)

    async def run(self) -> None:
        """Renew the leases, and tell the store what it could not be told in time. Until cancelled."""
        seconds = self.lease_seconds / _RENEWALS
        renew_at = anyio.current_time() + seconds
        while True:
            await self._owed.wait(renew_at)
            if anyio.current_time() >= renew_at:
                renew_at = anyio.current_time() + seconds
                if self._kept or self._owed:
                    await self._owed.try_now(self._renew(), heals=not self._owed)
            await self._owed.flush()

    async def flush(self) -> None:
        """Try once more to tell the store what it could not be told in time."""
        await self._owed.flush()

    async def _renew(self) -> None:
        """Renew the leases. A request whose lease is another's by now is left: it would find out at its next step."""
        mine = [each for each in self._kept.values() if each.written]
        held = await asked(self.store.renew(self.owner, self.lease_seconds))
        mine = [each for each in mine if not each.has_ended and self.keeps(each.session.request_id)]
        if held >= len(mine):
            return
        for kept in mine:
            request_id = kept.session.request_id
            there = await asked(self.store.request(request_id))
            if there is not None and there.epoch != kept.epoch and self._kept.get(request_id) is kept:
                kept.session.leave(str(LeaseLost(request_id, kept.epoch)), even_if_cancelled=True)


def _joined(before: Entry, after: Entry) -> Entry:
    """Two entries of one request as one. `after` may repeat the end of `before`, whose write was cut short."""
    facts = [*before.facts[: after.seq - before.seq], *after.facts]
    return replace(before, facts=facts, ending=after.ending, turn=after.turn)
