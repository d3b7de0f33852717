"""Keeps the requests of one runtime in a store's journal: what they write, the leases on them, what could not be kept.

The one `Journal` of a runtime's sessions. Knows sessions and the protocol of stores, and no runtime.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

import anyio

from .agreement import agreed_by, fields_of, messages_to_json, provider_name
from .errors import LeaseLost, StoreError, StoreUnavailable, ToolbusError
from .events import Event, RequestCancelled, RequestCompleted, RequestFailed, new_id
from .session import RequestSession
from .storage import Ending, Entry, JournalStore, RequestRecord

__all__ = ["Keeper", "OnStoreFailure"]

T = TypeVar("T")
OnStoreFailure: TypeAlias = Literal["stop", "warn"]

_logger = logging.getLogger("toolbus.store")
_RENEWALS = 3  # in the time of a lease: so that one which fails costs nothing
_ANSWER_SECONDS = 4.5  # that a store has, so that a session, which waits for 5 (G21), is told what is wrong
_RETRY_SECONDS = 1.0  # between attempts to write what could not be written
_WARN_AT = 0.8  # of a limit


@dataclass(slots=True)
class _Kept:
    """One request that is kept. `unwritten` is what the store did not take, in one entry, from its first place on."""

    session: RequestSession
    given: int
    epoch: int = 1
    written: int = 0
    unwritten: Entry | None = None
    is_unsure: bool = False  # whether some of it is written all the same: the store did not answer
    has_warned: bool = False
    has_ended: bool = False
    has_told_size: bool = False


class Keeper:
    """A `Journal` for the sessions of one runtime. `owner` is the name under which it holds their leases.

    With `on_failure="stop"`, what the store does not take is the end of the request that wrote it. With "warn" the
    request goes on, what was not taken is kept in memory and written with what comes next, and a process that dies
    meanwhile leaves a journal with its end missing.
    """

    def __init__(self, store: JournalStore, *, lease_seconds: float, on_failure: OnStoreFailure) -> None:
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{new_id()}"
        self.lease_seconds = lease_seconds
        self.store = store
        self._on_failure = on_failure
        self._kept: dict[str, _Kept] = {}
        self._changed = anyio.Event()
        self._endings: dict[str, _Kept] = {}  # requests that have ended, and whose ending is still to be written

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
        try:
            size_bytes = await self._write(kept, entry)
        except LeaseLost:
            raise
        except StoreError as exc:
            kept.unwritten = entry
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
        if (ending := _ending_of(facts[-1])) is not None:
            entry.ending, entry.turn = ending, tuple(session.new_messages())
        return entry

    def _agreed(self, kept: _Kept) -> dict[str, Any]:
        session, beginning = kept.session, kept.session.beginning
        memo = session.sending.memo
        more = {
            "providers": [provider_name(each) for each in session.providers],
            "history_stored": beginning.stored,
            "history": messages_to_json(session.messages[beginning.earlier : beginning.earlier + kept.given]),
            "memo": None if memo is None else fields_of(memo),
            "output": None if session.output is None else session.output.spec.name,
        }
        return {**agreed_by(session, session.limits), **{name: value for name, value in more.items() if value}}

    async def _write(self, kept: _Kept, entry: Entry) -> int:
        """Have the store take an entry, or say within its time why not. Raises `StoreError`."""
        if kept.is_unsure:
            entry = await self._without_what_is_there(kept, entry)
            if not entry.facts:
                return 0
        kept.is_unsure = True
        with anyio.move_on_after(_ANSWER_SECONDS) as scope:
            size_bytes = await _asked(self.store.append(entry))
            kept.is_unsure, kept.unwritten = False, None
            kept.written = entry.seq + len(entry.facts)
            kept.has_ended = entry.ending is not None
            return size_bytes
        assert scope.cancelled_caught
        raise StoreUnavailable(f"the store did not answer in {_ANSWER_SECONDS:g} s")

    async def _without_what_is_there(self, kept: _Kept, entry: Entry) -> Entry:
        """The store may have taken what it did not answer to."""
        with anyio.move_on_after(_ANSWER_SECONDS):
            record = await _asked(self.store.request(entry.request_id))
            kept.is_unsure = False
            if record is None or record.epoch != kept.epoch or record.facts <= entry.seq:
                return entry
            kept.has_ended = record.ending is not None
            kept.unwritten = None
            return replace(entry, seq=record.facts, facts=entry.facts[record.facts - entry.seq :])
        raise StoreUnavailable(f"the store did not answer in {_ANSWER_SECONDS:g} s")

    def _warn(self, kept: _Kept, exc: StoreError) -> None:
        if not kept.has_warned:
            kept.has_warned = True
            told = "the store failed: the request goes on, and would not survive a crash"
            _logger.warning("%s (%s)", told, exc, extra={"request_id": kept.session.request_id})

    def _watch_size(self, kept: _Kept, size_bytes: int) -> None:
        limits, written = kept.session.limits, kept.written
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
        """A request has ended here, or was left. Returns whether the journal has its turn, or will have it."""
        kept = self._kept.pop(session.request_id, None)
        if kept is None:
            return False
        session.note_journaled(whole=kept.has_ended)
        if session.leaves:
            if kept.written:
                await self._guarded(self.store.release(session.request_id, kept.epoch))
            return True
        if kept.has_ended or not (kept.written or kept.unwritten):
            return kept.has_ended
        self._endings[session.request_id] = kept
        self._changed.set()
        return self._on_failure == "warn"

    async def give_up(self, record: RequestRecord) -> None:
        """A request whose lease was taken cannot go on: leave it for another attempt."""
        self._kept.pop(record.request_id, None)
        await self._guarded(self.store.release(record.request_id, record.epoch))

    async def run(self) -> None:
        """Renew the leases, and write what could not be written when its request ended. Until cancelled."""
        seconds = self.lease_seconds / _RENEWALS
        renew_at = anyio.current_time() + seconds
        while True:
            wait = min(renew_at - anyio.current_time(), _RETRY_SECONDS) if self._endings else None
            self._changed = anyio.Event()
            with anyio.CancelScope(deadline=renew_at if wait is None else anyio.current_time() + wait):
                await self._changed.wait()
            if anyio.current_time() >= renew_at:
                renew_at += seconds
                if self._kept:
                    await self._guarded(self.store.renew(self.owner, self.lease_seconds))
            await self.flush()

    async def flush(self) -> None:
        """Try once to write what could not be written."""
        for request_id, kept in list(self._endings.items()):
            if await self._guarded(self._end(kept)):
                self._endings.pop(request_id, None)

    async def _end(self, kept: _Kept) -> bool:
        if self._on_failure == "warn" and kept.unwritten is not None:
            await self._write(kept, kept.unwritten)
        else:
            await self.store.abandon(kept.session.request_id, kept.epoch)
        return True

    async def _guarded(self, what: Awaitable[object]) -> bool:
        """Await `what`, and log that it failed. What is another process's by now needs no more care."""
        try:
            with anyio.move_on_after(_ANSWER_SECONDS):
                await _asked(what)
                return True
        except LeaseLost:
            return True
        except StoreError as exc:
            _logger.warning("the store failed: %s", exc)
        return False


async def _asked(what: Awaitable[T]) -> T:
    """What a store gives; of what one raises that is none of toolbus's errors, a `StoreError`."""
    try:
        return await what
    except ToolbusError:
        raise
    except Exception as exc:
        raise StoreError(f"{type(exc).__name__}: {exc}") from exc


def _joined(before: Entry, after: Entry) -> Entry:
    """Two entries of one request as one."""
    return replace(before, facts=[*before.facts, *after.facts], ending=after.ending, turn=after.turn)


def _ending_of(fact: Event) -> Ending | None:
    if isinstance(fact, RequestCompleted):
        return fact.outcome
    if isinstance(fact, RequestFailed):
        return "failed"
    return "cancelled" if isinstance(fact, RequestCancelled) else None
