"""Messages as the JSON of spans, and the texts in attributes: their forms and their bounds."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import json
from typing import Any

import pytest

from toolbus.errors import LimitReached
from toolbus.failures import Failure, ReportedFailure
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
)
from toolbus.protocols import ModelReply
from toolbus.telemetry._content import (
    MAX_CHARS,
    arguments_text,
    cut_text,
    input_messages,
    output_messages,
    system_instructions,
)
from toolbus.telemetry._spans import _error_type
from toolbus.telemetry._texts import Labels, clean

LONG = "x" * 20_001


def said(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("", 3, ""), ("é\ud83d", 9, "é?"), ("éé", 2, "éé")],
)
def test_a_text_is_cut_and_can_be_encoded(text: str, most: int, expected: str):
    assert clean(text, most) == expected
    assert len(clean(text * 1_000, most)) == (most if text else 0)


def test_a_text_has_at_most_a_thousand_characters_and_content_a_hundred_thousand():
    assert [len(clean("x" * count)) for count in (1_000, 1_001)] == [1_000, 1_000]
    assert [cut_text("x" * count)[-1] for count in (MAX_CHARS, MAX_CHARS + 1)] == ["x", "…"]


def test_each_attribute_has_its_own_thousand_labels_of_two_hundred_characters():
    label = Labels()
    assert label("tool", "a" * 200) == "a" * 200
    assert label("tool", "a" * 201) == "a" * 199 + "…"
    names = [f"tool {number}" for number in range(1_000)]
    assert [label("tool", each) for each in names] == [*names[:998], "(others)", "(others)"]
    assert (label("tool", names[0]), label("model", names[-1])) == (names[0], names[-1])
    assert (label.if_known("tool", names[0]), label.if_known("tool", names[-1])) == (names[0], "")
    assert label.if_known("unknown", "x") == ""


@pytest.mark.parametrize(
    ("arguments", "expected"), [({"a": 1}, '{"a":1}'), ({"n": 2**70}, f'{{"n": {2**70}}}'), ("\ud83d", '"\\ud83d"')]
)
def test_arguments_are_json_whatever_they_contain(arguments: Any, expected: str):
    assert arguments_text(arguments) == expected


def test_the_instructions_are_the_system_message_that_stands_first():
    system, user = SystemMessage(text="Be brief."), UserMessage(content="Hi")
    assert json.loads(system_instructions([system, user])) == [said("Be brief.")]
    assert [system_instructions(each) for each in ([], [user, system])] == ["[]", "[]"]
    text, left_out = input_messages([system, user, system])
    assert json.loads(text) == [
        {"role": "user", "parts": [said("Hi")]},
        {"role": "system", "parts": [said("Be brief.")]},
    ]
    assert (left_out, input_messages([]), input_messages([system])) == (0, ("[]", 0), ("[]", 0))


def test_each_kind_of_message_has_its_parts():
    valid = ToolCall(name="look", arguments='{"page":1}', call_id="c1", provider_call_id="p1")
    broken = ToolCall(name="look", arguments='{"page"', provider_call_id="p2")
    long = ToolCall(name="look", arguments=json.dumps({"a": LONG}), call_id="c3")
    messages: list[Message] = [
        UserMessage(content=(TextPart(text="See"), ImagePart(url="data:x"), FilePart(url="data:x", media_type="a/b"))),
        AssistantMessage(text="I look.", reasoning="Hm.", tool_calls=(valid, broken, long)),
        AssistantMessage(),
        ToolMessage(call_id="c1", name="look", content=LONG),
    ]
    found = json.loads(input_messages(messages)[0])
    assert [each["role"] for each in found] == ["user", "assistant", "assistant", "tool"]
    user, assistant, empty, result = (each["parts"] for each in found)
    blob = {"type": "blob", "modality": "image", "content": ""}
    assert user == [said("See"), blob, {**blob, "modality": "file"}]
    call = {"type": "tool_call", "id": "p1", "name": "look", "arguments": {"page": 1}}
    assert assistant[:3] == [{"type": "reasoning", "content": "Hm."}, said("I look."), call]
    assert assistant[3:] == [
        {**call, "id": "p2", "arguments": '{"page"'},
        {**call, "id": "c3", "arguments": '{"a": "' + "x" * (20_000 - 8) + "…"},
    ]
    assert empty == []
    assert result == [{"type": "tool_call_response", "id": "p1", "response": "x" * 19_999 + "…"}]


def test_the_newest_messages_are_recorded_up_to_a_hundred_thousand_characters():
    def left_out(*sizes: int) -> int:
        text, found = input_messages(
            [SystemMessage(text="s" * 9), *(UserMessage(content="x" * each) for each in sizes)]
        )
        assert len(json.loads(text)) == len(sizes) - found
        return found

    # Each has the word "text" beside its content.
    assert left_out(*[19_996] * 5) == 0
    assert left_out(*[19_996] * 4, 19_997) == 1
    assert left_out(*[19_996] * 7) == 2
    many = tuple(ToolCall(name="look", arguments="x" * 20_000, call_id=f"c{each}") for each in range(9))
    assert input_messages([UserMessage(content="Hi"), AssistantMessage(tool_calls=many)])[1] == 1  # the newest at least


def test_a_reply_is_one_message_with_its_finish_reason():
    reply = ModelReply(message=AssistantMessage(text="Yes."), finish_reason="length")
    assert json.loads(output_messages(reply)) == [
        {"role": "assistant", "parts": [said("Yes.")], "finish_reason": "length"}
    ]


class Odd(Exception):
    """An error of an application."""


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (LimitReached("max_rounds=3"), "limit_reached"),
        (ReportedFailure(Failure("timeout", "It took too long."), "text"), "timeout"),
        (ValueError("secret"), "ValueError"),
        (Odd("secret"), f"{__name__}.Odd"),
    ],
)
def test_an_error_is_named_by_its_code_or_its_class(exc: BaseException, expected: str):
    assert _error_type(exc) == expected
