from __future__ import annotations

import base64
from typing import Any

import pytest

from toolbus.errors import ConfigurationError
from toolbus.messages import FilePart, ImagePart, TextPart, Usage, UserMessage


def test_usage_adds_up_field_by_field() -> None:
    total = Usage(input_tokens=1, output_tokens=2, cached_tokens=3, reasoning_tokens=4) + Usage(
        input_tokens=10, output_tokens=20, cached_tokens=30, reasoning_tokens=40
    )
    assert total == Usage(input_tokens=11, output_tokens=22, cached_tokens=33, reasoning_tokens=44)


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
