"""The rules by which message lists are valid for model providers, and the repair of broken lists. Pure.

One rule for all providers, at least as strict as each vendor's own:

1. Directly after an assistant message with calls come its results: one for each call, in call order, nothing between.
2. There is no other tool message, and no id is used twice in one reply.

The reasons for this rule, and what a dialect requires beyond it:

- "openai", chat completions: error 400 for a call without its tool message directly after it ("An assistant message
  with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'"), and for a tool message
  without its call. A user message without parts is refused.
- "responses", OpenAI's Responses: error 400 for a `function_call` without its `function_call_output` ("No tool output
  found for function call"), and for the reverse ("No tool call found for function call output"). OpenAI accepts any
  order; servers that imitate it want the two side by side. A reasoning item has to be followed by the item that it led
  to ("was provided without its required following item"), so a reply with nothing but reasoning is refused.
- "anthropic", Messages: error 400 where the next message does not begin with the results ("`tool_use` ids were found
  without `tool_result` blocks immediately after"), or has one more ("unexpected `tool_use_id`", "each tool_use must
  have a single result"). Instructions come first, then a user message; no message is empty, and a message of only
  blanks counts as empty; "The final block in an assistant message cannot be `thinking`". The strictest dialect, and so
  the default.
- "ollama": the server refuses nothing and has no ids. Its templates pair calls and results by order and name; a
  message in the wrong position is shown to the model there, or not at all (ollama: template/template.go, collate). So
  it requires nothing beyond the rule.

Example:
    from toolbus.core.transcript import Dialect, Rules, repair, validate
    from toolbus.errors import InvalidHistory
    from toolbus.messages import AssistantMessage, ToolCall, UserMessage

    call = ToolCall(name="refund", arguments='{"order": 7}', call_id="c1")  # its result is missing
    messages = [UserMessage(content="Refund order 7."), AssistantMessage(tool_calls=(call,))]
    try:
        validate(messages)
    except InvalidHistory as error:
        print(error.index)  # 2
    validate(repair(messages))
    dialect: Dialect = "openai"
    rules = Rules(dialect)  # the same rules, message by message
    for message in repair(messages):
        rules.add(message)
    rules.end()
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast, get_args

from .._option_checks import check, kind_of, one_of
from ..errors import InvalidHistory
from ..messages import AssistantMessage, Message, SystemMessage, TextPart, ToolCall, ToolMessage, UserMessage
from ..records import replace
from ..tool_results import failure_content

__all__ = ["Dialect", "Rules", "repair", "validate"]

Dialect: TypeAlias = Literal["openai", "responses", "anthropic", "ollama"]
_DIALECTS = one_of(*get_args(Dialect))


class Rules:
    """The rules as a fold: `add` each message in turn, then `end`. Constant cost per message.

    Raises `InvalidHistory` with the message's index, and stays unchanged. Raises `ConfigurationError` for an unknown
    dialect.
    """

    __slots__ = ("_awaited", "_count", "_dialect", "_opened")

    def __init__(self, dialect: Dialect = "anthropic") -> None:
        self._dialect: Dialect = check("the dialect", dialect, _DIALECTS)
        self._count = 0
        self._awaited: deque[str] = deque()  # the ids of the calls whose results have to come next, in this order
        self._opened = False  # whether there was a user message

    def add(self, message: Message) -> None:
        """Check the next message."""
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
        """Check that no result is missing at the end."""
        if self._awaited:
            self._refuse(f"the transcript ends without a result for call {self._awaited[0]!r}")

    def _check_result(self, message: ToolMessage) -> None:
        if not self._awaited:
            self._refuse(f"a tool message for call {message.call_id!r}, but no call is waiting for a result here")
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
            but = " but reasoning" if message.vendor_data else ""
            self._refuse(f"an assistant message with neither text nor tool calls{but}")

    def _check_prompt(self, message: UserMessage) -> None:
        nothing = not message.content and not isinstance(message.content, str)
        if (nothing and self._dialect != "ollama") or (self._dialect == "anthropic" and _is_empty(message)):
            self._refuse("an empty user message")

    def _refuse(self, problem: str) -> None:
        raise InvalidHistory(
            self._count, problem, "repair_history=True, or toolbus.core.transcript.repair(messages), makes it valid"
        )


def validate(messages: Iterable[Message], dialect: Dialect = "anthropic") -> None:
    """Check a whole transcript before it is sent. What is valid by default is valid in every dialect.

    Raises `InvalidHistory` with the index of the first message that breaks a rule, and with the rule. Raises
    `ConfigurationError` for an unknown dialect. `repair` makes a valid transcript of a broken one.
    """
    rules = Rules(dialect)
    for message in messages:
        rules.add(message)
    rules.end()


def _check_note(index: int, message: SystemMessage) -> None:
    """Raise `InvalidHistory` for an object that is not a message; the caller has checked for the other kinds."""
    if not isinstance(message, SystemMessage):  # pyright: ignore[reportUnnecessaryIsInstance]
        way_out = "for example, toolbus.messages.from_openai makes messages of a vendor's dictionaries"
        raise InvalidHistory(index, f"{kind_of(message)} is not a message", way_out)


def _is_empty(message: Message) -> bool:
    """Return whether a user message or a reply has no content that could be sent."""
    if isinstance(message, UserMessage):
        parts = (message.content,) if isinstance(message.content, str) else message.content
        texts = [part if isinstance(part, str) else part.text for part in parts if isinstance(part, (str, TextPart))]
        return len(texts) == len(parts) and not any(text.strip() for text in texts)
    if isinstance(message, AssistantMessage):
        return not (message.tool_calls or message.text.strip() or _stands_alone(message.vendor_data))
    return False


_DEPENDENT = frozenset(
    {None, "thinking", "redacted_thinking", "reasoning", "text", "tool_use", "message", "function_call"}
)
"""The kinds of blocks and items in `vendor_data` that cannot make up a reply by themselves.

