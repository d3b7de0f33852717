"""Tells where a request stands: its events, folded by `core.narration`, go out as `StatusChanged` where that is wanted.

Belongs to a session and knows its bus, no model and no dispatcher. Status is for people: nothing depends on it, and it
may be missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .bus import EventBus
from .core.narration import Narration, Status
from .events import (
    Event,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
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

    Nobody listening costs a dictionary look-up for most facts and less than a microsecond for any; the fold goes on, so
    whoever begins to listen hears the right status from the next change on, and `status` says it at once. What tools
    say of themselves (`ToolCallProgress`, `ToolCallRetrying`) is heard from the first change on that somebody wants,
    until the request ends. Not thread-safe.
    """

    __slots__ = ("_bus", "_envelope", "_hears", "_narration", "_said", "_specs")

    def __init__(
        self,
        bus: EventBus,
        envelope: Callable[[float], Mapping[str, Any]],
        specs: Callable[[], Mapping[str, ToolSpec]],
    ) -> None:
        self._bus = bus
        self._envelope = envelope
        self._specs = specs
        self._narration = Narration()
        self._hears = False
        self._said = False

    @property
    def status(self) -> Status:
        """The stage and the sentence as of now, for somebody who begins to listen; ("idle", "") before the start."""
        return self._narration.status(self._specs())

    def tell(self, event: Event) -> None:
        """Take note of the request's next event, and announce the status if it has changed. Once for each event."""
        if self._narration.take(event):
            if self._bus.wants(StatusChanged, event.request_id):
                self._announce(event.request_id, event.at, may_hear=type(event) is ToolCallRequested)
            elif self._said:
                self._forget()

    def hear(self, kind: type[Event], request_id: str) -> None:
        """As `tell`, for a piece of the model's reply (`TextDelta`, `ToolArgumentsDelta`), built or not.

        To be called for every piece: all but the first of its kind in a round cost a tenth of a microsecond.
        """
        if self._narration.hear(kind):
            self._announce_now(request_id)

    def narrate(self, request_id: str, call_id: str, text: str) -> None:
        """Say `text` of a call that runs, in the place of its template: for a `Narrator`.

        Ignored for a call that has ended, or said something itself. Of several calls that run the newest one's
        sentence is shown; the others' are kept until it has ended.
        """
        if self._narration.narrate(call_id, text):
            self._announce_now(request_id)

    def _announce_now(self, request_id: str) -> None:
        if self._bus.wants(StatusChanged, request_id):
            self._announce(request_id, self._bus.clock())
        elif self._said:
            self._forget()

    def _announce(self, request_id: str, at: float, *, may_hear: bool = False) -> None:
        if may_hear and not self._hears:
            self._listen(request_id)
        status = self._narration.say(self._specs())
        if status is not None:
            self._said = True
            stage, text = status
            self._bus.announce(StatusChanged(**self._envelope(at), stage=stage, text=text))

    def _forget(self) -> None:
        """Whoever listens later was not told of what was said before."""
        self._said = False
        self._narration.forget()

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
