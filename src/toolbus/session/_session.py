"""The actor of a session: its loop of steps and commands, its calls of the model, and its end.

The invariants that it keeps are those of the package's docstring, in `toolbus.session`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

import anyio

from .._logs import logger
from ..bus import EventBus, Mailbox
from ..core.endings import CONTINUES
from ..core.output import OutputType
from ..core.turn import (
    MODEL,
    NEW,
    AwaitCalls,
    CallModel,
    Elapsed,
    OutOfBudget,
    exceeded_in_all,
    pending,
)
from ..errors import ConfigurationError, LeaseLost, StoreError, ToolbusError
from ..events import (
    CancelRequested,
    Event,
    RequestCancelled,
    RequestFailed,
    RequestTakenOver,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    new_id,
)
from ..instrumentation import Work
from ..messages import UserMessage
from ..protocols import ModelRequest, Provider
from ..request_result import OutputT, RequestResult, result_from
from ..storage import Journal
from ._approval_answers import ApprovalAnswers
from ._context_window import ContextWindow
from ._crash import log_failure, settle_broken
from ._fact_log import LOGGED, WARNINGS
from ._inputs import MessagesLike, ToolsLike, provider_list, split_messages, tool_source
from ._model_call import ModelCall
from ._model_request import Asker, check_together
from ._options import SessionOptions, check_options
from ._snapshot import SessionSnapshot
from ._start import NO_START, RequestBeginning, Resumed, SessionStart, identified, new_state
from ._steps import SessionSteps
from ._view import SessionView

if TYPE_CHECKING:
    from typing_extensions import TypeForm  # unlike `type`, also unions and literals


class RequestSession(SessionSteps[OutputT]):
    """One request: from a prompt to its `RequestResult`, over the bus.

        session = RequestSession(bus, provider, "Weather in Paris?", tools=[get_weather])
        task_group.start_soon(session.run)
        result = await session.result()

    `provider` is the model, or a sequence of models: the first one is called, and the next one if it stays unavailable.
    `messages` is the user's prompt, or a transcript that ends with the prompt (toolbus messages or a vendor's
    dictionaries; copied, never changed; invalid ones raise `InvalidHistory`). `tools` are tools, their specs or a
    registry, which may change while the request runs. `output` is a type for the answer, such as a pydantic model; then
    `RequestResult.output` is a validated value of that type, whose validators get `deps` as `info.context`. `options`
    are those of `SessionOptions`. `start` is only for other parts of toolbus. Nothing happens until `run`, which is
    called once, in any task.

    Example:
        from toolbus import EventBus, RequestSession
        from toolbus.testing import ScriptedProvider, text

        session = RequestSession(EventBus(), ScriptedProvider([text("Hello.")]), "Hello?")  # without a runtime
        result = await session.run()
        print(result.text)  # Hello.
    """

    __slots__ = (
        "_awaited",
        "_begun",
        "_error",
        "_happened",
        "_is_taken_over",
        "_observed",
        "_scope",
        "_when_cancelled",
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
        output: TypeForm[OutputT] | OutputType[OutputT] | None = None,
        start: SessionStart = NO_START,
        **options: Unpack[SessionOptions],
    ) -> None:
        check_options(options, SessionOptions, "RequestSession", beside=_PARAMETERS)
        history, prompt = split_messages(messages)
        request_id = request_id or new_id()
        source = tool_source(tools)
        prompt = identified(prompt, request_id)
        providers = provider_list(provider)
        own_id = conversation_id or f"c{request_id}"
        state = new_state(options, request_id, own_id, history, prompt, start.granted, output, len(providers))
        window = ContextWindow(state, options) if start.window is None else start.window(state)
        window.calibration = start.calibration
        self._asker = Asker(state, providers, options, window)
        view = SessionView(bus, state, providers, source, options, window, self._asker.interceptors, journal, start)
        if start.resumed is None:  # Whoever continues a request checks this; to read one, nothing has to be given.
            check_together(view)
        super().__init__(bus, state, view, journal, start.parent[0] if start.parent else "")
        self._beginning = RequestBeginning(prompt, start)
        hook = options.get("on_approval")
        self._answers = ApprovalAnswers(bus, hook) if callable(hook) else None
        self._error: ToolbusError | None = None  # the error that broke the session, other than one of the model
        self._begun = False
        self._awaited: AwaitCalls | None = None  # the command that the session waits for
        self._happened: tuple[Any, float] | None = None  # the outcome of a model call, which waits for inputs
        self._is_taken_over = False  # whether another process has the request's lease
        self._writes_since = None
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
        view.original_metadata = self._state.metadata or {}
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

    async def run(self, *, release_when_cancelled: str = "") -> RequestResult[OutputT | None]:
        """Run the request in this task, and return its result, even if the request fails.

        If the task is cancelled, the request ends as `cancelled`, and the cancellation is passed on. With a reason in
        `release_when_cancelled`, a request that has a journal is left for another process instead. Raises
        `ConfigurationError` on a second call, and no other error of its own.
        """
        if self._answers is not None and not (self._begun or self._answers.is_entered):
            async with self._answers:
                return await self.run(release_when_cancelled=release_when_cancelled)
        if self._begun:
            raise ConfigurationError("a session runs once; make another one")
        self._begun = True
        self._when_cancelled = self._when_cancelled or release_when_cancelled
        self._logged = LOGGED if logger.isEnabledFor(logging.INFO) else WARNINGS
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
                    if not self._view.released:
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
        return cast("RequestResult[OutputT | None]", self._result)

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
        if self._beginning.is_resumed:  # A call that another process began is judged by the tools as they are now.
            self._state.tools = self._asker.known(self._view.tools, self._view)
        await self._step([first, *mailbox.drain()], self._clock())

    async def _on_fired(self, mailbox: Mailbox) -> None:
        """Perform the step after a wait or a write that was cut short by a deadline, or by a cancellation."""
        journal, since, has_outcome = self._journal, self._writes_since, self._happened is not None
        if journal is not None and (has_outcome or (since is not None and self._timer.deadline == math.inf)):
            if since is not None:
                self._check_journal_answers(since)
            self._view.model_call = None  # The write was before the model was asked, or after it has answered.
            await self._record(journal, ())
            await self._take_outcome(mailbox)
            return
        now, asked = self._clock(), False
        awaited, self._awaited = self._awaited, None
        # The mailbox is read first, because a result that has come counts more than a deadline.
        view = self._view
        call = view.model_call
        while events := mailbox.drain():
            asked = True
            if call is not None and _cancels(events):
                events, call = [*events, Elapsed(call.lost())], None
            await self._step(events, now)
        view.model_call = None
        if call is not None:
            happened, now = call.elapsed_input(now)
            await self._step([happened], now)
        elif awaited is not None and not asked:
            await self._step([Elapsed()], max(now, awaited.deadline))
        elif self._journal is not None:
            await self._record(self._journal, ())  # what the write that was cut short has not written

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
            view.model_call, self._state.streamed = call, (call.texts, call.reasoning)
            happened = _used_up(view) or await self._asker.request(call, view.tools, view)
            if (shaped := view.window.shaped()) is not None:
                await self._step([shaped], self._clock())
                happened = _used_up(view) or happened
            if isinstance(happened, ModelRequest):
                happened = await self._asker.ask(call, happened, view)
            view.model_call = None
        finally:
            mailbox.on_put = None
            call.over = True
        now = self._clock()
        if mailbox.waiting:
            self._happened = happened, now
            await self._take_outcome(mailbox)
        else:  # as nearly always, in one call less
            await self._step([happened], now)

    async def _take_outcome(self, mailbox: Mailbox) -> None:
        """Perform the steps of the inputs that wait, and then that of `_happened`, if there is one.

        Each step's write takes time, in which more inputs may come.
        """
        while self._happened is not None:
            happened, now = self._happened
            inputs = mailbox.drain()
            if not inputs or _cancels(inputs):
                inputs.append(happened)  # Also after a cancellation: what has come is paid for.
                self._happened = None
            await self._step(inputs, now)

    async def _pause(self, command: CallModel, mailbox: Mailbox) -> bool:
        """Wait until the model may be called again. Return False if the request has ended meanwhile."""
        with mailbox.unless_cancelled(self._clock.on_loop(command.not_before)):
            await anyio.sleep_forever()
        while mailbox.waiting:
            await self._step(mailbox.drain(), self._clock())
        return self._state.phase is MODEL

    # ------------------------------------------------------------------------------------------------- the end

    def release(self, reason: str) -> bool:
        """Stop, and leave the request unfinished in its journal, so that another process can continue it.

        Calls that run are given up here; results that have come are kept. The result is `cancelled` and `resumable`; no
        ending is published. A request that has not begun, or has no journal, is cancelled. A request whose task is
        cancelled at the same moment ends. Returns False if the request has already ended.
        """
        if self._journal is None or self._state.phase is NEW:
            return self.cancel(reason)
        if self._state.ending is not None:
            return False
        self._view.released = reason or "released"
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
        return self.release("parked")

    def lose(self, lost: LeaseLost) -> None:
        """Leave the request, also if its task is cancelled at the same moment: another process has its lease."""
        self._when_cancelled = str(lost)
        if self.release(str(lost)):
            self._log_failure(lost)

    def _log_failure(self, exc: Exception) -> None:
        """Log the error that ends the request here; once, if another process has the request."""
        if not self._is_taken_over:
            self._is_taken_over = isinstance(exc, LeaseLost)
            log_failure(exc, self.request_id)

    async def _abandon(self, *, by_host: bool) -> None:
        """End a request whose task the host cancelled, or that is left. Awaits nothing but the journal."""
        # Late readers get the text from the reply that the transcript keeps.
        call, self._view.model_call = self._view.model_call, None
        # A caller who cancels the task has given the request up, also if it is left at the same moment. With
        # `_when_cancelled`, it is the runtime that goes down, and the request is left.
        if by_host:
            why = "" if self._state.phase is NEW else self._when_cancelled
            self._view.released = why and (self._view.released or why)
        if self._view.released:
            try:
                # The write takes time, in which more inputs may come.
                while (inputs := self._drain()) or self._unpublished:
                    await self._last_step(inputs)
            except Exception as exc:  # A journal that has refused a write is not used again.
                self._log_failure(exc)
                self._view.released = str(exc)
            finally:  # asyncio may cancel the task once more.
                self._settle_broken()
                self._state.ending = RequestCancelled(**self._state.envelope(self._clock()), reason=self._view.released)
            return
        inputs = self._drain()
        if self._state.phase is NEW:
            inputs.insert(0, self._beginning.given_up(self._state, self._view.tools, self._view.interceptors))
        inputs.append(CancelRequested(request_id=self.request_id, reason="the host cancelled the request"))
        if call is not None:
            inputs.append(Elapsed(call.lost()))
        elif self._happened is not None:
            inputs.append(self._happened[0])  # What has come is paid for.
        await self._last_step(inputs)

    def _drain(self) -> list[Any]:
        """Return the inputs that still count for a request that is given up: results, cancellations and messages.

        The others are refused, because no call may begin any more. An approval that was decided is asked for again by
        the process that continues the request.
        """
        inputs = [] if self._mailbox is None else self._mailbox.drain()
        counts = (ToolCallCompleted, ToolCallFailed, CancelRequested, SteeringAdded)
        if self._journal is not None:
            self._refuse([each for each in inputs if not isinstance(each, counts)])
        return [each for each in inputs if isinstance(each, counts)]

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
        self._view.released = str(exc) if fails and state.facts else ""
        self._clock = self._bus.clock  # The session may have broken before it was set.
        self._settle_broken()
        if isinstance(exc, StoreError):  # Its traceback refers to this session, and would keep it for the collector.
            exc.__traceback__ = None
        self._error = self._masked_error(exc)
        state.ending = RequestFailed(
            **state.envelope(self._clock()),
            reason=self._error.code,
            error=str(self._error),
            retryable=self._error.retryable,
            usage=state.usage,
            cost=state.cost,
        )
        # After a lost lease, another process carries out the request and publishes its ending.
        if not isinstance(exc, LeaseLost):
            self._end_unwritten()

    def _finish(self) -> None:
        mailbox, cause = self._mailbox, _no_cause
        if mailbox is not None:
            self._bus.arbitration.close_mailbox(mailbox)
            # Without a journal, inputs were broadcast when they came, and a listener may have published one meanwhile.
            if self._journal is not None or self._error is not None:
                self._refuse(mailbox.drain())
                self._bus.arbitration.announce(*mailbox.close())
            # The result holds the mailbox's cause; references to the session would keep the session alive.
            mailbox.view = mailbox.masked = mailbox.spent = mailbox.on_trouble = self._view.secrets.mailbox = None
            cause = mailbox.cause
        error = self._error or self._beginning.error or self._asker.error
        self._result = result_from(self._state, cause, error)
        # An ending whose write was cut short is in the journal, or is yet to be written there.
        self._result.resumable = bool(self._view.released or (self._unpublished and self._error is None))
        if self._view.released:
            if self._error is None:
                self._result.explanation = CONTINUES
            if self._is_taken_over and self._bus.arbitration.wants(RequestTakenOver, self.request_id):
                self._bus.arbitration.announce(RequestTakenOver(**self._state.envelope(self._clock())))
            # No ending is published that would close them.
            self._bus.arbitration.close_subscriptions(self.request_id)
            if self._view.status_line is not None:
                self._view.status_line.close()
        self._wake()
        if self._view.call_above is not None:
            self._view.report_end()
        # From now on, only the result has the error. Its traceback refers to these three objects: if they kept it, only
        # the garbage collector would free them.
        self._error = self._beginning.error = self._asker.error = None


def _no_cause(_call_id: str) -> None:
    """Return no exception: the exceptions of handlers are in no journal."""


def _cancels(events: Sequence[Event]) -> bool:
    return any(isinstance(each, CancelRequested) for each in events)


def _used_up(view: SessionView) -> OutOfBudget | None:
    """Return why the model may not be asked: a budget, or a limit that is exceeded with sub-requests which run."""
    for each in view.budgets:
        if bound := each.used_up:
            return OutOfBudget(f"budget.{bound}")
    asking: SessionView | None = view
    while asking is not None:
        # Sub-requests run beside this request only in background calls, and those of a request above in its open call.
        if asking.state.open_calls and (reason := exceeded_in_all(asking.state)):
            return OutOfBudget(reason)
        asking = asking.above
    return None


# The names of a session's parameters, without the options of `SessionOptions`.
_PARAMETERS = ("provider", "messages", *(RequestSession.__init__.__kwdefaults__ or ()))
