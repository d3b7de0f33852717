from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from wire_strategies import result_parts, transcripts

from toolbus.core.transcript import validate
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
    from_anthropic,
    to_anthropic,
)
from toolbus.records import replace

SAMPLE: dict[str, Any] = {
    "system": "You are an AI assistant.",
    "messages": [
        {"role": "user", "content": "What are some sample nodes?"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "toolu_1", "name": "sample", "input": {"count": 3}},
                {"type": "tool_use", "id": "toolu_2", "name": "sample", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "three"},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no", "is_error": True},
            ],
        },
        {"role": "assistant", "content": "Here are 3."},
    ],
}


def test_a_whole_conversation_reads_as_messages_and_back_again() -> None:
    messages = from_anthropic(SAMPLE)
    assert messages == [
        SystemMessage(text="You are an AI assistant."),
        UserMessage(content="What are some sample nodes?"),
        AssistantMessage(
            text="Let me look.",
            tool_calls=(
                ToolCall(name="sample", arguments='{"count":3}', call_id="toolu_1", provider_call_id="toolu_1"),
                ToolCall(name="sample", arguments="{}", call_id="toolu_2", provider_call_id="toolu_2"),
            ),
        ),
        ToolMessage(call_id="toolu_1", name="sample", content="three"),
        ToolMessage(call_id="toolu_2", name="sample", content="no", is_error=True),
        AssistantMessage(text="Here are 3."),
    ]
    assert to_anthropic(messages) == SAMPLE


def test_a_list_with_instructions_beside_it_is_the_same() -> None:
    assert from_anthropic(SAMPLE["messages"], SAMPLE["system"]) == from_anthropic(SAMPLE)
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert from_anthropic([], blocks) == [SystemMessage(text="a\n\nb")]
    assert from_anthropic(SAMPLE["messages"])[0] == UserMessage(content="What are some sample nodes?")


@given(transcripts(beside=result_parts))
def test_any_transcript_survives_the_wire(messages: list[Message]) -> None:
    before = copy.deepcopy(messages)
    wire = to_anthropic(messages)
    back = from_anthropic(wire)
    assert messages == before
    assert to_anthropic(back) == wire
    assert [plain(each) for each in back] == [plain(each) for each in messages]


def plain(message: Message) -> Any:
    """What the dialect carries: no call ids, and arguments as values where they have one."""
    if isinstance(message, ToolMessage):
        return message.name, message.content, message.parts, message.is_error
    if isinstance(message, AssistantMessage):
        return message.text, [(call.name, parsed(call.arguments)) for call in message.tool_calls]
    if isinstance(message, UserMessage) and len(message.content) == 1 and isinstance(message.content[0], TextPart):
        return UserMessage(content=message.content[0].text)
    return message


def parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=lambda _: text)
    except ValueError:
        return text


@given(transcripts())
def test_any_transcript_obeys_the_rules_of_the_api(messages: list[Message]) -> None:
    wire = to_anthropic(messages)["messages"]
    roles = [each["role"] for each in wire]
    assert all(one != next_ for one, next_ in itertools.pairwise(roles))
    end: dict[str, Any] = {"content": []}
    for asking, answering in zip(wire, [*wire[1:], end], strict=True):
        uses: list[dict[str, Any]] = [b for b in asking["content"] if isinstance(b, dict) and b["type"] == "tool_use"]
        if not uses:
            continue
        ids = [use["id"] for use in uses]
        results = answering["content"][: len(ids)]
        assert [each["tool_use_id"] for each in results] == ids
        assert len(set(ids)) == len(ids)
        for use in uses:
            assert set(use["id"]) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
            assert isinstance(use["input"], dict)
            json.dumps(use["input"], allow_nan=False)


