"""The requests that another process or another runtime has begun: found in the store, and continued here.

Knows sessions, the requests of the store, and the journal writer. Must not know the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import anyio

from .._logs import logger
from ..errors import ResumeMismatch, StoreError, ToolbusError
from ..session import RequestSession
from ..storage import RequestRecord
from ._agreed_options import provider_name
from ._journal_writer import JournalWriter
from ._store_calls import call_store_in_time
from ._stored_requests import StoredRequests

__all__ = ["ResumeProblem", "Resumption", "UnfinishedRequests"]

_WATCH_SECONDS = 1.0  # between two looks at the store: one read of an index
_TRY_AGAIN_SECONDS = 60.0  # until a request that cannot continue is tried again


@dataclass(slots=True, kw_only=True, frozen=True)
class ResumeProblem:
    """A request that cannot continue, and the error that says why. It is left unchanged, for another attempt."""

    request: RequestRecord
    error: ToolbusError


@dataclass(slots=True, kw_only=True, frozen=True)
class Resumption:
    """The outcome of `Runtime.resume`. Iterating gives the sessions that continue, oldest request first.

    `problems` are the requests that cannot continue. `held` is the number of unfinished requests that were skipped,
    because somebody else took them meanwhile or because this runtime itself has not finished with them.
    """

    sessions: tuple[RequestSession, ...] = ()
    problems: tuple[ResumeProblem, ...] = ()
    held: int = 0

    def __iter__(self) -> Iterator[RequestSession]:
        return iter(self.sessions)

    def __len__(self) -> int:
        return len(self.sessions)


class UnfinishedRequests:
    """The requests of a store that a runtime can resume."""

    def __init__(self, requests: StoredRequests, writer: JournalWriter) -> None:
        self._requests = requests
        self._writer = writer

    async def resume(
        self, start: Callable[[RequestSession], None], limit: int, *, without: Collection[str] = ()
    ) -> Resumption:
        """Take the leases that are free, and hand each request's session to `start`, which may refuse it by raising.

        The requests whose ids are in `without` are passed over.
        """
        sessions: list[RequestSession] = []
        problems: list[ResumeProblem] = []
        held = 0
        for record in await call_store_in_time(self._requests.journal.unfinished(limit=limit + len(without))):
            if record.request_id in without:
                continue
            try:
                session = await self._resumed(record, start)
            except ToolbusError as exc:
                stops = exc.retryable and isinstance(exc, StoreError)
                # A store that is out of reach is not the fault of this request, and no other request could continue.
                if stops and not sessions:
                    raise
                ids = {"request_id": record.request_id}
                logger.warning("request %s cannot continue: %s", record.request_id, exc, extra=ids)
                problems.append(ResumeProblem(request=record, error=exc))
                if stops:
                    break
                continue
            if session is None:
                held += 1
            else:
                sessions.append(session)
        return Resumption(sessions=tuple(sessions), problems=tuple(problems), held=held)

    async def watch(self, start: Callable[[RequestSession], None], places: Callable[[], int], seen: Resumption) -> None:
        """Resume what becomes free from now on, at most `places()` requests at a time. Runs until it is cancelled.

        A request that could not continue is tried again after a minute, also those of `seen`.
        """
        problems, tried = seen.problems, dict[str, float]()
        is_away = False
        while True:
            now = anyio.current_time()
            tried = {request_id: moment for request_id, moment in tried.items() if now < moment + _TRY_AGAIN_SECONDS}
            tried |= {each.request.request_id: now for each in problems if not each.error.retryable}
            await anyio.sleep(_WATCH_SECONDS)
            problems = ()
            try:
                if (free := places()) > 0:
                    problems = (await self.resume(start, free, without=tried)).problems
            except StoreError as exc:
                if not is_away:
                    logger.warning("the store failed, and requests are taken over once it answers: %s", exc)
                is_away = True
                continue
            if is_away:
                logger.info("the store answers again, and requests are taken over")
            is_away = False

    async def _resumed(self, record: RequestRecord, start: Callable[[RequestSession], None]) -> RequestSession | None:
        """Return the session that continues a request; None if somebody else has it. A failure gives the lease back."""
        writer = self._writer
        if writer.is_registered(record.request_id) or writer.is_pending(record.request_id):
            # This runtime has the request, and its lease has run out: a renewal or a write of its own is due.
            return None
        taken = None
        # The shield is bounded by the store's time limit. A cancellation here could leave a lease without a request,
        # which would be renewed with all the others.
        with anyio.CancelScope(shield=True):
            taken = await writer.take_lease(record.request_id)
        if taken is None:
            return None
        try:
            found = await self._requests.restore(taken)
            found.check_output()
            found.check_ending()
            session = found.session
            _compare_providers(taken, session)
            writer.register(session, resumed=taken)
            start(session)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await writer.return_lease(taken)
            raise
        return session


def _compare_providers(record: RequestRecord, session: RequestSession) -> None:
    """Compare the providers with those in the journal: other models are logged, a missing one is `ResumeMismatch`."""
    before: list[str] = record.agreed.get("providers") or []
    found = session.snapshot()
    now, position = [provider_name(each) for each in found.view.providers], found.view.state.provider
    if position >= len(now):
        raise ResumeMismatch(
            f"request {record.request_id} had turned to {before[-1] if before else 'another provider'}, which is "
            f"number {position + 1} of its providers, but only {len(now)} are given now: give all of them"
        )
    if before and before != now:
        logger.warning(
            "request %s was begun with %s, and continues with %s",
            record.request_id,
            ", ".join(before),
            ", ".join(now),
            extra={"request_id": record.request_id},
        )
