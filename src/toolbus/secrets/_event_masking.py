"""The masking of events, messages and replies: secrets in them are replaced by references.

Knows events and a vault, and no session or bus. A value without secrets is returned as the same object.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import orjson

from ..core.arguments import parse_arguments
from ..core.output import json_in
from ..errors import InvalidArguments
from ..events import CallOutcome, Event, ReasoningDelta, TextDelta, ToolArgumentsDelta
from ..messages import AssistantMessage, ToolCall, ToolMessage
from ..protocols import ArgumentsPiece, Delta, Emit, Heartbeat, ModelReply, ReasoningPiece, TextPiece, ToolSpec
from ..records import Record, replace
from ._marks import Marks, replaced
from ._redaction import MASK
from ._text_mask import PieceMask
from ._vault import Vault

T = TypeVar("T")

_UNREADABLE = "(hidden: it was no JSON object, and the tool takes secrets)"
_IDS = frozenset({
    "type", "event_id", "request_id", "conversation_id", "parent_id", "parent_request_id", "parent_call_id", "call_id",
    "provider_call_id", "message_id", "idempotency_key", "definition", "rejected_event_id", "failed_event_id", "role",
    "vendor", "encoding", "media_type", "at",
})  # fmt: skip
_NAMED_BY_TOOLS = (Event, ToolCall, ToolMessage, CallOutcome)
_PAYLOAD = frozenset({"data", "arguments", "output", "metadata", "vendor_data"})  # fields that hold any JSON value


@functools.cache
def _fields_of(kind: type[Any]) -> tuple[str, ...]:
    """Return the fields of an event or message that may hold text. Ids and names of tools identify things, and stay."""
    names = [name for name in kind.__struct_fields__ if name not in _IDS]
    if issubclass(kind, _NAMED_BY_TOOLS):
        names = [name for name in names if name != "name"]
    return tuple(names)


def hidden(given: T, vault: Vault) -> T:
    """Return an event, a message or a part of one without the secrets of `vault`; itself if it has none."""
    return _hidden(given, vault)


def _hidden(given: Any, vault: Vault) -> Any:
    if isinstance(given, str):
        return vault.shown(given)
    if isinstance(given, tuple):
        before = cast("tuple[Any, ...]", given)
        after = tuple([_hidden(each, vault) for each in before])
        return after if any(x is not y for x, y in zip(after, before, strict=True)) else before
    if not isinstance(given, Record):
        return given
    changed: dict[str, Any] = {}
    for name in _fields_of(cast("type[Any]", type(given))):
        value = getattr(given, name)
        instead = vault.shown_json(value) if name in _PAYLOAD else _hidden(value, vault)
        if instead is not value:
            changed[name] = instead
    if not changed:
        return cast("Any", given)
    if isinstance(given, AssistantMessage):
        changed["vendor_data"] = None  # The vendor's own data describes the message as it was.
    return replace(cast("Any", given), **changed)


def hidden_arguments(arguments: Mapping[str, Any], marks: Marks, vault: Vault) -> dict[str, Any]:
    """Return arguments with references instead of the values in marked fields, which go into the vault.

    If the arguments are too big to be searched, every value is replaced by `MASK`.
    """
    try:
        return cast("dict[str, Any]", replaced(arguments, marks, vault.hide))
    except InvalidArguments:
        return dict.fromkeys(arguments, MASK)


class ReplyMask:
    """The mask of one reply of the model: of its pieces as they come, and of the whole reply.

    `marked` are the marks of the tools that have any, `known` all present tools, `answer` the marks of the structured
    output. A value in a marked field goes into the vault. Pieces of arguments with marked fields are not published, nor
    pieces of a text that may be the structured output. Of any other text, whatever could be the beginning of a secret
    is held back. `emit` publishes a piece, `feed` only moves the timer of the stream, and `note_kind` notes that a
    piece of that kind has come.
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
        """Publish the part of a piece that can be published by now."""
        if isinstance(piece, Heartbeat):
            self._feed(piece)
            return
        if isinstance(piece, ArgumentsPiece):
            # The name of the tool may not be complete yet.
            if any(name.startswith(piece.name) for name in self._marked):
                self._pass_over(piece, ToolArgumentsDelta)
                return
            index = piece.index
        elif self._answer is not None:
            self._pass_over(piece, TextDelta if isinstance(piece, TextPiece) else ReasoningDelta)
            return
        else:
            index = 0
        mask, _ = self._masks.get((type(piece), index), (None, None))
        if mask is None:
            mask = PieceMask(self._vault.mask)
        self._emit(self._with_text(piece, mask.feed(piece.text)))
        # The mask is kept only after the piece was accepted, because `emit` refuses calls beyond the bound.
        self._masks[type(piece), index] = (mask, piece)

    def _with_text(self, piece: Delta, text: str) -> Delta:
        if isinstance(piece, ArgumentsPiece):
            return ArgumentsPiece(piece.index, self._name(piece.name), text)
        return TextPiece(text) if isinstance(piece, TextPiece) else ReasoningPiece(text)

    def _name(self, name: str) -> str:
        """Return the name of a known tool unchanged, and any other text that a model wrote there without secrets."""
        return name if name in self._known else self._vault.shown(name)

    def _pass_over(self, piece: Delta, kind: type[Event]) -> None:
        self._feed(piece)
        if piece.text:
            self._note_kind(kind)

    def whole(self, reply: ModelReply) -> ModelReply:
        """Return the whole reply, masked. First publishes the text of its pieces that was held back."""
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
            # The vendor's own data is dropped, because it describes the message as it was.
            message = replace(message, tool_calls=calls, text=text, vendor_data=None)
        if self._vault:
            message = hidden(message, self._vault)
        return reply if message is reply.message else replace(reply, message=message)

    def _call(self, call: ToolCall) -> ToolCall:
        marks = self._marked.get(call.name)
        if marks is None:
            name = self._name(call.name)
            return call if name is call.name else replace(call, name=name)
        try:
            written = parse_arguments(call.arguments)
        except InvalidArguments:  # The marked fields of unreadable arguments cannot be found.
            return replace(call, arguments=_UNREADABLE)
        arguments = hidden_arguments(written, marks, self._vault)
        return call if arguments is written else replace(call, arguments=orjson.dumps(arguments).decode())


def _hidden_answer(text: str, marks: Marks, vault: Vault) -> str:
    """Return a text that may be the structured output with references in its marked fields.

    The text is read as the turn machine reads it.
    """
    written = json_in(text)
    try:
        answer = orjson.loads(written)
    except orjson.JSONDecodeError:
        return text
    try:
        after = replaced(answer, marks, vault.hide)
        # The model may have written only the wrapped value, for example a list.
        if marks.names.keys() == {"value"}:
            after = replaced({"value": after}, marks, vault.hide)["value"]
    except InvalidArguments:
        return _UNREADABLE
    return text if after is answer else text.replace(written, orjson.dumps(after).decode())
