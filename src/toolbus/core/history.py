"""The part of a transcript that is sent to the model: a fold over its messages that keeps a shorter copy. Pure.

The transcript stays whole. The fold looks at each of its messages once, when it is new, and counts its tokens; policies
(`core.compression`) choose the results that are to be sent with other text. When everything together would not fit the
window, whole turns are left out from the front, never a call without its result; what cannot be left out is shortened
as the last resort. The history is then reduced to three quarters of the window. So this is rare, and what is sent
begins alike from one round to the next.

What is sent is valid whenever the transcript is: results are replaced one for one, and only whole turns are left out.
The results in such turns that are kept whole (`keep_full_results`) are still sent, with their calls and after a user
message.

Example:
    from toolbus.core.compression import Compression
    from toolbus.core.history import History, Memo, Shape
    from toolbus.messages import AssistantMessage, UserMessage

    messages = [UserMessage(content="Hello?"), AssistantMessage(text="Hello.")]
    history = History(messages, Compression(keep_turns=3), memo=Memo())
    history.take({})
    print(len(history.view()))  # 2
    shape: Shape | None = history.shape
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import cast

from ..errors import ApplicationError
from ..messages import AssistantMessage, Message, Part, SystemMessage, ToolCall, ToolMessage, UserMessage, size_of
from ..protocols import ToolSpec
from ..records import replace
from .arguments import encodable
from .compression import NOT_SHOWN, Compression, Edit, Fold, HistoryItem, failed_policy, left_out
from .message_list import Messages
from .result_size import DEFAULT_RESULT_CHARS, max_chars_of, spec_of
from .shorten import MIN_CHARS, shorten
from .tokens import Tokenizer, estimate_message, estimate_text

__all__ = ["History", "Memo", "Shape"]

_LOW_WATER = 0.75  # share of the window that is used after turns were left out
_NEAR = 0.85  # share of the window above which a summary is asked for
_SUMMARY_LOW_WATER = 0.5  # the same as `_LOW_WATER` with a summary, which costs a model call and so has to save more
_SUMMARY_SHARE = 0.25  # share of the window that a summary may take
_SAID = re.compile(r"(.+)_[so]\d+")  # the ids of user messages that are added to a request while it runs
_REPLY = re.compile(r"(.+?)_r\d+(?:_\d+)?")  # the ids of replies, of which a later attempt has a number too
_FAILURES = re.compile(r".+_\d+_n")  # the ids of notes on a round's failures
_KEPT = "[This result is kept as it is.]"
_ALIKE_CHARS = 200  # characters by which a message without an id is recognised


@dataclass(slots=True, frozen=True)
class Shape:
    """The size of what is sent and of the whole transcript: tokens as estimated, before correction for the model."""

    before_tokens: int
    after_tokens: int
    results_shortened: int
    turns_omitted: int
    summary: str = ""


@dataclass(slots=True, frozen=True)
class Memo:
    """The data that a conversation's next request needs to send the same history: its first turn, and what is left out.

    The prompt of the first turn that is sent is recognised by its id; in a history that was kept without ids, by its
    position in the transcript (`first_position`) and its beginning. `learned_tokens` are the windows for messages that
    were learned from refusals, in tokens, by "vendor:model".
    """

    first_id: str = ""
    first_position: int = 0
    first_text: str = ""
    turns_omitted: int = 0
    summary: str = ""
    learned_tokens: Mapping[str, float] = field(default_factory=dict[str, float])


class _Entry:
    """One message that is sent. `position` is its position in the transcript, -1 for a message that is not in it."""

    __slots__ = ("is_fixed", "is_shortened", "message", "position", "tokens")

    def __init__(self, message: Message, position: int, tokens: int) -> None:
        self.message = message
        self.position = position
        self.tokens = tokens
        self.is_fixed = True
        self.is_shortened = False


class History:
    """The fold over one transcript: `take` its new messages, `fit` them into a window, and send the `view`.

    `messages` is the transcript, which only grows; its newest turn is the current one, which is never left out. A turn
    is a user message with the notes before it and all that follows from it, including user messages that were added
    while its request ran. `request_id` is the id of the current request. Tokens are raw estimates everywhere in this
    module, by `count`. `limit_tokens` is the window for messages, set anew for each call of the model, or None.

    `proceed` continues the fold in the conversation's next request, so that each message is read once in all of them.
    """

    __slots__ = (
        "_calls",
        "_compression",
        "_count_text",
        "_entries",
        "_folds",
        "_has_changed",
        "_heads",
        "_is_stale",
        "_left_out",
        "_lines_until",
        "_max_result_chars",
        "_memo",
        "_messages",
        "_note",
        "_offset",
        "_requests",
        "_shortened",
        "_shown",
        "_specs",
        "_starts",
        "_summary",
        "_taken",
        "_tokens",
        "_turn",
        "_viewed",
        "_whole_tokens",
        "has_shortened",
        "limit_tokens",
        "size_bytes",
    )

    def __init__(
        self,
        messages: Sequence[Message],
        compression: Compression,
        *,
        request_id: str = "",
        max_result_chars: int = DEFAULT_RESULT_CHARS,
        count: Tokenizer = estimate_text,
        memo: Memo | None = None,
    ) -> None:
        self._messages = messages
        self._requests = (request_id, "")  # the current request, and the request of the turn that is being read
        self._compression = compression
        self._max_result_chars = max_result_chars
        self._folds: list[Fold] = []  # made when the first message is read
        self._count_text = count
        self._taken = 0
        self._specs: dict[str, ToolSpec | None] = {}  # the tools of the results, by name, as they were read
        self._is_stale = False  # whether a policy has failed, or a tool has changed since a result of it was read
        self._turn = -1
        self._lines_until = 0  # the position up to which results were replaced by lines to save space
        self._calls: Mapping[str, ToolCall] = {}
        self._entries: list[_Entry] = []
        self._shown: list[Message] = []  # the messages of the entries
        self._viewed = 0  # the number of shown messages that may be in a view; those must not change any more
        self._starts: deque[int] = deque()  # the index of the first entry of each turn that is sent
        self._heads = 0  # the number of entries before the first turn, which are always sent
        self._note: _Entry | None = None  # the message that replaces the turns that were left out
        self._offset = 0  # the position of a message minus the index of its entry, after the last turn left out
        self._whole_tokens = 0
        self._tokens = 0
        self._shortened = 0
        self._left_out = 0
        self._summary = ""
        self._has_changed = False  # whether anything was shortened or left out that `what_changed` has not reported
        self.limit_tokens: float | None = None
        self.has_shortened = False  # whether any result was ever shortened, so that `read_result` is of use
        self.size_bytes = 0  # the estimated size of the messages that were read
        self._memo = memo  # None once `take` has applied it

    # -------------------------------------------------------------------------------------------- new messages

    def take(self, specs: Mapping[str, ToolSpec]) -> None:
        """Read the messages that are new in the transcript; `specs` are the tools as they are now.

        Raises `ApplicationError` where a policy fails.
        """
        messages = self._messages
        if not self._taken:
            self._folds = self._compression.folds()
        self.size_bytes += size_of(islice(messages, self._taken, None))
        try:
            for position in range(self._taken, len(messages)):
                self._taken = position + 1
                self._add(position, messages[position], specs)
        except ApplicationError:
            self._is_stale = True
            raise
        memo, self._memo = self._memo, None
        if memo is not None and memo.turns_omitted:
            self._recall(memo)

    def proceed(self, new: History, specs: Mapping[str, ToolSpec]) -> bool:
        """Continue with the transcript and the options of `new`, the unread fold of the conversation's next request.

        Return False, and change nothing, if `new` could come to something else: earlier messages, options or the tool
        of a result have changed, or a policy has failed.
        """
        if self._is_stale or (self._compression, self._max_result_chars) != (new._compression, new._max_result_chars):
            return False
        if any(spec_of(name, specs) != spec for name, spec in self._specs.items()):
            return False
        if new._messages[: self._taken] != self._messages[: self._taken]:
            return False
        self._messages, self._count_text = new._messages, new._count_text
        self._requests = (new._requests[0], self._requests[1])
        # Each request reports what it does not send, also where an earlier one has shortened it.
        self._has_changed = bool(self._shortened or self._left_out)
        return True

    def _add(self, position: int, message: Message, specs: Mapping[str, ToolSpec]) -> None:
        entry = _Entry(message, position, self._count(message))
        seen = HistoryItem(position, self._turn, message)
        if isinstance(message, UserMessage):
            if self._begins_turn(position, message):
                self._turn += 1
                self._starts.append(self._start())
                seen.turn = self._turn
        elif isinstance(message, AssistantMessage):
            self._calls = {call.call_id: call for call in message.tool_calls}
            if reply := _REPLY.fullmatch(message.message_id):
                self._requests = (self._requests[0], reply[1])
        elif isinstance(message, ToolMessage):
            seen.call, seen.spec = self._calls.get(message.call_id), spec_of(message.name, specs)
            self._is_stale |= self._specs.setdefault(message.name, seen.spec) != seen.spec
            entry.is_fixed = seen.spec is not None and seen.spec.keep_full_results
        if self._turn < 0:
            self._heads += 1
        self._entries.append(entry)
        self._shown.append(message)
        self._tokens += entry.tokens
        self._whole_tokens += entry.tokens
        if isinstance(message, ToolMessage) and len(message.content) > max_chars_of(seen.spec, self._max_result_chars):
            max_chars = int(max_chars_of(seen.spec, self._max_result_chars))
            self._put(len(self._entries) - 1, shorten(message.content, max_chars, message.call_id), message.parts)
        for fold in self._folds:
            for where, text in _edits_of(fold, seen):
                self._edit(where, text)

    def _begins_turn(self, position: int, message: UserMessage) -> bool:
        """Return whether this message is a prompt, and not an addition to a running request or to the prompt before."""
        if self._turn < 0:
            return True
        continues = isinstance(self._messages[position - 1], UserMessage)
        if said := _SAID.fullmatch(message.message_id):
            return not continues and said[1] not in self._requests
        # A prompt may follow another one directly, if the request before has added no message.
        return not continues or bool(message.message_id)

    def _start(self) -> int:
        """Return the index at which the turn begins whose prompt comes next: the notes before it belong to the turn."""
        entries = self._entries
        start = len(entries)
        least = self._starts[-1] if self._starts else start
        while start > least and _is_note(entries[start - 1].message):
            start -= 1
        return start

    def _count(self, message: Message) -> int:
        return estimate_message(message, self._count_text)

    def _edit(self, position: int, text: str) -> None:
        """Apply a policy's edit, unless the result is protected or has been left out."""
        index = position - self._offset
        if not self._starts or not self._starts[0] <= index < len(self._entries):
            return
        if not self._entries[index].is_fixed:
            self._put(index, text)

    def _put(self, index: int, text: str, parts: tuple[Part, ...] = ()) -> None:
        """Send a result with other text and only these `parts`, if that makes it smaller."""
        entry = self._entries[index]
        message = cast("ToolMessage", entry.message)
        shorter = replace(message, content=text, parts=parts)
        tokens = self._count(shorter)
        grows = len(text) > len(message.content) and len(parts) == len(message.parts)
        if grows or tokens > entry.tokens or shorter == message:
            return
        if not entry.is_shortened:
            self._shortened += 1
            entry.is_shortened = self.has_shortened = True
        if index < self._viewed:
            self._shown, self._viewed = list(self._shown), 0
        self._tokens += tokens - entry.tokens
        entry.message = self._shown[index] = shorter
        entry.tokens = tokens
        self._has_changed = True

    # ------------------------------------------------------------------------------------------ sent messages

    def view(self, system: SystemMessage | None = None) -> Messages:
        """Return the messages that are sent, after `system`. The view is read-only; later changes do not affect it."""
        self._viewed = len(self._shown)
        return Messages(self._shown, system)

    @property
    def tokens(self) -> int:
        """The estimated tokens of the messages that are sent, without instructions and tools."""
        return self._tokens

    @property
    def summary(self) -> str:
        """The summary of the turns that were left out; empty without a summary."""
        return self._summary

    def what_changed(self) -> Shape | None:
        """Return the shape, if anything was shortened or left out since the last call of this method; else None."""
        if not self._has_changed:
            return None
        self._has_changed = False
        return self.shape()

    def shape(self) -> Shape:
        """Return the size of what is sent and of the whole transcript."""
        return Shape(self._whole_tokens, self._tokens, self._shortened, self._left_out, self._summary)

    def memo(self) -> Memo | None:
        """Return the memo for the conversation's next request; None where no turn was left out."""
        if self._memo is not None or not self._left_out:
            return self._memo  # The request ended before `take`, so its own memo is still the right one.
        first = self._prompt(self._starts[0])
        text = cast("UserMessage", first.message).text[:_ALIKE_CHARS]
        return Memo(first.message.message_id, first.position, text, self._left_out, self._summary)

    def _prompt(self, start: int) -> _Entry:
        """Return the user message of the turn that begins at index `start`, after its notes."""
        return next(each for each in islice(self._entries, start, None) if isinstance(each.message, UserMessage))

    def _recall(self, memo: Memo) -> None:
        """Leave out the turns that an earlier request of the conversation has left out, if its history is the same."""
        for number, start in enumerate(self._starts):
            first = self._prompt(start)
            same = first.message.message_id == memo.first_id
            if same and not memo.first_id:
                text = cast("UserMessage", first.message).text
                same = first.position == memo.first_position and text[:_ALIKE_CHARS] == memo.first_text
            if same and number:
                self._left_out = memo.turns_omitted - number
                self._leave(number, memo.summary)
                return

    # ------------------------------------------------------------------------------------------------ the window

    def leaving(self) -> list[Message]:
        """Return the messages to summarize when the window is nearly full; an empty list while it is not.

        They are the original messages, except for results that are kept whole. Those continue to be sent to the model,
        and must not be shown to the summarizer.
        """
        limit = self.limit_tokens
        if limit is None or limit <= 0 or self._tokens <= limit * _NEAR:
            return []
        count = self._count_leaving(limit * _SUMMARY_LOW_WATER, 1)
        return self._whole(self._starts[0], self._starts[count]) if count else []

    def leave(self, summary: str) -> None:
        """Leave out the messages that `leaving` returns, and send `summary` instead, cut to a quarter of the window."""
        limit = self.limit_tokens
        if limit is not None and (count := self._count_leaving(limit * _SUMMARY_LOW_WATER, 1)):
            self._leave(count, self._cut(summary, limit * _SUMMARY_SHARE))

    def _cut(self, text: str, max_tokens: float) -> str:
        while (tokens := self._count_text(text)) > max_tokens and len(text) > MIN_CHARS:
            text = shorten(text, int(len(text) * min(max_tokens / tokens, 0.9)))
        return text

    def fit(self, limit: float) -> bool:
        """Reduce what is sent to `limit` tokens. Return False if it is still longer with nothing left to shorten."""
        if self._tokens <= limit or not self._starts:
            return self._tokens <= limit
        target = limit * _LOW_WATER
        keep = self._compression.keep_turns or 1
        if count := self._count_leaving(target, keep):
            self._leave(count, self._summary)
        if self._tokens > limit:
            self._shorten(target, self._starts[-1])
        if self._tokens > limit and (count := self._count_leaving(target, 1)):
            self._leave(count, self._summary)
        newest = self._newest_round()
        if self._tokens > limit:
            self._shorten(target, newest)
        self._shrink(newest, limit)
        return self._tokens <= limit

    def _whole(self, begin: int, end: int) -> list[Message]:
        return [
            replace(each.message, content=_KEPT, parts=())
            if each.is_fixed and isinstance(each.message, ToolMessage)
            else self._messages[each.position]
            for each in islice(self._entries, begin, end)
        ]

    def _count_leaving(self, target: float, keep: int) -> int:
        """Return how many of the oldest turns have to be left out to reach `target` tokens; keep the last `keep`."""
        left, count = self._tokens, 0
        starts = self._starts
        while left > target and count < len(starts) - keep:
            turn = self._entries[starts[count] : starts[count + 1]]
            left += sum(each.tokens for each in _kept_whole(turn, self._count)) - sum(each.tokens for each in turn)
            count += 1
        return count

    def _leave(self, count: int, summary: str) -> None:
        """Leave the `count` oldest turns out, and send a note instead, with the summary where there is one."""
        entries, starts = self._entries, self._starts
        begin, end = starts[0], starts[count]
        kept: list[_Entry] = []
        for start, stop in pairwise(islice(starts, count + 1)):
            kept += _kept_whole(entries[start:stop], self._count)
        had_note = self._note is not None
        pinned = entries[self._heads + had_note : begin] + kept
        self._left_out += count
        self._summary = summary
        saved = sum(each.tokens for each in entries[self._heads : end]) - sum(each.tokens for each in pinned)
        note = self._new_note(saved)
        front = [*entries[: self._heads], *([note] if note else []), *pinned]
        self._note = note
        self._entries = front + entries[end:]
        self._shown = [each.message for each in self._entries]
        moved = len(front) - end
        for _ in range(count):
            starts.popleft()
        self._starts = deque(start + moved for start in starts)
        self._offset = self._entries[len(front)].position - len(front)
        self._tokens = sum(each.tokens for each in self._entries)
        self._shortened = sum(each.is_shortened for each in self._entries)
        self._has_changed = True

    def _new_note(self, max_tokens: int) -> _Entry | None:
        """Return the note that replaces the turns that were left out; None if it would take more than `max_tokens`."""
        turns = f"{self._left_out} earlier turn{'s' if self._left_out != 1 else ''}"
        plain = f"[{turns} of this conversation left out here.]"
        summed = f"[{turns} of this conversation left out here. In short:]\n{self._summary}"
        for text in (summed, plain) if self._summary else (plain,):
            message = SystemMessage(text=text, message_id="")
            tokens = self._count(message)
            if tokens <= max_tokens:
                return _Entry(message, -1, tokens)
        return None

    def _newest_round(self) -> int:
        """Return the index of the first message that the model has not seen yet: a new result, or a later message."""
        index = len(self._entries)
        while index > self._starts[-1] and not isinstance(self._entries[index - 1].message, AssistantMessage):
            index -= 1
        return index

    def _shorten(self, target: float, end: int) -> None:
        """Replace results before index `end` by a line, the oldest first, until at most `target` tokens are sent."""
        index = max(self._starts[0], self._lines_until - self._offset)
        while index < end and self._tokens > target:
            each = self._entries[index]
            if not each.is_fixed:
                self._put(index, left_out(cast("ToolMessage", self._messages[each.position])))
            index += 1
        self._lines_until = index + self._offset

    def _shrink(self, begin: int, limit: float) -> None:
        """Cut the results from index `begin` on, the longest first; then send them without images and files."""
        newest = [index for index in range(begin, len(self._entries)) if not self._entries[index].is_fixed]
        for index in sorted(newest, key=lambda at: -self._entries[at].tokens):
            each = self._entries[index]
            whole, message = cast("ToolMessage", self._messages[each.position]), cast("ToolMessage", each.message)
            max_chars = len(message.content)
            while self._tokens > limit and max_chars > MIN_CHARS:
                share = max(0.0, 1 - (self._tokens - limit) / each.tokens)
                max_chars = max(MIN_CHARS, int(max_chars * min(share, 0.95)))
                self._put(index, shorten(whole.content, max_chars, whole.call_id), message.parts)
        for index in newest:
            message = cast("ToolMessage", self._entries[index].message)
            if self._tokens > limit and message.parts:
                self._put(index, f"{message.content}\n{NOT_SHOWN}".lstrip())


