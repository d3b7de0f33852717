"""What makes a message list valid for model providers, and how a broken one is mended. Pure.

One rule for all providers, at least as strict as each vendor's own:

1. Directly behind an assistant message with calls come its results: one for each call, in call order, nothing between.
2. There is no other tool message, and no id is used twice in one reply.

What is behind it, and what a dialect wants beyond it:

- "openai", chat completions: error 400 for a call without its tool message directly behind ("An assistant message with
  'tool_calls' must be followed by tool messages responding to each 'tool_call_id'"), and for a tool message without its
  call. A user message of no parts is refused.
- "responses", OpenAI's Responses: error 400 for a `function_call` without its `function_call_output` ("No tool output
  found for function call"), and for the reverse ("No tool call found for function call output"). Order is free at
  OpenAI; servers that imitate it want the two side by side. A reasoning item has to be followed by the item that came
  of it ("was provided without its required following item"), so a reply of reasoning alone is refused.
- "anthropic", Messages: error 400 where the next message does not begin with the results ("`tool_use` ids were found
  without `tool_result` blocks immediately after"), or has one more ("unexpected `tool_use_id`", "each tool_use must
  have a single result"). Instructions come first, then a user message; no message is empty, and blanks alone are
  empty; "The final block in an assistant message cannot be `thinking`". The strictest, and so the default.
- "ollama": the server refuses nothing and has no ids. Its templates pair calls and results by order and name, and
  what stands in the wrong place is shown to the model there, or not at all (ollama: template/template.go, collate).
  So the rule is all that it wants.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias, cast, get_args

from ..errors import ConfigurationError, InvalidHistory
from ..messages import AssistantMessage, Message, SystemMessage, TextPart, ToolCall, ToolMessage, UserMessage
from ..tool_results import failure_content

__all__ = ["Dialect", "Rules", "repair", "validate"]

Dialect: TypeAlias = Literal["openai", "responses", "anthropic", "ollama"]


class Rules:
    """The rules as a fold: `add` each message in turn, then `end`. Constant cost per message.

    Raises `InvalidHistory` with the message's index and leaves itself unchanged; `ConfigurationError` for a dialect
    that there is not.
    """

    __slots__ = ("_awaited", "_count", "_dialect", "_opened")

    def __init__(self, dialect: Dialect = "anthropic") -> None:
        if dialect not in get_args(Dialect):
            raise ConfigurationError(f"the dialect is {dialect!r}; say {', '.join(map(repr, get_args(Dialect)))}")
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
            elif isinstance(message, UserMessage):
                self._check_prompt(message)
                self._opened = True
            else:
                _check_note(self._count, message)
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
        strict = self._dialect == "anthropic"
        if strict and not self._opened:
            self._refuse("an assistant message before the first user message")
        if (strict or (self._dialect == "responses" and message.vendor_data)) and _is_empty(message):
            alone = " but reasoning" if message.vendor_data else ""
            self._refuse(f"an assistant message with neither text nor tool calls{alone}")

    def _check_prompt(self, message: UserMessage) -> None:
        nothing = not message.content and not isinstance(message.content, str)
        if (nothing and self._dialect != "ollama") or (self._dialect == "anthropic" and _is_empty(message)):
            self._refuse("an empty user message")

    def _refuse(self, problem: str) -> None:
        raise InvalidHistory(self._count, problem, "toolbus.core.transcript.repair(messages) gives a valid list")


def validate(messages: Iterable[Message], dialect: Dialect = "anthropic") -> None:
    """Check a whole transcript that is about to be sent. What is valid by default is valid in every dialect.

    Raises `InvalidHistory`, which has the index of the first message that breaks a rule and says which. `repair` mends.
    """
    rules = Rules(dialect)
    for message in messages:
        rules.add(message)
    rules.end()


def _check_note(place: int, message: SystemMessage) -> None:
    """What is none of the others is a note, or no message at all."""
    if not isinstance(message, SystemMessage):  # pyright: ignore[reportUnnecessaryIsInstance]
        way_out = "toolbus.messages.from_openai, say, makes messages of a vendor's dictionaries"
        raise InvalidHistory(place, f"a {type(message).__name__} is no message", way_out)


def _is_empty(message: Message) -> bool:
    """Whether there is nothing in a user's or model's message that could be sent."""
    if isinstance(message, UserMessage):
        parts = (message.content,) if isinstance(message.content, str) else message.content
        texts = [part if isinstance(part, str) else part.text for part in parts if isinstance(part, (str, TextPart))]
        return len(texts) == len(parts) and not any(text.strip() for text in texts)
    if isinstance(message, AssistantMessage):
        return not (message.tool_calls or message.text.strip() or _stands_alone(message.vendor_data))
    return False


_LEANING = frozenset(
    {None, "thinking", "redacted_thinking", "reasoning", "text", "tool_use", "message", "function_call"}
)
"""The kinds of kept blocks and items that say nothing by themselves: reasoning has to be followed by what came of it,
and text and calls are in the message too, unless somebody took them out."""


def _stands_alone(vendor_data: Mapping[str, Any] | None) -> bool:
    """Whether a vendor keeps something of a reply that it may consist of, such as what a search of its own found."""
    for kept in (vendor_data or {}).values():
        for value in cast("Mapping[str, Any]", kept).values() if isinstance(kept, Mapping) else (kept,):
            if not isinstance(value, (list, tuple)):
                if value:
                    return True
            elif any(_kind(each) not in _LEANING for each in cast("Sequence[Any]", value)):
                return True
    return False


def _kind(kept: Any) -> str | None:
    kind = cast("Mapping[str, Any]", kept).get("type") if isinstance(kept, Mapping) else None
    return kind if kind is None or isinstance(kind, str) else repr(kind)  # which no vendor writes


# ----------------------------------------------------------------------------------------------------- repair

_INTERRUPTED = failure_content("interrupted", "The call was interrupted; its result is not known.")


def repair(messages: Sequence[Message]) -> list[Message]:
    """A valid transcript with as much of `messages` as can be kept; the given list is not changed.

    Results move directly behind their call, in call order; a missing one is made up as `interrupted`; orphans and
    second results are dropped. A result belongs to the reply that it stands behind, be there notes between, else to
    the oldest unanswered call of its id, so ids that a provider uses again in each reply stay as they are; within one
    reply, the second call of an id gets one of its own. Empty messages are dropped, and what the model said before the
    first user message. All else stays in its order, with its ids, parts and what vendors keep beside it: no call
    changes but in its id, after which the wire forms look.

    What is valid by default is not changed: the messages are the very same. Deterministic and idempotent; the time it
    takes grows with the messages and calls, whatever their ids. Raises `InvalidHistory` for what is no message.
    """
    kept = _without_empty(messages)
    replies = _with_own_ids(kept)
    return _assemble(kept, replies, _paired(kept))


def _without_empty(messages: Iterable[Message]) -> list[Message]:
    kept: list[Message] = []
    opened = False
    for place, message in enumerate(messages):
        if not isinstance(message, (UserMessage, AssistantMessage, ToolMessage)):
            _check_note(place, message)
        if _is_empty(message) or (isinstance(message, AssistantMessage) and not opened):
            continue
        opened = opened or isinstance(message, UserMessage)
        kept.append(message)
    return kept


def _paired(messages: Sequence[Message]) -> dict[tuple[int, int], ToolMessage]:
    """The results by the call that each belongs to: the place of its reply, and of the call in it."""
    results: dict[tuple[int, int], ToolMessage] = {}
    asked: dict[str, deque[tuple[int, int]]] = {}  # the calls of an id, oldest first; some may be answered already
    behind: dict[str, deque[tuple[int, int]]] = {}  # the same, of the reply whose results stand here
    for place, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            behind = {}
            for number, call in enumerate(message.tool_calls):
                behind.setdefault(call.call_id, deque()).append((place, number))
                asked.setdefault(call.call_id, deque()).append((place, number))
        elif isinstance(message, UserMessage):
            behind = {}
        elif isinstance(message, ToolMessage):
            if own := behind.get(message.call_id):
                results[own.popleft()] = message
                continue
            older = asked.get(message.call_id)
            while older and older[0] in results:
                older.popleft()
            if older:
                results[older.popleft()] = message
    return results


def _with_own_ids(messages: Sequence[Message]) -> dict[int, tuple[ToolCall, ...]]:
    """The calls of those replies, by place, in which an id was empty or used twice: each has one of its own."""
    calling = {place: each for place, each in enumerate(messages) if isinstance(each, AssistantMessage)}
    taken = _Ids(call.call_id for each in calling.values() for call in each.tool_calls)
    mended: dict[int, tuple[ToolCall, ...]] = {}
    for place, reply in calling.items():
        seen: set[str] = set()
        calls: list[ToolCall] = []
        for call in reply.tool_calls:
            again = not call.call_id or call.call_id in seen
            calls.append(replace(call, call_id=taken.made_from(call.call_id)) if again else call)
            seen.add(call.call_id)
        if any(after is not before for after, before in zip(calls, reply.tool_calls, strict=True)):
            mended[place] = tuple(calls)
    return mended


class _Ids:
    """The ids that are taken. Counts on from the last number of a stem, so that repeats of an id are no search each."""

    __slots__ = ("_numbers", "_taken")

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}

    def made_from(self, call_id: str) -> str:
        stem = call_id or "call"
        number = self._numbers.get(stem, 1 if call_id else 0)
        made = ""
        while not made or made in self._taken:
            number += 1
            made = f"{stem}-{number}"
        self._numbers[stem] = number
        self._taken.add(made)
        return made


def _assemble(
    messages: Sequence[Message],
    replies: Mapping[int, tuple[ToolCall, ...]],
    results: Mapping[tuple[int, int], ToolMessage],
) -> list[Message]:
    mended: list[Message] = []
    for place, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            calls = replies.get(place)
            mended.append(message if calls is None else replace(message, tool_calls=calls))
            for number, call in enumerate(message.tool_calls if calls is None else calls):
                result = results.get((place, number)) or _made_up(call)
                mended.append(result if result.call_id == call.call_id else replace(result, call_id=call.call_id))
        elif not isinstance(message, ToolMessage):
            mended.append(message)
    return mended


def _made_up(call: ToolCall) -> ToolMessage:
    return ToolMessage(call_id=call.call_id, name=call.name, content=_INTERRUPTED, is_error=True)
