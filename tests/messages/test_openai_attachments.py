"""Images and files of results in chat completions, whose tool messages take text alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_strategies import parts, result_parts, transcripts, words

from toolbus.errors import InvalidHistory
from toolbus.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
    from_openai,
    to_openai,
)

CHART = ImagePart(url="data:image/png;base64,iVBORw0KGgo=")
REPORT = FilePart(url="data:application/pdf;base64,JVBERi0=", media_type="application/pdf", name="a.pdf")
FIRST = '[Result 1 above, of call "a", came with 1 attachment:]'
NONE = "[No attachments came with the results above.]"


def called(*ids: str) -> AssistantMessage:
    return AssistantMessage(tool_calls=tuple(ToolCall(name="f", call_id=each, provider_call_id=each) for each in ids))


def answered(call_id: str, *beside: Part, content: str = "ok") -> ToolMessage:
    return ToolMessage(call_id=call_id, name="f", content=content, parts=beside)


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def test_attachments_stand_behind_all_results_of_the_round_and_name_the_result_that_each_is_of() -> None:
    messages = [
        called("a", "b", "c"),
        answered("a", CHART),
        answered("b"),
        answered("c", REPORT, CHART),
        AssistantMessage(text="Seen."),
    ]
    wire = to_openai(messages)
    assert [each["role"] for each in wire] == ["assistant", "tool", "tool", "tool", "user", "assistant"]
    assert wire[1] == {"role": "tool", "tool_call_id": "a", "content": "ok"}
    image = {"type": "image_url", "image_url": {"url": CHART.url}}
    assert wire[4]["content"] == [
        text(FIRST),
        image,
        text('[Result 3 above, of call "c", came with 2 attachments:]'),
        {"type": "file", "file": {"file_data": REPORT.url, "filename": "a.pdf"}},
        image,
    ]
    assert from_openai(wire) == messages


def test_the_attachments_of_the_last_round_are_sent_too() -> None:
    messages = [called("a"), answered("a", CHART)]
    assert len(to_openai(messages)) == 3
    assert from_openai(to_openai(messages)) == messages


def test_what_the_user_says_behind_a_round_is_not_taken_for_its_attachments() -> None:
    for said in (
        UserMessage(content=(TextPart(text=FIRST), CHART)),
        UserMessage(content=(TextPart(text=NONE),)),
        UserMessage(content=NONE),
        UserMessage(content=(CHART,)),
        UserMessage(content=()),
    ):
        for result in (answered("a"), answered("a", CHART)):
            messages = [called("a"), result, said, said]
            assert from_openai(to_openai(messages)) == messages


def test_a_message_that_only_looks_like_attachments_stays_the_users() -> None:
    round_ = to_openai([called("a", "b"), answered("a"), answered("b")])
    second = '[Result 2 above, of call "b", came with 1 attachment:]'
    image = {"type": "image_url", "image_url": {"url": CHART.url}}
    for content in (
        [text(FIRST)],
        [text(FIRST), image, image],
        [text(second), image, text(FIRST), image],
        [text(FIRST), image, text(FIRST), image],
        [text('[Result 1 above, of call "b", came with 1 attachment:]'), image],
        [text('[Result 3 above, of call "a", came with 1 attachment:]'), image],
        [text('[Result 0 above, of call "a", came with 1 attachment:]'), image],
        [text('[Result 0 above, of call "b", came with 1 attachment:]'), image],
        [],
        [text('[Result 1 above, of call "a", came with 0 attachments:]')],
        [text('[Result 01 above, of call "a", came with 1 attachment:]'), image],
        [text(f'[Result {"9" * 5000} above, of call "a", came with 1 attachment:]'), image],
        [text(FIRST + " "), image],
        [{**text(FIRST), "x": 1}, image],
    ):
        back = from_openai([*round_, {"role": "user", "content": content}])
        assert isinstance(back[-1], UserMessage), content
    named = from_openai([*round_, {"role": "user", "content": [text(FIRST), image], "name": "Ann"}])
    assert isinstance(named[-1], UserMessage)
    with pytest.raises(InvalidHistory, match="a part must be an object"):
        from_openai([*round_, {"role": "user", "content": [text(FIRST), image, "x"]}])
    elsewhere = from_openai([{"role": "user", "content": [text(FIRST), image]}])
    assert isinstance(elsewhere[0], UserMessage)


def test_images_inside_a_tool_message_are_its_attachments() -> None:
    wire = to_openai([called("a")])
    content = [text("Look: "), {"type": "image_url", "image_url": {"url": CHART.url}}, text("a cat.")]
    back = from_openai([*wire, {"role": "tool", "tool_call_id": "a", "content": content}])
    assert back[1] == answered("a", CHART, content="Look: a cat.")


@given(transcripts(result_parts))
def test_any_transcript_with_attachments_survives_the_wire(messages: list[Message]) -> None:
    before = copy.deepcopy(messages)
    wire = to_openai(messages)
    back = from_openai(wire)
    assert messages == before
    assert [without_ids(each) for each in back] == [without_ids(each) for each in messages]
    assert to_openai(back) == wire


marks = st.builds(
    "[Result {} above, of call {}, came with {}:]".format,
    st.integers(0, 3),
    st.sampled_from(['"a"', '"b"', '"c\\nd"']),
    st.sampled_from(["1 attachment", "2 attachments", "0 attachments"]),
) | st.just(NONE)
treacherous = st.lists(marks.map(lambda mark: TextPart(text=mark)) | parts, max_size=4).map(tuple)


@given(treacherous, treacherous, st.lists(treacherous | marks | words, max_size=2))
def test_parts_that_look_like_marks_survive_the_wire(
    first: tuple[Part, ...], second: tuple[Part, ...], said: list[Any]
) -> None:
    messages = [
        called("a", "c\nd"),
        answered("a", *first),
        answered("c\nd", *second),
        *(UserMessage(content=each) for each in said),
        AssistantMessage(text="Seen."),
    ]
    assert from_openai(to_openai(messages)) == messages


@given(transcripts(result_parts))
def test_whole_rounds_that_were_sent_stay_as_they_were_when_the_transcript_grows(messages: list[Message]) -> None:
    whole = to_openai(messages)
    for size in range(len(messages)):
        if not isinstance(messages[size], ToolMessage):
            shorter = to_openai(messages[:size])
            assert whole[: len(shorter)] == shorter


def without_ids(message: Message) -> Message:
    """The message without its call ids, which pair it and nothing else."""
    if isinstance(message, ToolMessage):
        return ToolMessage(
            call_id="", name=message.name, content=message.content, parts=message.parts, is_error=message.is_error
        )
    if isinstance(message, AssistantMessage):
        calls = tuple(ToolCall(name=each.name, arguments=each.arguments) for each in message.tool_calls)
        return AssistantMessage(text=message.text, tool_calls=calls)
    return message
