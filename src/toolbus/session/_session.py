"""The actor of a session: its loop of steps and commands, its calls of the model, and its end.

The invariants that it keeps are those of the package's docstring, in `toolbus.session`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, Unpack, cast

import anyio

from .._logs import logger
from .._timers import EARLY_SECONDS
from ..bus import EventBus, Mailbox
from ..core.limits import Budget
from ..core.output import OutputType
from ..core.turn import (
    MODEL,
    NEW,
    AwaitCalls,
    CallModel,
    Elapsed,
    Input,
    ModelFailed,
    OutOfBudget,
    Resume,
    advance,
    pending,
    with_messages,
)
from ..errors import ConfigurationError, LeaseLost, StoreError, StoreUnavailable, ToolbusError
from ..events import (
    ApprovalRequested,
    CancelRequested,
    Event,
    HistoryCompressed,
    MessageAppended,
    ModelResponded,
    RequestCancelled,
    RequestFailed,
    RequestResumed,
    RequestTakenOver,
    RoundStarted,
    StatusChanged,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
    new_id,
)
from ..instrumentation import Work
from ..messages import UserMessage
from ..protocols import ModelRequest, Provider
from ..request_result import RequestResult, result_from
from ..storage import ANSWER_SECONDS, WRITE_SECONDS, Journal
from ._approval_answers import ApprovalAnswers, deny_unheard
from ._context_window import ContextWindow
from ._crash import log_failure, settle_broken
from ._fact_log import LOGGED, WARNINGS, log_fact
from ._handle import SessionHandle
from ._inputs import MessagesLike, ToolsLike, provider_list, split_messages, tool_source
from ._model_call import ModelCall
from ._model_request import Asker, check_together
from ._options import SessionOptions, check_options
from ._snapshot import SessionSnapshot
from ._start import NO_START, RequestBeginning, Resumed, SessionStart, identified, new_state
from ._view import SessionView

__all__ = ["RequestSession"]

_ARBITRATED = frozenset[type[Event]]({ModelResponded, ApprovalRequested, ToolCallCompleted, ToolCallFailed})


class RequestSession(SessionHandle):
    """One request: from a prompt to its `RequestResult`, over the bus.

        session = RequestSession(bus, provider, "Weather in Paris?", tools=[get_weather])
        task_group.start_soon(session.run)
        result = await session.result()

    `provider` is the model, or a sequence of models: the first is asked, and the next one when it stays out of reach.
    `messages` is the user's prompt, or a transcript that ends with the prompt (toolbus messages or a vendor's
    dictionaries; copied, never changed; invalid ones raise `InvalidHistory`). `tools` are tools, their specs or a
    registry, which may change while the request runs. `output` is a type for the answer, such as a pydantic model; then
    `RequestResult.output` is a validated value of that type. `options` are those of `SessionOptions`. `start` is used
    only by other parts of toolbus. Nothing happens before `run`, which is called once, in any task.

    Example:
        from toolbus import EventBus, RequestSession
        from toolbus.testing import ScriptedProvider, text

        session = RequestSession(EventBus(), ScriptedProvider([text("Hello.")]), "Hello?")  # without a runtime
        result = await session.run()
        print(result.text)  # Hello.
    """

    __slots__ = (
        "_answers",
        "_asker",
        "_awaited",
        "_beginning",
        "_begun",
        "_clock",
        "_error",
        "_is_taken_over",
        "_logs",
        "_observed",
        "_scope",
        "_timer",
        "_when_cancelled",
        "_writes_since",
    )

    def __init__(
        self,
        bus: EventBus,
        provider: Provider | Sequence[Provider],
        messages: str | UserMessage | MessagesLike,
        *,
        tools: ToolsLike = (),
        conversation_id: str = "",
        request_id: str = "",
        journal: Journal | None = None,
        output: Any = None,
        start: SessionStart = NO_START,
        **options: Unpack[SessionOptions],
    ) -> None:
        check_options(options, SessionOptions, "RequestSession", beside=_PARAMETERS)
        history, prompt = split_messages(messages)
        request_id = request_id or new_id()
        source = tool_source(tools)
        prompt = identified(prompt, request_id)
        providers = provider_list(provider)
        state = new_state(options, request_id, conversation_id or f"c{request_id}", history, prompt, start.granted)
        state.providers = len(providers)
        state.output = output if output is None or isinstance(output, OutputType) else OutputType(output)
        window = ContextWindow(state, options) if start.window is None else start.window(state)
        window.calibration = start.calibration
        self._asker = Asker(state, providers, options, window)
        view = SessionView(bus, state, providers, source, options, window, self._asker.interceptors, journal, start)
        if start.resumed is None:  # Whoever continues a request checks this; to read one, nothing has to be given.
            check_together(view)
        super().__init__(
            bus,
            state,
            view,
            journal=journal,
            late_results=options.get("late_results") or "event",
            parent_id=start.parent[0] if start.parent else "",
        )
        self._beginning = RequestBeginning(prompt, start)
        hook = options.get("on_approval")
        self._answers = ApprovalAnswers(bus, hook) if callable(hook) else None
        self._error: ToolbusError | None = None  # the error that broke the session, other than one of the model
        self._begun = False
        self._awaited: AwaitCalls | None = None  # the command that the session waits for
        self._is_taken_over = False  # whether another process has the request's lease
        self._writes_since: float | None = None  # on the loop's clock; also after a write that was cut short
        # The reason to leave it with if its task is cancelled; with "", a cancelled request ends.
        self._when_cancelled = ""
        # The scope around the whole work of a request that may be left.
        self._scope: anyio.CancelScope | None = None
        self._observed: Work | None = None  # the instrumentation that the request has entered
        if start.resumed is not None:
            self._continue_from(start.resumed)

    def _continue_from(self, resumed: Resumed) -> None:
        """Continue from where another process has left the request; one that has ended only has its result again.

        Raises `ResumeMismatch`.
        """
        view = self._view
        if resumed.instructions is not None and view.secrets.vault is not None:
            view.secrets.vault.recognise(*resumed.instructions)
        view.window.memo = resumed.memo
        # An input that an earlier process has taken may be given again. The others are facts that the machine has made.
        own = f"{self.request_id}_f"
        self._taken.update((each.event_id, None) for each in resumed.facts if not each.event_id.startswith(own))
        self._beginning.continue_from(resumed, self._state, view.tools)
        view.begun_with = self._state.metadata or {}
        self._kept += resumed.facts
        if self._state.ending is not None:
            self._begun = self._is_accepted = True
            self._result = result_from(self._state, _no_cause, None)

    def snapshot(self) -> SessionSnapshot:
        """Return the session's inner state as of now, for the code that continues, stores or records its request."""
        beginning = self._beginning
        return SessionSnapshot(
            view=self._view,
            prompt=beginning.prompt,
            facts=self._kept,
            earlier=beginning.earlier,
            stored=beginning.stored,
            has_joined=beginning.has_joined,
            result=self._result,
        )

    # ------------------------------------------------------------------------------------------------ the actor

    async def run(self, *, leave_when_cancelled: str = "") -> RequestResult[Any]:
        """Carry out the request in this task, and return its result, also when the request fails.

        If the task is cancelled, the request ends as `cancelled`, and the cancellation is passed on. With a reason in
        `leave_when_cancelled`, a request that has a journal is left for another process instead. Raises
        `ConfigurationError` on a second call, and no other error of its own.
        """
        if self._answers is not None and not (self._begun or self._answers.is_entered):
            async with self._answers:
                return await self.run(leave_when_cancelled=leave_when_cancelled)
        if self._begun:
            raise ConfigurationError("a session runs once; make another one")
        self._begun = True
        self._when_cancelled = self._when_cancelled or leave_when_cancelled
        self._logs = logger.isEnabledFor(logging.INFO)
        by_host = True  # whether the host cancelled the task; assumed until the work has ended otherwise
        try:
            if self._view.instrumentation:
                self._observe()
            mailbox = self._open_mailbox()
            # The clock is read after the mailbox is open, because opening it binds the bus to its event loop.
            self._clock = self._bus.clock
            # Also a request that is left before it lives may have inputs to write.
            self._timer = self._clock.timers.timer()
            if self._journal is None:
                await self._live(mailbox)
            else:
                with anyio.CancelScope() as self._scope:
                    if not self._view.left:
                        await self._live(mailbox)
            by_host = False
        except Exception as exc:  # A bug in toolbus, or a journal that fails, ends the request.
            self._crash(exc)
        finally:
            try:
                if self._state.ending is None:
                    await self._abandon(by_host=by_host)
                elif self._unpublished and self._error is None:  # asyncio has cut short the write of the ending
                    await self._last_step([])
            except Exception as exc:  # Whatever broke, nobody may wait for ever.
                self._crash(exc)
            finally:
                self._finish()
                if self._observed is not None:
                    self._observed.ended(self._result)
                    self._observed.__exit__(None, None, None)
                    self._observed = None
        return cast("RequestResult[Any]", self._result)

    def _observe(self) -> None:
        """Enter the instrumentation. What it carries becomes metadata of the request's events."""
        self._observed = Work("request", self._view.instrumentation, self._view).__enter__()
        if carried := self._observed.carried():
            self._state.metadata = {**(self._state.metadata or {}), **carried}

    async def _live(self, mailbox: Mailbox) -> None:
        """Perform the commands of the turn machine, from the request's beginning to its ending.

        All waits share one scope and one timer, because a scope for each would cost as much as the wait.
        """
        timer = self._timer
        first_step = self._begin
        try:
            while self._state.ending is None or self._unpublished:
                with self._clock.timers.new_scope() as scope:
                    timer.scope = scope
                    await first_step(mailbox)
                    self._accept()  # The journal has the first step, or the request continues without it.
                    while not scope.cancel_called:
                        command = pending(self._state)
                        if isinstance(command, CallModel):
                            await self._call_model(command, mailbox)
                        elif isinstance(command, AwaitCalls):
                            timer.set(self._clock.on_loop(command.deadline))
                            self._awaited = command
                            await mailbox.wait()
                            self._awaited = None
                            await self._step(mailbox.drain(), self._clock())
                        else:
                            break
                first_step = self._on_fired
        finally:
            # A scope in which other code has left a scope open cannot be left, and must not fire later.
            timer.close()

    async def _begin(self, mailbox: Mailbox) -> None:
        await self._beginning.make_ready(self._state, mailbox, self._view.window, self._view.secrets)
        first = await self._beginning.first_input(self._state, self._view, self._asker, self._clock, mailbox)
        await self._step([first, *mailbox.drain()], self._clock())

    async def _on_fired(self, mailbox: Mailbox) -> None:
        """Perform the step after a wait or a write that was cut short by a deadline, or by a cancellation."""
        if self._journal is not None and self._writes_since is not None and self._timer.deadline == math.inf:
            self._check_journal_answers(self._writes_since)
            self._view.model_call = None  # The write was before the model was asked.
            await self._record(self._journal, ())
            return
        now, asked = self._clock(), False
        awaited, self._awaited = self._awaited, None
        # The mailbox is read first, because a result that has come counts more than a deadline.
        while events := mailbox.drain():
            asked = True
            await self._step(events, now)
        view = self._view
        call, view.model_call = view.model_call, None
        if call is not None:
            happened, now = call.elapsed_input(now)
            await self._step([happened], now)
        elif awaited is not None and not asked:
            await self._step([Elapsed()], max(now, awaited.deadline))
        elif self._journal is not None:
            await self._record(self._journal, ())  # what the write that was cut short has not written

    async def _step(self, inputs: Sequence[Input], now: float) -> None:
        """Perform one step of the turn machine: decide and apply, claim our own facts, write, publish."""
        facts, own = self._advance(inputs, now)
        if self._journal is not None:
            await self._record(self._journal, facts)
        elif facts:
            self._publish(facts, own)

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

        After `ANSWER_SECONDS` it is repeated, and the journal says what becomes of it.
        """
        now = self._clock.loop_time()
        if self._writes_since is None:
            self._writes_since = now
        answers_by = self._writes_since + ANSWER_SECONDS
        return answers_by if now < answers_by - EARLY_SECONDS else self._writes_since + WRITE_SECONDS

    def _check_journal_answers(self, since: float) -> None:
        """Raise `StoreUnavailable` if the journal has not even said what becomes of a write since `since`."""
        if self._clock.loop_time() >= since + WRITE_SECONDS - EARLY_SECONDS:
            raise StoreUnavailable(f"the journal did not answer in {WRITE_SECONDS:g} s")

    def _advance(self, inputs: Sequence[Input], now: float, *, follows: bool = True) -> tuple[list[Event], list[Event]]:
        """Decide and apply a step. Return its facts, and our own ones, which are claimed and still to be published.

        This is synchronous, so that no result can arrive between the decision and the claim.
        """
        state, secrets = self._state, self._view.secrets
        if state.waiting or isinstance(inputs[0], Resume):
            # A person's decision, and a call that another process began, are judged by the tools as they are now.
            state.tools = self._asker.known(self._view.tools.specs)
        facts, own = advance(state, inputs, now, follows=follows, mask=None if secrets.vault is None else secrets.mask)
        if self._view.budgets:
            self._spend([*inputs, *own])
        if self._journal is not None and (given := [each for each in inputs if isinstance(each, Event)]):
            made = {fact.event_id for fact in facts}
            self._taken.update((each.event_id, None) for each in given if each.event_id in made)
            self._refuse([each for each in given if each.event_id not in self._taken])
        for fact in own:
            if type(fact) in _ARBITRATED:
                self._arbitrate(fact)
        return facts, own

    def _spend(self, happened: Sequence[Any]) -> None:
        """Count the model calls of a step for the budgets, whether their replies could be used or not."""
        for each in happened:
            if isinstance(each, (ModelFailed, ModelResponded, HistoryCompressed)):
                cost = None if isinstance(each, ModelFailed) else each.cost
                for budget in self._view.budgets:
                    budget.spend(each.usage, cost or 0.0)

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
            calls = fact.message.tool_calls
            self._bus.arbitration.open_calls(mailbox, [call.call_id for call in calls])
        elif mailbox is not None and isinstance(fact, ApprovalRequested):
            self._bus.arbitration.open_approval(mailbox, fact)

    def _publish(self, facts: Sequence[Event], own: Sequence[Event]) -> None:
        """Publish our own facts; keep and log all facts of the step, and publish the status that follows from them."""
        self._kept += facts
        logged = LOGGED if self._logs else WARNINGS
        if not logged.isdisjoint(map(type, facts)):
            for fact in facts:
                if type(fact) in logged:
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
            view.left = ""  # It has ended before it could be left.
        try:
            arbitration.announce_all(own[:-1] if is_last else own)
            if view.status_line is not None or arbitration.wants(StatusChanged, self.request_id):
                view.status.publish_all(facts)
        finally:  # A listener may raise what only the host may handle, for example `KeyboardInterrupt`.
            if is_last:
                arbitration.announce(own[-1])
            if self._mailbox is not None and self._mailbox.unpublished:
                arbitration.announce_all(self._mailbox.published(facts))
        if self._beginning.asked and isinstance(facts[0], RequestResumed):
            # Another process has asked these questions, and nobody has answered them, also not during the write.
            asked = [each for each in self._beginning.asked if arbitration.is_open(self.request_id, each.call_id)]
            for question in asked:
                self._arbitrate(question)
            arbitration.announce_all(asked)
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

    # ------------------------------------------------------------------------------------------------ the model

    async def _call_model(self, command: CallModel, mailbox: Mailbox) -> None:
        """Perform `CallModel`: ask the model in time, then give the outcome to the turn machine."""
        if command.not_before and not await self._pause(command, mailbox):
            return
        call = ModelCall(self._bus, self._state, self._clock, command, self._timer, self._view.status_if_wanted)
        mailbox.on_put = call.on_put
        try:
            # Whatever came before the model is asked is taken first.
            while mailbox.waiting:
                await self._step(mailbox.drain(), self._clock())
            if self._state.phase is not MODEL:
                return
            view = self._view
            view.model_call, self._state.streamed = call, call.texts
            happened = _used_up(view.budgets) or await self._asker.request(command, view.tools, view)
            if (shaped := view.window.shaped()) is not None:
                await self._step([shaped], self._clock())
                happened = _used_up(view.budgets) or happened
            if isinstance(happened, ModelRequest):
                happened = await self._asker.ask(call, happened, view)
            view.model_call = None
        finally:
            mailbox.on_put = None
            call.over = True
        now = self._clock()
        # Each step's write takes time, in which more inputs may come.
        while mailbox.waiting:
            await self._step(mailbox.drain(), now)
        await self._step([happened], now)

    async def _pause(self, command: CallModel, mailbox: Mailbox) -> bool:
        """Wait until the model may be called again. Return False if the request has ended meanwhile."""
        with mailbox.unless_cancelled(self._clock.on_loop(command.not_before)):
            await anyio.sleep_forever()
        while mailbox.waiting:
            await self._step(mailbox.drain(), self._clock())
        return self._state.phase is MODEL

    # ------------------------------------------------------------------------------------------------- the end

    def leave(self, reason: str) -> bool:
        """Stop, and leave the request unfinished in its journal, so that another process can continue it.

        Calls that run are given up here; results that have come are kept. The result is `cancelled` and `resumable`; no
        ending is published. A request that has not begun, or has no journal, is cancelled. A request whose task is
        cancelled at the same moment ends. Returns False if the request has already ended.
        """
        if self._journal is None or self._state.phase is NEW:
            return self.cancel(reason)
        if self._state.ending is not None:
            return False
        self._view.left = reason or "left"
        if self._scope is not None:
            self._scope.cancel()
        return True

    def park(self) -> bool:
        """Leave a request that only waits for inputs, until one comes or its next deadline passes: see `Inbox.park`.

        Returns False, and leaves it running, if it does anything else. Its questions are asked again, and its external
        calls requested again, when it is resumed.
        """
        command = self._awaited
        if command is None or self._unpublished or self._writes_since is not None or not self._view.waits_for_inputs:
            return False
        if self._mailbox is None or len(self._mailbox):
            return False
        self._view.parked = self._state.facts, max(0.0, command.deadline - self._clock())
        return self.leave("parked")

    def lose(self, lost: LeaseLost) -> None:
        """Leave the request, also if its task is cancelled at the same moment: another process has its lease."""
        self._when_cancelled = str(lost)
        if self.leave(str(lost)):
            self._log_failure(lost)

    def _log_failure(self, exc: Exception) -> None:
        """Log the error that ends the request here; once, if another process has the request."""
        if not self._is_taken_over:
            self._is_taken_over = isinstance(exc, LeaseLost)
            log_failure(exc, self.request_id)

    async def _abandon(self, *, by_host: bool) -> None:
        """End a request whose task the host cancelled, or that is left. Awaits nothing but the journal."""
        self._view.model_call = None  # Late readers get the text from the reply that the transcript keeps.
        # A caller who cancels the task has given the request up, also if it is left at the same moment. With
        # `_when_cancelled`, it is the runtime that goes down, and the request is left.
        if by_host:
            why = "" if self._state.phase is NEW else self._when_cancelled
            self._view.left = why and (self._view.left or why)
        if self._view.left:
            try:
                # The write takes time, in which more inputs may come.
                while (inputs := self._drain(SteeringAdded)) or self._unpublished:
                    await self._last_step(inputs)
            except Exception as exc:  # A journal that has refused a write is not used again.
                self._log_failure(exc)
                self._view.left = str(exc)
            finally:  # asyncio may cancel the task once more.
                self._settle_broken()
                self._state.ending = RequestCancelled(**self._state.envelope(self._clock()), reason=self._view.left)
            return
        inputs = self._drain()
        if self._state.phase is NEW:
            inputs.insert(0, self._beginning.given_up(self._state, self._view.tools, self._view.interceptors))
        inputs.append(CancelRequested(request_id=self.request_id, reason="the host cancelled the request"))
        await self._last_step(inputs)

    def _drain(self, *kinds: type[Event]) -> list[Any]:
        """Return the inputs that still count for a request that is given up: results, cancellations and these `kinds`.

        The others are refused, because no call may begin any more. An approval that was decided is asked for again by
        the process that continues the request.
        """
        inputs = [] if self._mailbox is None else self._mailbox.drain()
        counts = (ToolCallCompleted, ToolCallFailed, CancelRequested, *kinds)
        if self._journal is not None:
            self._refuse([each for each in inputs if not isinstance(each, counts)])
        return [each for each in inputs if isinstance(each, counts)]

    async def _last_step(self, inputs: Sequence[Input]) -> None:
        """Write and publish the facts that follow from the last inputs. Raises what the journal raises."""
        facts, own = self._advance(inputs, self._clock(), follows=not self._view.left) if inputs else ([], [])
        if self._journal is None:
            self._publish(facts, own)
            return
        try:
            await self._record_in_time(self._journal, facts)
        except BaseException as exc:
            if not (self._view.left or isinstance(exc, Exception)):
                # asyncio cancels the task once more, and nothing else would publish that the request has ended.
                self._end_unwritten()
            raise

    async def _record_in_time(self, journal: Journal, facts: Sequence[Event]) -> None:
        """Record the last facts, although the task may be cancelled; only time ends that."""
        since = self._clock.loop_time()
        while True:
            with anyio.CancelScope(deadline=min(self._write_until(), since + WRITE_SECONDS), shield=True):
                await self._record(journal, facts, starts_calls=False)
                return
            self._check_journal_answers(since)
            facts = ()

    def _end_unwritten(self) -> None:
        """Publish the ending of a request although its journal has not taken it, and no other unwritten fact (G31)."""
        ending = self._state.ending
        # A request without a mailbox was refused, because its id belongs to another running request and its listeners.
        if ending is not None and self._mailbox is not None:
            self._kept.append(ending)
            self._view.status.publish(ending)
            self._bus.arbitration.announce(ending)

    def _settle_broken(self) -> None:
        """Settle the open calls, without events that would differ from the journal, if there is one."""
        settle_broken(self._bus, self._state, self._mailbox, self._clock(), announces=self._journal is None)

    def _crash(self, exc: Exception) -> None:
        """End the request as `failed`, with its open calls settled, after a fault of the store or a bug in toolbus."""
        # A scope of ours raises `RuntimeError` when it is left while another one is still open inside it.
        if self._is_ending_published and isinstance(exc, RuntimeError):
            self._view.report_left_open()
            return
        self._log_failure(exc)
        state, fails = self._state, isinstance(exc, StoreError) and self._journal is not None
        # Any process may continue a request from the facts that its journal has.
        self._view.left = str(exc) if fails and state.facts else ""
        self._clock = self._bus.clock  # The session may have broken before it was set.
        self._settle_broken()
        self._error = self._masked_error(exc)
        envelope = state.envelope(self._clock())
        state.ending = RequestFailed(**envelope, reason=self._error.code, error=str(self._error), usage=state.usage)
        # After a lost lease, another process carries out the request and publishes its ending.
        if not isinstance(exc, LeaseLost):
            self._end_unwritten()

    def _finish(self) -> None:
        mailbox, cause = self._mailbox, _no_cause
        if mailbox is not None:
            self._bus.arbitration.close_mailbox(mailbox)
            # Without a journal, inputs were broadcast when they came.
            if self._journal is not None:
                self._refuse(mailbox.drain())
                self._bus.arbitration.announce_all(mailbox.close())
            # The result holds the mailbox's cause; references to the session would keep the session alive.
            mailbox.view = mailbox.masked = mailbox.on_trouble = None
            cause = mailbox.cause
        error = self._error or self._beginning.error or self._asker.error
        self._result = result_from(self._state, cause, error)
        # An ending whose write was cut short is in the journal, or is yet to be written there.
        self._result.resumable = bool(self._view.left or (self._unpublished and self._error is None))
        if self._view.left:
            if self._is_taken_over and self._bus.arbitration.wants(RequestTakenOver, self.request_id):
                self._bus.arbitration.announce(RequestTakenOver(**self._state.envelope(self._clock())))
            # No ending is published that would close them.
            self._bus.arbitration.close_subscriptions(self.request_id)
            if self._view.status_line is not None:
                self._view.status_line.close()
        self._wake()
        if self._view.call_above is not None:
            self._view.report_waiting()


def _no_cause(_call_id: str) -> None:
    """Return no exception: the exceptions of handlers are in no journal."""


def _used_up(budgets: Sequence[Budget]) -> OutOfBudget | None:
    for each in budgets:
        if bound := each.used_up:
            return OutOfBudget(f"budget.{bound}")
    return None


# The names of a session's parameters, without the options of `SessionOptions`.
_PARAMETERS = ("provider", "messages", *(RequestSession.__init__.__kwdefaults__ or ()))
