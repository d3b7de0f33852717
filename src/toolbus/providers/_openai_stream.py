"""Reads a streamed chat completion: server-sent events, then chunks, then the one whole reply.

Knows the wire as OpenAI speaks it and as compatible servers bend it; does no I/O. Tolerated: no `index`, the same
`index` for all, calls that arrive whole, ids that are empty, repeated or new in each chunk, names repeated in each
chunk, arguments as an object, no usage, no `[DONE]`, reasoning under either of its names, characters cut in half.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import orjson

from ..messages import AssistantMessage, ToolCall, Usage
from ..protocols import ArgumentsPiece, Emit, FinishReason, ModelReply, ReasoningPiece, TextPiece
from ._openai_errors import ErrorTranslator

__all__ = ["EventLines", "ReplyBuilder"]

_CALL_OVERHEAD_BYTES = 64  # so that a stream of empty calls ends at the size limit too
_FINISH_REASONS: Mapping[str, FinishReason] = {
    "": "",
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}
_CUT_OFF = "length"  # the finish_reason of a reply that ran into its token limit
_KNOWN_IN_CALL = frozenset({"index", "id", "type", "function"})


class EventLines:
    """Splits bytes, in pieces of any size, into the data of server-sent events."""

    __slots__ = ("_buffer", "_data", "_errors", "_event", "_limit_bytes")

    def __init__(self, limit_bytes: int, errors: ErrorTranslator) -> None:
        """One event may have `limit_bytes`; more raises `ReplyTooLarge` in `feed`."""
        self._buffer = b""
        self._data: list[bytes] = []
        self._event = b""
        self._limit_bytes = limit_bytes
        self._errors = errors

    def feed(self, piece: bytes) -> list[tuple[str, bytes]]:
        """The events that `piece` completes, as (event name, data)."""
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        if len(self._buffer) > self._limit_bytes:
            raise self._errors.too_large(self._limit_bytes)
        found: list[tuple[str, bytes]] = []
        for line in lines:
            self._line(line.rstrip(b"\r"), found)
        return found

    def finish(self) -> list[tuple[str, bytes]]:
        """What the end of the body completes: a last event without its empty line."""
        found: list[tuple[str, bytes]] = []
        self._line(self._buffer.rstrip(b"\r"), found)
        self._line(b"", found)
        self._buffer = b""
        return found

    def _line(self, line: bytes, found: list[tuple[str, bytes]]) -> None:
        if not line:
            if self._data:
                found.append((self._event.decode("utf-8", "replace"), b"\n".join(self._data)))
            self._data, self._event = [], b""
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._event = value.strip()


class _Characters:
    """Text from pieces that may cut a character in half, as JSON escapes of a surrogate pair can."""

    __slots__ = ("_half", "parts")

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._half = ""

    def add(self, piece: str) -> str:
        """The text that is whole now; half a character waits for the next piece."""
        if self._half or not piece.isascii():
            piece, self._half = self._half + piece, ""
            if "\ud800" <= piece[-1:] <= "\udbff":
                piece, self._half = piece[:-1], piece[-1]
            piece = piece.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        if piece:
            self.parts.append(piece)
        return piece

    def whole(self) -> str:
        if self._half:
            self.parts.append("\ufffd")
            self._half = ""
        return "".join(self.parts)


class _Call:
    """A tool call as far as it has arrived."""

    __slots__ = ("arguments", "extra", "name", "place", "wire_id")

    def __init__(self, place: int) -> None:
        self.place = place
        self.wire_id = ""
        self.name = ""
        self.arguments = _Characters()
        self.extra: dict[str, Any] = {}

    def is_complete(self) -> bool:
        """Whether the arguments are a JSON object as they stand."""
        try:
            return isinstance(json.loads("".join(self.arguments.parts)), dict)
        except ValueError:
            return False


class ReplyBuilder:
    """Puts chunks together. `feed` every event, then `finish`."""

    __slots__ = (
        "_by_index",
        "_calls",
        "_emit",
        "_errors",
        "_finish_reason",
        "_limit_bytes",
        "_model",
        "_reasoning",
        "_size_bytes",
        "_text",
        "_usage",
        "done",
    )

    def __init__(self, *, model: str, emit: Emit, limit_bytes: int, errors: ErrorTranslator) -> None:
        self.done = False
        """Whether the server said `[DONE]`."""
        self._model = model
        self._emit = emit
        self._limit_bytes = limit_bytes
        self._errors = errors
        self._size_bytes = 0
        self._text = _Characters()
        self._reasoning = _Characters()
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._finish_reason = ""
        self._usage: Mapping[str, Any] = {}

    def feed(self, event: str, data: bytes) -> None:
        """Take one event. Raises `ProviderUnavailable`, `ProviderRejected` or `ReplyTooLarge`."""
        if self.done or data.startswith(b"[DONE]"):
            self.done = True
            return
        try:
            chunk: Any = _loads(data)
        except ValueError:
            raise self._errors.unavailable(f"sent a chunk that is no JSON: {_start(data)}") from None
        if not isinstance(chunk, Mapping):
            raise self._errors.unavailable(f"sent a chunk that is no object: {_start(data)}")
        fields = cast("Mapping[str, Any]", chunk)
        if event == "error" or fields.get("error"):
            raise self._errors.in_stream(fields)
        self._chunk(fields)

    def whole(self, completion: Mapping[str, Any]) -> None:
        """Take a completion that the server did not stream."""
        if completion.get("error"):
            raise self._errors.in_stream(completion)
        self._chunk(completion)
        self.done = True

    def _chunk(self, chunk: Mapping[str, Any]) -> None:
        if isinstance(model := chunk.get("model"), str) and model:
            self._model = model
        if isinstance(usage := chunk.get("usage"), Mapping):
            self._usage = cast("Mapping[str, Any]", usage)  # cumulative where it comes more than once
        for choice in _objects(chunk.get("choices")):
            if choice.get("index"):  # another sample; nobody asked for one
                continue
            self._delta(_object(choice.get("delta") or choice.get("message")))
            if reason := choice.get("finish_reason"):
                self._finish_reason = str(reason)

    def _delta(self, delta: Mapping[str, Any]) -> None:
        self._reason(delta.get("reasoning_content") or delta.get("reasoning"))
        content = delta.get("content") or delta.get("refusal")
        if isinstance(content, str):
            self._say(content)
        for part in _objects(content):
            self._reason("".join(str(each.get("text") or "") for each in _objects(part.get("thinking"))))
            self._say(part.get("text"))
        for fragment in _objects(delta.get("tool_calls")):
            self._fragment(fragment)

    def _say(self, piece: object) -> None:
        if isinstance(piece, str) and piece:
            self._grow(piece)
            if text := self._text.add(piece):
                self._emit(TextPiece(text))

    def _reason(self, piece: object) -> None:
        if isinstance(piece, str) and piece:
            self._grow(piece)
            if text := self._reasoning.add(piece):
                self._emit(ReasoningPiece(text))

    def _fragment(self, fragment: Mapping[str, Any]) -> None:
        function = _object(fragment.get("function"))
        arguments = function.get("arguments")
        if isinstance(arguments, Mapping):
            arguments = orjson.dumps(arguments).decode()
        piece = arguments if isinstance(arguments, str) else ""
        name = str(function.get("name") or "")
        wire_id = str(fragment.get("id") or "")
        call = self._call_of(fragment.get("index"), wire_id, name, piece)
        call.wire_id = call.wire_id or wire_id
        call.name = call.name or name
        call.extra.update({key: value for key, value in fragment.items() if key not in _KNOWN_IN_CALL})
        self._grow(piece)
        if text := call.arguments.add(piece):
            self._emit(ArgumentsPiece(call.place, call.name, text))

    def _call_of(self, index: object, wire_id: str, name: str, piece: str) -> _Call:
        """The call that a fragment belongs to, which may be a new one.

        A fragment goes on with the call of its index, or without an index with the call of its id, else with the
        last call; it begins a new one where there is none, or where it has a name and cannot be a continuation:
        another id, or more text after arguments that are complete.
        """
        if isinstance(index, int):
            found = self._by_index.get(index)
        else:
            same_id = (each for each in reversed(self._calls) if wire_id and each.wire_id == wire_id)
            found = next(same_id, self._calls[-1] if self._calls else None)
        begins = found is None
        if found is not None and name and found.name:
            other_id = bool(wire_id and found.wire_id and wire_id != found.wire_id)
            begins = other_id or (bool(piece or name != found.name) and found.is_complete())
        if found is None or begins:
            found = _Call(len(self._calls))
            self._calls.append(found)
            self._size_bytes += _CALL_OVERHEAD_BYTES
        if isinstance(index, int):
            self._by_index[index] = found
        return found

    def _grow(self, piece: str) -> None:
        self._size_bytes += len(piece) if piece.isascii() else len(piece.encode("utf-8", "surrogatepass"))
        if self._size_bytes > self._limit_bytes:
            raise self._errors.too_large(self._limit_bytes)

    def finish(self) -> ModelReply:
        """The whole reply. Raises `ProviderUnavailable` where the stream ended before the reply did."""
        if self._finish_reason == "error":
            raise self._errors.unavailable("gave up on its reply")
        if not self._finish_reason and not (self.done and all(call.is_complete() for call in self._calls)):
            raise self._errors.unavailable("ended the stream before the reply was whole")
        calls = tuple(
            ToolCall(name=call.name, arguments=self._arguments(call), provider_call_id=call.wire_id)
            for call in self._calls
        )
        vendor_data = None
        if any(call.extra for call in self._calls):
            vendor_data = {self._errors.vendor: {"tool_calls": [call.extra or None for call in self._calls]}}
        return ModelReply(
            message=AssistantMessage(
                text=self._text.whole(), tool_calls=calls, reasoning=self._reasoning.whole(), vendor_data=vendor_data
            ),
            finish_reason=_FINISH_REASONS.get(self._finish_reason, "other"),
            vendor_finish_reason=self._finish_reason,
            usage=_usage(self._usage),
            vendor=self._errors.vendor,
            model=self._model,
        )

    def _arguments(self, call: _Call) -> str:
        # Empty text is how many servers send a call without arguments. Where the reply was cut off by its token
        # limit it may be the start of anything, so it stays empty, which is no JSON, and the call does not run.
        text = call.arguments.whole()
        return text if text.strip() or self._finish_reason == _CUT_OFF else "{}"


def _loads(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data)  # takes half a surrogate pair, which a chunk may end with


def _start(data: bytes) -> str:
    return repr(data[:80].decode("utf-8", "replace"))


def _object(value: object) -> Mapping[str, Any]:
    """`value` if it is an object, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _objects(value: object) -> list[Mapping[str, Any]]:
    """The objects in a list; nothing for what is no list."""
    if not isinstance(value, list):
        return []
    return [found for each in cast("list[object]", value) if (found := _object(each))]


def _usage(wire: Mapping[str, Any]) -> Usage:
    def count(fields: object, name: str) -> int:
        value = _object(fields).get(name)
        return value if isinstance(value, int) and value > 0 else 0

    return Usage(
        input_tokens=count(wire, "prompt_tokens"),
        output_tokens=count(wire, "completion_tokens"),
        cached_tokens=count(wire.get("prompt_tokens_details"), "cached_tokens"),
        reasoning_tokens=count(wire.get("completion_tokens_details"), "reasoning_tokens"),
    )
