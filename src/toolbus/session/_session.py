"""The request session: one actor for one request.

It performs what the turn machine (`core.turn`) decides and decides nothing itself: it calls the model, opens calls on
the bus, waits with one timer, writes facts to the journal before it publishes them. It is the only writer of its
request's facts. It knows the bus, and no runtime, dispatcher or vendor.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, Unpack, cast

import anyio

from .._logs import LOGGED, WARNINGS, log_fact, logger
from ..bus import EventBus, Mailbox
from ..core.output import OutputType
from ..core.turn import MODEL, NEW, AwaitCalls, CallModel, Elapsed, Input, ModelFailed, Resume, advance, pending
from ..errors import ConfigurationError, LeaseLost, StoreError, StoreUnavailable, ToolbusError
from ..events import (
    ApprovalRequested,
    CancelRequested,
    Event,
    ModelResponded,
    RequestCancelled,
    RequestFailed,
    RequestResumed,
    StatusChanged,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
    new_id,
)
from ..messages import AssistantMessage
from ..protocols import Provider
from ..request_result import RequestResult, result_from
from ..storage import Journal
from ._asker import Asker, check_together
from ._context_window import ContextWindow
from ._crash import log_failure, settle_broken
from ._handle import SessionHandle
from ._inputs import MessagesLike, ToolsLike, provider_list, split_messages, tool_source
from ._model_call import ModelCall
from ._options import SessionOptions, check_options
from ._snapshot import SessionSnapshot
from ._start import NO_START, Beginning, Resumed, SessionStart, identified, new_state
from ._view import SessionView

__all__ = ["RequestSession"]

_WRITE_SECONDS = 5.0  # the time that a store has to report a fault (G21)
_ARBITRATED = frozenset[type[Event]]({ModelResponded, ApprovalRequested, ToolCallCompleted, ToolCallFailed})


class RequestSession(SessionHandle):
    """One request: from a prompt to its `RequestResult`, over the bus.

        session = RequestSession(bus, provider, "Weather in Paris?", tools=[get_weather])
        task_group.start_soon(session.run)
        result = await session.result()

    `provider` is the model, or a sequence of them: the first is asked, and the next when one stays out of reach.
    `messages` is the user's prompt, or a transcript that ends with it (toolbus messages or a vendor's dictionaries;
    copied, never changed; invalid ones raise `InvalidHistory`). `tools` are tools, their specs or a registry, which may
    change while the request runs. `output` is a type for the answer, such as a pydantic model: then
    `RequestResult.output` is a validated value of it. `options` are those of `SessionOptions`. `start` is for the other
    parts of toolbus. Nothing happens before `run`, which is called once, in any task.
    """

    __slots__ = (
        "_asker",
        "_beginning",
        "_begun",
        "_clock",
        "_error",
        "_leaves",
        "_logs",
        "_scope",
        "_start",
        "_when_cancelled",
    )

    def __init__(
        self,
        bus: EventBus,
        provider: Provider | Sequence[Provider],
        messages: str | MessagesLike,
        *,
        tools: ToolsLike = (),
        conversation_id: str = "",
        request_id: str = "",
        journal: Journal | None = None,
        output: Any = None,
        raise_on_failure: bool = False,
        start: SessionStart = NO_START,
        **options: Unpack[SessionOptions],
    ) -> None:
        check_options(options, SessionOptions, "RequestSession")
        history, prompt = split_messages(messages)
        request_id = request_id or new_id()
        source = tool_source(tools)
        prompt = identified(prompt, request_id)
        providers = provider_list(provider)
        state = new_state(options, request_id, conversation_id or f"c{request_id}", history, prompt)
        state.providers = len(providers)
        state.output = None if output is None else OutputType(output)
        if start.granted is not None:
            state.granted = start.granted  # An approval to be remembered holds for all of the conversation.
        check_together(state, source.specs, providers)
        window = ContextWindow(state, options) if start.window is None else start.window(state)
        window.calibration = start.calibration
        self._asker = Asker(state, providers, options, window)
        view = SessionView(bus, state, providers, source, options, window, self._asker.interceptors, journal, start)
        super().__init__(
            bus,
            state,
            view,
            journal=journal,
            raise_on_failure=raise_on_failure,
            late_results=options.get("late_results", "event"),
            parent_id=start.parent[0] if start.parent else "",
        )
        self._beginning = Beginning(prompt, start)
        self._error: ToolbusError | None = None  # what broke, other than the model
        self._begun = False
        self._leaves = ""  # why the request is left for another process to continue it
        self._when_cancelled = ""  # the same, for when its task is cancelled; else it ends then
        self._scope: anyio.CancelScope | None = None  # around all that it does, where it may be left
        self._logs = True  # whether lines of INFO are written, as of the beginning
        if start.resumed is not None:
            self._continue_from(start.resumed)

    def _continue_from(self, resumed: Resumed) -> None:
        """Begin where another process has left the request. Raises `ResumeMismatch`."""
        view = self._view
        if resumed.instructions is not None and view.secrets.vault is not None:
            view.secrets.vault.recognise(*resumed.instructions)
        view.window.memo = resumed.memo
        self._beginning.continue_from(resumed, self._state, view.tools)

    def snapshot(self) -> SessionSnapshot:
        """Return the inside of the session as of now, for those who continue, keep or record its request."""
        beginning = self._beginning
        return SessionSnapshot(
            state=self._state,
            view=self._view,
            earlier=beginning.earlier,
            stored=beginning.stored,
            left=self._leaves,
            result=self._result,
        )

    # ------------------------------------------------------------------------------------------------ the actor

    async def run(self, *, leave_when_cancelled: str = "") -> RequestResult[Any]:
        """Carry the request out, in this task, and return the result, also that of a failed request.

        Cancelling it ends the request as `cancelled`, and is passed on. With a reason to `leave_when_cancelled`, the
        request is left then for another process, if it has a journal. Raises nothing of its own.
        """
        if self._begun:
            raise ConfigurationError("a session runs once; make another one")
        self._begun = True
        self._when_cancelled = self._when_cancelled or leave_when_cancelled
        mailbox = Mailbox(self.request_id, None)  # until the bus has given a real one
        by_host = True  # until it is known to have been otherwise
        try:
            mailbox = self._open_mailbox()
            self._logs = logger.isEnabledFor(logging.INFO)
            self._clock = self._bus.clock  # behind the mailbox, with which a bus learns its loop
            if self._journal is None:
                await self._live(mailbox)
            else:
                with anyio.CancelScope() as self._scope:
                    if not self._leaves:
                        await self._live(mailbox)
            by_host = False
        except Exception as exc:  # a bug of ours, or a journal that fails: the request ends all the same
            self._crash(exc)
        finally:
            try:
                if self._state.ending is None:
                    await self._abandon(by_host=by_host)
                elif self._unheard and self._error is None:  # asyncio has cut the write of the ending short
                    await self._last_step([])
            except Exception as exc:  # however it broke: nobody may wait for ever
                self._crash(exc)
            finally:
                self._finish(mailbox)
        return cast("RequestResult[Any]", self._result)

    async def _live(self, mailbox: Mailbox) -> None:
        """From the beginning to the ending."""
        await self._begin(mailbox)
        while self._state.ending is None:
            with anyio.CancelScope() as scope:
                await self._carry_on(mailbox, scope)
            if scope.cancelled_caught:
                await self._on_fired(mailbox)
        if self._leaves:
            self._set_left("")

    async def _begin(self, mailbox: Mailbox) -> None:
        await self._beginning.make_ready(self._state, mailbox, self._view.window, self._view.secrets)
        first = await self._beginning.first_input(self._state, self._view, self._asker, self._clock, mailbox)
        self._bus.arbitration.open_calls(
            mailbox, self._state.open_calls
        )  # of another process, and answered by nobody before
        await self._step([first, *mailbox.drain()], self._clock())
        self._accept()

    async def _carry_on(self, mailbox: Mailbox, scope: anyio.CancelScope) -> None:
        """Perform commands, until a timer fires at most. A new scope for each wait would cost as much as the wait."""
        while not scope.cancel_called:
            command = pending(self._state)
            if isinstance(command, CallModel):
                await self._call_model(command, mailbox, scope)
            elif isinstance(command, AwaitCalls):
                scope.deadline = self._clock.on_loop(command.deadline)
                await mailbox.wait()
                await self._step(mailbox.drain(), self._clock())
            else:
                scope.deadline = math.inf  # where another scope was left open inside, this one cannot be left
                return

    async def _on_fired(self, mailbox: Mailbox) -> None:
        """A wait was cut short: by its deadline, or a model call by somebody who cancels the request."""
        now, asked = self._clock(), False
        while events := mailbox.drain():  # read before a deadline is believed
            asked = True
            await self._step(events, now)
        view = self._view
        call, view.model_call = view.model_call, None
        if call is not None:
            happened, now = call.what_elapsed(now)
            await self._step([happened], now)
        elif not asked and isinstance(command := pending(self._state), AwaitCalls):
            await self._step([Elapsed()], max(now, command.deadline))

    async def _step(self, inputs: Sequence[Input], now: float) -> None:
        """One step of the machine: decide and apply; claim what is ours; write; publish."""
        facts, own = self._advance(inputs, now)
        if self._journal is not None:
            await self._record(self._journal, facts)
            self._wake_recorded()
        elif facts:
            self._publish(facts, own)

    async def _record(self, journal: Journal, facts: Sequence[Event], *, starts_calls: bool = True) -> None:
        """Write a step, then publish it as written, inputs included (G31).

        Facts whose write was cut short are written, and published, with the next ones. `starts_calls` is whether calls
        may still begin.
        """
        if facts:
            self._unheard = [*self._unheard, *facts]
        if not self._unheard:
            return
        await self._write(journal, self._unheard)
        heard, self._unheard = self._unheard, ()
        self._publish(heard, heard if starts_calls else [f for f in heard if not isinstance(f, ToolCallRequested)])

    async def _write(self, journal: Journal, facts: Sequence[Event]) -> None:
        """Append to the journal. Shielded, since facts that are applied have to be published; bounded, since it is."""
        state = self._state
        with anyio.move_on_after(_WRITE_SECONDS, shield=True) as scope:
            size_bytes = await journal.append(self.request_id, state.facts - len(facts), facts)
            if size_bytes is not None:
                state.journal_bytes = size_bytes
        if scope.cancelled_caught:
            raise StoreUnavailable(f"the journal did not answer in {_WRITE_SECONDS:g} s")

    def _advance(self, inputs: Sequence[Input], now: float, *, follows: bool = True) -> tuple[list[Event], list[Event]]:
        """The facts of a step, and which of them are our own: claimed, and still to be told.

        Synchronous, so no result can slip in between.
        """
        state, secrets = self._state, self._view.secrets
        if state.waiting or isinstance(inputs[0], Resume):
            # A person's decision, and what was begun elsewhere, is for the tools as they are now.
            state.tools = self._asker.known(self._view.tools)
        facts, own = advance(
            state, inputs, now, follows=follows, shown=None if secrets.vault is None else secrets.facts
        )
        if self._journal is not None:
            said = {each.event_id: each for each in inputs if isinstance(each, Event)}
            self._taken.update(said.keys() & {fact.event_id for fact in facts})
            self._refuse([each for event_id, each in said.items() if event_id not in self._taken])
        if not _ARBITRATED.isdisjoint(map(type, own)):
            for fact in own:
                if type(fact) in _ARBITRATED:
                    self._arbitrate(fact)
        return facts, own

    def _refuse(self, inputs: Sequence[Event]) -> None:
        """Say of inputs that the request does not take that it does not."""
        for each in inputs:
            self._bus.arbitration.dead_letter(each, "the request had no use for it any more")

    def _arbitrate(self, fact: Event) -> None:
        """Open a reply's calls on the bus, or a question; or claim a call that the machine has settled itself."""
        mailbox = self._mailbox
        if isinstance(fact, (ToolCallCompleted, ToolCallFailed)):
            self._bus.arbitration.claim(fact.request_id, fact.call_id)
        elif mailbox is not None and isinstance(fact, ModelResponded):
            calls = cast("AssistantMessage", fact.message).tool_calls
            self._bus.arbitration.open_calls(mailbox, [call.call_id for call in calls])
        elif mailbox is not None and isinstance(fact, ApprovalRequested):
            self._bus.arbitration.open_approval(mailbox, fact)

    def _publish(self, facts: Sequence[Event], own: Sequence[Event]) -> None:
        """Tell our own facts, and of all of them the log and who hears the status."""
        logged = LOGGED if self._logs else WARNINGS
        if not logged.isdisjoint(map(type, facts)):
            for fact in facts:
                if type(fact) in logged:
                    log_fact(fact, self._state.envelope(fact.at))
        view = self._view
        ending = self._state.ending  # it is the last that is heard of the request
        is_last = self._is_told = ending is not None and bool(own) and own[-1] is ending
        try:
            self._bus.arbitration.announce_all(own[:-1] if is_last else own)
            if view.status_line is not None or self._bus.arbitration.wants(StatusChanged, self.request_id):
                view.status.tell_all(facts)
        finally:  # whatever a listener raises that is the host's
            if is_last:
                self._bus.arbitration.announce(own[-1])
            if self._mailbox is not None and self._mailbox.unpublished:
                self._bus.arbitration.announce_all(self._mailbox.published(facts))
        if self._beginning.asked and isinstance(facts[0], RequestResumed):
            # By another process, and nobody has answered; also not while this was written.
            asked = [
                each for each in self._beginning.asked if self._bus.arbitration.is_open(self.request_id, each.call_id)
            ]
            for question in asked:
                self._arbitrate(question)
            self._bus.arbitration.announce_all(asked)
        if view.call_above is not None:
            view.report_waiting()

    # ------------------------------------------------------------------------------------------------ the model

    async def _call_model(self, command: CallModel, mailbox: Mailbox, scope: anyio.CancelScope) -> None:
        """Perform `CallModel`: ask, under one timer; then tell the machine what came of it."""
        if command.not_before and not await self._pause(command, mailbox):
            return
        call = ModelCall(self._bus, self._state, self._clock, command, scope, self._view.status_if_wanted)
        mailbox.on_put = call.on_put
        try:
            while len(mailbox):  # something was asked before the model was
                await self._step(mailbox.drain(), self._clock())
            if self._state.phase is not MODEL:
                return
            self._view.model_call = call
            happened = await self._consult(call)
            self._view.model_call = None
        finally:
            mailbox.on_put = None
            call.over = True
        now = self._clock()
        while len(mailbox):  # writing takes time, in which more may be asked
            await self._step(mailbox.drain(), now)
        await self._step([happened], now)

    async def _consult(self, call: ModelCall) -> Input:
        request = await self._asker.request(call.command, self._view.tools, self._view)
        if (shaped := self._view.window.shaped()) is not None:
            await self._step([shaped], self._clock())
        return request if isinstance(request, ModelFailed) else await self._asker.ask(call, request, self._view)

    async def _pause(self, command: CallModel, mailbox: Mailbox) -> bool:
        """Wait until the model may be called again. False when the request was ended meanwhile."""
        with mailbox.unless_cancelled(self._clock.on_loop(command.not_before)):
            await anyio.sleep_forever()
        while len(mailbox):
            await self._step(mailbox.drain(), self._clock())
        return self._state.phase is MODEL

    # ------------------------------------------------------------------------------------------------- the end

    def leave(self, reason: str, *, even_if_cancelled: bool = False) -> bool:
        """Stop, and leave the request unfinished in its journal, so that another process can continue it.

        Calls that run are given up here; results that have come are kept. The result is `cancelled` and `resumable`; no
        ending is published. A request that has not begun, or has no journal, is cancelled. A request whose task is
        cancelled at the same moment ends, unless it is to be left `even_if_cancelled`. False when it does not run (any
        more).
        """
        if even_if_cancelled:
            self._when_cancelled = reason
        if self._journal is None or self._state.phase is NEW:
            return self.cancel(reason)
        if self._state.ending is not None:
            return False
        self._set_left(reason)
        if self._scope is not None:
            self._scope.cancel()
        return True

    async def _abandon(self, *, by_host: bool) -> None:
        """The host cancelled the task, or the request is left: end here, now. Awaits nothing but the journal."""
        if by_host:  # its caller has given it up, though it be left in the same moment; or the runtime goes down
            why = "" if self._state.phase is NEW else self._when_cancelled
            self._set_left(why and (self._leaves or why))
        if self._leaves:
            try:
                while inputs := self._drain(SteeringAdded):  # writing takes time, in which more may come
                    await self._last_step(inputs)
            except Exception as exc:  # A journal that has refused something is asked no more.
                log_failure(exc, self.request_id)
                self._set_left(str(exc))
            finally:  # asyncio may cancel once more
                self._settle_broken()
                self._state.ending = RequestCancelled(**self._state.envelope(self._clock()), reason=self._leaves)
            return
        inputs = self._drain()
        if self._state.phase is NEW:
            inputs.insert(0, self._beginning.given_up(self._state, self._view.tools, self._view.interceptors))
        inputs.append(CancelRequested(request_id=self.request_id, reason="the host cancelled the request"))
        await self._last_step(inputs)

    def _drain(self, *kinds: type[Event]) -> list[Any]:
        """What has come for a request that is given up: what is done, why it ends, and inputs of these `kinds`.

        No call may begin any more, so that the rest is refused. A question that was answered is asked again elsewhere.
        """
        inputs = [] if self._mailbox is None else self._mailbox.drain()
        counts = (ToolCallCompleted, ToolCallFailed, CancelRequested, *kinds)
        if self._journal is not None:
            self._refuse([each for each in inputs if not isinstance(each, counts)])
        return [each for each in inputs if isinstance(each, counts)]

    async def _last_step(self, inputs: Sequence[Input]) -> None:
        """Write and publish what the inputs mean. Raises what the journal raises."""
        facts, own = self._advance(inputs, self._clock(), follows=not self._leaves) if inputs else ([], [])
        if self._journal is None:
            self._publish(facts, own)
            return
        try:
            await self._record(self._journal, facts, starts_calls=False)
        except BaseException as exc:
            if not (self._leaves or isinstance(exc, Exception)):
                self._end_unwritten()  # asyncio cancels once more, and nobody else would say that the request has ended
            raise

    def _end_unwritten(self) -> None:
        """Say how a request ended here whose journal has not taken that; of what else is not in it, nothing (G31)."""
        ending = self._state.ending
        if ending is not None and self._mailbox is not None:  # else another request has its id, and its listeners
            self._view.status.tell(ending)
            self._bus.arbitration.announce(ending)

    def _set_left(self, reason: str) -> None:
        """Note why the request is left for another process; "" means that it is not."""
        self._leaves = reason
        self._view.is_left = bool(reason)

    def _settle_broken(self) -> None:
        """Settle what is open, and have what listeners heard of it agree with the journal, if there is one."""
        settle_broken(self._bus, self._state, self._mailbox, self._clock(), tells=self._journal is None)

    def _crash(self, exc: Exception) -> None:
        """The store failed, or something of ours broke. Settle what is open, and end `failed` with what can be said."""
        if self._is_told and isinstance(exc, RuntimeError):  # of a scope of ours in which another one is open
            self._view.report_left_open()
            return
        log_failure(exc, self.request_id)
        state, fails = self._state, isinstance(exc, StoreError) and self._journal is not None
        # Any process may continue from what the journal has.
        self._set_left(str(exc) if fails and state.facts else "")
        self._clock = self._bus.clock  # it may have broken before there was one
        self._settle_broken()
        self._error = self._as_told(exc)
        envelope = state.envelope(self._clock())
        state.ending = RequestFailed(**envelope, reason=self._error.code, error=str(self._error), usage=state.usage)
        if not isinstance(exc, LeaseLost):  # then another process tells how it ends
            self._end_unwritten()

    def _finish(self, mailbox: Mailbox) -> None:
        self._bus.arbitration.close_mailbox(mailbox)
        if self._journal is not None:  # else all of it was broadcast when it came
            self._refuse(mailbox.drain())
            self._bus.arbitration.announce_all(mailbox.close())
        mailbox.view = mailbox.masked = mailbox.on_trouble = None  # else the result would keep the session alive
        error = self._error or self._beginning.error or self._asker.error
        self._result = result_from(self._state, mailbox.cause, error)
        # An ending whose write was cut short is in the journal, or is yet to be written there.
        self._result.resumable = bool(self._leaves or (self._unheard and self._error is None))
        if self._leaves:
            self._bus.arbitration.close_subscriptions(self.request_id)  # no ending will
            if self._view.status_line is not None:
                self._view.status_line.close()
        self._wake()
        if self._view.call_above is not None:
            self._view.report_waiting()
