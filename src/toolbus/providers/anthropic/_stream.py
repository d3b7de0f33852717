"""The builder of a reply from a stream of the Messages API: events become blocks, and blocks the one whole reply.

The module knows the stream of Anthropic and the deviations of compatible servers; it does no I/O. Tolerated: events and
blocks of unknown type, deltas of unknown type, no `index`, a delta for a block that was not begun, calls that arrive
whole, blocks in `message_start`, no `message_stop`, characters cut in half. A block that is neither text nor a call is
kept unchanged, since it has to be sent back.

A stream counts as cut, whatever its end looks like, if a second message begins before the first is whole, as with
gateways that ask twice, and if a call was begun but neither its arguments nor the end of its block came: reading `{}`
would invent arguments that the model did not write.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Unpack, cast

from ...core.arguments import parse_arguments
from ...errors import InvalidArguments
from ...messages import AssistantMessage, ToolCall, Usage
from ...messages.wire import MALFORMED
from ...protocols import FinishReason, ModelReply
from ...schemas import as_object, as_objects
from .._shared.reply_parts import MAX_REPLY_PARTS, SEPARATOR, BuilderOptions, ReplyParts, read_object
from .._shared.wire_text import Characters, count_at, dumped, object_in

_FINISH_REASONS: Mapping[str, FinishReason] = {
    "": "",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "refusal": "refusal",
}
_CUT_OFF = "max_tokens"
_NEVER_RUN = frozenset({_CUT_OFF, "refusal"})  # in such replies, incomplete calls are never run
_NEUTRAL = frozenset({"text", "tool_use", "thinking", "redacted_thinking"})  # other blocks belong to server tools
_SERVERS_CALLS = frozenset({"server_tool_use", "mcp_tool_use"})
_BLOCK_OF_DELTA = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
    "input_json_delta": "tool_use",
}
_OF_ONE_KIND = frozenset({"text", "thinking", "tool_use"})  # blocks that accept only deltas of their own kind
_COUNTS = frozenset(
    {
        "input_tokens",
        "output_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
        "output_tokens_details",
    }
)


class _Block:
    """A block of the reply, as far as it has arrived."""

    __slots__ = ("citations", "fields", "grown", "is_over", "kind", "pieces", "position")

    def __init__(self, fields: Mapping[str, Any], position: int) -> None:
        self.fields: dict[str, Any] = {name: each for name, each in fields.items() if each is not None}
        self.kind = self.fields["type"] = str(fields.get("type") or "")
        self.position = position
        """The index among the calls, for a call."""
        self.is_over = False
        """True once the server has sent the end of the block."""
        self.pieces = Characters()
        """Text, thinking, or the text of a call's arguments."""
        self.citations: list[Any] = []
        self.grown: dict[str, list[str]] = {}
        """The pieces of other fields that are streamed."""

    def add(self, delta: Mapping[str, Any]) -> None:
        """Add a delta of an unknown type: text is appended to its field, any other value replaces the field."""
        for name, piece in delta.items():
            if name == "type" or piece is None:
                continue
            before = self.fields.get(name)
            if isinstance(piece, str) and (name in self.grown or isinstance(before, str)):
                self.grown.setdefault(name, [str(before)]).append(piece)
            else:
                self.grown.pop(name, None)
            self.fields[name] = piece

    def join(self) -> None:
        """Join the streamed pieces of fields in `fields`."""
        self.fields |= {name: "".join(pieces) for name, pieces in self.grown.items()}
        self.grown = {}
        if self.citations:
            before = self.fields.get("citations")
            self.fields["citations"] = [
                *(cast("list[Any]", before) if isinstance(before, list) else ()),
                *self.citations,
            ]
            self.citations = []

    def arguments(self) -> str:
        """Return the argument text as the model wrote it, or without text, the input that the block began with."""
        text = self.pieces.whole()
        given = self.fields.get("input")
        if isinstance(given, str) and not text.strip():
            return given
        if isinstance(given, Mapping) and given and not text.strip():
            return dumped(cast("Mapping[str, Any]", given))
        return text

    def wire(self) -> dict[str, Any]:
        """Return the block in the form in which it is sent back."""
        self.join()
        found = dict(self.fields)
        text = self.pieces.whole()
        if self.kind in {"text", "thinking"}:
            found[self.kind] = text
        elif text.strip():
            read = _runnable(text) if self.kind == "tool_use" else object_in(text)
            found["input"] = {MALFORMED: text} if read is None else read
        elif self.kind == "tool_use":
            found["input"] = found.get("input") or {}
        return found

    def is_complete(self) -> bool:
        """Return whether the block could be whole: the arguments of a call have to be an object."""
        return self.kind != "tool_use" or object_in(self.pieces.whole() or "{}") is not None

    def was_cut(self) -> bool:
        """Return whether the block is a call whose end did not come, and whose arguments are not an object."""
        if self.kind != "tool_use" or self.is_over or self.fields.get("input"):
            return False
        return object_in(self.pieces.whole()) is None

    def is_plain(self) -> bool:
        """Return whether the block has nothing but text, id, name and arguments."""
        return set(self.fields) <= {"type", "text", "id", "name", "input"} and self.kind in {"text", "tool_use"}


