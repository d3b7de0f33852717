"""How a long history is shortened where it is sent to the model: the options, and the policies. Pure.

A policy is a fold: it is shown each message of the transcript once, in order, and says which results are from now on to
be sent in other words. So a round costs what is new in it, however long the history is. What a policy may not do is
held by `core.history`, which applies it: nothing but results changes, none grows, and none of a tool that is marked
`sensitive_history`. The transcript itself stays whole.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

import orjson

from ..errors import ApplicationError, ConfigurationError
from ..messages import Message, ToolCall, ToolMessage
from ..protocols import HistorySummarizer, ToolKind, ToolSpec
from .shorten import MIN_CHARS, shorten
from .tokens import Tokenizer

__all__ = ["Compression", "CutOldActions", "Edit", "Fold", "Policy", "Seen", "StubOldQueries"]

NOT_SHOWN = "[What was shown with this is left out to save room.]"
_LEAST_WINDOW = 256  # tokens; less than that holds no instructions and no question

Edit: TypeAlias = tuple[int, str]
"""The place of a result in the transcript, and the text that is sent for it from now on."""


@dataclass(slots=True)
class Seen:
    """A message as a policy sees it: its place in the transcript, and the number of its turn, both from 0.

    Of a result, `call` is what it answers, and `spec` its tool as it is known now; None where there is none. What
    stands before the first user message is of turn -1.
    """

    place: int
    turn: int
    message: Message
    call: ToolCall | None = None
    spec: ToolSpec | None = None


class Fold(Protocol):
    """One policy at work on one transcript."""

    def add(self, seen: Seen) -> Iterable[Edit]:
        """Take the next message; give the results that are to be sent in other words from now on. Must be quick."""
        ...


class Policy(Protocol):
    """A rule by which results are shortened. Shared by all requests: what it notes down, its folds do."""

    def fold(self) -> Fold:
        """The policy, at the beginning of a transcript."""
        ...


@dataclass(slots=True, frozen=True)
class StubOldQueries:
    """Results of `kind="query"` tools in turns older than the last `keep_turns` become a line.

    The line says whether a newer result of the same query, with the same arguments, supersedes them.
    """

    keep_turns: int = 10

    def fold(self) -> Fold:
        """See `Policy`."""
        return _Queries(self.keep_turns)


@dataclass(slots=True, frozen=True)
class CutOldActions:
    """Results of `kind="action"` tools in turns older than the last `keep_turns` keep `max_chars` characters."""

    keep_turns: int = 10
    max_chars: int = 200

    def fold(self) -> Fold:
        """See `Policy`."""
        return _Actions(self.keep_turns, self.max_chars)


class _Ageing:
    """Results of one kind of tool, until their turn is an older one."""

    __slots__ = ("_keep_turns", "_kind", "_young")

    def __init__(self, kind: ToolKind, keep_turns: int) -> None:
        self._kind = kind
        self._keep_turns = keep_turns
        self._young: deque[Seen] = deque()

    def add(self, seen: Seen) -> Iterable[Edit]:
        """See `Fold`."""
        if seen.spec is not None and seen.spec.kind == self._kind and isinstance(seen.message, ToolMessage):
            self._young.append(seen)
            self._note(seen)
        young, oldest_whole = self._young, seen.turn - self._keep_turns + 1
        if not young or young[0].turn >= oldest_whole:
            return ()
        edits: list[Edit] = []
        while young and young[0].turn < oldest_whole:
            aged = young.popleft()
            edits.append((aged.place, self._text(aged)))
        return edits

    def _note(self, seen: Seen) -> None:
        """Take notice of a new result."""

    def _text(self, aged: Seen) -> str:
        raise NotImplementedError


class _Queries(_Ageing):
    __slots__ = ("_newest",)

    def __init__(self, keep_turns: int) -> None:
        super().__init__("query", keep_turns)
        self._newest: dict[tuple[str, str], int] = {}  # the place of each query's newest result

    def _note(self, seen: Seen) -> None:
        self._newest[query_of(seen)] = seen.place

    def _text(self, aged: Seen) -> str:
        query = query_of(aged)
        superseded = self._newest[query] != aged.place
        if not superseded:
            del self._newest[query]
        return stub(cast("ToolMessage", aged.message), superseded=superseded)


class _Actions(_Ageing):
    __slots__ = ("_max_chars",)

    def __init__(self, keep_turns: int, max_chars: int) -> None:
        super().__init__("action", keep_turns)
        self._max_chars = max_chars

    def _text(self, aged: Seen) -> str:
        message = cast("ToolMessage", aged.message)
        text = shorten(message.content, self._max_chars)
        return f"{text}\n{NOT_SHOWN}".lstrip() if message.parts else text


def query_of(seen: Seen) -> tuple[str, str]:
    """What makes two queries the same: the tool and its arguments, in whatever order they were written."""
    written = seen.call.arguments if seen.call is not None else ""
    with contextlib.suppress(orjson.JSONDecodeError, TypeError):  # whatever it is, it is the same only as itself
        written = orjson.dumps(orjson.loads(written), option=orjson.OPT_SORT_KEYS).decode()
    return (cast("ToolMessage", seen.message).name, written)


def stub(message: ToolMessage, *, superseded: bool = False) -> str:
    """The line that stands for an older result."""
    why = "a newer one follows" if superseded else f"call {message.name} again for the present state"
    return f"[older result left out, {_size(message)}: {why}]"


def left_out(message: ToolMessage) -> str:
    """The line that stands for a result which there is no room for."""
    way = f'read_result(call_id="{message.call_id}") gives {"the text" if message.parts else "it"}'
    return f"[left out to save room, {_size(message)}: {way}]"


def _size(message: ToolMessage) -> str:
    return f"{len(message.content)} characters{' and what was shown with them' if message.parts else ''}"


@dataclass(slots=True, frozen=True, kw_only=True)
class Compression:
    """How the history is shortened where it is sent to the model. What is stored stays whole.

    The last `keep_turns` turns are sent whole; of older ones, results of `@tool(kind="query")` become a line, and those
    of `@tool(kind="action")` keep `action_chars` characters, 200 at least. `keep_turns=None` shortens no turn for its
    age. Results of tools marked `sensitive_history` are always sent as they are; what a tool is, is asked of the tools
    that the request has. `policies` are the application's own, applied after these two; a request in which one fails
    ends as `application_error`.

    `max_context_tokens` is the room for what is sent: instructions, tools and messages, without the reply. Without it
    the history is not measured, until a provider says that it is too long. When it would not fit, the oldest turns are
    left out, whole, until three quarters of the room are used, so that what is sent begins alike for many rounds and
    the provider's prompt cache stays of use; sensitive results are sent all the same, with their calls. Near the end of
    the room, `summarizer` is asked for a summary of the turns that leave, of which a quarter of the room is made use
    of; it gets half of the time of a call of the model, and where it fails, is not asked again in that request. Last,
    the current turn itself is shortened: results of its older rounds first, then the newest; what still does not fit
    fails as `context_overflow`.

    A provider that says that its window is too small is sent less, once in a round; then the request turns to the next
    of its `providers`, which is sent what its own window takes.

    Tokens are estimated from characters, and corrected for each model by the usage that its provider reports (see
    `core.tokens`); with `tokenizer`, a function from text to its number of tokens, they are counted by that, and texts
    for which it fails are estimated. Raises `ConfigurationError`.
    """

    keep_turns: int | None = 10
    action_chars: int = 200
    max_context_tokens: int | None = None
    summarizer: HistorySummarizer | None = None
    tokenizer: Tokenizer | None = None
    policies: Sequence[Policy] = ()

    def __post_init__(self) -> None:
        _check_count("keep_turns", self.keep_turns, 1, "None to shorten no turn for its age")
        _check_count("action_chars", self.action_chars, MIN_CHARS, "")
        _check_count("max_context_tokens", self.max_context_tokens, _LEAST_WINDOW, "None for no window")
        if self.tokenizer is not None and not callable(self.tokenizer):
            raise ConfigurationError(f"tokenizer is {self.tokenizer!r}; give a function that counts a text's tokens")
        if self.summarizer is not None:
            if isinstance(self.summarizer, type) or not callable(getattr(self.summarizer, "summarize", None)):
                raise ConfigurationError(f"summarizer is {self.summarizer!r}; give a toolbus.Summarizer(provider), say")
            if self.max_context_tokens is None:
                raise ConfigurationError("summarizer is asked near the end of max_context_tokens=, which is not given")
        if isinstance(self.policies, str) or not isinstance(self.policies, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"policies is {self.policies!r}; give a list of objects, see Policy")
        for each in self.policies:
            if isinstance(each, type) or not callable(getattr(each, "fold", None)):
                raise ConfigurationError(f"policies has {each!r}; give objects with a method fold(), see Policy")

    def folds(self) -> list[Fold]:
        """All policies, at the beginning of a transcript. Raises `ApplicationError` where one fails."""
        folds: list[Fold] = []
        if self.keep_turns is not None:
            folds = [StubOldQueries(self.keep_turns).fold(), CutOldActions(self.keep_turns, self.action_chars).fold()]
        for each in self.policies:
            try:
                folds.append(each.fold())
            except Exception as exc:
                raise failed_policy(each, "fold", exc) from exc
        return folds


def failed_policy(policy: object, method: str, exc: Exception) -> ApplicationError:
    """What to raise where an application's own policy has raised, or has said what makes no sense."""
    name = type(policy).__name__
    return ApplicationError(f"the compression policy {name} failed: {method}: {type(exc).__name__}: {exc}")


def _check_count(name: str, value: Any, least: int, other: str) -> None:
    if value is None and other:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < math.inf:
        more = f", or {other}" if other else ""
        raise ConfigurationError(f"{name} is {value!r}; it must be a whole number of at least {least}{more}")
