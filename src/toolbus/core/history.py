"""What of a transcript is sent to the model: a fold over its messages that keeps a shorter copy beside it. Pure.

The transcript stays whole. Here each of its messages is looked at once, when it is new, and counted; policies
(`core.compression`) say which results are to be sent in other words. When all of it would not fit the window, whole
turns leave from the front, never a call without its result; what cannot leave is shortened as the last resort. That
runs down to three quarters of the window, so it is rare, and what is sent begins alike from one round to the next.

What comes out is valid whenever what went in was: results are replaced one for one, and only whole turns leave, but for
the sensitive results in them, which stay with their calls and behind a user message.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import cast

from ..messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from ..protocols import ToolSpec
from .compression import Compression, Seen, left_out
from .shorten import shorten
from .state import DEFAULT_RESULT_CHARS, Messages
from .tokens import estimate_message, estimate_text

__all__ = ["History", "Memo", "Shape", "is_of_interest", "most_chars"]

_LOW_WATER = 0.75  # of the window: down to here turns leave
_NEAR = 0.85  # of the window: from here on a summary is asked for
_SUMMARY_LOW_WATER = 0.5  # a summary costs a call of the model, so it makes more room at once
_LEAST_CHARS = 200  # of a result of the newest round, when nothing else is left to shorten
_NOT_A_PROMPT = re.compile(r"_[so]\d+$")  # the ids of what is said to a request while it runs


def is_of_interest(message: Message, specs: Mapping[str, ToolSpec], max_result_chars: int) -> bool:
    """Whether there may ever be something to shorten once this message is there; without such, no history is kept."""
    if not isinstance(message, ToolMessage):
        return False
    spec = specs.get(message.name)
    if spec is None:
        return len(message.content) > max_result_chars
    return bool(spec.kind) or len(message.content) > most_chars(spec, max_result_chars)


def most_chars(spec: ToolSpec | None, default: int) -> float:
    """How much of a result of this tool is sent; infinite where it is never cut."""
    if spec is None:
        return default
    if spec.control == "read" or (spec.sensitive_history and spec.max_result_chars is None):
        return float("inf")  # a page is as long as it may be
    return default if spec.max_result_chars is None else spec.max_result_chars


@dataclass(slots=True, frozen=True)
class Shape:
    """What is sent, against the whole: tokens as estimated, before any correction for the model."""

    before_tokens: int
    after_tokens: int
    results_shortened: int
    turns_left_out: int
    summary: str = ""


@dataclass(slots=True, frozen=True)
class Memo:
    """What a conversation's next request needs to send the same: the first message kept, and what is before it.

    `learned_tokens` is a window that was learned from a provider's refusal.
    """

    first_id: str = ""
    turns_left_out: int = 0
    summary: str = ""
    learned_tokens: float | None = None


class _Entry:
    """One message that is sent. `place` is that in the transcript, -1 for what does not stand there."""

    __slots__ = ("is_fixed", "message", "place", "tokens")

    def __init__(self, message: Message, place: int, tokens: int) -> None:
        self.message = message
        self.place = place
        self.tokens = tokens
        self.is_fixed = True


class History:
    """The fold. `take` what is new, `fit` it into a window, and send the `view`.

    `messages` is the transcript, which only grows; its first `history_count` ones are of earlier turns. The rest is the
    current turn, which is never left out. Tokens are raw estimates everywhere in here. `limit_tokens` is the room that
    there is for messages, set anew for each call of the model, or None; `learned_tokens` one that a provider's refusal
    has taught.
    """

    __slots__ = (
        "_calls",
        "_changes",
        "_compression",
        "_count_text",
        "_entries",
        "_folds",
        "_heads",
        "_history_count",
        "_is_current",
        "_left_out",
        "_lent",
        "_lines_until",
        "_max_result_chars",
        "_memo",
        "_messages",
        "_note",
        "_offset",
        "_shortened",
        "_shown",
        "_starts",
        "_summary",
        "_taken",
        "_tokens",
        "_told",
        "_turn",
        "_whole_tokens",
        "learned_tokens",
        "limit_tokens",
    )

    def __init__(
        self,
        messages: Sequence[Message],
        history_count: int,
        compression: Compression,
        *,
        max_result_chars: int = DEFAULT_RESULT_CHARS,
        memo: Memo | None = None,
    ) -> None:
        self._messages = messages
        self._history_count = history_count
        self._compression = compression
        self._max_result_chars = max_result_chars
        self._folds = compression.folds()
        self._count_text: Callable[[str], int] = compression.tokenizer or estimate_text
        self._taken = 0
        self._turn = -1
        self._lines_until = 0  # the place up to which results were replaced by lines, for want of room
        self._is_current = False  # whether the newest turn is the one that runs
        self._calls: Mapping[str, ToolCall] = {}
        self._entries: list[_Entry] = []
        self._shown: list[Message] = []  # the messages of the entries
        self._lent = 0  # how many of these are in a view, which must not change any more
        self._starts: deque[int] = deque()  # where each turn that is sent begins
        self._heads = 0  # how many entries stand before the first turn for good
        self._note: _Entry | None = None
        self._offset = 0  # from an entry's index to its message's place, behind what has left
        self._whole_tokens = 0
        self._tokens = 0
        self._shortened = 0
        self._left_out = 0
        self._summary = ""
        self._changes = self._told = 0
        self.limit_tokens: float | None = None
        self.learned_tokens = memo.learned_tokens if memo else None
        self._memo = memo  # until the messages are there

    # ---------------------------------------------------------------------------------------------- what is new

    def take(self, specs: Mapping[str, ToolSpec]) -> None:
        """Look at the messages that have come since; `specs` are the tools as they are now."""
        messages = self._messages
        for place in range(self._taken, len(messages)):
            self._add(place, messages[place], specs)
        self._taken = len(messages)
        memo, self._memo = self._memo, None
        if memo is not None and memo.first_id:
            self._recall(memo)

    def _add(self, place: int, message: Message, specs: Mapping[str, ToolSpec]) -> None:
        entry = _Entry(message, place, self._count(message))
        seen = Seen(place, self._turn, message)
        if isinstance(message, UserMessage) and self._begins_turn(place, message):
            self._turn += 1
            self._starts.append(len(self._entries))
            seen.turn = self._turn
        elif isinstance(message, AssistantMessage):
            self._calls = {call.call_id: call for call in message.tool_calls}
        elif isinstance(message, ToolMessage):
            seen.call, seen.spec = self._calls.get(message.call_id), specs.get(message.name)
            entry.is_fixed = seen.spec is not None and seen.spec.sensitive_history
        if self._turn < 0:
            self._heads += 1
        self._entries.append(entry)
        self._shown.append(message)
        self._tokens += entry.tokens
        self._whole_tokens += entry.tokens
        if isinstance(message, ToolMessage) and len(message.content) > most_chars(seen.spec, self._max_result_chars):
            most = int(most_chars(seen.spec, self._max_result_chars))
            self._put(len(self._entries) - 1, shorten(message.content, most, message.call_id), keep_parts=True)
        for fold in self._folds:
            for where, text in fold.add(seen):
                self._edit(where, text)

    def _begins_turn(self, place: int, message: UserMessage) -> bool:
        if place >= self._history_count:  # the prompt; what is said later steers its turn
            begins, self._is_current = not self._is_current, True
            return begins
        if _NOT_A_PROMPT.search(message.message_id):
            return self._turn < 0
        return not place or not isinstance(self._messages[place - 1], UserMessage)

    def _count(self, message: Message) -> int:
        return estimate_message(message, self._count_text)

    def _edit(self, place: int, text: str) -> None:
        """What a policy wants, where it may."""
        index = place - self._offset
        if not self._starts or not self._starts[0] <= index < len(self._entries):
            return  # it has left
        if not self._entries[index].is_fixed:
            self._put(index, text)

    def _put(self, index: int, text: str, *, keep_parts: bool = False) -> None:
        """Send a result in other words, if they are fewer."""
        entry = self._entries[index]
        message = cast("ToolMessage", entry.message)
        shorter = replace(message, content=text, parts=message.parts if keep_parts else ())
        tokens = self._count(shorter)
        is_longer = len(text) > len(message.content) and shorter.parts == message.parts  # not where images go for it
        if is_longer or tokens > entry.tokens or shorter == message:
            return
        if message is self._messages[entry.place]:
            self._shortened += 1
        if index < self._lent:
            self._shown, self._lent = list(self._shown), 0
        self._tokens += tokens - entry.tokens
        entry.message = self._shown[index] = shorter
        entry.tokens = tokens
        self._changes += 1

    # ---------------------------------------------------------------------------------------------- what is sent

    def view(self, system: SystemMessage | None = None) -> Messages:
        """What is sent, behind `system`. Read-only, and stays as it is whatever comes after."""
        self._lent = len(self._shown)
        return Messages(self._shown, system)

    @property
    def tokens(self) -> int:
        """What is sent, as estimated, without instructions and tools."""
        return self._tokens

    @property
    def summary(self) -> str:
        """What stands for the turns that have left; empty where nothing does."""
        return self._summary

    @property
    def has_shortened(self) -> bool:
        """Whether there is something that the model could read whole."""
        return self._shortened > 0

    def what_changed(self) -> Shape | None:
        """What is sent against the whole, if something was shortened or has left since this was asked last."""
        if self._told == self._changes:
            return None
        self._told = self._changes
        return Shape(self._whole_tokens, self._tokens, self._shortened, self._left_out, self._summary)

    def memo(self) -> Memo | None:
        """What the conversation's next request goes on with; None where that is nothing."""
        if not self._left_out:
            return None if self.learned_tokens is None else Memo(learned_tokens=self.learned_tokens)
        first = self._entries[self._starts[0]].message.message_id
        return Memo(first, self._left_out, self._summary, self.learned_tokens)

    def _recall(self, memo: Memo) -> None:
        """Leave out what an earlier request of the conversation has left out, if its history is the same."""
        entries = self._entries
        for number, start in enumerate(self._starts):
            if number and entries[start].message.message_id == memo.first_id:
                self._leave(number, memo.summary)
                self._left_out = memo.turns_left_out
                return

    # ------------------------------------------------------------------------------------------------ the window

    def leaving(self) -> list[Message]:
        """The turns to be summed up now that the window is nearly full, as they were; empty when there is room."""
        limit = self.limit_tokens
        if limit is None or self._tokens <= limit * _NEAR:
            return []
        count = self._count_leaving(limit * _SUMMARY_LOW_WATER, 1)
        return self._whole(self._starts[0], self._starts[count]) if count else []

    def leave(self, summary: str) -> None:
        """Leave out what `leaving` gave, with this in its place."""
        limit = self.limit_tokens
        if limit is not None and (count := self._count_leaving(limit * _SUMMARY_LOW_WATER, 1)):
            self._leave(count, summary)

    def fit(self, limit: float) -> bool:
        """Make what is sent no longer than `limit` tokens. False when nothing is left to shorten, and it is longer."""
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
        if self._tokens > limit:
            self._shrink(newest, limit)
        return self._tokens <= limit

    def _whole(self, begin: int, end: int) -> list[Message]:
        first, last = self._entries[begin].place, self._entries[end].place
        return [self._messages[place] for place in range(first, last)]

    def _count_leaving(self, target: float, keep: int) -> int:
        """How many of the oldest turns have to leave, but for the last `keep`, until no more than `target` is left."""
        left, count = self._tokens, 0
        starts = self._starts
        while left > target and count < len(starts) - max(1, keep):
            turn = self._entries[starts[count] : starts[count + 1]]
            left += sum(each.tokens for each in _sensitive(turn, self._count)) - sum(each.tokens for each in turn)
            count += 1
        return count

    def _leave(self, count: int, summary: str) -> None:
        """Leave the `count` oldest turns out; a note stands for them, with the summary where there is one."""
        entries, starts = self._entries, self._starts
        begin, end = starts[0], starts[count]
        kept: list[_Entry] = []
        for start, stop in pairwise(islice(starts, count + 1)):
            kept += _sensitive(entries[start:stop], self._count)
        had_note = self._note is not None
        pinned = entries[self._heads + had_note : begin] + kept
        self._left_out += count
        self._summary = summary
        gone = sum(each.tokens for each in entries[self._heads : end]) - sum(each.tokens for each in pinned)
        note = self._noted(gone)
        front = [*entries[: self._heads], *([note] if note else []), *pinned]
        self._note = note
        self._entries = front + entries[end:]
        self._shown = [each.message for each in self._entries]
        self._lent = 0
        moved = len(front) - end
        for _ in range(count):
            starts.popleft()
        self._starts = deque(start + moved for start in starts)
        self._offset = self._entries[len(front)].place - len(front)
        self._tokens = sum(each.tokens for each in self._entries)
        self._changes += 1

    def _noted(self, room: int) -> _Entry | None:
        """What stands for the turns that have left, if it takes less than they did."""
        turns = f"{self._left_out} earlier turn{'s' if self._left_out != 1 else ''}"
        plain = f"[{turns} of this conversation left out here.]"
        summed = f"[{turns} of this conversation left out here. In short:]\n{self._summary}"
        for text in (summed, plain) if self._summary else (plain,):
            message = SystemMessage(text=text, message_id="")
            tokens = self._count(message)
            if tokens <= room:
                return _Entry(message, -1, tokens)
        return None

    def _newest_round(self) -> int:
        """Where the results of the newest round begin."""
        index = len(self._entries)
        while index > self._starts[-1] + 1 and isinstance(self._entries[index - 1].message, ToolMessage):
            index -= 1
        return index

    def _shorten(self, target: float, end: int) -> None:
        """Replace results before `end` by a line, the oldest first, until no more than `target` is left."""
        index = max(self._starts[0], self._lines_until - self._offset)
        while index < end and self._tokens > target:
            each = self._entries[index]
            if not each.is_fixed:
                self._put(index, left_out(cast("ToolMessage", self._messages[each.place])))
            index += 1
        self._lines_until = index + self._offset

    def _shrink(self, begin: int, limit: float) -> None:
        """Cut the results from `begin` on, one by one, the longest first."""
        newest = [index for index in range(begin, len(self._entries)) if not self._entries[index].is_fixed]
        for index in sorted(newest, key=lambda at: -self._entries[at].tokens):
            each = self._entries[index]
            whole, message = cast("ToolMessage", self._messages[each.place]), cast("ToolMessage", each.message)
            most = len(message.content)
            while self._tokens > limit and most > _LEAST_CHARS:
                share = max(0.0, 1 - (self._tokens - limit) / each.tokens)
                most = max(_LEAST_CHARS, int(most * min(share, 0.95)))
                self._put(index, shorten(whole.content, most, whole.call_id))


def _sensitive(turn: Sequence[_Entry], count: Callable[[Message], int]) -> list[_Entry]:
    """What of a turn that leaves is sent all the same: its sensitive results, with their calls, behind the prompt."""
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
            kept += [*([] if kept else turn[:1]), _only(each, results, count), *results]
    return kept


def _only(reply: _Entry, results: Sequence[_Entry], count: Callable[[Message], int]) -> _Entry:
    """A reply with no other calls than those of `results`."""
    message = cast("AssistantMessage", reply.message)
    ids = {cast("ToolMessage", each.message).call_id for each in results}
    calls = tuple(call for call in message.tool_calls if call.call_id in ids)
    if calls == message.tool_calls:
        return reply
    alone = AssistantMessage(tool_calls=calls, message_id=message.message_id)
    return _Entry(alone, reply.place, count(alone))
