from __future__ import annotations

from toolbus.messages import FilePart, ImagePart, TextPart, Usage, UserMessage, user_text


def test_usage_adds_up_field_by_field() -> None:
    total = Usage(input_tokens=1, output_tokens=2, cached_tokens=3, reasoning_tokens=4) + Usage(
        input_tokens=10, output_tokens=20, cached_tokens=30, reasoning_tokens=40
    )
    assert total == Usage(input_tokens=11, output_tokens=22, cached_tokens=33, reasoning_tokens=44)


def test_the_text_of_a_user_message_is_its_text_parts_line_by_line() -> None:
    image = ImagePart(url="https://example.com/a.png")
    file = FilePart(url="https://example.com/a.pdf", media_type="application/pdf")
    assert user_text(UserMessage(content="hi")) == "hi"
    assert user_text(UserMessage(content=(TextPart(text="a"), image, TextPart(text="b"), file))) == "a\nb"
