"""The environment of a replayed session: a position in the recording, and the journal, clock, bus and model there.

The journal compares each fact with the recorded one, and then publishes the next published events of the recording. The
clock reads the time of the session's next own fact, so that a replay needs no time and makes the same timestamps; its
deadlines fire if the recording continues with the effect of one. So events come in the order of the recording, whatever
the machine, the event loop or its load.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import anyio

from ...bus import EventBus
from ...clock import SessionClock
from ...core.history import Shape
from ...core.limits import Budget
from ...core.message_list import Messages
from ...core.result_notes import background_note_id
from ...core.turn import CallStatus, HistoryShaped, Phase, TurnState
from ...errors import ProviderError, ToolbusError
from ...events import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    Event,
    HistoryCompressed,
    MessageAppended,
    ModelResponded,
    ModelRetrying,
    RequestCancelled,
    RequestCompleted,
    RequestEnding,
    RequestFailed,
    Spent,
    ToolCallFailed,
    ToolCallPaused,
    ToolCallRequested,
    ToolCallResumed,
)
from ...messages import AssistantMessage, SystemMessage, Usage, UserMessage
from ...protocols import Emit, ModelReply, ModelRequest, NativeOutput, Provider, ReasoningPiece, TextPiece, ToolSpec
from ...session import ContextWindow
from ._difference import ReplayDifference, compare, difference_at
from ._format import RecordedRequest
from ._stand_ins import Facts, Guard, raised_as, summary_in

# Others publish these, and the session sets the time of their facts.
_BY_CLOCK = (ToolCallPaused, ToolCallResumed)
_ENDS_HERE = "the recording ends here"
_NEVER_SECONDS = 1e9  # too long for a retry


class Stopped(ToolbusError):
    """The replay ends before its session does: because of a difference, or because the recording ends there."""

    fault = "caller"


class _Spent:
    """A stand-in for the sub-requests of a call that was abandoned."""

    waits = False
    request_id = ""

    def __init__(self, spent: Spent) -> None:
        self.state = TurnState("")
        self.spent = spent


def _is_note(fact: Event | None) -> bool:
    """Return whether a fact is the note with the result of a background call, or a message of a person."""
    if not isinstance(fact, MessageAppended):
        return False
    message = fact.message
    if isinstance(message, UserMessage):
        return message.message_id.startswith(f"{fact.request_id}_s")
    return isinstance(message, SystemMessage) and message.message_id.endswith(background_note_id(""))


class Stage:
    """One request of a recording, and the position of its replay. It is the replayed session's `Journal`."""

    def __init__(self, path: Path, request: RecordedRequest, facts: Facts, ignore: Collection[str]) -> None:
        self.request = request
        self.difference: ReplayDifference | None = None
        self.position = 0  # position of the next fact
        self.bus: ReplayBus
        self.state: TurnState
        self.guard: Guard | None = None
        self.asked: list[ModelRequest] = []
        self._path = path
        self._ignore = ignore
        self._facts = facts
        self._published = 0  # all facts before this position that others made are published
        self._fired_at = -1

    # ----------------------------------------------------------------------------------------- the recording

    @property
    def next_own(self) -> int:
        """The position of the session's next own fact; the end of the facts if it makes no more."""
        position, request = self.position, self.request
        while position < len(request.facts) and not request.is_own(position):
            position += 1
        return position

    @property
    def is_cancelled(self) -> bool:
        """Return whether a cancellation comes before the session's next own fact."""
        return any(isinstance(each, CancelRequested) for each in self.request.facts[self.position : self.next_own])

    @property
    def is_cancelled_late(self) -> bool:
        """Return whether a reply had come when the cancellation was taken, so that the model is asked first."""
        return self.state.phase is Phase.MODEL and isinstance(self.fact(self.next_own), ModelResponded)

    def fact(self, position: int) -> Event | None:
        """Return the fact at a position; None after the last one."""
        facts = self.request.facts
        return facts[position] if position < len(facts) else None

    def after_background(self, position: int) -> Event | None:
        """Return the first fact from a position on that does not belong to what an ending adds to the transcript.

        An ending adds the failures of background calls that were given up, and what people have said since the last
        round.
        """
        fact = self.fact(position)
        while isinstance(fact, ToolCallFailed) or _is_note(fact):
            position += 1
            fact = self.fact(position)
        return fact

    def now(self) -> float:
        """Return the time of the session's next decision."""
        facts = self.request.facts
        for position in range(self.position, len(facts)):
            if self.request.is_own(position) or isinstance(facts[position], _BY_CLOCK):
                return facts[position].at
        return facts[-1].at

    # ------------------------------------------------------------------------------------------- the journal

    async def append(self, request_id: str, seq: int, facts: Sequence[Event]) -> None:  # noqa: ARG002 -- the protocol
        """Compare the facts with the recorded ones, and publish the next inputs. Raises `Stopped`."""
        for fact in facts:
            expected = self.fact(self.position)
            if expected is None:
                if not self.request.is_whole:
                    raise Stopped(_ENDS_HERE)
                self.differs("the recording has ended, and the replay continues", got=fact)
            elif type(expected) is not type(fact):
                self.differs(f"{fact.type} instead of {expected.type}", got=fact)
            elif (field := compare(expected, fact, self._ignore)) is not None:
                self.differs(f"{fact.type} differs", got=fact, field=field)
            if isinstance(fact, ToolCallRequested):
                self._restore_spent(fact.call_id)
            self.position += 1
        if self.position >= len(self.request.facts) and not self.request.is_whole:
            raise Stopped(_ENDS_HERE)
        self.publish()

    def publish(self, *, late: bool = False) -> None:
        """Publish the inputs of the session's next step, and apply the changes of the agreement up to there.

        A cancellation that is taken only after a reply is published only with `late`.
        """
        request, position = self.request, self.position
        if position >= len(request.facts):
            return
        for begins, changed in request.changes:
            if begins == position:
                self.state.granted.update(changed.get("granted") or {})
        step = request.steps[position]
        while position < len(request.facts) and request.steps[position] == step:
            if position >= self._published and not request.is_own(position):
                if isinstance(request.facts[position], CancelRequested) and not late and self.is_cancelled_late:
                    return
                self._published = position + 1
                if not self.bus.publish(request.facts[position]):
                    self.differs(f"nobody waits for {request.facts[position].type} here", position=position)
            position += 1

    def _restore_spent(self, call_id: str) -> None:
        for position in range(self.position, len(self.request.facts)):
            fact = self.request.facts[position]
            if isinstance(fact, ToolCallFailed) and fact.call_id == call_id:
                if fact.spent is not None and self.request.is_own(position):
                    self.state.open_calls[call_id].sub_requests = (_Spent(fact.spent),)
                return

    # --------------------------------------------------------------------------------------------- deadlines

    def fires(self, moment: float) -> bool:
        """Return whether a timer of the session that is set to `moment` has fired in the recording."""
        state = self.state
        position = self.next_own
        fact = self.fact(position)
        if state.phase is Phase.MODEL:
            if moment == state.not_before:
                return True
            while fact is not None and (
                isinstance(fact, HistoryCompressed)
                or (isinstance(fact, ModelResponded) and fact.message.interrupted)
                or isinstance(fact, ToolCallFailed)
                or _is_note(fact)
                or not self.request.is_own(position)
            ):
                position += 1
                fact = self.fact(position)
            return isinstance(fact, (ModelRetrying, RequestFailed, RequestCompleted)) and fact.at >= moment
        if state.phase not in (Phase.TOOLS, Phase.READY) or self.bus.has_unread:
            return False  # the session first takes the published inputs
        if position > self.position:
            self.differs(f"{self.request.facts[self.position].type} has no effect here")
        if isinstance(fact, ApprovalRequested) and self._asks_again(fact):
            return False
        if not isinstance(fact, ToolCallFailed) or self._fired_at == self.position:
            calls = ", ".join(f"{each.call.name} ({each.call.call_id})" for each in state.open_calls.values())
            self.differs(f"the replay waits for {calls}, and the recording does not")
        self._fired_at = self.position
        return True

    def _asks_again(self, fact: ApprovalRequested) -> bool:
        """Handle a question that is asked again, because somebody answered an older one: publish such an answer."""
        call = self.state.open_calls.get(fact.call_id)
        if call is None or call.status is not CallStatus.WAITING or self._fired_at == self.position:
            return False
        self._fired_at = self.position
        envelope = self.state.envelope(fact.at)
        stale = ApprovalDecided(**envelope, call_id=fact.call_id, definition="an older one", approved=False)
        return self.bus.publish(stale)

    def differs(
        self, what: str, *, position: int | None = None, got: Event | None = None, field: Any = None
    ) -> NoReturn:
        """End the replay with its first difference. Raises `Stopped`."""
        if self.difference is None:
            at = self.position if position is None else position
            self.difference = difference_at(self._path, self.request, at, what, got=got, field=field)
        raise Stopped(what)

    def check_end(self) -> None:
        """Raise the difference, if there is one."""
        if self.difference is None and self.request.is_whole and self.position < len(self.request.facts):
            expected = self.request.facts[self.position]
            self.difference = difference_at(
                self._path, self.request, self.position, f"the replay has ended, and {expected.type} is expected"
            )
        if self.difference is not None:
            raise self.difference

    # ---------------------------------------------------------------------------------------- at the beginning

    @property
    def notes(self) -> list[SystemMessage]:
        """Return the system messages that were put before the prompt."""
        found: list[SystemMessage] = []
        for fact in self.request.facts[1:]:
            if not isinstance(fact, MessageAppended) or not isinstance(fact.message, SystemMessage):
                break
            found.append(fact.message)
        return found

    def tools_now(self) -> dict[str, ToolSpec]:
        """Return the tools under which the session's next own fact was made."""
        position = self.next_own
        written: list[Mapping[str, Any]] = list(self.request.agreed.get("tools") or [])
        for begins, changed in self.request.changes:
            if begins <= position:
                written = changed.get("tools", written)
        return self._facts.specs(written)


