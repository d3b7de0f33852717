"""The requests of a store, restored from their facts: to continue them, to return their results, or to read along.

Options that are data come from the journal; functions and objects (deps, tools, a type of output) are given again by
the application. Knows sessions and stores. Must not know leases, nor the runtime, which gives it `make`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import anyio

from .._option_checks import Rule, check, is_async, or_none, shown, takes
from ..core.approval import OpenQuestions
from ..core.result_notes import late_note
from ..core.turn import apply, with_messages
from ..errors import (
    ApplicationError,
    ProtocolViolation,
    ResumeMismatch,
    StoreDamaged,
    ToolbusError,
    UnknownRequest,
)
from ..events import (
    ApprovalRequested,
    Event,
    RequestStarted,
    TerminalEvent,
    ToolCallFailed,
    ToolCallLate,
    new_id,
)
from ..messages import AssistantMessage, Message, UserMessage
from ..request_result import RequestResult
from ..session import Instructions, RequestOptions, RequestSession, Resumed, check_options
from ..storage import WRITE_SECONDS, JournalStore, RequestRecord, Store, ending_of
from ._agreed_options import limits_in, memo_in, messages_from, options_in
from ._store_calls import call_store_in_time

_OPTIONS = or_none(
    Rule(
        lambda given: takes(given, 1) and not is_async(given),
        "pass a function that takes the record of a request, such as lambda request: {'output': Answer}",
    )
)
_NOTE_SECONDS = 0.1  # between two attempts to write a note, while somebody else does
OptionsFor: TypeAlias = Callable[[RequestRecord], Mapping[str, Any]]
"""A function that returns the options which a request gets again: those of `Runtime.run`, `output` included."""

Make: TypeAlias = Callable[[Sequence[Message], Any, RequestOptions, str, Resumed], RequestSession]
"""A function that makes a session of messages, an output type, options, a request id, and the facts so far."""


@dataclass(slots=True, frozen=True)
class Restored:
    """A request as its journal has it: a session that has not begun, with all facts applied."""

    record: RequestRecord
    session: RequestSession
    facts: Sequence[Event]

    def check_output(self) -> None:
        """Raise `ResumeMismatch` if the request was asked for an output whose type was not given again."""
        wanted = self.record.agreed.get("output")
        if wanted and self.session.snapshot().view.state.output is None:
            raise ResumeMismatch(
                f"request {self.record.request_id} was asked for a structured output ({wanted}), whose type is not in "
                "the journal; pass it to resume, recall or request: options=lambda request: {'output': ...}"
            )

    def check_ending(self) -> None:
        """Raise `StoreDamaged` if the record, which does not change any more, contradicts the last fact."""
        record, last = self.record, self.facts[-1]
        if record.ending not in ((ending,) if (ending := ending_of(last)) else (None, "abandoned")):
            what = f"its record has the ending {record.ending}, and its last fact is {last.type}"
            text = f"the journal of request {record.request_id} is damaged: {what}"
            raise StoreDamaged(text, request_id=record.request_id, seq=len(self.facts) - 1)


class StoredRequests:
    """The requests of a store. `make` makes the session of one.

    `instructions` are those of the runtime, and `options` are as for `Runtime.resume`.
    """

    def __init__(
        self,
        store: Store,
        journal: JournalStore,
        make: Make,
        options: OptionsFor | None,
        instructions: Instructions | None = None,
    ) -> None:
        self.journal = journal
        self._store = store
        self._make = make
        self._options = check("options", options, _OPTIONS)
        self._instructions = instructions

    async def record(self, request_id: str) -> RequestRecord | None:
        """Return the store's record of a request, or None for an unknown one. Raises `StoreError` in time."""
        return await call_store_in_time(self.journal.request(request_id))

    async def recall(self, request_id: str) -> RequestResult[Any] | None:
        """Return the result of a request that has ended; None for any other, and for one without an ending."""
        record = await self.record(request_id)
        if record is None or record.ending is None:
            return None
        found = await self.restore(record)
        found.check_output()
        found.check_ending()
        result = found.session.snapshot().result
        return None if result is None else replace(result, journaled=True)

    async def keep_late(self, answer: TerminalEvent | ToolCallLate) -> bool:
        """Put an answer to a background call, which came after its request has ended, before the next turn.

        It becomes a note in the stored conversation, once. Returns False, and does nothing, if `answer` is not for a
        call that was given up at the end of a request, or if the conversation was deleted. Raises what
        `restore` raises.
        """
        record = await self.record(answer.request_id)
        if record is None or record.ending is None:
            return False
        view = (await self.restore(record)).session.snapshot().view
        state, answer = view.state, view.secrets.mask(answer)
        calls = [each for current in state.rounds for each in current.calls if each.call.call_id == answer.call_id]
        spec = state.tools.get(answer.name)
        if not calls or calls[0].call.name != answer.name or not (spec is None or spec.external):
            return False
        given_up, call = calls[0].outcome, calls[0].call
        is_own = given_up is not None and given_up.event_id.startswith(f"{answer.request_id}_f")
        if not (calls[0].is_background and is_own and isinstance(given_up, ToolCallFailed)):
            return False
        note, writer = late_note(call.call_id, call.name, call.arguments, answer), new_id()
        # A lock: one process at a time looks for the note and writes it, in two calls. No conversation has this id.
        lock = note.message_id, writer, writer, 2 * WRITE_SECONDS
        while True:
            while not await call_store_in_time(self.journal.take_turn(*lock)):  # noqa: ASYNC110 -- it may be elsewhere
                await anyio.sleep(_NOTE_SECONDS)
            history = await call_store_in_time(self._store.history(record.conversation_id))
            # The conversation may have been deleted, and begun again under its id.
            asked = [each for each in history if isinstance(each, AssistantMessage) and call in each.tool_calls]
            is_new = bool(asked) and all(each.message_id != note.message_id for each in history)
            # A process that was suspended since may have lost the lock.
            if not is_new or await call_store_in_time(self.journal.renew_turn(*lock)):
                break
        if is_new:
            remembered = self._store.remember(record.conversation_id, [note], request_id=record.request_id)
            await call_store_in_time(remembered)
        await call_store_in_time(self.journal.return_turn(note.message_id, writer))
        return bool(asked)

    async def restore(self, record: RequestRecord, given: Mapping[str, Any] | None = None) -> Restored:
        """Return a request restored from its facts, with the options that are `given` again, by default `given_again`.

        Raises `ResumeMismatch`, `ApplicationError` and `StoreError`; `UnknownRequest` if it is deleted meanwhile.
        """
        agreed = record.agreed
        facts = [each.fact for each in await call_store_in_time(self.journal.facts(record.request_id))]
        stored: int = agreed.get("history_stored", 0)
        history = await call_store_in_time(self._store.history(record.conversation_id)) if stored else ()
        if (not facts or len(history) < stored) and await self.record(record.request_id) is None:
            raise UnknownRequest(f"the store has no request {record.request_id!r}")
        if not facts or not isinstance(facts[0], RequestStarted):
            raise ResumeMismatch(f"request {record.request_id} cannot continue: its first fact is not request_started")
        given = self.given_again(record) if given is None else given
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
        return Restored(record, session, facts)

    def _instructions_of(self, given: Mapping[str, Any], agreed: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return the instructions of the restored request and those in its journal, if both are text."""
        now, before = given.get("instructions") or self._instructions, agreed.get("instructions")
        return (now, before) if isinstance(now, str) and isinstance(before, str) else None

    def given_again(self, record: RequestRecord) -> Mapping[str, Any]:
        """Return the options that the application gives again.

        Raises the `ToolbusError` by which its function leaves the request to others, and `ApplicationError` for any
        other exception.
        """
        if self._options is None:
            return {}
        try:
            given = self._options(record)
        except ToolbusError:
            raise
        except Exception as exc:
            raise ApplicationError(f"options raised {type(exc).__name__}: {exc}") from exc
        if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] -- untyped callers
            raise ApplicationError(
                f"options returned {shown(given)}; return a dictionary, such as {{'output': Answer}}"
            )
        check_options({name: each for name, each in given.items() if name != "output"}, RequestOptions, "resume")
        return given


class ReadAlong:
    """One request that another process runs, or has run, as its journal grows. For one reader at a time."""

    def __init__(self, requests: StoredRequests, request_id: str) -> None:
        self._requests = requests
        self._request_id = request_id
        self._restored: Restored | None = None
        self._questions = OpenQuestions()
        self.has_ended = False

    async def read(self) -> list[Event]:
        """Return the facts since the last call, and the `MessageAppended` events derived from them; often none.

        `has_ended` is true once the request's last fact was returned, or if it ended without one. Cancellation loses
        nothing: the next call returns the same. Raises `UnknownRequest`, and what `StoredRequests.restore` raises.
        """
        if self._restored is None:
            record = await self._requests.record(self._request_id)
            if record is None:
                raise UnknownRequest(f"the store has no request {self._request_id!r}")
            self._restored = await self._requests.restore(record)
            return self._take(self._restored.facts, since_round=0)
        state = self._restored.session.snapshot().view.state
        stored = await call_store_in_time(self._requests.journal.facts(self._request_id, start=state.facts))
        if not stored:
            record = await self._requests.record(self._request_id)
            self.has_ended = record is None or record.ending == "abandoned"
            return []
        rounds, facts = len(state.rounds), [each.fact for each in stored]
        try:
            for fact in facts:
                apply(state, fact)
        except ProtocolViolation as exc:
            at = f"fact {state.facts} of request {self._request_id}"
            raise ResumeMismatch(f"{at} cannot be applied: {exc}") from exc
        return self._take(facts, since_round=max(0, rounds - 1))

    @property
    def questions(self) -> tuple[ApprovalRequested, ...]:
        """The questions that nobody has answered, as far as was read, in the order of asking."""
        return tuple(self._questions)

    def _take(self, facts: Sequence[Event], *, since_round: int) -> list[Event]:
        assert self._restored is not None
        self.has_ended = ending_of(facts[-1]) is not None or self._restored.record.ending == "abandoned"
        for fact in facts:
            self._questions.feed(fact)
        return with_messages(self._restored.session.snapshot().view.state, facts, since_round=since_round)


def _options_of(record: RequestRecord, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the journal, replaced by those that are `given` now."""
    agreed = record.agreed
    options = {**options_in(agreed), "limits": limits_in(agreed)}
    if isinstance(approval := agreed.get("needs_approval"), bool):
        options["needs_approval"] = approval
    return {**options, **{name: value for name, value in given.items() if value is not None}}