def test_parallel_results_are_one_user_message_and_the_next_user_text_joins_it() -> None:
    calls = (ToolCall(name="f", call_id="a"), ToolCall(name="f", call_id="b"))
    wire = to_anthropic(
        [
            AssistantMessage(tool_calls=calls),
            ToolMessage(call_id="a", name="f", content="1"),
            ToolMessage(call_id="b", name="f", content="2"),
            UserMessage(content="and now?"),
        ]
    )
    assert [each["role"] for each in wire["messages"]] == ["assistant", "user"]
    assert [block["type"] for block in wire["messages"][1]["content"]] == ["tool_result", "tool_result", "text"]
    assert "system" not in wire
    assert from_anthropic(wire)[-1] == UserMessage(content="and now?")


def test_neighbours_of_one_role_are_merged_and_empty_text_is_left_out() -> None:
    wire = to_anthropic(
        [
            UserMessage(content="one"),
            AssistantMessage(text=""),
            UserMessage(content=(TextPart(text="two"), TextPart(text=" "))),
            AssistantMessage(text="a"),
            AssistantMessage(text="b"),
        ]
    )
    assert wire["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]


def test_instructions_stand_in_front_and_later_notes_where_they_were_said() -> None:
    wire = to_anthropic(
        [
            SystemMessage(text="first"),
            SystemMessage(text=""),
            SystemMessage(text="second"),
            UserMessage(content="hi"),
            SystemMessage(text="a note"),
        ]
    )
    assert wire["system"] == "first\n\nsecond"
    assert wire["messages"][0]["content"][1] == {"type": "text", "text": "<system>\na note\n</system>"}


def test_malformed_arguments_become_an_object_that_quotes_them_and_come_back_as_written() -> None:
    for text in ('{"city": "Par', "[1, 2]", '"text"', '{"x": NaN}', '{"x": 1e999}', '{"x": "\\ud800"}'):
        wire = to_anthropic([AssistantMessage(tool_calls=(ToolCall(name="f", arguments=text, call_id="a"),))])
        assert wire["messages"][0]["content"][0]["input"] == {"_malformed_arguments": text}
        (back,) = from_anthropic(wire)
        assert isinstance(back, AssistantMessage)
        assert back.tool_calls[0].arguments == text


def test_empty_arguments_are_an_empty_object_and_large_integers_stay_exact() -> None:
    calls = (
        ToolCall(name="f", arguments="", call_id="a"),
        ToolCall(name="f", arguments='{"n": 123456789012345678901234567890}', call_id="b"),
    )
    blocks = to_anthropic([AssistantMessage(tool_calls=calls)])["messages"][0]["content"]
    assert [each["input"] for each in blocks] == [{}, {"n": 123456789012345678901234567890}]


def test_ids_with_characters_that_the_api_refuses_are_replaced() -> None:
    calls = (
        ToolCall(name="f", call_id="minted", provider_call_id="functions.f:0"),
        ToolCall(name="f", call_id="functions.f:1", provider_call_id="functions.f:1"),
    )
    results = [ToolMessage(call_id=call.call_id, name="f", content="x") for call in calls]
    wire = to_anthropic([AssistantMessage(tool_calls=calls), *results])["messages"]
    assert [each["id"] for each in wire[0]["content"]] == ["minted", "functions_f_1"]
    assert [each["tool_use_id"] for each in wire[1]["content"]] == ["minted", "functions_f_1"]


THINKING: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
    {"type": "text", "text": "First. "},
    {"type": "redacted_thinking", "data": "AAAA"},
    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
    {"type": "thinking", "thinking": "so", "signature": "c2lnMg=="},
    {"type": "text", "text": "Second."},
    {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
]


def test_thinking_with_its_signature_goes_back_unchanged_and_in_its_place() -> None:
    wire = {"messages": [{"role": "assistant", "content": copy.deepcopy(THINKING)}]}
    (message,) = from_anthropic(wire)
    assert isinstance(message, AssistantMessage)
    assert (message.text, message.reasoning) == ("First. Second.", "hm\n\nso")
    assert message.vendor_data == {"anthropic": {"content": THINKING}}
    assert to_anthropic([message]) == {"messages": [{"role": "assistant", "content": THINKING}]}


def test_thinking_of_another_model_is_left_out() -> None:
    kept: list[dict[str, Any]] = copy.deepcopy(THINKING)
    (read,) = from_anthropic([{"role": "assistant", "content": kept}])
    message = replace(read, vendor_data={"anthropic": {"content": kept, "model": "one"}})
    without = [block for block in THINKING if "thinking" not in block["type"]]
    for model, content in ((None, THINKING), ("one", THINKING), ("two", without)):
        assert to_anthropic([message], model=model)["messages"][0]["content"] == content
    assert to_anthropic([read], model="two")["messages"][0]["content"] == THINKING, "nobody says whose it is"


def test_a_kept_call_with_an_integer_that_no_store_writes_has_its_arguments_as_text() -> None:
    wanted = {"n": 10**400}
    call: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": wanted}
    (message,) = from_anthropic([{"role": "assistant", "content": [THINKING[0], call]}])
    assert isinstance(message, AssistantMessage)
    quoted = {**call, "input": {"_malformed_arguments": json.dumps(wanted)}}
    assert message.vendor_data == {"anthropic": {"content": [THINKING[0], quoted]}}
    assert to_anthropic([message])["messages"][0]["content"] == [THINKING[0], quoted]


def test_thinking_that_nothing_follows_is_left_out() -> None:
    thoughts = [THINKING[0], THINKING[2]]
    (message,) = from_anthropic([{"role": "assistant", "content": [{"type": "text", "text": "Hm."}, *thoughts]}])
    assert to_anthropic([message])["messages"] == [{"role": "assistant", "content": "Hm."}]


@pytest.mark.parametrize("text", [[], [{"type": "text", "text": "Once more."}]], ids=["only a call", "text and a call"])
def test_a_result_belongs_to_the_newest_call_with_its_id(text: list[Any]) -> None:
    call: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}
    wire: list[tuple[str, Any]] = [
        ("assistant", [call]),
        ("user", "Again."),
        ("assistant", [*text, call]),
        ("user", [result]),
    ]
    found = from_anthropic([{"role": role, "content": content} for role, content in wire])
    replies = [each for each in found if isinstance(each, AssistantMessage)]
    assert isinstance(found[-1], ToolMessage)
    assert found[-1].call_id == replies[1].tool_calls[0].call_id != replies[0].tool_calls[0].call_id


