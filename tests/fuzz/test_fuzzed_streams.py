"""Streams whose events come in any order, twice, at the wrong index, or cut: read as a reply, or refused in words.

Frames in a random order are rarely a reply: with Responses, 10 of 400 were one, and none had a text. So half of the
streams are whole ones in which a few frames were put in, taken out, doubled or moved.
"""

from __future__ import annotations

from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.wire_events import (
    Frame,
    begin,
    builder,
    chat,
    completed,
    end,
    feed,
    function_call,
    item,
    piece,
    start,
    stop,
    use,
)
from toolbus.errors import ProviderError
from toolbus.protocols import ArgumentsPiece, Delta, ModelReply, TextPiece

INDEXES: list[Any] = [0, 1, 2, None, "x"]
ARGUMENTS: list[Any] = ["{", "}", "{}", '{"a":', "1}", '"', "\\", '\\"', "", None, {"x": 1}, "[", " "]
TEXT: Frame = {"type": "text", "text": ""}


def chat_frames() -> list[Any]:
    functions = [{"index": index, "function": {"arguments": each}} for index in INDEXES for each in ARGUMENTS]
    named = [
        {"index": index, "id": wire_id, "function": {"name": name, "arguments": "{}"}}
        for index in INDEXES
        for wire_id in ("a", "b", "", None)
        for name in ("f", "g", "", None)
    ]
    return [
        *(chat(each) for each in [*functions, *named]),
        chat({"index": 0, "type": "custom", "custom": {}}),
        chat({"index": 0, "extra_content": {"signature": "s"}}),
        *(chat(content=each) for each in ("hi", "東", None, [{"text": "x"}], 3)),
        *(chat(finish_reason=each) for each in ("stop", "tool_calls", "length", "error")),
        {"choices": None},
        {"error": {"code": "tool_use_failed", "failed_generation": "<function=f{}"}},
        [],
    ]


def response_frames() -> list[Any]:
    items: list[Any] = [
        *(function_call(number, arguments=each) for number in (0, 1) for each in ARGUMENTS),
        *(
            {"type": "message", "id": wire_id, "role": "assistant", "content": content}
            for wire_id in ("m", None, 3)
            for content in (
                "hi",
                None,
                [],
                [{"type": "output_text", "text": "hi"}],
                [{"type": "refusal", "refusal": "no"}],
            )
        ),
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "t"}]},
        {"type": "custom_tool_call", "call_id": "z"},
        {"type": "shell_call_output", "call_id": "z"},
        {"type": None},
        {},
    ]
    kinds = ("response.output_text", "response.function_call_arguments", "response.reasoning_summary_text")
    return [
        *(item(index, each, kind=kind) for index in INDEXES for each in items for kind in ("added", "done")),
        *(
            {"type": f"{kind}.{end}", "output_index": index, "content_index": 0, "delta": text, "text": text}
            for kind in kinds
            for end in ("delta", "done")
            for index in INDEXES
            for text in ("a", "abc", "{}", None)
        ),
        *(
            {"type": f"response.{status}", "response": {"status": status, "output": output}}
            for status in ("completed", "incomplete", "failed")
            for output in ([], items[:1], items[-4:], [items[0], items[0]], items[5:9])
        ),
    ]


def message_frames() -> list[Any]:
    blocks: list[Frame] = [
        use(),
        use("t2", "g", a=1),
        TEXT,
        {"type": "thinking", "thinking": ""},
        {"type": "x", "y": "z"},
    ]
    odd: list[Frame] = [{"type": "server_tool_use", "id": "s", "name": "w"}, {}, {"type": "tool_use"}]
    deltas: list[Frame] = [
        {"type": "citations_delta", "citation": {"a": 1}},
        {"type": "signature_delta", "signature": "s"},
        {"type": "new_delta", "y": "q"},
        {"type": "new_delta", "y": 3},
        {},
    ]
    return [
        *(start(wire_id, *content) for wire_id in ("m1", "m2", "") for content in ([], [TEXT], [use(), use("t2")])),
        *(begin(index, each) for index in INDEXES for each in [*blocks, *odd]),
        *(piece(index, "text", "a") for index in INDEXES),
        *(piece(index, "thinking", "t") for index in INDEXES),
        *(piece(index, "input_json", each) for index in INDEXES for each in ("", "{", "}", "{}")),
        *({"type": "content_block_delta", "index": index, "delta": each} for index in INDEXES for each in deltas),
        *(stop(index) for index in INDEXES),
        *(
            frame
            for reason in ("tool_use", "end_turn", "max_tokens", "refusal", "pause_turn", None)
            for frame in end(reason)
        ),
        {"type": "ping"},
    ]


def line_frames() -> list[Any]:
    calls = [{"function": {"name": name, "arguments": each}} for name in ("f", None) for each in ARGUMENTS]
    return [
        *({"message": {"tool_calls": [each]}} for each in calls),
        *({"message": each} for each in (None, 3, {"content": "a"}, {"thinking": "t"})),
        *({"done": True, "done_reason": each} for each in ("stop", "length", None)),
    ]


