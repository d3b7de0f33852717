from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.openai_server import Reply, calls, chunk, text
from toolbus.errors import ContextOverflow, ProviderError, ProviderRejected, ProviderUnavailable, ReplyTooLarge
from toolbus.messages import Usage, to_openai
from toolbus.protocols import ArgumentsPiece, Delta, ModelReply, ReasoningPiece, TextPiece
from toolbus.providers._shared.stream_events import EventLines, JsonLines
from toolbus.providers.openai._chat_stream import ReplyBuilder
from toolbus.providers.openai._errors import OpenAIErrors

ERRORS = OpenAIErrors(vendor="stub", where="http://stub/v1", hint="look")


def read(reply: Reply, *, limit_bytes: int = 1000, deltas: list[Delta] | None = None) -> ModelReply:
    """The reply as the provider would read it."""
    seen: list[Delta] = [] if deltas is None else deltas
    builder = ReplyBuilder(model="asked-for", emit=seen.append, limit_bytes=limit_bytes, errors=ERRORS)
    for each in reply.chunks:
        builder.feed("", (each if isinstance(each, str) else json.dumps(each)).encode())
    if reply.ending == "done":
        builder.feed("", b"[DONE]")
    return builder.finish()


def fragments(*parts: dict[str, Any], finish_reason: str = "tool_calls") -> Reply:
    return Reply(chunks=[*(chunk({"tool_calls": [each]}) for each in parts), chunk(finish_reason=finish_reason)])


def fragment(arguments: Any = "", name: str | None = None, **place: Any) -> dict[str, Any]:
    return {**place, "function": {"arguments": arguments, **({} if name is None else {"name": name})}}


def called(reply: ModelReply) -> list[tuple[str, str, str]]:
    return [(each.provider_call_id, each.name, each.arguments) for each in reply.message.tool_calls]


# ------------------------------------------------------------------------------------------------- calls


@pytest.mark.parametrize("size", [1, 3, 100])
def test_arguments_split_anywhere_are_put_together(size: int) -> None:
    deltas: list[Delta] = []
    reply = read(calls(("a", {"city": "Paris"}), ("b", {"n": [1, 2]}), content="Look:", size=size), deltas=deltas)
    assert called(reply) == [("call_0", "a", '{"city": "Paris"}'), ("call_1", "b", '{"n": [1, 2]}')]
    assert reply.message.text == "Look:"
    assert (reply.finish_reason, reply.vendor, reply.model) == ("tool_calls", "stub", "test-model-2026")
    assert reply.usage == Usage(input_tokens=20, output_tokens=10, cached_tokens=5, reasoning_tokens=3)
    for index, (_, name, arguments) in enumerate(called(reply)):
        pieces = [each for each in deltas if isinstance(each, ArgumentsPiece) and each.index == index]
        assert "".join(each.text for each in pieces) == arguments
        assert {each.name for each in pieces} == {name}


@pytest.mark.parametrize("ids", [["x", "x"], ["", ""], [None, None], ["x", "y"], ["", "y"]])
@pytest.mark.parametrize("index", ["count", "zero", "none"])
def test_calls_that_arrive_whole_are_told_apart_whatever_their_ids_and_indices(index: Any, ids: list[Any]) -> None:
    reply = read(calls(("a", {"n": 1}), ("a", {"n": 2}), whole=True, ids=ids, index=index))
    assert called(reply) == [(ids[0] or "", "a", '{"n": 1}'), (ids[1] or "", "a", '{"n": 2}')]


@pytest.mark.parametrize("ids", [["x", "x"], ["", ""], [None, None], ["x", "y"]])
@pytest.mark.parametrize("index", ["count", "none"])
def test_split_calls_are_told_apart_by_index_or_by_being_complete(index: Any, ids: list[Any]) -> None:
    reply = read(calls(("a", {"n": 1}), ("b", {"n": 2}), ids=ids, index=index))
    assert called(reply) == [(ids[0] or "", "a", '{"n": 1}'), (ids[1] or "", "b", '{"n": 2}')]


