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
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import cast

from ..messages import AssistantMessage, Message, Part, SystemMessage, ToolCall, ToolMessage, UserMessage, user_text
from ..protocols import ToolSpec
from .arguments import encodable
from .compression import NOT_SHOWN, Compression, Edit, Fold, Seen, failed_policy, left_out
from .message_list import Messages
from .result_size import DEFAULT_RESULT_CHARS, most_chars, spec_of
from .shorten import MIN_CHARS, shorten
from .tokens import Tokenizer, estimate_message, estimate_text

__all__ = ["History", "Memo", "Shape"]

_LOW_WATER = 0.75  # of the window: down to here turns leave
_NEAR = 0.85  # of the window: from here on a summary is asked for
_SUMMARY_LOW_WATER = 0.5  # a summary costs a call of the model, so it makes more room at once
_SUMMARY_SHARE = 0.25  # of the window: more of a summary is not sent, or it would make no room
_SAID = re.compile(r"(.+)_[so]\d+")  # the ids of what is said to a request while it runs
_REPLY = re.compile(r"(.+)_r\d+")
_FAILURES = re.compile(r".+_\d+_n")  # the ids of notes on a round's failures
_KEPT = "[This result is kept as it is.]"
_ALIKE_CHARS = 200  # by which a message without an id is known again


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
    """What a conversation's next request needs to send the same: with which turn it begins, and what is before it.

    That turn's prompt is known by its id; in a history that was kept without ids, by its place and beginning.
    `learned_tokens` are the rooms for messages that were learned from refusals, by "vendor:model".
    """

    first_id: str = ""
    first_place: int = 0
    first_text: str = ""
    turns_left_out: int = 0
    summary: str = ""
    learned_tokens: Mapping[str, float] = field(default_factory=dict[str, float])


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

    `messages` is the transcript, which only grows; its newest turn is the current one, which is never left out. A turn
    is a user's message and what came of it, what was said to its request meanwhile too, and the notes in front of it;
    `request_id` is that of the current one. Tokens are raw estimates everywhere in here, by `count`. `limit_tokens` is
    the room that there is for messages, set anew for each call of the model, or None.
    """

    __slots__ = (
        "_calls",
        "_changes",
        "_compression",
        "_count_text",
        "_entries",
        "_folds",
        "_heads",
        "_left_out",
        "_lent",
        "_lines_until",
        "_max_result_chars",
        "_memo",
        "_messages",
        "_note",
        "_offset",
        "_requests",
        "_shortened",
        "_shown",
        "_starts",
        "_summary",
        "_taken",
        "_tokens",
        "_told",
        "_turn",
        "_whole_tokens",
        "has_shortened",
        "limit_tokens",
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
        self._requests = (request_id, "")  # the current one, and that of the turn which is looked at
        self._compression = compression
        self._max_result_chars = max_result_chars
        self._folds = compression.folds()
        self._count_text = count
        self._taken = 0
        self._turn = -1
        self._lines_until = 0  # the place up to which results were replaced by lines, for want of room
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
        self.has_shortened = False  # whether there is, or was, something that the model could read whole
        self._memo = memo  # until the messages are there

    # ---------------------------------------------------------------------------------------------- what is new

    def take(self, specs: Mapping[str, ToolSpec]) -> None:
        """Look at the messages that have come since; `specs` are the tools as they are now.

        Raises `ApplicationError` where a policy fails.
        """
        messages = self._messages
        for place in range(self._taken, len(messages)):
            self._taken = place + 1
            self._add(place, messages[place], specs)
        memo, self._memo = self._memo, None
        if memo is not None and memo.turns_left_out:
            self._recall(memo)

    def _add(self, place: int, message: Message, specs: Mapping[str, ToolSpec]) -> None:
        entry = _Entry(message, place, self._count(message))
        seen = Seen(place, self._turn, message)
        if isinstance(message, UserMessage):
            if self._begins_turn(place, message):
                self._turn += 1
                self._starts.append(self._start())
                seen.turn = self._turn
        elif isinstance(message, AssistantMessage):
            self._calls = {call.call_id: call for call in message.tool_calls}
            if reply := _REPLY.fullmatch(message.message_id):
                self._requests = (self._requests[0], reply[1])
        elif isinstance(message, ToolMessage):
            seen.call, seen.spec = self._calls.get(message.call_id), spec_of(message, specs)
            entry.is_fixed = seen.spec is not None and seen.spec.sensitive_history
        if self._turn < 0:
            self._heads += 1
        self._entries.append(entry)
        self._shown.append(message)
        self._tokens += entry.tokens
        self._whole_tokens += entry.tokens
        if isinstance(message, ToolMessage) and len(message.content) > most_chars(seen.spec, self._max_result_chars):
            most = int(most_chars(seen.spec, self._max_result_chars))
            self._put(len(self._entries) - 1, shorten(message.content, most, message.call_id), message.parts)
        for fold in self._folds:
            for where, text in _edits_of(fold, seen):
                self._edit(where, text)

    def _begins_turn(self, place: int, message: UserMessage) -> bool:
        """Whether this is a prompt, and nothing that was said on the way, or in the same breath."""
        if self._turn < 0:
            return True
        goes_on = isinstance(self._messages[place - 1], UserMessage)
        if said := _SAID.fullmatch(message.message_id):
            return not goes_on and said[1] not in self._requests
        return not goes_on or bool(message.message_id)  # what came of the one before may have been nothing

    def _start(self) -> int:
        """Where the turn begins whose prompt comes next: the notes in front of it are its own."""
        entries = self._entries
        start = len(entries)
        least = self._starts[-1] + 1 if self._starts else start
        while start > least and _is_note(entries[start - 1].message):
            start -= 1
        return start

    def _count(self, message: Message) -> int:
        return estimate_message(message, self._count_text)

    def _edit(self, place: int, text: str) -> None:
        """What a policy wants, where it may."""
        index = place - self._offset
        if not self._starts or not self._starts[0] <= index < len(self._entries):
            return  # it has left
        if not self._entries[index].is_fixed:
            self._put(index, text)

    def _put(self, index: int, text: str, parts: tuple[Part, ...] = ()) -> None:
        """Send a result in other words, and with no more than `parts` of it, if that is less."""
        entry = self._entries[index]
        message = cast("ToolMessage", entry.message)
        shorter = replace(message, content=text, parts=parts)
        tokens = self._count(shorter)
        grows = len(text) > len(message.content) and len(parts) == len(message.parts)
        if grows or tokens > entry.tokens or shorter == message:
            return
        if message is self._messages[entry.place]:
            self._shortened += 1
            self.has_shortened = True
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

    def what_changed(self) -> Shape | None:
        """What is sent against the whole, if something was shortened or has left since this was asked last."""
        if self._told == self._changes:
            return None
        self._told = self._changes
        return self.shape()

    def shape(self) -> Shape:
        """What is sent against the whole."""
        return Shape(self._whole_tokens, self._tokens, self._shortened, self._left_out, self._summary)

    def memo(self) -> Memo | None:
        """What the conversation's next request goes on with; None where that is nothing."""
        if self._memo is not None or not self._left_out:
            return self._memo  # it came to nothing before the messages were there
        first = self._prompt(self._starts[0])
        text = user_text(cast("UserMessage", first.message))[:_ALIKE_CHARS]
        return Memo(first.message.message_id, first.place, text, self._left_out, self._summary)

    def _prompt(self, start: int) -> _Entry:
        """The user's message of the turn that begins there, behind its notes."""
        return next(each for each in islice(self._entries, start, None) if isinstance(each.message, UserMessage))

    def _recall(self, memo: Memo) -> None:
        """Leave out what an earlier request of the conversation has left out, if its history is the same."""
        for number, start in enumerate(self._starts):
            first = self._prompt(start)
            same = first.message.message_id == memo.first_id
            if same and not memo.first_id:
                text = user_text(cast("UserMessage", first.message))
                same = first.place == memo.first_place and text[:_ALIKE_CHARS] == memo.first_text
            if same and number:
                self._left_out = memo.turns_left_out - number
                self._leave(number, memo.summary)
                return

    # ------------------------------------------------------------------------------------------------ the window

    def leaving(self) -> list[Message]:
        """The turns to be summed up now that the window is nearly full; empty when there is room.

        They are as they were, but for sensitive results: these are sent all the same, and nobody else's business.
        """
        limit = self.limit_tokens
        if limit is None or limit <= 0 or self._tokens <= limit * _NEAR:
            return []
        count = self._count_leaving(limit * _SUMMARY_LOW_WATER, 1)
        return self._whole(self._starts[0], self._starts[count]) if count else []

    def leave(self, summary: str) -> None:
        """Leave out what `leaving` gave, with this in its place, cut to a quarter of the room."""
        limit = self.limit_tokens
        if limit is not None and (count := self._count_leaving(limit * _SUMMARY_LOW_WATER, 1)):
            self._leave(count, self._cut(summary, limit * _SUMMARY_SHARE))

    def _cut(self, text: str, most: float) -> str:
        while (tokens := self._count_text(text)) > most and len(text) > MIN_CHARS:
            text = shorten(text, int(len(text) * min(max(most, 1) / tokens, 0.9)))
        return text

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
        return [
            replace(each.message, content=_KEPT, parts=())
            if each.is_fixed and isinstance(each.message, ToolMessage)
            else self._messages[each.place]
            for each in islice(self._entries, begin, end)
        ]

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
        self._shortened = sum(self._is_shortened(each) for each in self._entries)
        self._changes += 1

    def _is_shortened(self, entry: _Entry) -> bool:
        return isinstance(entry.message, ToolMessage) and entry.message is not self._messages[entry.place]

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
        """Where that begins which the model has not seen yet: the newest results, and what stands behind them."""
        index = len(self._entries)
        while index > self._starts[-1] + 1 and not isinstance(self._entries[index - 1].message, AssistantMessage):
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
        """Cut the results from `begin` on, one by one, the longest first; then send them without images and files."""
        newest = [index for index in range(begin, len(self._entries)) if not self._entries[index].is_fixed]
        for index in sorted(newest, key=lambda at: -self._entries[at].tokens):
            each = self._entries[index]
            whole, message = cast("ToolMessage", self._messages[each.place]), cast("ToolMessage", each.message)
            most = len(message.content)
            while self._tokens > limit and most > MIN_CHARS:
                share = max(0.0, 1 - (self._tokens - limit) / each.tokens)
                most = max(MIN_CHARS, int(most * min(share, 0.95)))
                self._put(index, shorten(whole.content, most, whole.call_id), message.parts)
        for index in newest:
            message = cast("ToolMessage", self._entries[index].message)
            if self._tokens > limit and message.parts:
                self._put(index, f"{message.content}\n{NOT_SHOWN}".lstrip())


def _is_note(message: Message) -> bool:
    """Whether this belongs to the prompt behind it, and not to the round before, as a note on its failures does."""
    return isinstance(message, SystemMessage) and not _FAILURES.fullmatch(message.message_id)


def _edits_of(fold: Fold, seen: Seen) -> Sequence[Edit]:
    """What a policy says to a message. Raises `ApplicationError` for one that fails, or says what makes no sense."""
    try:
        edits = fold.add(seen)
        return [(int(place), encodable(text)) for place, text in edits] if edits else ()
    except Exception as exc:
        raise failed_policy(fold, "add", exc) from exc


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
            prompt = [] if kept else [next(first for first in turn if isinstance(first.message, UserMessage))]
            kept += [*prompt, _only(each, results, count), *results]
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
