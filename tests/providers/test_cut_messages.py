"""Anthropic's streams that two upstreams were mixed into, that lost a call's arguments, or that came all at once."""

from __future__ import annotations

import pytest

from support.wire_events import Frame, begin, builder, end, feed, piece, read, start, stop, use
from toolbus.errors import ProviderUnavailable
from toolbus.messages import ToolCall
from toolbus.protocols import Delta, TextPiece
from toolbus.providers.anthropic._stream import MessageBuilder

TEXT: Frame = {"type": "text", "text": ""}
SAID = [begin(0, TEXT), piece(0, "text", "hi"), stop(0)]


def cut(frames: list[Frame]) -> str:
    """Why a stream is no whole reply; it can be asked for again."""
    with pytest.raises(ProviderUnavailable) as caught:
        read("anthropic", frames)
    assert caught.value.retryable
    return str(caught.value)


@pytest.mark.guarantee("G28")
@pytest.mark.parametrize("before", [[], [begin(0, use())], SAID], ids=["nothing", "a call", "text"])
def test_a_second_message_before_the_first_is_whole_is_a_cut_stream(before: list[Frame]) -> None:
    frames = [start("msg_1"), *before, start("msg_2"), *SAID, *end()]
    assert "began another message before the first was whole" in cut(frames)


@pytest.mark.guarantee("G28")
def test_a_message_that_begins_again_under_its_own_id_is_cut_once_something_came() -> None:
    assert read("anthropic", [start("msg_1"), start("msg_1"), *SAID, *end()]).message.text == "hi"
    assert "began another message" in cut([start(""), *SAID, start(""), *SAID, *end()])


@pytest.mark.guarantee("G28")
@pytest.mark.parametrize("reason", ["tool_use", "end_turn", None])
def test_a_call_whose_arguments_never_came_is_a_cut_stream(reason: str | None) -> None:
    assert "ended the stream before a call was whole" in cut([start(), begin(0, use()), *end(reason)])
    begun = [start(), begin(0, use()), piece(0, "input_json", '{"ci'), *end(reason)]
    assert "ended the stream before" in cut(begun)


@pytest.mark.guarantee("G28")
def test_a_call_whose_place_another_block_took_is_a_cut_stream() -> None:
    assert "before a call was whole" in cut([start(), begin(0, use()), *SAID, *end("tool_use")])


@pytest.mark.parametrize(
    "rest",
    [
        [stop(0)],
        [piece(0, "input_json", ""), stop(0)],
        [piece(0, "input_json", "{}")],
        [{"type": "content_block_stop"}],
    ],
    ids=["an end", "an empty piece", "an empty object", "an end without an index"],
)
def test_a_call_without_arguments_is_whole_when_the_server_says_so(rest: list[Frame]) -> None:
    reply = read("anthropic", [start(), begin(0, use()), *rest, *end("tool_use")])
    assert [(call.name, call.arguments.strip("{}")) for call in reply.message.tool_calls] == [("f", "")]


def test_a_call_that_came_whole_needs_no_end() -> None:
    for frames in ([begin(0, use(city="Paris"))], [begin(0, use()), piece(0, "input_json", '{"city":"Paris"}')]):
        reply = read("anthropic", [start(), *frames, *end("tool_use")])
        assert reply.message.tool_calls == (
            ToolCall(name="f", arguments='{"city":"Paris"}', provider_call_id="toolu_1"),
        )


@pytest.mark.guarantee("G28")
def test_malformed_arguments_that_have_ended_are_the_models_own() -> None:
    frames = [start(), begin(0, use()), piece(0, "input_json", '{"ci'), stop(0), *end("tool_use")]
    assert read("anthropic", frames).message.tool_calls[0].arguments == '{"ci'


@pytest.mark.guarantee("G28")
@pytest.mark.parametrize(("reason", "calls"), [("max_tokens", 1), ("refusal", 0)])
def test_a_reply_that_says_that_it_was_cut_off_is_taken_as_that(reason: str, calls: int) -> None:
    reply = read("anthropic", [start(), begin(0, use()), *end(reason)])
    assert [call.arguments for call in reply.message.tool_calls] == [""] * calls


