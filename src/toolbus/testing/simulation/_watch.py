"""The invariants of docs/reference/guarantees.md, checked at every event of a bus, and once more at the end.

Knows events, results and the pure core, and nothing of how the simulated world is made. What it finds is a `Broken`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ...bus import EventBus
from ...core.limits import Limits
from ...core.reducer import apply
from ...core.state import TurnState
from ...core.transcript import validate
from ...errors import ProtocolViolation, ToolbusError
from ...events import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    DeadLetter,
    Event,
    MessageAppended,
    ModelRetrying,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RequestStarted,
    RoundStarted,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallPaused,
    ToolCallRequested,
    ToolCallResumed,
    ToolCallRetrying,
    ToolCallStarted,
)
from ...messages import AssistantMessage, Message, ToolMessage
from ...outcome import RequestResult
from ...results import failure_content
from ._findings import Broken

__all__ = ["Call", "Request", "Watch"]

_EPSILON = 1e-5  # seconds: over the rounding of moments since the epoch
_ASKED = (CancelRequested, SteeringAdded, ApprovalDecided, ToolCallPaused, ToolCallResumed)
_ENDINGS = (RequestCompleted, RequestFailed, RequestCancelled)
_AFTER_THE_END = (ToolCallLate, DeadLetter, ToolCallStarted, ToolCallRetrying)
_DEFAULT_LIMITS = Limits()


class Durable(Protocol):
    """What the journal of a simulated world tells."""

    def is_durable(self, fact: Event) -> bool:
        """Whether the journal has this fact."""
        ...

    def facts(self, request_id: str) -> Sequence[Event]:
        """What it has of a request, in order."""
        ...

    def has_failed(self, request_id: str) -> bool:
        """Whether an append for this request has failed."""
        ...


class Call:
    """One call, as its events tell of it."""

    __slots__ = ("approved", "asked", "attempts", "deadline", "name", "requested", "settled_at", "terminal")

    def __init__(self, name: str) -> None:
        self.name = name
        self.requested: ToolCallRequested | None = None
        self.deadline = float("inf")
        self.terminal: ToolCallCompleted | ToolCallFailed | None = None
        self.settled_at = float("inf")
        self.asked = False
        self.approved = False
        self.attempts = 0


class Request:
    """One request, as its events tell of it."""

    __slots__ = (
        "appended",
        "calls",
        "cancelled_at",
        "conversation",
        "ending",
        "facts",
        "is_below",
        "is_trusted",
        "limits",
        "paused",
        "replies",
        "request_id",
        "requested",
        "settled_at",
        "started",
    )

    def __init__(self, request_id: str, limits: Limits) -> None:
        self.request_id = request_id
        self.limits = limits
        self.started: RequestStarted | None = None
        self.ending: Event | None = None
        self.calls: dict[str, Call] = {}
        self.facts: list[Event] = []
        self.appended: list[Message] = []
        self.replies = 0
        self.requested = 0
        self.conversation = ""  # for which a person's word is remembered: that of the topmost request
        self.is_trusted = False  # none of its calls needs a person's word
        self.is_below = False  # it works for a call of another request, which is the one that the journal knows
        self.settled_at = float("-inf")  # when its newest call was
        self.cancelled_at = float("inf")
        self.paused = False  # its clocks have stood still at some time, so that its deadlines moved


class Watch:
    """Hears a bus as its first receiver. `broken` is the first invariant that did not hold; `stop` is called then.

    `epoch` is the moment at which the bus's clock began. `needs_approval` names the tools of which each call needs a
    person's word; `retries` how often a tool's call is tried again. `journal` tells what it has, where there is one.
    """

    def __init__(
        self,
        bus: EventBus,
        epoch: float,
        stop: Callable[[], object],
        *,
        needs_approval: frozenset[str] = frozenset(),
        retries: dict[str, int] | None = None,
        journal: Durable | None = None,
    ) -> None:
        self._bus = bus
        self._epoch = epoch
        self._stop = stop
        self._needs_approval = needs_approval
        self._retries = retries or {}
        self._journal = journal
        self._position = bus.position
        self._ids: set[str] = set()
        self._remembered: set[str] = set()  # conversations in which a person's word was to be remembered
        self.broken: Broken | None = None
        self.requests: dict[str, Request] = {}
        self.heard: list[tuple[float, Event]] = []
        self.checks: Counter[str] = Counter()
        self.letters = 0  # events that were addressed to nobody, or came too late

    # ------------------------------------------------------------------------------------------------- every event

    def _now(self) -> float:
        return self._bus.clock()

    def __call__(self, event: Event) -> None:
        """Check one event. For `EventBus.connect`."""
        if self.broken is not None:
            return  # the world is being stopped, and in what order is no matter
        self.heard.append((self._now() - self._epoch, event))
        try:
            self._position += 1
            self.check("G01", self._bus.position == self._position, "the bus's position is not dense")
            self.check("G01", event.event_id not in self._ids, f"two events have the id {event.event_id!r}")
            self._ids.add(event.event_id)
            self._of_request(event)
        except Broken as exc:
            self.fail(exc)

    def check(self, guarantee: str, holds: object, problem: str | Callable[[], str]) -> None:
        """Count one check; raise `Broken` if it does not hold."""
        self.checks[guarantee] += 1
        if not holds:
            raise Broken(guarantee, problem if isinstance(problem, str) else problem())

    def note(self, guarantee: str, holds: object, problem: str) -> None:
        """`check` for the actors of the world: it stops the world, and does not raise."""
        try:
            self.check(guarantee, holds, problem)
        except Broken as exc:
            self.fail(exc)

    def fail(self, exc: Broken) -> None:
        """Keep the first thing that broke, and stop the world."""
        if self.broken is None:
            self.broken = exc
            self._stop()

    def _of_request(self, event: Event) -> None:
        handle = self._HANDLERS.get(type(event))
        request = self.requests.get(event.request_id)
        if isinstance(event, DeadLetter):
            self.letters += 1
            return
        if request is None:
            if handle is None or not event.is_fact:
                return
            view = self._bus.view(event.request_id)
            options: Mapping[str, Any] = {} if view is None else view.options
            limits = options.get("limits") or _DEFAULT_LIMITS
            request = self.requests[event.request_id] = Request(event.request_id, limits)
            request.is_trusted = options.get("approval") is False
        if event.is_fact:
            request.facts.append(event)
        self.check(
            "G06" if event.is_fact else "G03",
            request.ending is None or isinstance(event, _AFTER_THE_END) or not event.is_fact,
            lambda: f"{event.type} of {event.request_id} after its ending",
        )
        if handle is not None:
            handle(self, request, event)

    # ------------------------------------------------------------------------------------------------ kinds of events

    def _on_started(self, request: Request, event: RequestStarted) -> None:
        self.check("G06", request.started is None, f"{event.request_id} has begun twice")
        request.started = event
        above = self.requests.get(event.parent_request_id)
        request.is_below = above is not None
        request.conversation = event.conversation_id if above is None else above.conversation

    def _on_message(self, request: Request, event: MessageAppended) -> None:
        message = event.message
        if isinstance(message, AssistantMessage):
            for call in message.tool_calls:
                self.check("G06", call.call_id not in request.calls, f"call {call.call_id} was made twice")
                request.calls[call.call_id] = Call(call.name)
        elif isinstance(message, ToolMessage):
            call_state = request.calls.get(message.call_id)
            terminal = None if call_state is None else call_state.terminal
            self.check("G06", terminal, f"a result of {message.call_id} is in the transcript before it was told")
            assert terminal is not None
            told = (
                terminal.content
                if isinstance(terminal, ToolCallCompleted)
                else failure_content(terminal.reason, terminal.error)
            )
            self.check("G07", message.content == told, f"the transcript has another result of {message.call_id}")
        request.appended.append(message)

    def _on_round(self, request: Request, event: RoundStarted) -> None:
        open_calls = [call_id for call_id, call in request.calls.items() if call.terminal is None]
        self.check("G06", not open_calls, f"round {event.round} begins while {open_calls} are open")
        results = {each.call_id for each in request.appended if isinstance(each, ToolMessage)}
        missing = request.calls.keys() - results
        self.check("G09", not missing, f"round {event.round} begins without the results of {sorted(missing)}")
        if event.after:
            self._prompt("G04", request.settled_at, f"round {event.round} begins")
        request.replies += 1
        most = request.limits.max_rounds + request.limits.max_output_repairs + 1
        self.check("G10", request.replies <= most, f"{request.replies} rounds, over {most}")

    def _on_requested(self, request: Request, event: ToolCallRequested) -> None:
        call = request.calls.get(event.call_id)
        self.check("G06", call is not None, f"{event.call_id} is requested, and no reply asked for it")
        assert call is not None
        self.check("G06", call.requested is None, f"{event.call_id} is requested twice")
        self.check("G06", call.terminal is None, f"{event.call_id} is requested after it was settled")
        if self._journal is not None and not request.is_below:
            self.check("G11", self._journal.is_durable(event), f"{event.call_id} is requested before that is durable")
        if call.name in self._needs_approval and not request.is_trusted:
            approved = call.approved or request.conversation in self._remembered
            self.check("G26", approved, f"{call.name} is requested, and nobody has approved it")
        call.requested = event
        call.deadline = event.at + event.deadline
        request.requested += 1
        most = request.limits.max_tool_calls
        self.check("G10", request.requested <= most, f"{request.requested} calls, over max_tool_calls={most}")

    def _on_terminal(self, request: Request, event: ToolCallCompleted | ToolCallFailed) -> None:
        call = request.calls.get(event.call_id)
        if call is None and self._journal is not None and self._journal.has_failed(request.request_id):
            return  # a reply that could not be written was not told, and its calls have ended all the same
        self.check("G05", call is not None, f"{event.type} of {event.call_id}, which no reply asked for")
        assert call is not None
        self.check("G06", call.terminal is None, f"{event.call_id} has two terminal events")
        call.terminal = event
        call.settled_at = request.settled_at = self._now()
        if call.requested is None:
            self.check("G06", isinstance(event, ToolCallFailed) or not call.asked, f"{event.call_id} never ran")
        elif not request.paused:
            late = self._now() - call.deadline
            self.check("G12", late <= _EPSILON + self._slack(request), f"{event.call_id} is settled {late:g} s late")
            if isinstance(event, ToolCallFailed) and event.reason == "timeout":
                self.check("G12", late >= -_EPSILON, f"{event.call_id} times out {-late:g} s early")

    def _on_asked(self, request: Request, event: ApprovalRequested) -> None:
        request.calls[event.call_id].asked = True
        request.paused = True

    def _on_decided(self, request: Request, event: ApprovalDecided) -> None:
        call = request.calls.get(event.call_id)
        self.check("G26", call is not None and call.asked, f"a decision on {event.call_id} that nobody asked for")
        assert call is not None
        self.check("G26", not call.approved, f"{event.call_id} is decided on again after it was approved")
        call.approved = event.approved
        if event.approved and event.remember:
            self._remembered.add(request.conversation)

    def _on_cancel(self, request: Request, _event: CancelRequested) -> None:
        request.cancelled_at = min(request.cancelled_at, self._now())

    def _prompt(self, guarantee: str, since: float, what: str) -> None:
        """What follows from something follows at once, where no journal has to be waited for."""
        if self._journal is None and since > 0:
            waited = self._now() - since
            self.check(guarantee, waited <= _EPSILON, f"{what} {waited:g} s after what it waited for")

    def runs(self, request_id: str, call_id: str) -> None:
        """A handler goes on by itself: nobody may have settled its call before."""
        request = self.requests.get(request_id)
        call = None if request is None else request.calls.get(call_id)
        if call is not None and self.broken is None:
            since = self._now() - call.settled_at
            self.note("G17", since <= _EPSILON, f"the handler of {call_id} runs {since:g} s after it was to stop")

    def listeners(self) -> None:
        """Every subscription is within its bound, and has told of all that it has not delivered."""
        for each in self._bus.statistics().subscriptions:
            whole = each.delivered + each.merged + each.dropped + each.buffered
            self.note("G02", each.matched == whole, f"{each.name}: {each.matched} events matched, {whole} are known of")
            self.note("G02", each.peak <= each.capacity, f"{each.name} holds {each.peak} of {each.capacity} events")

    def _on_paused(self, request: Request, _event: Event) -> None:
        request.paused = True

    def _on_attempt(self, request: Request, event: ToolCallStarted) -> None:
        call = request.calls[event.call_id]
        most = 1 + self._retries.get(call.name, 0)
        self.check("G13", event.attempt == call.attempts + 1 <= most, f"attempt {event.attempt} of {event.call_id}")
        call.attempts = event.attempt

    def _on_tool_retry(self, request: Request, event: ToolCallRetrying) -> None:
        call = request.calls[event.call_id]
        if not request.paused:
            ends = self._now() + event.delay_seconds
            self.check("G13", ends < call.deadline + _EPSILON, f"{event.call_id} is to be retried past its deadline")

    def _on_model_retry(self, request: Request, event: ModelRetrying) -> None:
        retried = sum(1 for each in request.facts if isinstance(each, ModelRetrying) and each.round == event.round)
        most = request.limits.max_model_attempts * 2 + 2
        self.check("G28", retried <= most, f"round {event.round} is asked for {retried} times more")

    def _on_late(self, request: Request, event: ToolCallLate) -> None:
        self.letters += 1
        call = request.calls.get(event.call_id)
        self.check("G07", call is not None, f"{event.call_id} is late, and no reply asked for it")

    def _on_ending(self, request: Request, event: Event) -> None:
        if self._journal is not None and not request.is_below and not _is_abrupt(event):
            self.check("G11", self._journal.is_durable(event), f"{event.request_id} ends before that is durable")
        open_calls = [call_id for call_id, call in request.calls.items() if call.terminal is None]
        self.check("G06", not open_calls, f"{event.request_id} ends while {open_calls} are open")
        request.ending = event
        if request.cancelled_at < float("inf"):
            self._prompt("G16", request.cancelled_at, f"{event.request_id} ends")
            cancelled = isinstance(event, RequestCancelled) or _is_abrupt(event)
            self.check("G16", cancelled, f"{event.request_id} was cancelled, and ends as {event.type}")
        if request.started is not None and not request.paused:
            took = self._now() - request.started.at
            most = request.limits.timeout_seconds + self._slack(request) + _EPSILON
            self.check("G10", took <= most, f"{event.request_id} took {took:g} s of {most:g}")

    def _slack(self, _request: Request) -> float:
        """Seconds that a journal may take, in which deadlines are not looked at."""
        return 0.0 if self._journal is None else 60.0

    _HANDLERS: dict[type[Event], Callable[[Watch, Request, Any], None]] = {  # noqa: RUF012 -- a table that nobody changes
        RequestStarted: _on_started,
        MessageAppended: _on_message,
        RoundStarted: _on_round,
        ToolCallRequested: _on_requested,
        ToolCallCompleted: _on_terminal,
        ToolCallFailed: _on_terminal,
        ApprovalRequested: _on_asked,
        ApprovalDecided: _on_decided,
        CancelRequested: _on_cancel,
        ToolCallPaused: _on_paused,
        ToolCallResumed: _on_paused,
        ToolCallStarted: _on_attempt,
        ToolCallRetrying: _on_tool_retry,
        ModelRetrying: _on_model_retry,
        ToolCallLate: _on_late,
        RequestCompleted: _on_ending,
        RequestFailed: _on_ending,
        RequestCancelled: _on_ending,
    }

    # ------------------------------------------------------------------------------------------------- the model

    def sent(self, messages: Sequence[Message]) -> None:
        """What a model is sent has to be a valid transcript for all vendors."""
        try:
            self._valid(messages, "the model was sent")
        except Broken as exc:
            self.fail(exc)

    def _valid(self, messages: Sequence[Message], whose: str) -> None:
        self.checks["G08"] += 1
        try:
            validate(messages)
        except ToolbusError as exc:
            raise Broken("G08", f"{whose} a transcript that is not valid: {exc}") from exc

    # --------------------------------------------------------------------------------------------------- the end

    def ended(self, result: RequestResult[Any], *, broke: bool) -> None:
        """Check a result against what was heard of its request. `broke`: its journal failed, and not all was told."""
        request = self.requests.get(result.request_id)
        self._valid(result.messages, f"{result.request_id} leaves")
        turn = result.new_messages
        asked = [call.call_id for each in turn if isinstance(each, AssistantMessage) for call in each.tool_calls]
        answered = [each.call_id for each in turn if isinstance(each, ToolMessage)]
        self.check("G06", asked == answered, f"the turn of {result.request_id} asks {asked} and answers {answered}")
        if request is None:
            return
        contents = {each.call_id: each for each in turn if isinstance(each, ToolMessage)}
        for call_id, call in request.calls.items():
            if isinstance(call.terminal, ToolCallCompleted):
                kept = contents.get(call_id)
                self.check(
                    "G09",
                    kept is not None and kept.content == call.terminal.content,
                    f"the result of {call_id} is not in the transcript of {result.request_id}",
                )
        if broke:
            return
        self.check("G10", request.ending is not None, f"the ending of {result.request_id} was not told")
        self.check("G06", asked == list(request.calls), f"{result.request_id} was told to call {list(request.calls)}")
        self._replay(request, result)

    def _replay(self, request: Request, result: RequestResult[Any]) -> None:
        """The facts, applied again, have to give the same transcript, usage and ending.

        What people ask is heard when they do, and becomes a fact when the session takes it, as the journal has it.
        """
        facts = request.facts if self._journal is None else self._journal.facts(request.request_id) or request.facts
        if facts is request.facts and any(isinstance(fact, _ASKED) for fact in facts):
            return
        state = TurnState(
            request.request_id,
            limits=request.limits,
            messages=list(result.messages[: result.history_count]),
            providers=9,
        )
        try:
            for fact in facts:
                apply(state, fact)
        except ProtocolViolation as exc:
            raise Broken("G01", f"the facts of {request.request_id} cannot be replayed: {exc}") from exc
        same = state.messages == result.messages and state.usage == result.usage
        same = same and (state.ending is request.ending or request.ending not in facts)
        self.check("G01", same, f"the facts of {request.request_id}, replayed, give another turn")

    def digest(self) -> str:
        """What happened, in a few letters: the same for the same seed."""
        told = hashlib.sha256()
        for moment, event in self.heard:
            told.update(f"{moment:.6f} {event.type} {event.event_id} {getattr(event, 'call_id', '')}\n".encode())
        return told.hexdigest()[:16]


def _is_abrupt(ending: Event) -> bool:
    """Whether the request was left at once: by a journal that failed, or a host that did not wait."""
    return isinstance(ending, RequestCancelled) or (isinstance(ending, RequestFailed) and ending.reason == "error")
