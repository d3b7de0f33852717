"""The part of a session's transcript that is sent: all of it, or what `core.history` leaves for a window of tokens.

Most requests have nothing to shorten. A `History` is begun only if it is needed: for a window, a policy of the
application, a long result, or a result of a tool that declares how its results are to be shortened.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio

from .._logs import logger
from .._option_checks import kind_of
from ..core.arguments import encodable
from ..core.compression import Compression
from ..core.history import History, Memo
from ..core.message_list import Messages
from ..core.result_size import is_of_interest
from ..core.tokens import Calibration, Tokenizer, estimate_message, estimate_text, estimate_tools
from ..core.turn import HistoryShaped, TurnState
from ..errors import ContextOverflow
from ..failures import log_exception, passes
from ..instrumentation import Instrumentation, Work
from ..messages import AssistantMessage, SystemMessage, ToolMessage, Usage
from ..protocols import Emit, ModelReply, ModelRequest, Provider, Summary, ToolSpec
from ..records import replace

if TYPE_CHECKING:
    from ._options import SessionOptions

_DEFAULT = Compression()
# The share of a refused request that is sent next, if the provider does not state its limit.
_REFUSED_SHARE = 0.5
# The share of a provider's stated limit that is used, because the estimate was too low once already.
_LIMIT_SHARE = 0.9
# The largest share of a refused request that is sent next, whatever limit the provider states.
_MAX_SHARE = 0.8
# The share of a model call's time that a summary may take; the rest is for the answer.
_SUMMARY_TIME = 0.5


class ObservedProvider:
    """A provider for code that asks it by itself, such as a summarizer: it is asked inside of the instrumentation.

    It has the attributes of the provider that it asks, and adds what comes to `replies`, which are paid for whatever
    becomes of them. `shown` takes the secrets out of a text.
    """

    def __init__(
        self,
        observed: Provider,
        instrumentation: Sequence[Instrumentation],
        state: TurnState,
        shown: Callable[[str], str] | None,
        replies: list[ModelReply],
    ) -> None:
        self._observed = observed
        self.vendor = str(getattr(observed, "vendor", ""))
        self._instrumentation = instrumentation
        self._state = state
        self._shown = shown
        self._replies = replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._observed, name)

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Implement `Provider`."""
        state = self._state
        request = replace(
            request, request_id=state.request_id, conversation_id=state.conversation_id, round=state.round
        )
        with Work("model", self._instrumentation, request, self._observed) as work:
            reply = await self._observed.respond(request, emit)
            if isinstance(reply, ModelReply):  # pyright: ignore[reportUnnecessaryIsInstance] -- an application's own
                self._replies.append(reply)
            text = reply.message.text if self._shown is None else self._shown(reply.message.text)
            work.ended(replace(reply, message=AssistantMessage(text=text)))
        return reply


