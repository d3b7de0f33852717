"""What of its transcript a session sends: as it is, or as `core.history` shortens it to a window of tokens.

Belongs to `toolbus.asking`. Most requests have nothing to shorten, so a `History` is begun only when there is: a
window, a policy of the application's, a long result, or one of a tool that says what it is for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .core.compression import Compression
from .core.history import History, Memo, is_of_interest
from .core.state import Messages, TurnState
from .core.steps import HistoryShaped
from .core.tokens import Calibration, estimate_text, estimate_tools
from .errors import ContextOverflow
from .logs import logger
from .messages import SystemMessage, ToolMessage, Usage
from .protocols import Provider, Summary, ToolSpec

if TYPE_CHECKING:
    from .options import SessionOptions

__all__ = ["Sending"]

_DEFAULT = Compression()
_REFUSED_SHARE = 0.5  # of what was sent, when a provider refuses it and does not say how much it takes
_TOLD_SHARE = 0.9  # of what it says that it takes: the estimate was wrong already
_WORTH = 0.8  # of what was sent: the most that is sent instead, whatever the provider says


class Sending:
    """The sent side of one session's transcript. `memo` is what an earlier turn of the conversation has left out.

    `calibration` is shared by all that ask the same models, so that each learns from the others' usage.
    """

    __slots__ = (
        "_compression",
        "_history",
        "_looked_at",
        "_measured",
        "_sent_tokens",
        "_state",
        "_summed",
        "calibration",
        "memo",
    )

    def __init__(self, state: TurnState, options: SessionOptions) -> None:
        self._state = state
        self._compression: Compression = options.get("compression") or _DEFAULT
        self._history: History | None = None
        self._looked_at = 0  # messages in which there was nothing of interest
        self._measured: tuple[str, int] | None = (
            None  # whose tokens were estimated for the newest request, and how many
        )
        self._sent_tokens = 0
        self._summed: Summary | None = None
        self.memo: Memo | None = None
        self.calibration: Calibration | None = None

    # ------------------------------------------------------------------------------------------- what is new

    def look(self, specs: Mapping[str, ToolSpec]) -> bool:
        """Take notice of new messages. Whether there is something that the model could read whole (`read_result`)."""
        history = self._history
        if history is None:
            history = self._history = self._begun(specs)
            if history is None:
                return False
        history.take(specs)
        return history.has_shortened

    def _begun(self, specs: Mapping[str, ToolSpec]) -> History | None:
        compression, messages = self._compression, self._state.messages
        begins = compression.max_context_tokens is not None or compression.policies or self.memo is not None
        if not begins:
            most = self._state.max_result_chars
            for place in range(self._looked_at, len(messages)):
                if type(messages[place]) is ToolMessage and is_of_interest(messages[place], specs, most):
                    begins = True
                    break
            self._looked_at = len(messages)
        return self._new() if begins else None

    def _new(self) -> History:
        state = self._state
        return History(
            state.messages,
            state.history_count,
            self._compression,
            max_result_chars=state.max_result_chars,
            memo=self.memo,
        )

    @property
    def is_plain(self) -> bool:
        """Whether the transcript is sent as it is."""
        return self._history is None

    def conversation_memo(self) -> Memo | None:
        """What the conversation's next turn goes on with."""
        return self.memo if self._history is None else self._history.memo()

    # ---------------------------------------------------------------------------------------------- the window

    async def messages(self, system: SystemMessage | None, tools: Sequence[ToolSpec], provider: Provider) -> Messages:
        """What is sent, behind `system`, in the room that the window leaves beside that and `tools`.

        Raises `ContextOverflow` where it does not fit, whatever is shortened.
        """
        history = self._history
        if history is None:
            return Messages(self._state.messages, system)
        window = self._compression.max_context_tokens
        if window is not None or history.learned_tokens is not None:
            await self._fit(history, window, system, tools, provider)
        return history.view(system)

    async def _fit(
        self,
        history: History,
        window: int | None,
        system: SystemMessage | None,
        tools: Sequence[ToolSpec],
        provider: Provider,
    ) -> None:
        model = _key(provider)
        count = self._compression.tokenizer or estimate_text
        beside = estimate_tools(tools, count) + (count(system.text) if system is not None else 0)
        factor, overhead = self._calibrated(model)
        learned = history.learned_tokens
        room = float("inf") if window is None else (window - overhead) / factor - beside
        limit = room if learned is None else min(room, learned)
        history.limit_tokens = limit
        if self._compression.summarizer is not None:
            await self._sum_up(history, provider)
        if not history.fit(limit) and history.tokens > room:
            raise ContextOverflow(
                f"the request does not fit max_context_tokens={window}: its messages take about "
                f"{int(history.tokens * factor)} tokens, and there is room for {max(0, int(room * factor))} beside "
                "instructions and tools; nothing is left to shorten"
            )
        if self._sent_tokens and history.tokens > self._sent_tokens * _WORTH:
            raise ContextOverflow("the model's window is too small for the request, and nothing is left to shorten")
        self._sent_tokens = 0
        self._measured = (model, history.tokens + beside)

    async def _sum_up(self, history: History, provider: Provider) -> None:
        """Ask for a summary of the turns that leave, if it is time. Without one they leave all the same."""
        summarizer, leaving = self._compression.summarizer, history.leaving()
        if summarizer is None or not leaving:
            return
        try:
            summary = await summarizer.summarize(history.summary, leaving, provider)
        except Exception:
            logger.exception("the history was not summed up", extra={"request_id": self._state.request_id})
            return
        self._summed = summary
        history.leave(summary.text.strip())

    def shaped(self) -> HistoryShaped | None:
        """What has been shortened since this was asked last, to be told to the turn machine."""
        shape = None if self._history is None else self._history.what_changed()
        summed, self._summed = self._summed, None
        if shape is None:
            return None
        return HistoryShaped(shape, summed)

    # -------------------------------------------------------------------------------------- what came of it

    def answered(self, usage: Usage) -> None:
        """The model has answered what was sent last: learn from what its provider has counted."""
        measured, self._measured = self._measured, None
        if measured is not None:
            self.calibration = self.calibration or Calibration()
            self.calibration.observe(*measured, usage.input_tokens)

    def refused(self, exc: ContextOverflow, provider: Provider, specs: Mapping[str, ToolSpec]) -> None:
        """The provider says that what was sent is too long: send less the next time."""
        history = self._history
        if history is None:
            history = self._history = self._new()
            history.take(specs)
        sent = history.tokens
        learned = sent * _REFUSED_SHARE
        if exc.limit_tokens is not None:
            factor, overhead = self._calibrated(_key(provider))
            told = (exc.limit_tokens - overhead) / factor * _TOLD_SHARE
            learned = min(told, sent * _WORTH)
        history.learned_tokens = learned
        self._sent_tokens = sent

    def _calibrated(self, model: str) -> tuple[float, float]:
        """What to multiply an estimate by, and what to add to it."""
        learned = self.calibration
        return (1.0, 0.0) if learned is None else (learned.factor(model), learned.overhead(model))


def _key(provider: Provider) -> str:
    return f"{provider.vendor}:{getattr(provider, 'model', '')}"
