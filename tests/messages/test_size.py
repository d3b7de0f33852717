"""The estimated size of messages: each text that a message holds counts, wherever it is."""

from __future__ import annotations

from typing import Any

import pytest

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
    size_of,
)

RESULT: dict[str, Any] = {"call_id": "c", "name": "look"}


def holding(text: str) -> dict[str, Message]:
    """Messages that hold the text, each in another field."""
    return {
        "instructions": SystemMessage(text=text),
        "prompt": UserMessage(content=text),
        "text part": UserMessage(content=(TextPart(text=text),)),
        "image": UserMessage(content=(ImagePart(url=text),)),
        "file": UserMessage(content=(FilePart(url=text, media_type="application/pdf"),)),
        "reply": AssistantMessage(text=text),
        "arguments": AssistantMessage(tool_calls=(ToolCall(name="look", arguments=text),)),
        "data of a vendor": AssistantMessage(vendor_data={"anthropic": {"content": [{"data": text}]}}),
        "field of a vendor": AssistantMessage(vendor_data={"openai": {text: 1}}),
        "result": ToolMessage(**RESULT, content=text),
        "text of a result": ToolMessage(**RESULT, content="", parts=(TextPart(text=text),)),
        "image of a result": ToolMessage(**RESULT, content="", parts=(ImagePart(url=text),)),
    }


@pytest.mark.parametrize("holder", holding(""))
def test_each_text_of_a_message_counts(holder: str) -> None:
    empty, ascii_text, other = (size_of([holding(text)[holder]]) for text in ("", "a" * 1_000, "\u4e16" * 1_000))
    assert (ascii_text - empty, other - empty) == (1_000, 4_000)


def test_reasoning_counts_as_if_it_had_the_widest_characters() -> None:
    assert size_of([AssistantMessage(reasoning="a" * 1_000)]) - size_of([AssistantMessage()]) == 4_000


def test_messages_calls_and_values_of_vendors_count_without_their_texts() -> None:
    bare = AssistantMessage()
    call = AssistantMessage(tool_calls=(ToolCall(name="look", arguments=""),))
    assert size_of([bare]) == 400
    assert size_of([bare, bare]) == size_of([call]) == 800
    # Two objects, a list, their two names, and three values.
    assert size_of([AssistantMessage(vendor_data={"a": {"b": [1, None, "c"]}})]) == 400 + 3 * 60 + 2 * 61 + 2 * 60 + 61


def test_data_of_a_vendor_counts_however_deeply_it_is_nested() -> None:
    data: Any = 1
    for _ in range(2_000):
        data = [{"a": data}]
    bare = size_of([AssistantMessage(vendor_data={"vendor": 1})])
    assert size_of([AssistantMessage(vendor_data={"vendor": data})]) == bare + 2_000 * (60 + 60 + 61)
