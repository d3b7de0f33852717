"""What makes a message list valid for model providers, and how a broken one is mended. Pure.

The rules, which OpenAI's and Anthropic's APIs enforce with an error 400 (OpenAI chat completions: "an assistant
message with 'tool_calls' must be followed by tool messages"; Anthropic messages: "tool_use ids were found without
tool_result blocks immediately after"):

1. Directly behind an assistant message with calls come its results: one for each call, in call order, nothing between.
2. There is no other tool message, and no id is used twice in one reply.
3. Anthropic: instructions come first, then a user message; no message is empty, and blanks alone are empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from ..errors import InvalidHistory
from ..messages import AssistantMessage, Message, TextPart, ToolCall, ToolMessage, UserMessage
from ..results import failure_content

__all__ = ["Dialect", "Rules", "repair", "validate"]

Dialect: TypeAlias = Literal["openai", "anthropic"]


class Rules:
    """The rules as a fold: `add` each message in turn, then `end`. Constant cost per message.

    Raises `InvalidHistory` with the message's index and leaves itself unchanged.
    """

    __slots__ = ("_awaited", "_count", "_dialect", "_opened")

    def __init__(self, dialect: Dialect = "anthropic") -> None:
        self._dialect = dialect
        self._count = 0
        self._awaited: deque[str] = deque()  # ids whose results have to come next, in this order
        self._opened = False  # a user message was seen

    def add(self, message: Message) -> None:
        """Check one more message."""
        if isinstance(message, ToolMessage):
            self._check_result(message)
            self._awaited.popleft()
        else:
            if self._awaited:
                self._refuse(f"a result for call {self._awaited[0]!r} is missing before this {message.role} message")
            if isinstance(message, AssistantMessage):
                self._check_reply(message)
                self._awaited.extend(call.call_id for call in message.tool_calls)
            elif self._dialect == "anthropic":
                self._check_opening(message)
            self._opened = self._opened or isinstance(message, UserMessage)
        self._count += 1

    def end(self) -> None:
        """Check that nothing is owed: no call without its result."""
        if self._awaited:
            self._refuse(f"the transcript ends without a result for call {self._awaited[0]!r}")

    def _check_result(self, message: ToolMessage) -> None:
        if not self._awaited:
            self._refuse(f"a tool message for call {message.call_id!r}, which nothing asked for here")
        if message.call_id != self._awaited[0]:
            self._refuse(f"the result of call {self._awaited[0]!r} belongs here, not that of {message.call_id!r}")

    def _check_reply(self, message: AssistantMessage) -> None:
        ids = [call.call_id for call in message.tool_calls]
        if not all(ids):
            self._refuse("a tool call without an id")
        if len(set(ids)) != len(ids):
            self._refuse("two tool calls with the same id in one reply")
        if self._dialect == "anthropic":
            if not self._opened:
                self._refuse("an assistant message before the first user message")
            if _is_empty(message):
                self._refuse("an assistant message with neither text nor tool calls")

    def _check_opening(self, message: Message) -> None:
        if _is_empty(message):
            self._refuse("an empty user message")

    def _refuse(self, problem: str) -> None:
        raise InvalidHistory(self._count, problem, "toolbus.core.transcript.repair(messages) gives a valid list")


def validate(messages: Iterable[Message], dialect: Dialect = "anthropic") -> None:
    """Check a whole transcript that is about to be sent. What is valid for Anthropic is valid for OpenAI too.

    Raises `InvalidHistory`, which has the index of the first message that breaks a rule and says which. `repair` mends.
    """
    rules = Rules(dialect)
    for message in messages:
        rules.add(message)
    rules.end()


def _is_empty(message: Message) -> bool:
    """Whether there is nothing in a user's or model's message that could be sent."""
    if isinstance(message, UserMessage):
        parts = (message.content,) if isinstance(message.content, str) else message.content
        texts = [part if isinstance(part, str) else part.text for part in parts if isinstance(part, (str, TextPart))]
        return len(texts) == len(parts) and not any(text.strip() for text in texts)
    if isinstance(message, AssistantMessage):
        return not (message.tool_calls or message.text.strip() or message.vendor_data)
    return False


_INTERRUPTED = failure_content("interrupted", "The call was interrupted; its result is not known.")


def repair(messages: Sequence[Message]) -> list[Message]:
    """A valid transcript with as much of `messages` as can be kept; the given list is not changed.

    Results move directly behind their call, in call order; a missing one is made up as `interrupted`; orphans and
    second results are dropped. A result belongs to the message that it stands behind, else to the oldest unanswered
    call of its id, so ids that a provider uses again in each reply stay as they are; within one reply, the second
    call of an id gets one of its own. Empty messages are dropped, and what the model said before the first user
    message. What is valid for Anthropic is not changed. Deterministic and idempotent.
    """
    kept = _without_empty(messages)
    replies = _with_own_ids(kept)
    waiting: dict[str, dict[int, deque[int]]] = {}  # id -> place of the message -> places of its unanswered calls
    results: dict[tuple[int, int], ToolMessage] = {}
    behind = -1  # the place of the reply whose results stand here
    for place, message in enumerate(kept):
        if isinstance(message, AssistantMessage):
            behind = place
            for number, call in enumerate(message.tool_calls):
                waiting.setdefault(call.call_id, {}).setdefault(place, deque()).append(number)
        elif not isinstance(message, ToolMessage):
            behind = -1
        elif unanswered := waiting.get(message.call_id):
            asked = behind if behind in unanswered else next(iter(unanswered))
            results[asked, unanswered[asked].popleft()] = message
            if not unanswered[asked]:
                del unanswered[asked]
    return _assemble(kept, replies, results)


def _without_empty(messages: Iterable[Message]) -> list[Message]:
    kept: list[Message] = []
    opened = False
    for message in messages:
        if _is_empty(message) or (isinstance(message, AssistantMessage) and not opened):
            continue
        opened = opened or isinstance(message, UserMessage)
        kept.append(message)
    return kept


def _with_own_ids(messages: Sequence[Message]) -> dict[int, tuple[ToolCall, ...]]:
    """The calls of each reply, by its place, under ids that no other call of the reply has."""
    replies = {place: each.tool_calls for place, each in enumerate(messages) if isinstance(each, AssistantMessage)}
    taken = {call.call_id for calls in replies.values() for call in calls}
    for place, calls in replies.items():
        seen: set[str] = set()
        mended: list[ToolCall] = []
        for call in calls:
            again = not call.call_id or call.call_id in seen
            mended.append(replace(call, call_id=_unused(call.call_id, taken)) if again else call)
            seen.add(call.call_id)
        replies[place] = tuple(mended)
    return replies


def _assemble(
    messages: Sequence[Message],
    replies: dict[int, tuple[ToolCall, ...]],
    results: dict[tuple[int, int], ToolMessage],
) -> list[Message]:
    mended: list[Message] = []
    for place, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            calls = replies[place]
            mended.append(message if calls == message.tool_calls else replace(message, tool_calls=calls))
            for number, call in enumerate(calls):
                result = results.get((place, number)) or _made_up(call)
                mended.append(result if result.call_id == call.call_id else replace(result, call_id=call.call_id))
        elif not isinstance(message, ToolMessage):
            mended.append(message)
    return mended


def _made_up(call: ToolCall) -> ToolMessage:
    return ToolMessage(call_id=call.call_id, name=call.name, content=_INTERRUPTED, is_error=True)


def _unused(call_id: str, taken: set[str]) -> str:
    number = 2 if call_id else 1
    while (made := f"{call_id or 'call'}-{number}") in taken:
        number += 1
    taken.add(made)
    return made
