"""What the Messages API streams, and what compatible servers make of it, put together to one reply."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus.errors import ContextOverflow, ProviderError, ProviderRejected, ProviderUnavailable, ReplyTooLarge
from toolbus.messages import AssistantMessage, ToolCall, Usage, from_anthropic, to_anthropic
from toolbus.protocols import ArgumentsPiece, Delta, ModelReply, ReasoningPiece, TextPiece
from toolbus.providers.anthropic._errors import AnthropicErrors
from toolbus.providers.anthropic._stream import MessageBuilder

ERRORS = AnthropicErrors(vendor="anthropic", where="http://stub", hint="look")
Event = dict[str, Any]


def builder(*, limit_bytes: int = 10_000, deltas: list[Delta] | None = None) -> MessageBuilder:
    seen: list[Delta] = [] if deltas is None else deltas
    return MessageBuilder(model="asked-for", emit=seen.append, limit_bytes=limit_bytes, errors=ERRORS)


def read(events: Sequence[Event], *, limit_bytes: int = 10_000, deltas: list[Delta] | None = None) -> ModelReply:
    """The reply as the provider would read it."""
    reply = builder(limit_bytes=limit_bytes, deltas=deltas)
    for event in events:
        reply.feed(str(event.get("type", "")), json.dumps(event).encode())
    return reply.finish()


def start(**usage: int) -> Event:
    return {"type": "message_start", "message": {"model": "claude-9", "content": [], "usage": usage}}


def block(index: int, content: Event, *deltas: Event) -> list[Event]:
    return [
        {"type": "content_block_start", "index": index, "content_block": content},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def said(index: int, *pieces: str) -> list[Event]:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": each} for each in pieces))


def thought(index: int, *pieces: str, signature: str = "c2ln") -> list[Event]:
    deltas: list[Event] = [{"type": "thinking_delta", "thinking": each} for each in pieces]
    if signature:
        deltas.append({"type": "signature_delta", "signature": signature})
    return block(index, {"type": "thinking", "thinking": "", "signature": ""}, *deltas)


def called(index: int, name: str, *pieces: str, wire_id: str = "toolu_1") -> list[Event]:
    deltas: list[Event] = [{"type": "input_json_delta", "partial_json": each} for each in pieces]
    return block(index, {"type": "tool_use", "id": wire_id, "name": name, "input": {}}, *deltas)


def end(reason: str | None = "end_turn", **usage: Any) -> list[Event]:
    return [{"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}, {"type": "message_stop"}]


# -------------------------------------------------------------------------------------- text and calls


def test_text_and_calls_are_put_together_and_need_nothing_kept() -> None:
    deltas: list[Delta] = []
    reply = read(
        [
            start(),
            {"type": "ping"},
            *said(0, "Let me ", "look."),
            *called(1, "a", "", '{"city"', ': "Paris"}'),
            *called(2, "b", "", wire_id="toolu_2"),
            *end("tool_use"),
        ],
        deltas=deltas,
    )
    assert reply.message == AssistantMessage(
        text="Let me look.",
        tool_calls=(
            ToolCall(name="a", arguments='{"city": "Paris"}', provider_call_id="toolu_1"),
            ToolCall(name="b", arguments="", provider_call_id="toolu_2"),
        ),
    )
    assert (reply.finish_reason, reply.vendor_finish_reason) == ("tool_calls", "tool_use")
    assert (reply.vendor, reply.model) == ("anthropic", "claude-9")
    assert deltas == [
        TextPiece("Let me "),
        TextPiece("look."),
        ArgumentsPiece(0, "a", '{"city"'),
        ArgumentsPiece(0, "a", ': "Paris"}'),
    ]


def test_malformed_arguments_are_passed_on_as_the_model_wrote_them() -> None:
    reply = read([*thought(0, "hm"), *called(1, "a", '{"city": Par'), *end("tool_use")])
    assert reply.message.tool_calls[0].arguments == '{"city": Par'
    assert reply.message.vendor_data is not None
    assert reply.message.vendor_data["anthropic"]["content"][1]["input"] == {"_malformed_arguments": '{"city": Par'}


@pytest.mark.guarantee("G28")
def test_a_call_that_the_token_limit_cut_off_is_never_an_empty_object() -> None:
    cut = read([*called(0, "a"), *called(1, "b", "", wire_id="toolu_2"), *end("max_tokens")])
    assert [each.arguments for each in cut.message.tool_calls] == ["", ""]
    assert cut.finish_reason == "length"
    begun = read([*called(0, "a", '{"ci'), *end("max_tokens")])
    assert begun.message.tool_calls[0].arguments == '{"ci'


def test_calls_may_arrive_whole() -> None:
    whole = {"type": "tool_use", "id": "x", "name": "a", "input": {"n": 1}}
    reply = read([*block(0, whole), *end("tool_use")])
    assert reply.message.tool_calls == (ToolCall(name="a", arguments='{"n":1}', provider_call_id="x"),)


def test_arguments_in_the_other_of_text_and_object_are_no_empty_ones() -> None:
    """A call would run with the defaults of its tool."""
    as_text: Event = {"type": "tool_use", "id": "x", "name": "a", "input": '{"n":1}'}
    begun: Event = {"type": "tool_use", "id": "x", "name": "a", "input": {}}
    as_object = block(0, begun, {"type": "input_json_delta", "partial_json": {"n": 1}})
    for events in (block(0, as_text), as_object):
        assert [call.arguments for call in read([*events, *end("tool_use")]).message.tool_calls] == ['{"n":1}']


def test_calls_that_arrive_whole_are_kept_whole_beside_thinking() -> None:
    whole = {"type": "tool_use", "id": "x", "name": "a", "input": {"n": 1}}
    bare = {"type": "tool_use", "id": "y", "name": "b"}
    message = read([*thought(0, "hm"), *block(1, whole), *block(2, bare), *end("tool_use")]).message
    assert blocks_in(message)[1:] == [whole, {**bare, "input": {}}]


def test_half_a_character_in_a_call_that_arrives_whole_is_json_all_the_same() -> None:
    whole = {"type": "tool_use", "id": "x", "name": "a", "input": {"said": "cut \ud83d"}}
    reply = read([*block(0, whole), *end("tool_use")])
    assert reply.message.tool_calls[0].arguments == '{"said": "cut \\ud83d"}'


def test_a_call_without_an_id_has_none() -> None:
    reply = read([*block(0, {"type": "tool_use", "name": "a", "input": {}}), *end("tool_use")])
    assert reply.message.tool_calls == (ToolCall(name="a", arguments=""),)


def test_blocks_without_an_index_and_deltas_of_a_block_that_nobody_began_are_understood() -> None:
    events: list[Event] = [
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Sun"}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "ny."}},
        {"type": "content_block_start", "content_block": {"type": "tool_use", "id": "x", "name": "a", "input": {}}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": '{"n": 1}'}},
        *end("tool_use"),
    ]
    message = read(events).message
    assert (message.text, message.tool_calls[0].arguments) == ("Sunny.", '{"n": 1}')


def test_a_message_that_was_not_streamed_is_understood() -> None:
    deltas: list[Delta] = []
    reply = builder(deltas=deltas)
    reply.whole(
        {
            "type": "message",
            "model": "claude-9",
            "content": [
                {"type": "text", "text": "Look:"},
                {"type": "tool_use", "id": "x", "name": "a", "input": {"n": 1}},
                {"type": "tool_use", "id": "y", "name": "b", "input": {}},
            ],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 3, "output_tokens": 2},
        }
    )
    found = reply.finish()
    assert (found.message.text, [call.arguments for call in found.message.tool_calls]) == ("Look:", ['{"n":1}', ""])
    assert (found.usage, found.model) == (Usage(input_tokens=3, output_tokens=2), "claude-9")
    assert (found.finish_reason, found.vendor_finish_reason) == ("tool_calls", "tool_use")
    assert deltas == [TextPiece("Look:")]


def test_a_message_that_was_not_streamed_needs_no_reason_for_its_end() -> None:
    reply = builder()
    reply.whole({"type": "message", "content": [{"type": "text", "text": "Look."}]})
    assert reply.finish().message.text == "Look."


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.integers(1, 4))
def test_text_cut_inside_a_character_is_whole_again(whole: str, size: int) -> None:
    units = whole.encode("utf-16-le")
    pieces = [units[at : at + 2 * size].decode("utf-16-le", "surrogatepass") for at in range(0, len(units), 2 * size)]
    deltas: list[Delta] = []
    reply = read([*said(0, *pieces), *end()], deltas=deltas)
    assert reply.message.text == whole
    assert "".join(each.text for each in deltas) == whole


# ------------------------------------------------------------------------------------------- thinking


def test_thinking_is_reasoning_and_goes_back_byte_for_byte() -> None:
    deltas: list[Delta] = []
    events = [
        *thought(0, "Let me ", "think…", signature="EqQB/+=="),
        *block(1, {"type": "redacted_thinking", "data": "AAAA"}),
        *said(2, "First. "),
        *thought(3, "", signature="aGlkZGVu"),
        *thought(4, "so"),
        *called(5, "f", '{"b": 1, "a": 2}'),
        *end("tool_use"),
    ]
    message = read(events, deltas=deltas).message
    assert message.reasoning == "Let me think…\n\nso"
    assert "".join(each.text for each in deltas if isinstance(each, ReasoningPiece)) == message.reasoning
    blocks = [
        {"type": "thinking", "thinking": "Let me think…", "signature": "EqQB/+=="},
        {"type": "redacted_thinking", "data": "AAAA"},
        {"type": "text", "text": "First. "},
        {"type": "thinking", "thinking": "", "signature": "aGlkZGVu"},
        {"type": "thinking", "thinking": "so", "signature": "c2ln"},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"b": 1, "a": 2}},
    ]
    assert message.vendor_data == {"anthropic": {"content": blocks, "model": "asked-for"}}
    assert json.dumps(to_anthropic([message])["messages"][0]["content"]) == json.dumps(blocks)


@pytest.mark.parametrize(
    "events",
    [
        [*said(0, "Look:"), *called(1, "f", '{"n": 1}')],
        [*thought(0, "hm"), *said(1, "Look:"), *called(2, "f", '{"n": 1}')],
        [*said(0, "One. "), *said(1, "Two."), *called(2, "f")],
        [*called(0, "f"), *said(1, "Two.")],
    ],
)
def test_a_streamed_reply_is_the_same_as_its_blocks_read_from_the_wire(events: list[Event]) -> None:
    message = read([*events, *end("tool_use")]).message
    (back,) = from_anthropic(to_anthropic([message]))
    assert isinstance(back, AssistantMessage)
    assert (back.text, back.reasoning, blocks_in(back)) == (message.text, message.reasoning, blocks_in(message))
    assert [json.loads(each.arguments) for each in back.tool_calls] == [
        json.loads(each.arguments or "{}") for each in message.tool_calls
    ]


def blocks_in(message: AssistantMessage) -> Any:
    return message.vendor_data and message.vendor_data["anthropic"]["content"]


letters = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
objects = st.dictionaries(
    letters, st.integers() | letters | st.lists(st.none() | st.booleans(), max_size=2), max_size=2
)


def blocks_of(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Event]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


wire_blocks = (
    blocks_of("text", text=letters.filter(str.strip))
    | blocks_of("thinking", thinking=letters, signature=st.text("abc+/=", min_size=1))
    | blocks_of("redacted_thinking", data=letters)
    | blocks_of("tool_use", name=st.sampled_from("fg"), input=objects)
)


def streamed(content: Sequence[Event], size: int) -> list[Event]:
    """The events of a reply with these blocks, cut into pieces of so many half characters."""

    def cut(text: str) -> list[str]:
        units = text.encode("utf-16-le")
        width = 2 * size
        return [units[at : at + width].decode("utf-16-le", "surrogatepass") for at in range(0, len(units), width)]

    found: list[Event] = []
    for index, each in enumerate(content):
        if each["type"] == "text":
            found += said(index, *cut(each["text"]))
        elif each["type"] == "thinking":
            found += thought(index, *cut(each["thinking"]), signature=each["signature"])
        elif each["type"] == "tool_use":
            found += called(index, each["name"], *cut(json.dumps(each["input"])), wire_id=each["id"])
        else:
            found += block(index, each)
    return [*found, *end()]


@given(st.lists(wire_blocks, min_size=1, max_size=6), st.integers(1, 4))
def test_any_reply_goes_back_as_it_came_however_its_stream_was_cut(content: list[Event], size: int) -> None:
    sent = [{**each, "id": f"toolu_{at}"} if each["type"] == "tool_use" else each for at, each in enumerate(content)]
    deltas: list[Delta] = []
    message = read(streamed(sent, size), deltas=deltas).message
    while sent and "thinking" in sent[-1]["type"]:  # the API takes none at the end
        sent.pop()
    after = {"role": "user", "content": "so?"}
    wire = to_anthropic([message, *from_anthropic([after])])["messages"]
    back = to_anthropic(from_anthropic(wire))["messages"]
    shortened = len(sent) == 1 and sent[0]["type"] == "text"
    assert (wire[0]["content"] if len(wire) > 1 else []) == (sent[0]["text"] if shortened else sent)
    assert back == wire
    assert "".join(each.text for each in deltas if isinstance(each, TextPiece)) == message.text
    assert "".join(each.text for each in deltas if isinstance(each, ReasoningPiece)) == message.reasoning
    for place, call in enumerate(message.tool_calls):
        pieces = [each.text for each in deltas if isinstance(each, ArgumentsPiece) and each.index == place]
        assert "".join(pieces) == call.arguments


def test_blocks_and_deltas_of_unknown_type_are_kept_and_events_ignored() -> None:
    result = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"url": "u"}]}
    events = [
        {"type": "something_new", "x": 1},
        *block(
            0,
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"query": '},
            {"type": "input_json_delta", "partial_json": '"x"}'},
        ),
        *block(1, result),
        *block(
            2,
            {"type": "text", "text": "", "citations": None},
            {"type": "citations_delta", "citation": {"url": "u"}},
            {"type": "text_delta", "text": "It is."},
        ),
        *block(
            3, {"type": "later", "content": "a"}, {"type": "later_delta", "content": "b", "n": 1}, {"type": "x_delta"}
        ),
        *block(4, {"odd": 1}),
        *end(),
    ]
    message = read(events).message
    assert message.text == "It is."
    assert message.tool_calls == ()
    assert message.vendor_data == {
        "anthropic": {
            "content": [
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
                result,
                {"type": "text", "text": "It is.", "citations": [{"url": "u"}]},
                {"type": "later", "content": "ab", "n": 1},
            ]
        }
    }


def test_a_field_that_was_a_text_and_comes_as_another_value_is_that_value_and_a_later_text_begins_anew() -> None:
    pieces = [{"type": "later_delta", "n": each} for each in ("b", 3, "c", "d")]
    (kept,) = blocks_in(read([*block(0, {"type": "later", "n": "a"}, *pieces), *end()]).message)
    assert kept == {"type": "later", "n": "cd"}
    (kept,) = blocks_in(read([*block(0, {"type": "later", "n": "a"}, *pieces[:2]), *end()]).message)
    assert kept == {"type": "later", "n": 3}


def test_half_a_thought_is_reported_but_does_not_go_back() -> None:
    reply = read([*said(0, "First."), *thought(1, "and th", signature=""), *end("max_tokens")])
    assert (reply.message.text, reply.message.reasoning) == ("First.", "and th")
    assert reply.message.vendor_data is None


# -------------------------------------------------------------------------------------------- the end


@pytest.mark.parametrize(
    ("wire", "neutral"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "other"),
        ("something_new", "other"),
    ],
)
def test_why_a_reply_ended_is_reported_in_one_form_and_in_the_vendors(wire: str, neutral: str) -> None:
    reply = read([*said(0, "hi"), *end(wire)])
    assert (reply.finish_reason, reply.vendor_finish_reason) == (neutral, wire)


def test_a_refusal_runs_nothing_that_was_begun_and_keeps_its_text() -> None:
    reply = read([*thought(0, "hm"), *said(1, "I can not."), *called(2, "f", "{}"), *end("refusal")])
    assert reply.message == AssistantMessage(text="I can not.", reasoning="hm")
    assert read(end("refusal")).message == AssistantMessage()


def test_a_window_that_the_reply_filled_is_an_overflow() -> None:
    with pytest.raises(ContextOverflow, match="filled the model's context window"):
        read([*said(0, "hi"), *end("model_context_window_exceeded")])


def test_a_reply_is_whole_with_a_stop_reason_or_with_the_last_event_and_complete_calls() -> None:
    assert read([*said(0, "hi"), *end()[:1]]).message.text == "hi"
    assert read([*said(0, "hi"), *end(None)]).finish_reason == ""
    for events in ([], said(0, "hi"), [*called(0, "a", '{"n'), *end(None)], [start(), *called(0, "a", "{}")]):
        with pytest.raises(ProviderUnavailable, match="before the reply was whole") as caught:
            read(events)
        assert caught.value.retryable


def test_what_follows_the_end_is_not_read() -> None:
    reply = builder()
    for event in [*said(0, "hi"), *end()]:
        reply.feed("", json.dumps(event).encode())
    reply.feed("", b"not json")
    assert reply.finish().message.text == "hi"


def test_input_tokens_include_what_the_cache_gave_and_took() -> None:
    events = [
        start(input_tokens=3, cache_read_input_tokens=11, cache_creation_input_tokens=5, output_tokens=1),
        *said(0, "hi"),
        *end(output_tokens=9, input_tokens=None, output_tokens_details={"thinking_tokens": 4}),
    ]
    assert read(events).usage == Usage(
        input_tokens=19, output_tokens=9, cached_tokens=11, reasoning_tokens=4, cache_write_tokens=5
    )
    assert read([*said(0, "hi"), *end(output_tokens="9", output_tokens_details=None)]).usage == Usage()


def test_a_zero_in_the_last_count_does_not_undo_what_the_first_one_has_counted() -> None:
    begun = start(input_tokens=10, cache_read_input_tokens=5, cache_creation_input_tokens=3, output_tokens=1)
    zeros: dict[str, Any] = {"input_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    found = read([begun, *said(0, "hi"), *end(**zeros, output_tokens=7)])
    assert found.usage == Usage(input_tokens=18, output_tokens=7, cached_tokens=5, cache_write_tokens=3)


def test_a_text_without_a_beginning_in_the_next_answer_is_no_piece_of_the_answer_before() -> None:
    use = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}}
    first = [*said(0, "First."), *block(1, use), *end("pause_turn")]
    (delta,) = [each for each in said(0, "Then.") if each["type"] == "content_block_delta"]
    reply = builder()
    for events in (first, [delta, *end()]):
        for event in events:
            reply.feed(event["type"], json.dumps(event).encode())
        if reply.paused:
            reply.begin_continuation()
    assert blocks_in(reply.finish().message) == [
        {"type": "text", "text": "First."},
        use,
        {"type": "text", "text": "Then."},
    ]


def test_a_paused_turn_whose_next_answer_is_cut_is_not_whole() -> None:
    use = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}}
    reply = builder()
    for event in [*block(0, use), *end("pause_turn")]:
        reply.feed(event["type"], json.dumps(event).encode())
    reply.begin_continuation()
    for event in said(0, "Fou"):
        reply.feed(event["type"], json.dumps(event).encode())
    with pytest.raises(ProviderUnavailable, match="before the reply was whole"):
        reply.finish()


def test_a_paused_turn_goes_on_with_the_next_answer() -> None:
    deltas: list[Delta] = []
    reply = builder(deltas=deltas)
    use = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    container = {"type": "message_start", "message": {"container": {"id": "c1"}, "usage": {"input_tokens": 10}}}
    first = [container, *said(0, "Looking. "), *said(1, "\n"), *block(2, use), *end("pause_turn", output_tokens=1)]
    for event in first:
        reply.feed("", json.dumps(event).encode())
    assert reply.paused
    assert reply.container == "c1"
    assert reply.so_far() == [{"type": "text", "text": "Looking. "}, use]
    reply.begin_continuation()
    for event in [start(input_tokens=20), *said(0, "Found."), *end("end_turn", output_tokens=2)]:
        reply.feed("", json.dumps(event).encode())
    assert not reply.paused
    found = reply.finish()
    assert found.message.text == "Looking. \nFound."
    assert "".join(each.text for each in deltas) == found.message.text
    assert (found.finish_reason, found.usage) == ("stop", Usage(input_tokens=30, output_tokens=3))


def test_the_container_may_be_named_at_the_end_of_the_answer() -> None:
    reply = builder()
    delta = {"type": "message_delta", "delta": {"stop_reason": "pause_turn", "container": {"id": "c1"}}}
    for event in [start(), *said(0, "Looking."), delta]:
        reply.feed("", json.dumps(event).encode())
    assert reply.container == "c1"


@pytest.mark.parametrize("events", [said(0, "hi"), [*said(0, "hi"), *block(1, {"type": "x"}), *called(2, "f")]])
def test_a_pause_is_the_end_where_no_tool_of_the_servers_ran_or_a_call_waits(events: list[Event]) -> None:
    reply = builder()
    for event in [*events, *end("pause_turn")]:
        reply.feed("", json.dumps(event).encode())
    assert not reply.paused


# ------------------------------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{nope", "sent an event that is not a JSON object: '{nope'"),
        (b"[1]", r"sent an event that is not a JSON object: '\[1\]'"),
    ],
)
def test_an_event_that_cannot_be_read_breaks_the_reply(line: bytes, problem: str) -> None:
    with pytest.raises(ProviderUnavailable, match=problem):
        builder().feed("", line)


@pytest.mark.parametrize(
    ("kind", "error", "status", "retryable"),
    [
        ("overloaded_error", ProviderUnavailable, 529, True),
        ("api_error", ProviderUnavailable, 500, True),
        ("rate_limit_error", ProviderUnavailable, 429, True),
        ("timeout_error", ProviderUnavailable, 504, True),
        ("something_new", ProviderUnavailable, None, True),
        ("invalid_request_error", ProviderRejected, 400, False),
        ("authentication_error", ProviderRejected, 401, False),
        ("billing_error", ProviderRejected, 402, False),
        ("permission_error", ProviderRejected, 403, False),
        ("not_found_error", ProviderRejected, 404, False),
        ("conflict_error", ProviderUnavailable, 409, True),
        ("request_too_large", ContextOverflow, 413, False),
    ],
)
def test_an_error_inside_the_stream_is_raised_with_the_servers_words(
    kind: str, error: type[ProviderError], status: int | None, retryable: bool
) -> None:
    event = {"type": "error", "error": {"type": kind, "message": "Overloaded"}}
    with pytest.raises(error, match="Overloaded") as caught:
        read([*said(0, "hi"), event])
    assert type(caught.value) is error
    assert (caught.value.status, caught.value.retryable) == (status, retryable)
    with pytest.raises(error):
        builder().whole(event)


def test_an_event_called_error_is_one_whatever_its_shape() -> None:
    with pytest.raises(ProviderUnavailable, match="broke its reply off: it gave no reason"):
        builder().feed("error", b"{}")
    with pytest.raises(ProviderUnavailable, match="too many") as caught:
        builder().feed("", b'{"error": {"type": "overloaded_error", "message": "too many"}}')
    assert caught.value.status == 529


@pytest.mark.parametrize(
    "events",
    [
        said(0, "x" * 501),
        said(0, "é" * 251),
        thought(0, "x" * 501),
        thought(0, "x", signature="s" * 501),
        called(0, "a", "x" * 501),
        block(0, {"type": "redacted_thinking", "data": "x" * 501}),
        block(0, {"type": "text"}, *[{"type": "citations_delta", "citation": {"url": "u" * 50}}] * 10),
        block(0, {"type": "later"}, {"type": "later_delta", "content": "x" * 501}),
        [each for number in range(20) for each in block(number, {"type": "text", "text": ""})],
    ],
)
def test_reading_stops_at_the_size_limit(events: list[Event]) -> None:
    with pytest.raises(ReplyTooLarge, match="passed 500 bytes, where reading stops"):
        read(events, limit_bytes=500)