class RecordedTools:
    """The tools of a recorded request, as they were at each moment."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    @property
    def specs(self) -> Mapping[str, ToolSpec]:
        """The tools at the current position: see `ToolSource`."""
        return self._stage.tools_now()


class RecordedModel:
    """A provider that returns the recorded replies and raises the recorded errors."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    @property
    def vendor(self) -> str:
        """The vendor of the model that has failed next in the recording."""
        return getattr(self._stage.fact(self._stage.next_own), "vendor", "recorded")

    @property
    def model(self) -> str:
        """The model that has failed next in the recording."""
        return getattr(self._stage.fact(self._stage.next_own), "model", "recorded")

    def native_output(self, schema: Mapping[str, Any]) -> NativeOutput:  # noqa: ARG002 -- named by the protocol
        """Implement `NativeOutputProvider`: return the value of the next recorded reply."""
        fact = self._stage.fact(self._stage.next_own)
        was_native = isinstance(fact, ModelResponded) and fact.native_output
        return "with_tools" if was_native or self._stage.request.agreed.get("output_mode") == "native" else ""

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Implement `Provider`. Raises `Stopped` if the recording continues without a reply or an error."""
        stage = self._stage
        stage.asked.append(request)
        fact, deadline = stage.after_background(stage.next_own), stage.state.model_deadline
        lost = fact if isinstance(fact, ModelRetrying) else None
        if isinstance(fact, ModelResponded) and fact.message.interrupted:  # the ending follows it
            streamed = fact.message.reasoning + fact.message.text
            emit(ReasoningPiece(fact.message.reasoning))
            emit(TextPiece(fact.message.text))
            lost, deadline = fact, stage.state.deadline if streamed else deadline
            fact = stage.after_background(stage.next_own + 1)
        if isinstance(fact, ModelResponded):
            message = fact.message
            if stage.guard is not None:
                stage.guard.on_reply(fact.round, message)
            stage.publish(late=True)
            return ModelReply(
                message=message,
                finish_reason=cast("Any", fact.finish_reason),
                usage=fact.usage,
                vendor=fact.vendor,
                model=fact.model,
            )
        if fact is None and not stage.request.is_whole:
            raise Stopped(_ENDS_HERE)
        is_unasked = isinstance(fact, RequestCancelled) and not stage.is_cancelled
        if is_unasked or not isinstance(fact, ModelRetrying | RequestEnding):
            stage.differs(f"the replay asks the model in round {request.round}, and the recording does not")
        reply = None if lost is None or lost.usage == Usage() else _lost(lost)
        failing = None if isinstance(fact, RequestCancelled) else fact

        async def fail() -> NoReturn:
            if failing is None:
                stage.publish(late=True)  # The session reads the cancellation.
            if failing is None or (isinstance(failing, RequestCompleted) and failing.at >= deadline):
                await anyio.sleep_forever()  # until the session is cancelled, or the deadline, which has fired already
            assert failing is not None
            raise self._failure(failing, uses_up_a_limit=reply is not None and stage.state.stop is None)

        if reply is None or stage.guard is None:
            await fail()
        stage.guard.lose = fail
        return reply

    def _failure(
        self, fact: ModelRetrying | RequestFailed | RequestCompleted, *, uses_up_a_limit: bool
    ) -> ProviderError:
        if isinstance(fact, RequestCompleted):  # the last answer failed, or there is nothing left for another one
            return ProviderError(fact.reason, retryable=uses_up_a_limit)
        wait = _NEVER_SECONDS
        if isinstance(fact, ModelRetrying) and fact.provider_index == self._stage.state.provider:
            wait = fact.delay_seconds
        kind = raised_as("Recorded", ProviderError, fact.reason)
        retryable = fact.retryable if isinstance(fact, RequestFailed) else True
        return kind(fact.error, retryable=retryable, retry_after_seconds=wait)


def _lost(fact: ModelResponded | ModelRetrying) -> ModelReply:
    """Return an empty reply with the usage of the replies that were lost before a fact."""
    return ModelReply(message=AssistantMessage(), usage=fact.usage, vendor=fact.vendor, model=fact.model)


class RecordedBudget(Budget):
    """A budget that counts nothing, and is used up at the point at which it was in the recording."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(max_tokens=1)
        self._stage = stage

    def spend(self, usage: Usage, cost: float) -> None:
        """Do nothing: the budget may be shared with requests that are not replayed."""

    @property
    def used_up(self) -> str:
        """The bound that the ending names, if the request ends here because of a bound: see `Budget`."""
        fact = self._stage.after_background(self._stage.next_own)
        prefix, _, bound = fact.reason.partition(".") if isinstance(fact, RequestCompleted) else ("", "", "")
        return bound if prefix == "budget" and not self._stage.state.stop else ""


