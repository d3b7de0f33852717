"""The options and policies for shortening a long history before it is sent to the model. Pure.

A policy is a fold: it gets each message of the transcript once, in order, and returns the results that are to be sent
with other text from now on. So a round costs only what is new in it, however long the history is. `core.history`
applies the policies and enforces their limits: only results change, no result grows, and results of a tool that is
marked `keep_full_results` stay as they are. The transcript itself stays whole.

Example:
    from toolbus import Compression, Runtime
    from toolbus.core.compression import CutOldActions, Edit, Fold, Policy, HistoryItem, StubOldQueries
    from toolbus.testing import ScriptedProvider, text

    class ForgetLogs:
        "Send no log again once its turn is over."

        def fold(self) -> Fold:
            return ForgetLogsFold()

    class ForgetLogsFold:
        def __init__(self) -> None:
            self.logs: list[tuple[int, int]] = []

        def add(self, item: HistoryItem) -> list[Edit]:
            if item.call and item.call.name == "read_log":
                self.logs.append((item.position, item.turn))
            return [(position, "(an old log)") for position, turn in self.logs if turn < item.turn]

    policies: list[Policy] = [ForgetLogs(), StubOldQueries(keep_turns=3), CutOldActions(keep_turns=3, max_chars=500)]
    async with Runtime(ScriptedProvider([text("Done.")]), compression=Compression(policies=policies)) as runtime:
        print((await runtime.run("Read the log.")).text)  # Done.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast

import orjson

from .._option_checks import Rule, check, hints_at_names, or_none, whole
from ..errors import ApplicationError, ConfigurationError
from ..messages import Message, ToolCall, ToolMessage
from ..protocols import HistorySummarizer, ToolKind, ToolSpec
from .shorten import MIN_CHARS, shorten
from .tokens import Tokenizer

__all__ = ["Compression", "CutOldActions", "Edit", "Fold", "HistoryItem", "Policy", "StubOldQueries"]

NOT_SHOWN = "[What was shown with this is left out to save space.]"
_MIN_WINDOW_TOKENS = 256  # A smaller window has no space for instructions and a question

Edit: TypeAlias = tuple[int, str]
"""The position of a result in the transcript, from 0, and the text that is sent instead of it from now on."""


@dataclass(slots=True)
class HistoryItem:
    """A message as a policy sees it. Its `position` in the transcript and the number of its `turn` count from 0.

    For a result, `call` is the call that it answers, and `spec` is its tool as it is defined now; either may be unknown
    (None). Messages before the first user message have the turn -1.
    """

    position: int
    turn: int
    message: Message
    call: ToolCall | None = None
    spec: ToolSpec | None = None


class Fold(Protocol):
    """The state of one policy for one transcript."""

    def add(self, item: HistoryItem, /) -> Iterable[Edit]:
        """Take the next message, and return the results to send with other text from now on. Must be quick."""
        ...


class Policy(Protocol):
    """A rule by which results are shortened. All requests share a policy, so its state belongs in its folds."""

    def fold(self) -> Fold:
        """Return a new fold, at the beginning of a transcript."""
        ...


@dataclass(slots=True, frozen=True)
class StubOldQueries:
    """A policy that replaces results of `kind="query"` tools in turns older than the last `keep_turns` by one line.

    The line says whether a newer result of the same query, with the same arguments, supersedes the older one.
    """

    keep_turns: int = 10

    def fold(self) -> Fold:
        """See `Policy`."""
        return _Queries(self.keep_turns)


@dataclass(slots=True, frozen=True)
class CutOldActions:
    """A policy that cuts results of `kind="action"` tools in turns older than the last `keep_turns` to `max_chars`."""

    keep_turns: int = 10
    max_chars: int = 200

    def fold(self) -> Fold:
        """See `Policy`."""
        return _Actions(self.keep_turns, self.max_chars)


class _ByAge(ABC):
    """A fold that shortens the results of one kind of tool once they are more than `keep_turns` turns old."""

    __slots__ = ("_keep_turns", "_kind", "_young")

    def __init__(self, kind: ToolKind, keep_turns: int) -> None:
        self._kind = kind
        self._keep_turns = keep_turns
        self._young: deque[HistoryItem] = deque()

    def add(self, item: HistoryItem) -> Iterable[Edit]:
        """See `Fold`."""
        if item.spec is not None and item.spec.kind == self._kind and isinstance(item.message, ToolMessage):
            self._take(item)
        young, oldest_whole = self._young, item.turn - self._keep_turns + 1
        edits: list[Edit] = []
        while young and young[0].turn < oldest_whole:
            aged = young.popleft()
            edits.append((aged.position, self._text(aged)))
        return edits

    def _take(self, item: HistoryItem) -> None:
        """Take in a new result."""
        self._young.append(item)

    @abstractmethod
    def _text(self, aged: HistoryItem) -> str:
        """Return the text that is sent instead of a result that has become old."""


class _Queries(_ByAge):
    __slots__ = ("_newest",)

    def __init__(self, keep_turns: int) -> None:
        super().__init__("query", keep_turns)
        self._newest: dict[tuple[str, str], int] = {}  # the position of each query's newest result

    def _take(self, item: HistoryItem) -> None:
        super()._take(item)
        self._newest[query_of(item)] = item.position

    def _text(self, aged: HistoryItem) -> str:
        superseded = self._newest[query_of(aged)] != aged.position
        return stub(cast("ToolMessage", aged.message), superseded=superseded)


class _Actions(_ByAge):
    __slots__ = ("_max_chars",)

    def __init__(self, keep_turns: int, max_chars: int) -> None:
        super().__init__("action", keep_turns)
        self._max_chars = max_chars

    def _text(self, aged: HistoryItem) -> str:
        message = cast("ToolMessage", aged.message)
        text = shorten(message.content, self._max_chars)
        return f"{text}\n{NOT_SHOWN}".lstrip() if message.parts else text


def query_of(item: HistoryItem) -> tuple[str, str]:
    """Return the key by which two queries are the same: the tool's name, and its arguments with sorted keys."""
    written = item.call.arguments if item.call is not None else ""
    with contextlib.suppress(orjson.JSONDecodeError, TypeError):  # Arguments that are not JSON are compared as text.
        written = orjson.dumps(orjson.loads(written), option=orjson.OPT_SORT_KEYS).decode()
    return (cast("ToolMessage", item.message).name, written)


