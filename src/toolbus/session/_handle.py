"""What a caller holds of a request that runs: its result, its events, and ways to speak to it.

The actor behind it is `toolbus.session`. Knows the bus and the turn's state, and performs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import anyio

from ..bus import EventBus, EventT, Mailbox, Overflow, Subscription, TextStream
from ..core.message_list import Messages
from ..core.turn import TurnState, ends_at_once
from ..errors import ConfigurationError, StoreError, ToolbusError
from ..events import (
    CancelRequested,
    Event,
    ModelResponded,
    ModelRetrying,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    Spent,
    SteeringAdded,
    TextDelta,
    ToolCallFailed,
)
from ..messages import Message
from ..protocols import LateResults
from ..request_result import RequestResult
from ..status import Status
from ..storage import FactReader, Journal
from ._inputs import shown
from ._view import SessionView

__all__ = ["SessionHandle"]

_ENDINGS = (RequestCompleted, RequestFailed, RequestCancelled)


class SessionHandle:
    """The caller's side of a `RequestSession`."""

    # With slots: more attributes than an instance's dictionary shares with the others cost 1.2 KiB each.
    __slots__ = (
        "__weakref__",
        "_accepted",
        "_bus",
        "_done",
        "_is_accepted",
        "_is_ending_published",
        "_journal",
        "_late",
        "_mailbox",
        "_parent_id",
        "_past",
        "_progress",
        "_raise",
        "_result",
        "_state",
        "_taken",
        "_unpublished",
        "_view",
        "conversation_id",
        "request_id",
    )

    def __init__(
        self,
        bus: EventBus,
        state: TurnState,
        view: SessionView,
        *,
        journal: Journal | None,
        raise_on_failure: bool,
        late_results: LateResults,
        parent_id: str,
    ) -> None:
        self.request_id = state.request_id
        self.conversation_id = state.conversation_id
        self._bus = bus
        self._state = state
        self._view = view
        self._raise = raise_on_failure
        self._late: LateResults = late_results
        self._parent_id = parent_id  # of the request whose tool made this one
        self._mailbox: Mailbox | None = None
        self._result: RequestResult[Any] | None = None
        self._done: anyio.Event | None = None
        self._is_ending_published = False  # whether the ending is published
        self._accepted: anyio.Event | None = None
        self._is_accepted = False
        self._journal = journal
        self._past = journal if journal is not None and isinstance(journal, FactReader) else None
        self._unpublished: Sequence[Event] = ()  # facts that are applied, and not known to be in the journal
        self._taken: set[str] = set()  # the ids of inputs that are facts of a request with a journal
        self._progress: anyio.Event | None = None  # set after each step, for those who wait for one

    def _masked_error(self, exc: Exception) -> ToolbusError:
        """Return what broke the request as an error of toolbus's, without secrets in its words."""
        error = exc if isinstance(exc, ToolbusError) else ToolbusError(f"{type(exc).__name__}: {exc}")
        if error is not exc:
            error.__cause__ = exc
        return self._view.secrets.words(error)

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        """The application's own data about the request, which its events carry."""
        return self._view.metadata

    @property
    def status(self) -> Status:
        """The stage of the request and a sentence for people, as of now. ("idle", "") before it begins."""
        return self._view.status.status

    @property
    def messages(self) -> Sequence[Message]:
        """The transcript so far: a read-only view that does not grow."""
        return Messages(self._state.messages)

    @property
    def spent(self) -> Spent:
        """What the request has used up so far, its sub-requests included once their calls have ended."""
        return self._view.spent

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
        """Return once the request has begun and, with a journal, is durable. Also after it has ended.

        Raises the `StoreError` for which it could not be made durable.
        """
        if not self._is_accepted and self._result is None:
            if self._accepted is None:
                self._accepted = anyio.Event()
            await self._accepted.wait()
        if not self._is_accepted and self._result is not None and isinstance(self._result.error, StoreError):
            raise self._result.error

    async def recorded(self, event: Event) -> bool:
        """Wait until `event`, which was published for this request, is durable. Returns whether the request took it.

            if bus.publish(decision) and await session.recorded(decision): ...  # it survives a restart

        True once the journal has it, and at once for a request without a journal, which records nothing. False for one
        that the request had no use for any more: it went out as `DeadLetter`. What is said to a request while its
        model is asked is recorded after the reply. Cancelling the wait cancels nothing else. Raises the `StoreError`
        for which the journal could not take it. With `on_store_failure="warn"`, True may come before the store has it.
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
        """Whether an input waits for its step, or its step for the journal."""
        if self._mailbox is not None and event in self._mailbox:
            return True
        return any(each.event_id == event.event_id for each in self._unpublished)

    def _wake_recorded(self) -> None:
        if self._progress is not None:
            self._progress.set()
            self._progress = None

    def _accept(self) -> None:
        self._is_accepted = True
        if self._accepted is not None:
            self._accepted.set()

    def _wake(self) -> None:
        """The result is there: whoever waits for anything may go on."""
        for waits in (self._accepted, self._done, self._progress):
            if waits is not None:
                waits.set()

    def cancel(self, reason: str = "") -> bool:
        """Ask the request to end as `cancelled`; results that are there stay. False when it does not run (any more)."""
        return self._ask(CancelRequested, reason=reason)

    def steer(self, text: str) -> bool:
        """Add a user message at the next round boundary. False when the request does not run (any more).

        Like `cancel`, to be called on the event loop's thread; from another one publish the event thread-safely. Both
        raise `ConfigurationError` for what is no text.
        """
        return self._ask(SteeringAdded, text=text)

    def _ask(self, kind: Callable[..., CancelRequested | SteeringAdded], **fields: str) -> bool:
        if self._state.ending is not None or self._result is not None:
            return False
        for name, given in fields.items():
            if not isinstance(cast("object", given), str):  # the turn machine would break by it
                raise ConfigurationError(f"{name} is {shown(given)}; give a text")
        self._open_mailbox()
        return self._bus.publish(kind(**self._state.envelope(self._bus.clock()), **fields))

    def events(self, *kinds: type[EventT], capacity: int = 1_000, sub_requests: bool = False) -> Subscription[EventT]:
        """The request's events in order, from this call on, to its ending. Slow readers may miss signals, visibly.

        Of a request with a journal the facts so far come first, read from there at the first `anext`: also of one that
        has ended, or that another process has begun. What the journal raises, that `anext` raises.

        With `sub_requests`, those of the requests that its tools make as well: each has a `request_id` of its own, and
        its `RequestStarted` names `parent_request_id` and `parent_call_id`. The subscription is made here, not at the
        first `anext`; it is let go by itself when the request ends.
        """
        return self._listen(kinds, capacity, "drop_oldest", sub_requests=sub_requests, replays=True)

    def text(self, *, final_only: bool = False) -> TextStream:
        """The model's text as it arrives, from this call on; pieces that a slow reader missed come joined.

        With `final_only`, only the text of the last round, once it is known to be the last. Of a provider that does
        not stream, whole texts arrive. When the model is asked again (`ModelRetrying`), its text begins anew.
        """
        subscription = self._listen((TextDelta, ModelResponded, ModelRetrying, RequestCompleted), 1_000, "coalesce")
        return TextStream(subscription, final_only=final_only)

    def _listen(
        self,
        kinds: tuple[type[EventT], ...],
        capacity: int,
        overflow: Overflow,
        *,
        sub_requests: bool = False,
        replays: bool = False,
    ) -> Subscription[EventT]:
        request_id = self.request_id

        def is_over(event: Event) -> bool:
            return isinstance(event, _ENDINGS) and event.request_id == request_id

        count, journal = self._state.facts - len(self._unpublished), self._past
        subscription = self._bus.subscribe(
            *kinds,
            request_id=request_id,
            sub_requests=sub_requests,
            until=is_over,
            capacity=capacity,
            overflow=overflow,
            name=request_id,
        )
        if count and journal is not None and replays:

            async def past() -> Sequence[Event]:
                return (await journal.facts_of(request_id))[:count]

            subscription.preceded_by(past)
        if self.ended:
            subscription.close()  # there is nothing to hear any more, and a reader must not wait for it
            return subscription
        return subscription.open()

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
        return self._mailbox

    def _on_trouble(self, event: ToolCallFailed | CancelRequested) -> None:
        """Take note, before the session has its turn, of what makes it give up the calls that are open."""
        if isinstance(event, CancelRequested) or ends_at_once(self._state.limits, event.reason, own=False):
            self._view.stops = True
