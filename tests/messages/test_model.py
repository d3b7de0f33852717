from __future__ import annotations

import base64
from typing import Any

import pytest

from toolbus.errors import ConfigurationError
from toolbus.messages import AssistantMessage, FilePart, ImagePart, TextPart, ToolMessage, Usage, UserMessage

FIELDS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cache_write_tokens")


def test_usage_adds_up_field_by_field() -> None:
    one, ten, eleven = (Usage(**{name: at * by for at, name in enumerate(FIELDS, 1)}) for by in (1, 10, 11))
    assert one + ten == eleven
    assert one + Usage() == one


def test_a_message_is_whole_and_a_result_has_its_text_under_the_name_that_all_have() -> None:
    assert not AssistantMessage().interrupted
    assert ToolMessage(call_id="c", name="look", content="seen").text == "seen"


def test_the_text_of_a_user_message_is_its_text_parts_line_by_line() -> None:
    image = ImagePart(url="https://example.com/a.png")
    file = FilePart(url="https://example.com/a.pdf", media_type="application/pdf")
    assert UserMessage(content="hi").text == "hi"
    assert UserMessage(content=(TextPart(text="a"), image, TextPart(text="b"), file)).text == "a\nb"


def test_an_image_and_a_file_are_made_of_bytes() -> None:
    image = ImagePart.from_bytes(b"\x00png\xff", "image/png")
    head, _, written = image.url.partition(",")
    assert (head, base64.b64decode(written)) == ("data:image/png;base64", b"\x00png\xff")
    file = FilePart.from_bytes(memoryview(b"pdf"), "application/pdf", "bill.pdf")
    assert file == FilePart(url="data:application/pdf;base64,cGRm", media_type="application/pdf", name="bill.pdf")


@pytest.mark.parametrize("media_type", ["application/pdf", "png", "", "image/", "image/png\n", "image/p,x"])
def test_what_is_no_media_type_of_an_image_is_refused(media_type: str) -> None:
    with pytest.raises(ConfigurationError, match="media type"):
        ImagePart.from_bytes(b"", media_type)


@pytest.mark.parametrize("data", ["text", None, 3])
def test_what_is_no_bytes_is_no_image(data: Any) -> None:
    with pytest.raises(TypeError):
        ImagePart.from_bytes(data, "image/png")