def stub(message: ToolMessage, *, superseded: bool = False) -> str:
    """Return the line that replaces an older result."""
    why = "a newer one follows" if superseded else f"call {message.name} again for the present state"
    return f"[older result left out, {_size(message)}: {why}]"


def left_out(message: ToolMessage) -> str:
    """Return the line that replaces a result for which the window has no space."""
    way = f'read_result(call_id="{message.call_id}") gives {"the text" if message.parts else "it"}'
    return f"[left out to save space, {_size(message)}: {way}]"


def _size(message: ToolMessage) -> str:
    return f"{len(message.content)} characters{' and what was shown with them' if message.parts else ''}"


@hints_at_names
@dataclass(slots=True, frozen=True, kw_only=True)
class Compression:
    """The options for shortening the history that is sent to the model. The stored transcript stays whole.

    The last `keep_turns` turns are sent whole. In older turns, results of `@tool(kind="query")` become one line, and
    those of `@tool(kind="action")` keep `max_action_chars` characters, at least 200. With `keep_turns=None`, no turn is
    shortened because of its age. Results of tools with `keep_full_results` are always sent as they are; the mark is
    read from the tools that the request has now. `policies` are the application's own, applied after these two; a
    request in which one fails ends as `application_error`.

    `max_context_tokens` is the number of tokens for all that is sent: instructions, tools and messages, without the
    reply. Without it the history is not measured, until a provider reports that it is too long. When the history would
    not fit, the oldest turns are left out, whole, until three quarters of the window are used. So requests begin with
    the same text for many rounds, and the provider's prompt cache stays useful. Results that are kept whole are still
    sent, with their calls. When the window is nearly full, `summarizer` is asked for a summary of the turns that are
    left out; the summary may take a quarter of the window. The summarizer gets half of the time of a model call; where
    it fails, it is not asked again in that request. As the last resort the current turn itself is shortened: results of
    its older rounds first, then the newest; a history that still does not fit fails as `context_overflow`.

    A provider that reports that its window is too small is sent less, once in a round. After that the request turns to
    the next of its `providers`, which is sent what its own window takes.

    Tokens are estimated from characters, and corrected for each model by the usage that its provider reports (see
    `core.tokens`). `tokenizer`, a function from a text to its number of tokens, replaces the estimate; texts for which
    it fails are estimated. Raises `ConfigurationError`.
    """

    keep_turns: int | None = 10
    max_action_chars: int = 200
    max_context_tokens: int | None = None
    summarizer: HistorySummarizer | None = None
    tokenizer: Tokenizer | None = None
    policies: Sequence[Policy] = ()

    def __post_init__(self) -> None:
        check("keep_turns", self.keep_turns, or_none(whole(1), "to shorten no turn for its age"))
        check("max_action_chars", self.max_action_chars, whole(MIN_CHARS))
        check("max_context_tokens", self.max_context_tokens, or_none(whole(_MIN_WINDOW_TOKENS), "for no window"))
        check("tokenizer", self.tokenizer, or_none(Rule(callable, "pass a function that counts a text's tokens")))
        if self.summarizer is not None:
            if isinstance(self.summarizer, type) or not callable(getattr(self.summarizer, "summarize", None)):
                raise ConfigurationError(
                    f"summarizer is {self.summarizer!r}; pass an object such as toolbus.Summarizer(provider)"
                )
            if self.max_context_tokens is None:
                raise ConfigurationError(
                    "summarizer needs max_context_tokens=: it is asked when that window is nearly full"
                )
        if isinstance(self.policies, str) or not isinstance(self.policies, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"policies is {self.policies!r}; pass a list of objects, see Policy")
        for each in self.policies:
            if isinstance(each, type) or not callable(getattr(each, "fold", None)):
                raise ConfigurationError(f"policies has {each!r}; pass objects with a method fold(), see Policy")

    def folds(self) -> list[Fold]:
        """Return a new fold for each policy, in order of application. Raises `ApplicationError` where one fails."""
        folds: list[Fold] = []
        if self.keep_turns is not None:
            folds = [
                StubOldQueries(self.keep_turns).fold(),
                CutOldActions(self.keep_turns, self.max_action_chars).fold(),
            ]
        for each in self.policies:
            try:
                folds.append(each.fold())
            except Exception as exc:
                raise failed_policy(each, "fold", exc) from exc
        return folds


def failed_policy(policy: object, method: str, exc: Exception) -> ApplicationError:
    """Return the error for a policy of the application that has raised, or has returned invalid edits."""
    name = type(policy).__name__
    return ApplicationError(f"the compression policy {name} failed: {method}: {type(exc).__name__}: {exc}")
