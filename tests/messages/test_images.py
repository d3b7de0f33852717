from __future__ import annotations

import copy

from hypothesis import given
from wire_strategies import result_parts, transcripts

from toolbus.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    TextPart,
    ToolMessage,
    UserMessage,
    to_openai,
    without_images,
)

MARK = "[an image, which this model cannot see]"
CAT = ImagePart(url="https://example.com/cat.png")
SCAN = FilePart(url="data:image/tiff;base64,SUkq", media_type="image/tiff")
REPORT = FilePart(url="data:application/pdf;base64,JVBERi0=", media_type="application/pdf", name="a.pdf")


def test_a_mark_stands_for_each_image() -> None:
    said = UserMessage(content=(TextPart(text="Look:"), CAT, SCAN, TextPart(text="What is it?")), message_id="m")
    assert without_images([said]) == [UserMessage(content=f"Look:\n{MARK}\n{MARK}\nWhat is it?", message_id="m")]


def test_files_stay_where_images_go() -> None:
    said = UserMessage(content=(CAT, REPORT))
    result = ToolMessage(call_id="c", name="f", content='{"ok":true}', parts=(CAT, REPORT, SCAN), message_id="m")
    bare = ToolMessage(call_id="c", name="f", content="", parts=(CAT,))
    assert without_images([said, result, bare]) == [
        UserMessage(content=(TextPart(text=MARK), REPORT)),
        ToolMessage(call_id="c", name="f", content=f'{{"ok":true}}\n{MARK}\n{MARK}', parts=(REPORT,), message_id="m"),
        ToolMessage(call_id="c", name="f", content=MARK),
    ]


def test_messages_without_an_image_are_the_same_ones() -> None:
    messages: list[Message] = [
        UserMessage(content="hi"),
        UserMessage(content=(TextPart(text="a"), REPORT)),
        AssistantMessage(text="x"),
        ToolMessage(call_id="c", name="f", content="ok", parts=(REPORT,)),
    ]
    assert all(blind is message for blind, message in zip(without_images(messages), messages, strict=True))


@given(transcripts(result_parts))
def test_no_image_is_left_and_nothing_given_is_changed(messages: list[Message]) -> None:
    before = copy.deepcopy(messages)
    blind = without_images(messages)
    assert messages == before
    assert "image_url" not in str(to_openai(blind))
    assert without_images(blind) == blind
