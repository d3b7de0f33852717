"""Requests that another process, or another runtime, has begun: found in the store, and brought to where they stood.

Belongs to `toolbus.runtime`. What was agreed for a request as data is in the journal; what was a function or an object
(deps, tools, a type of output) the application gives again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from ._agreement import limits_in, memo_in, messages_from, options_in, provider_name
from ._journal_writer import Keeper
from ._store_calls import answered

__all__ = ["OptionsFor", "ResumeProblem", "Resumption", "Unfinished"]

OptionsFor: TypeAlias = Callable[[RequestRecord], Mapping[str, Any]]
"""What the application gives a request again: the options of `Runtime.run`, `output` among them."""

Make: TypeAlias = Callable[[Sequence[Message], Any, RequestOptions, str, Resumed], RequestSession]


@dataclass(slots=True, kw_only=True, frozen=True)
class ResumeProblem:
    """A request that cannot go on, and why. It is left as it is, for another attempt."""

    request: RequestRecord
    error: ToolbusError


@dataclass(slots=True, kw_only=True, frozen=True)
class Resumption:
    """What `Runtime.resume` has found. Iterating gives the sessions that go on.

    `held` is how many unfinished requests somebody else took meanwhile.
    """

    sessions: tuple[RequestSession, ...] = ()
    problems: tuple[ResumeProblem, ...] = ()
    held: int = 0

    def __iter__(self) -> Iterator[RequestSession]:
        return iter(self.sessions)

    def __len__(self) -> int:
        return len(self.sessions)


class Unfinished:
    """The requests of a store, as a runtime finds them. `make` makes a session of messages, output type and options.

    `instructions` are those of the runtime, and `options` are as for `Runtime.resume`.
    """

    def __init__(
        self, store: Store, keeper: Keeper, make: Make, options: OptionsFor | None, instructions: Instructions | None
    ) -> None:
        self._instructions = instructions
        self._store = store
        self._keeper = keeper
        self._journal = keeper.store
        self._make = make
        self._options = options

    async def go_on(self, take_up: Callable[[RequestSession], None], limit: int) -> Resumption:
        """Take the leases that are free, and hand each request's session to `take_up`, which may refuse it."""
        sessions: list[RequestSession] = []
        problems: list[ResumeProblem] = []
        held = 0
        for record in await answered(self._journal.unfinished(limit=limit)):
            try:
                session = await self._taken_up(record, take_up)
            except ToolbusError as exc:
                stops = exc.retryable and isinstance(exc, StoreError)
                if stops and not sessions:
                    raise  # it is not the request's: the others can go on no more than this one
                logger.warning("the request cannot go on: %s", exc, extra={"request_id": record.request_id})
                problems.append(ResumeProblem(request=record, error=exc))
                if stops:
                    break
                continue
            if session is None:
                held += 1
            else:
                sessions.append(session)
        return Resumption(sessions=tuple(sessions), problems=tuple(problems), held=held)

    async def _taken_up(
        self, record: RequestRecord, take_up: Callable[[RequestSession], None]
    ) -> RequestSession | None:
        """The session that goes on with a request; None where somebody else has it. What fails gives the lease back."""
        keeper = self._keeper
        if keeper.keeps(record.request_id) or keeper.owes(record.request_id):
            # This runtime itself, whose lease has run out: its next renewal, or what it has still to write, is due.
            return None
        taken = None
        with anyio.CancelScope(shield=True):  # bounded; a lease that nobody knew of would be renewed too
            taken = await keeper.take(record.request_id)
        if taken is None:
            return None
        try:
            session = await self._session(taken)
            _compare_providers(taken, session)
            keeper.keep(session, resumed=taken)
            take_up(session)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await keeper.give_up(taken)
            raise
        return session

    async def recall(self, request_id: str) -> RequestResult[Any] | None:
        """The result of a request that has ended."""
        record = await answered(self._journal.request(request_id))
        if record is None or record.ending is None:
            return None
        state = (await self._session(record)).snapshot().state
        return None if state.ending is None else replace(result_from(state, lambda _: None, None), journaled=True)

    async def _session(self, record: RequestRecord) -> RequestSession:
        """A session that stands where the journal's facts end. Raises `ResumeMismatch`, `StoreDamaged`."""
        agreed = record.agreed
        facts = [each.fact for each in await answered(self._journal.facts(record.request_id))]
        if not facts or not isinstance(facts[0], RequestStarted):
            raise ResumeMismatch(f"request {record.request_id} cannot go on: its first fact is not request_started")
        stored: int = agreed.get("history_stored", 0)
        history = await answered(self._store.history(record.conversation_id)) if stored else ()
        given = self._given(record)
        options = _options_of(record, given)
        prompt = UserMessage(content=facts[0].prompt or "-")  # in the facts as it was
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
        """Return the instructions of now and of before, where both are text."""
        now, before = given.get("instructions") or self._instructions, agreed.get("instructions")
        return (now, before) if isinstance(now, str) and isinstance(before, str) else None

    def _given(self, record: RequestRecord) -> Mapping[str, Any]:
        """What the application gives the request again. Raises `ApplicationError` for what its function raises."""
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
    """The options with which a request goes on: as agreed, but for what is `given` now. Raises `ResumeMismatch`."""
    agreed = record.agreed
    options = {**options_in(agreed), "limits": limits_in(agreed)}
    if isinstance(approval := agreed.get("approval"), bool):
        options["approval"] = approval
    wanted = agreed.get("output")
    if wanted and given.get("output") is None:
        raise ResumeMismatch(
            f"request {record.request_id} was asked for a structured output ({wanted}), whose type is not in the "
            "journal; give it: runtime.resume(options=lambda request: {'output': ...})"
        )
    return {**options, **{name: value for name, value in given.items() if value is not None}}


def _compare_providers(record: RequestRecord, session: RequestSession) -> None:
    """A request may go on with other models; not with one that is not there."""
    before: list[str] = record.agreed.get("providers") or []
    found = session.snapshot()
    now, position = [provider_name(each) for each in found.view.providers], found.state.provider
    if position >= len(now):
        raise ResumeMismatch(
            f"request {record.request_id} had turned to {before[-1] if before else 'another provider'}, the one with "
            f"number {position + 1} of its providers, and there are {len(now)} now: give them all"
        )
    if before and before != now:
        logger.warning(
            "the request was begun with %s, and goes on with %s",
            ", ".join(before),
            ", ".join(now),
            extra={"request_id": record.request_id},
        )
