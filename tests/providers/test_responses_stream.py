"""What the events of the Responses API are put together to, whatever is missing or out of order."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus.errors import ContentFiltered, ContextOverflow, ProviderRejected, ProviderUnavailable, ReplyTooLarge
from toolbus.messages import AssistantMessage, ToolCall, Usage, to_openai_responses
from toolbus.protocols import ArgumentsPiece, Delta, ModelReply, ReasoningPiece, TextPiece
from toolbus.providers.openai._errors import ResponsesErrors
from toolbus.providers.openai._responses_stream import ResponseBuilder

ERRORS = ResponsesErrors(vendor="stub", where="http://stub/v1", hint="look")
Event = dict[str, Any]

THOUGHT: Event = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Paris,"}, {"type": "summary_text", "text": "then Rome."}],
    "encrypted_content": "gAAA",
}
SAID: Event = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Look:", "annotations": []}],
}
USAGE = {
    "input_tokens": 20,
    "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 2},
    "output_tokens": 10,
    "output_tokens_details": {"reasoning_tokens": 3},
}


def asked(number: int, arguments: str = '{"city": "Paris"}', name: str = "get_weather") -> Event:
    return {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": f"call_{number}",
        "name": name,
        "arguments": arguments,
    }


WHOLE: list[Event] = [THOUGHT, SAID, asked(1), asked(2, '{"city": "Rome"}')]


def events_of(*items: Event, places: bool = True) -> list[Event]:
    """The events of items one after another, without the last event."""
    found: list[Event] = []
    for place, item in enumerate(items):
        at = {"output_index": place} if places else {}
        inside = {**at, "item_id": item["id"]}
        empty: Event = {"arguments": "", "summary": [], "content": []}
        begun = {key: empty.get(key, value) for key, value in item.items() if key != "encrypted_content"}
        found.append({"type": "response.output_item.added", **at, "item": begun})
        for number, part in enumerate(item.get("summary", ())):
            name = "response.reasoning_summary_text"
            found += pieces(f"{name}.delta", part["text"], **inside, summary_index=number)
            found.append({"type": f"{name}.done", **inside, "summary_index": number, "text": part["text"]})
        for number, part in enumerate(item.get("content", ())):
            field = "refusal" if part["type"] == "refusal" else "text"
            name = {"reasoning_text": "reasoning_text"}.get(part["type"], part["type"])
            found += pieces(f"response.{name}.delta", part[field], **inside, content_index=number)
            found.append({"type": f"response.{name}.done", **inside, "content_index": number, field: part[field]})
        if "arguments" in item:
            name = "response.function_call_arguments"
            found += pieces(f"{name}.delta", item["arguments"], **inside)
            found.append({"type": f"{name}.done", **inside, "arguments": item["arguments"]})
        found.append({"type": "response.output_item.done", **at, "item": item})
    return found


def pieces(kind: str, text: str, **fields: Any) -> list[Event]:
    return [{"type": kind, **fields, "delta": text[start : start + 4]} for start in range(0, len(text), 4)]


def ended(*items: Event, status: str = "completed", **fields: Any) -> Event:
    response = {"model": "m-2026", "status": status, "output": list(items), "usage": USAGE, **fields}
    return {"type": f"response.{status}", "response": response}


def read(
    *events: Event | bytes, limit_bytes: int = 2000, deltas: list[Delta] | None = None, event: str = ""
) -> ModelReply:
    seen: list[Delta] = [] if deltas is None else deltas
    builder = ResponseBuilder(model="asked-for", emit=seen.append, limit_bytes=limit_bytes, errors=ERRORS)
    for each in events:
        builder.feed(event, each if isinstance(each, bytes) else json.dumps(each).encode())
    return builder.finish()


def texts(deltas: list[Delta], kind: type[Delta]) -> str:
    return "".join(each.text for each in deltas if isinstance(each, kind))


# ---------------------------------------------------------------------------------------------- whole replies


def test_a_reply_is_put_together_and_keeps_its_items() -> None:
    deltas: list[Delta] = []
    created: Event = {"type": "response.created", "response": {"model": "m-2026", "output": []}}
    reply = read(created, *events_of(*WHOLE), ended(*WHOLE), deltas=deltas)
    assert reply.message.text == "Look:"
    assert reply.message.reasoning == "Paris,\n\nthen Rome."
    assert reply.message.tool_calls == (
        ToolCall(name="get_weather", arguments='{"city": "Paris"}', provider_call_id="call_1"),
        ToolCall(name="get_weather", arguments='{"city": "Rome"}', provider_call_id="call_2"),
    )
    assert (reply.finish_reason, reply.vendor_finish_reason) == ("tool_calls", "completed")
    assert (reply.vendor, reply.model) == ("stub", "m-2026")
    assert reply.usage == Usage(
        input_tokens=20, output_tokens=10, cached_tokens=5, reasoning_tokens=3, cache_write_tokens=2
    )
    assert to_openai_responses([reply.message], vendor="stub") == WHOLE
    assert texts(deltas, TextPiece) == "Look:"
    assert texts(deltas, ReasoningPiece) == "Paris,\n\nthen Rome."
    for place in (0, 1):
        reported = [each for each in deltas if isinstance(each, ArgumentsPiece) and each.index == place]
        assert "".join(each.text for each in reported) == reply.message.tool_calls[place].arguments
        assert {each.name for each in reported} == {"get_weather"}


@given(st.data())
def test_events_that_are_missing_do_no_harm_once_the_reply_is_whole(data: st.DataObject) -> None:
    stream = events_of(*WHOLE)
    keep = data.draw(st.lists(st.booleans(), min_size=len(stream), max_size=len(stream)))
    reply = read(*(each for each, kept in zip(stream, keep, strict=True) if kept), ended(*WHOLE))
    assert to_openai_responses([reply.message], vendor="stub") == WHOLE


@given(st.permutations(events_of(*WHOLE)))
def test_events_out_of_order_do_no_harm_once_the_reply_is_whole(stream: list[Event]) -> None:
    reply = read(*stream, ended(*WHOLE))
    assert to_openai_responses([reply.message], vendor="stub") == WHOLE


@pytest.mark.parametrize(
    "left_out",
    [
        "response.output_item.added",
        "response.output_text.delta",
        "response.function_call_arguments.delta",
        "response.reasoning_summary_text.delta",
        "response.output_text.done",
        "response.output_item.done",
        "response.",
    ],
)
def test_all_of_a_reply_is_passed_on_whatever_events_a_server_leaves_out(left_out: str) -> None:
    deltas: list[Delta] = []
    stream = [each for each in events_of(*WHOLE) if not each["type"].startswith(left_out)]
    reply = read(*stream, ended(*WHOLE), deltas=deltas)
    assert to_openai_responses([reply.message], vendor="stub") == WHOLE
    assert texts(deltas, TextPiece) == "Look:"
    assert texts(deltas, ArgumentsPiece) == '{"city": "Paris"}{"city": "Rome"}'
    assert texts(deltas, ReasoningPiece) == "Paris,\n\nthen Rome."


@pytest.mark.parametrize("output", [[], None])
def test_items_count_where_the_last_event_repeats_none(output: Any) -> None:
    last = {"type": "response.completed", "response": {"output": output}}
    reply = read(*events_of(*WHOLE), last)
    assert to_openai_responses([reply.message], vendor="stub") == WHOLE
    assert reply.usage == Usage()


def test_items_that_were_never_finished_are_what_their_pieces_say() -> None:
    refusal = {**SAID, "content": [{"type": "output_text", "text": "I "}, {"type": "refusal", "refusal": "will not."}]}
    stream = [each for each in events_of(THOUGHT, refusal, asked(1)) if "done" not in each["type"]]
    reply = read(*stream, {"type": "response.completed", "response": {}})
    assert reply.message.text == "I will not."
    assert reply.message.tool_calls[0] == ToolCall(
        name="get_weather", arguments='{"city": "Paris"}', provider_call_id="call_1"
    )


def test_the_finished_item_is_right_where_pieces_were_wrong() -> None:
    wrong = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Wrong"}
    corrected = {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "Right"}
    assert read(wrong, *events_of(SAID)[-1:], ended(SAID)).message.text == "Look:"
    assert read(wrong, corrected, {"type": "response.completed", "response": {}}).message.text == "Right"


def test_of_reasoning_the_items_own_event_is_kept() -> None:
    shortened = {**THOUGHT, "encrypted_content": "gA"}
    message = read(*events_of(THOUGHT, SAID), ended(shortened, SAID)).message
    assert to_openai_responses([message], vendor="stub") == [THOUGHT, SAID]


def test_reasoning_whose_own_event_is_not_encrypted_is_that_of_the_last_event() -> None:
    bare = {**THOUGHT, "encrypted_content": None}
    deltas: list[Delta] = []
    message = read(*events_of(bare, SAID), ended(THOUGHT, SAID), deltas=deltas).message
    assert to_openai_responses([message], vendor="stub") == [THOUGHT, SAID]
    assert texts(deltas, ReasoningPiece) == message.reasoning
    again = read(*events_of(THOUGHT, SAID), ended(bare, SAID)).message
    assert to_openai_responses([again], vendor="stub") == [THOUGHT, SAID]


def test_items_are_told_apart_by_their_ids_or_at_all_where_a_server_counts_no_places() -> None:
    without = events_of(*WHOLE, places=False)
    same = [{**each, "output_index": 0} for each in events_of(*WHOLE)]
    for stream in (without, same):
        deltas: list[Delta] = []
        endings: list[Event] = [ended(*WHOLE), {"type": "response.completed", "response": {}}]
        for last in endings:
            deltas.clear()
            reply = read(*stream, last, deltas=deltas)
            assert to_openai_responses([reply.message], vendor="stub") == WHOLE
            assert texts(deltas, TextPiece) == "Look:"


def test_calls_without_places_and_ids_follow_one_another() -> None:
    stream = [
        {key: value for key, value in each.items() if key != "item_id"}
        for each in events_of(asked(1), asked(2, '{"city": "Rome"}'), places=False)
        if not each["type"].endswith("item.done")
    ]
    for each in stream:
        each.get("item", {}).pop("id", None)
    reply = read(*stream, {"type": "response.completed", "response": {}})
    assert [each.arguments for each in reply.message.tool_calls] == ['{"city": "Paris"}', '{"city": "Rome"}']


def test_ids_that_change_from_event_to_event_do_no_harm() -> None:
    stream = events_of(*WHOLE)
    for number, each in enumerate(stream):
        if "item_id" in each:
            each["item_id"] = f"x{number}"
        elif each["type"].endswith("added"):
            each["item"]["id"] = f"x{number}"
    deltas: list[Delta] = []
    assert read(*stream, ended(*WHOLE), deltas=deltas).message.text == "Look:"
    assert texts(deltas, TextPiece) == "Look:"


def test_items_that_come_out_of_order_stand_in_their_places() -> None:
    first, second = events_of(SAID, asked(1))[:5], events_of(SAID, asked(1))[5:]
    reply = read(*second, *first, {"type": "response.completed", "response": {}})
    assert to_openai_responses([reply.message], vendor="stub") == [SAID, asked(1)]


def test_an_item_that_is_finished_twice_is_one() -> None:
    stream = events_of(SAID)
    late = next(each for each in stream if each["type"].endswith("text.delta"))
    reply = read(*stream, stream[-1], late, stream[-2], {"type": "response.completed", "response": {}})
    assert to_openai_responses([reply.message], vendor="stub") == [SAID]


def test_two_messages_of_a_reply_are_parted() -> None:
    deltas: list[Delta] = []
    again = {**SAID, "id": "msg_2", "phase": "final_answer"}
    reply = read(*events_of(SAID, again), ended(SAID, again), deltas=deltas)
    assert reply.message.text == texts(deltas, TextPiece) == "Look:\n\nLook:"
    assert to_openai_responses([reply.message], vendor="stub") == [SAID, again]


def test_reasoning_that_a_server_shows_whole_is_read() -> None:
    open_thought = {"type": "reasoning", "id": "rs", "content": [{"type": "reasoning_text", "text": "Hm, Paris."}]}
    for events in (events_of(open_thought, SAID), []):
        deltas: list[Delta] = []
        reply = read(*events, ended(open_thought, SAID), deltas=deltas)
        assert reply.message.reasoning == texts(deltas, ReasoningPiece) == "Hm, Paris."
        assert reply.message.text == texts(deltas, TextPiece) == "Look:"


def test_reasoning_with_a_summary_shows_only_the_summary_and_a_message_only_its_known_parts() -> None:
    deltas: list[Delta] = []
    both = {**THOUGHT, "content": [{"type": "reasoning_text", "text": "Hm."}]}
    said = {**SAID, "content": [*SAID["content"], {"type": "strange", "text": "x"}]}
    reply = read(ended(both, said), deltas=deltas)
    assert reply.message.reasoning == texts(deltas, ReasoningPiece) == "Paris,\n\nthen Rome."
    assert reply.message.text == texts(deltas, TextPiece) == "Look:"


def test_a_reply_that_was_not_streamed_is_read_and_passed_on() -> None:
    deltas: list[Delta] = []
    builder = ResponseBuilder(model="m", emit=deltas.append, limit_bytes=1000, errors=ERRORS)
    builder.whole({"object": "response", "error": None, **ended(*WHOLE)["response"]})
    assert to_openai_responses([builder.finish().message], vendor="stub") == WHOLE
    assert texts(deltas, TextPiece) == "Look:"


def test_a_reply_that_was_not_streamed_may_lack_its_status() -> None:
    builder = ResponseBuilder(model="m", emit=lambda _: None, limit_bytes=1000, errors=ERRORS)
    builder.whole({"output": [SAID]})
    reply = builder.finish()
    assert (reply.message.text, reply.vendor_finish_reason) == ("Look:", "completed")


def test_half_a_character_is_a_mark_and_a_cut_one_whole_again() -> None:
    halves = [{"type": "response.output_text.delta", "output_index": 0, "delta": each} for each in ("\ud83d", "\ude00")]
    deltas: list[Delta] = []
    smile = {**SAID, "content": [{"type": "output_text", "text": "\U0001f600"}]}
    assert read(*halves, ended(smile), deltas=deltas).message.text == "\U0001f600"
    assert texts(deltas, TextPiece) == "\U0001f600"
    broken = {**SAID, "content": [{"type": "output_text", "text": "a\ud83d"}]}
    message = read(ended(broken)).message
    assert message.text == "a?"
    json.dumps(message.vendor_data).encode()


def test_a_whole_text_that_nothing_came_before_is_passed_on_once() -> None:
    deltas: list[Delta] = []
    done = {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "Look:"}
    half = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Lo"}
    empty = {**half, "delta": ""}
    read(half, empty, done, done, *events_of(SAID)[-1:], done, ended(SAID), deltas=deltas)
    assert deltas == [TextPiece("Lo"), TextPiece("ok:")]


def test_of_a_reply_that_was_cut_no_call_gets_arguments_that_the_model_did_not_write() -> None:
    cut: Event = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    assert read(ended(asked(1, ""), **cut)).message.tool_calls[0].arguments == ""
    assert read(ended(asked(1, ""), status="incomplete")).finish_reason == "length"
    assert read(ended(asked(1, '{"ci'), **cut)).message.tool_calls[0].arguments == '{"ci'


# ----------------------------------------------------------------------------------------------- the ending


@pytest.mark.parametrize(
    ("reason", "neutral", "word"),
    [
        ("max_output_tokens", "length", "max_output_tokens"),
        ("max_tokens", "length", "max_tokens"),
        ("content_filter", "content_filter", "content_filter"),
        ("steered", "other", "steered"),
        ("max_messages", "other", "max_messages"),
        (None, "length", "incomplete"),
    ],
)
def test_why_a_reply_is_incomplete_is_reported_in_neutral_words(reason: Any, neutral: str, word: str) -> None:
    reply = read(*events_of(SAID), ended(SAID, status="incomplete", incomplete_details={"reason": reason}))
    assert (reply.finish_reason, reply.vendor_finish_reason, reply.message.text) == (neutral, word, "Look:")


def test_a_refusal_is_text_and_told() -> None:
    refusal = {**SAID, "content": [{"type": "refusal", "refusal": "I will not."}]}
    reply = read(*events_of(refusal), ended(refusal))
    assert (reply.finish_reason, reply.message.text) == ("refusal", "I will not.")
    assert read(ended(refusal, asked(1))).finish_reason == "tool_calls"
    assert read(ended(SAID)).finish_reason == "stop"


def test_a_stream_without_its_last_event_is_cut_wherever_it_ends() -> None:
    stream = events_of(*WHOLE)
    for size in range(len(stream) + 1):
        with pytest.raises(ProviderUnavailable, match="ended the stream before the reply was whole") as caught:
            read(*stream[:size], b"[DONE]")
        assert caught.value.retryable


def test_nothing_is_read_behind_the_last_event() -> None:
    assert read(ended(SAID), b"not json", {"type": "error"}).message.text == "Look:"


def test_unknown_events_and_items_are_ignored() -> None:
    odd: list[Event] = [
        {"type": "response.content_part.added", "part": {}},
        {"type": "response.hologram.delta", "delta": "x"},
        {"type": "response.output_text.delta", "output_index": "odd", "delta": 3},
        {"type": "response.output_text.done", "text": None},
        {"x": 1},
        {"type": "response.output_item.added", "item": {"type": "web_search_call", "id": "ws"}, "output_index": 0},
        {"type": "response.output_item.done", "item": {"type": "web_search_call", "id": "ws"}, "output_index": 0},
    ]
    reply = read(*odd, *({**each, "output_index": 1} for each in events_of(SAID)), {"type": "response.completed"})
    assert reply.message == AssistantMessage(
        text="Look:",
        vendor_data={
            "stub": {
                "responses": [
                    {"type": "web_search_call", "id": "ws"},
                    {**SAID, "content": [{"type": "output_text", "text": 5, "annotations": []}]},
                ]
            }
        },
    )


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        ("server_error", ProviderUnavailable, True),
        ("rate_limit_exceeded", ProviderUnavailable, True),
        ("insufficient_quota", ProviderRejected, False),
        ("invalid_image_format", ProviderRejected, False),
        ("context_length_exceeded", ContextOverflow, False),
        ("invalid_prompt", ContentFiltered, False),
        (None, ProviderUnavailable, True),
    ],
)
def test_an_error_in_the_stream_is_raised_in_each_of_its_shapes(code: Any, kind: Any, retryable: bool) -> None:
    error = {"code": code, "message": "Sorry, no.", "param": None}
    for each in (
        {"type": "error", **error},
        {"type": "error", "error": error},
        {"error": error},
        {"type": "response.failed", "response": {"status": "failed", "error": error}},
    ):
        with pytest.raises(kind, match=r"Sorry, no\.") as caught:
            read(*events_of(SAID), each)
        assert type(caught.value) is kind
        assert caught.value.retryable is retryable


def test_errors_without_words_are_errors_too() -> None:
    for event, fields in (("error", {}), ("", {"type": "response.failed", "response": {"error": None}})):
        with pytest.raises(ProviderUnavailable, match="it gave no reason"):
            read(fields, event=event)
    for status in ("cancelled", "in_progress", ""):
        builder = ResponseBuilder(model="m", emit=lambda _: None, limit_bytes=9, errors=ERRORS)
        with pytest.raises(ProviderUnavailable, match="ended its reply as"):
            builder.whole({"status": status})
    with pytest.raises(ProviderUnavailable, match="broke its reply off: busy"):
        builder.whole({"error": {"message": "busy"}})


def test_an_item_that_cannot_be_read_breaks_the_reply() -> None:
    with pytest.raises(ProviderUnavailable, match="cannot be read: a call's name must be text, not int"):
        read(ended({**asked(1), "name": 3}))
    with pytest.raises(ProviderUnavailable, match="sent a chunk that is not a JSON"):
        read(b"{nope")


@pytest.mark.parametrize(
    "items",
    [
        [{**SAID, "content": [{"type": "output_text", "text": "x" * 200}]}],
        [asked(1, "x" * 200)],
        [{**THOUGHT, "summary": [{"type": "summary_text", "text": "é" * 100}]}],
        [asked(number, "") for number in range(4)],
    ],
)
def test_reading_stops_at_the_size_limit(items: list[Event]) -> None:
    for stream in (events_of(*items), [ended(*items)]):
        with pytest.raises(ReplyTooLarge):
            read(*stream, limit_bytes=200)
