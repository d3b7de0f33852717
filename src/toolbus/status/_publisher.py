"""Tells where a request stands: its events, folded by `core.narration`, go out as `StatusChanged` where that is wanted.

Belongs to a session and knows its bus, no model and no dispatcher. Status is for people: nothing depends on it, and it
may be missed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..bus import EventBus
from ..core.turn import Phase, TurnState
from ..events import (
    Event,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    StatusChanged,
    ToolCallProgress,
    ToolCallRetrying,
)
from ..protocols import ToolSpec
from ._stages import Narration, Status, events_so_far

__all__ = ["StatusTeller"]

_ENDINGS = (RequestCompleted, RequestFailed, RequestCancelled)


class StatusTeller:
    """The status line of one request.

    `state` is the request's, which its session changes; `specs()` gives the tools by name, whose `status` templates are
    used. Told of every step's facts, in order, applied and announced, it announces a `StatusChanged` when somebody
    wants one and there is something new to say.

    While nobody has wanted any, nothing is kept: whoever begins to listen hears the present status with the next step,
    as `core.narration.events_so_far` tells it from the state; `status` says it at once. What tools say of themselves
    (`ToolCallProgress`, `ToolCallRetrying`) is heard from the first call on that is requested while somebody listens,
    until the request ends. Not thread-safe.
    """

    __slots__ = ("__weakref__", "_bus", "_heard", "_heard_at", "_hears", "_narration", "_said", "_specs", "_state")

    def __init__(self, bus: EventBus, state: TurnState, specs: Callable[[], Mapping[str, ToolSpec]]) -> None:
        self._bus = bus
        self._state = state
        self._specs = specs
        self._narration: Narration | None = None  # until somebody wants to hear it
        self._heard: tuple[type[Event], ...] = ()  # the kinds of pieces that came in this attempt at a reply
        self._heard_at = (-1, 0, 0)
        self._hears = False
        self._said = False

    @property
    def status(self) -> Status:
        """The stage and the sentence as of now, for somebody who begins to listen; ("idle", "") before the start."""
        return self._begin().status(self._specs())

    def tell(self, event: Event) -> None:
        """`tell_all`, for one event."""
        self.tell_all((event,))

    def tell_all(self, facts: Sequence[Event]) -> None:
        """Take note of the request's next events (at least one) and announce the status where it has changed."""
        narration = self._narration
        newest = facts[-1]
        if narration is None:
            if not self._bus.arbitration.wants(StatusChanged, newest.request_id):
                return
            narration, changed = self._begin(), True  # the facts are in the state already
        else:
            changed = False
            for event in facts:
                changed = narration.take(event) or changed
        if changed:  # once a step: nobody can see what was between
            self._announce(narration, newest.request_id, newest.at)
        if narration.ended:
            self.close()
        elif self._said and not self._hears and narration.has_calls:
            self._hears = True
            _ear_of(self._bus).add(newest.request_id, self)

    def hear(self, kind: type[Event], request_id: str) -> None:
        """As `tell`, for a piece of the model's reply (`TextDelta`, `ToolArgumentsDelta`), built or not.

        Of each kind, only the first piece of an attempt at a reply says anything new; the others may be left out.
        """
        narration = self._narration
        if narration is None:
            state = self._state
            attempt = (state.round, state.provider, state.attempts)
            if self._heard_at != attempt:
                self._heard, self._heard_at = (), attempt
            if kind in self._heard:
                return
            self._heard += (kind,)
            if not self._bus.arbitration.wants(StatusChanged, request_id):
                return
            narration = self._begin()
            self._announce(narration, request_id, self._bus.clock())
        elif narration.hear(kind):
            self._announce(narration, request_id, self._bus.clock())

    def narrate(self, request_id: str, call_id: str, text: str) -> None:
        """Say `text` of a call that runs, in the place of its template: for a `Narrator`.

        Ignored for a call that has ended, or said something itself. Of several calls that run the newest one's
        sentence is shown; the others' are kept until it has ended.
        """
        narration = self._begin()
        if narration.narrate(call_id, text):
            self._announce(narration, request_id, self._bus.clock())

    def _so_far(self) -> Iterable[Event]:
        return events_so_far(self._state)

    def _begin(self) -> Narration:
        """The narration, told of what has happened."""
        if self._narration is None:
            self._narration = Narration()
            for event in self._so_far():
                self._narration.take(event)
            state = self._state
            if state.phase is Phase.MODEL and self._heard_at == (state.round, state.provider, state.attempts):
                for kind in self._heard:
                    self._narration.hear(kind)
        return self._narration

    def _announce(self, narration: Narration, request_id: str, at: float) -> None:
        if not self._bus.arbitration.wants(StatusChanged, request_id):
            self._said = False
            narration.forget()  # whoever listens later was not told of what was said before
            return
        self._said = True
        status = narration.say(self._specs())
        if status is not None:
            stage, text = status
            self._bus.arbitration.announce(StatusChanged(**self._state.envelope(at), stage=stage, text=text))

    def close(self) -> None:
        """Hear no more of what tools say of themselves: the request has ended here. Idempotent."""
        if self._hears:
            self._hears = False
            _ear_of(self._bus).remove(self._state.request_id)


class _Ear:
    """Hears what tools say of themselves, for all requests of one bus whose status is told. Deaf with none."""

    __slots__ = ("_connect", "_disconnect", "_tellers")

    def __init__(self, bus: EventBus) -> None:
        self._connect = weakref.WeakMethod(bus.connect)
        self._disconnect: Callable[[], None] | None = None
        self._tellers: weakref.WeakValueDictionary[str, StatusTeller] = weakref.WeakValueDictionary()

    def add(self, request_id: str, teller: StatusTeller) -> None:
        self._tellers[request_id] = teller
        connect = self._connect()
        if self._disconnect is None and connect is not None:
            self._disconnect = connect((ToolCallProgress, ToolCallRetrying), self._hear)

    def remove(self, request_id: str) -> None:
        self._tellers.pop(request_id, None)
        if not self._tellers and self._disconnect is not None:
            self._disconnect()
            self._disconnect = None

    def _hear(self, event: Event) -> None:
        teller = self._tellers.get(event.request_id)
        if teller is not None:
            teller.tell(event)


_ears: weakref.WeakKeyDictionary[EventBus, _Ear] = weakref.WeakKeyDictionary()


def _ear_of(bus: EventBus) -> _Ear:
    ear = _ears.get(bus)
    if ear is None:
        ear = _ears[bus] = _Ear(bus)
    return ear