def test_a_note_in_blocks_is_read_like_a_note() -> None:
    blocks = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]
    found = from_anthropic([{"role": "user", "content": "Hi."}, {"role": "system", "content": blocks}])
    assert found[1:] == [SystemMessage(text="Be brief.")]


def test_kept_blocks_follow_ids_that_had_to_change() -> None:
    reply = {"role": "assistant", "content": copy.deepcopy(THINKING)}
    results = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": each, "content": "x"} for each in ("toolu_1", "toolu_2")],
    }
    wire = to_anthropic(from_anthropic([reply, results, reply, results]))["messages"]
    asked = [[b["id"] for b in each["content"] if b["type"] == "tool_use"] for each in wire[::2]]
    answers = [[b["tool_use_id"] for b in each["content"]] for each in wire[1::2]]
    assert asked == answers
    assert len({each for ids in asked for each in ids}) == 4
    assert wire[0]["content"] == THINKING


def test_an_edited_reply_keeps_its_thinking_in_front() -> None:
    (message,) = from_anthropic([{"role": "assistant", "content": copy.deepcopy(THINKING)}])
    assert isinstance(message, AssistantMessage)
    content = to_anthropic([replace(message, text="Edited.")])["messages"][0]["content"]
    assert [each["type"] for each in content] == [
        "thinking",
        "redacted_thinking",
        "thinking",
        "text",
        "tool_use",
        "tool_use",
    ]
    assert content[3]["text"] == "Edited."