def test_interleaved_calls_follow_their_index_or_their_id() -> None:
    by_index = fragments(
        fragment("", "a", index=0),
        fragment("", "b", index=1),
        fragment('{"x":', index=0),
        fragment('{"y":', index=1),
        fragment("1}", index=0),
        fragment("2}", index=1),
    )
    by_id = fragments(
        fragment("", "a", id="p"),
        fragment("", "b", id="q"),
        fragment('{"x":', id="p"),
        fragment('{"y":', id="q"),
        fragment("1}", id="p"),
        fragment("2}", id="q"),
    )
    assert called(read(by_index)) == [("", "a", '{"x":1}'), ("", "b", '{"y":2}')]
    assert called(read(by_id)) == [("p", "a", '{"x":1}'), ("q", "b", '{"y":2}')]


def test_a_name_that_every_chunk_repeats_is_one_call() -> None:
    for place in ({"index": 0}, {"id": "x"}, {}):
        reply = read(fragments(*(fragment(each, "a", **place) for each in ("", '{"n":', "1}", ""))))
        assert called(reply) == [(place.get("id", ""), "a", '{"n":1}')]


def test_an_id_that_every_chunk_changes_is_one_call() -> None:
    reply = read(
        fragments(fragment("", "a", id="1"), fragment('{"n":', id="2"), fragment("1}", id="3"), finish_reason="stop")
    )
    assert called(reply) == [("1", "a", '{"n":1}')]


@pytest.mark.parametrize("repeat", ['{"n":1}', json.dumps('{"n":1}')])
@pytest.mark.parametrize("named", [True, False])
def test_arguments_that_come_once_more_when_they_are_whole_are_one_call(repeat: str, named: bool) -> None:
    """Gateways sum a call up at the end of their stream, LiteLLM's with its arguments as a JSON text."""
    pieces = [fragment("", "a", id="x", index=0), fragment('{"n":', index=0), fragment("1}", index=0)]
    last = fragment(repeat, "a", id="x", index=0) if named else fragment(repeat, index=0)
    assert called(read(fragments(*pieces, last))) == [("x", "a", '{"n":1}')]


def test_an_empty_object_before_the_arguments_is_none_of_them() -> None:
    parts = [fragment("{}", "a", id="x", index=0), fragment('{"n":', index=0), fragment("1}", index=0)]
    assert called(read(fragments(*parts))) == [("x", "a", '{"n":1}')]
    assert called(read(fragments(parts[0], fragment("", index=0)))) == [("x", "a", "{}")]


def test_spaces_behind_an_empty_object_leave_it_whole() -> None:
    reply = fragments(fragment("{}", "f", id="x", index=0), fragment("\n", index=0), finish_reason="")
    assert called(read(reply)) == [("x", "f", "{}\n")]


def test_a_name_in_pieces_is_whole() -> None:
    for second in ("weather", "get_weather"):
        parts = [fragment("", "get_", id="x", index=0), fragment("", second, index=0), fragment("{}", index=0)]
        assert called(read(fragments(*parts))) == [("x", "get_weather", "{}")]


def test_usage_is_found_in_a_choice_and_its_cache_at_the_top() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "cached_tokens": 4}  # Kimi's
    last = chunk(finish_reason="stop")
    last["choices"][0]["usage"] = usage
    reply = read(Reply(chunks=[chunk({"content": "a"}), last]))
    assert reply.usage == Usage(input_tokens=5, output_tokens=2, cached_tokens=4)


def test_a_name_that_comes_late_is_taken() -> None:
    assert called(read(fragments(fragment("", index=0), fragment("{}", "a", index=0)))) == [("", "a", "{}")]


@pytest.mark.parametrize("arguments", ["", " ", None, {}])
def test_a_call_without_arguments_has_none_or_an_empty_object(arguments: Any) -> None:
    ((_, _, text),) = called(read(fragments(fragment(arguments, "a"))))
    assert text.strip() in {"", "{}"}


