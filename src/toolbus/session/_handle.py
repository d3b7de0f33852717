"""What a caller holds of a request that runs: its result, its events, and ways to speak to it.

The actor behind it is `toolbus.session`. Knows the bus and the turn's state, and performs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import anyio

from .._logs import logger
from ..bus import EventBus, EventT, Mailbox, Overflow, Subscription, TextStream
from ..core.limits import Limits
from ..core.message_list import Messages
from ..core.output import OutputType
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
from ..protocols import LateResults, RequestView
from ..request_result import RequestResult, result_from
from ..secrets import NamedSecret, Secrecy, Vault
from ..storage import FactReader, Journal
from ._inputs import shown

__all__ = ["SessionHandle"]

_ENDINGS = (RequestCompleted, RequestFailed, RequestCancelled)


class SessionHandle:
    """The caller's side of a `RequestSession`."""

    # With slots: more attributes than an instance's dictionary shares with the others cost 1.2 KiB each.
    __slots__ = (
        "__weakref__",
        "_above",
        "_accepted",
        "_bus",
        "_done",
        "_has_left_open",
        "_is_accepted",
        "_is_told",
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
        "_unheard",
        "calls",
        "conversation_id",
        "request_id",
        "secrecy",
        "stops",
    )

    def __init__(
        self,
        bus: EventBus,
        state: TurnState,
        *,
        journal: Journal | None = None,
        raise_on_failure: bool,
        late_results: LateResults = "event",
        parent_id: str = "",
        secrets: Sequence[NamedSecret] | None = None,
    ) -> None:
        self.request_id = state.request_id
        self.conversation_id = state.conversation_id
        self.stops = False
        self._bus = bus
        self._state = state
        self.calls = state.open_calls  # by id, those that are not settled
        self._raise = raise_on_failure
        self._late: LateResults = late_results
        self._parent_id = parent_id  # of the request whose tool made this one
        self._mailbox: Mailbox | None = None
        self._result: RequestResult[Any] | None = None
        self._done: anyio.Event | None = None
        self._has_left_open = False
        self._is_told = False  # whether the ending is published
        self._accepted: anyio.Event | None = None
        self._is_accepted = False
        self._journal = journal
        self._past = journal if journal is not None and isinstance(journal, FactReader) else None
        self._unheard: Sequence[Event] = ()  # facts that are applied, and not known to be in the journal
        self._taken: set[str] = set()  # the ids of inputs that are facts of a request with a journal
        self._progress: anyio.Event | None = None  # set after each step, for those who wait for one
        self._above: SessionHandle | None = None  # the request whose vault is this one's too
        self.secrecy: Secrecy | None = None  # until there is a secret to keep
        if secrets:
            self.share_vault(Vault(secrets, self.conversation_id))

    def keep_secrets(self) -> Secrecy:
        """How the request keeps its secrets, from now on."""
        if self.secrecy is None:
            above = self._above
            self.secrecy = Secrecy(self._state, None if above is None else above.keep_secrets().vault)
            if self._mailbox is not None:
                self._mailbox.masked = self.secrecy.told
        return self.secrecy

    def share_vault(self, vault: Vault | None) -> None:
        """Keep secrets in `vault`, with others of the conversation: before the request begins."""
        if vault is not None:
            self.keep_secrets().share(vault)

    def share_secrets_of(self, above: SessionHandle) -> None:
        """Keep secrets in the vault of the request that this one works for, once either of them has any."""
        self._above = above
        if self.secrecy is not None or above.secrecy is not None:
            self.share_vault(above.keep_secrets().vault)

    def _as_told(self, exc: Exception) -> ToolbusError:
        """What broke the request, as an error of toolbus's, without secrets in its words."""
        error = exc if isinstance(exc, ToolbusError) else ToolbusError(f"{type(exc).__name__}: {exc}")
        if error is not exc:
            error.__cause__ = exc
        return error if self.secrecy is None else self.secrecy.words(error)

    @property
    def messages(self) -> Sequence[Message]:
        """The transcript so far: a read-only view that does not grow."""
        return Messages(self._state.messages)

    @property
    def limits(self) -> Limits:
        """What was agreed."""
        return self._state.limits

    @property
    def output(self) -> OutputType[Any] | None:
        """The type of the answer that was asked for."""
        return self._state.output

    @property
    def granted(self) -> dict[str, bool]:
        """Decisions on tools to be remembered, by their definition (`core.approval`): given ones and new ones."""
        return self._state.granted

    @property
    def provider_place(self) -> int:
        """The place of the provider that is asked now, among those of the request."""
        return self._state.provider

    @property
    def spent(self) -> Spent:
        """What the request has used up so far, its sub-requests included once their calls have ended."""
        state = self._state
        return Spent(usage=state.usage, tool_calls=state.tool_calls, cost=state.cost)

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

    def recalled(self) -> RequestResult[Any] | None:
        """The result of a request that another process has ended, and that does not run here; None of any other."""
        state = self._state
        return None if state.ending is None else result_from(state, lambda _call_id: None, None)

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
        return any(each.event_id == event.event_id for each in self._unheard)

    def _wake_recorded(self) -> None:
        if self._progress is not None:
            self._progress.set()
            self._progress = None

    def note_ended(self, *, is_journaled: bool) -> None:
        """The store has an end of the request, so that nobody goes on with it. For whoever keeps it.

        `is_journaled` is whether it is the one that was reported here, with all facts.
        """
        if self._result is not None:
            self._result.journaled, self._result.resumable = is_journaled, False

    def note_left_open(self) -> None:
        """Log once that other people's code has left something open in the request's task (`toolbus.left_open`)."""
        if not self._has_left_open:
            self._has_left_open = True
            logger.error(
                "a provider, an interceptor or a store has left a cancel scope or a task group open in the task of a "
                "request; open a client in the application's lifespan, or with `async with` inside the method",
                extra={"request_id": self.request_id, "conversation_id": self.conversation_id},
            )

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

        count, journal = self._state.facts - len(self._unheard), self._past
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
            view = cast("RequestView", self)  # every handle is an actor's
            self._mailbox = self._bus.arbitration.open_mailbox(self.request_id, view, parent_id=self._parent_id)
            self._mailbox.late = self._late
            self._mailbox.publishes_facts = True
            self._mailbox.publishes_inputs = self._journal is not None
            self._mailbox.masked = None if self.secrecy is None else self.secrecy.told
            self._mailbox.on_trouble = self._on_trouble
        return self._mailbox

    def _on_trouble(self, event: ToolCallFailed | CancelRequested) -> None:
        """Take note, before the session has its turn, of what makes it give up the calls that are open."""
        if isinstance(event, CancelRequested) or ends_at_once(self._state.limits, event.reason, own=False):
            self.stops = True
