"""Stand-ins for the application's code in a replay: its tools, approval rules and guardrails, rebuilt from the facts.

A validator refuses the arguments that were refused, and a rule asks for the approvals that were asked for. Pure, except
for waiting in a guardrail.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn, TypeVar, cast

import anyio
import orjson

from ...core.arguments import parse_arguments
from ...core.output import OutputType
from ...durability import FUNCTION
from ...errors import Denied, InvalidArguments, ToolbusError
from ...events import (
    ApprovalDecided,
    ApprovalRequested,
    HistoryCompressed,
    MessageAppended,
    ModelResponded,
    RequestCompleted,
    RequestFailed,
    ToolCallFailed,
)
from ...interceptors import Ask, Interceptor
from ...messages import AssistantMessage, Usage, UserMessage
from ...protocols import ModelReply, ModelRequest, Summary, ToolSpec
from ...tools import ToolContext
from ._agreement import spec_from
from ._format import RecordedRequest

E = TypeVar("E", bound=Exception)
_UNCHECKED = "The arguments could not be checked: the validator raised "
_APPROVED_WITH = "The arguments that it was approved with are invalid: "
_REMEMBERED = "and that was to be remembered."
_REPAIR = "This is not the answer that was asked for: "
_WAYS = (". Call ", ". Answer again, ")  # by the tool, by native output
_NO_OUTPUT = ("the model gave no valid output: ", " (max_output_repairs=")


def raised_as(name: str, base: type[E], code: str = "") -> type[E]:
    """Return an exception class with a recorded name and code."""
    return cast("type[E]", type(name, (base,), {"code": code} if code else {}))


def _same(name: str, arguments: Any) -> tuple[str, bytes]:
    return name, orjson.dumps(arguments, default=dict, option=orjson.OPT_SORT_KEYS)


class Facts:
    """The application's decisions, as the facts of a request contain them."""

    def __init__(self, request: RecordedRequest) -> None:
        self._refused: dict[tuple[str, bytes], str] = {}
        self._asked: set[tuple[str, bytes]] = set()
        # The round, the position and the reason of calls that a guardrail has denied.
        self.denied: list[tuple[int, int, str]] = []
        # By text of an answer: the output that was read, or the reason why it was refused.
        self.texts: dict[str, tuple[dict[str, Any] | None, str]] = {}
        self._read(request)

    def specs(self, written: list[Mapping[str, Any]]) -> dict[str, ToolSpec]:
        """Return the tools as they were, with validators and rules that decide as the recorded ones did."""
        made: dict[str, ToolSpec] = {}
        for each in written:
            functions: dict[str, Any] = {"validate": self._validator(each["name"])}
            if each.get("needs_approval") == FUNCTION:
                functions["needs_approval"] = self._rule(each["name"])
            made[each["name"]] = spec_from(each, **functions)
        return made

    def policy(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> bool:
        """Implement `ApprovalPolicy`: ask for the calls for which the recording asked."""
        return _same(spec.name, arguments) in self._asked

    def _rule(self, name: str) -> Callable[[Mapping[str, Any]], bool]:
        return lambda arguments: _same(name, arguments) in self._asked

    def _validator(self, name: str) -> Callable[[Mapping[str, Any]], None]:
        def validate(arguments: Mapping[str, Any]) -> None:
            error = self._refused.get(_same(name, arguments))
            if error is None:
                return
            if error.startswith(_UNCHECKED):
                raise raised_as(error.removeprefix(_UNCHECKED).rstrip("."), Exception)
            raise InvalidArguments(error)

        return validate

    def _read(self, request: RecordedRequest) -> None:
        calls: dict[str, tuple[str, str]] = {}  # by id: the tool, and its argument text
        decided: dict[str, ApprovalDecided | None] = {}  # by the id of a call about which a person was asked
        reply: ModelResponded | None = None
        for position, fact in enumerate(request.facts):
            if isinstance(fact, ModelResponded):
                reply = fact
                calls.update({each.call_id: (each.name, each.arguments) for each in fact.message.tool_calls})
            elif isinstance(fact, ApprovalRequested):
                self._asked.add(_same(fact.name, fact.arguments))
                decided[fact.call_id] = None
            elif isinstance(fact, ApprovalDecided):
                decided[fact.call_id] = fact
            elif isinstance(fact, ToolCallFailed) and request.is_own(position) and reply is not None:
                self._read_refusal(fact, calls.get(fact.call_id, ("", "")), decided, reply)
            self._read_answer(request, position)

    def _read_refusal(
        self,
        fact: ToolCallFailed,
        call: tuple[str, str],
        decided: Mapping[str, ApprovalDecided | None],
        reply: ModelResponded,
    ) -> None:
        name, written = call
        decision = decided.get(fact.call_id)
        edited = decision.arguments if decision is not None and decision.approved else None
        if edited is not None and fact.error.startswith(_APPROVED_WITH):
            self._refused[_same(name, edited)] = fact.error.removeprefix(_APPROVED_WITH)
        elif fact.reason in ("invalid_arguments", "error"):
            with contextlib.suppress(InvalidArguments):  # the turn machine refuses unreadable arguments itself
                self._refused[_same(name, parse_arguments(written))] = fact.error
        elif fact.reason == "denied" and fact.call_id not in decided and not fact.error.endswith(_REMEMBERED):
            ids = [each.call_id for each in reply.message.tool_calls]
            if fact.call_id in ids:
                self.denied.append((reply.round, ids.index(fact.call_id), fact.error))

    def _read_answer(self, request: RecordedRequest, position: int) -> None:
        """Record the output, or the error, of a text that was read as a structured output."""
        fact = request.facts[position]
        before = request.facts[position - 1] if position else None
        if isinstance(fact, RequestCompleted) and fact.output is not None:
            # A tool that has answered may have given the output as its data.
            data = [orjson.dumps(each).decode() for each in (fact.output, fact.output.get("value"))]
            self.texts.update(dict.fromkeys([fact.text, *data], (fact.output, "")))
            return
        answer = before.message if isinstance(before, ModelResponded) else None
        if answer is None or answer.tool_calls or not answer.text.strip():
            return
        text = answer.text
        if isinstance(fact, MessageAppended) and isinstance(fact.message, UserMessage):
            content = str(fact.message.content)
            self.texts[text] = (None, _between(content, _REPAIR, max(_WAYS, key=content.rfind)))
        elif isinstance(fact, RequestFailed):
            self.texts[text] = (None, _between(fact.error, *_NO_OUTPUT))


def _between(text: str, before: str, after: str) -> str:
    return text.removeprefix(before).rpartition(after)[0]


class RecordedOutput(OutputType[Any]):
    """The recorded structured output: accepts the texts that were accepted, and refuses those that were refused."""

    def __init__(self, written: Mapping[str, Any], facts: Facts) -> None:
        self._texts = facts.texts
        self.spec = facts.specs([written])[written["name"]]

    def load(self, arguments: Mapping[str, Any]) -> Any:
        """Return the arguments themselves, because their type is not known here."""
        return dict(arguments)

    def read(self, text: str) -> dict[str, Any]:
        """Return the recorded output of a text: see `OutputType`."""
        arguments, error = self._texts.get(text, (None, "the answer was not read in the recording"))
        if arguments is None:
            raise InvalidArguments(error)
        return arguments


class Guard(Interceptor):
    """A stand-in for the interceptors of one request: it denies the calls that they denied.

    If `lose` is set, it is called once instead of returning the next reply, and raises or hangs.
    """

    edits_replies = False

    def __init__(self, facts: Facts, *, refused: RequestFailed | None, never_seen: bool) -> None:
        self._refused = refused
        self._never_seen = never_seen
        self._denied = {(number, position): reason for number, position, reason in facts.denied}
        self._round = -1
        self._next: deque[int] = deque()
        self.lose: Callable[[], Awaitable[NoReturn]] | None = None

    def on_reply(self, number: int, message: AssistantMessage) -> None:
        """Prepare for a reply: its calls come to `before_tool` in order, except calls whose arguments are no object."""
        self._round = number
        self._next = deque(position for position, call in enumerate(message.tool_calls) if _is_object(call.arguments))

    async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:  # noqa: ARG002
        """Refuse the prompt if the recording did: see `Interceptor`."""
        if self._refused is not None:
            raise raised_as("Refused", ToolbusError, self._refused.reason)(self._refused.error)
        if self._never_seen:  # the request was cancelled before an interceptor saw the prompt
            await anyio.sleep_forever()
        return prompt

    async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:  # noqa: ARG002
        """Lose the reply if the recording did: see `Interceptor`."""
        reply = await ask(request)
        lose, self.lose = self.lose, None
        if lose is not None:
            await lose()
        return reply

    async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:  # noqa: ARG002
        """Deny the call if the recording did: see `Interceptor`."""
        position = self._next.popleft() if self._next else -1
        if (reason := self._denied.get((self._round, position))) is not None:
            raise Denied(reason)
        return arguments


def _is_object(written: str) -> bool:
    try:
        parse_arguments(written)
    except InvalidArguments:
        return False
    return True


def summary_in(fact: HistoryCompressed) -> Summary | None:
    """Return the summary of a fact; None if no summary was made."""
    if not fact.summary and fact.usage == Usage():
        return None
    return Summary(text=fact.summary, usage=fact.usage, vendor=fact.vendor, model=fact.model)