FRAMES = {
    "openai": chat_frames(),
    "responses": response_frames(),
    "anthropic": message_frames(),
    "ollama": line_frames(),
}


def whole_streams(wire: str) -> list[list[Any]]:
    """Streams as the vendors send them: texts, reasoning and calls in pieces."""
    if wire == "openai":
        named = [{"index": at, "id": f"c{at}", "function": {"name": "f", "arguments": '{"a"'}} for at in (0, 1)]
        rest = [{"index": at, "function": {"arguments": ":1}"}} for at in (0, 1)]
        return [
            [chat(content="a"), chat(content="b"), chat(finish_reason="stop")],
            [chat(content="a"), *(chat(each) for each in [*named, *rest]), chat(finish_reason="tool_calls")],
            [chat(reasoning_content="t"), chat(named[0], named[1]), chat(rest[1], rest[0]), chat(finish_reason="stop")],
        ]
    if wire == "responses":
        text: Frame = {"type": "output_text", "text": "ab"}
        message: Frame = {"type": "message", "id": "m", "role": "assistant", "content": [text]}
        call = function_call(0, arguments='{"a":1}')
        thought: Frame = {"type": "reasoning", "id": "r", "summary": []}
        said = [
            {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": each}
            for each in "ab"
        ]
        written = [
            {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": each}
            for each in ('{"a"', ":1}")
        ]
        begun = [item(0, {**message, "content": []}, kind="added"), *said, item(0, message)]
        called = [item(1, function_call(0, arguments=""), kind="added"), *written, item(1, call)]
        return [
            [*begun, completed(message)],
            [*begun, *called, completed(message, call)],
            [item(0, thought, kind="added"), item(0, thought), *called, completed(thought, call)],
        ]
    if wire == "anthropic":
        said = [begin(0, TEXT), piece(0, "text", "a"), piece(0, "text", "b"), stop(0)]
        called = [begin(1, use()), piece(1, "input_json", '{"a"'), piece(1, "input_json", ":1}"), stop(1)]
        reasons = [begin(0, {"type": "thinking", "thinking": ""}), piece(0, "thinking", "t"), stop(0)]
        return [
            [start(), *said, *end("end_turn")],
            [start(), *said, *called, *end("tool_use")],
            [start(), *reasons, *called, begin(2, use("t2", "g", a=1)), stop(2), *end("tool_use")],
        ]
    said = [{"message": {"content": each}} for each in "ab"]
    called = [{"message": {"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}}]
    done = [{"done": True, "done_reason": "stop"}]
    return [[*said, *done], [*said, *called, *done], [{"message": {"thinking": "t"}}, *called, *called, *done]]


WHOLE = {wire: whole_streams(wire) for wire in FRAMES}


@st.composite
def streams(draw: st.DrawFn, wire: str) -> list[Any]:
    """Frames in any order, or a whole stream with a few frames put in, taken out, doubled or moved."""
    frames = st.sampled_from(FRAMES[wire])
    if draw(st.booleans()):
        return draw(st.lists(frames, max_size=14))
    found = list(draw(st.sampled_from(WHOLE[wire])))
    for _ in range(draw(st.integers(0, 3))):
        at, until = draw(st.integers(0, len(found))), draw(st.integers(0, len(found)))
        match draw(st.sampled_from(["put", "take", "double", "move"])):
            case "take":
                del found[at : at + 1]
            case "double":
                found[until:until] = found[at : at + 1]
            case "move" if at < len(found):
                found.insert(until, found.pop(at))
            case _:
                found.insert(at, draw(frames))
    return found


def attempted(wire: str, frames: list[Any], deltas: list[Delta]) -> ModelReply | None:
    """The reply, or None where it is refused in words."""
    reply = builder(wire, deltas)
    try:
        feed(reply, [cast("Frame", each) if isinstance(each, dict) else orjson.dumps(each) for each in frames])
        return reply.finish()
    except ProviderError:
        return None


@pytest.mark.parametrize("wire", FRAMES)
@given(data=st.data())
def test_events_in_any_order_are_read_or_refused_in_words(wire: str, data: st.DataObject) -> None:
    frames = data.draw(streams(wire))
    deltas: list[Delta] = []
    reply = attempted(wire, frames, deltas)
    if reply is None:
        return
    reported = "".join(each.text for each in deltas if isinstance(each, TextPiece))
    if wire in {"openai", "ollama"}:
        assert reported == reply.message.text
    elif wire == "anthropic" and reply.finish_reason != "refusal":  # blocks may be interleaved
        assert sorted(reported) == sorted(reply.message.text)
    for place, call in enumerate(reply.message.tool_calls):
        pieces = [each.text for each in deltas if isinstance(each, ArgumentsPiece) and each.index == place]
        if pieces and wire in {"openai", "anthropic"}:
            assert "".join(pieces) == call.arguments
    orjson.dumps(reply.message.vendor_data)


@pytest.mark.parametrize("wire", FRAMES)
def test_whole_streams_are_read(wire: str) -> None:
    for frames in WHOLE[wire]:
        reply = attempted(wire, frames, [])
        assert reply is not None
        assert reply.message.text == "ab" or [call.name for call in reply.message.tool_calls][:1] == ["f"]
