from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from wire_strategies import transcripts

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
    from_openai,
    to_openai,
)

SAMPLE: list[dict[str, Any]] = [
    {"role": "system", "content": "You are an AI assistant."},
    {"role": "user", "content": "What are some sample nodes?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_abc123",
                "type": "function",
                "function": {"name": "sampleData", "arguments": '{"target": "nodes", "count": 3}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_abc123", "content": '{"success": true, "data": {"nodes": []}}'},
    {"role": "assistant", "content": "Here are 3 sample nodes."},
]


def called(*calls: tuple[str, str, str], text: str = "") -> AssistantMessage:
    made = tuple(ToolCall(name=name, call_id=call_id, provider_call_id=wire) for name, call_id, wire in calls)
    return AssistantMessage(text=text, tool_calls=made)


def answered(call_id: str, content: str = "ok") -> ToolMessage:
    return ToolMessage(call_id=call_id, name="f", content=content)


def wire_ids(wire: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    asked = [call["id"] for each in wire for call in each.get("tool_calls") or ()]
    return asked, [each["tool_call_id"] for each in wire if each["role"] == "tool"]


def test_a_whole_conversation_reads_as_messages_and_back_again() -> None:
    messages = from_openai(SAMPLE)
    assert messages[0] == SystemMessage(text="You are an AI assistant.")
    assert messages[2] == AssistantMessage(
        tool_calls=(
            ToolCall(
                name="sampleData",
                arguments='{"target": "nodes", "count": 3}',
                call_id="call_abc123",
                provider_call_id="call_abc123",
            ),
        )
    )
    assert messages[3] == ToolMessage(
        call_id="call_abc123", name="sampleData", content='{"success": true, "data": {"nodes": []}}'
    )
    assert to_openai(messages) == SAMPLE


@given(transcripts())
def test_any_transcript_survives_the_wire(messages: list[Message]) -> None:
    before = copy.deepcopy(messages)
    wire = to_openai(messages)
    back = from_openai(wire)
    assert messages == before
    assert [plain(each) for each in back] == [plain(each) for each in messages]
    assert to_openai(back) == wire


@given(transcripts())
def test_every_result_has_the_id_of_its_call_and_no_id_is_used_twice(messages: list[Message]) -> None:
    asked, answers = wire_ids(to_openai(messages))
    assert asked == answers
    assert len(set(asked)) == len(asked)
    assert all(asked)


@given(transcripts())
def test_what_was_sent_once_stays_as_it_was_when_the_transcript_grows(messages: list[Message]) -> None:
    whole = to_openai(messages)
    for size in range(len(messages)):
        assert to_openai(messages[:size]) == whole[:size]


def plain(message: Message) -> Message:
    """The message without its call ids, which pair it and nothing else."""
    if isinstance(message, ToolMessage):
        return ToolMessage(call_id="", name=message.name, content=message.content, is_error=message.is_error)
    if isinstance(message, AssistantMessage):
        calls = tuple(ToolCall(name=each.name, arguments=each.arguments) for each in message.tool_calls)
        return AssistantMessage(text=message.text, tool_calls=calls)
    return message


def test_a_provider_id_is_used_where_it_can_be_told_apart() -> None:
    wire = to_openai([called(("f", "m1", "call_a"), ("f", "m2", "call_b")), answered("m1"), answered("m2")])
    assert wire_ids(wire) == (["call_a", "call_b"], ["call_a", "call_b"])


def test_empty_and_repeated_provider_ids_give_way_to_call_ids() -> None:
    wire = to_openai(
        [
            called(("f", "m1", "call_0"), ("f", "m2", "call_0"), ("f", "m3", "")),
            answered("m1"),
            answered("m2"),
            answered("m3"),
            called(("f", "m4", "call_0")),
            answered("m4"),
        ]
    )
    assert wire_ids(wire) == (["call_0", "m2", "m3", "m4"], ["call_0", "m2", "m3", "m4"])


def test_call_ids_that_somebody_repeated_by_hand_are_told_apart_too() -> None:
    wire = to_openai(
        [called(("f", "x", ""), ("f", "x", "")), answered("x", "1"), answered("x", "2"), called(("f", "", ""))]
    )
    asked, answers = wire_ids(wire)
    assert asked[:2] == answers
    assert len(set(asked)) == 3
    assert all(asked)


def test_an_orphan_keeps_the_id_that_it_has() -> None:
    assert to_openai([answered("nobody")])[0]["tool_call_id"] == "nobody"
    assert from_openai([{"role": "tool", "tool_call_id": "nobody", "content": "x", "name": "f"}]) == [
        ToolMessage(call_id="nobody", name="f", content="x")
    ]


def test_repeated_and_empty_wire_ids_become_unique_call_ids_paired_by_position() -> None:
    def asks(*ids: str | None) -> dict[str, Any]:
        calls = [{"id": each, "function": {"name": f"f{n}", "arguments": "{}"}} for n, each in enumerate(ids)]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    def result(wire_id: str, content: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": wire_id, "content": content}

    messages = from_openai(
        [
            asks("a", "a"),
            result("a", "first"),
            result("a", "second"),
            asks("", None),
            result("", "third"),
            result("", "fourth"),
            asks("a"),
            result("a", "fifth"),
        ]
    )
    calls = [call for each in messages if isinstance(each, AssistantMessage) for call in each.tool_calls]
    results = [each for each in messages if isinstance(each, ToolMessage)]
    assert [call.provider_call_id for call in calls] == ["a", "a", "", "", "a"]
    assert len({call.call_id for call in calls}) == 5
    assert [each.call_id for each in results] == [call.call_id for call in calls]
    assert [each.name for each in results] == ["f0", "f1", "f0", "f1", "f0"]
    assert [each.content for each in results] == ["first", "second", "third", "fourth", "fifth"]


def test_a_second_result_of_one_call_still_names_its_call() -> None:
    back = from_openai([*SAMPLE[2:4], {"role": "tool", "tool_call_id": "call_abc123", "content": "again"}])
    assert back[2] == ToolMessage(call_id="call_abc123", name="sampleData", content="again")


def test_images_files_and_sound_go_both_ways() -> None:
    content = (
        TextPart(text="look"),
        ImagePart(url="https://example.com/cat.png"),
        FilePart(url="data:application/pdf;base64,JVBERi0=", media_type="application/pdf", name="a.pdf"),
        FilePart(url="data:audio/mpeg;base64,SUQz", media_type="audio/mpeg"),
        FilePart(url="data:audio/wav;base64,UklG", media_type="audio/wav"),
    )
    wire = to_openai([UserMessage(content=content)])
    assert wire == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}},
                {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0=", "filename": "a.pdf"}},
                {"type": "input_audio", "input_audio": {"data": "SUQz", "format": "mp3"}},
                {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}},
            ],
        }
    ]
    assert from_openai(wire) == [UserMessage(content=content)]


