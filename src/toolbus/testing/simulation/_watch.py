"""The invariants of docs/reference/guarantees.md, checked at every event of a bus, and once more at the end.

The module knows events, results, the pure core, the kinds of tools and the state of the journal, and nothing else of
how the simulated world is made. Its findings are `Broken` exceptions.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio

from ...bus import EventBus
from ...core.limits import Limits
from ...core.message_list import Messages
from ...core.output import FINAL_ANSWER
from ...core.result_notes import TICKET
from ...core.transcript import validate
from ...errors import NativeOutputUnsupported, ToolbusError
from ...events import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    DeadLetter,
    Event,
    MessageAppended,
    ModelResponded,
    ModelRetrying,
    RequestCancelled,
    RequestCompleted,
    RequestEnding,
    RequestFailed,
    RequestResumed,
    RequestStarted,
    RoundStarted,
    Spent,
    SteeringAdded,
    TerminalEvent,
    TextDelta,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallPaused,
    ToolCallRequested,
    ToolCallResumed,
    ToolCallRetrying,
    ToolCallStarted,
)
from ...messages import AssistantMessage, Message, ToolMessage, UserMessage
from ...tool_results import answer_in, failure_content
from ._accounts import Call, Request
from ._findings import Broken
from ._tools import BACKGROUND, DIRECT, EXTERNAL, IDEMPOTENT, NEEDS_APPROVAL, REMOTE, RETRIES

if TYPE_CHECKING:
    from ._disk import Handle

OUTSIDE = "from outside"
"""The content of each result that was computed outside the request's process."""

ASKED = (CancelRequested, SteeringAdded, ApprovalDecided, ToolCallPaused, ToolCallResumed)
"""The inputs that somebody gives to a request."""

_STORE_SECONDS = 5.0  # time in which a fault of the store has to be reported
_EPSILON = 1e-5  # seconds; more than the rounding of times since the epoch
_GIVEN = (ToolCallCompleted, ToolCallFailed, *ASKED)
_AFTER_THE_END = (ToolCallLate, DeadLetter, ToolCallStarted, ToolCallRetrying)
_DEFAULT_LIMITS = Limits()
_REFUSED = NativeOutputUnsupported.code


