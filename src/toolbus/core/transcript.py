"""What makes a message list valid for model providers, and how a broken one is mended. Pure.

The rules, which OpenAI's and Anthropic's APIs enforce with an error 400 (OpenAI chat completions: "an assistant
message with 'tool_calls' must be followed by tool messages"; Anthropic messages: "tool_use ids were found without
tool_result blocks immediately after"):

1. Directly behind an assistant message with calls come its results: one for each call, in call order, nothing between.
2. There is no other tool message, and no id is used twice in one reply.
3. Anthropic: instructions come first, then a user message; no message is empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from ..errors import InvalidHistory
from ..messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
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
            if not ids and not message.text and not message.vendor_data:
                self._refuse("an assistant message with neither text nor tool calls")

    def _check_opening(self, message: Message) -> None:
        if isinstance(message, UserMessage) and not message.content:
            self._refuse("an empty user message")

    def _refuse(self, problem: str) -> None:
        raise InvalidHistory(self._count, problem)


def validate(messages: Iterable[Message], dialect: Dialect = "anthropic") -> None:
    """Check a whole transcript that is about to be sent. What is valid for Anthropic is valid for OpenAI too.

    Raises `InvalidHistory`, which has the index of the first message that breaks a rule and says which.
    """
    rules = Rules(dialect)
    for message in messages:
        rules.add(message)
    rules.end()


_INTERRUPTED = failure_content("interrupted", "The call was interrupted; its result is not known.")


def repair(messages: Sequence[Message]) -> list[Message]:
    """A valid transcript with as much of `messages` as can be kept; the given list is not changed.

    Results move directly behind their call, in call order; a missing one is made up as `interrupted`; orphans and
    second results are dropped; the n-th result of an id that was reused belongs to its n-th call, and later calls
    get an id of their own; empty messages are dropped. Deterministic and idempotent.
    """
    used: set[str] = set()
    replies: dict[int, tuple[ToolCall, ...]] = {}
    waiting: dict[str, deque[str]] = {}  # an id as it was written -> its unanswered calls, by their unique ids
    results: dict[str, ToolMessage] = {}
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            calls = tuple(replace(call, call_id=_unused(call.call_id, used)) for call in message.tool_calls)
            for before, after in zip(message.tool_calls, calls, strict=True):
                waiting.setdefault(before.call_id, deque()).append(after.call_id)
            replies[index] = calls
        elif isinstance(message, ToolMessage):
            unanswered = waiting.get(message.call_id)
            if unanswered:
                call_id = unanswered.popleft()
                results[call_id] = message if call_id == message.call_id else replace(message, call_id=call_id)
    return _assemble(messages, replies, results)


def _assemble(
    messages: Sequence[Message], replies: dict[int, tuple[ToolCall, ...]], results: dict[str, ToolMessage]
) -> list[Message]:
    mended: list[Message] = []
    opened = False
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            continue
        if isinstance(message, AssistantMessage):
            calls = replies[index]
            if not opened or not (calls or message.text or message.vendor_data):
                continue
            mended.append(message if calls == message.tool_calls else replace(message, tool_calls=calls))
            mended.extend(results.get(call.call_id) or _made_up(call) for call in calls)
        elif isinstance(message, SystemMessage) or message.content:
            mended.append(message)
            opened = opened or isinstance(message, UserMessage)
    return mended


def _made_up(call: ToolCall) -> ToolMessage:
    return ToolMessage(call_id=call.call_id, name=call.name, content=_INTERRUPTED, is_error=True)


def _unused(call_id: str, used: set[str]) -> str:
    base = call_id or "call"
    candidate = call_id or "call-1"
    number = 2
    while candidate in used:
        candidate = f"{base}-{number}"
        number += 1
    used.add(candidate)
    return candidate