def test_calls_in_the_beginning_of_a_message_are_read() -> None:
    said = {"type": "text", "text": "Let me look."}
    deltas: list[Delta] = []
    reply = read("anthropic", [start("msg_1", said, use(city="Paris"), use("toolu_2")), *end("tool_use")], deltas)
    assert reply.message.text == "Let me look."
    assert [(call.provider_call_id, call.arguments) for call in reply.message.tool_calls] == [
        ("toolu_1", '{"city":"Paris"}'),
        ("toolu_2", ""),
    ]
    assert deltas == [TextPiece("Let me look.")]


def test_blocks_of_the_beginning_that_are_streamed_as_well_count_once() -> None:
    frames = [start("msg_1", TEXT, use()), *SAID, begin(1, use()), piece(1, "input_json", "{}"), stop(1)]
    reply = read("anthropic", [*frames, *end("tool_use")])
    assert (reply.message.text, len(reply.message.tool_calls)) == ("hi", 1)
    assert reply.message.vendor_data is None


def test_deltas_go_to_the_block_of_the_beginning_at_their_index() -> None:
    frames = [start("msg_1", TEXT, use()), piece(0, "text", "hi"), piece(1, "input_json", '{"a":1}'), *end("tool_use")]
    reply = read("anthropic", frames)
    assert (reply.message.text, [call.arguments for call in reply.message.tool_calls]) == ("hi", ['{"a":1}'])


def test_blocks_of_the_beginning_stand_where_they_belong_among_streamed_ones() -> None:
    frames = [start("msg_1", use("toolu_1"), use("toolu_2"), use("toolu_3")), begin(1, use("toolu_2")), stop(1)]
    reply = read("anthropic", [*frames, *end("tool_use")])
    assert [call.provider_call_id for call in reply.message.tool_calls] == ["toolu_1", "toolu_2", "toolu_3"]


def test_a_turn_that_was_paused_goes_on_in_a_message_of_its_own() -> None:
    reply: MessageBuilder = builder("anthropic")
    searched = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}}
    feed(reply, [start("msg_1"), begin(0, searched), stop(0), *end("pause_turn")])
    assert reply.paused
    reply.begin_continuation()
    feed(reply, [start("msg_2"), *SAID, *end()])
    assert reply.finish().message.text == "hi"


def test_a_turn_that_was_paused_all_at_once_goes_on_too() -> None:
    reply: MessageBuilder = builder("anthropic")
    searched = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}}
    feed(reply, [start("msg_1", searched), *end("pause_turn")])
    assert reply.paused
    assert reply.so_far() == [searched]
    reply.begin_continuation()
    feed(reply, [start("msg_2"), *SAID, *end()])
    message = reply.finish().message
    assert message.text == "hi"
    assert [block["type"] for block in (message.vendor_data or {})["anthropic"]["content"]] == [
        "server_tool_use",
        "text",
    ]


def test_deltas_of_another_kind_than_their_block_are_never_taken_for_what_it_holds() -> None:
    frames = [
        start(),
        begin(0, TEXT),
        piece(0, "text", "hi"),
        piece(0, "input_json", '{"n": 1}'),
        begin(1, use()),
        piece(1, "input_json", '{"n": '),
        piece(1, "input_json", "2}"),
        piece(1, "text", " there"),
        *end("tool_use"),
    ]
    message = read("anthropic", frames).message
    assert (message.text, [call.arguments for call in message.tool_calls]) == ("hi there", ['{"n": 2}'])


def test_blocks_that_are_interleaved_are_put_together_by_their_indexes() -> None:
    frames = [
        start(),
        begin(0, use("toolu_1", "a")),
        begin(1, use("toolu_2", "b")),
        piece(1, "input_json", '{"n":'),
        piece(0, "input_json", '{"m":'),
        piece(1, "input_json", "2}"),
        piece(0, "input_json", "1}"),
        stop(1),
        stop(0),
        *end("tool_use"),
    ]
    assert [call.arguments for call in read("anthropic", frames).message.tool_calls] == ['{"m":1}', '{"n":2}']
