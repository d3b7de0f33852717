"""Values of any kind anywhere in a provider's events: the reply is read, or refused with an error of the provider."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, cast

import orjson
import pytest

from support.wire_events import Frame, builder, completed
from toolbus.errors import ProviderError

ODD: list[Any] = [{}, {"type": {}}, [], [[]], [None], {"text": []}, {"message": []}, -1, 2**70, 1.5, None, "", True]
FRAMES: dict[str, list[Frame]] = {
    "openai": [
        {
            "id": "x",
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "delta": {
                        "content": "a",
                        "reasoning_content": "b",
                        "reasoning_details": [{"type": "x", "text": "a"}],
                        "tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}],
                    },
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}},
            "error": None,
        }
    ],
    "responses": [
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": {"type": "reasoning", "summary": [{"text": "x"}]},
        },
        completed({"type": "message", "content": [{"type": "output_text", "text": "x"}]}, {"type": "custom_tool_call"}),
        {"type": "response.failed", "response": {"status": "failed", "error": {"code": "x", "message": "y"}}},
    ],
    "anthropic": [
        {"type": "message_start", "message": {"id": "x", "model": "m", "content": [], "usage": {"input_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "name": "y", "input": {}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "citations": [{"a": 1}]}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "error", "error": {"type": "x", "message": "y"}},
    ],
    "ollama": [
        {
            "model": "m",
            "message": {"content": "x", "thinking": "y", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
            "done": True,
            "prompt_eval_count": 1,
        }
    ],
}


def ways(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all values inside of a value."""
    inside: Any = ()
    if isinstance(value, dict):
        inside = cast("Frame", value).items()
    elif isinstance(value, list):
        inside = enumerate(cast("list[Any]", value))
    for key, each in inside:
        yield (*way, key)
        yield from ways(each, (*way, key))


def with_value(frame: Frame, way: tuple[Any, ...], value: Any) -> bytes:
    changed: Any = copy.deepcopy(frame)
    holder = changed
    for step in way[:-1]:
        holder = holder[step]
    holder[way[-1]] = "@odd@" if isinstance(value, int) else value
    return orjson.dumps(changed).replace(b'"@odd@"', str(value).lower().encode())


@pytest.mark.parametrize("wire", FRAMES)
def test_a_value_of_another_kind_anywhere_in_an_event_raises_an_error_of_the_provider_or_none(wire: str):
    for frame in FRAMES[wire]:
        for way in ways(frame):
            for value in ODD:
                reply = builder(wire)
                with contextlib.suppress(ProviderError):
                    reply.feed(str(frame.get("type") or ""), with_value(frame, way, value))
                    reply.finish()
