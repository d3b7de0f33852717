"""The checks of Mistral's API, as its validator has them (mistral_common, protocol/instruct/validator.py)."""

from __future__ import annotations

import itertools
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from messages.wire_strategies import result_parts, transcripts
from toolbus.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage, to_openai

AFTER = {
    "system": {"user", "assistant", "system"},
    "user": {"assistant", "system", "user"},
    "assistant": {"assistant", "user", "tool"},
    "tool": {"assistant", "tool"},
}
ID = re.compile("[a-zA-Z0-9]{9}")


def check(messages: list[dict[str, Any]]) -> None:
    roles = [message["role"] for message in messages]
    for before, role in itertools.pairwise(roles):
        assert role in AFTER[before], (before, role)
    called = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert all(ID.fullmatch(each) for each in called)
    assert len(set(called)) == len(called)
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == called


@given(transcripts(beside=result_parts), st.data())
def test_every_transcript_passes_the_checks(messages: list[Message], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(messages)))
    is_between = at < len(messages) and isinstance(messages[at], ToolMessage)
    notes: list[Message] = [] if is_between else [SystemMessage(text="A note.")]
    check(to_openai([*messages[:at], *notes, *messages[at:]], mistral_checks=True))


def test_an_id_of_mistral_is_sent_back_and_others_stay_the_same_when_the_transcript_grows() -> None:
    calls = tuple(ToolCall(name="f", call_id=each, provider_call_id=each) for each in ("D681PevKs", "call_1", ""))
    messages: list[Message] = [UserMessage(content="a"), AssistantMessage(tool_calls=calls)]
    before = to_openai(messages, mistral_checks=True)[1]["tool_calls"]
    messages += [ToolMessage(call_id=each.call_id, name="f", content="1") for each in calls]
    messages += [AssistantMessage(tool_calls=calls)]
    assert before[0]["id"] == "D681PevKs"
    assert all(ID.fullmatch(each["id"]) for each in before)
    assert to_openai(messages, mistral_checks=True)[1]["tool_calls"] == before