class RecordedWindow(ContextWindow):
    """A context window that reports a shortened history where the recording does, and sends the whole history."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.state, {})
        self._stage = stage

    def look(self, specs: Mapping[str, ToolSpec]) -> None:
        """Do nothing: nothing is shortened here."""

    async def messages(
        self,
        system: SystemMessage | None,
        tools: Sequence[ToolSpec],  # noqa: ARG002
        provider: Provider,  # noqa: ARG002
        replies: list[ModelReply],  # noqa: ARG002
    ) -> Messages:
        return Messages(self._stage.state.messages, system)

    def shaped(self) -> HistoryShaped | None:
        fact = self._stage.fact(self._stage.next_own)
        if not isinstance(fact, HistoryCompressed):
            return None
        shape = Shape(fact.before_tokens, fact.after_tokens, fact.results_shortened, fact.turns_omitted, fact.summary)
        return HistoryShaped(shape, summary_in(fact))

    def answered(self, usage: Usage) -> None:
        """Do nothing: there is no model whose token counts could be learned."""


class _ReplayClock(SessionClock):
    """A clock that reads the recording."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    def __call__(self) -> float:
        return self._stage.now()

    def on_loop(self, moment: float) -> float:
        return -math.inf if self._stage.fires(moment) else math.inf


class ReplayBus(EventBus):
    """A bus whose clock is the recording's."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    @property
    def has_unread(self) -> bool:
        """Return whether the session has not yet read some of the events that were published for it."""
        return any(map(len, self.arbitration.mailboxes.values()))

    @property
    def clock(self) -> SessionClock:
        """The recording's clock: see `EventBus`."""
        return _ReplayClock(self._stage)
