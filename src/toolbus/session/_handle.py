"""The caller's handle on a running request: its result, its events, and the ways to steer or cancel it.

The actor is `RequestSession`, which derives from the handle. The handle knows the bus and the turn's state, and
performs no step itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypedDict, TypeVar, Unpack, overload

import anyio

from .._option_checks import NOT_BLANK, TEXT, check
from ..bus import Cursor, EventBus, EventT, Mailbox, Overflow, Subscription, TextStream
from ..core.approval import question_of
from ..core.turn import CallState, Phase, TurnState, ends_at_once, with_messages
from ..errors import BusError, InboxFull, StoreError, ToolbusError
from ..events import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    Event,
    ReasoningDelta,
    RequestEnding,
    Spent,
    SteeringAdded,
    TextDelta,
    ToolCallCompleted,
    ToolCallFailed,
    problem_in,
)
from ..messages import Message
from ..protocols import LateResults
from ..records import replace
from ..request_result import OutputT, RequestResult
from ..status import Status
from ..storage import MAX_WAITING_INPUTS, Journal
from ._view import SessionView

_DOING = {
    Phase.NEW: "not begun",
    Phase.READY: "between rounds",
    Phase.MODEL: "waits for the model",
    Phase.TOOLS: "waits for tools",
    Phase.ENDED: "ending",
}


class EventsOptions(TypedDict, total=False):
    """The options of `RequestSession.events` and `RequestHandle.events`, for functions that pass them on."""

    after: str
    capacity: int
    sub_requests: bool


_E1 = TypeVar("_E1", bound=Event)
_E2 = TypeVar("_E2", bound=Event)
_E3 = TypeVar("_E3", bound=Event)
_E4 = TypeVar("_E4", bound=Event)


class SessionHandle(Generic[OutputT]):
    """The caller's side of a `RequestSession`."""

    # The class has slots, because an instance with more attributes than a shared-key dictionary holds takes 1.2 KiB
    # more.
    __slots__ = (
        "__weakref__",
        "_accepted",
        "_bus",
        "_done",
        "_is_accepted",
        "_is_ending_published",
        "_journal",
        "_kept",
        "_late",
        "_mailbox",
        "_parent_id",
        "_progress",
        "_result",
        "_state",
        "_taken",
        "_unpublished",
        "_view",
        "conversation_id",
        "request_id",
    )

    def __init__(
        self, bus: EventBus, state: TurnState, view: SessionView, journal: Journal | None, parent_id: str
    ) -> None:
        self.request_id = state.request_id
        self.conversation_id = state.conversation_id
        self._bus = bus
        self._state = state
        self._view = view
        self._late: LateResults = view.options.get("late_results") or "event"
        self._parent_id = parent_id  # the id of the request whose tool made this one
        self._mailbox: Mailbox | None = None
        self._result: RequestResult[OutputT | None] | None = None
        self._done: anyio.Event | None = None
        self._is_ending_published = False
        self._accepted: anyio.Event | None = None
        self._is_accepted = False
        self._journal = journal
        # The published facts, for readers that come late.
        self._kept: list[Event] = []
        # Facts that are applied and not published, because they are not known to be in the journal.
        self._unpublished: list[Sequence[Event]] = []  # the steps that are still to be written, then published
        # The ids of the inputs that have become facts, for a request with a journal.
        self._taken: dict[str, None] = {}  # an empty set takes three times as much
        self._progress: anyio.Event | None = None  # set after each step

    def _masked_error(self, exc: Exception) -> ToolbusError:
        """Return the exception that broke the request as a `ToolbusError`, without secrets in its text."""
        error = exc if isinstance(exc, ToolbusError) else ToolbusError(f"{type(exc).__name__}: {exc}")
        if error is not exc:
            error.__cause__ = exc
        return self._view.secrets.words(error)

    def __repr__(self) -> str:
        state = self._state
        if self._result is not None:
            doing = self._result.outcome
        else:
            waits = "waits for background calls" if state.is_idle else "waits for a person"
            doing = waits if state.waiting else _DOING[state.phase]
        return f"<{type(self).__name__} {self.request_id!r}, {doing}, rounds: {len(state.rounds)}>"

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        """The application's own data about the request, which its events carry."""
        return self._view.metadata

    @property
    def status(self) -> Status:
        """The present stage of the request, and a sentence for people; ("idle", "") before it begins."""
        return self._view.status.status

    @property
    def messages(self) -> Sequence[Message]:
        """The transcript so far: a read-only view that does not grow."""
        return self._view.messages

    @property
    def spent(self) -> Spent:
        """The usage, tool calls and cost of the request so far, with those of its sub-requests."""
        return self._view.spent

    @property
    def pending_approvals(self) -> tuple[ApprovalRequested, ...]:
        """The questions that a person has still to answer, those of sub-requests included, in the order of asking.

        Each is what listeners have got, without secrets: its `name` is the tool's, and `at` is when it was asked, in
        seconds since the epoch. Answer with `approve` or `deny`. It leaves the list at once.
        """
        return self._bus.arbitration.pending_approvals(self.request_id)

    @property
    def ended(self) -> bool:
        """True once the result is available."""
        return self._result is not None

    async def result(self) -> RequestResult[OutputT | None]:
        """Wait for the end, and return the result, also when the request has failed. Any number of tasks may wait.

        The result's `output` is None if the request ended without the value that was asked for. Cancelling the wait
        does not cancel the request.
        """
        if self._result is None:
            if self._done is None:
                self._done = anyio.Event()
            await self._done.wait()
            assert self._result is not None
        return self._result

    async def has_ended(self) -> bool:
        """Return whether the request has ended, at once. A `RequestHandle` asks the store; so code may take either.

        False for a request that this process has left to another one.
        """
        return self._result is not None and not self._result.resumable

    async def accepted(self) -> None:
        """Wait until the request has begun and, with a journal, is durable. Returns also after it has ended.

        Raises the `StoreError` that kept the request from becoming durable.
        """
        if not self._is_accepted and self._result is None:
            if self._accepted is None:
                self._accepted = anyio.Event()
            await self._accepted.wait()
        if not self._is_accepted and self._result is not None and isinstance(self._result.error, StoreError):
            raise self._result.error

    async def recorded(self, event: Event) -> bool:
        """Wait until `event`, which was published for this request, is durable. Return whether the request took it.

            if bus.publish(decision) and await session.recorded(decision): ...  # it survives a restart

        Returns True once the event is in the journal, and at once for a request without a journal, which records
        nothing. Returns False for an event that the request had no use for any more, once the journal says why; it was
        published as `DeadLetter`.
        An event that arrives while the model is asked is recorded after the reply. Cancelling the wait cancels nothing
        else. Raises the `StoreError` for which the journal could not take the event. With `on_store_failure="warn"`,
        True may come before the store has the event.
        """
        if self._journal is None:
            return True
        while self._result is None and self._is_pending(event):
            if self._progress is None:
                self._progress = anyio.Event()
            await self._progress.wait()
        if event.event_id in self._taken and not self._is_pending(event):
            return True
        if self._result is not None and isinstance(self._result.error, StoreError):
            raise self._result.error
        return False

    def _is_pending(self, event: Event) -> bool:
        """Return whether an input waits for its step, or its step for the journal.

        So does one that was refused, as long as the journal lacks the reason: otherwise both could be lost.
        """
        if event.event_id in self._taken:
            return any(each.event_id == event.event_id for step in self._unpublished for each in step)
        if self._unpublished or self._mailbox is None:
            return bool(self._unpublished)
        return any(each.event_id == event.event_id or _may_refuse(each, event) for each in self._mailbox.waiting)

    def _wake_recorded(self) -> None:
        if self._progress is not None:
            self._progress.set()
            self._progress = None

    def _accept(self) -> None:
        self._is_accepted = True
        if self._accepted is not None:
            self._accepted.set()

    def _wake(self) -> None:
        """Wake everybody who waits, because the result is available."""
        for waits in (self._accepted, self._done, self._progress):
            if waits is not None:
                waits.set()

    def cancel(self, reason: str = "") -> bool:
        """Ask the request to end as `cancelled`. Results that have come are kept.

        Returns False if the request has already ended. See `steer` for threads and errors.
        """
        return self._ask(CancelRequested, reason=reason)

    def steer(self, text: str) -> bool:
        """Add a user message at the next round boundary. Return False if the request has already ended.

        If the request ends before its next round, the message is the last one of its transcript, for the next turn.

        `steer` and `cancel` are called on the event loop's thread; in a sync handler, which runs in another thread,
        write `anyio.from_thread.run_sync(session.cancel)`. Both raise `ConfigurationError` for anything that is not a
        text, and `steer` for an empty one; and `InboxFull` if 100 messages wait for the session.
        """
        return self._ask(SteeringAdded, text=check("text", text, NOT_BLANK))

    def inject(self, answer: Event) -> bool:
        """Answer a call of an `external` tool with an event that came from outside of the application.

            if session.inject(answer) and await session.recorded(answer): ...  # it survives a restart

        Returns whether the answer is the one that counts. The same event may be given again, also to the process that
        has resumed the request: it is reported once. Another answer to a settled call is published as `ToolCallLate`
        (as `DeadLetter` if an earlier process has settled it). A request that was left for another process takes no
        answer; pass it to that one. The request's own conversation, metadata and time replace those of the event, so
        that nobody outside can choose them. Raises `BusError`, and publishes nothing, for an event of any other kind or
        of another request, and for a call that is not external, has another name, or was not requested. See `steer` for
        threads.

        The call may also be one of a sub-request that runs for this request; the answer may name either request. A
        sub-request is not stored, so such an answer counts while this process lives. After the end of the sub-request,
        it raises `BusError`.
        """
        if not isinstance(answer, (ToolCallCompleted, ToolCallFailed)):
            kind = type(answer).__name__
            raise BusError(f"the {kind} is refused: only a ToolCallCompleted or a ToolCallFailed may come from outside")
        if answer.event_id in self._taken:
            return True
        own = self._state
        found = ((each, state) for each, state in _calls_of(own) if each.call.call_id == answer.call_id)
        call, state = next(found, (None, own))
        spec = None if call is None else state.tools.get(call.call.name)
        is_ours = answer.request_id in (own.request_id, state.request_id)
        if not is_ours or call is None or call.call.name != answer.name:
            problem = "this request has made no such call, or the sub-request that made it has ended"
        elif spec is None or not spec.external:
            problem = f"{answer.name} is not an external tool, so its calls are answered here"
        elif call.requested_at is None:
            problem = "the call was not requested"
        else:
            known = call.outcome is not None and call.outcome.event_id == answer.event_id
            if known or (self._result is None and answer in self._open_mailbox()):
                return True
            if self._view.released:
                return False
            answer = replace(answer, **state.envelope(self._bus.clock()))
            problem = problem_in(answer, is_kept=self._journal is not None)
            if not problem:
                is_taken = self._bus.publish(answer)
                if is_taken and state is not own:
                    self._taken[answer.event_id] = None  # This request never has the fact.
                return is_taken
        raise BusError(f"the answer to call {answer.call_id!r} is refused: {problem}")

    def deliver(self, given: Event) -> bool:
        """Give the request an input from another process: what `cancel`, `steer`, `approve` and `inject` publish.

        `given` keeps its id, so that an input which comes twice counts once. Returns whether the request takes it, as
        far as is known now: see `recorded`. Raises `BusError` for an event that is not such an input, for one of
        another request, and what `inject` raises. See `steer` for threads.
        """
        if given.event_id in self._taken or (self._mailbox is not None and given in self._mailbox):
            return True
        if isinstance(given, ApprovalDecided):
            return self._decide(given)
        if isinstance(given, (CancelRequested, SteeringAdded)):
            if given.request_id != self.request_id:
                raise BusError(f"an input of request {given.request_id!r} was given to request {self.request_id!r}")
            if self._state.ending is not None or self._result is not None or self._view.released:
                return False
            return self._publish_input(replace(given, **self._state.envelope(self._bus.clock())))
        return self.inject(given)

    def has_taken(self, event_id: str) -> bool:
        """Return whether an input with this id has become a fact of the request, in any process."""
        return event_id in self._taken

    @property
    def pending_messages(self) -> tuple[SteeringAdded, ...]:
        """The messages of `steer` that the request has not taken yet, in the order of sending.

        While the model is asked, they wait for its reply. Empty after the end.
        """
        waiting = () if self._mailbox is None or self._result is not None else self._mailbox.waiting
        return tuple([each for each in waiting if isinstance(each, SteeringAdded)])

    def approve(
        self,
        question: ApprovalRequested,
        *,
        arguments: dict[str, Any] | None = None,
        by: str = "",
        reason: str = "",
        remember: bool = False,
    ) -> bool:
        """Let the call of one of `pending_approvals` run, with the edited `arguments` if some are given.

        Returns whether this decision counts: False if somebody has decided already, or the question is not one of this
        request and its sub-requests. It decides on the tool as `question` shows it; if the tool has changed since, the
        call does not run, and the question is asked again. Raises `BusError` for anything else. See
        `ApprovalDecided` for the rest, `steer` for threads.
        """
        return self._decide(
            question_of(question).decided(approved=True, arguments=arguments, by=by, reason=reason, remember=remember)
        )

    def deny(self, question: ApprovalRequested, *, by: str = "", reason: str = "", remember: bool = False) -> bool:
        """Deny the call of one of `pending_approvals`. The model reads `reason`. Returns what `approve` returns."""
        return self._decide(question_of(question).decided(approved=False, by=by, reason=reason, remember=remember))

    def _decide(self, decision: ApprovalDecided) -> bool:
        """Publish a decision. One from another process is addressed to this request, also if a sub-request asks."""
        asked = [each for each in self.pending_approvals if each.call_id == decision.call_id]
        ids = [each.request_id for each in asked]
        if decision.request_id in ids:
            return self._bus.publish(decision)
        if decision.request_id != self.request_id or not asked:
            return self._bus.arbitration.dead_letter(decision, "no such question is open")
        # The sub-request has no journal, and this request never has the fact.
        is_taken = self._bus.publish(replace(decision, request_id=asked[0].request_id, parent_id=asked[0].parent_id))
        if is_taken:
            self._taken[decision.event_id] = None
        return is_taken

    @property
    def is_accepted(self) -> bool:
        """True once `accepted` returns at once: the request has begun and, with a journal, is durable."""
        return self._is_accepted

    def _ask(self, kind: Callable[..., CancelRequested | SteeringAdded], **fields: str) -> bool:
        for name, given in fields.items():
            check(name, given, TEXT)  # The turn machine would break on anything else later.
        if self._state.ending is not None or self._result is not None:
            return False
        return self._publish_input(kind(**self._state.envelope(self._bus.clock()), **fields))

    def _publish_input(self, given: CancelRequested | SteeringAdded) -> bool:
        """Publish an input, unless too many of its kind wait: somebody who sends them without end fills no memory.

        A message is refused then. A cancellation has no effect, since those that wait end the request.
        """
        waiting = sum(type(each) is type(given) for each in self._open_mailbox().waiting)
        if isinstance(given, CancelRequested):
            return waiting >= MAX_WAITING_INPUTS or self._bus.publish(given)
        if waiting + len(self._state.steering) >= MAX_WAITING_INPUTS:
            raise InboxFull(f"{MAX_WAITING_INPUTS} messages wait for request {self.request_id}")
        return self._bus.publish(given)

    # mypy joins the types of a variadic call into their base, so the first few are written out.
    @overload
    def events(self, a: type[_E1], b: type[_E2], /, **options: Unpack[EventsOptions]) -> Subscription[_E1 | _E2]: ...
    @overload
    def events(
        self, a: type[_E1], b: type[_E2], c: type[_E3], /, **options: Unpack[EventsOptions]
    ) -> Subscription[_E1 | _E2 | _E3]: ...
    @overload
    def events(
        self, a: type[_E1], b: type[_E2], c: type[_E3], d: type[_E4], /, **options: Unpack[EventsOptions]
    ) -> Subscription[_E1 | _E2 | _E3 | _E4]: ...
    @overload
    def events(self, *kinds: type[EventT], **options: Unpack[EventsOptions]) -> Subscription[EventT]: ...
    def events(
        self,
        *kinds: type[Any],
        after: str = "",
        capacity: int = 1_000,
        sub_requests: bool = False,
    ) -> Subscription[Any]:
        """Subscribe to the request's events, in order, from its beginning to its ending.

        A late reader misses no fact: the facts so far come first, also if the request has ended, or was begun by
        another process. If the model is answering, the reasoning and the text so far come after them, as one
        `ReasoningDelta` and one `TextDelta`; other past signals are gone. With `after="now"` only later events come.
        With `after=cursor`, an earlier `Subscription.cursor`, those come that its reader does not have, in any process:
        facts, and the rest of the reasoning and text of a reply that is arriving. A reader that is slow from then on
        may miss signals, and the gap is announced; a cursor after a gap gives both from their beginning again.

        The session keeps its facts for that (about 5 KB for three rounds of two calls). With `sub_requests`, the events
        of the requests that its tools make from now on are included: each has a `request_id` of its own, and its
        `RequestStarted` names `parent_request_id` and `parent_call_id`. The subscription begins with this call, not
        with the first `anext`, and closes when the request ends.
        """
        begins = None if after == "now" else Cursor.read(self.request_id, after) if after else Cursor(self.request_id)
        return self._listen(kinds, capacity, "drop_oldest", sub_requests=sub_requests, begins=begins)

    def text(self, *, final_only: bool = False) -> TextStream:
        """Stream the model's text from the beginning of the request, as it arrives. Missed pieces come as one.

        With `final_only`, only the text of the last round comes, once it is known to be the last. A provider that does
        not stream gives whole texts. When the model is asked again (`ModelRetrying`), its text begins anew: a reader
        gets what came before, an empty line, and the whole new text.
        """
        subscription = self._listen(TextStream.kinds, 1_000, "coalesce", begins=Cursor(self.request_id))
        return TextStream(subscription, final_only=final_only)

    def _listen(
        self,
        kinds: tuple[type[EventT], ...],
        capacity: int,
        overflow: Overflow,
        *,
        sub_requests: bool = False,
        begins: Cursor | None,
    ) -> Subscription[EventT]:
        request_id = self.request_id

        def is_over(event: Event) -> bool:
            return isinstance(event, RequestEnding) and event.request_id == request_id

        subscription = self._bus.subscribe(
            *kinds,
            request_id=request_id,
            sub_requests=sub_requests,
            until=is_over,
            capacity=capacity,
            overflow=overflow,
            name=request_id,
        )
        if begins is not None:
            subscription.preceded_by(self._past_events(), begins)
        if self.ended:
            # No event will come any more, and a reader must not wait for one.
            subscription.close()
            return subscription
        return subscription.open()

    def _past_events(self) -> Sequence[Event]:
        """Return the request's facts until now, with the messages derived from them, and the text so far."""
        if not self._kept:
            return ()
        # Without a journal, inputs are published when they come, and the next step makes them facts.
        inputs = self._mailbox.waiting if self._mailbox is not None and not self._mailbox.publishes_inputs else ()
        return [*with_messages(self._state, self._kept), *inputs, *self._open_reply()]

    def _open_reply(self) -> Sequence[ReasoningDelta | TextDelta]:
        """Return the reasoning and the text of the reply that is arriving, each as one piece if there is any."""
        call = self._view.model_call
        if call is None:
            return ()
        about: Any = {"message_id": call.command.message_id, "round": call.command.round}
        about |= self._state.envelope(self._bus.clock())
        pieces = ((ReasoningDelta, call.reasoning), (TextDelta, call.texts))
        return [kind(**about, text="".join(texts)) for kind, texts in pieces if texts]

    def _open_mailbox(self) -> Mailbox:
        if self._mailbox is None:
            self._mailbox = self._bus.arbitration.open_mailbox(self.request_id, self._view, parent_id=self._parent_id)
            self._mailbox.late = self._late
            self._mailbox.publishes_facts = True
            self._mailbox.publishes_inputs = self._journal is not None
            secrets = self._view.secrets
            secrets.mailbox = self._mailbox
            if secrets.vault is not None:
                self._mailbox.masked = secrets.mask
            self._mailbox.on_trouble = self._on_trouble
            # A resumed request has calls that another process has opened, and whose answer may come at any time.
            self._bus.arbitration.open_calls(self._mailbox, self._state.open_calls)
        return self._mailbox

    def _on_trouble(self, event: ToolCallFailed | CancelRequested) -> None:
        """Note a failure or a cancellation that makes the session give up its open calls, before its task runs."""
        if isinstance(event, CancelRequested) or ends_at_once(self._state.limits, event.reason, own=False):
            self._view.is_stopping = True


def _calls_of(state: TurnState) -> Iterator[tuple[CallState, TurnState]]:
    """Yield the calls of a request, each with the state of its request, then those of the sub-requests that run."""
    for current in state.rounds:
        for each in current.calls:
            yield each, state
    for each in state.open_calls.values():
        for below in each.sub_requests:
            yield from _calls_of(below.state)


def _may_refuse(waiting: Event, event: Event) -> bool:
    """Return whether an input that waits may be the reason why `event` was refused.

    Others may wait as long as the model takes: what a person has said, and the result of another call.
    """
    if isinstance(waiting, (ToolCallCompleted, ToolCallFailed)):
        return getattr(event, "call_id", waiting.call_id) == waiting.call_id
    return not isinstance(waiting, SteeringAdded)
