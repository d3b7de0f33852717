from __future__ import annotations

import copy
import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_strategies import images, transcripts

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
    from_ollama,
    to_ollama,
)
from toolbus.messages.wire import arguments_object

PNG = "iVBORw0KGgo="
SAMPLE: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is this?", "images": [PNG]},
    {
        "role": "assistant",
        "content": "Let me look.",
        "thinking": "Two calls.",
        "tool_calls": [
            {"function": {"name": "look", "arguments": {"x": 1}}},
            {"function": {"name": "look", "arguments": {}}},
        ],
    },
    {"role": "tool", "tool_name": "look", "content": "a cat", "images": [PNG]},
    {"role": "tool", "tool_name": "look", "content": '{"ok":false,"error":"dark"}'},
    {"role": "assistant", "content": "A cat."},
]


def test_a_whole_conversation_reads_as_messages_and_back_again() -> None:
    messages = from_ollama(SAMPLE)
    image = ImagePart(url=f"data:image/png;base64,{PNG}")
    assert messages == [
        SystemMessage(text="Be brief."),
        UserMessage(content=(TextPart(text="What is this?"), image)),
        AssistantMessage(
            text="Let me look.",
            reasoning="Two calls.",
            tool_calls=(
                ToolCall(name="look", arguments='{"x":1}', call_id="call_0"),
                ToolCall(name="look", arguments="{}", call_id="call_1"),
            ),
        ),
        ToolMessage(call_id="call_0", name="look", content="a cat", parts=(image,)),
        ToolMessage(call_id="call_1", name="look", content='{"ok":false,"error":"dark"}', is_error=True),
        AssistantMessage(text="A cat."),
    ]
    assert to_ollama(messages) == SAMPLE


class Said(NamedTuple):
    """What a user message holds."""

    images: list[str]
    texts: list[str]


def carried(messages: list[Message]) -> list[Any]:
    """What the dialect can carry of a transcript, with results told by the place of their call."""
    found: list[Any] = []
    places: dict[str, int] = {}
    for message in messages:
        if isinstance(message, AssistantMessage):
            places |= {call.call_id: len(places) + place for place, call in enumerate(message.tool_calls)}
            calls = [(call.name, arguments_object(call.arguments)) for call in message.tool_calls]
            found.append((message.text, message.reasoning, calls))
        elif isinstance(message, ToolMessage):
            found.append((places[message.call_id], message.name, message.content, message.is_error))
        elif isinstance(message, UserMessage):
            parts = (TextPart(text=message.content),) if isinstance(message.content, str) else message.content
            texts = [part.text for part in parts if isinstance(part, TextPart)]
            found.append(Said([part.url for part in parts if isinstance(part, ImagePart) and _inline(part)], texts))
        else:
            found.append(message)
    return found


def _inline(part: ImagePart) -> bool:
    return part.url.startswith("data:")


@given(transcripts())
def test_any_transcript_survives_the_wire(messages: list[Message]) -> None:
    before = copy.deepcopy(messages)
    wire = to_ollama(messages)
    assert messages == before
    back = from_ollama(json.loads(json.dumps(wire)))
    for then, now in zip(carried(messages), carried(back), strict=True):
        if isinstance(then, Said):  # its text comes back joined, with marks in it
            assert now.images == then.images
            assert [text for text in then.texts if text not in now.texts[0]] == []
        else:
            assert now == then
    assert to_ollama(back) == wire
    ids = [call.call_id for message in back if isinstance(message, AssistantMessage) for call in message.tool_calls]
    assert len(set(ids)) == len(ids)


def test_neighbouring_replies_become_one_with_all_their_calls() -> None:
    def reply(text: str, name: str) -> AssistantMessage:
        return AssistantMessage(text=text, reasoning=f"r{text}", tool_calls=(ToolCall(name=name, call_id=name),))

    results = [ToolMessage(call_id=name, name="renamed", content=name) for name in "fgh"]
    wire = to_ollama([reply("a", "f"), reply("", "g"), AssistantMessage(text="b"), reply("c", "h"), *results])
    assert wire == [
        {
            "role": "assistant",
            "content": "a\n\nb\n\nc",
            "thinking": "ra\n\nr\n\nrc",
            "tool_calls": [{"function": {"name": name, "arguments": {}}} for name in "fgh"],
        },
        *({"role": "tool", "tool_name": name, "content": name} for name in "fgh"),
    ]


def test_a_result_behind_all_that_was_called_keeps_its_own_name() -> None:
    orphan = ToolMessage(call_id="x", name="gone", content="late")
    assert to_ollama([orphan]) == [{"role": "tool", "tool_name": "gone", "content": "late"}]


@given(st.lists(images, max_size=3))
def test_images_of_results_stand_beside_their_text(parts: list[ImagePart]) -> None:
    calling = AssistantMessage(tool_calls=(ToolCall(name="f", call_id="c"),))
    result = ToolMessage(call_id="c", name="f", content="done", parts=tuple(parts))
    wire = to_ollama([calling, result])[1]
    assert wire.get("images", []) == [PNG for part in parts if _inline(part)]
    assert wire["content"].split("\n") == ["done"] + [f"[an image at {p.url}]" for p in parts if not _inline(p)]


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (ImagePart(url="https://example.com/a.png"), "[an image at https://example.com/a.png]"),
        (ImagePart(url="data:image/png;base64,%%%"), "[an image that is not valid base64]"),
        (ImagePart(url="data:image/png;base64,AAAA*"), "[an image that is not valid base64]"),
        (ImagePart(url="data:image/png;base64,"), "[an image that is not valid base64]"),
        (
            FilePart(url="data:text/plain;base64,aGVsbG8=", media_type="text/plain", name="hello.txt"),
            "[file hello.txt]\nhello\n[end of file hello.txt]",
        ),
        (FilePart(url="data:text/plain,a%20b", media_type="text/plain"), "[file]\na b\n[end of file]"),
        (FilePart(url="data:text/plain;base64,/w==", media_type="text/plain"), "[a file of type text/plain]"),
        (
            FilePart(url="data:application/pdf;base64,JVBERi0=", media_type="application/pdf", name="a.pdf"),
            "[a file a.pdf of type application/pdf]",
        ),
        (
            FilePart(url="https://example.com/a.txt", media_type="text/plain"),
            "[a file of type text/plain at https://example.com/a.txt]",
        ),
    ],
)
def test_what_cannot_be_sent_leaves_its_text_or_a_mark(part: ImagePart | FilePart, text: str) -> None:
    message = UserMessage(content=(TextPart(text="see"), part))
    assert to_ollama([message]) == [{"role": "user", "content": f"see\n{text}"}]


