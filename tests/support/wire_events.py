"""Streams written by hand for each of the four wire formats: frames, and the builders of replies that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import orjson

from support.watchdog import ATTEMPTS, MAX_SECONDS, cpu_seconds
from toolbus.protocols import Delta, ModelReply
from toolbus.providers.anthropic._errors import AnthropicErrors
from toolbus.providers.anthropic._stream import MessageBuilder
from toolbus.providers.ollama._errors import OllamaErrors
from toolbus.providers.ollama._stream import ReplyBuilder as OllamaBuilder
from toolbus.providers.openai._chat_stream import ReplyBuilder as ChatBuilder
from toolbus.providers.openai._errors import OpenAIErrors, ResponsesErrors
from toolbus.providers.openai._responses_stream import ResponseBuilder

MIB = 2**20
Frame = dict[str, Any]

BUILDERS: dict[str, Callable[..., Any]] = {
    "openai": ChatBuilder,
    "responses": ResponseBuilder,
    "anthropic": MessageBuilder,
    "ollama": OllamaBuilder,
}
ERRORS = {
    "openai": OpenAIErrors(vendor="openai", where="http://stub/v1", hint="look"),
    "responses": ResponsesErrors(vendor="openai", where="http://stub/v1", hint="look"),
    "anthropic": AnthropicErrors(vendor="anthropic", where="http://stub", hint="look"),
    "ollama": OllamaErrors(model="m", where="http://stub", hint="look"),
}


def builder(wire: str, deltas: list[Delta] | None = None, *, limit_bytes: int = 8 * MIB) -> Any:
    """The builder of replies for a wire format."""
    seen: list[Delta] = [] if deltas is None else deltas
    return BUILDERS[wire](model="m", emit=seen.append, limit_bytes=limit_bytes, errors=ERRORS[wire])


def feed(reply: Any, frames: Iterable[Frame | bytes]) -> None:
    """Give a builder events: objects, or their bytes."""
    for frame in frames:
        data = frame if isinstance(frame, bytes) else orjson.dumps(frame)
        name = "" if isinstance(frame, bytes) else str(frame.get("type") or "")
        reply.feed(name, data)


def read(wire: str, frames: Iterable[Frame | bytes], deltas: list[Delta] | None = None) -> ModelReply:
    """Read the reply from a stream."""
    reply = builder(wire, deltas)
    feed(reply, frames)
    return reply.finish()


def holds_the_loop(prepare: Callable[[], Callable[[], object]]) -> bool:
    """Return whether the work from `prepare` takes too long in each of its attempts."""
    return all(cpu_seconds(prepare(), attempts=1) >= MAX_SECONDS for _ in range(ATTEMPTS))


# ------------------------------------------------------------------------------------------------ chat completions


def chat(*calls: Frame, finish_reason: str | None = None, **delta: Any) -> Frame:
    """A chunk with calls, or with other fields of a delta."""
    found = {**delta, **({"tool_calls": list(calls)} if calls else {})}
    return {"choices": [{"index": 0, "delta": found, "finish_reason": finish_reason}]}


def chat_call(index: int, name: str = "f", arguments: str = "{}", **more: Any) -> Frame:
    """A chunk with a whole call."""
    return {"index": index, "id": f"call_{index}", "function": {"name": name, "arguments": arguments}, **more}


# ------------------------------------------------------------------------------------------------ Responses


def item(place: int, fields: Frame, *, kind: str = "done") -> Frame:
    """The event at the beginning (`added`) or the end of an item."""
    return {"type": f"response.output_item.{kind}", "output_index": place, "item": fields}


def function_call(number: int, name: str = "f", arguments: str = "{}") -> Frame:
    """An item that calls a function."""
    return {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": f"call_{number}",
        "name": name,
        "arguments": arguments,
    }


def completed(*output: Frame) -> Frame:
    """The last event, which repeats the output."""
    return {"type": "response.completed", "response": {"status": "completed", "output": list(output)}}


# ------------------------------------------------------------------------------------------------ Anthropic


def start(message_id: str = "msg_1", *content: Frame) -> Frame:
    """The beginning of a message."""
    return {"type": "message_start", "message": {"id": message_id, "model": "claude-9", "content": list(content)}}


def begin(index: int, fields: Frame) -> Frame:
    """The beginning of a block."""
    return {"type": "content_block_start", "index": index, "content_block": fields}


def piece(index: int, kind: str, text: str) -> Frame:
    """A piece of a block: `text`, `thinking` or `input_json`."""
    field = {"input_json": "partial_json"}.get(kind, kind)
    return {"type": "content_block_delta", "index": index, "delta": {"type": f"{kind}_delta", field: text}}


def stop(index: int) -> Frame:
    """The end of a block."""
    return {"type": "content_block_stop", "index": index}


def use(wire_id: str = "toolu_1", name: str = "f", **arguments: Any) -> Frame:
    """A block that calls a tool."""
    return {"type": "tool_use", "id": wire_id, "name": name, "input": arguments}


def end(reason: str | None = "end_turn") -> list[Frame]:
    """The end of a message."""
    return [{"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {}}, {"type": "message_stop"}]