class MessageBuilder(ReplyParts):
    """A builder of one reply from events.

    If the reply is `paused`, `begin_continuation` before the events of the next answer.
    """

    def __init__(self, **given: Unpack[BuilderOptions]) -> None:
        super().__init__(**given)
        self._asked = self._model
        self.container = ""
        """The id of the server's container, if its tools used one."""
        self._blocks: list[_Block] = []
        self._by_index: dict[int, _Block] = {}
        # The blocks of `message_start` and their indexes, last first.
        self._initial: list[tuple[int, Mapping[str, Any]]] = []
        self._message_id: str | None = None  # the id of the message that has begun
        self._before = 0  # the number of blocks before that message
        self._stop_reason = ""
        self._usage: dict[str, Any] = {}
        self._spent = Usage()

    # ----------------------------------------------------------------------------------------------- feeding

    def feed(self, event: str, data: bytes) -> None:
        """Process one event. Raises `ProviderUnavailable`, `ProviderRejected`, `ContextOverflow` or `ReplyTooLarge`."""
        if self.done or data.startswith(b"[DONE]"):
            return
        fields = read_object(data, self._errors, "an event")
        kind = str(fields.get("type") or event)
        if kind == "error" or event == "error" or fields.get("error"):
            raise self._errors.in_stream(fields)
        if kind == "message_start":
            self._open(as_object(fields.get("message")), len(data))
        elif kind == "content_block_start":
            self._grow(len(data))
            self._take_initial(fields.get("index"))
            if self._initial and self._initial[-1][0] == fields.get("index"):
                self._initial.pop()  # the block is streamed after all
            self._begin(as_object(fields.get("content_block")), fields.get("index"))
        elif kind == "content_block_delta":
            self._delta(as_object(fields.get("delta")), fields.get("index"))
        elif kind == "content_block_stop":
            if (block := self._at(fields.get("index"))) is not None:
                block.is_over = True
        elif kind == "message_delta":
            self._stop(as_object(fields.get("delta")))
            self._count(fields.get("usage"))
        elif kind == "message_stop":
            self.done = True

    def whole(self, completion: Mapping[str, Any]) -> None:
        """Process a message that the server did not stream."""
        if completion.get("type") == "error" or completion.get("error"):
            raise self._errors.in_stream(completion)
        if "content" not in completion:  # a gateway's own message, with status 200
            raise self._errors.no_reply("message", completion)
        self._start(completion)
        for block in as_objects(completion.get("content")):
            self._begin(block, None).is_over = True
        self._stop(completion)
        self.done = True

    def _open(self, message: Mapping[str, Any], size: int) -> None:
        """Process the beginning of a message. Its content is empty, unless a gateway has put all of it there."""
        wire_id = str(message.get("id") or "")
        if self._message_id is not None and (wire_id != self._message_id or len(self._blocks) > self._before):
            raise self._errors.unavailable("began another message before the first was whole")
        self._message_id, self._before = wire_id, len(self._blocks)
        content = as_objects(message.get("content"))
        if content:
            self._grow(size)
        self._initial = list(enumerate(content))[::-1]
        self._start(message)

    def _start(self, message: Mapping[str, Any]) -> None:
        self._name_model(message)
        self._in_container(message)
        self._count(message.get("usage"))

    def _count(self, usage: object) -> None:
        # Counts are cumulative: later ones replace earlier ones, unless they are missing, null or 0. The last event may
        # have a 0 for what only the first one has counted.
        counts = as_object(usage)
        self._usage.update({name: counts[name] for name in _COUNTS if counts.get(name)})

    def _stop(self, delta: Mapping[str, Any]) -> None:
        self._in_container(delta)
        if reason := delta.get("stop_reason"):
            self._stop_reason = str(reason)
            self._take_initial(None)  # nothing more is streamed

    def _in_container(self, fields: Mapping[str, Any]) -> None:
        self.container = str(as_object(fields.get("container")).get("id") or "") or self.container

    def _at(self, index: object) -> _Block | None:
        """Return the block with an index, or without an index the last block."""
        if isinstance(index, int):
            return self._by_index.get(index)
        return self._blocks[-1] if self._blocks else None

    def _begin(self, fields: Mapping[str, Any], index: object) -> _Block:
        if len(self._blocks) == MAX_REPLY_PARTS:
            raise self._errors.too_many(MAX_REPLY_PARTS, "blocks")
        block = _Block(fields, self._next_call() if fields.get("type") == "tool_use" else -1)
        self._blocks.append(block)
        if isinstance(index, int):
            self._by_index[index] = block
        for name in ("text", "thinking"):
            if block.kind == name:
                self._add_piece(block, block.fields.get(name))
        return block

    def _delta(self, delta: Mapping[str, Any], index: object) -> None:
        kind = str(delta.get("type") or "")
        block = self._at(index)
        if block is not None and block.kind in _OF_ONE_KIND and _BLOCK_OF_DELTA.get(kind, block.kind) != block.kind:
            if kind not in {"text_delta", "thinking_delta"}:
                return  # arguments of a text, or a signature of a call
            block = None  # text is never read as arguments, or arguments as text
        elif block is None:
            self._take_initial(index)
            if self._initial and self._initial[-1][0] == index:
                block = self._begin(self._initial.pop()[1], index)
        if block is None:
            if _BLOCK_OF_DELTA.get(kind, "tool_use") == "tool_use":
                return
            block = self._begin({"type": _BLOCK_OF_DELTA[kind]}, index)
        if kind in {"text_delta", "thinking_delta"}:
            self._add_piece(block, delta.get(kind.removesuffix("_delta")))
        elif kind == "input_json_delta":
            piece = delta.get("partial_json")
            self._add_piece(block, dumped(cast("object", piece)) if isinstance(piece, Mapping) else piece)
        elif kind == "signature_delta":
            self._grow(len(dumped(delta)))
            block.fields["signature"] = str(delta.get("signature") or "")
        elif kind == "citations_delta":
            self._grow(len(dumped(delta)))
            block.citations.append(delta.get("citation"))
        else:
            self._grow(len(dumped(delta)))
            block.add(delta)

    def _add_piece(self, block: _Block, piece: object) -> None:
        if block.kind == "text":
            self._say(block.pieces, piece)
        elif block.kind == "thinking":
            self._think(block.pieces, piece)
        elif block.kind == "tool_use":
            self._argue(block.pieces, piece, block.position, block.fields.get("name"))
        else:
            self._add(block.pieces, piece)

    # ------------------------------------------------------------------------------------------------ ending

    @property
    def paused(self) -> bool:
        """True if the server paused the reply while its own tools run: it continues when the reply is sent back."""
        own = any(block.kind not in _NEUTRAL for block in self._blocks)
        return self._stop_reason == "pause_turn" and own and not self._call_count

    def so_far(self) -> list[dict[str, Any]]:
        """Return the blocks so far, in the form in which they are sent back."""
        wires = [block.wire() for block in self._blocks if block.kind]
        return [wire for wire in wires if str(wire.get("text", "x")).strip()]

    def begin_continuation(self) -> None:
        """Prepare for the events of another answer, which continues this reply."""
        self._spent += _usage(self._usage)
        self._usage = {}
        self._by_index = {}
        self._message_id = None
        self._stop_reason = ""
        self.done = False

    def finish(self) -> ModelReply:
        """Return the whole reply.

        Raises `ProviderUnavailable` if the stream ended before the reply was whole, and `ContextOverflow` if the
        model's context window was full before that.
        """
        reason = self._stop_reason
        self._take_initial(None)
        for block in self._blocks:
            block.join()
        if not reason and not (self.done and all(block.is_complete() for block in self._blocks)):
            raise self._errors.unavailable("ended the stream before the reply was whole")
        if reason == "model_context_window_exceeded":
            raise self._errors.context_overflow(f"{self._errors.vendor}'s reply filled the model's context window")
        if reason not in _NEVER_RUN and any(block.was_cut() for block in self._blocks):
            raise self._errors.unavailable("ended the stream before a call was whole")
        thoughts = [block.pieces.whole() for block in self._blocks if block.kind == "thinking"]
        cut = self._blocks[-1] if self._blocks and reason == _CUT_OFF else None
        answered = {call_id for block in self._blocks for call_id in _server_call_ids(block.fields)}
        self._blocks = [block for block in self._blocks if self._is_kept(block, cut, answered)]
        return ModelReply(
            message=AssistantMessage(
                text="".join(block.pieces.whole() for block in self._blocks if block.kind == "text"),
                tool_calls=tuple(
                    ToolCall(
                        name=str(block.fields.get("name") or ""),
                        arguments=block.arguments(),
                        provider_call_id=str(block.fields.get("id") or ""),
                    )
                    for block in self._blocks
                    if block.kind == "tool_use"
                ),
                reasoning=SEPARATOR.join(thought for thought in thoughts if thought),
                vendor_data=None if self._is_plain() else {"anthropic": self._kept()},
            ),
            finish_reason=_FINISH_REASONS.get(reason, "other"),
            vendor_finish_reason=reason,
            usage=self._spent + _usage(self._usage),
            vendor=self._errors.vendor,
            model=self._model,
        )

    def _take_initial(self, until: object) -> None:
        """Process the blocks of `message_start` before an index, or without one all others: they are not streamed."""
        while self._initial and not (isinstance(until, int) and self._initial[-1][0] >= until):
            index, fields = self._initial.pop()
            self._begin(fields, index).is_over = True

    def _is_kept(self, block: _Block, cut: _Block | None, answered: Collection[str]) -> bool:
        if cut is not None and block.kind in _SERVERS_CALLS:  # the API refuses a history with such a call and no result
            return str(block.fields.get("id")) in answered
        if self._stop_reason == "refusal":  # calls of a refused reply must not run, nor its thinking be sent back
            return block.kind == "text"
        # Thinking that was cut has no signature, and the API refuses it without one.
        return block is not cut or block.kind != "thinking" or bool(block.fields.get("signature"))

    def _kept(self) -> dict[str, Any]:
        """Return the blocks, and if there is thinking, the name of the model, the only one that accepts it back."""
        content: list[dict[str, Any]] = self._storable(self.so_far())
        thought = any("thinking" in block["type"] for block in content)
        return {"content": content, "model": self._asked} if thought else {"content": content}

    def _is_plain(self) -> bool:
        """Return whether the reply is one text at most, then calls, so that the neutral message contains all of it."""
        late_text = any(block.kind == "text" for block in self._blocks[1:])
        return not late_text and all(block.is_plain() for block in self._blocks)


def _server_call_ids(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids of the server-tool calls that a block is the result of, or was made in."""
    found = (fields.get("tool_use_id"), as_object(fields.get("caller")).get("tool_id"))
    return tuple(each for each in found if isinstance(each, str))


def _runnable(text: str) -> dict[str, Any] | None:
    """Return the arguments, or None if they are refused, since not every store can write refused ones as an object."""
    try:
        return parse_arguments(text)
    except InvalidArguments:
        return None


def _usage(wire: Mapping[str, Any]) -> Usage:
    """Return the usage. The vendor's input tokens exclude those read from or written to a cache; toolbus's do not."""
    cached, written = count_at(wire, "cache_read_input_tokens"), count_at(wire, "cache_creation_input_tokens")
    return Usage(
        input_tokens=count_at(wire, "input_tokens") + cached + written,
        output_tokens=count_at(wire, "output_tokens"),
        cached_tokens=cached,
        reasoning_tokens=count_at(wire.get("output_tokens_details"), "thinking_tokens"),
        cache_write_tokens=written,
    )
