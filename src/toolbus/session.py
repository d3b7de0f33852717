"""The request session: one actor for one request.

It performs what the turn machine (`core.turn`) decides and decides nothing itself: it calls the model, opens calls on
the bus, waits with one timer, writes facts to the journal before it publishes them. It is the only writer of its
request's facts. It knows the bus, and no runtime, dispatcher or vendor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import anyio

from .buffers import Overflow
from .bus import EventBus
from .core.limits import Limits
from .core.state import Messages, Phase, TurnState
from .core.transcript import repair
from .core.turn import (
    AwaitCalls,
    CallModel,
    Elapsed,
    Input,
    ModelFailed,
    ModelReplied,
    Start,
    apply,
    decide,
    pending,
)
from .errors import ApplicationError, ConfigurationError, ProviderError, ToolbusError
from .events import (
    CancelRequested,
    Event,
    MessageAppended,
    ModelResponded,
    ModelRetrying,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    SteeringAdded,
    TextDelta,
    ToolCallCompleted,
    ToolCallFailed,
    new_id,
)
from .inputs import Instructions, MessagesLike, ToolsLike, provider_list, read_instructions, split_messages, tool_source
from .logs import LEVELS, log_fact, logger
from .mailbox import Mailbox
from .messages import AssistantMessage, Message, SystemMessage, UserMessage
from .model_call import ModelCall
from .outcome import RequestResult, result_from
from .protocols import (
    Journal,
    ModelReply,
    ModelRequest,
    ModelSettings,
    Provider,
    ToolSource,
    ToolSpec,
)
from .subscriptions import Subscription
from .text_stream import TextStream
from .tools import ToolContext

__all__ = ["RequestSession"]

Prepare: TypeAlias = Callable[[], Awaitable[Sequence[Message]]]
"""What has to be waited for before a request begins; gives the history of its conversation."""

_WRITE_SECONDS = 5.0  # the time that a store has to report a fault (G21)
_ENDINGS = (RequestCompleted, RequestFailed, RequestCancelled)
_FROM_BUS = frozenset[type[Event]]({ToolCallCompleted, CancelRequested, SteeringAdded})


class RequestSession:
    """One request: from a prompt to its `RequestResult`, over the bus.

        session = RequestSession(bus, provider, "Weather in Paris?", tools=[get_weather])
        task_group.start_soon(session.run)
        result = await session.result()

    `provider` is the model, or a sequence of them: the first is asked, and the next when one stays out of reach.
    `messages` is the user's prompt, or a transcript that ends with it (toolbus messages or OpenAI dictionaries; copied,
    never changed; invalid ones raise `InvalidHistory`). `tools` are tools, their specs or a registry, which may
    change while the request runs. `prepare` is awaited before the request begins (its clocks do not run yet) and
    gives messages to put in front. Nothing happens before `run`, which is called once, in any task.
    """

    def __init__(
        self,
        bus: EventBus,
        provider: Provider | Sequence[Provider],
        messages: str | MessagesLike,
        *,
        tools: ToolsLike = (),
        limits: Limits | None = None,
        settings: ModelSettings | None = None,
        instructions: Instructions | None = None,
        deps: Any = None,
        metadata: Mapping[str, Any] | None = None,
        conversation_id: str = "",
        request_id: str = "",
        journal: Journal | None = None,
        prepare: Prepare | None = None,
        raise_on_failure: bool = False,
    ) -> None:
        history, prompt = split_messages(messages)
        self.request_id = request_id or new_id()
        self.conversation_id = conversation_id or f"c{self.request_id}"
        self.deps = deps
        self.metadata = metadata
        self.tools: ToolSource = tool_source(tools)
        self._bus = bus
        self._providers = provider_list(provider)
        self._settings = settings or ModelSettings()
        self._instructions = instructions
        self._journal = journal
        self.prepare = prepare
        self._raise = raise_on_failure
        if prompt is not None and not prompt.message_id:
            prompt = UserMessage(content=prompt.content, message_id=f"{self.request_id}_u")
        self._prompt = prompt
        self._state = TurnState(
            request_id=self.request_id,
            conversation_id=self.conversation_id,
            parent_id=prompt.message_id if prompt else "",
            metadata=metadata,
            limits=limits or Limits(),
            providers=len(self._providers),
            messages=history,
        )
        self._mailbox: Mailbox | None = None
        self._result: RequestResult[Any] | None = None
        self._error: ToolbusError | None = None
        self._done: anyio.Event | None = None
        self._accepted: anyio.Event | None = None
        self._call: ModelCall | None = None  # the call of the model that is in flight, or was cut short
        self._begun = False
        self._earlier = 0  # how many messages `prepare` has put in front

    # ---------------------------------------------------------------------------------------- for the caller

    @property
    def messages(self) -> Sequence[Message]:
        """The transcript so far: a read-only view that does not grow."""
        return Messages(self._state.messages)

    def take_new_messages(self) -> list[Message]:
        """What a store does not have yet: all messages but those that `prepare` gave, and that were taken before."""
        if not self._state.facts:
            return []  # it never began, so there was no turn
        taken, self._earlier = self._earlier, len(self._state.messages)
        return self._state.messages[taken:]

    @property
    def ended(self) -> bool:
        """Whether the result is there."""
        return self._result is not None

    async def result(self) -> RequestResult[Any]:
        """Wait for the end. Cancelling the wait does not cancel the request; any number of tasks may wait.

        Raises the matching `ToolbusError` where the session was made with `raise_on_failure`.
        """
        if self._result is None:
            if self._done is None:
                self._done = anyio.Event()
            await self._done.wait()
            assert self._result is not None
        if self._raise:
            self._result.raise_for_outcome()
        return self._result

    async def accepted(self) -> None:
        """Return once the request has begun and, with a journal, is durable. Also after it has ended."""
        if self._state.facts == 0 and self._result is None:
            if self._accepted is None:
                self._accepted = anyio.Event()
            await self._accepted.wait()

    def cancel(self, reason: str = "") -> bool:
        """Ask the request to end as `cancelled`; results that are there stay. False when it does not run (any more)."""
        return self._ask(CancelRequested, reason=reason)

    def steer(self, text: str) -> bool:
        """Add a user message at the next round boundary. False when the request does not run (any more).

        Like `cancel`, to be called on the event loop's thread; from another one publish the event thread-safely.
        """
        return self._ask(SteeringAdded, text=text)

    def _ask(self, kind: Callable[..., CancelRequested | SteeringAdded], **fields: str) -> bool:
        if self._state.ending is not None or self._result is not None:
            return False
        self._open_mailbox()
        return self._bus.publish(kind(**self._state.envelope(self._bus.clock()), **fields))

    def events(self, *kinds: type[Event], capacity: int = 1_000) -> Subscription:
        """The request's events in order, from this call on, to its ending. Slow readers may miss signals, visibly.

        The subscription is made here, not at the first `anext`; it is let go by itself when the request ends.
        """
        return self._listen(kinds, capacity, "drop_oldest")

    def text(self, *, final_only: bool = False) -> TextStream:
        """The model's text as it arrives, from this call on; pieces that a slow reader missed come joined.

        With `final_only`, only the text of the last round, once it is known to be the last. Of a provider that does
        not stream, whole texts arrive. When the model is asked again (`ModelRetrying`), its text begins anew.
        """
        subscription = self._listen((TextDelta, ModelResponded, ModelRetrying), 1_000, "coalesce")
        return TextStream(subscription, final_only=final_only)

    def _listen(self, kinds: tuple[type[Event], ...], capacity: int, overflow: Overflow) -> Subscription:
        subscription = self._bus.subscribe(
            *kinds,
            request_id=self.request_id,
            until=_is_ending,
            capacity=capacity,
            overflow=overflow,
            name=self.request_id,
        )
        if self.ended:
            subscription.close()  # there is nothing to hear any more, and a reader must not wait for it
            return subscription
        return subscription.open()

    # ------------------------------------------------------------------------------------------------ the actor

    async def run(self) -> RequestResult[Any]:
        """Carry the request out, in this task. Cancelling this ends the request as `cancelled`, and is passed on.

        Returns the result, also for requests that failed, and raises nothing of its own.
        """
        if self._begun:
            raise ConfigurationError("a session runs once; make another one")
        self._begun = True
        mailbox = Mailbox(self.request_id, None)  # until the bus has given a real one
        try:
            mailbox = self._open_mailbox()
            self._clock = self._bus.clock  # behind the mailbox, with which a bus learns its loop
            if self.prepare is not None:
                await self._make_ready(self.prepare, mailbox)
            await self._step([self._start(), *mailbox.drain()], self._clock())
            if self._accepted is not None:
                self._accepted.set()
            while self._state.ending is None:
                with anyio.CancelScope() as scope:
                    await self._carry_on(mailbox, scope)
                if scope.cancelled_caught:
                    await self._on_fired(mailbox)
        except Exception as exc:  # a bug of ours, or a journal that fails: the request ends all the same
            self._crash(exc)
        finally:
            try:
                if self._state.ending is None:
                    self._abandon()
            except Exception as exc:  # however it broke: nobody may wait for ever
                self._crash(exc)
            finally:
                self._finish(mailbox)
        assert self._result is not None
        return self._result

    async def _carry_on(self, mailbox: Mailbox, scope: anyio.CancelScope) -> None:
        """Perform commands until the end, or until a timer fires.

        One scope serves wait after wait, each with a deadline of its own: a new scope for each would cost as much as
        the wait. One that has fired is left and never armed again.
        """
        while not scope.cancel_called:
            command = pending(self._state)
            if isinstance(command, CallModel):
                await self._call_model(command, mailbox, scope)
            elif isinstance(command, AwaitCalls):
                scope.deadline = self._clock.on_loop(command.deadline)
                await mailbox.wait()
                await self._step(mailbox.drain(), self._clock())
            else:
                return

    async def _on_fired(self, mailbox: Mailbox) -> None:
        """A wait was cut short: by its deadline, or a model call by somebody who cancels the request."""
        now = self._clock()
        events = mailbox.drain()
        if events:  # read before a deadline is believed
            await self._step(events, now)
        call, self._call = self._call, None
        if call is not None:
            happened, now = call.what_elapsed(now)
            await self._step([happened], now)
        elif not events and isinstance(command := pending(self._state), AwaitCalls):
            await self._step([Elapsed()], max(now, command.deadline))

    async def _make_ready(self, prepare: Prepare, mailbox: Mailbox) -> None:
        """Wait for what has to come first, unless somebody cancels the request meanwhile."""
        with anyio.CancelScope() as scope:
            mailbox.on_put = lambda event: scope.cancel() if isinstance(event, CancelRequested) else None
            try:
                if not mailbox.has(CancelRequested):
                    earlier = repair(await prepare())
                    self._state.messages[:0] = earlier
                    self._earlier = len(earlier)
            finally:
                mailbox.on_put = None

    def _start(self) -> Start:
        return Start(self._prompt, history=Messages(self._state.messages))

    def _open_mailbox(self) -> Mailbox:
        if self._mailbox is None:
            self._mailbox = self._bus.open_mailbox(self.request_id, self)
        return self._mailbox

    async def _step(self, inputs: Sequence[Input], now: float) -> None:
        """One step of the machine: decide and apply; claim what is ours; write; publish."""
        facts = self._advance(inputs, now)
        if not facts:
            return
        if self._journal is not None:
            await self._write(self._journal, facts)
        self._publish(facts, inputs)

    async def _write(self, journal: Journal, facts: Sequence[Event]) -> None:
        """Append to the journal. Shielded, since facts that are applied have to be told; bounded, since it is."""
        deadline = self._clock.loop_time() + _WRITE_SECONDS
        with anyio.CancelScope(shield=True, deadline=deadline) as scope:
            await journal.append(self.request_id, self._state.facts - len(facts), facts)
        if scope.cancelled_caught:
            raise ToolbusError(f"the journal did not answer in {_WRITE_SECONDS:g} s")

    def _advance(self, inputs: Sequence[Input], now: float) -> list[Event]:
        """Decide and apply until nothing follows. Synchronous, so no result can slip in between."""
        state = self._state
        facts: list[Event] = []
        queue: list[Input | None] = [*inputs, None]
        for happened in queue:
            made = decide(state, happened, now)
            while made:
                for fact in made:
                    apply(state, fact)
                    kind = type(fact)
                    if kind is MessageAppended or kind is ToolCallFailed:
                        self._arbitrate(fact, inputs)
                facts.extend(made)
                made = () if happened is not None else decide(state, None, now)
        return facts

    def _arbitrate(self, fact: Event, inputs: Sequence[Input]) -> None:
        """Open a reply's calls on the bus, and claim those that the machine has settled itself."""
        if isinstance(fact, MessageAppended):
            message = fact.message
            if isinstance(message, AssistantMessage) and message.tool_calls and self._mailbox is not None:
                self._bus.open_calls(self._mailbox, [call.call_id for call in message.tool_calls])
        elif isinstance(fact, ToolCallFailed) and not any(fact is each for each in inputs):
            self._bus.claim(fact.request_id, fact.call_id)

    def _publish(self, facts: Sequence[Event], inputs: Sequence[Input]) -> None:
        announce = self._bus.announce
        for fact in facts:
            kind = type(fact)
            level = LEVELS.get(kind)
            if level is not None and logger.isEnabledFor(level):
                log_fact(fact, self._state.envelope(fact.at))
            if kind in _FROM_BUS or (kind is ToolCallFailed and any(fact is each for each in inputs)):
                continue  # what came from the bus was published there
            announce(fact)

    # ------------------------------------------------------------------------------------------------ the model

    async def _call_model(self, command: CallModel, mailbox: Mailbox, scope: anyio.CancelScope) -> None:
        """Perform `CallModel`: ask, under one timer; then tell the machine what came of it."""
        if command.not_before and not await self._pause(command, mailbox):
            return
        tools: Mapping[str, ToolSpec] = self.tools.specs if command.offer_tools else {}
        call = ModelCall(self._bus, self._state, self._clock, command, scope)
        mailbox.on_put = call.on_put
        try:
            if asked := mailbox.drain():  # before the model was
                await self._step(asked, self._clock())
            if self._state.phase is not Phase.MODEL:
                return
            self._call = call
            happened = await self._ask_model(call, tools)
            self._call = None
        finally:
            mailbox.on_put = None
            call.over = True
        now = self._clock()
        if asked := mailbox.drain():
            await self._step(asked, now)
        await self._step([happened], now)

    async def _pause(self, command: CallModel, mailbox: Mailbox) -> bool:
        """Wait until the model may be called again. False when the request was ended meanwhile."""
        with anyio.CancelScope(deadline=self._clock.on_loop(command.not_before)) as scope:
            mailbox.on_put = lambda event: scope.cancel() if isinstance(event, CancelRequested) else None
            try:
                if not mailbox.has(CancelRequested):
                    await anyio.sleep_forever()
            finally:
                mailbox.on_put = None
        if asked := mailbox.drain():
            await self._step(asked, self._clock())
        return self._state.phase is Phase.MODEL

    async def _ask_model(self, call: ModelCall, tools: Mapping[str, ToolSpec]) -> Input:
        self._error = None
        try:
            messages = await self._prepared()
            request = ModelRequest(
                messages=messages,
                tools=tuple(tools.values()),
                settings=self._settings,
                request_id=self.request_id,
                conversation_id=self.conversation_id,
                round=call.command.round,
            )
            reply = await self._providers[call.command.provider].respond(request, call.emit)
        except ProviderError as exc:
            self._error = exc
            return ModelFailed(exc.code, str(exc), exc.retryable, exc.retry_after_seconds)
        except ToolbusError as exc:
            self._error = exc
            return ModelFailed(exc.code, str(exc))
        except Exception as exc:
            logger.exception("the model could not be asked", extra={"request_id": self.request_id})
            self._error = ApplicationError(f"{type(exc).__name__}: {exc}")
            self._error.__cause__ = exc
            return ModelFailed(self._error.code, str(self._error))
        if not isinstance(reply, ModelReply):  # pyright: ignore[reportUnnecessaryIsInstance] -- an application's own
            return ModelFailed("application_error", f"the provider gave a {type(reply).__name__}, not a ModelReply")
        return ModelReplied(reply, tools)

    async def _prepared(self) -> Sequence[Message]:
        """The transcript behind the instructions. Valid by construction: the machine appends whole rounds only."""
        messages = self._state.messages
        if self._instructions is None:
            return Messages(messages)
        context = ToolContext(
            deps=self.deps,
            request_id=self.request_id,
            conversation_id=self.conversation_id,
            messages=self.messages,
            metadata=self.metadata,
        )
        text = await read_instructions(self._instructions, context)
        return Messages(messages, SystemMessage(text=text, message_id=f"{self.request_id}_i") if text else None)

    # ------------------------------------------------------------------------------------------------- the end

    def _abandon(self) -> None:
        """The host cancelled the task: end the request now, without awaiting anything."""
        inputs: list[Any] = self._mailbox.drain() if self._mailbox else []
        if self._state.phase is Phase.NEW:
            inputs.insert(0, self._start())
        inputs.append(CancelRequested(request_id=self.request_id, reason="the host cancelled the request"))
        facts = self._advance(inputs, self._clock())
        self._publish(facts, [each for each in inputs[:-1] if not isinstance(each, Start)])

    def _crash(self, exc: Exception) -> None:
        """Something of ours broke. Settle what is open, and end `failed` with what can be said."""
        if not (isinstance(exc, ToolbusError) and exc.fault == "caller"):
            logger.error("the session broke", exc_info=exc, extra={"request_id": self.request_id})
        state = self._state
        self._clock = self._bus.clock  # it may have broken before there was one
        for each in list(state.open_calls.values()):
            if self._bus.claim(self.request_id, each.call.call_id):
                failed = ToolCallFailed(
                    **state.envelope(self._clock()),
                    call_id=each.call.call_id,
                    name=each.call.name,
                    reason="interrupted",
                    error="The request ended by an internal error.",
                    outcome_unknown=True,
                )
                self._bus.announce(failed)
        state.phase = Phase.ENDED
        state.messages[:] = repair(state.messages)
        self._error = exc if isinstance(exc, ToolbusError) else ToolbusError(f"{type(exc).__name__}: {exc}")
        if self._error is not exc:
            self._error.__cause__ = exc
        envelope = state.envelope(self._clock())
        state.ending = RequestFailed(**envelope, reason=self._error.code, error=str(self._error), usage=state.usage)
        self._bus.announce(state.ending)

    def _finish(self, mailbox: Mailbox) -> None:
        self._bus.close_mailbox(mailbox)
        mailbox.view = None  # else the result would keep the session alive
        self._result = result_from(self._state, self._state.messages, mailbox.cause, self._error)
        if self._accepted is not None:
            self._accepted.set()
        if self._done is not None:
            self._done.set()


def _is_ending(event: Event) -> bool:
    return isinstance(event, _ENDINGS)