Reasoning has to be followed by the item that it led to. Text and calls are in the message too, unless an application
has removed them.
"""


def _stands_alone(vendor_data: Mapping[str, Any] | None) -> bool:
    """Return whether `vendor_data` has an item that can be a whole reply, such as the results of a server's search."""
    for kept in (vendor_data or {}).values():
        for value in cast("Mapping[str, Any]", kept).values() if isinstance(kept, Mapping) else (kept,):
            if not isinstance(value, (list, tuple)):
                if value:
                    return True
            elif any(_kind(each) not in _DEPENDENT for each in cast("Sequence[Any]", value)):
                return True
    return False


def _kind(kept: Any) -> str | None:
    kind = cast("Mapping[str, Any]", kept).get("type") if isinstance(kept, Mapping) else None
    return kind if kind is None or isinstance(kind, str) else repr(kind)  # No vendor writes a type that is not a text.


# ----------------------------------------------------------------------------------------------------- repair

_INTERRUPTED = failure_content("interrupted", "The call was interrupted; its result is not known.")


def repair(messages: Sequence[Message]) -> list[Message]:
    """Return a valid transcript with as much of `messages` as can be kept; the given list is not changed.

    Results move directly after their calls, in call order; a missing result is made up as `interrupted`; orphans and
    second results are dropped. A result belongs to the reply before it, even with notes in between, else to the oldest
    unanswered call with its id. So ids that a provider uses again in each reply stay as they are; within one reply, the
    second call with an id gets a new id. Empty messages are dropped, and so are replies before the first user message.
    All else keeps its order, its ids, its parts and its `vendor_data`: nothing but the id of a call changes, and the
    wire forms take care of the ids that a vendor is sent.

    A transcript that is valid by default is not changed: the result has the same message objects. Deterministic and
    idempotent; the time is linear in the number of messages and calls, whatever their ids. Raises `InvalidHistory` for
    an object that is not a message.
    """
    kept = _without_empty(messages)
    replies = _with_own_ids(kept)
    return _assemble(kept, replies, _paired(kept))


def _without_empty(messages: Iterable[Message]) -> list[Message]:
    kept: list[Message] = []
    opened = False
    for index, message in enumerate(messages):
        if not isinstance(message, (UserMessage, AssistantMessage, ToolMessage)):
            _check_note(index, message)
        if _is_empty(message) or (isinstance(message, AssistantMessage) and not opened):
            continue
        opened = opened or isinstance(message, UserMessage)
        kept.append(message)
    return kept


def _paired(messages: Sequence[Message]) -> dict[tuple[int, int], ToolMessage]:
    """Return the results by the call that each belongs to: the index of its reply, and of the call in the reply."""
    results: dict[tuple[int, int], ToolMessage] = {}
    asked: dict[str, deque[tuple[int, int]]] = {}  # the calls by id, oldest first; some may be answered already
    newest: dict[str, deque[tuple[int, int]]] = {}  # the unanswered calls of the reply before, by id
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            newest = {}
            for number, call in enumerate(message.tool_calls):
                newest.setdefault(call.call_id, deque()).append((index, number))
                asked.setdefault(call.call_id, deque()).append((index, number))
        elif isinstance(message, UserMessage):
            newest = {}
        elif isinstance(message, ToolMessage):
            if own := newest.get(message.call_id):
                results[own.popleft()] = message
                continue
            older = asked.get(message.call_id)
            while older and older[0] in results:
                older.popleft()
            if older:
                results[older.popleft()] = message
    return results


def _with_own_ids(messages: Sequence[Message]) -> dict[int, tuple[ToolCall, ...]]:
    """Return the calls of the replies in which an id was empty or used twice, with new ids, by the reply's index."""
    calling = {index: each for index, each in enumerate(messages) if isinstance(each, AssistantMessage)}
    taken = _Ids(call.call_id for each in calling.values() for call in each.tool_calls)
    repaired: dict[int, tuple[ToolCall, ...]] = {}
    for index, reply in calling.items():
        seen: set[str] = set()
        calls: list[ToolCall] = []
        for call in reply.tool_calls:
            again = not call.call_id or call.call_id in seen
            calls.append(replace(call, call_id=taken.made_from(call.call_id)) if again else call)
            seen.add(call.call_id)
        if any(after is not before for after, before in zip(calls, reply.tool_calls, strict=True)):
            repaired[index] = tuple(calls)
    return repaired


class _Ids:
    """The ids that are taken. It keeps the last number of each stem, so that a repeated id needs no search for it."""

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
        return made


def _assemble(
    messages: Sequence[Message],
    replies: Mapping[int, tuple[ToolCall, ...]],
    results: Mapping[tuple[int, int], ToolMessage],
) -> list[Message]:
    repaired: list[Message] = []
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            calls = replies.get(index)
            repaired.append(message if calls is None else replace(message, tool_calls=calls))
            for number, call in enumerate(message.tool_calls if calls is None else calls):
                result = results.get((index, number)) or _made_up(call)
                repaired.append(result if result.call_id == call.call_id else replace(result, call_id=call.call_id))
        elif not isinstance(message, ToolMessage):
            repaired.append(message)
    return repaired


def _made_up(call: ToolCall) -> ToolMessage:
    return ToolMessage(call_id=call.call_id, name=call.name, content=_INTERRUPTED, is_error=True)
