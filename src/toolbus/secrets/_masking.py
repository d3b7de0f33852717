"""What may be told: events, messages and pieces of replies, with references in the place of secrets.

Knows events and a vault, and no session, bus or tool. What holds no secret comes back as it is, the same object.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import orjson

from ..core.arguments import parse_arguments
from ..core.output import json_in
from ..errors import InvalidArguments
from ..events import CallOutcome, Event, ReasoningDelta, TextDelta, ToolArgumentsDelta
from ..messages import AssistantMessage, ToolCall, ToolMessage
from ..protocols import ArgumentsPiece, Delta, Emit, ModelReply, ReasoningPiece, SignOfLife, TextPiece, ToolSpec
from ._marks import Marks, PieceMask, replaced
from ._redaction import MASK
from ._vault import Vault

__all__ = ["ReplyMask", "hidden", "hidden_arguments"]

T = TypeVar("T")

_UNREADABLE = "(hidden: it was no JSON object, and the tool takes secrets)"
_IDS = frozenset({
    "type", "event_id", "request_id", "conversation_id", "parent_id", "parent_request_id", "parent_call_id", "call_id",
    "provider_call_id", "message_id", "idempotency_key", "definition", "letter_id", "failed_event_id", "role",
    "vendor", "encoding", "media_type", "at",
})  # fmt: skip
_NAMED_BY_TOOLS = (Event, ToolCall, ToolMessage, CallOutcome)
_PAYLOAD = frozenset({"data", "arguments", "output", "metadata", "vendor_data"})  # any JSON value


@functools.cache
def _fields_of(kind: type[Any]) -> tuple[str, ...]:
    """The fields of an event or message that may hold words. Ids and the names of tools are what things go by."""
    names = [each.name for each in dataclasses.fields(kind) if each.name not in _IDS]
    if issubclass(kind, _NAMED_BY_TOOLS):
        names = [name for name in names if name != "name"]
    return tuple(names)


def hidden(told: T, vault: Vault) -> T:
    """An event, a message, or anything in them, without the secrets of `vault`; itself where there are none in it."""
    return _hidden(told, vault)


def _hidden(told: Any, vault: Vault) -> Any:
    if isinstance(told, str):
        return vault.shown(told)
    if isinstance(told, tuple):
        before = cast("tuple[Any, ...]", told)
        after = tuple([_hidden(each, vault) for each in before])
        return after if any(x is not y for x, y in zip(after, before, strict=True)) else before
    if not dataclasses.is_dataclass(told):
        return told
    changed: dict[str, Any] = {}
    for name in _fields_of(cast("type[Any]", type(told))):
        value = getattr(told, name)
        instead = vault.shown_json(value) if name in _PAYLOAD else _hidden(value, vault)
        if instead is not value:
            changed[name] = instead
    if not changed:
        return cast("Any", told)
    if isinstance(told, AssistantMessage):
        changed["vendor_data"] = None  # it tells of the message as it was
    return dataclasses.replace(cast("Any", told), **changed)


def hidden_arguments(arguments: Mapping[str, Any], marks: Marks, vault: Vault) -> dict[str, Any]:
    """Arguments with references in the place of what stands in marked fields; the values go into the vault.

    Where they are too big to be looked through, nothing of them is shown.
    """
    try:
        return cast("dict[str, Any]", replaced(arguments, marks, vault.hide))
    except InvalidArguments:
        return dict.fromkeys(arguments, MASK)


class ReplyMask:
    """One reply of the model: its pieces as they come, and the whole of it, without secrets.

    `marked` are the marks of the tools that have any, `known` all tools that there are, `answer` the marks of the
    structured output. A value in a marked field goes into the vault. Of arguments with marked fields no pieces are
    told, nor of the text where that may be the output. Of any other text, as much is held back as may be the beginning
    of a secret. `emit` tells a piece, `feed` only says that one came, and `hear` that there was one of that kind.
    """

    __slots__ = ("_answer", "_emit", "_feed", "_known", "_marked", "_masks", "_note_kind", "_vault")

    def __init__(
        self,
        vault: Vault,
        marked: Mapping[str, Marks],
        known: Mapping[str, ToolSpec],
        answer: Marks | None,
        *,
        emit: Emit,
        feed: Emit,
        note_kind: Callable[[type[Event]], None],
    ) -> None:
        self._vault = vault
        self._marked = marked
        self._known = known
        self._answer = answer
        self._emit = emit
        self._feed = feed
        self._note_kind = note_kind
        self._masks: dict[tuple[type[Any], int], tuple[PieceMask, Delta]] = {}

    def emit(self, piece: Delta) -> None:
        """Tell of a piece what can be told by now."""
        if isinstance(piece, SignOfLife):
            self._feed(piece)
            return
        if isinstance(piece, ArgumentsPiece):
            if any(name.startswith(piece.name) for name in self._marked):  # it may not be whole yet
                self._pass_over(piece, ToolArgumentsDelta)
                return
            place = piece.index
        elif self._answer is not None:
            self._pass_over(piece, TextDelta if isinstance(piece, TextPiece) else ReasoningDelta)
            return
        else:
            place = 0
        mask, _ = self._masks.get((type(piece), place), (None, None))
        if mask is None:
            mask = PieceMask(self._vault.mask)
        self._emit(self._with_text(piece, mask.feed(piece.text)))
        self._masks[type(piece), place] = (mask, piece)  # after it was taken: a call past the bound is not

    def _with_text(self, piece: Delta, text: str) -> Delta:
        if isinstance(piece, ArgumentsPiece):
            return ArgumentsPiece(piece.index, self._name(piece.name), text)
        return TextPiece(text) if isinstance(piece, TextPiece) else ReasoningPiece(text)

    def _name(self, name: str) -> str:
        """That of a tool, or what a model has written in its place."""
        return name if name in self._known else self._vault.shown(name)

    def _pass_over(self, piece: Delta, kind: type[Event]) -> None:
        self._feed(piece)
        if piece.text:
            self._note_kind(kind)

    def whole(self, reply: ModelReply) -> ModelReply:
        """The reply, once it is there; what was held back of its pieces is told before."""
        for mask, piece in self._masks.values():
            if rest := mask.flush():
                self._emit(self._with_text(piece, rest))
        self._masks.clear()
        message = reply.message
        calls = tuple([self._call(each) for each in message.tool_calls])
        text = message.text
        if self._answer is not None and not calls:
            text = _hidden_answer(text, self._answer, self._vault)
        if text is not message.text or any(x is not y for x, y in zip(calls, message.tool_calls, strict=True)):
            # What the vendor keeps beside the message tells of it as it was.
            message = dataclasses.replace(message, tool_calls=calls, text=text, vendor_data=None)
        if self._vault:
            message = hidden(message, self._vault)
        return reply if message is reply.message else dataclasses.replace(reply, message=message)

    def _call(self, call: ToolCall) -> ToolCall:
        marks = self._marked.get(call.name)
        if marks is None:
            name = self._name(call.name)
            return call if name is call.name else dataclasses.replace(call, name=name)
        try:
            written = parse_arguments(call.arguments)
        except InvalidArguments:  # nobody can say what is secret in it
            return dataclasses.replace(call, arguments=_UNREADABLE)
        arguments = hidden_arguments(written, marks, self._vault)
        return call if arguments is written else dataclasses.replace(call, arguments=orjson.dumps(arguments).decode())


def _hidden_answer(text: str, marks: Marks, vault: Vault) -> str:
    """A text that may be the structured output, as the turn machine reads it, with references in its marked fields."""
    written = json_in(text)
    try:
        answer = orjson.loads(written)
    except orjson.JSONDecodeError:
        return text
    try:
        after = replaced(answer, marks, vault.hide)
    except InvalidArguments:
        return _UNREADABLE
    if marks.names.keys() == {"value"}:  # a list, say, that the model has written alone
        after = replaced({"value": after}, marks, vault.hide)["value"]
    return text if after is answer else text.replace(written, orjson.dumps(after).decode())
