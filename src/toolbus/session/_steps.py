"""The steps of a session: decided by the turn machine, written to the journal, then published.

The actor, which derives from this class, says when a step is to be made, and of which inputs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

import anyio

from .._logs import logger
from .._timers import EARLY_SECONDS, Timer
from ..clock import SessionClock
from ..core.turn import Input, advance, with_messages
from ..errors import StoreUnavailable
from ..events import (
    ApprovalRequested,
    Event,
    HistoryCompressed,
    MessageAppended,
    ModelResponded,
    ModelRetrying,
    RequestResumed,
    RoundStarted,
    StatusChanged,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from ..failures import log_exception
from ..request_result import OutputT
from ..storage import TIMEOUT_SECONDS, WRITE_SECONDS, Journal
from ._approval_answers import ApprovalAnswers, deny_unheard
from ._fact_log import log_fact
from ._handle import SessionHandle
from ._model_request import Asker
from ._start import RequestBeginning

_CALL_ID = attrgetter("call_id")
_ARBITRATED = frozenset[type[Event]]({ModelResponded, ApprovalRequested, ToolCallCompleted, ToolCallFailed})


class SessionSteps(SessionHandle[OutputT]):
    """The part of a `RequestSession` that makes its steps."""

    __slots__ = ("_answers", "_asker", "_beginning", "_clock", "_logged", "_timer", "_writes_since")

    _answers: ApprovalAnswers | None
    _asker: Asker
    _beginning: RequestBeginning
    _clock: SessionClock
    _logged: frozenset[type[Event]]  # the types of facts that may have a log line
    _timer: Timer
    _writes_since: float | None  # on the loop's clock; also after a write that was cut short

    async def _step(self, inputs: Sequence[Input], now: float) -> None:
        """Perform one step of the turn machine: decide and apply, claim our own facts, write, publish."""
        facts, own = self._advance(inputs, now)
        if self._journal is not None:
            await self._record(self._journal, facts)
        elif facts:
            self._publish(facts, own)

    async def _last_step(self, inputs: Sequence[Input]) -> None:
        """Write and publish the facts that follow from the last inputs. Raises what the journal raises."""
        facts, own = self._advance(inputs, self._clock(), follows=not self._view.released) if inputs else ([], [])
        if self._journal is None:
            self._publish(facts, own)
            return
        try:
            await self._record_in_time(self._journal, facts)
        except BaseException as exc:
            if not (self._view.released or isinstance(exc, Exception)):
                # asyncio cancels the task once more, and nothing else would publish that the request has ended.
                self._end_unwritten()
            raise

    def _advance(self, inputs: Sequence[Input], now: float, *, follows: bool = True) -> tuple[list[Event], list[Event]]:
        """Decide and apply a step. Return its facts, and our own ones, which are claimed and still to be published.

        This is synchronous, so that no result can arrive between the decision and the claim.
        """
        state, secrets = self._state, self._view.secrets
        if state.waiting:  # A person's decision is judged by the tools as they are now.
            state.tools = self._asker.known(self._view.tools, self._view)
        facts, own = advance(state, inputs, now, follows=follows, mask=None if secrets.vault is None else secrets.mask)
        if state.raised:
            self._log_raised()
        if self._view.budgets:
            self._spend(own)
        # Without a journal, inputs are published when they come. Those of a request that was refused have no effect.
        refuses = self._journal is not None or self._beginning.error is not None
        if refuses and (given := [each for each in inputs if isinstance(each, Event)]):
            made = {fact.event_id for fact in facts}
            self._taken.update((each.event_id, None) for each in given if each.event_id in made)
            self._refuse([each for each in given if each.event_id not in self._taken])
        for fact in own:
            if type(fact) in _ARBITRATED:
                self._arbitrate(fact)
        return facts, own

    def _log_raised(self) -> None:
        """Log the bugs in the application's validators and policies that the step has met."""
        state = self._state
        raised, state.raised = state.raised, ()
        for call, is_policy, cause in raised:
            ids = {"request_id": state.request_id}
            if call is None:
                text, words = "request %s: a validator of the output failed", (state.request_id,)
            else:
                ids["call_id"], words = call.call_id, (call.call_id, call.name)
                text = "call %s: a validator of tool %s failed"
                if is_policy:
                    text = "call %s: needs_approval of tool %s failed, so a person has to approve the call"
            log_exception(logger, logging.ERROR, text, *words, cause=cause, ids=ids)

    def _spend(self, facts: Sequence[Event]) -> None:
        """Count the model calls of a step for the budgets, whether their replies could be used or not."""
        for fact in facts:
            if isinstance(fact, (ModelResponded, ModelRetrying, HistoryCompressed)):
                for budget in self._view.budgets:
                    budget.spend(fact.usage, fact.cost or 0.0)

    def _refuse(self, inputs: Sequence[Event]) -> None:
        """Publish a `DeadLetter` for each input that the request does not take."""
        for each in inputs:
            self._bus.arbitration.dead_letter(each, "the request had no use for it any more")

    def _arbitrate(self, fact: Event) -> None:
        """Open a reply's calls or an approval on the bus, or claim a call that the turn machine has settled itself."""
        mailbox = self._mailbox
        if isinstance(fact, (ToolCallCompleted, ToolCallFailed)):
            spec = self._state.tools.get(fact.name)
            # The late result of background work is what the user waits for.
            late = None if spec is None or not spec.background else "next_turn"
            self._bus.arbitration.claim(fact.request_id, fact.call_id, late=late)
        elif mailbox is not None and isinstance(fact, ModelResponded):
            self._bus.arbitration.open_calls(mailbox, map(_CALL_ID, fact.message.tool_calls))
        elif mailbox is not None and isinstance(fact, ApprovalRequested):
            self._bus.arbitration.open_approval(mailbox, fact)

    # ---------------------------------------------------------------------------------------------------------- writing

    async def _record(self, journal: Journal, facts: Sequence[Event], *, starts_calls: bool = True) -> None:
        """Write a step, then publish it as it was written, inputs included (G31).

        Steps whose write was cut short are written and published before it. Without `starts_calls`, no
        `ToolCallRequested` is published, so that no call begins any more.
        """
        if facts:
            self._unpublished.append(facts)
        while self._unpublished:
            await self._write(journal, self._unpublished[0])
            written = self._unpublished.pop(0)
            own = written if starts_calls else [each for each in written if not isinstance(each, ToolCallRequested)]
            self._publish(written, own)
        self._wake_recorded()

    async def _record_in_time(self, journal: Journal, facts: Sequence[Event]) -> None:
        """Record the last facts, although the task may be cancelled; only time ends that."""
        since = self._clock.loop_time()
        while True:
            with anyio.CancelScope(deadline=min(self._write_until(), since + WRITE_SECONDS), shield=True):
                await self._record(journal, facts, starts_calls=False)
                return
            self._check_journal_answers(since)
            facts = ()

    async def _write(self, journal: Journal, facts: Sequence[Event]) -> None:
        """Append facts to the journal. A write that a cancellation cuts short is repeated with the next step."""
        state, timer = self._state, self._timer
        before = timer.deadline
        timer.set(self._write_until())
        seq = state.facts - sum(map(len, self._unpublished))
        size_bytes = await journal.append(self.request_id, seq, facts)
        self._writes_since = None
        timer.set(before)
        if size_bytes is not None:
            state.journal_bytes = size_bytes

    def _write_until(self) -> float:
        """Return the time on the loop's clock until which the write that begins, or is repeated, may take.

        After `TIMEOUT_SECONDS` it is repeated, and the journal says what becomes of it.
        """
        now = self._clock.loop_time()
        if self._writes_since is None:
            self._writes_since = now
        answers_by = self._writes_since + TIMEOUT_SECONDS
        return answers_by if now < answers_by - EARLY_SECONDS else self._writes_since + WRITE_SECONDS

    def _check_journal_answers(self, since: float) -> None:
        """Raise `StoreUnavailable` if the journal has not even said what becomes of a write since `since`."""
        if self._clock.loop_time() >= since + WRITE_SECONDS - EARLY_SECONDS:
            raise StoreUnavailable(f"the journal did not answer in {WRITE_SECONDS:g} s")

    # ------------------------------------------------------------------------------------------------------- publishing

    def _publish(self, facts: Sequence[Event], own: Sequence[Event]) -> None:
        """Publish our own facts; keep and log all facts of the step, and publish the status that follows from them."""
        self._kept += facts
        if not self._logged.isdisjoint(map(type, facts)):
            for fact in facts:
                if type(fact) in self._logged:
                    log_fact(fact, self._state)
        view, arbitration = self._view, self._bus.arbitration
        unheard = self._unheard(facts) if self._state.waiting else ()
        if arbitration.wants(MessageAppended, self.request_id):
            # The state may be further than these facts, by steps that are still to be published.
            begun = [*map(type, chain(facts, *self._unpublished))].count(RoundStarted)
            inputs = set(map(id, facts)).difference(map(id, own))
            # Calls that may not begin any more are not published, and the tickets of those in the background are.
            events = with_messages(self._state, facts, since_round=max(0, self._state.round - begun))
            own = [each for each in events if id(each) not in inputs]
        ending = self._state.ending  # It is published last, after the status.
        is_last = self._is_ending_published = ending is not None and bool(own) and own[-1] is ending
        if is_last:
            view.released = ""  # It has ended before it could be left.
        try:
            arbitration.announce(*(own[:-1] if is_last else own))
            if view.status_line is not None or arbitration.wants(StatusChanged, self.request_id):
                view.status.publish(facts)
        finally:  # A listener may raise what only the host may handle, for example `KeyboardInterrupt`.
            if is_last:
                arbitration.announce(own[-1])
            if self._mailbox is not None and self._mailbox.unpublished:
                arbitration.announce(*self._mailbox.published(facts))
        if self._beginning.asked and isinstance(facts[0], RequestResumed):
            # Another process has asked these questions, and nobody has answered them, also not during the write.
            asked = [each for each in self._beginning.asked if arbitration.is_open(self.request_id, each.call_id)]
            for question in asked:
                self._arbitrate(question)
            arbitration.announce(*asked)
            facts = [*facts, *asked]
        if self._answers is not None:
            self._answers.take(facts)
        for question in unheard:
            self._bus.publish(deny_unheard(question))
        if view.call_above is not None:
            view.report_waiting()

    def _unheard(self, facts: Sequence[Event]) -> Sequence[ApprovalRequested]:
        """Return the questions among `facts` that nobody will hear when they are published, and nobody can find later.

        Nobody looks a second time: where a listener goes away afterwards, its question waits until its time is over.
        """
        if self._journal is not None or self._view.options.get("on_approval") is not None:
            return ()
        if self._bus.arbitration.wants(ApprovalRequested, self.request_id):
            return ()
        return [each for each in facts if isinstance(each, ApprovalRequested)]

    def _end_unwritten(self) -> None:
        """Publish the ending of a request although its journal has not taken it, and no other unwritten fact (G31)."""
        ending = self._state.ending
        # A request without a mailbox was refused, because its id belongs to another running request and its listeners.
        if ending is not None and self._mailbox is not None:
            self._kept.append(ending)
            self._view.status.publish((ending,))
            self._bus.arbitration.announce(ending)
