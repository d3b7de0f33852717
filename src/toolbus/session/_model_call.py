"""One call of the model: the timer around it, and the pieces that its provider emits meanwhile.

It decides nothing: the outcome of the call is an input of the turn machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakSet

from .._logs import logger
from .._timers import Timer
from ..bus import EventBus
from ..clock import SessionClock
from ..core.prices import cost_of
from ..core.turn import CallModel, Elapsed, Input, LostReplies, ModelFailed, TurnState
from ..errors import ReplyTooLarge
from ..events import CancelRequested, Event, ReasoningDelta, TextDelta, ToolArgumentsDelta
from ..messages import Usage
from ..protocols import (
    MAX_REPLY_CALLS,
    ArgumentsPiece,
    Delta,
    Heartbeat,
    ModelReply,
    Provider,
    ReasoningPiece,
    TextPiece,
)
from ..status import StatusPublisher

_REPORTED: WeakSet[EventBus] = WeakSet()
# A stream's timer is moved once a tenth of its time has passed, and not for every piece.
_IDLE_SLACK = 0.1


_Kind: TypeAlias = type[TextDelta] | type[ReasoningDelta] | type[ToolArgumentsDelta]
_EVENTS: dict[type[Delta], _Kind] = {
    TextPiece: TextDelta,
    ReasoningPiece: ReasoningDelta,
    ArgumentsPiece: ToolArgumentsDelta,
}


def _event_of(delta: Delta) -> _Kind:
    """Return the event type for a piece whose class an application has derived from one of ours."""
    return next(event for piece, event in _EVENTS.items() if isinstance(delta, piece))


def too_many_calls(vendor: str) -> ReplyTooLarge:
    """Return the error of a reply with more calls than a reply may have. Each call makes facts, whether it runs or not.

    The bound holds for every provider.
    """
    text = f"{vendor or 'the model'}'s reply has more than {MAX_REPLY_CALLS} calls: reading stopped"
    return ReplyTooLarge(text, vendor=vendor)


class ModelCall:
    """A call in flight. It sets the deadline of `timer`, whose scope it runs in.

    Until the first piece of the reply, the deadline is that of the turn machine's command. While the reply streams, it
    is that of a silence, or of the request if that is earlier.
    """

    __slots__ = (
        "_bus",
        "_clock",
        "_deadline",
        "_hard",
        "_idle_seconds",
        "_move_at",
        "_state",
        "_status",
        "_timer",
        "_until",
        "asking",
        "command",
        "over",
        "piece_kinds",
        "provider",
        "reasoning",
        "replies",
        "texts",
    )

    def __init__(
        self,
        bus: EventBus,
        state: TurnState,
        clock: SessionClock,
        command: CallModel,
        timer: Timer,
        status: Callable[[], StatusPublisher | None],
    ) -> None:
        self._status = status
        self._bus = bus
        self._state = state
        self._clock = clock
        self._idle_seconds = state.limits.stream_idle_seconds
        self._deadline = command.deadline
        self._hard = clock.on_loop(command.deadline)
        self._move_at = 0.0
        self.command = command
        self._timer = timer
        self._until = self._hard
        timer.set(self._hard)
        self.over = False
        self.asking = 0  # how often the provider is being asked now; at 0, the application's own code runs
        self.provider: Provider | None = None  # the provider that is asked
        self.replies: list[ModelReply] = []  # those that have come, to interceptors too
        self.piece_kinds: tuple[type[Event], ...] = ()  # the kinds of pieces that have come
        # The pieces so far, for a listener that comes late.
        self.texts: list[str] = []
        self.reasoning: list[str] = []

    def emit(self, delta: Delta) -> None:
        """Publish a piece to whoever listens, and move the timer of a stream that may stand still.

        Raises `ReplyTooLarge`, into the provider that emits it, for a piece of a call beyond `MAX_REPLY_CALLS`.
        """
        if self.over:  # A stray task of the provider emits after the reply.
            return
        self.feed(delta)
        if not delta.text:  # A provider that holds pieces back emits empty ones as a sign of life.
            return
        kind = _EVENTS.get(type(delta)) or _event_of(delta)
        if kind not in self.piece_kinds:
            # The status is published before the piece, so that a screen shows "Formulating..." above the text.
            self.note_piece(kind)
        state = self._state
        if kind is TextDelta:
            self.texts.append(delta.text)
        elif kind is ReasoningDelta:
            self.reasoning.append(delta.text)
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

    def report_no_usage(self, reply: ModelReply) -> None:
        """Log that a limit of costs bounds nothing, because the model reports no usage: once for each bus."""
        if self._bus not in _REPORTED:
            _REPORTED.add(self._bus)
            logger.warning(
                "max_cost is set, and %s:%s reports no usage, so its replies count as free", reply.vendor, reply.model
            )

    def feed(self, delta: Delta) -> None:
        """Move the timer only, because the pieces of a reply that may still change are not published.

        A sign of life moves the timer of a stream that has begun. It does not start that timer, because a model may
        think for a minute before its first piece. Raises as `emit` does.
        """
        if isinstance(delta, ArgumentsPiece):
            if delta.index >= MAX_REPLY_CALLS:
                raise too_many_calls("")
        elif isinstance(delta, Heartbeat) and not self._move_at:
            return
        now = self._clock.loop_time()
        scope = self._timer.scope
        if now >= self._move_at and not (self.over or scope is None or scope.cancel_called):
            if not self._move_at:
                self._deadline = self._state.deadline
                self._hard = self._clock.on_loop(self._deadline)
            self._move_at = now + self._idle_seconds * _IDLE_SLACK
            self._until = min(self._hard, now + self._idle_seconds)
            self._timer.set(self._until)

    def forget(self) -> None:
        """Drop the pieces: what an interceptor has not let pass is not kept, although it was streamed."""
        self.texts.clear()
        self.reasoning.clear()

    def note_piece(self, kind: type[Event]) -> None:
        """Note, for the status, that a piece of this kind has come, whether it was published or not."""
        if kind not in self.piece_kinds:
            self.piece_kinds += (kind,)
            status = self._status()
            if status is not None:
                status.take_piece(kind, self._state.request_id)

    def on_put(self, event: Event) -> None:
        """Give up the call when somebody cancels the request. For `Mailbox.on_put`."""
        if isinstance(event, CancelRequested) and self._timer.scope is not None:
            self._timer.scope.cancel()

    def lost(self) -> LostReplies:
        """Return what the replies took that have come, for a call that has failed, with the name of its model."""
        prices, replies = self._state.prices or {}, self.replies
        named: Any = replies[-1] if replies else self.provider
        return LostReplies(
            usage=sum([each.usage for each in replies], Usage()),
            cost=sum([cost_of(each.usage, each.vendor, each.model, prices) or 0.0 for each in replies]),
            vendor=str(getattr(named, "vendor", "") or ""),
            model=str(getattr(named, "model", "") or ""),
        )

    @property
    def is_cut_short(self) -> bool:
        """True once the time of the call is over, or the request was cancelled, even if nobody has noticed yet."""
        scope = self._timer.scope
        return scope is None or scope.cancel_called

    def elapsed_input(self, now: float) -> tuple[Input, float]:
        """Return the input for the timer that fired, and its time: a deadline, or a stream that stood still."""
        is_idle = self._until < self._hard
        limit = f"stream_idle_seconds={self._idle_seconds:g}"
        if not self.asking and (is_idle or self._deadline < self._state.deadline):
            self.forget()
            within = limit if is_idle else f"model_timeout_seconds={self._state.limits.model_timeout_seconds:g}"
            error = f"the application's instructions or interceptors did not return in time ({within})"
            return ModelFailed("application_error", error, lost=self.lost()), now
        if is_idle:
            error = f"the model's stream stalled ({limit})"
            return ModelFailed("provider_timeout", error, retryable=True, lost=self.lost()), now
        # The event loop may fire slightly before the turn machine's deadline, because of the rounding of floats.
        return Elapsed(self.lost()), max(now, self._deadline)