def test_a_file_behind_a_link_comes_back_without_its_type() -> None:
    wire = to_openai([UserMessage(content=(FilePart(url="https://example.com/a", media_type="application/pdf"),))])
    assert from_openai(wire) == [
        UserMessage(content=(FilePart(url="https://example.com/a", media_type="application/octet-stream"),))
    ]


def test_an_image_given_as_bare_text_is_understood() -> None:
    wire = [{"role": "user", "content": [{"type": "image_url", "image_url": "https://example.com/a.png"}]}]
    assert from_openai(wire) == [UserMessage(content=(ImagePart(url="https://example.com/a.png"),))]


def test_developer_messages_parts_of_text_and_refusals_read_as_text() -> None:
    assert from_openai(
        [
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "refusal": "No.", "annotations": [], "audio": None},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "Never."}]},
        ]
    ) == [SystemMessage(text="ab"), AssistantMessage(text="No."), AssistantMessage(text="Never.")]


def test_reasoning_is_read_and_sent_back_only_to_those_who_ask_for_it() -> None:
    wire = [{"role": "assistant", "content": "4", "reasoning_content": "2 and 2"}]
    messages = from_openai(wire)
    assert messages == [AssistantMessage(text="4", reasoning="2 and 2")]
    assert to_openai(messages) == [{"role": "assistant", "content": "4"}]
    assert to_openai(messages, reasoning_field="reasoning_content") == wire


