"""The builder of a reply from a stream of the OpenAI Responses API: events become the one whole reply.

The module knows the events; it does no I/O. Pieces are passed on as they arrive, but the finished items decide on the
content of the reply (`response.output_item.done`, and the `output` of the last event), so missing pieces, or pieces out
of order, do no harm. Events of other types are ignored: there are many, and new ones are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, Unpack, cast

from ...errors import InvalidHistory
from ...messages import AssistantMessage, ToolCall
from ...messages.response_items import Reply, read_reply
from ...protocols import FinishReason, ModelReply
from ...schemas import as_object, as_objects
from .._shared.reply_parts import (
    MAX_REPLY_PARTS,
    PART_OVERHEAD_BYTES,
    SEPARATOR,
    BuilderOptions,
    ReplyParts,
    read_object,
)
from .._shared.wire_text import Characters, dumped
from ._chat_stream import usage_of

_ENDINGS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_INCOMPLETE: Mapping[str, FinishReason] = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
    "": "length",  # the reply may have ended anywhere; for the API's other reasons, it ends between items
}

# Items that wait for the application, in addition to those with a `call_id`.
_RUN_ELSEWHERE = frozenset({"mcp_approval_request"})

# The part of an item that an event belongs to: the item's kind, the part's kind, and the field with the part's index.
_Part: TypeAlias = tuple[str, str, str]
_DELTAS: Mapping[str, _Part] = {
    "response.output_text.delta": ("message", "output_text", "content_index"),
    "response.refusal.delta": ("message", "refusal", "content_index"),
    "response.reasoning_summary_text.delta": ("reasoning", "summary", "summary_index"),
    "response.reasoning_text.delta": ("reasoning", "content", "content_index"),
    "response.function_call_arguments.delta": ("function_call", "arguments", ""),
}
_DONE: Mapping[str, tuple[_Part, str]] = {
    "response.output_text.done": (_DELTAS["response.output_text.delta"], "text"),
    "response.refusal.done": (_DELTAS["response.refusal.delta"], "refusal"),
    "response.reasoning_summary_text.done": (_DELTAS["response.reasoning_summary_text.delta"], "text"),
    "response.reasoning_text.done": (_DELTAS["response.reasoning_text.delta"], "text"),
    "response.function_call_arguments.done": (_DELTAS["response.function_call_arguments.delta"], "arguments"),
}


class _Item:
    """An item of the output, as far as it has arrived."""

    __slots__ = ("call_position", "kind", "parts", "position", "settled", "wire")

    def __init__(self, kind: str, position: int, call_position: int) -> None:
        self.kind = kind
        self.position = position
        self.call_position = call_position
        self.wire: Mapping[str, Any] = {}
        self.settled = False
        """True once `wire` is the finished item."""
        self.parts: dict[tuple[str, int], Characters] = {}

    def finished(self) -> Mapping[str, Any]:
        """Return the finished item, or if the server never finished it, an item made of its pieces."""
        if self.settled and not self._was_emptied():
            return self.wire
        parts = sorted(self.parts.items(), key=lambda part: part[0][1])  # by index
        texts = [(kind, characters.whole()) for (kind, _), characters in parts]
        if self.kind == "function_call":
            return {**self.wire, "type": self.kind, "arguments": "".join(text for _, text in texts)}
        if self.kind == "message":
            fields = {"output_text": "text", "refusal": "refusal"}
            content = [{"type": kind, fields[kind]: text} for kind, text in texts]
            return {**self.wire, "type": self.kind, "role": "assistant", "content": content}
        return self.wire

    def _was_emptied(self) -> bool:
        """Return whether the finished item lacks all text of its pieces, as from gateways that translate streams."""
        if not any(characters.parts for characters in self.parts.values()):
            return False
        if self.kind == "function_call":
            return not self.wire.get("arguments")
        content = self.wire.get("content")
        said = [content] if isinstance(content, str) else as_objects(content)
        return self.kind == "message" and not any(
            each if isinstance(each, str) else each.get("text") or each.get("refusal") for each in said
        )


class ResponseBuilder(ReplyParts):
    """A builder of one reply from events."""

    echo_bytes: ClassVar[int] = 2**20
    """The size of the request's tools, which events repeat; the last event also repeats the whole reply."""

    def __init__(self, **given: Unpack[BuilderOptions]) -> None:
        super().__init__(**given)
        self._item_bytes = 0  # the size of the events that contain whole items
        self._items: list[_Item] = []
        self._at: dict[int | str, _Item] = {}  # the newest item at each position of the output
        self._ended: Mapping[str, Any] = {}

    # ---------------------------------------------------------------------------------------------- events

    def feed(self, event: str, data: bytes) -> None:
        """Process one event. Raises `ProviderUnavailable`, `ProviderRejected`, `ContentFiltered` or `ReplyTooLarge`."""
        if self.done or data.startswith(b"[DONE]"):
            return
        fields = read_object(data, self._errors, "a chunk")
        kind = str(fields.get("type") or event)
        if kind == "error" or fields.get("error"):
            raise self._errors.in_stream(fields)
        self._name_model(as_object(fields.get("response")))
        if part := _DELTAS.get(kind):
            self._piece(part, fields, fields.get("delta"))
        elif found := _DONE.get(kind):
            part, field = found
            self._rest(part, fields, fields.get(field))
        elif kind == "response.output_item.added":
            self._keep(len(data))
            self._added(fields)
        elif kind == "response.output_item.done":
            self._keep(len(data))
            item = as_object(fields.get("item"))
            self._settle(self._find(_key(fields), _kind(item), str(item.get("id") or "")), item)
        elif kind in _ENDINGS:
            self._end(as_object(fields.get("response")), kind.removeprefix("response."))

    def whole(self, completion: Mapping[str, Any]) -> None:
        """Process a response that the server did not stream."""
        if completion.get("error") and not completion.get("status"):
            raise self._errors.in_stream(completion)
        if "status" not in completion and "output" not in completion:  # a gateway's own message, with status 200
            raise self._errors.no_reply("response", completion)
        self._end(completion, "" if "status" in completion else "completed")

    def _end(self, response: Mapping[str, Any], status: str) -> None:
        status = str(response.get("status") or status)
        if status == "failed":
            raise self._errors.in_stream({"error": response.get("error") or {}})
        if status not in {"completed", "incomplete"}:
            raise self._errors.unavailable(f"ended its reply as {status or 'no response'!r}")
        self._name_model(response)
        self._ended = {**response, "status": status}
        self._items.sort(key=lambda item: item.position)
        if output := as_objects(response.get("output")):
            self._compare(output)
        self.done = True

    def _compare(self, output: Sequence[Mapping[str, Any]]) -> None:
        """Process the output in the last event. It completes the items that are known, by their ids or positions."""
        there, self._items = self._items, []
        by_id = {(each.kind, str(each.wire.get("id"))): each for each in reversed(there) if each.wire.get("id")}
        left = set(there)
        for position, item in enumerate(output):
            kind = _kind(item)
            # Some servers leave items out, so ids come before positions.
            known = by_id.get((kind, str(item.get("id"))))
            if known is None and position < len(there) and there[position].kind == kind:
                known = there[position]
            if known in left:
                left.remove(known)
                self._items.append(known)
            else:
                known = self._new(position, kind)
            self._take_last(known, item)

    def _take_last(self, known: _Item, item: Mapping[str, Any]) -> None:
        # Reasoning has to be sent back as in its own last event, says the SDK (ResponseReasoningItem). Azure leaves its
        # encrypted form out there, and refuses it without one ("Item with id 'rs_...' not found").
        encrypted = "encrypted_content"
        if known.kind != "reasoning" or not known.settled or (item.get(encrypted) and not known.wire.get(encrypted)):
            self._settle(known, item)

    # ----------------------------------------------------------------------------------------------- items

    def _new(self, key: int | str, kind: str) -> _Item:
        if len(self._items) == MAX_REPLY_PARTS:
            raise self._errors.too_many(MAX_REPLY_PARTS, "items")
        call_position = self._next_call() if kind == "function_call" else -1
        item = _Item(kind, key if isinstance(key, int) else len(self._items), call_position)
        self._items.append(item)
        self._grow(PART_OVERHEAD_BYTES)
        return item

    def _find(self, key: int | str, kind: str, wire_id: str = "") -> _Item:
        """Return the item at a position. A finished item there is a different one, unless it has the same id."""
        found = self._at.get(key)
        if found is None or found.kind != kind or (found.settled and (not wire_id or found.wire.get("id") != wire_id)):
            found = self._at[key] = self._new(key, kind)
        return found

    def _added(self, fields: Mapping[str, Any]) -> None:
        item = as_object(fields.get("item"))
        key, kind = _key(fields), _kind(item)
        found = self._find(key, kind)
        if found.wire:  # the server does not count positions
            found = self._at[key] = self._new(key, kind)
        found.wire = item

    def _settle(self, found: _Item, item: Mapping[str, Any]) -> None:
        """Process a finished item, and pass on the text that no piece had."""
        if isinstance(arguments := item.get("arguments"), Mapping):
            item = {**item, "arguments": dumped(cast("object", arguments))}
        item = found.wire = self._storable(item)
        if found.kind == "function_call" and item.get("arguments"):
            self._pass_on_rest(found, ("arguments", 0), item["arguments"])
        for position, part in enumerate(as_objects(item.get("content"))):
            kind = _kind(part)
            if found.kind == "message" and kind in {"output_text", "refusal"}:
                self._pass_on_rest(found, (kind, position), part.get("refusal" if kind == "refusal" else "text"))
            elif found.kind == "reasoning" and not item.get("summary"):
                self._pass_on_rest(found, ("content", position), part.get("text"))
        for position, part in enumerate(as_objects(item.get("summary"))):
            self._pass_on_rest(found, ("summary", position), part.get("text"))
        found.settled = True

    # ---------------------------------------------------------------------------------------------- pieces

    def _piece(self, part: _Part, fields: Mapping[str, Any], delta: object) -> None:
        if not isinstance(delta, str) or not delta:
            return
        kind, name, index = part
        item = self._at.get(_key(fields))
        if item is not None and item.settled and item.kind == kind:  # the piece is late, and the item has its text
            return
        self._pass_on(self._find(_key(fields), kind), (name, _index(fields, index)), delta)

    def _rest(self, part: _Part, fields: Mapping[str, Any], truth: object) -> None:
        kind, name, index = part
        item = self._at.get(_key(fields))
        if isinstance(truth, str) and (item is None or item.kind != kind or not item.settled):
            self._pass_on_rest(self._find(_key(fields), kind), (name, _index(fields, index)), truth)

    def _pass_on_rest(self, item: _Item, part: tuple[str, int], truth: object) -> None:
        """Pass on the missing rest of a part's text. Wrong pieces that were passed on cannot be called back."""
        if not isinstance(truth, str) or not truth:
            return
        before = item.parts.get(part) or Characters()
        if before.length <= len(truth) and truth.startswith("".join(before.parts)):
            self._pass_on(item, part, truth[before.length :])
        elif not item.settled:
            item.parts[part] = Characters()
            item.parts[part].add(truth)

    def _pass_on(self, item: _Item, part: tuple[str, int], piece: str) -> None:
        if not piece:
            return
        if (characters := item.parts.get(part)) is None:
            self._grow(PART_OVERHEAD_BYTES)
            characters = item.parts[part] = Characters()
        if item.kind == "function_call":
            self._argue(characters, piece, item.call_position, item.wire.get("name"))
        elif item.kind == "message":
            self._say(characters, piece, item)
        else:
            self._think(characters, piece)

    def _keep(self, size: int) -> None:
        self._item_bytes += size
        if self._item_bytes > 2 * (self._limit_bytes + self.echo_bytes):  # each item comes twice: begun, and finished
            raise self._errors.too_large(self._limit_bytes)

    # --------------------------------------------------------------------------------------------- the end

    @property
    def text_so_far(self) -> str:
        """The text of the reply so far."""
        texts = (
            "".join(part.whole() for part in item.parts.values()) for item in self._items if item.kind == "message"
        )
        return SEPARATOR.join(filter(None, texts))

    def finish(self) -> ModelReply:
        """Return the whole reply. Raises `ProviderUnavailable` if the stream ended before the reply was whole."""
        if not self.done:
            raise self._errors.unavailable("ended the stream before the reply was whole")
        items = [item.finished() for item in self._items]
        self._refuse_foreign(items)
        try:
            reply = read_reply([item for item in items if item])
        except InvalidHistory as exc:
            raise self._errors.unavailable(f"sent an item that cannot be read: {exc.problem}") from exc
        cut = self._ended["status"] == "incomplete"
        calls = tuple(
            ToolCall(name=call.name, arguments=call.arguments, provider_call_id=call.wire_id) for call in reply.calls
        )
        reason = str(as_object(self._ended.get("incomplete_details")).get("reason") or "") if cut else ""
        usage = usage_of(as_object(self._ended.get("usage")), "input_tokens", "output_tokens")
        # llama.cpp, Ollama and Transformers call a reply completed even if it was cut off.
        cut = cut or 0 < self.limit_tokens <= usage.output_tokens
        return ModelReply(
            message=AssistantMessage(
                text=reply.text,
                tool_calls=calls,
                reasoning=reply.reasoning,
                vendor_data={self._errors.vendor: {"responses": reply.kept}} if reply.kept else None,
            ),
            finish_reason=_INCOMPLETE.get(reason, "other") if cut else _finish_reason(reply),
            vendor_finish_reason=reason or self._ended["status"],
            usage=usage,
            vendor=self._errors.vendor,
            model=self._model,
        )

    def _refuse_foreign(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Raise `ProviderRejected` for an item that asks the application to run something other than a function.

        Such items are custom, shell and patch calls, and future ones of the same kind: they have a `call_id`, and no
        output in the reply. A call that the vendor runs has no `call_id`, or also an output.
        """
        others = [item for item in items if item.get("type") != "function_call"]
        is_output = [_kind(item).endswith("_output") for item in others]
        answered = {str(item.get("call_id")) for item, output in zip(others, is_output, strict=True) if output}
        for item, output in zip(others, is_output, strict=True):
            waits = item.get("call_id") and not output and str(item["call_id"]) not in answered
            if waits or _kind(item) in _RUN_ELSEWHERE:
                raise self._errors.no_function(f"an item of type {_kind(item)!r}")


def _finish_reason(reply: Reply) -> FinishReason:
    if reply.calls:
        return "tool_calls"
    return "refusal" if reply.refused else "stop"


def _kind(item: Mapping[str, Any]) -> str:
    kind = item.get("type")
    return kind if isinstance(kind, str) else ""


def _key(fields: Mapping[str, Any]) -> int | str:
    """Return the key of an item in a stream: its position in the output, or without one its id."""
    position = fields.get("output_index")
    if isinstance(position, int):
        return position
    return str(fields.get("item_id") or as_object(fields.get("item")).get("id") or "")


def _index(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) else 0
