"""The requests that another process or another runtime has begun: found in the store, and continued here.

Knows sessions, the requests of the store, and the journal writer. Must not know the runtime.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import anyio

from .._logs import logger
from ..errors import ApplicationError, BusError, ResumeMismatch, StoreDamaged, StoreError, ToolbusError
from ..events import CancelRequested, Event, ToolCallCompleted, ToolCallFailed
from ..session import RequestSession, check_together
from ..storage import Inbox, RequestRecord
from ._agreed_options import provider_name
from ._inbox_reader import INPUTS_AT_ONCE
from ._journal_writer import JournalWriter
from ._store_calls import call_store_in_time
from ._stored_requests import StoredRequests

_WATCH_SECONDS = 1.0  # between two looks at the store, at most: one read of an index
_BATCH = 100  # requests that are listed at once
_MAX_MISSES = 3  # requests that others were faster to take, after which the list is read anew
_TRY_AGAIN_SECONDS = 60.0  # until a request that cannot continue is tried again
_EARLY = (CancelRequested, ToolCallCompleted, ToolCallFailed)  # decisions wait until their question is asked again


@dataclass(slots=True, kw_only=True, frozen=True)
class ResumeProblem:
    """A request that cannot continue, and the error that says why.

    It is left unchanged, for another attempt. One that was cancelled is abandoned instead.
    """

    request: RequestRecord
    error: ToolbusError


@dataclass(slots=True, kw_only=True, frozen=True)
class Resumption:
    """The outcome of `Runtime.resume`. Iterating gives the sessions that continue, oldest request first.

    `problems` are the requests that cannot continue. `held` is the number of unfinished requests that were skipped,
    because somebody else took them meanwhile or because this runtime itself has not finished with them.
    """

    sessions: tuple[RequestSession, ...]
    problems: tuple[ResumeProblem, ...]
    held: int

    def __iter__(self) -> Iterator[RequestSession]:
        return iter(self.sessions)

    def __len__(self) -> int:
        return len(self.sessions)


@dataclass(slots=True)
class _Found:
    """A resumption under way. `is_contended` is true once another process was faster to take a request.

    `inputs` are the ids of the inputs that were read. One of a request that continues waits only once its lease is
    taken, so it is not among them: those of all other requests are read once, and not again for each request.
    """

    sessions: list[tuple[float, str, RequestSession]] = field(default_factory=list[tuple[float, str, RequestSession]])
    problems: list[ResumeProblem] = field(default_factory=list[ResumeProblem])
    held: int = 0
    is_contended: bool = False
    inputs: set[str] = field(default_factory=set[str])


class UnfinishedRequests:
    """The requests of a store that a runtime can resume."""

    def __init__(self, requests: StoredRequests, writer: JournalWriter) -> None:
        self._requests = requests
        self._writer = writer
        self._watches = False
        self._logged: dict[str, str] = {}  # the reasons for which requests could not continue, by their ids

    async def resume(
        self, start: Callable[[RequestSession, float], None], limit: int, *, without: Collection[str] = ()
    ) -> Resumption:
        """Take the leases that are free, and hand each request's session to `start`, which may refuse it by raising.

        At most `limit` requests are tried, the oldest first, and those whose ids are in `without` are passed over. When
        other processes take the same requests, each of them takes its own in a random order, and looks again after a
        few that were gone; without that, all of them would ask for each request, and one would get it.
        """
        found, passed = _Found(), {*without}
        while (room := limit - len(found.sessions) - len(found.problems)) > 0:
            # Nothing that is passed over leaves the list, so the list has to be so much longer.
            listed = await self._listed(min(room, _BATCH) + len(passed), found)
            records = [each for each in listed if each.request_id not in passed][:room]
            if found.is_contended:
                self._writer.chance.shuffle(records)
            if not await self._take(records, start, found, passed):
                break
        found.sessions.sort(key=itemgetter(0, 1))
        return Resumption(
            sessions=tuple([each for *_, each in found.sessions]), problems=tuple(found.problems), held=found.held
        )

    async def _listed(self, limit: int, found: _Found) -> Sequence[RequestRecord]:
        try:
            return await call_store_in_time(self._requests.journal.unfinished(limit=limit))
        except StoreError:
            if not found.sessions:
                raise
            return ()  # The store can be asked again later for the others, and these already run.

    async def _take(
        self,
        records: Sequence[RequestRecord],
        start: Callable[[RequestSession, float], None],
        found: _Found,
        passed: set[str],
    ) -> bool:
        """Try these requests until `_MAX_MISSES` were gone. Return whether any was found: continued, or with a problem.

        If not, the others are for other processes, or the store is out of reach.
        """
        done, misses = False, 0
        for record in records:
            if self._is_ours(record.request_id):
                # This runtime has the request, and its lease has run out: a renewal or its own write is due.
                passed.add(record.request_id)
                found.held += 1
                continue
            try:
                session = await self._resumed(record, start, found.inputs)
            except Exception as raised:
                exc = self._problem_in(raised)
                stops = exc.retryable and isinstance(exc, StoreError)
                # A store that is out of reach is not the fault of this request, and no other request could continue.
                if stops and not found.sessions:
                    raise
                self._log(record.request_id, exc)
                found.problems.append(ResumeProblem(request=record, error=exc))
                passed.add(record.request_id)
                if stops:
                    return False
                done = True
                continue
            if session is not None:
                self._logged.pop(record.request_id, None)
                passed.add(record.request_id)  # It is free again if it has failed meanwhile, and is tried once.
                found.sessions.append((record.started_at, record.request_id, session))
                done = True
                continue
            found.held += 1
            found.is_contended, misses = True, misses + 1
            if misses == _MAX_MISSES:
                break
        return done

    def _problem_in(self, raised: Exception) -> ToolbusError:
        """Return the reason why a request cannot continue. Raises any other exception if a caller can get it."""
        if isinstance(raised, ToolbusError):
            return raised
        if not self._watches:
            raise raised
        # Nobody else could get it, and the runtime must not end because of it.
        problem = ApplicationError(f"{type(raised).__name__}: {raised}")
        problem.__cause__ = raised
        return problem

    def _log(self, request_id: str, problem: ToolbusError) -> None:
        """Log the reason why a request cannot continue: as a warning or an error once, then at DEBUG."""
        bug = problem.__cause__ if isinstance(problem, ApplicationError) else None
        is_known = self._logged.get(request_id) == str(problem)
        level = logging.DEBUG if is_known else logging.WARNING if bug is None else logging.ERROR
        ids = {"request_id": request_id}
        logger.log(level, "request %s cannot continue: %s", request_id, problem, exc_info=bug, extra=ids)
        self._logged[request_id] = str(problem)

    def _is_ours(self, request_id: str) -> bool:
        return self._writer.is_registered(request_id) or self._writer.is_pending(request_id)

    async def watch(
        self, start: Callable[[RequestSession, float], None], free_capacity: Callable[[], int], seen: Resumption
    ) -> None:
        """Resume what becomes free, at most `free_capacity()` requests at a time. Runs until it is cancelled.

        A request that could not continue is tried again after a minute, also those of `seen`.
        """
        self._watches = True
        problems, tried, writer = seen.problems, dict[str, float](), self._writer
        while True:
            now = anyio.current_time()
            tried = {request_id: moment for request_id, moment in tried.items() if now < moment + _TRY_AGAIN_SECONDS}
            tried |= {each.request.request_id: now for each in problems if not each.error.retryable}
            # Processes that began together would otherwise look at the same moments, and all find the same requests.
            await anyio.sleep(_WATCH_SECONDS * writer.chance.uniform(0.5, 1))
            problems = ()
            try:
                if (free := free_capacity()) > 0:
                    problems = (await self.resume(start, free, without=tried)).problems
                elif writer.watch_fails:  # Only the store can show that it answers again.
                    await call_store_in_time(self._requests.journal.unfinished(limit=1))
            except StoreError as exc:
                if not writer.watch_fails:
                    logger.warning("the store failed, and requests are taken over once it answers: %s", exc)
                writer.watch_fails = True
                continue
            if writer.watch_fails:
                logger.info("the store answers again, and requests are taken over")
            writer.watch_fails = False

    async def _resumed(
        self, record: RequestRecord, start: Callable[[RequestSession, float], None], read: set[str]
    ) -> RequestSession | None:
        """Return the session that continues a request; None if somebody else has it. A failure gives the lease back.

        A request that was cancelled and that cannot be restored is abandoned then: nobody else would end it.
        `read` are the inputs of other requests that were read before.
        """
        writer, taken, is_given_up = self._writer, None, False
        # The shield is bounded by the store's time limit. A cancellation here could leave a lease without a request,
        # which would be renewed with all the others.
        with anyio.CancelScope(shield=True):
            taken = await writer.take_lease(record.request_id)
        if taken is None:
            return None
        try:
            inputs = await self._inputs(record.request_id, read)
            # A request that was cancelled only ends, for which nothing has to be given again.
            is_cancelled = any(isinstance(each, CancelRequested) for each in inputs)
            given: Mapping[str, Any] = {}
            try:
                given = self._requests.given_again(taken)
            except ApplicationError:
                if not is_cancelled:
                    raise
            is_given_up = is_cancelled
            found = await self._requests.restore(taken, given)
            found.check_ending()
            session = found.session
            if not is_cancelled:
                found.check_output()
                check_together(session.snapshot().view)
                _compare_providers(taken, session)
            is_given_up = False
            writer.register(session, resumed=taken)
            start(session, taken.started_at)
            for each in inputs:  # The session's task has not begun yet.
                with suppress(BusError):  # The reader of the inbox refuses it later.
                    session.deliver(each)
        except BaseException as exc:
            if not await self._left(taken, exc, is_given_up=is_given_up) and isinstance(exc, ToolbusError):
                # This process was suspended after it took the lease. What it read since is newer than its record.
                return None
            raise
        return session

    async def _left(self, taken: RequestRecord, exc: BaseException, *, is_given_up: bool) -> bool:
        """Give a request back that could not be restored because of `exc`, or abandon it if it `is_given_up`.

        Returns False if another process has taken it, or has ended it.
        """
        # Its journal may also just be out of reach, so that another attempt can end it as `cancelled`.
        is_final = isinstance(exc, StoreDamaged) or not isinstance(exc, StoreError)
        ends, is_ours = is_given_up and isinstance(exc, ToolbusError) and is_final, True
        with anyio.CancelScope(shield=True):
            is_ours = await self._writer.return_lease(taken, abandons=ends)
        if ends and is_ours:
            ids = {"request_id": taken.request_id}
            logger.info("request %s was cancelled, and is abandoned", taken.request_id, extra=ids)
        return is_ours

    async def _inputs(self, request_id: str, read: set[str]) -> list[Event]:
        """Return the cancellations and answers that wait for a request: they come before its calls are requested again.

        Otherwise a call would run again that is cancelled, or that is answered already.
        """
        journal, found = self._requests.journal, list[Event]()
        while isinstance(journal, Inbox):
            known = self._writer.received | read
            some = await call_store_in_time(journal.waiting(self._writer.owner, without=known, limit=INPUTS_AT_ONCE))
            read.update(each.event_id for each in some)
            found += [each for each in some if each.request_id == request_id and isinstance(each, _EARLY)]
            if len(some) < INPUTS_AT_ONCE:
                break
        return found


def _compare_providers(record: RequestRecord, session: RequestSession) -> None:
    """Compare the providers with those in the journal: other models are logged, a missing one is `ResumeMismatch`."""
    before: list[str] = record.agreed.get("providers") or []
    found = session.snapshot()
    now, position = [provider_name(each) for each in found.view.providers], found.view.state.provider
    if position >= len(now):
        raise ResumeMismatch(
            f"request {record.request_id} had turned to {[*before[position:], 'another provider'][0]}, which is "
            f"number {position + 1} of its providers, but only {len(now)} are given now: pass all of them"
        )
    if before and before != now:
        logger.warning(
            "request %s was begun with %s, and continues with %s",
            record.request_id,
            ", ".join(before),
            ", ".join(now),
            extra={"request_id": record.request_id},
        )