def test_a_reply_from_which_a_call_was_taken_keeps_its_thinking_in_front() -> None:
    (message,) = from_anthropic([{"role": "assistant", "content": copy.deepcopy(THINKING)}])
    assert isinstance(message, AssistantMessage)
    content = to_anthropic([replace(message, tool_calls=message.tool_calls[1:])])["messages"][0]["content"]
    assert [each["type"] for each in content] == ["thinking", "redacted_thinking", "thinking", "text", "tool_use"]
    assert (content[3]["text"], content[4]["name"]) == ("First. Second.", "g")


def test_a_text_with_more_than_text_or_after_a_call_is_kept_in_its_place() -> None:
    call: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    cited = {"type": "text", "text": "So.", "citations": [{"type": "char_location"}]}
    for content in ([cited], [call, {"type": "text", "text": "So."}]):
        found = from_anthropic([{"role": "assistant", "content": content}])
        assert to_anthropic(found)["messages"][0]["content"] == content


def test_instructions_that_are_given_go_before_those_of_the_dictionary() -> None:
    assert from_anthropic(SAMPLE, "Be brief.")[0] == SystemMessage(text="Be brief.")


def test_a_document_is_of_the_type_that_its_source_and_its_context_say() -> None:
    url, data = {"type": "url", "url": "https://a/b"}, {"type": "base64", "data": "aGk="}
    for document, file in (
        ({"source": url}, FilePart(url="https://a/b", media_type="application/pdf")),
        ({"source": url, "context": "see page 3/4"}, FilePart(url="https://a/b", media_type="application/pdf")),
        (
            {"source": url, "context": "text/html; charset=x"},
            FilePart(url="https://a/b", media_type="text/html; charset=x"),
        ),
        (
            {"source": data},
            FilePart(url="data:application/octet-stream;base64,aGk=", media_type="application/octet-stream"),
        ),
    ):
        read = from_anthropic([{"role": "user", "content": [{"type": "document", **document}]}])
        assert read == [UserMessage(content=(file,))]
    json_file = FilePart(url="data:application/json;base64,e30=", media_type="application/json")
    assert to_anthropic([UserMessage(content=(json_file,))])["messages"][0]["content"] == [
        {"type": "document", "source": {"type": "base64", "media_type": "application/json", "data": "e30="}}
    ]


def test_images_and_documents_go_both_ways() -> None:
    content = (
        ImagePart(url="https://example.com/cat.png"),
        ImagePart(url="data:image/png;base64,iVBORw0KGgo="),
        FilePart(url="data:application/pdf;base64,JVBERi0=", media_type="application/pdf", name="a.pdf"),
        FilePart(url="https://example.com/b.pdf", media_type="application/pdf"),
        FilePart(url="data:text/plain;base64,aGVsbG8=", media_type="text/plain"),
    )
    wire = to_anthropic([UserMessage(content=content)])
    assert [each["source"] for each in wire["messages"][0]["content"]] == [
        {"type": "url", "url": "https://example.com/cat.png"},
        {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
        {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
        {"type": "url", "url": "https://example.com/b.pdf"},
        {"type": "text", "media_type": "text/plain", "data": "hello"},
    ]
    assert from_anthropic(wire) == [UserMessage(content=content)]


@pytest.mark.parametrize(
    ("url", "source"),
    [
        ("data:,hi%20there", {"type": "text", "media_type": "text/plain", "data": "hi there"}),
        ("data:text/plain;base64,/w==", {"type": "base64", "media_type": "text/plain", "data": "/w=="}),
        ("data:text/plain;base64,!", {"type": "base64", "media_type": "text/plain", "data": "!"}),
    ],
)
def test_text_documents_are_text_where_they_can_be(url: str, source: dict[str, str]) -> None:
    wire = to_anthropic([UserMessage(content=(FilePart(url=url, media_type="text/plain"),))])
    assert wire["messages"][0]["content"][0]["source"] == source


def test_a_failed_result_without_a_word_gets_one() -> None:
    wire = to_anthropic([ToolMessage(call_id="a", name="f", content="", is_error=True)])
    assert wire["messages"][0]["content"][0]["content"] == "error"


def test_results_carry_images_and_documents_both_ways() -> None:
    parts = (
        ImagePart(url="data:image/png;base64,iVBORw0KGgo="),
        FilePart(url="data:text/csv;base64,YSxi", media_type="text/csv", name="a.csv"),
        FilePart(url="https://example.com/a.html", media_type="text/html"),
        TextPart(text="the end"),
    )
    messages = [
        AssistantMessage(tool_calls=(ToolCall(name="f", call_id="a", provider_call_id="a"),)),
        ToolMessage(call_id="a", name="f", content="see", parts=parts),
    ]
    wire = to_anthropic(messages)
    assert wire["messages"][1]["content"] == [
        {
            "type": "tool_result",
            "tool_use_id": "a",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "a,b"},
                    "title": "a.csv",
                    "context": "text/csv",
                },
                {
                    "type": "document",
                    "source": {"type": "url", "url": "https://example.com/a.html"},
                    "context": "text/html",
                },
                {"type": "text", "text": "the end"},
            ],
        }
    ]
    assert from_anthropic(wire) == messages


