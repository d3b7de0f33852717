"""Tells where a request stands: its events, folded by `core.narration`, go out as `StatusChanged` where that is wanted.

Belongs to a session and knows its bus, no model and no dispatcher. Status is for people: nothing depends on it, and it
may be missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .bus import EventBus
from .core.narration import Narration, Status
from .events import (
    Event,
    ModelRetrying,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RoundStarted,
    StatusChanged,
    ToolCallProgress,
    ToolCallRequested,
    ToolCallRetrying,
)
from .protocols import ToolSpec

__all__ = ["StatusTeller"]

_ENDINGS = (RequestCompleted, RequestFailed, RequestCancelled)


class StatusTeller:
    """The status line of one request.

    `envelope(at)` gives the fields that each event of the request carries (`TurnState.envelope`), `specs()` the tools
    by name, whose `status` templates are used. Told of every fact, in order and behind its announcement, it announces a
    `StatusChanged` when somebody wants one and there is something new to say.

    While nobody has wanted any, the facts of the current round are kept and not looked at: a third of a microsecond a
    step. So whoever begins to listen hears the right status from the next change on, and `status` says it at once. What
    tools say of themselves (`ToolCallProgress`, `ToolCallRetrying`) is heard from the first call on that is requested
    while somebody listens, until the request ends. Not thread-safe.
    """

    __slots__ = ("_bus", "_envelope", "_heard", "_hears", "_kept", "_narration", "_said", "_specs")

    def __init__(
        self,
        bus: EventBus,
        envelope: Callable[[float], Mapping[str, Any]],
        specs: Callable[[], Mapping[str, ToolSpec]],
    ) -> None:
        self._bus = bus
        self._envelope = envelope
        self._specs = specs
        self._narration: Narration | None = None  # until somebody wants to hear it
        self._kept: list[Sequence[Event] | type[Event]] = []  # what it has to be told then: steps, and kinds of pieces
        self._heard: tuple[type[Event], ...] = ()  # those kinds since the model was asked
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
        """Take note of the request's next events (at least one) and announce the status where it has changed.

        Each event is told once; `facts` is not changed afterwards.
        """
        narration = self._narration
        if narration is None:
            if not self._bus.wants(StatusChanged, facts[0].request_id):
                self._keep(facts)
                return
            narration = self._begin()
        for event in facts:
            if narration.take(event):
                self._announce(narration, event.request_id, event.at)
                if type(event) is ToolCallRequested and self._said and not self._hears:
                    self._listen(event.request_id)

    def hear(self, kind: type[Event], request_id: str) -> None:
        """As `tell`, for a piece of the model's reply (`TextDelta`, `ToolArgumentsDelta`), built or not.

        To be called for every piece: all but the first of its kind in a round cost a tenth of a microsecond.
        """
        narration = self._narration
        if narration is None:
            if kind in self._heard:
                return
            self._heard += (kind,)
            if not self._bus.wants(StatusChanged, request_id):
                self._kept.append(kind)
                return
            narration = self._begin()
        if narration.hear(kind):
            self._announce(narration, request_id, self._bus.clock())

    def narrate(self, request_id: str, call_id: str, text: str) -> None:
        """Say `text` of a call that runs, in the place of its template: for a `Narrator`.

        Ignored for a call that has ended, or said something itself. Of several calls that run the newest one's
        sentence is shown; the others' are kept until it has ended.
        """
        narration = self._begin()
        if narration.narrate(call_id, text):
            self._announce(narration, request_id, self._bus.clock())

    def _keep(self, facts: Sequence[Event]) -> None:
        newest = facts[-1]
        if isinstance(newest, RoundStarted):  # the last fact of its step
            if newest.after:  # what was before its calls is of no interest any more
                self._kept.clear()
            self._heard = ()
        elif isinstance(newest, ModelRetrying):
            self._heard = ()
        self._kept.append(facts)

    def _begin(self) -> Narration:
        """The narration, told of what was kept."""
        if self._narration is None:
            self._narration = Narration()
            for kept in self._kept:
                if isinstance(kept, type):
                    self._narration.hear(kept)
                else:
                    for event in kept:
                        self._narration.take(event)
            self._kept.clear()
        return self._narration

    def _announce(self, narration: Narration, request_id: str, at: float) -> None:
        if not self._bus.wants(StatusChanged, request_id):
            self._said = False
            narration.forget()  # whoever listens later was not told of what was said before
            return
        self._said = True
        status = narration.say(self._specs())
        if status is not None:
            stage, text = status
            self._bus.announce(StatusChanged(**self._envelope(at), stage=stage, text=text))

    def _listen(self, request_id: str) -> None:
        """Hear what the request's tools say of themselves. It ends with the request's ending, however that comes.

        A subscription of one request costs the others nothing; its filter is called inline and lets nothing in.
        """
        self._hears = True
        kinds = (ToolCallProgress, ToolCallRetrying)
        name = f"status of {request_id}"
        self._bus.subscribe(
            *kinds, request_id=request_id, where=self._overheard, until=_is_ending, capacity=1, name=name
        ).open()

    def _overheard(self, event: Event) -> bool:
        self.tell(event)
        return False


def _is_ending(event: Event) -> bool:
    return isinstance(event, _ENDINGS)