def test_arguments_may_be_an_object() -> None:
    assert called(read(fragments(fragment({"n": 1}, "a")))) == [("", "a", '{"n":1}')]


def test_arguments_that_the_token_limit_cut_off_are_never_an_empty_object() -> None:
    assert called(read(fragments(fragment("", "a"), finish_reason="length"))) == [("", "a", "")]
    assert called(read(fragments(fragment('{"n', "a"), finish_reason="length"))) == [("", "a", '{"n')]


def test_fields_of_the_vendor_are_kept_with_their_call() -> None:
    signed = fragment("{}", "b", index=1, extra_content={"google": {"thought_signature": "s"}})
    message = read(fragments(fragment("{}", "a", index=0), signed)).message
    assert message.vendor_data == {
        "stub": {"tool_calls": [None, {"extra_content": {"google": {"thought_signature": "s"}}}]}
    }


# -------------------------------------------------------------------------------------------------- text


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_read_under_either_name(field: str) -> None:
    deltas: list[Delta] = []
    both = {"reasoning": "hm", "reasoning_content": "hm"}
    reply = read(
        Reply(chunks=[chunk({field: "Let me "}), chunk(both), chunk({"content": "4"}, finish_reason="stop")]),
        deltas=deltas,
    )
    assert (reply.message.reasoning, reply.message.text) == ("Let me hm", "4")
    assert deltas == [ReasoningPiece("Let me "), ReasoningPiece("hm"), TextPiece("4")]


def test_reasoning_with_its_signatures_goes_back_to_the_model_that_signed_it() -> None:
    """OpenRouter refuses calls of Gemini 3 without them, and streams each entry in pieces."""
    pieces = [
        [{"type": "reasoning.text", "text": "I ", "index": 0, "format": "v1", "signature": None}],
        [{"type": "reasoning.text", "text": "look.", "index": 0}, {"type": "reasoning.text", "text": "So", "index": 1}],
        [{"type": "reasoning.text", "text": "", "index": 1, "signature": "s1"}],
        [{"type": "reasoning.encrypted", "data": "x", "id": "call_0", "index": 2}],
        [{"type": "reasoning.encrypted", "data": "y", "id": "call_1", "index": 2}],
        [{"type": "reasoning.summary", "summary": "Looked", "index": None}],
        [{"type": "reasoning.summary", "summary": " twice.", "index": None}],
    ]
    asked = calls(("f", {}))
    shown = [chunk({"reasoning_details": each}) for each in pieces]
    message = read(Reply(chunks=[*shown, *asked.chunks])).message
    assert message.reasoning == "I look.SoLooked twice."
    details = [
        {"type": "reasoning.text", "text": "I look.", "index": 0, "format": "v1", "signature": None},
        {"type": "reasoning.text", "text": "So", "index": 1, "signature": "s1"},
        *(entry for each in pieces[3:5] for entry in each),
        {"type": "reasoning.summary", "summary": "Looked twice.", "index": None},
    ]
    [own] = to_openai([message], vendor="stub", reasoning_field="reasoning", model="asked-for")
    assert own["reasoning_details"] == details
    assert "reasoning" not in own
    [other] = to_openai([message], vendor="stub", reasoning_field="reasoning", model="another")
    assert "reasoning_details" not in other
    assert other["reasoning"] == message.reasoning


def test_content_in_parts_and_refusals_are_text() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "4"}]
    reply = read(Reply(chunks=[chunk({"content": parts}), chunk({"refusal": " No."}, finish_reason="stop")]))
    assert (reply.message.reasoning, reply.message.text) == ("hm", "4 No.")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.integers(1, 4))
def test_text_cut_inside_a_character_is_whole_again(said: str, size: int) -> None:
    units = said.encode("utf-16-le")
    pieces = [units[at : at + 2 * size].decode("utf-16-le", "surrogatepass") for at in range(0, len(units), 2 * size)]
    deltas: list[Delta] = []
    reply = read(
        Reply(chunks=[*(chunk({"content": each}) for each in pieces), chunk(finish_reason="stop")]), deltas=deltas
    )
    assert reply.message.text == said
    assert "".join(each.text for each in deltas) == said
    assert all(each.text.encode() for each in deltas)