def test_a_result_without_text_has_its_parts_alone_and_a_failed_one_a_word_in_front() -> None:
    part = ImagePart(url="https://example.com/a.png")
    for is_error, kinds in ((False, ["image"]), (True, ["text", "image"])):
        message = ToolMessage(call_id="a", name="f", content="", parts=(part,), is_error=is_error)
        (block,) = to_anthropic([message])["messages"][0]["content"]
        assert [each["type"] for each in block["content"]] == kinds
        (back,) = from_anthropic(to_anthropic([message]))
        assert isinstance(back, ToolMessage)
        assert back.parts == (part,)


def test_a_mark_stands_for_what_has_no_neutral_form_in_a_result() -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": "see ", "cache_control": {"type": "ephemeral"}},
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
        {"type": "search_result", "source": "https://example.com", "content": []},
    ]
    wire = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": blocks}]}]
    marks = (TextPart(text="[image]"), TextPart(text="[search_result]"))
    assert from_anthropic(wire) == [ToolMessage(call_id="a", name="", content="see ", parts=marks)]


def test_names_with_characters_that_the_api_refuses_are_replaced() -> None:
    calls = (ToolCall(name="functions.f", call_id="a"), ToolCall(name="", call_id="b"))
    wire = to_anthropic([AssistantMessage(tool_calls=calls)])
    assert [each["name"] for each in wire["messages"][0]["content"]] == ["functions_f", "_"]


def test_kept_blocks_follow_arguments_that_were_edited_and_leave_empty_text_out() -> None:
    blank: list[dict[str, Any]] = [{"type": "text", "text": "\n\n"}]
    (message,) = from_anthropic([{"role": "assistant", "content": [*blank, *copy.deepcopy(THINKING)]}])
    assert isinstance(message, AssistantMessage)
    assert to_anthropic([message])["messages"][0]["content"] == THINKING
    calls = (replace(message.tool_calls[0], arguments='{"a": "***"}'), *message.tool_calls[1:])
    edited = to_anthropic([replace(message, tool_calls=calls)])["messages"][0]["content"]
    assert edited[3] == {**THINKING[3], "input": {"a": "***"}}
    assert edited[4:] == THINKING[4:]


def test_cache_marks_are_not_carried() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    wire = [
        {"role": "user", "content": [{"type": "text", "text": "hi", **mark}]},
        {"role": "assistant", "content": [{"type": "text", "text": "ho", **mark}]},
        {"role": "user", "content": "and?"},
        {"role": "assistant", "content": [{**each, **mark} for each in THINKING]},
    ]
    found = from_anthropic(wire)
    assert found[:2] == [UserMessage(content=(TextPart(text="hi"),)), AssistantMessage(text="ho")]
    assert isinstance(found[3], AssistantMessage)
    assert found[3].vendor_data == {"anthropic": {"content": THINKING}}


