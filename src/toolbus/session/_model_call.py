"""One call of the model: the timer around it, and what its provider emits meanwhile.

Belongs to `toolbus.session`, which decides nothing either: what came of the call goes to the turn machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import anyio

from ..bus import EventBus
from ..clock import SessionClock
from ..core.turn import CallModel, Elapsed, Input, ModelFailed, TurnState
from ..errors import ReplyTooLarge
from ..events import CancelRequested, Event, ReasoningDelta, TextDelta, ToolArgumentsDelta
from ..protocols import MAX_REPLY_CALLS, ArgumentsPiece, Delta, ReasoningPiece, SignOfLife, TextPiece
from ..status import StatusPublisher

__all__ = ["ModelCall", "too_many_calls"]

_IDLE_SLACK = 0.1  # a stream's timer is moved once a tenth of its time has passed, not for every piece


_Kind: TypeAlias = type[TextDelta] | type[ReasoningDelta] | type[ToolArgumentsDelta]
_EVENTS: dict[type[Delta], _Kind] = {
    TextPiece: TextDelta,
    ReasoningPiece: ReasoningDelta,
    ArgumentsPiece: ToolArgumentsDelta,
}


def _event_of(delta: Delta) -> _Kind:
    """The event of a piece whose class an application has derived."""
    return next(event for piece, event in _EVENTS.items() if isinstance(delta, piece))


def too_many_calls(vendor: str) -> ReplyTooLarge:
    """The error of a reply with more calls than one may have, whoever its provider is: each makes facts, run or not."""
    text = f"{vendor or 'the model'}'s reply has more than {MAX_REPLY_CALLS} calls: reading stopped"
    return ReplyTooLarge(text, vendor=vendor)


class ModelCall:
    """A call in flight inside `scope`, whose deadline it sets: the machine's, or that of a silence while it streams."""

    __slots__ = (
        "_bus",
        "_clock",
        "_hard",
        "_idle_seconds",
        "_move_at",
        "_state",
        "_status",
        "command",
        "over",
        "piece_kinds",
        "scope",
    )

    def __init__(
        self,
        bus: EventBus,
        state: TurnState,
        clock: SessionClock,
        command: CallModel,
        scope: anyio.CancelScope,
        status: Callable[[], StatusPublisher | None],
    ) -> None:
        self._status = status
        self._bus = bus
        self._state = state
        self._clock = clock
        self._idle_seconds = state.limits.stream_idle_seconds
        self._hard = clock.on_loop(command.deadline)
        self._move_at = 0.0
        self.command = command
        self.scope = scope
        scope.deadline = self._hard
        self.over = False
        self.piece_kinds: tuple[type[Event], ...] = ()  # the kinds of pieces that have come

    def emit(self, delta: Delta) -> None:
        """Pass a piece on to whoever listens; move the timer for streams that stand still.

        Raises `ReplyTooLarge` for a piece of a call past the bound, into the provider that emits it.
        """
        if self.over:  # a provider's stray task, after its reply
            return
        self.feed(delta)
        if not delta.text:  # a sign of life from a provider that holds pieces back
            return
        kind = _EVENTS.get(type(delta)) or _event_of(delta)
        if kind not in self.piece_kinds:
            self.note_piece(kind)  # before the piece itself, so that "Formulating..." stands above the text
        state = self._state
        if not self._bus.arbitration.wants(kind, state.request_id):
            return
        command = self.command
        made: Any = {**state.envelope(self._clock()), "message_id": command.message_id, "round": command.round}
        if isinstance(delta, ArgumentsPiece):
            self._bus.arbitration.announce(
                ToolArgumentsDelta(**made, index=delta.index, name=delta.name, text=delta.text)
            )
        else:
            self._bus.arbitration.announce(kind(**made, text=delta.text))

    def feed(self, delta: Delta) -> None:
        """Move the timer only: of a reply that may still change, nobody hears pieces.

        A sign of life moves the timer of a stream that has begun, and begins none: a model may think for a minute
        before its first piece. Raises as `emit` does.
        """
        if isinstance(delta, ArgumentsPiece):
            if delta.index >= MAX_REPLY_CALLS:
                raise too_many_calls("")
        elif isinstance(delta, SignOfLife) and not self._move_at:
            return
        now = self._clock.loop_time()
        if now >= self._move_at and not self.over:
            self._move_at = now + self._idle_seconds * _IDLE_SLACK
            self.scope.deadline = min(self._hard, now + self._idle_seconds)

    def note_piece(self, kind: type[Event]) -> None:
        """Take note that a piece of this kind has come, told or not: for the status."""
        if kind not in self.piece_kinds:
            self.piece_kinds += (kind,)
            status = self._status()
            if status is not None:
                status.take_piece(kind, self._state.request_id)

    def on_put(self, event: Event) -> None:
        """Give the call up when somebody cancels the request. For `Mailbox.on_put`."""
        if isinstance(event, CancelRequested):
            self.scope.cancel()

    def elapsed_input(self, now: float) -> tuple[Input, float]:
        """Which timer fired, and when: the machine's deadline, or that of a stream that stood still."""
        if self.scope.deadline < self._hard:
            limit = f"stream_idle_seconds={self._idle_seconds:g}"
            return ModelFailed("provider_timeout", f"the model's stream stood still ({limit})", retryable=True), now
        # A loop's clock may fire a hair before the machine's: both are floats, and the machine's is larger.
        return Elapsed(), max(now, self.command.deadline)