class ContextWindow:
    """The messages that one session sends of its transcript.

    `memo` describes what an earlier turn of the conversation has left out, and `earlier` is the fold over its messages.
    `calibration` is shared by all sessions that ask the same models, so that each learns from the usage of the others.
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
        "earlier",
        "has_shortened",
        "instrumentation",
        "memo",
        "shown",
    )

    def __init__(self, state: TurnState, options: SessionOptions) -> None:
        self._state = state
        self._compression: Compression = options.get("compression") or _DEFAULT
        self._count: Tokenizer = estimate_text
        self._history: History | None = None
        self._looked_at = 0  # the number of messages in which nothing needs a history
        self._measured: tuple[str, int] | None = None  # the model of the newest request, and its estimated tokens
        self._learned: dict[str, float] | None = None  # the tokens for messages, by model, learned from refusals
        # The model that has refused the newest request, the tokens of that request, and the reason.
        self._refused: tuple[str, int, str] | None = None
        self._may_sum_up = True
        self._summed: Summary | None = None
        self._tools: tuple[Sequence[ToolSpec], int] = ((), 0)  # the tools that were offered last, and their tokens
        self.has_shortened = False  # whether the model could read a whole result with `read_result`
        self.memo: Memo | None = None
        self.earlier: History | None = None  # None once it has been used
        self.calibration: Calibration | None = None
        self.instrumentation: Sequence[Instrumentation] = ()  # set by whoever asks the models
        # The function that takes the secrets out of a summary, if the request has any.
        self.shown: Callable[[str], str] | None = None

    # ------------------------------------------------------------------------------------------- what is new

    def look(self, specs: Mapping[str, ToolSpec]) -> None:
        """Take the new messages into account, and update `has_shortened`. Raises what a policy raises."""
        history = self._history
        if history is None:
            if not self._begins(specs):
                return
            new, earlier, self.earlier = self._new(), self.earlier, None
            history = self._history = earlier if earlier is not None and earlier.proceed(new, specs) else new
        history.take(specs)
        self.has_shortened = history.has_shortened

    def _begins(self, specs: Mapping[str, ToolSpec]) -> bool:
        """Return whether a history is needed from now on."""
        compression, messages = self._compression, self._state.messages
        if compression.max_context_tokens is not None or compression.policies or self.memo or self.earlier:
            return True
        limit = self._state.max_result_chars
        for message in messages[self._looked_at :]:
            if type(message) is ToolMessage and is_of_interest(message, specs, limit):
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
        """True if the transcript is sent as it is, and no earlier turn needed a fold."""
        return self._history is None and self.earlier is None

    @property
    def sent(self) -> Messages:
        """The transcript as the model gets it at present, without instructions."""
        return Messages(self._state.messages) if self._history is None else self._history.view()

    @property
    def for_next_turn(self) -> History | None:
        """The fold that the conversation's next turn continues with; None if there was nothing to shorten."""
        return self._history or self.earlier

    def conversation_memo(self) -> Memo | None:
        """Return the memo that the conversation's next turn continues with."""
        if self._history is None:
            return self.memo
        memo = self._history.memo()
        return dataclasses.replace(memo or Memo(), learned_tokens=self._learned) if self._learned else memo

    # ---------------------------------------------------------------------------------------------- the window

    async def messages(
        self, system: SystemMessage | None, tools: Sequence[ToolSpec], provider: Provider, replies: list[ModelReply]
    ) -> Messages:
        """Return the messages to send: `system`, and what fits into the window beside `system` and `tools`.

        While a summarizer works, `replies` has those that it got: what a cancellation leaves there is still to be paid
        for. Not for a window that `is_plain`. Raises `ContextOverflow` if the messages do not fit, whatever is
        shortened.
        """
        history = self._history
        assert history is not None
        model = _key(provider)
        if self._refused is not None and self._refused[0] != model:
            # The request fails over to another model, which may take the whole transcript.
            self._refused = None
            history = self._history = self._new()
            history.take(self._state.tools)
        learned = self._learned.get(model) if self._learned else None
        if learned is not None or self._compression.max_context_tokens is not None:
            offered, beside = self._tools
            if offered != tools:
                beside = estimate_tools(tools, self._count)
                self._tools = (tools, beside)
            if system is not None:
                beside += estimate_message(system, self._count)
            await self._fit(history, learned, beside, provider, replies)
            self._measured = (model, history.tokens + beside)
        self.has_shortened = history.has_shortened
        return history.view(system)

    async def _fit(
        self, history: History, learned: float | None, beside: int, provider: Provider, replies: list[ModelReply]
    ) -> None:
        """Shorten the messages to the window less `beside` tokens, and to what was learned about the model."""
        window = self._compression.max_context_tokens
        factor, overhead = self._calibrated(_key(provider))
        left = math.inf if window is None else (window - overhead) / factor - beside
        limit = history.limit_tokens = left if learned is None else min(left, learned)
        await self._sum_up(history, provider, replies)
        history.fit(limit)
        if history.tokens > left:
            raise ContextOverflow(
                f"the request does not fit max_context_tokens={window}: its messages take about "
                f"{int(history.tokens * factor)} tokens, and there is space for {max(0, int(left * factor))} beside "
                "instructions and tools; nothing is left to shorten"
            )
        if self._refused is not None and history.tokens > self._refused[1] * _MAX_SHARE:
            raise ContextOverflow(
                f"the request does not fit the model's window, and nothing is left to shorten: {self._refused[2]}"
            )
        self._refused = None

    async def _sum_up(self, history: History, provider: Provider, replies: list[ModelReply]) -> None:
        """Ask for a summary of the turns that are about to be left out, if it is time for one.

        Without a summary they are left out as well, later.
        """
        summarizer = self._compression.summarizer
        leaving = history.leaving() if summarizer is not None and self._may_sum_up else ()
        if summarizer is None or not leaving:
            return
        # It is set again on success only: a summarizer that has failed or hung is not awaited in each round.
        self._may_sum_up = False
        own: Any = getattr(summarizer, "provider", None)
        if callable(getattr(own, "respond", None)):
            provider = own
        asked = ObservedProvider(provider, self.instrumentation, self._state, self.shown, replies)
        try:
            with anyio.fail_after(self._state.limits.model_timeout_seconds * _SUMMARY_TIME):
                summary = await summarizer.summarize(history.summary, leaving, asked)
            if not isinstance(summary, Summary):  # pyright: ignore[reportUnnecessaryIsInstance] -- an application's own
                raise TypeError(f"the summarizer gave {kind_of(summary)}, not a Summary")  # noqa: TRY301
            text = encodable(summary.text).strip()
            text = text if self.shown is None else self.shown(text)
        except BaseException as exc:
            if passes(exc):
                raise
            request_id = self._state.request_id
            failed, ids = "request %s: the history was not summed up", {"request_id": request_id}
            log_exception(logger, logging.ERROR, failed, request_id, cause=exc, ids=ids)
            if replies:
                usage, newest = sum([each.usage for each in replies], Usage()), replies[-1]
                self._summed = Summary(text="", usage=usage, vendor=newest.vendor, model=newest.model)
                replies.clear()
            return
        self._summed = summary
        replies.clear()  # The summary reports what they took.
        if text:
            self._may_sum_up = True
            history.leave(text)
        else:
            request_id = self._state.request_id
            message = "request %s: the summary of the history has no text, and is not used"
            logger.warning(message, request_id, extra={"request_id": request_id})

    def shaped(self) -> HistoryShaped | None:
        """Return what has been shortened since the last call, as an input of the turn machine; None for nothing."""
        history, summed = self._history, self._summed
        shape = None if history is None else history.what_changed()
        if history is None or (shape is None and summed is None):
            return None
        self._summed = None
        return HistoryShaped(shape or history.shape(), summed)

    # -------------------------------------------------------------------------------------- what came of it

    def answered(self, usage: Usage) -> None:
        """Learn from the tokens that the provider has counted for the request that was sent last."""
        measured, self._measured = self._measured, None
        if measured is not None:
            self.calibration = self.calibration or Calibration()
            self.calibration.observe(*measured, usage.input_tokens)

    @property
    def was_refused(self) -> bool:
        """True if the newest request was too long for its model, and no other request was made since."""
        return self._refused is not None

    def was_edited(self) -> None:
        """Discard the estimate for the request that was sent last, because an interceptor has edited it."""
        self._measured = None

    def refused(self, exc: ContextOverflow, provider: Provider, request: ModelRequest) -> None:
        """Learn that `request` is too long for its model, so that less is sent to that model the next time."""
        history, model = self._history, _key(provider)
        if history is None:
            history = self._history = self._new()
            history.take(self._state.tools)
        sent = history.tokens
        learned = sent * _REFUSED_SHARE
        if exc.limit_tokens is not None and exc.limit_tokens > 0:
            factor, overhead = self._calibrated(model)
            whole = max(sent, sum(estimate_message(each, self._count) for each in request.messages))
            beside = whole - sent + estimate_tools(request.tools, self._count)
            stated = (exc.limit_tokens - overhead) / factor * _LIMIT_SHARE - beside
            learned = min(stated, sent * _MAX_SHARE)
        self._learned = {**(self._learned or {}), model: max(learned, 1.0)}
        self._refused = (model, sent, str(exc))
        self._measured = None

    def _calibrated(self, model: str) -> tuple[float, float]:
        """Return a factor for an estimate and an amount to add, with which the estimate is hardly ever too low."""
        learned = self.calibration
        if learned is None:
            return 1.0, 0.0
        margin = 1 + learned.margin(model)
        return learned.factor(model) * margin, learned.overhead(model) * margin


def _key(provider: Provider) -> str:
    return f"{provider.vendor}:{getattr(provider, 'model', '')}"


def _counter(tokenizer: Tokenizer | None, request_id: str) -> Tokenizer:
    """Return a function that counts tokens: the application's tokenizer, or an estimate for texts where it fails.

    Some tokenizers refuse texts that look like a vendor's special tokens. The first failure is logged.
    """
    if tokenizer is None:
        return estimate_text
    is_logged = False

    def count(text: str) -> int:
        nonlocal is_logged
        try:
            counted = tokenizer(text)
            if 0 <= counted < math.inf:
                return math.ceil(counted)
            problem: Exception = ValueError(f"it gave {counted!r}")
        except Exception as exc:
            problem = exc
        if not is_logged:
            is_logged = True
            logger.error(
                "request %s: the tokenizer failed: texts are estimated",
                request_id,
                exc_info=problem,
                extra={"request_id": request_id},
            )
        return estimate_text(text)

    return count
