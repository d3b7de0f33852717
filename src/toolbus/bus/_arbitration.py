"""Arbitration: the one object that decides which event answers a tool call.

A call is opened before anybody can answer it. Its first terminal event settles it, a later one becomes `ToolCallLate`,
and one for a call that nobody opened becomes a `DeadLetter`. So ids stay correct in every race.

Knows the broadcast and the mailboxes. Must not know what a session does with a result.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from ..core.approval import bound
from ..errors import BusError
from ..events import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    DeadLetter,
    Event,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallPaused,
    ToolCallRequested,
    ToolCallResumed,
    problem_in,
)
from ..records import replace
from ._broadcast import Broadcast
from ._mailbox import Mailbox

if TYPE_CHECKING:
    from ..protocols import LateResults, RequestView

_Terminal: TypeAlias = ToolCallCompleted | ToolCallFailed
_Key: TypeAlias = tuple[str, str]

ADDRESSED = frozenset[type[Event]]({CancelRequested, SteeringAdded, ApprovalDecided, ToolCallPaused, ToolCallResumed})
"""The types of events, beside the terminal ones, that are accepted only if a session waits for them."""
_PAUSES = (ToolCallPaused, ToolCallResumed)
_logger = logging.getLogger("toolbus.bus")


def _failed(event: _Terminal, mailbox: Mailbox | None, problem: str) -> ToolCallFailed:
    """Return the failure of a call whose answer cannot be used, and log it."""
    name, view = str(event.name), None if mailbox is None else mailbox.view
    text = "call %s: the answer to tool %s cannot be used: %s"
    _logger.warning(text, event.call_id, name, problem, extra=_ids(event.request_id, event.call_id))
    return ToolCallFailed(
        request_id=event.request_id,
        conversation_id="" if view is None else view.conversation_id,
        metadata=None if view is None else view.metadata,
        call_id=event.call_id,
        name=name,
        reason="error",
        error=f"The answer of {name} cannot be used: {problem}.",
        outcome_unknown=True,
    )


def _ids(request_id: str, call_id: str) -> dict[str, str]:
    """Return the extra fields of a log record about a call."""
    return {"request_id": request_id, "call_id": call_id}


class Arbitration:
    """The part of the bus that only sessions and executors use: `EventBus.arbitration`. All others publish and listen.

    A session opens a mailbox for its request and then the calls of each reply, claims the calls that it settles itself,
    and announces its facts. An executor watches the calls that it runs. `mailboxes` are the mailboxes of the requests
    that run here, by request id. `max_settled` is the number of settled calls that are remembered.

    Example:
        from toolbus.bus import Arbitration, EventBus, Mailbox
        from toolbus.events import ToolCallCompleted

        async def settle_once() -> None:  # what a session does; applications use sessions
            bus = EventBus()
            arbitration: Arbitration = bus.arbitration
            arbitration.bind()
            mailbox: Mailbox = arbitration.open_mailbox("r1")
            arbitration.open_calls(mailbox, ["c1", "c2"])
            answer = ToolCallCompleted(request_id="r1", call_id="c1", name="add", content="5")
            print(bus.publish(answer), bus.publish(answer))  # True False
            print(arbitration.claim("r1", "c2"), arbitration.claim("r1", "c2"))  # True False

        await settle_once()
    """

    def __init__(self, broadcast: Broadcast, *, max_settled: int) -> None:
        self.mailboxes: dict[str, Mailbox] = {}
        self.mailboxes_peak = 0
        self.open_calls_peak = 0
        self.late = 0
        self.dead_letters = 0
        self.announce = broadcast.announce
        """Broadcast events without arbitration, in order: for sessions, which have claimed what they announce.

        All of them are delivered, even if a listener raises.
        """
        self.wants = broadcast.wants
        """Return whether anybody would hear an event of a type of a request; if not, it does not have to be built."""
        self.bind = broadcast.bind
        """Bind the bus to the event loop that runs now. Sessions, dispatchers and subscriptions begin with it."""
        self.close_subscriptions = broadcast.close_subscriptions
        """End the subscriptions to one request that continues in another process."""
        self._broadcast = broadcast
        self._max_settled = max_settled
        self._open = 0  # the number of calls that wait for their terminal event; their mailboxes have them
        self._questions: dict[_Key, ApprovalRequested] = {}  # those that nobody has answered, in the order of asking
        self._settled: dict[_Key, LateResults] = {}
        self._settled_order: deque[_Key] = deque()

    # ------------------------------------------------------------------------------------------------ requests

    def open_mailbox(self, request_id: str, view: RequestView | None = None, *, parent_id: str = "") -> Mailbox:
        """Open the mailbox of a request that begins. `view` is what handlers may see of the request.

        `parent_id` is the id of the request that has started this one in a tool call: whoever listens to the
        sub-requests of that request also hears this one. Raises `BusError` if the request has a mailbox already.
        """
        if request_id in self.mailboxes:
            raise BusError(f"request {request_id!r} has a mailbox already")
        if not self.mailboxes:  # A bus moves to another event loop only while it is idle.
            self.bind()
        clock = self._broadcast.clock
        assert clock is not None
        mailbox = self.mailboxes[request_id] = Mailbox(request_id, view, clock.timers.new_event)
        if parent_id:
            self._broadcast.nest(request_id, parent_id)
        self.mailboxes_peak = max(self.mailboxes_peak, len(self.mailboxes))
        return mailbox

    def close_mailbox(self, mailbox: Mailbox) -> None:
        """Forget a request that has ended. Calls that are still open are settled, so that a later result is late."""
        if self.mailboxes.get(mailbox.request_id) is mailbox:
            del self.mailboxes[mailbox.request_id]
            self._broadcast.above.pop(mailbox.request_id, None)
        for call_id in [*mailbox.open_calls]:
            self._settle(mailbox, call_id)

    def view(self, request_id: str) -> RequestView | None:
        """Return what handlers may see of a request; None for one that does not run in this process."""
        mailbox = self.mailboxes.get(request_id)
        return None if mailbox is None else mailbox.view

    # --------------------------------------------------------------------------------------------------- calls

    def open_calls(self, mailbox: Mailbox, call_ids: Iterable[str]) -> None:
        """Expect one terminal event for each call. Open all calls of a round before the first of them is announced."""
        before = len(mailbox.open_calls)
        mailbox.open_calls.update(dict.fromkeys(call_ids))
        self._open += len(mailbox.open_calls) - before
        self.open_calls_peak = max(self.open_calls_peak, self._open)

    def adopt(
        self,
        requested: ToolCallRequested,
        *,
        remaining_seconds: float,
        attempt: int = 1,
        view: RequestView | None = None,
    ) -> bool:
        """Open a call that a session in another process has requested, and announce it to the executors on this bus.

        This is for workers, which run calls on another machine than the sessions, and the only way for such a call to
        run: `watch` refuses all others. So adopt only what your transport vouches for. Listen for the call's terminal
        event to answer it, and `claim` a call that was settled elsewhere, which stops its handler. `view` is what
        handlers may see of the request. The calls of one request share a mailbox, which is closed when the last of them
        is settled. The worker answers for a call that may have run before: here it is announced as not `resumed`.

        `remaining_seconds` is the time until the call's deadline, as its session has sent it. A transport that knows
        how long the call has waited on the way takes that off; the session stops the call at its deadline in any case.
        The clocks of two machines differ, so the call is announced as requested now, by this bus's clock. `attempt`
        counts from 1 how often the transport has delivered the call, for `ToolContext.attempt`.

        Returns whether the call runs here. If no executor on this bus takes it on, it is closed again, so that another
        worker may have it, and that is logged. A call that runs here already, because it was delivered twice, is not
        announced again. Raises `BusError` if the request itself runs on this bus, and in a receiver.
        """
        request_id = requested.request_id
        if self._broadcast.is_delivering:
            raise BusError("a receiver cannot adopt a call: executors would hear it only afterwards")
        mailbox = self.mailboxes.get(request_id)
        if mailbox is None:
            mailbox = self.open_mailbox(request_id)
            mailbox.is_adopted = True
        elif not mailbox.is_adopted:
            raise BusError(f"call {requested.call_id!r} cannot be adopted: its request {request_id!r} runs on this bus")
        elif self.is_open(request_id, requested.call_id):
            return True
        mailbox.view = view
        self.open_calls(mailbox, [requested.call_id])
        clock = self._broadcast.clock
        assert clock is not None
        self.announce(replace(requested, at=clock(), timeout_seconds=remaining_seconds, attempt=attempt, resumed=False))
        if requested.call_id not in mailbox.open_calls or mailbox.open_calls[requested.call_id] is not None:
            return True
        ids = _ids(request_id, requested.call_id)
        _logger.warning(
            "call %s: tool %s was not run: no executor here has taken it on",
            requested.call_id,
            requested.name,
            extra=ids,
        )
        self.claim(request_id, requested.call_id)
        return False

    def open_approval(self, mailbox: Mailbox, question: ApprovalRequested) -> None:
        """Expect one `ApprovalDecided` for this call: the first one counts, a later one becomes a `DeadLetter`."""
        key = (mailbox.request_id, question.call_id)
        if question.call_id in mailbox.open_calls:
            self._questions.pop(key, None)  # A question that is asked again is the newest one.
            self._questions[key] = question

    def pending_approvals(self, request_id: str = "") -> tuple[ApprovalRequested, ...]:
        """Return the questions that a person has still to answer, in the order of asking.

        With `request_id`, only those of that request and its sub-requests.
        """
        above = self._broadcast.above
        return tuple(
            [
                each
                for each in [*self._questions.values()]  # whole, as another thread may want the number
                if not request_id or request_id in (each.request_id, *above.get(each.request_id, ()))
            ]
        )

    def claim(self, request_id: str, call_id: str, *, late: LateResults | None = None) -> bool:
        """Settle a call on behalf of its session. `late` replaces what its request wants of a late result.

        False if a terminal event was published first; in that case the event is in the mailbox.
        """
        mailbox = self.mailboxes.get(request_id)
        if mailbox is None or call_id not in mailbox.open_calls:
            return False
        self._settle(mailbox, call_id, late)
        return True

    def watch(self, request_id: str, call_id: str, settled: Callable[[], None]) -> bool:
        """Take a call on, as its executor. `settled` is called when the call is settled, so that the executor can stop.

        False if the call must not be run here: another executor has taken it on, it is settled already, or no session
        of this bus has opened it. In the last case the requested call was forged or came from elsewhere, and that is
        logged. `settled` is called once, inline, before the terminal event is broadcast; it must be quick and must not
        publish. An exception from it is logged.
        """
        mailbox = self.mailboxes.get(request_id)
        if mailbox is None or call_id not in mailbox.open_calls:
            key = (request_id, call_id)
            if key not in self._settled:
                _logger.warning("call %s was not run: no session here has opened it", call_id, extra=_ids(*key))
            return False
        if mailbox.open_calls[call_id] is not None:
            return False
        mailbox.open_calls[call_id] = settled
        return True

    def unwatch(self, request_id: str, call_id: str) -> None:
        """Stop watching a call. Idempotent."""
        if self.is_open(request_id, call_id):
            self.mailboxes[request_id].open_calls[call_id] = None

    def is_open(self, request_id: str, call_id: str) -> bool:
        """Return whether the call still waits for its terminal event."""
        mailbox = self.mailboxes.get(request_id)
        return mailbox is not None and call_id in mailbox.open_calls

    def count_open_calls(self) -> int:
        """Return the number of calls that wait for their terminal event."""
        return self._open

    def count_questions(self) -> int:
        """Return the number of questions that a person has still to answer."""
        return len(self._questions)

    def count_settled(self) -> int:
        """Return the number of settled calls that are remembered."""
        return len(self._settled)

    # ------------------------------------------------------------------------------------------- what publish does

    def accept_terminal(self, event: _Terminal, cause: BaseException | None) -> bool:
        """Settle the call of a published terminal event, and broadcast it unless its session does; or refuse it.

        An event that cannot be used fails its call, since its publisher cannot know of it in any other way. An event
        without `spent` may come from somebody other than the call's executor, so what the call's sub-requests have
        used is added.
        """
        mailbox, problem = self.mailboxes.get(event.request_id), ""
        watched = None if mailbox is None else mailbox.open_calls.get(event.call_id)
        if watched is None:  # Nobody vouches for the answer of a call that no executor has taken on.
            problem = problem_in(event, is_kept=mailbox is not None and mailbox.publishes_inputs)
            event = _failed(event, mailbox, problem) if problem else event
        if mailbox is None:
            return self._refuse_terminal(event)
        if mailbox.masked is not None:
            event = cast("_Terminal", mailbox.masked(event))
        if watched is None and event.call_id not in mailbox.open_calls:
            return self._refuse_terminal(event)
        if mailbox.spent is not None and event.spent is None:
            event = replace(event, spent=mailbox.spent(event.call_id))
        mailbox.put(event, cause)
        self._settle(mailbox, event.call_id)
        if not mailbox.publishes_inputs:
            self.announce(event)
        return not problem

    def accept(self, event: Event) -> bool:
        """Accept or refuse another published event, and broadcast it unless its session does: see `EventBus.publish`.

        The secrets of its request are masked first.
        """
        mailbox = self.mailboxes.get(event.request_id)
        if mailbox is not None and mailbox.masked is not None:
            event = mailbox.masked(event)
        if type(event) in ADDRESSED:
            if mailbox is None:
                return self.dead_letter(event, "no such request runs here")
            if problem := problem_in(event, is_kept=mailbox.publishes_inputs):
                return self.dead_letter(event, f"it cannot be used: {problem}")
            if isinstance(event, ApprovalDecided):
                if self._questions.pop((event.request_id, event.call_id), None) is None:
                    # No session has asked this question, or somebody has answered it.
                    return self.dead_letter(event, "no approval is open")
            elif isinstance(event, _PAUSES) and not self.is_open(event.request_id, event.call_id):
                return self.dead_letter(event, "no such call is open")
            mailbox.put(bound(event) if isinstance(event, ApprovalDecided) else event)
        elif mailbox is not None and mailbox.publishes_facts and event.is_fact:
            return self.dead_letter(event, "only the session of a running request publishes its facts")
        else:
            self.announce(event)
            return True
        if not mailbox.publishes_inputs:
            self.announce(event)
        return True

    def _refuse_terminal(self, event: _Terminal) -> Literal[False]:
        """Announce a terminal event for a call that is not open: as `ToolCallLate`, or as a `DeadLetter`."""
        how = self._settled.get((event.request_id, event.call_id))
        if how is None:
            return self.dead_letter(event, "no such call is open")
        self.late += 1
        if how == "drop":
            return False
        completed = isinstance(event, ToolCallCompleted)
        late = ToolCallLate(
            **self._broadcast.envelope_of(event),
            call_id=event.call_id,
            name=event.name,
            event_type="tool_call_completed" if completed else "tool_call_failed",
            content=event.content if completed else "",
            parts=event.parts if completed else (),
            error="" if completed else event.error,
            for_next_turn=how == "next_turn",
        )
        mailbox = self.mailboxes.get(event.request_id)
        if mailbox is None or not mailbox.holds(late):
            self.announce(late)
        return False

    def _settle(self, mailbox: Mailbox, call_id: str, late: LateResults | None = None) -> None:
        """Close an open call and remember it, so that another result is late; then stop its executor."""
        settled = mailbox.open_calls.pop(call_id)
        self._open -= 1
        key = (mailbox.request_id, call_id)
        if self._questions:
            self._questions.pop(key, None)
        if mailbox.publishes_inputs:
            mailbox.unpublished[call_id] = None
        self._settled[key] = late or mailbox.late
        self._settled_order.append(key)
        if len(self._settled_order) > self._max_settled:
            self._settled.pop(self._settled_order.popleft(), None)
        if settled is not None:
            try:
                settled()
            except Exception:  # A fault of the executor must not lose the result that has settled its call.
                _logger.exception("call %s: the watch on it failed", call_id, extra=_ids(*key))
        if mailbox.is_adopted:
            mailbox.drain()
            if not mailbox.open_calls:
                self.close_mailbox(mailbox)

    def dead_letter(self, event: Event, reason: str) -> Literal[False]:
        """Announce that `event` was not accepted, and log it. Sessions use it for inputs that came too late."""
        self.dead_letters += 1
        call_id: str = getattr(event, "call_id", "")
        extra = {**_ids(event.request_id, call_id), "event_id": event.event_id}
        _logger.warning("request %s: %s was not accepted: %s", event.request_id, event.type, reason, extra=extra)
        self.announce(
            DeadLetter(
                **self._broadcast.envelope_of(event),
                event_type=event.type,
                rejected_event_id=event.event_id,
                call_id=call_id,
                reason=reason,
            )
        )
        return False