def test_thinking_that_is_not_shown_is_kept_without_reasoning() -> None:
    hidden = [{"type": "thinking", "thinking": "", "signature": "c2ln"}, {"type": "text", "text": "4"}]
    (message,) = from_anthropic([{"role": "assistant", "content": hidden}])
    assert isinstance(message, AssistantMessage)
    assert (message.text, message.reasoning) == ("4", "")
    assert to_anthropic([message])["messages"][0]["content"] == hidden


@pytest.mark.parametrize(
    ("wire", "problem"),
    [
        ({"role": "tool", "content": "x"}, "role 'tool' is not one of user, assistant, system"),
        ({"role": "user", "content": 3}, "content must be text or blocks, not int"),
        ({"role": "user", "content": ["x"]}, "a block must be an object, not str"),
        ({"role": "user", "content": [{"type": "video"}]}, "a block of type 'video'"),
        ({"role": "user", "content": [{"type": 3}]}, "the type of a block must be text, not '3'"),
        ({"role": "assistant", "content": [{"type": "text", "text": 3}]}, "a block's text must be text, not int"),
        ({"role": "user", "content": [{"type": "image"}]}, "the source of a image must be an object"),
        ({"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}, "a source of type 'file'"),
        ({"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": 3}]}, "input must be an object"),
    ],
)
def test_a_message_that_cannot_be_read_is_refused_with_its_index(wire: Any, problem: str) -> None:
    with pytest.raises(InvalidHistory, match=problem) as caught:
        from_anthropic([{"role": "user", "content": "fine"}, wire])
    assert caught.value.index == 1


@pytest.mark.parametrize(
    ("system", "problem"),
    [
        ([3], "a block of system must be an object, not int"),
        ([{"type": "text", "text": 3}], "a block's text must be text, not int"),
        (3, "system must be a list, not int"),
    ],
)
def test_instructions_that_cannot_be_read_are_refused_before_the_first_message(system: Any, problem: str) -> None:
    with pytest.raises(InvalidHistory, match=problem) as caught:
        from_anthropic([{"role": "user", "content": "fine"}], system)
    assert caught.value.index == 0


def test_one_message_is_not_taken_for_an_empty_conversation() -> None:
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"role": "user", "content": "hi"}, "a dictionary without messages; pass a list of messages"),
        ({"messages": 3}, "messages must be a list, not int"),
    ]
    for wrong, problem in wrongs:
        with pytest.raises(InvalidHistory, match=problem) as caught:
            from_anthropic(wrong)
        assert caught.value.index == 0


@pytest.mark.guarantee("G08")
def test_messages_of_the_assistant_in_a_row_are_one_reply_as_for_the_api() -> None:
    wire: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Let me look."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "a", "input": {}}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t2", "name": "b", "input": {"n": 1}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "one"},
                {"type": "tool_result", "tool_use_id": "t2", "content": "two"},
            ],
        },
        {"role": "assistant", "content": "Done"},
        {"role": "assistant", "content": "."},
    ]
    found = from_anthropic(wire)
    validate(found)
    assert [each.role for each in found] == ["user", "assistant", "tool", "tool", "assistant"]
    reply = found[1]
    assert isinstance(reply, AssistantMessage)
    assert (reply.text, [call.name for call in reply.tool_calls]) == ("Let me look.", ["a", "b"])
    assert reply.vendor_data is None
    assert [each.text for each in found[4:] if isinstance(each, AssistantMessage)] == ["Done."]


def test_what_is_wrong_in_a_row_of_messages_is_reported_with_its_own_index() -> None:
    with pytest.raises(InvalidHistory, match=r"history\[1\]: a tool_use's name must be text"):
        from_anthropic(
            [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": [{"type": "tool_use", "name": 3}]}]
        )