def _is_note(message: Message) -> bool:
    """Return whether this is a note that belongs to the next prompt; a note on failures belongs to the round before."""
    return isinstance(message, SystemMessage) and not _FAILURES.fullmatch(message.message_id)


def _edits_of(fold: Fold, seen: HistoryItem) -> Sequence[Edit]:
    """Return a policy's edits for a message. Raises `ApplicationError` if the policy fails or its edits are invalid."""
    try:
        edits = fold.add(seen)
        return [(int(position), encodable(text)) for position, text in edits] if edits else ()
    except Exception as exc:
        raise failed_policy(fold, "add", exc) from exc


def _kept_whole(turn: Sequence[_Entry], count: Callable[[Message], int]) -> list[_Entry]:
    """Return the entries of a left-out turn that are still sent: its results kept whole, their calls and the prompt."""
    kept: list[_Entry] = []
    for index, each in enumerate(turn):
        if not isinstance(each.message, AssistantMessage):
            continue
        results: list[_Entry] = []
        for result in turn[index + 1 :]:
            if not isinstance(result.message, ToolMessage):
                break
            if result.is_fixed:
                results.append(result)
        if results:
            prompt = [] if kept else [next(first for first in turn if isinstance(first.message, UserMessage))]
            kept += [*prompt, _only(each, results, count), *results]
    return kept


def _only(reply: _Entry, results: Sequence[_Entry], count: Callable[[Message], int]) -> _Entry:
    """Return the entry of a reply with only the calls of `results`."""
    message = cast("AssistantMessage", reply.message)
    ids = {cast("ToolMessage", each.message).call_id for each in results}
    calls = tuple(call for call in message.tool_calls if call.call_id in ids)
    if calls == message.tool_calls:
        return reply
    reduced = AssistantMessage(tool_calls=calls, message_id=message.message_id)
    return _Entry(reduced, reply.position, count(reduced))
