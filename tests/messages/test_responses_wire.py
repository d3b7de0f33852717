"""The items of OpenAI's Responses API, there and back."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_openai_attachments import without_ids
from wire_strategies import argument_texts, names, result_parts, transcripts, words

from support.watchdog import MAX_SECONDS, cpu_seconds
from toolbus.errors import InvalidHistory
from toolbus.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
    from_openai_responses,
    to_openai,
    to_openai_responses,
)
from toolbus.messages.response_items import read_reply
from toolbus.records import replace

Items = list[dict[str, Any]]

THOUGHT: dict[str, Any] = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Paris"}, {"type": "summary_text", "text": "it is."}],
    "encrypted_content": "gAAA",
}
ASKED: dict[str, Any] = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "get_weather",
    "arguments": '{"city": "Paris"}',
    "status": "completed",
}
SAID: dict[str, Any] = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "phase": "final_answer",
    "content": [
        {"type": "output_text", "text": "Sunny.", "annotations": [{"type": "url_citation", "url": "https://x"}]}
    ],
}
ANSWERED: dict[str, Any] = {"type": "function_call_output", "call_id": "call_1", "output": "sun"}
PROMPT: dict[str, Any] = {"role": "user", "content": "Weather?"}
CONVERSATION: Items = [{"role": "system", "content": "Be brief."}, PROMPT, THOUGHT, ASKED, ANSWERED, SAID]


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
        **fields,
    }


def test_a_whole_conversation_reads_as_messages_and_back_again() -> None:
    messages = from_openai_responses(CONVERSATION)
    assert messages[0] == SystemMessage(text="Be brief.")
    asked = messages[2]
    assert isinstance(asked, AssistantMessage)
    assert asked.reasoning == "Paris\n\nit is."
    assert asked.tool_calls == (
        ToolCall(name="get_weather", arguments='{"city": "Paris"}', call_id="call_1", provider_call_id="call_1"),
    )
    assert messages[3] == ToolMessage(call_id="call_1", name="get_weather", content="sun")
    assert isinstance(messages[4], AssistantMessage)
    assert messages[4].text == "Sunny."
    assert to_openai_responses(messages) == CONVERSATION


def test_reasoning_is_kept_unchanged_and_nothing_is_kept_twice() -> None:
    message = from_openai_responses([THOUGHT, ASKED])[0]
    assert isinstance(message, AssistantMessage)
    assert message.vendor_data == {
        "openai": {"responses": [THOUGHT, {"type": "function_call", "id": "fc_1", "status": "completed"}]}
    }
    assert "Sunny" not in str(from_openai_responses([SAID])[0].vendor_data)  # type: ignore[union-attr]


def test_a_reply_that_is_text_and_calls_alone_keeps_nothing() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    items: Items = [{"type": "message", "role": "assistant", "content": "Look:"}, call]
    (message,) = from_openai_responses(items)
    assert message == AssistantMessage(
        text="Look:", tool_calls=(ToolCall(name="f", call_id="a", provider_call_id="a"),)
    )
    assert to_openai_responses([message]) == items


def test_what_one_api_keeps_the_other_does_not_send() -> None:
    chat = {"message": {"audio": {"id": "a"}}, "tool_calls": [{"x": 1}]}
    message = AssistantMessage(
        text="hi", tool_calls=(ToolCall(name="f", call_id="c"),), vendor_data={"openai": {**chat, "responses": []}}
    )
    assert to_openai_responses([message]) == [
        {"type": "message", "role": "assistant", "content": "hi"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    ]
    (thought,) = from_openai_responses([THOUGHT, SAID])
    assert to_openai([thought]) == [{"role": "assistant", "content": "Sunny."}]
    assert to_openai_responses([thought], vendor="azure") == [
        {"type": "message", "role": "assistant", "content": "Sunny."}
    ]


def test_an_edited_reply_goes_as_it_is_now_without_the_items_of_the_old_one() -> None:
    (message,) = from_openai_responses([THOUGHT, SAID, ASKED])
    assert isinstance(message, AssistantMessage)
    message = replace(message, text="It is sunny.")
    sent = to_openai_responses([message])
    assert sent[0] == {"type": "message", "role": "assistant", "content": "It is sunny."}
    assert [each.get("id") for each in sent] == [None, None]
    message = replace(message, text="Sunny.")
    assert len(to_openai_responses([message])) == 3
    message = replace(message, tool_calls=())
    assert to_openai_responses([message]) == [{"type": "message", "role": "assistant", "content": "Sunny."}]


def test_arguments_that_somebody_edited_are_sent_in_their_items_place() -> None:
    (message,) = from_openai_responses([THOUGHT, ASKED])
    assert isinstance(message, AssistantMessage)
    edited = replace(message, tool_calls=(replace(message.tool_calls[0], arguments='{"city":"Rome"}'),))
    assert to_openai_responses([edited]) == [THOUGHT, {**ASKED, "arguments": '{"city":"Rome"}'}]


def test_several_messages_of_one_reply_are_parted_again() -> None:
    items = [ASKED, said("Look:", id="m1", phase="commentary"), said("", id="m0"), said("Then.", id="m2")]
    (message,) = from_openai_responses(items)
    assert isinstance(message, AssistantMessage)
    assert message.text == "Look:\n\nThen."
    assert to_openai_responses([message]) == items
    message = replace(message, text="Look: xThen.")
    assert to_openai_responses([message])[0] == {"type": "message", "role": "assistant", "content": "Look: xThen."}


def test_reasoning_that_leads_to_nothing_is_not_sent() -> None:
    (message,) = from_openai_responses([THOUGHT])
    assert message == AssistantMessage(reasoning="Paris\n\nit is.", vendor_data={"openai": {"responses": [THOUGHT]}})
    assert to_openai_responses([message]) == []
    (message,) = from_openai_responses([THOUGHT, {**THOUGHT, "id": "rs_2"}])
    assert to_openai_responses([message]) == []


def test_items_of_a_reply_that_stands_there_twice_go_once() -> None:
    (message,) = from_openai_responses([THOUGHT, SAID])
    again = [THOUGHT, SAID, {"type": "message", "role": "assistant", "content": "Sunny."}]
    assert to_openai_responses([message, message]) == again
    assert to_openai_responses([message, copy.deepcopy(message)]) == again


def test_replies_of_a_server_that_numbers_the_items_of_each_anew_keep_their_reasoning() -> None:
    other = {**THOUGHT, "encrypted_content": "gBBB"}
    items: Items = [THOUGHT, SAID, PROMPT, other, SAID]
    assert to_openai_responses(from_openai_responses(items)) == items


def test_fields_that_are_empty_do_not_go_back() -> None:
    (message,) = from_openai_responses([{**THOUGHT, "status": None, "content": None}, {**SAID, "phase": None}])
    assert to_openai_responses([message]) == [THOUGHT, {key: SAID[key] for key in SAID if key != "phase"}]


def test_the_state_of_reasoning_which_the_api_refuses_to_get_back_does_not_go_back() -> None:
    items = [{**THOUGHT, "status": "completed"}, {**SAID, "status": "completed"}]
    assert to_openai_responses(from_openai_responses(items)) == [THOUGHT, {**SAID, "status": "completed"}]


def test_reasoning_is_read_from_its_content_where_there_is_no_summary() -> None:
    item = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}, "odd"]}
    (message,) = from_openai_responses([item, SAID])
    assert isinstance(message, AssistantMessage)
    assert message.reasoning == "hm"


def test_refusals_and_tools_that_run_at_the_vendor_go_both_ways() -> None:
    items: Items = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
        said("", id="m", content=[{"type": "refusal", "refusal": "No."}, {"type": "odd", "x": 1}]),
    ]
    (message,) = from_openai_responses(items)
    assert isinstance(message, AssistantMessage)
    assert message.text == "No."
    assert to_openai_responses([message]) == items


def test_replies_in_a_row_stay_apart_and_a_reply_that_calls_is_whole() -> None:
    first, second = (
        {"type": "message", "role": "assistant", "content": "a"},
        {"type": "message", "role": "assistant", "content": "b"},
    )
    assert from_openai_responses([first, second]) == [AssistantMessage(text="a"), AssistantMessage(text="b")]
    whole = [ASKED, THOUGHT, {**ASKED, "id": "fc_2", "call_id": "call_2"}, second]
    results = [ANSWERED, {**ANSWERED, "call_id": "call_2"}]
    messages = from_openai_responses([*whole, *results])
    assert [each.role for each in messages] == ["assistant", "tool", "tool"]
    assert to_openai_responses(messages) == [*whole, *results]


def test_images_and_files_stand_in_prompts_and_in_results() -> None:
    content = (
        TextPart(text="look"),
        ImagePart(url="https://example.com/cat.png"),
        FilePart(url="data:application/pdf;base64,JVBERi0=", media_type="application/pdf", name="a.pdf"),
    )
    wire = [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": "https://example.com/cat.png", "detail": "auto"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,JVBERi0=", "filename": "a.pdf"},
    ]
    call = AssistantMessage(tool_calls=(ToolCall(name="f", call_id="c", provider_call_id="c"),))
    messages = [
        UserMessage(content=content),
        call,
        ToolMessage(call_id="c", name="f", content="look", parts=content[1:]),
    ]
    sent = to_openai_responses(messages)
    assert sent[0] == {"role": "user", "content": wire}
    assert sent[2] == {"type": "function_call_output", "call_id": "c", "output": wire}
    assert from_openai_responses(sent) == messages


@pytest.mark.parametrize(
    ("content", "parts", "sent"),
    [
        ("", (), ""),
        ("", (ImagePart(url="https://a"),), 1),
        ("", (TextPart(text="x"),), 2),
        ("x", (TextPart(text="x"),), 2),
        ("x", (TextPart(text=""), ImagePart(url="https://a")), 3),
    ],
)
def test_text_and_parts_of_a_result_are_told_apart(content: str, parts: Any, sent: Any) -> None:
    call = AssistantMessage(tool_calls=(ToolCall(name="f", call_id="c", provider_call_id="c"),))
    messages = [call, ToolMessage(call_id="c", name="f", content=content, parts=parts)]
    wire = to_openai_responses(messages)
    assert wire[1]["output"] == sent or len(wire[1]["output"]) == sent
    assert from_openai_responses(wire) == messages


def test_links_and_bare_data_of_files_are_read() -> None:
    linked = FilePart(url="https://example.com/a", media_type="application/octet-stream", name="a")
    wire = to_openai_responses([UserMessage(content=(linked,))])
    assert wire[0]["content"] == [{"type": "input_file", "file_url": "https://example.com/a", "filename": "a"}]
    assert from_openai_responses(wire) == [UserMessage(content=(linked,))]
    bare = {"role": "user", "content": [{"type": "input_file", "file_data": "SUQz"}]}
    assert from_openai_responses([bare]) == [
        UserMessage(
            content=(FilePart(url="data:application/octet-stream;base64,SUQz", media_type="application/octet-stream"),)
        )
    ]


def test_instructions_come_as_text_or_parts_under_either_name() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    items = [{"role": "developer", "content": parts}, {"type": "message", "role": "system", "content": "c"}]
    assert from_openai_responses(items) == [SystemMessage(text="ab"), SystemMessage(text="c")]


def test_ids_that_are_repeated_or_too_long_give_way_to_call_ids() -> None:
    long = "x" * 65
    calls = tuple(
        ToolCall(name="f", call_id=f"m{number}", provider_call_id=wire)
        for number, wire in enumerate(["a", "a", "", long])
    )
    results = [ToolMessage(call_id=each.call_id, name="f", content="ok") for each in calls]
    wire = to_openai_responses([AssistantMessage(tool_calls=calls), *results])
    assert [each["call_id"] for each in wire] == ["a", "m1", "m2", "m3"] * 2


def test_a_result_of_a_repeated_id_belongs_to_the_newest_reply_that_has_it() -> None:
    def call(name: str) -> dict[str, Any]:
        return {"type": "function_call", "call_id": "x", "name": name, "arguments": "{}"}

    result = {"type": "function_call_output", "call_id": "x", "output": "done"}
    messages = from_openai_responses([call("old"), {"role": "user", "content": "Again."}, call("new"), result])
    asked, answered = messages[2], messages[3]
    assert isinstance(asked, AssistantMessage)
    assert isinstance(answered, ToolMessage)
    assert (answered.name, answered.call_id) == ("new", asked.tool_calls[0].call_id)


def test_malformed_arguments_go_as_written_or_quoted_where_the_server_parses_them() -> None:
    message = AssistantMessage(tool_calls=(ToolCall(name="f", arguments='{"a', call_id="1"),))
    assert to_openai_responses([message])[0]["arguments"] == '{"a'
    quoted = to_openai_responses([message], valid_arguments=True)[0]["arguments"]
    assert json.loads(quoted) == {"_malformed_arguments": '{"a'}


@given(transcripts(result_parts))
def test_any_transcript_survives_the_wire(messages: list[Message]) -> None:
    before = copy.deepcopy(messages)
    wire = to_openai_responses(messages)
    back = from_openai_responses(wire)
    assert messages == before
    assert [without_ids(each) for each in back] == [without_ids(each) for each in messages]
    assert to_openai_responses(back) == wire


@given(transcripts(result_parts))
def test_what_was_sent_once_stays_as_it_was_when_the_transcript_grows(messages: list[Message]) -> None:
    whole = to_openai_responses(messages)
    for size in range(len(messages)):
        shorter = to_openai_responses(messages[:size])
        assert whole[: len(shorter)] == shorter


item_ids = st.from_regex(r"[a-z]{2}_[0-9]{2}", fullmatch=True)


@st.composite
def items_of_a_model(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["message", "reasoning", "web_search_call"]))
    if kind == "reasoning":
        return {**THOUGHT, "id": draw(item_ids), "encrypted_content": draw(words)}
    if kind == "web_search_call":
        return {"type": kind, "id": draw(item_ids)}
    content = [
        draw(st.sampled_from([{"type": "output_text", "text": text}, {"type": "refusal", "refusal": text}]))
        for text in draw(st.lists(words, max_size=2))
    ]
    fields = draw(st.sampled_from([{}, {"phase": "commentary"}, {"status": "incomplete"}]))
    return said("", id=draw(item_ids), content=content, **fields)


@st.composite
def outputs(draw: st.DrawFn) -> Items:
    """What models may answer, in any order, and the results of their calls."""
    found: Items = [PROMPT]
    number = 0
    for _ in range(draw(st.integers(1, 3))):
        reply = draw(st.lists(items_of_a_model() | st.just("call"), min_size=1, max_size=5))
        results: Items = []
        for each in reply:
            if isinstance(each, str):
                number += 1
                call = {"call_id": f"call_{number}", "name": draw(names), "arguments": draw(argument_texts)}
                found.append({"type": "function_call", "id": draw(item_ids), **call})
                results.append({"type": "function_call_output", "call_id": f"call_{number}", "output": draw(words)})
            else:
                found.append(each)
        while found[-1].get("type") == "reasoning":
            found.pop()
        found += [*results, PROMPT]
    for place, each in enumerate(found):
        if "id" in each:
            each["id"] += f"_{place}"  # the API has each id once
    return found


@given(outputs())
def test_whatever_a_model_answers_goes_back_as_it_came(items: Items) -> None:
    before = copy.deepcopy(items)
    messages = from_openai_responses(items)
    assert to_openai_responses(messages) == before
    assert items == before
    json.dumps([getattr(each, "vendor_data", None) for each in messages])


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ("hello", "an item must be an object, not str"),
        ({"role": "robot"}, "role 'robot' is not one of"),
        ({"type": "item_reference", "id": "x"}, "an item_reference refers to data on the server"),
        ({"role": "user", "content": 3}, "content must be text, not int"),
        ({"role": "user", "content": ["x"]}, "a part must be an object, not str"),
        ({"role": "user", "content": [{"type": "video"}]}, "a part of type 'video' is not one of"),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "file_id cannot be carried"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "file_id cannot be carried"),
        ({"type": "function_call", "name": 3}, "a call's name must be text, not int"),
        ({"type": "function_call", "name": "f", "arguments": 3}, "a call's arguments must be text, not int"),
        ({"role": "assistant", "content": [3]}, "a part must be an object, not int"),
        ({"type": "function_call_output", "call_id": "c", "output": 3}, "output must be text, not int"),
    ],
)
def test_an_item_that_cannot_be_read_is_refused_with_its_index(item: Any, problem: str) -> None:
    for behind in ([], [PROMPT]):
        with pytest.raises(InvalidHistory, match=problem) as caught:
            from_openai_responses([PROMPT, item, *behind])
        assert caught.value.index == 1


def test_the_items_of_a_lone_reply_are_the_first_of_their_history() -> None:
    with pytest.raises(InvalidHistory, match="a call's name must be text") as caught:
        read_reply([{"type": "function_call", "name": 3}])
    assert caught.value.index == 0


def test_arguments_may_be_an_object_and_a_result_without_a_call_keeps_its_name() -> None:
    (message,) = from_openai_responses([{"type": "function_call", "call_id": "c", "name": "f", "arguments": {"n": 1}}])
    assert isinstance(message, AssistantMessage)
    assert message.tool_calls[0].arguments == '{"n":1}'
    orphan = {"type": "function_call_output", "call_id": "x", "name": "g", "output": '{"ok":false}'}
    assert from_openai_responses([orphan]) == [
        ToolMessage(call_id="x", name="g", content='{"ok":false}', is_error=True)
    ]


@pytest.mark.guarantee("G08")
def test_every_message_of_the_assistant_says_that_it_is_one_as_llama_cpp_wants_it() -> None:
    kept = from_openai_responses(
        [{"role": "assistant", "id": "m_1", "content": [{"type": "output_text", "text": "a"}]}]
    )
    others = [AssistantMessage(text="b", vendor_data={"anthropic": {"content": []}}), AssistantMessage(text="")]
    for item in to_openai_responses([*kept, *others]):
        assert (item["type"], item["role"]) == ("message", "assistant")


@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
def test_the_items_of_a_reply_are_read_in_a_time_that_grows_with_their_number_only() -> None:
    items: list[dict[str, Any]] = [{"type": "reasoning", "id": f"rs_{number}"} for number in range(10_000)]
    items.append({"type": "message", "role": "assistant", "content": "Done."})
    assert cpu_seconds(lambda: from_openai_responses(items)) < MAX_SECONDS
