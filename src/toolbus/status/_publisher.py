"""The publisher of a request's status: it folds the events, and publishes `StatusChanged` where that is wanted.

It belongs to a session and knows the session's bus. It knows no model and no dispatcher.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..bus import EventBus
from ..core.turn import Phase, TurnState
from ..events import Event, StatusChanged, ToolCallProgress, ToolCallRetrying
from ..protocols import ToolSpec
from ._sentences import Status, StatusFold, events_so_far


class StatusPublisher:
    """The status line of one request.

    `state` is the state of the request, which its session changes. `specs()` returns the tools by name; their `status`
    templates are used. The session passes every step's facts, in order, after they were applied and announced. The
    publisher then announces a `StatusChanged` if somebody listens for it and the status has changed.

    As long as nobody has listened, nothing is kept. Whoever begins to listen gets the present status with the next
    step, as `events_so_far` derives it from the state; the property `status` returns it at once. The signals of tools
    (`ToolCallProgress`, `ToolCallRetrying`) are followed from the first call that is requested while somebody listens
    until the request ends. Not thread-safe.
    """

    __slots__ = (
        "__weakref__",
        "_bus",
        "_fold",
        "_piece_kinds",
        "_pieces_of",
        "_receives_signals",
        "_specs",
        "_state",
        "_was_wanted",
    )

    def __init__(self, bus: EventBus, state: TurnState, specs: Callable[[], Mapping[str, ToolSpec]]) -> None:
        self._bus = bus
        self._state = state
        self._specs = specs
        self._fold: StatusFold | None = None  # None until somebody wants the status
        self._piece_kinds: tuple[type[Event], ...] = ()  # the kinds of pieces that came in this attempt at a reply
        # The round, the provider and the attempt that those pieces belong to.
        self._pieces_of: tuple[int, int, int] | None = None
        self._receives_signals = False
        self._was_wanted = False

    @property
    def status(self) -> Status:
        """The present stage and sentence, for a listener that begins now; ("idle", "") before the start."""
        return self._begin().status(self._specs())

    def publish(self, facts: Sequence[Event]) -> None:
        """Take the request's next events (at least one), and announce the status if it has changed."""
        fold = self._fold
        newest = facts[-1]
        if fold is None:
            if not self._bus.arbitration.wants(StatusChanged, newest.request_id):
                return
            # The new facts are in the state already, so that the new fold has them.
            fold, changed = self._begin(), True
        else:
            changed = False
            for event in facts:
                changed = fold.take(event) or changed
        # The status is announced once a step, because nobody can observe what was between its facts.
        if changed:
            self._announce(fold, newest.request_id, newest.at)
        if fold.ended:
            self.close()
        elif self._was_wanted and not self._receives_signals and fold.has_calls:
            self._receives_signals = True
            _receiver_of(self._bus).add(newest.request_id, self)

    def take_piece(self, kind: type[Event], request_id: str) -> None:
        """Take a piece of the model's reply, by the type of its event (`TextDelta`, `ToolArgumentsDelta`).

        The event itself need not have been built. Only the first piece of each kind in an attempt at a reply can change
        the status; the others may be left out.
        """
        fold = self._fold
        if fold is None:
            state = self._state
            attempt = (state.round, state.provider, state.attempts)
            if self._pieces_of != attempt:
                self._piece_kinds, self._pieces_of = (), attempt
            if kind in self._piece_kinds:
                return
            self._piece_kinds += (kind,)
            if not self._bus.arbitration.wants(StatusChanged, request_id):
                return
            fold = self._begin()
            self._announce(fold, request_id, self._bus.clock())
        elif fold.take_piece(kind):
            self._announce(fold, request_id, self._bus.clock())

    def narrate(self, request_id: str, call_id: str, text: str) -> None:
        """Use `text` for a call that runs, instead of its template. For a `Narrator`.

        The text is ignored for a call that has ended or has reported progress itself. Of several calls that run, the
        newest one's sentence is shown; the sentences of the others are kept until that call has ended.
        """
        fold = self._begin()
        if fold.narrate(call_id, text):
            self._announce(fold, request_id, self._bus.clock())

    def _so_far(self) -> Iterable[Event]:
        return events_so_far(self._state)

    def _begin(self) -> StatusFold:
        """Return the fold, which is made from what has happened so far when it is first needed."""
        if self._fold is None:
            self._fold = StatusFold()
            for event in self._so_far():
                self._fold.take(event)
            state = self._state
            if state.phase is Phase.MODEL and self._pieces_of == (state.round, state.provider, state.attempts):
                for kind in self._piece_kinds:
                    self._fold.take_piece(kind)
        return self._fold

    def _announce(self, fold: StatusFold, request_id: str, at: float) -> None:
        if not self._bus.arbitration.wants(StatusChanged, request_id):
            self._was_wanted = False
            # Whoever listens later has not received the last status, so that it is new to them.
            fold.forget()
            return
        self._was_wanted = True
        status = fold.new_status(self._specs())
        if status is not None:
            stage, text = status
            self._bus.arbitration.announce(StatusChanged(**self._state.envelope(at), stage=stage, text=text))

    def close(self) -> None:
        """Stop following the signals of tools, because the request has ended in this process. Idempotent."""
        if self._receives_signals:
            self._receives_signals = False
            _receiver_of(self._bus).remove(self._state.request_id)


class _SignalReceiver:
    """The receiver of the tools' signals, for all requests of one bus whose status is published.

    It is connected to the bus only while there is such a request.
    """

    __slots__ = ("_connect", "_disconnect", "_publishers")

    def __init__(self, bus: EventBus) -> None:
        self._connect = weakref.WeakMethod(bus.connect)
        self._disconnect: Callable[[], None] | None = None
        self._publishers: weakref.WeakValueDictionary[str, StatusPublisher] = weakref.WeakValueDictionary()

    def add(self, request_id: str, publisher: StatusPublisher) -> None:
        self._publishers[request_id] = publisher
        connect = self._connect()
        if self._disconnect is None and connect is not None:
            self._disconnect = connect((ToolCallProgress, ToolCallRetrying), self._on_signal)

    def remove(self, request_id: str) -> None:
        self._publishers.pop(request_id, None)
        if not self._publishers and self._disconnect is not None:
            self._disconnect()
            self._disconnect = None

    def _on_signal(self, event: Event) -> None:
        publisher = self._publishers.get(event.request_id)
        if publisher is not None:
            publisher.publish((event,))


_receivers: weakref.WeakKeyDictionary[EventBus, _SignalReceiver] = weakref.WeakKeyDictionary()


def _receiver_of(bus: EventBus) -> _SignalReceiver:
    receiver = _receivers.get(bus)
    if receiver is None:
        receiver = _receivers[bus] = _SignalReceiver(bus)
    return receiver
