"""What of its transcript a session sends: as it is, or as `core.history` shortens it to a window of tokens.

Belongs to `toolbus.asking`. Most requests have nothing to shorten, so a `History` is begun only when there is: a
window, a policy of the application's, a long result, or one of a tool that says what it is for.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from .._logs import logger
from ..core.arguments import encodable
from ..core.compression import Compression
from ..core.history import History, Memo
from ..core.message_list import Messages
from ..core.result_size import is_of_interest
from ..core.tokens import Calibration, Tokenizer, estimate_message, estimate_text, estimate_tools
from ..core.turn import HistoryShaped, TurnState
from ..errors import ContextOverflow
from ..failures import log_exception, passes
from ..messages import SystemMessage, ToolMessage, Usage
from ..protocols import ModelRequest, Provider, Summary, ToolSpec

if TYPE_CHECKING:
    from ._options import SessionOptions

__all__ = ["ContextWindow"]

_DEFAULT = Compression()
_REFUSED_SHARE = 0.5  # of what was sent, when a provider refuses it and does not say how much it takes
_TOLD_SHARE = 0.9  # of what it says that it takes: the estimate was wrong already
_WORTH = 0.8  # of what was sent: the most that is sent instead, whatever the provider says
_SUMMARY_TIME = 0.5  # of the time of a call of the model: the rest is for the answer


class ContextWindow:
    """The sent side of one session's transcript. `memo` is what an earlier turn of the conversation has left out.

    `calibration` is shared by all that ask the same models, so that each learns from the others' usage.
    """

    __slots__ = (
        "_compression",
        "_count",
        "_history",
        "_learned",
        "_looked_at",
        "_may_sum_up",
        "_measured",
        "_refused",
        "_state",
        "_summed",
        "_tools",
        "calibration",
        "has_shortened",
        "memo",
        "shown",
    )

    def __init__(self, state: TurnState, options: SessionOptions) -> None:
        self._state = state
        self._compression: Compression = options.get("compression") or _DEFAULT
        self._count: Tokenizer = estimate_text
        self._history: History | None = None
        self._looked_at = 0  # messages in which there was nothing of interest
        self._measured: tuple[str, int] | None = None  # the model of the newest request, and its tokens as estimated
        self._learned: dict[str, float] | None = None  # the room for messages, by model, as refusals have taught
        self._refused: tuple[str, int] | None = None  # the model that has refused the newest request, and its tokens
        self._may_sum_up = True
        self._summed: Summary | None = None
        self._tools: tuple[Sequence[ToolSpec], int] = ((), 0)  # those that were offered last, and their tokens
        self.has_shortened = False  # whether there is something that the model could read whole (`read_result`)
        self.memo: Memo | None = None
        self.calibration: Calibration | None = None
        self.shown: Callable[[str], str] | None = None  # takes the secrets out of a summary, where there are any

    # ------------------------------------------------------------------------------------------- what is new

    def look(self, specs: Mapping[str, ToolSpec]) -> None:
        """Take notice of new messages; `has_shortened` is up to date then. Raises what a policy raises."""
        history = self._history
        if history is None:
            if not self._begins(specs):
                return
            history = self._history = self._new()
        history.take(specs)
        self.has_shortened = history.has_shortened

    def _begins(self, specs: Mapping[str, ToolSpec]) -> bool:
        """Whether a history is needed from now on."""
        compression, messages = self._compression, self._state.messages
        if compression.max_context_tokens is not None or compression.policies or self.memo is not None:
            return True
        most = self._state.max_result_chars
        for place in range(self._looked_at, len(messages)):
            if type(messages[place]) is ToolMessage and is_of_interest(messages[place], specs, most):
                return True
        self._looked_at = len(messages)
        return False

    def _new(self) -> History:
        state = self._state
        self._count = _counter(self._compression.tokenizer, state.request_id)
        if self._learned is None:
            self._learned = dict(self.memo.learned_tokens) if self.memo is not None else {}
        return History(
            state.messages,
            self._compression,
            request_id=state.request_id,
            max_result_chars=state.max_result_chars,
            count=self._count,
            memo=self.memo,
        )

    @property
    def is_plain(self) -> bool:
        """Whether the transcript is sent as it is."""
        return self._history is None

    def conversation_memo(self) -> Memo | None:
        """What the conversation's next turn goes on with."""
        if self._history is None:
            return self.memo
        memo = self._history.memo()
        return replace(memo or Memo(), learned_tokens=self._learned) if self._learned else memo

    # ---------------------------------------------------------------------------------------------- the window

    async def messages(self, system: SystemMessage | None, tools: Sequence[ToolSpec], provider: Provider) -> Messages:
        """What is sent, behind `system`, in the room that the window leaves beside that and `tools`.

        Raises `ContextOverflow` where it does not fit, whatever is shortened.
        """
        history = self._history
        if history is None:
            return Messages(self._state.messages, system)
        model = _key(provider)
        if self._refused is not None and self._refused[0] != model:
            self._refused = None  # another model was turned to, which may take it all
            history = self._history = self._new()
            history.take(self._state.tools)
        learned = self._learned.get(model) if self._learned else None
        if learned is not None or self._compression.max_context_tokens is not None:
            if self._tools[0] != tools:
                self._tools = (tools, estimate_tools(tools, self._count))
            beside = self._tools[1] + (0 if system is None else estimate_message(system, self._count))
            await self._fit(history, learned, beside, provider)
            self._measured = (model, history.tokens + beside)
        self.has_shortened = history.has_shortened
        return history.view(system)

    async def _fit(self, history: History, learned: float | None, beside: int, provider: Provider) -> None:
        """Shorten what is sent to the room beside so many tokens, and to what was learned of the model."""
        window = self._compression.max_context_tokens
        factor, overhead = self._calibrated(_key(provider))
        room = math.inf if window is None else (window - overhead) / factor - beside
        limit = history.limit_tokens = room if learned is None else min(room, learned)
        await self._sum_up(history, provider)
        history.fit(limit)
        if history.tokens > room:
            raise ContextOverflow(
                f"the request does not fit max_context_tokens={window}: its messages take about "
                f"{int(history.tokens * factor)} tokens, and there is room for {max(0, int(room * factor))} beside "
                "instructions and tools; nothing is left to shorten"
            )
        if self._refused is not None and history.tokens > self._refused[1] * _WORTH:
            raise ContextOverflow("the model's window is too small for the request, and nothing is left to shorten")
        self._refused = None

    async def _sum_up(self, history: History, provider: Provider) -> None:
        """Ask for a summary of the turns that leave, if it is time. Without one they leave all the same, later on."""
        summarizer = self._compression.summarizer
        leaving = history.leaving() if summarizer is not None and self._may_sum_up else ()
        if summarizer is None or not leaving:
            return
        self._may_sum_up = False  # unless it goes well: what has failed, or hung, is not waited for in each round
        try:
            with anyio.fail_after((anyio.current_effective_deadline() - anyio.current_time()) * _SUMMARY_TIME):
                summary = await summarizer.summarize(history.summary, leaving, provider)
            if not isinstance(summary, Summary):  # pyright: ignore[reportUnnecessaryIsInstance] -- an application's own
                raise TypeError(f"the summarizer gave a {type(summary).__name__}, not a Summary")  # noqa: TRY301
            text = encodable(summary.text).strip()
            text = text if self.shown is None else self.shown(text)
        except BaseException as exc:
            if passes(exc):
                raise
            ids = {"request_id": self._state.request_id}
            log_exception(logger, logging.ERROR, "the history was not summed up", cause=exc, ids=ids)
            return
        self._summed = summary
        if text:
            self._may_sum_up = True
            history.leave(text)
        else:
            logger.warning("the history was not summed up: no text came", extra={"request_id": self._state.request_id})

    def shaped(self) -> HistoryShaped | None:
        """What has been shortened since this was asked last, to be told to the turn machine."""
        history, summed = self._history, self._summed
        shape = None if history is None else history.what_changed()
        if history is None or (shape is None and summed is None):
            return None
        self._summed = None
        return HistoryShaped(shape or history.shape(), summed)

    # -------------------------------------------------------------------------------------- what came of it

    def answered(self, usage: Usage) -> None:
        """The model has answered what was sent last: learn from what its provider has counted."""
        measured, self._measured = self._measured, None
        if measured is not None:
            self.calibration = self.calibration or Calibration()
            self.calibration.observe(*measured, usage.input_tokens)

    @property
    def was_refused(self) -> bool:
        """Whether the newest request was too long for its model, and no other one was made since."""
        return self._refused is not None

    def was_edited(self) -> None:
        """What was sent last is not what was measured."""
        self._measured = None

    def refused(self, exc: ContextOverflow, provider: Provider, request: ModelRequest) -> None:
        """The provider says that `request` is too long: send its model less the next time."""
        history, model = self._history, _key(provider)
        if history is None:
            history = self._history = self._new()
            history.take(self._state.tools)
        sent = history.tokens
        learned = sent * _REFUSED_SHARE
        if exc.limit_tokens is not None and exc.limit_tokens > 0:
            factor, overhead = self._calibrated(model)
            whole = sum(estimate_message(each, self._count) for each in request.messages)
            beside = max(0, whole - sent) + estimate_tools(request.tools, self._count)
            told = (exc.limit_tokens - overhead) / factor * _TOLD_SHARE - beside
            learned = min(told, sent * _WORTH)
        self._learned = {**(self._learned or {}), model: max(learned, 1.0)}
        self._refused = (model, sent)
        self._measured = None

    def _calibrated(self, model: str) -> tuple[float, float]:
        """What to multiply an estimate by, and what to add to it, so that it is hardly ever too low."""
        learned = self.calibration
        if learned is None:
            return 1.0, 0.0
        margin = 1 + learned.margin(model)
        return learned.factor(model) * margin, learned.overhead(model) * margin


def _key(provider: Provider) -> str:
    return f"{provider.vendor}:{getattr(provider, 'model', '')}"


def _counter(tokenizer: Tokenizer | None, request_id: str) -> Tokenizer:
    """What counts tokens: the application's function, and the estimate for texts that it gives no number for.

    Such are texts that look like a vendor's special tokens, which some tokenizers refuse. The log tells of the first.
    """
    if tokenizer is None:
        return estimate_text
    told = False

    def count(text: str) -> int:
        nonlocal told
        try:
            counted = tokenizer(text)
            if 0 <= counted < math.inf:
                return math.ceil(counted)
            problem: Exception = ValueError(f"it gave {counted!r}")
        except Exception as exc:
            problem = exc
        if not told:
            told = True
            logger.warning(
                "the tokenizer failed: texts are estimated", exc_info=problem, extra={"request_id": request_id}
            )
        return estimate_text(text)

    return count
