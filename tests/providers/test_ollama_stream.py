"""What lines of a native chat are read as, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus.errors import ContextOverflow, ProviderUnavailable, ReplyTooLarge
from toolbus.messages import ToolCall, Usage
from toolbus.protocols import ArgumentsPiece, Delta, ModelReply, ReasoningPiece, TextPiece
from toolbus.providers._shared.stream_events import JsonLines
from toolbus.providers.ollama._errors import OllamaErrors
from toolbus.providers.ollama._stream import ReplyBuilder

ERRORS = OllamaErrors(model="m", where="http://stub", hint="look")
LAST: dict[str, Any] = {
    "model": "m:latest",
    "message": {"role": "assistant", "content": ""},
    "done": True,
    "done_reason": "stop",
    "prompt_eval_count": 20,
    "eval_count": 10,
}


def line(**message: Any) -> dict[str, Any]:
    return {"model": "m:latest", "message": {"role": "assistant", "content": "", **message}, "done": False}


def call(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    return {**more, "function": {"name": name, "arguments": arguments}}


def read(*lines: Any, limit_bytes: int = 1000, deltas: list[Delta] | None = None) -> ModelReply:
    seen: list[Delta] = [] if deltas is None else deltas
    builder = ReplyBuilder(model="m", emit=seen.append, limit_bytes=limit_bytes, errors=ERRORS)
    for each in lines:
        builder.feed("", each if isinstance(each, bytes) else json.dumps(each).encode())
    return builder.finish()


# ------------------------------------------------------------------------------------- what a reply holds


def test_reasoning_text_and_usage_are_read_and_emitted_piece_by_piece() -> None:
    deltas: list[Delta] = []
    pieces = [line(thinking="H"), line(thinking="m."), line(content="Sun"), line(content="ny.")]
    reply = read(*pieces, LAST, deltas=deltas)
    assert (reply.message.reasoning, reply.message.text) == ("Hm.", "Sunny.")
    assert deltas == [ReasoningPiece("H"), ReasoningPiece("m."), TextPiece("Sun"), TextPiece("ny.")]
    assert reply.usage == Usage(input_tokens=20, output_tokens=10)
    assert (reply.vendor, reply.model) == ("ollama", "m:latest")


@pytest.mark.parametrize("together", [True, False])
def test_calls_are_read_whether_they_come_in_one_line_or_in_several(together: bool) -> None:
    calls = [call("a", {"x": 1}), call("a", {}), call("b", {"y": [None, "é"]})]
    lines = [line(tool_calls=calls)] if together else [line(tool_calls=[each]) for each in calls]
    deltas: list[Delta] = []
    reply = read(*lines, LAST, deltas=deltas)
    expected = [("a", '{"x":1}'), ("a", "{}"), ("b", '{"y":[null,"é"]}')]
    assert [(each.name, each.arguments) for each in reply.message.tool_calls] == [
        (name, "" if text == "{}" else text) for name, text in expected
    ]
    assert deltas == [ArgumentsPiece(place, name, text) for place, (name, text) in enumerate(expected)]
    assert {each.call_id + each.provider_call_id for each in reply.message.tool_calls} == {""}


@pytest.mark.parametrize(
    ("wire", "read_as"),
    [
        (call("f", {}, id="call_x"), ToolCall(name="f", arguments="", provider_call_id="call_x")),
        (call("f", None), ToolCall(name="f", arguments="")),
        ({"function": {"name": "f"}}, ToolCall(name="f", arguments="")),
        (call("f", '{"x": 1}'), ToolCall(name="f", arguments='{"x": 1}')),
        (call("f", '{"x": '), ToolCall(name="f", arguments='{"x": ')),
        (call("f", [1]), ToolCall(name="f", arguments="[1]")),
        (call("f", {"n": 12345678901234567890123}), ToolCall(name="f", arguments='{"n": 12345678901234567890123}')),
        (call("f", {"s": "\ud83d"}), ToolCall(name="f", arguments='{"s": "\\ud83d"}')),
        ({"function": {"arguments": {}}}, ToolCall(name="", arguments="")),
        ({"nonsense": 1}, ToolCall(name="", arguments="")),
    ],
)
def test_a_calls_arguments_are_what_the_model_meant(wire: dict[str, Any], read_as: ToolCall) -> None:
    assert read(line(tool_calls=[wire]), LAST).message.tool_calls == (read_as,)


@pytest.mark.parametrize(
    ("said", "calls", "finish_reason"),
    [
        ("stop", False, "stop"),
        ("stop", True, "tool_calls"),
        ("length", False, "length"),
        ("length", True, "length"),
        ("load", False, "other"),
        ("", False, ""),
        (None, True, ""),
    ],
)
def test_why_a_reply_ended(said: str | None, calls: bool, finish_reason: str) -> None:
    lines = [line(tool_calls=[call("f", {})])] if calls else []
    reply = read(*lines, {**LAST, "done_reason": said})
    assert (reply.finish_reason, reply.vendor_finish_reason) == (finish_reason, said or "")


@pytest.mark.parametrize("count", [None, -1, "3", 0])
def test_counts_that_are_not_told_are_zero(count: Any) -> None:
    assert read({**LAST, "prompt_eval_count": count}).usage == Usage(output_tokens=10)
    assert read({"done": True}).usage == Usage()


def test_what_comes_after_the_reply_is_not_read() -> None:
    assert read(line(content="a"), LAST, line(content="b"), b"garbage").message.text == "a"


def test_fields_of_wrong_kinds_are_nothing() -> None:
    odd = {"message": {"content": 3, "thinking": ["x"], "tool_calls": "f"}, "model": 4}
    reply = read(odd, {"message": None}, LAST)
    assert (reply.message.text, reply.message.reasoning, reply.message.tool_calls) == ("", "", ())


@given(st.text(), st.text(), st.data())
def test_text_comes_back_however_the_stream_is_cut(text: str, thinking: str, data: st.DataObject) -> None:
    """Escaped or not: characters that other readers of lines take for line breaks as well."""
    ascii_only = data.draw(st.booleans())
    sent = b"".join(
        json.dumps(each, ensure_ascii=ascii_only).encode() + b"\n"
        for each in (line(thinking=thinking), line(content=text), LAST)
    )
    lines = JsonLines(10_000, ERRORS)
    builder = ReplyBuilder(model="m", emit=lambda _: None, limit_bytes=10_000, errors=ERRORS)
    size = data.draw(st.integers(1, len(sent)))
    for start in range(0, len(sent), size):
        for event, each in lines.feed(sent[start : start + size]):
            builder.feed(event, each)
    message = builder.finish().message
    assert (message.text, message.reasoning) == (text, thinking)


# ------------------------------------------------------------------------------------------------ faults


@pytest.mark.guarantee("G28")
@pytest.mark.parametrize("lines", [[], [line(content="hi")], [line(tool_calls=[call("f", {})])]])
def test_a_stream_without_its_last_line_is_no_reply(lines: list[Any]) -> None:
    with pytest.raises(ProviderUnavailable, match="ended the stream before the reply was whole") as caught:
        read(*lines)
    assert caught.value.retryable


@pytest.mark.parametrize("garbage", [b"\xff\xfe{]", b"[1]", b"null", b'"text"', b'{"message":', b"<html>"])
def test_a_line_that_is_no_object_is_an_error_that_quotes_its_start(garbage: bytes) -> None:
    with pytest.raises(ProviderUnavailable, match="sent a line that is not a JSON object: ") as caught:
        read(line(content="hi"), garbage + b"x" * 500, LAST)
    assert caught.value.retryable
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("number", ["1", "1" * 25], ids=["a short number", "a long number"])
@pytest.mark.parametrize("levels", [600, 1_010, 5_000, 90_000])
def test_a_line_that_is_nested_too_deeply_is_an_error_whatever_this_python_can_read(levels: int, number: str) -> None:
    arguments = '{"a": ' + "[" * levels + number + "]" * levels + "}"
    deep = '{"message": {"tool_calls": [{"function": {"name": "f", "arguments": ' + arguments + "}}]}}"
    with pytest.raises(ProviderUnavailable, match="sent a line that is not a JSON object: "):
        read(deep.encode(), LAST)


def test_an_error_in_the_middle_of_a_stream_is_raised() -> None:
    with pytest.raises(ProviderUnavailable, match="ollama broke its reply off: runner crashed") as caught:
        read(line(content="hi"), {"error": "runner crashed"}, LAST)
    assert caught.value.retryable


def test_a_runner_that_crashed_is_asked_again_and_no_error_of_another_request_in_its_log_is_shown() -> None:
    crashed = {
        "error": "an error was encountered while running the model: error: task id = 2, error: request (5010 tokens) "
        "exceeds the available context size (4096 tokens), try increasing it"
    }
    with pytest.raises(ProviderUnavailable) as caught:
        read(line(content=" often"), crashed)
    for error in (caught.value, ERRORS.status(500, {}, crashed)):
        assert (type(error), error.retryable) == (ProviderUnavailable, True)
        assert str(error).endswith("running the model; the log of the Ollama server has the reason")


@pytest.mark.parametrize(
    ("words", "limit_tokens"),
    [
        ("the input length exceeds the context length", None),
        ("request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it", 4096),
        ("the prompt is longer than the context length currently available to the model; shorten it", None),
        ("prompt too long; exceeded max context length by 1809 tokens", None),
    ],
)
def test_a_context_that_is_too_long_is_known_by_the_servers_words(words: str, limit_tokens: int | None) -> None:
    with pytest.raises(ContextOverflow) as caught:
        read({"error": words})
    assert caught.value.limit_tokens == limit_tokens
    for status in (400, 500):
        error = ERRORS.status(status, {}, {"error": words})
        assert isinstance(error, ContextOverflow)
        assert (error.status, error.limit_tokens) == (status, limit_tokens)


@pytest.mark.parametrize(
    "grow", [line(content="é" * 10), line(thinking="x" * 20), line(tool_calls=[call("", {})] * 3), line(content="x")]
)
def test_all_that_a_reply_holds_counts_for_its_size(grow: dict[str, Any]) -> None:
    with pytest.raises(ReplyTooLarge):
        read(*[grow] * 200, LAST, limit_bytes=150)
    if "tool_calls" not in grow["message"]:
        read(*[grow] * 7, LAST, limit_bytes=150)


@pytest.mark.parametrize(
    ("counts", "usage"),
    [
        ({"prompt_eval_count": 948, "prompt_eval_cached_count": 900}, Usage(input_tokens=948, cached_tokens=900)),
        ({"prompt_eval_count": 948, "prompt_eval_cached_count": 0}, Usage(input_tokens=948)),
        ({"prompt_eval_count": 48, "prompt_eval_cached_count": 900}, Usage(input_tokens=900, cached_tokens=900)),
        ({"prompt_eval_count": 48, "prompt_eval_cached_count": None}, Usage(input_tokens=48)),
    ],
)
def test_tokens_of_the_prompt_that_were_in_the_cache_are_counted_among_it(counts: dict[str, Any], usage: Usage) -> None:
    assert read({"message": {"content": "hi"}, "done": True, "done_reason": "stop", **counts}).usage == usage