def test_half_a_character_is_a_mark() -> None:
    reply = read(Reply(chunks=[chunk({"content": "a\ude00b\ud83d"}, finish_reason="stop")]))
    assert reply.message.text == "a\ufffdb\ufffd"


def test_other_samples_and_odd_choices_are_left_out() -> None:
    other = {"index": 1, "delta": {"content": "other"}, "finish_reason": "stop"}
    chunks = [
        chunk({"content": "mine"}, finish_reason="stop"),
        chunk(choices=[other, {"index": 0, "delta": {"content": "!"}}]),
        chunk(choices=None),
        chunk(choices=["odd", {"index": None, "delta": None}]),
        chunk({"tool_calls": None, "content": 3}),
    ]
    reply = read(Reply(chunks=chunks))
    assert reply.message.text == "mine!"
    assert reply.message.tool_calls == ()


# ----------------------------------------------------------------------------------------- usage, the end


def test_a_reply_without_usage_counts_nothing() -> None:
    assert read(text("hi", usage=None)).usage == Usage()
    odd = {"prompt_tokens": None, "completion_tokens": "9", "prompt_tokens_details": None}
    assert read(text("hi", usage=odd)).usage == Usage()


@pytest.mark.parametrize("details", [None, {"cached_tokens": 0}, {"cached_tokens": 4}])
def test_tokens_from_the_cache_count_under_the_name_of_deepseek_too(details: Any) -> None:
    usage = {"prompt_tokens": 9, "prompt_cache_hit_tokens": 4, "prompt_tokens_details": details}
    assert read(text("hi", usage=usage)).usage == Usage(input_tokens=9, cached_tokens=4)


@pytest.mark.parametrize(
    ("written", "reasoning", "total", "output"),
    [
        (7, 5, 16, 7),  # OpenAI
        (7, 5, 21, 12),  # xAI
        (7, None, 21, 12),  # Gemini
        (7, 5, 20, 7),  # a total that nothing explains
        (7, 5, 0, 7),
        (7, 5, 9, 7),
    ],
)
def test_reasoning_that_is_only_in_the_total_counts_as_output(
    written: int, reasoning: int | None, total: int, output: int
) -> None:
    details = None if reasoning is None else {"reasoning_tokens": reasoning}
    usage = {"prompt_tokens": 9, "completion_tokens": written, "total_tokens": total}
    found = read(text("hi", usage={**usage, "completion_tokens_details": details})).usage
    assert found == Usage(input_tokens=9, output_tokens=output, reasoning_tokens=5)


@pytest.mark.parametrize(
    ("counts", "usage"),
    [
        ((368, 19, 10_923, 10_536, 0), Usage(input_tokens=10_904, output_tokens=19, cached_tokens=10_536)),
        ((368, 19, 10_923, 0, 10_536), Usage(input_tokens=10_904, output_tokens=19, cache_write_tokens=10_536)),
        ((9, 1, 10, 6, 4), Usage(input_tokens=19, output_tokens=1, cached_tokens=6, cache_write_tokens=4)),
        ((10, 1, 11, 6, 4), Usage(input_tokens=10, output_tokens=1, cached_tokens=6, cache_write_tokens=4)),
        ((10, 1, 16, 3, 1), Usage(input_tokens=10, output_tokens=1, cached_tokens=3, cache_write_tokens=1)),
        ((10, 1, 12, 1, 0), Usage(input_tokens=11, output_tokens=1, cached_tokens=1)),
    ],
)
def test_claudes_cache_counts_once_whether_a_gateway_counts_it_as_input_or_not(
    counts: tuple[int, ...], usage: Usage
) -> None:
    prompt, completion, total, cached, written = counts
    wire = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
    wire |= {"cache_read_input_tokens": cached, "cache_creation_input_tokens": written}
    assert read(text("hi", usage=wire)).usage == usage


