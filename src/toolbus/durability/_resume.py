"""The requests that another process or another runtime has begun: found in the store, and restored from their facts.

Options that are data come from the journal; functions and objects (deps, tools, a type of output) are given again by
the application. Knows sessions, stores and the journal writer. Must not know the runtime, which gives it `make`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import anyio

from .._logs import logger
from ..errors import ApplicationError, ResumeMismatch, StoreDamaged, StoreError, ToolbusError
from ..events import RequestStarted
from ..messages import Message, UserMessage
from ..request_result import RequestResult, result_from
from ..session import Instructions, RequestOptions, RequestSession, Resumed, check_options
from ..storage import RequestRecord, Store, ending_of
from ._agreed_options import limits_in, memo_in, messages_from, options_in, provider_name
from ._journal_writer import JournalWriter
from ._store_calls import call_store_in_time

__all__ = ["OptionsFor", "ResumeProblem", "Resumption", "UnfinishedRequests"]

_WATCH_SECONDS = 1.0  # between two looks at the store: one read of an index
_TRY_AGAIN_SECONDS = 60.0  # until a request that cannot continue is tried again

OptionsFor: TypeAlias = Callable[[RequestRecord], Mapping[str, Any]]
"""A function that returns the options which a request gets again: those of `Runtime.run`, `output` included."""

Make: TypeAlias = Callable[[Sequence[Message], Any, RequestOptions, str, Resumed], RequestSession]
"""A function that makes a session of messages, an output type, options, a request id, and the facts so far."""


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
    """The requests of a store that a runtime can resume or recall. `make` makes the session of a request.

    `instructions` are those of the runtime, and `options` are as for `Runtime.resume`.
    """

    def __init__(
        self,
        store: Store,
        writer: JournalWriter,
        make: Make,
        options: OptionsFor | None,
        instructions: Instructions | None,
    ) -> None:
        self._instructions = instructions
        self._store = store
        self._writer = writer
        self._journal = writer.store
        self._make = make
        self._options = options

    async def resume(
        self, start: Callable[[RequestSession], None], limit: int, *, without: Collection[str] = ()
    ) -> Resumption:
        """Take the leases that are free, and hand each request's session to `start`, which may refuse it by raising.

        The requests whose ids are in `without` are passed over.
        """
        sessions: list[RequestSession] = []
        problems: list[ResumeProblem] = []
        held = 0
        for record in await call_store_in_time(self._journal.unfinished(limit=limit + len(without))):
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
            session = await self._session(taken)
            _compare_providers(taken, session)
            writer.register(session, resumed=taken)
            start(session)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await writer.return_lease(taken)
            raise
        return session

    async def recall(self, request_id: str) -> RequestResult[Any] | None:
        """Return the result of a request that has ended; None for any other."""
        record = await call_store_in_time(self._journal.request(request_id))
        if record is None or record.ending is None:
            return None
        state = (await self._session(record)).snapshot().view.state
        return None if state.ending is None else replace(result_from(state, lambda _: None, None), journaled=True)

    async def _session(self, record: RequestRecord) -> RequestSession:
        """Return a session restored from the journal's facts. Raises `ResumeMismatch`, `StoreDamaged`."""
        agreed = record.agreed
        facts = [each.fact for each in await call_store_in_time(self._journal.facts(record.request_id))]
        if not facts or not isinstance(facts[0], RequestStarted):
            raise ResumeMismatch(f"request {record.request_id} cannot continue: its first fact is not request_started")
        stored: int = agreed.get("history_stored", 0)
        history = await call_store_in_time(self._store.history(record.conversation_id)) if stored else ()
        given = self._given(record)
        options = _options_of(record, given)
        # It is not sent: the facts have the prompt.
        prompt = UserMessage(content="-")
        limits = given.get("limits")
        resumed = Resumed(
            facts=facts,
            history=history[:stored],
            size_bytes=record.size_bytes,
            granted=agreed.get("granted") or {},
            memo=memo_in(agreed),
            seconds=None if limits is None else limits.timeout_seconds,
            instructions=self._instructions_of(given, agreed),
        )
        session = self._make(
            [*messages_from(agreed.get("history")), prompt],
            options.pop("output", None),
            cast("RequestOptions", {**options, "conversation_id": record.conversation_id}),
            record.request_id,
            resumed,
        )
        if record.ending not in ((ending,) if (ending := ending_of(facts[-1])) else (None, "abandoned")):
            what = f"its record has the ending {record.ending}, and its last fact is {facts[-1].type}"
            text = f"the journal of request {record.request_id} is damaged: {what}"
            raise StoreDamaged(text, request_id=record.request_id, seq=len(facts) - 1)
        return session

    def _instructions_of(self, given: Mapping[str, Any], agreed: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return the instructions of the resumed request and those in its journal, if both are text."""
        now, before = given.get("instructions") or self._instructions, agreed.get("instructions")
        return (now, before) if isinstance(now, str) and isinstance(before, str) else None

    def _given(self, record: RequestRecord) -> Mapping[str, Any]:
        """Return the options that the application gives again. Raises `ApplicationError` if its function raises."""
        if self._options is None:
            return {}
        try:
            given = dict(self._options(record))
        except ToolbusError:
            raise
        except Exception as exc:
            raise ApplicationError(f"options raised {type(exc).__name__}: {exc}") from exc
        check_options({name: each for name, each in given.items() if name != "output"}, RequestOptions, "resume")
        return given


def _options_of(record: RequestRecord, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the journal, replaced by those that are `given` now. Raises `ResumeMismatch`."""
    agreed = record.agreed
    options = {**options_in(agreed), "limits": limits_in(agreed)}
    if isinstance(approval := agreed.get("needs_approval"), bool):
        options["needs_approval"] = approval
    wanted = agreed.get("output")
    if wanted and given.get("output") is None:
        raise ResumeMismatch(
            f"request {record.request_id} was asked for a structured output ({wanted}), whose type is not in the "
            "journal; give it: runtime.resume(options=lambda request: {'output': ...})"
        )
    return {**options, **{name: value for name, value in given.items() if value is not None}}


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