def test_fields_of_one_vendor_go_back_to_that_vendor_alone() -> None:
    call: dict[str, Any] = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    signed = {**call, "id": "b", "extra_content": {"google": {"thought_signature": "s"}}}
    wire = [{"role": "assistant", "content": None, "tool_calls": [call, signed], "reasoning_details": [{"x": 1}]}]
    messages = from_openai(wire, vendor="gemini")
    assert to_openai(messages, vendor="gemini") == wire
    assert to_openai(messages) == [{"role": "assistant", "content": None, "tool_calls": [call, {**call, "id": "b"}]}]


def test_fields_of_calls_that_somebody_removed_are_left_out() -> None:
    extras = {"openai": {"tool_calls": [{"x": 1}, None]}}
    message = AssistantMessage(tool_calls=(ToolCall(name="f", call_id="m"),), vendor_data=extras)
    assert "x" not in to_openai([message])[0]["tool_calls"][0]


def test_malformed_arguments_go_as_written_or_quoted_where_the_server_parses_them() -> None:
    messages = [
        AssistantMessage(
            tool_calls=(
                ToolCall(name="f", arguments='{"a', call_id="1"),
                ToolCall(name="f", arguments="", call_id="2"),
                ToolCall(name="f", arguments='{ "a":1}', call_id="3"),
            )
        )
    ]

    def sent(**options: Any) -> list[str]:
        return [each["function"]["arguments"] for each in to_openai(messages, **options)[0]["tool_calls"]]

    assert sent() == ['{"a', "{}", '{ "a":1}']
    assert sent(valid_arguments=True) == ['{"_malformed_arguments":"{\\"a"}', "{}", '{ "a":1}']


def test_arguments_that_come_as_an_object_become_text() -> None:
    call: dict[str, Any] = {"id": "a", "function": {"name": "f", "arguments": {"n": 2**70, "s": "\ud83d"}}}
    (message,) = from_openai([{"role": "assistant", "tool_calls": [call]}])
    assert isinstance(message, AssistantMessage)
    assert message.tool_calls[0].arguments == '{"n": 1180591620717411303424, "s": "\\ud83d"}'


@pytest.mark.parametrize(
    ("wire", "problem"),
    [
        ("hello", "a message must be an object, not str"),
        ({"role": "robot"}, "role 'robot' is not one of"),
        ({"role": "user", "content": 3}, "content must be text, not int"),
        ({"role": "user", "content": ["x"]}, "a part must be an object, not str"),
        ({"role": "user", "content": [{"type": "video"}]}, "a part of type 'video' is not one of"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}]}, "an image needs a url"),
        ({"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}, "file_id cannot be carried"),
        ({"role": "user", "content": [{"type": "file"}]}, "file must be an object, not NoneType"),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "function must be an object"),
        (
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": 3}}]},
            "arguments must be text",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"a": b"x"}}}]},
            "arguments are not valid JSON",
        ),
    ],
)
def test_a_message_that_cannot_be_read_is_refused_with_its_index(wire: Any, problem: str) -> None:
    with pytest.raises(InvalidHistory, match=problem) as caught:
        from_openai([{"role": "user", "content": "fine"}, wire])
    assert caught.value.index == 1


@pytest.mark.guarantee("G08")
def test_kimis_own_ids_go_back_to_servers_of_open_models_whatever_their_length() -> None:
    own, other = f"functions.{'n' * 64}:12", f"chatcmpl-tool-{'f' * 32}"
    calls = [
        ToolCall(name="f", arguments="{}", call_id=f"c{n}", provider_call_id=each)
        for n, each in enumerate((own, other))
    ]
    messages = [
        AssistantMessage(tool_calls=tuple(calls)),
        *(ToolMessage(call_id=f"c{n}", name="f", content="") for n in (0, 1)),
    ]
    for valid_arguments, sent in ((True, [own, "c1"]), (False, ["c0", "c1"])):
        reply, *results = to_openai(messages, valid_arguments=valid_arguments)
        assert [each["id"] for each in reply["tool_calls"]] == [each["tool_call_id"] for each in results] == sent