def test_usage_that_comes_with_each_chunk_is_the_last_one() -> None:
    growing = [chunk({"content": "x"}, usage={"completion_tokens": n}) for n in (1, 2, 3)]
    assert read(Reply(chunks=[*growing, chunk(finish_reason="stop")])).usage == Usage(output_tokens=3)


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter", "function_call", "eos"])
def test_any_finish_reason_ends_a_reply_with_or_without_the_last_line(reason: str) -> None:
    reply = text("hi", finish_reason=reason)
    assert read(reply).vendor_finish_reason == reason
    assert read(Reply(chunks=reply.chunks, ending="no_done")).message.text == "hi"


@pytest.mark.parametrize("chunks", [[], [chunk({"content": "Half an ans"})]])
def test_a_full_context_window_is_an_overflow(chunks: list[Any]) -> None:
    full = chunk({"role": "assistant", "content": ""}, finish_reason="model_context_window_exceeded")
    with pytest.raises(ContextOverflow, match="filled the model's context window"):
        read(Reply(chunks=[*chunks, full]))


def test_a_reply_without_a_finish_reason_is_whole_only_if_the_server_says_done() -> None:
    chunks = [chunk({"content": "hi"})]
    assert read(Reply(chunks=chunks)).message.text == "hi"
    with pytest.raises(ProviderUnavailable, match="ended the stream before the reply was whole") as caught:
        read(Reply(chunks=chunks, ending="no_done"))
    assert caught.value.retryable


@pytest.mark.parametrize("ending", ["done", "no_done"])
def test_a_call_that_was_cut_is_never_returned(ending: Any) -> None:
    whole = calls(("a", {"city": "Paris"}), size=3).chunks
    for size in range(2, len(whole) - 3):
        with pytest.raises(ProviderUnavailable, match="before the reply was whole"):
            read(Reply(chunks=whole[:size], ending=ending))


def test_what_follows_done_is_not_read() -> None:
    builder = ReplyBuilder(model="m", emit=lambda _: None, limit_bytes=10, errors=ERRORS)
    builder.feed("", json.dumps(chunk({"content": "hi"}, finish_reason="stop")).encode())
    builder.feed("", b"[DONE]")
    builder.feed("", b"not json")
    assert builder.finish().message.text == "hi"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{nope", "sent a chunk that is not a JSON object: '{nope'"),
        ("[1]", r"sent a chunk that is not a JSON object: '\[1\]'"),
        ('[{"choices": []}]', "sent a chunk that is not a JSON object: "),
    ],
)
def test_a_chunk_that_cannot_be_read_breaks_the_reply(line: str, problem: str) -> None:
    with pytest.raises(ProviderUnavailable, match=problem):
        read(Reply(chunks=[line]))


@pytest.mark.parametrize(
    ("error", "kind", "status", "retryable"),
    [
        ({"message": "busy", "type": "server_error"}, ProviderUnavailable, None, True),
        ({"message": "busy", "code": 503}, ProviderUnavailable, 503, True),
        ({"message": "busy", "code": "429"}, ProviderUnavailable, 429, True),
        ({"message": "busy", "code": 402}, ProviderRejected, 402, False),
        ({"message": "busy", "type": "invalid_request_error"}, ProviderRejected, None, False),
        ({"message": "busy", "code": "insufficient_quota"}, ProviderRejected, None, False),
        ("busy", ProviderUnavailable, None, True),
    ],
)
def test_an_error_inside_the_stream_is_raised_with_the_servers_words(
    error: Any, kind: type[ProviderError], status: int | None, retryable: bool
) -> None:
    with pytest.raises(kind, match="busy") as caught:
        read(Reply(chunks=[chunk({"content": "hi"}), {"error": error}]))
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.retryable) == (status, retryable)