class Watch:
    """The first receiver on the bus of one process. `stop` is called with the first invariant that did not hold.

    `epoch` is the wall clock's time when the event loop's time is 0. `journal` is the journal's state, if there is one.
    None of the `secrets` may leave the process. `slack_seconds` is the time for which the process has been paused. Once
    `is_over` is true, nothing is checked any more.
    """

    def __init__(
        self,
        bus: EventBus,
        epoch: float,
        stop: Callable[[Broken], object],
        *,
        secrets: Sequence[str] = (),
        journal: Handle | None = None,
    ) -> None:
        self._bus = bus
        self._epoch = epoch
        self._stop = stop
        self._secrets = secrets
        self._streams: dict[str, str] = {}  # by message: the pieces of its text
        self.journal = journal
        self._position = bus.statistics().position
        self._ids: set[str] = set()
        self._remembered: set[str] = set() if journal is None else journal.disk.remembered
        self._allowed: set[str] = set()  # conversations in which a person's decision is remembered
        self._is_replaying = False
        self.is_over = False
        self.slack_seconds = 0.0
        self._pauses: list[tuple[float, float]] = []  # beginning and planned length of each pause
        self.requests: dict[str, Request] = {}
        self.heard: list[tuple[float, Event]] = []
        self.checks: Counter[str] = Counter()
        self.letters = 0  # dead letters and late results

    # ------------------------------------------------------------------------------------------------- every event

    def _now(self) -> float:
        return self._bus.clock()

    def note_pause(self, seconds: float) -> None:
        """Note that the process is paused from now on, for `seconds`."""
        self.slack_seconds += seconds
        self._pauses.append((self._now(), seconds))

    def _time_without_pauses(self) -> float:
        """Return the clock's time without the pauses, in which the process could do nothing."""
        now = self._now()
        return now - sum(min(now - began, seconds) for began, seconds in self._pauses)

    def __call__(self, event: Event) -> None:
        """Check one event. For `EventBus.connect`."""
        if self.is_over:
            return  # the world is being stopped, in any order
        self.heard.append((self._now() - self._epoch, event))
        if not (isinstance(event, ToolCallLate) and (event.content or event.error).startswith((OUTSIDE, "gone "))):
            self.hides(event, "listeners hear")  # Answers that strangers give after the ending are not masked.
        if isinstance(event, TextDelta) and self._secrets:
            self._streams[event.message_id] = self._streams.get(event.message_id, "") + event.text
            self.hides(self._streams[event.message_id], "listeners hear in pieces")
        try:
            self._position += 1
            self.check("G01", self._bus.statistics().position == self._position, "the bus's position is not dense")
            if isinstance(event, RequestResumed):
                self._forget_lost(event.request_id)
            is_new = event.event_id not in self._ids or self._is_asked_again(event)
            self.check("G01", is_new, f"two events have the id {event.event_id!r}")
            self._ids.add(event.event_id)
            self._check_in_request(event)
        except Broken as exc:
            self.fail(exc)

    def _is_asked_again(self, event: Event) -> bool:
        """Return whether the event is the question of a request that was resumed here: it is published once more."""
        request = self.requests.get(event.request_id)
        return isinstance(event, ApprovalRequested) and request is not None and request.resumed_at is not None

    def _is_lost(self, fact: Event) -> bool:
        """Return whether a published fact never reached the journal, as `on_store_failure="warn"` permits."""
        journal = self.journal
        return journal is not None and fact.request_id in journal.disk.given_up and not journal.disk.is_durable(fact)

    def _forget_lost(self, request_id: str) -> None:
        """Let a resumed request use the ids of lost facts, and of events that are derived from them, again."""
        request = self.requests.get(request_id)
        lost = {each.event_id for each in request.facts if self._is_lost(each)} if request is not None else set[str]()
        if lost:
            self._ids = {each for each in self._ids if each not in lost and each.rpartition("_m")[0] not in lost}

    def trusts(self, request_id: str) -> None:
        """Note that a person has allowed a tool for the rest of the conversation; the journal may not have it yet."""
        if (request := self.requests.get(request_id)) is not None:
            self._allowed.add(request.conversation)

    def check(self, guarantee: str, holds: object, problem: str) -> None:
        """Count one check; raise `Broken` if it does not hold."""
        if self._is_replaying:
            return
        self.checks[guarantee] += 1
        if not holds:
            raise Broken(guarantee, problem)

    def note(self, guarantee: str, holds: object, problem: str) -> None:
        """Check as `check` does, for the actors of the world: stop the world instead of raising."""
        try:
            self.check(guarantee, holds, problem)
        except Broken as exc:
            self.fail(exc)

    def fail(self, exc: Broken) -> None:
        """Stop the world because of a broken invariant."""
        if not self.is_over:
            self.is_over = True
            self._stop(exc)

    def _check_in_request(self, event: Event) -> None:
        handle = self._HANDLERS.get(type(event))
        request = self.requests.get(event.request_id)
        if isinstance(event, DeadLetter):
            self.letters += 1
            if request is not None:
                request.said.pop(event.rejected_event_id, None)
            return
        ending = None if request is None else request.ending
        is_again = ending is not None and (is_store_failure(event) or self._is_given_after(ending, event))
        if isinstance(event, RequestResumed) or is_again:
            # The request is to be resumed, or was. Other processes may have run it, so this state may be out of date.
            left = request is None or request.ending is None or is_store_failure(request.ending)
            left = left or (request is not None and request.ending is not None and self._is_lost(request.ending))
            self.check("G06", left, f"{event.type} of {event.request_id} after its ending")
            request = None
        if request is None:
            if handle is None or not event.is_fact:
                return
            request = self._new_request(event)
        is_kept = event.is_fact and not event.is_derived
        if is_kept:
            request.facts.append(event)
        elif event.is_fact:
            self.check("G01", self._has_cause(event), f"{event.event_id} comes before its cause")
        self.check(
            "G06" if event.is_fact else "G03",
            request.ending is None or isinstance(event, _AFTER_THE_END) or not event.is_fact,
            f"{event.type} of {event.request_id} after its ending",
        )
        if handle is not None:
            handle(self, request, event)
        if is_kept and request.started is not None:
            self._is_written(request, event)

    def _is_given_after(self, ending: Event, event: Event) -> bool:
        """Return whether an input was written by a session that was to continue the request here, and was abandoned."""
        is_written = self.journal is not None and self.journal.disk.is_durable(event)
        return isinstance(event, _GIVEN) and is_store_failure(ending) and is_written

    def _has_cause(self, derived: Event) -> bool:
        """Return whether the cause of an event was published, or is a call that may not begin here any more."""
        cause = derived.event_id.rpartition("_m")[0]
        if cause in self._ids:
            return True
        if self.journal is None:
            return False
        if derived.request_id in self.journal.disk.given_up:  # The call is not published, and may never be written.
            return isinstance(derived, MessageAppended) and getattr(derived.message, "content", "") == TICKET
        written = self.journal.disk.facts(derived.request_id)
        return any(isinstance(fact, ToolCallRequested) and fact.event_id == cause for fact in written)

    def _is_written(self, request: Request, fact: Event) -> None:
        """Check that a published fact is in the journal, except an ending that reports that the store failed."""
        journal = self.journal
        if journal is None or request.is_sub_request or is_store_failure(fact):
            return
        if isinstance(fact, RequestEnding) and journal.has_failed(fact.request_id):
            return  # the caller cancelled the request while the store failed
        if isinstance(fact, ApprovalRequested) and request.resumed_at is not None:
            return  # another process wrote the question, which is asked again
        self.check("G31", self._is_durable(fact), f"{fact.type} of {fact.request_id} is published before it is durable")

    def _new_request(self, event: Event) -> Request:
        """Add a request that begins or is resumed here; its earlier facts come from the journal."""
        view = self._bus.arbitration.view(event.request_id)
        options: Mapping[str, Any] = {} if view is None else view.options
        limits = options.get("limits") or _DEFAULT_LIMITS
        request = self.requests[event.request_id] = Request(event.request_id, limits)
        request.is_trusted = options.get("needs_approval") is False
        request.wants_output = getattr(getattr(view, "state", None), "output", None) is not None
        # A request that fails because of its store before its first event here does not know what other processes did.
        written = () if self.journal is None or is_store_failure(event) else self.journal.disk.facts(event.request_id)
        before = list(itertools.takewhile(lambda fact: fact.event_id != event.event_id, written))
        if before:
            self._is_replaying = True
            for fact in before:
                request.facts.append(fact)
                if (handle := self._HANDLERS.get(type(fact))) is not None:
                    handle(self, request, fact)
            # The messages that follow from these facts were derived in that process.
            request.answered.update(
                [each for each, call in request.calls.items() if call.terminal is not None or call.is_background]
            )
            self._is_replaying = False
            request.interrupt(self._now())
        return request

    # -------------------------------------------------------------------------------------------- kinds of events

    def _on_started(self, request: Request, event: RequestStarted) -> None:
        self.check("G06", request.started is None, f"{event.request_id} has begun twice")
        request.started = event
        above = self.requests.get(event.parent_request_id)
        request.is_sub_request = above is not None
        request.conversation = event.conversation_id if above is None else above.conversation

    def _on_resumed(self, request: Request, event: RequestResumed) -> None:
        self.check("G19", request.resumed_at is not None, f"{event.request_id} is resumed without earlier facts")

    def _on_message(self, request: Request, event: MessageAppended) -> None:
        message = event.message
        if isinstance(message, AssistantMessage) and not event.is_derived:
            self.check(
                "G06", message.text == self._direct_answer(request), f"{event.event_id} is not its tools' answer"
            )
        elif isinstance(message, AssistantMessage):
            self.check("G01", message is request.reply, f"{event.event_id} is not the newest reply")
        elif isinstance(message, ToolMessage):
            call_state = request.calls.get(message.call_id)
            terminal = None if call_state is None else call_state.terminal
            request.answered.add(message.call_id)
            if call_state is not None and message.content == TICKET and call_state.is_background:
                return
            self.check("G06", terminal, f"a result of {message.call_id} is in the transcript before it was published")
            assert terminal is not None
            expected = (
                terminal.content
                if isinstance(terminal, ToolCallCompleted)
                else failure_content(terminal.reason, terminal.error)
            )
            self.check("G07", message.content == expected, f"the transcript has another result of {message.call_id}")
        elif message.message_id.endswith("_b"):
            call = request.calls[message.message_id.removesuffix("_b")]
            self.check("G33", call.terminal is not None, f"{message.message_id} is a note without a result")
            self.check("G33", call.ticket != "noted", f"{message.message_id} is in the transcript twice")
            call.ticket = "noted"
        elif isinstance(message, UserMessage):
            if message.message_id.startswith(f"{request.request_id}_s"):
                request.joined.append(message.text)
            if any(call.is_background for call in request.calls.values()):
                request.replies = 0  # During background calls, a person's message gets as many rounds as a new turn.

    def _direct_answer(self, request: Request) -> str | None:
        """Return the answer that the results of the newest reply are; None if the model has to read them."""
        calls = [] if request.reply is None else [request.calls[each.call_id] for each in request.reply.tool_calls]
        results = [each.terminal for each in calls if each.name in DIRECT]
        done = [each for each in results if isinstance(each, ToolCallCompleted)]
        if not calls or len(done) < len(calls):
            return None
        return "\n\n".join(filter(str.strip, [answer_in(each.content) for each in done]))

    def _on_reply(self, request: Request, event: ModelResponded) -> None:
        if event.native_output:
            refused = any(isinstance(each, ModelRetrying) and each.reason == _REFUSED for each in request.facts)
            self.check("G35", not refused, f"{event.request_id} is asked natively again")
        request.reply = event.message
        request.spent += Spent(usage=event.usage, cost=event.cost or 0.0)
        names = [each.name for each in event.message.tool_calls]  # Interceptors may have edited the arguments.
        is_whole = not names or request.whole is None or names == [each.name for each in request.whole]
        self.check("G28", is_whole, f"{event.event_id} has calls of a reply that was not whole")
        for call in event.message.tool_calls:
            self.check("G06", call.call_id not in request.calls, f"call {call.call_id} was made twice")
            request.calls[call.call_id] = Call(call.name, is_background=call.name in BACKGROUND)

    def _on_round(self, request: Request, event: RoundStarted) -> None:
        open_calls = [call_id for call_id, call in request.calls.items() if call.terminal is None]
        background = [call_id for call_id in open_calls if request.calls[call_id].is_background]
        self.check("G06", open_calls == background, f"round {event.round} begins while {open_calls} are open")
        for call_id in background:
            request.calls[call_id].ticket = "given"
        since = itertools.takewhile(lambda fact: not isinstance(fact, ModelResponded), reversed(request.facts))
        # Results that are not of the output's type are read by the model.
        may_begin = background or request.wants_output or any(isinstance(fact, MessageAppended) for fact in since)
        answered = not may_begin and self._direct_answer(request) is not None
        self.check("G10", not answered, f"round {event.round} begins after tools have answered")
        missing = set[str]() if self._is_replaying else request.calls.keys() - request.answered
        self.check("G09", not missing, f"round {event.round} begins without the results of {sorted(missing)}")
        if event.call_outcomes and not any(call.is_background for call in request.calls.values()):
            self._check_at_once("G04", request.settled_at, f"round {event.round} begins")
        request.replies += 1
        limit = request.limits.max_rounds + request.limits.max_output_repairs + 1
        self.check("G10", request.replies <= limit, f"{request.replies} rounds, over {limit}")

    def _on_requested(self, request: Request, event: ToolCallRequested) -> None:
        call = request.calls.get(event.call_id)
        self.check("G06", call is not None, f"{event.call_id} is requested, and no reply asked for it")
        assert call is not None
        self.check("G06", call.requested is None, f"{event.call_id} is requested twice")
        self.check("G06", call.terminal is None, f"{event.call_id} is requested after it was settled")
        if self._is_journaled(request):
            self.check("G11", self._is_durable(event), f"{event.call_id} is requested before the fact is durable")
        if call.name in NEEDS_APPROVAL and not request.is_trusted:
            approved = call.approved or request.conversation in self._remembered
            # A sub-request has no journal.
            approved = approved or (request.is_sub_request and request.conversation in self._allowed)
            self.check("G26", approved, f"{call.name} is requested, and nobody has approved it")
        if call.before is None:
            request.requested += call.requested is None
        else:
            self._check_repeated(call, call.before, event)
        call.requested, call.before = event, None
        if event.background:
            # The request's clock may stand still from now on.
            request.paused = True
        call.deadline = event.at + event.timeout_seconds
        limit = request.limits.max_tool_calls
        self.check("G10", request.requested <= limit, f"{request.requested} calls, over max_tool_calls={limit}")

    def _check_repeated(self, call: Call, before: ToolCallRequested, event: ToolCallRequested) -> None:
        """Check a call that is requested once more, because nobody knows whether it has run."""
        request_id, call_id = event.request_id, event.call_id
        is_known = self.journal is None or request_id not in self.journal.disk.given_up
        may_run = call.name in IDEMPOTENT | EXTERNAL | REMOTE or not is_known
        self.check("G19", may_run, f"{call.name} is not idempotent, and {call_id} is requested once more")
        same = event.idempotency_key == before.idempotency_key
        self.check("G19", same, f"{call_id} is requested once more with another key")
        self.check("G19", event.resumed, f"{call_id} is requested once more, and does not say so")

    def _check_given_up(self, request: Request, call: Call, event: ToolCallFailed) -> None:
        """Check that a call which is answered elsewhere ends with its process only if nobody may answer it any more."""
        if call.name in EXTERNAL and event.reason == "interrupted" and request.started is not None:
            is_over = self._now() >= request.started.at + request.limits.timeout_seconds - _EPSILON
            may_end = is_over or request.limits.on_failure == "fail_fast"
            self.check("G19", may_end, f"{event.call_id} was open, and is not requested again")

    def _is_journaled(self, request: Request) -> bool:
        return self.journal is not None and not request.is_sub_request

    def _is_durable(self, fact: Event) -> bool:
        """Return whether a fact is durable, or its request continues without a journal."""
        journal = self.journal
        return journal is None or journal.disk.is_durable(fact) or fact.request_id in journal.disk.given_up

    def _on_terminal(self, request: Request, event: TerminalEvent) -> None:
        call = request.calls.get(event.call_id)
        if call is None and self.journal is not None and self.journal.has_failed(request.request_id):
            return  # a reply that was not written is not published, but its calls end nevertheless
        self.check("G05", call is not None, f"{event.type} of {event.call_id}, which no reply asked for")
        assert call is not None
        if request.resumed_at is not None:
            self.check("G19", call.terminal is None, f"{event.call_id} was settled elsewhere, and is settled again")
            asked = event.call_id not in request.asked_elsewhere or self._now() <= request.resumed_at + _EPSILON
            self.check("G26", asked, f"nobody was asked again about {event.call_id}")
        self.check("G06", call.terminal is None, f"{event.call_id} has two terminal events")
        if self.journal is not None and not request.is_sub_request:
            is_first = self.journal.reports(event) or event.request_id in self.journal.disk.given_up
            self.check("G31", is_first, f"{event.call_id} has a different terminal event in an earlier process")
        if isinstance(event, ToolCallFailed):
            self._check_given_up(request, call, event)
        call.terminal = event
        request.spent += event.spent or Spent()
        call.settled_at, request.settled_at = self._time_without_pauses(), self._now()
        if call.requested is None:
            # A call that is answered from outside may be answered before it is requested again.
            may_be = call.before is None or isinstance(event, ToolCallFailed) or event.content.startswith(OUTSIDE)
            self.check("G06", may_be, f"{event.call_id} did not run")
            self.check("G06", isinstance(event, ToolCallFailed) or not call.asked, f"{event.call_id} never ran")
        elif not request.paused:
            late = self._now() - call.deadline
            self.check("G12", late <= _EPSILON + self._slack(), f"{event.call_id} is settled {late:g} s late")
            if isinstance(event, ToolCallFailed) and event.reason == "timeout":
                self.check("G12", late >= -_EPSILON, f"{event.call_id} times out {-late:g} s early")

    def _on_asked(self, request: Request, event: ApprovalRequested) -> None:
        call = request.calls[event.call_id]
        self.check("G26", not call.approved, f"{event.call_id} is asked about again after it was approved")
        call.asked = request.paused = True
        request.asked_elsewhere.discard(event.call_id)

    def _on_decided(self, request: Request, event: ApprovalDecided) -> None:
        call = request.calls.get(event.call_id)
        self.check("G26", call is not None and call.asked, f"a decision on {event.call_id} that nobody asked for")
        assert call is not None
        self.check("G26", not call.approved, f"{event.call_id} is decided on again after it was approved")
        call.approved = event.approved
        if event.approved and event.remember:
            self._remembered.add(request.conversation)

    def _on_cancel(self, request: Request, event: CancelRequested) -> None:
        if event.reason == "the host cancelled the request":
            return  # nobody has asked for it
        request.cancelled_at = min(request.cancelled_at, self._now())

    def _on_steering(self, request: Request, event: SteeringAdded) -> None:
        request.said[event.event_id] = event.text

    def _check_at_once(self, guarantee: str, since: float, what: str) -> None:
        """Check that a consequence follows at once, unless it has to wait for a journal."""
        if self.journal is None and since > 0:
            waited = self._now() - since
            self.check(guarantee, waited <= _EPSILON, f"{what} {waited:g} s after what it waited for")

    def runs(self, request_id: str, call_id: str) -> None:
        """Check that the call of a handler that continues is not settled."""
        request = self.requests.get(request_id)
        call = None if request is None else request.calls.get(call_id)
        if call is not None and not self.is_over:
            since = self._time_without_pauses() - call.settled_at
            self.note("G17", since <= _EPSILON, f"the handler of {call_id} runs {since:g} s after it was to stop")

    def begins(self, request_id: str, call_id: str, key: str) -> None:
        """Check that a handler that is not idempotent begins in one process only."""
        request = self.requests.get(request_id)
        journal = self.journal
        if (
            request is None
            or journal is None
            or request.is_sub_request
            or self.is_over
            or request_id in journal.disk.given_up
        ):
            return
        is_first, first_key = journal.begins(request_id, call_id, key)
        may_run = is_first or request.calls[call_id].name in IDEMPOTENT
        self.note("G19", may_run, f"{call_id} is not idempotent, and runs in two processes")
        self.note("G19", key == first_key, f"{call_id} runs again with another key")

    def listeners(self) -> None:
        """Check that every subscription is within its bound, and counts all events that it has not delivered."""
        for each in self._bus.statistics().subscriptions:
            whole = each.delivered + each.merged + each.dropped + each.buffered
            self.note("G02", each.matched == whole, f"{each.name}: {each.matched} events matched, {whole} are counted")
            self.note("G02", each.peak <= each.capacity, f"{each.name} holds {each.peak} of {each.capacity} events")

    def _on_paused(self, request: Request, _event: Event) -> None:
        request.paused = True

    def _on_attempt(self, request: Request, event: ToolCallStarted) -> None:
        call = request.calls[event.call_id]
        if call.name in REMOTE:
            return
        limit = 1 + RETRIES.get(call.name, 0)
        self.check("G13", event.attempt == call.attempts + 1 <= limit, f"attempt {event.attempt} of {event.call_id}")
        call.attempts = event.attempt

    def _on_tool_retry(self, request: Request, event: ToolCallRetrying) -> None:
        call = request.calls[event.call_id]
        if not (request.paused or call.name in REMOTE):
            ends = self._now() + event.delay_seconds
            self.check("G13", ends < call.deadline + _EPSILON, f"{event.call_id} is to be retried past its deadline")

    def _on_model_retry(self, request: Request, event: ModelRetrying) -> None:
        number, before = event.provider_index, request.provider
        retries = [each for each in request.facts if isinstance(each, ModelRetrying) and each.round == event.round]
        retried = sum(each.provider_index == number for each in retries)
        limit = request.limits.max_model_attempts + 3  # It may be the next one, reply with nothing, or refuse a schema.
        self.check("G28", retried <= limit, f"round {event.round} is asked for {retried} times more")
        self.check("G28", number in (before, before + 1), f"provider {number} is asked after {before}")
        request.provider = number
        request.spent += Spent(usage=event.usage, cost=event.cost)
        request.not_before = 0.0 if number != before else request.not_before

    def _on_late(self, request: Request, event: ToolCallLate) -> None:
        self.letters += 1
        self.check(
            "G07", self._was_asked_for(request, event.call_id), f"{event.call_id} is late, and no reply asked for it"
        )

    def _was_asked_for(self, request: Request, call_id: str) -> bool:
        # If a request failed because of its store before its first event here, only its written facts are known.
        written = (
            () if request.started is not None or self.journal is None else self.journal.disk.facts(request.request_id)
        )
        replies = [fact.message for fact in written if isinstance(fact, ModelResponded)]
        return call_id in request.calls or any(
            call_id == each.call_id for reply in replies for each in reply.tool_calls
        )

    def _on_ending(self, request: Request, event: Event) -> None:
        if self.journal is not None and not request.is_sub_request:
            self._ends_durably(self.journal, event)
        open_calls = [call_id for call_id, call in request.calls.items() if call.terminal is None]
        is_released = self._is_journaled(request) and is_store_failure(event)  # then its calls end where it is resumed
        self.check("G06", is_released or not open_calls, f"{event.request_id} ends while {open_calls} are open")
        request.ending = event
        if not is_store_failure(event):
            unread = [call_id for call_id, call in request.calls.items() if call.ticket == "given"]
            self.check("G33", not unread, f"{event.request_id} ends, and the model has not read of {unread}")
            said = [*request.said.values()]
            is_kept = request.joined == said or self._is_lost(event)
            self.check("G32", is_kept, f"{event.request_id} ends with {request.joined} of {said} in its transcript")
        if isinstance(event, RequestCompleted) and event.outcome == "completed" and not _calls_output(request.reply):
            given_up = [
                call_id
                for call_id, call in request.calls.items()
                if call.is_background and _is_given_up(call.terminal, request.request_id)
            ]
            self.check("G33", not given_up, f"{event.request_id} completes while {given_up} run in the background")
        if request.cancelled_at < float("inf"):
            self._check_at_once("G16", request.cancelled_at, f"{event.request_id} ends")
            cancelled = isinstance(event, RequestCancelled) or is_store_failure(event)
            self.check("G16", cancelled, f"{event.request_id} was cancelled, and ends as {event.type}")
        if request.started is not None and not request.paused:
            took = self._now() - request.started.at
            limit = request.limits.timeout_seconds + self._slack() + _EPSILON
            self.check("G10", took <= limit, f"{event.request_id} took {took:g} s of {limit:g}")

    def _ends_durably(self, journal: Handle, event: Event) -> None:
        """Check that an ending is durable before it is published; a failure of the store is published at once."""
        request_id = event.request_id
        if is_store_failure(event):
            now, limit = anyio.current_time(), _STORE_SECONDS + self.slack_seconds + _EPSILON
            took = now - journal.asked_at.get(request_id, now)
            is_known = self.slack_seconds > 0 or journal.disk.newest_fault >= now - 2 * limit
            self.check("G21", is_known, f"{request_id} fails, though its store works")
            self.check("G21", took <= limit, f"{request_id} ends {took:g} s after the append that failed")
            return  # another process may resume the request; this one could not find out
        if isinstance(event, RequestFailed) and event.reason == "conversation_busy":
            return  # It was refused because of another process, and has not begun.
        self.check("G11", self._is_durable(event), f"{request_id} ends before the ending is durable")
        if not (request_id in journal.disk.given_up or journal.is_unanswered(request_id)):  # as above
            is_ours = journal.is_ours(request_id) or journal.disk.is_durable(event)
            self.check("G20", is_ours, f"{request_id} ends in two processes")

    def _slack(self) -> float:
        """Return the seconds that a journal may take, during which deadlines are not checked."""
        return 0.0 if self.journal is None else 60.0 + self.slack_seconds

    _HANDLERS: dict[type[Event], Callable[[Watch, Request, Any], None]] = {  # noqa: RUF012 -- a constant table
        RequestStarted: _on_started,
        RequestResumed: _on_resumed,
        MessageAppended: _on_message,
        RoundStarted: _on_round,
        ModelResponded: _on_reply,
        ToolCallRequested: _on_requested,
        ToolCallCompleted: _on_terminal,
        ToolCallFailed: _on_terminal,
        ApprovalRequested: _on_asked,
        ApprovalDecided: _on_decided,
        CancelRequested: _on_cancel,
        SteeringAdded: _on_steering,
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

    def sent(self, request_id: str, messages: Sequence[Message], number: int) -> None:
        """Check that a model may be asked now, as number `number`, with a transcript that is valid for all vendors."""
        try:
            self.valid(messages, "the model was sent")
            if (request := self.requests.get(request_id)) is not None:
                request.whole = ()
                mine, now = request.provider, anyio.current_time()
                self.check("G28", number == mine, f"{request_id} asks provider {number}, and has turned to {mine}")
                is_early = now < request.not_before - _EPSILON
                limits, used = request.limits, request.spent.usage
                is_left = used.input_tokens <= limits.max_input_tokens
                is_left = is_left and used.output_tokens <= limits.max_output_tokens
                is_left = is_left and (limits.max_cost is None or request.spent.cost <= limits.max_cost)
                self.check("G10", is_left, f"{request_id} asks a model, and has spent {request.spent}")
                self.check("G28", not is_early, f"{request_id} asks provider {number} before {request.not_before:g}")
        except Broken as exc:
            self.fail(exc)

    def hides(self, given: object, who: str) -> None:
        """Check that something which leaves the process has references instead of secrets."""
        if self._secrets:
            text = repr([*given] if isinstance(given, Messages) else given)
            at = next((text.index(each) for each in self._secrets if each in text), None)
            self.note("G36", at is None, f"{who} a secret: {text[max(0, (at or 0) - 300) : (at or 0) + 40]}")

    def refused(self, request_id: str, seconds: float) -> None:
        """Note that the model must not be asked again for `seconds`; infinite if the request was at fault."""
        if (request := self.requests.get(request_id)) is not None:
            request.not_before = anyio.current_time() + seconds

    def replied(self, request_id: str, reply: AssistantMessage) -> None:
        """Note that the model has given a whole reply."""
        if (request := self.requests.get(request_id)) is not None:
            request.whole = reply.tool_calls

    def valid(self, messages: Sequence[Message], whose: str) -> None:
        """Check that a transcript is valid. `whose` begins the text of the problem."""
        self.checks["G08"] += 1
        try:
            validate(messages)
        except ToolbusError as exc:
            raise Broken("G08", f"{whose} a transcript that is not valid: {exc}") from exc

    def digest(self) -> str:
        """Return a short digest of all events: the same for the same seed."""
        expected = hashlib.sha256()
        for moment, event in self.heard:
            expected.update(f"{moment:.6f} {event.type} {event.event_id} {getattr(event, 'call_id', '')}\n".encode())
        return expected.hexdigest()[:16]


def _is_given_up(terminal: Event | None, request_id: str) -> bool:
    is_own = terminal is not None and terminal.event_id.startswith(f"{request_id}_f")
    return is_own and isinstance(terminal, ToolCallFailed) and terminal.reason == "cancelled"


def _calls_output(reply: Message | None) -> bool:
    return isinstance(reply, AssistantMessage) and any(each.name == FINAL_ANSWER for each in reply.tool_calls)


def is_store_failure(ending: Event) -> bool:
    """Return whether the event ends a request at once, because its store failed or refused to let it begin."""
    return isinstance(ending, RequestFailed) and ending.reason.startswith(("store_", "turn_lost"))