def test_an_image_alone_has_empty_text() -> None:
    message = UserMessage(content=(ImagePart(url=f"data:image/png;base64,{PNG}"),))
    wire = to_ollama([message])
    assert wire == [{"role": "user", "content": "", "images": [PNG]}]
    assert from_ollama(wire) == [message]


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (PNG, "image/png"),
        ("/9j/4AAQ", "image/jpeg"),
        ("R0lGODlh", "image/gif"),
        ("UklGRiQAAABXRUJQ", "image/webp"),
        ("UklGRiQAAABXQVZF", "image/png"),  # a sound in the same container
        ("AAAA", "image/png"),
    ],
)
def test_the_kind_of_an_image_shows_in_its_first_bytes(data: str, media_type: str) -> None:
    (message,) = from_ollama([{"role": "user", "content": "", "images": [data]}])
    assert message == UserMessage(content=(ImagePart(url=f"data:{media_type};base64,{data}"),))


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("", {}),
        ("{}", {}),
        ('{"x": 12345678901234567890123}', {"x": 12345678901234567890123}),
        ('{"city": "Par', {"_malformed_arguments": '{"city": "Par'}),
        ("[1]", {"_malformed_arguments": "[1]"}),
    ],
)
def test_arguments_go_as_an_object_whatever_they_are(text: str, sent: dict[str, Any]) -> None:
    (wire,) = to_ollama([AssistantMessage(tool_calls=(ToolCall(name="f", arguments=text, call_id="c"),))])
    assert wire["tool_calls"] == [{"function": {"name": "f", "arguments": sent}}]


def results(calls: list[dict[str, Any]], *tool_messages: dict[str, Any]) -> list[tuple[str, str]]:
    found = from_ollama([{"role": "assistant", "tool_calls": calls}, *tool_messages])
    return [(each.call_id, each.name) for each in found if isinstance(each, ToolMessage)]


def call(name: str, **more: Any) -> dict[str, Any]:
    return {**more, "function": {"name": name, "arguments": {}}}


def test_results_are_paired_by_id_then_by_name_then_by_order() -> None:
    by_name = ({"role": "tool", "tool_name": "b"}, {"role": "tool", "tool_name": "a"})
    assert results([call("a"), call("b")], *by_name) == [("call_1", "b"), ("call_0", "a")]
    by_order = ({"role": "tool"}, {"role": "tool"})
    assert results([call("a"), call("b")], *by_order) == [("call_0", "a"), ("call_1", "b")]
    by_id = ({"role": "tool", "tool_name": "a", "tool_call_id": "y"}, {"role": "tool", "tool_call_id": "x"})
    assert results([call("a"), call("a")], *by_id[:1]) == [("call_0", "a")]
    assert results([call("a", id="x"), call("a", id="y")], *by_id) == [("y", "a"), ("x", "a")]


def test_an_orphan_keeps_what_it_said() -> None:
    assert results([call("a")], {"role": "tool", "tool_name": "b", "tool_call_id": "z"}) == [("z", "b")]
    assert results([call("a")], {"role": "tool", "tool_name": "b"}) == [("", "b")]


def test_ids_that_repeat_are_told_apart() -> None:
    (first, second) = from_ollama([{"role": "assistant", "tool_calls": [call("a", id="call_1"), call("b")]}] * 2)
    assert isinstance(first, AssistantMessage)
    assert isinstance(second, AssistantMessage)
    ids = [each.call_id for message in (first, second) for each in message.tool_calls]
    assert ids[0] == "call_1"
    assert len(set(ids)) == 4


def test_arguments_as_text_are_taken_too() -> None:
    (message,) = from_ollama(
        [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"x": 1}'}}]}]
    )
    assert isinstance(message, AssistantMessage)
    assert message.tool_calls[0].arguments == '{"x": 1}'


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"role": "developer"}, "role 'developer' is not one of"),
        ({"role": "user", "content": [1]}, "content must be text, not list"),
        ({"role": "user", "images": "abc"}, "images must be a list, not str"),
        ({"role": "user", "images": [b"abc"]}, "an image must be text, not bytes"),
        ({"role": "assistant", "tool_calls": "x"}, "tool_calls must be a list, not str"),
        ({"role": "assistant", "tool_calls": [1]}, "a tool call must be an object, not int"),
        ({"role": "assistant", "tool_calls": [{"id": ""}]}, "a tool call's function must be an object, not NoneType"),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": 3}}]}, "arguments must be text, not int"),
        ("hi", "a message must be an object, not str"),
    ],
)
def test_what_is_no_message_is_refused_with_its_place(message: Any, problem: str) -> None:
    with pytest.raises(InvalidHistory, match=problem) as caught:
        from_ollama([{"role": "user", "content": "hi"}, message])
    assert caught.value.index == 1