@pytest.mark.parametrize("before", [b"data: ", b""])
def test_an_error_in_a_list_is_one_with_the_servers_words(before: bytes) -> None:
    body = before + b'[{"error": {"code": 400, "message": "no signature", "status": "INVALID_ARGUMENT"}}]\n\n'
    builder = ReplyBuilder(model="m", emit=lambda _: None, limit_bytes=10, errors=ERRORS)
    with pytest.raises(ProviderRejected, match="no signature") as caught:
        for event, data in EventLines(1000, ERRORS).feed(body):
            builder.feed(event, data)
    assert caught.value.status == 400


def test_an_event_called_error_is_one_whatever_its_shape() -> None:
    builder = ReplyBuilder(model="m", emit=lambda _: None, limit_bytes=10, errors=ERRORS)
    with pytest.raises(ProviderUnavailable, match="stub broke its reply off: it gave no reason"):
        builder.feed("error", b"{}")


@pytest.mark.parametrize(
    "reason",
    [
        "error",
        "abort",  # vLLM, SGLang
        "insufficient_system_resource",  # DeepSeek
        "network_error",  # GLM
        "function_call_filter: MALFORMED_FUNCTION_CALL",  # Gemini's compatible API
        "UNEXPECTED_TOOL_CALL",
        "malformed_response",
    ],
)
def test_a_reply_that_its_server_gave_up_on_is_none(reason: str) -> None:
    with pytest.raises(ProviderUnavailable, match=f"gave up on its reply .finish_reason '{reason}'") as caught:
        read(text("half an ans", finish_reason=reason))
    assert caught.value.retryable


# -------------------------------------------------------------------------------------------------- size


@pytest.mark.parametrize(
    "reply",
    [
        text("x" * 101),
        text("é" * 51),
        text("hi", reasoning="x" * 100),
        calls(("a", {"x": "y" * 40})),
        calls(*[("a", "")] * 2),
    ],
)
def test_reading_stops_at_the_size_limit(reply: Reply) -> None:
    with pytest.raises(ReplyTooLarge, match="passed 100 bytes, where reading stops"):
        read(reply, limit_bytes=100)


def test_a_reply_of_just_the_limit_is_read() -> None:
    assert len(read(text("x" * 100), limit_bytes=100).message.text) == 100


# ------------------------------------------------------------------------------------------------- lines


def events(data: bytes, size: int, limit_bytes: int = 1000) -> list[tuple[str, bytes]]:
    lines = EventLines(limit_bytes, ERRORS)
    found = [each for at in range(0, len(data), size) for each in lines.feed(data[at : at + size])]
    return found + lines.finish()


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_events_are_split_from_pieces_of_any_size(size: int, end: bytes) -> None:
    lines = [b": hello", b"", b"data: one", b"", b"event: error", b"data:two", b"data: lines", b"id: 3", b"", b"", b""]
    assert events(end.join(lines), size) == [("", b"one"), ("error", b"two\nlines")]


def test_a_last_event_needs_no_empty_line() -> None:
    assert events(b"data: one\n\ndata: [DONE]", 5) == [("", b"one"), ("", b"[DONE]")]


def test_a_line_without_an_end_stops_at_the_limit() -> None:
    with pytest.raises(ReplyTooLarge):
        events(b"data: " + b"x" * 100, 10, limit_bytes=50)


def test_one_event_of_many_lines_stops_at_the_limit() -> None:
    for line in (b"data: xxxx\n", b"data\n"):
        with pytest.raises(ReplyTooLarge):
            events(line * 100, 7, limit_bytes=50)
    assert len(events(b"data: xxxx\n\n" * 100, 7, limit_bytes=50)) == 100


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_json_lines_are_split_from_pieces_of_any_size(size: int) -> None:
    lines = JsonLines(9, OpenAIErrors(vendor="v", where="w", hint="h"))
    data = b'{"n": 1}\r\n\n[2]\n3'
    found = [each for at in range(0, len(data), size) for each in lines.feed(data[at : at + size])]
    assert found + lines.finish() == [("", b'{"n": 1}'), ("", b"[2]"), ("", b"3")]
    with pytest.raises(ReplyTooLarge):
        lines.feed(b'{"n": 123}\n')
