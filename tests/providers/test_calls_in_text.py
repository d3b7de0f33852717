"""Calls that a model writes as text, and all the text that is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus.messages import AssistantMessage, ToolCall
from toolbus.protocols import ArgumentsPiece, Delta, ModelReply, ReasoningPiece, TextPiece
from toolbus.providers.openai._calls_in_text import HeldText, calls_in_text, may_become_calls

NAMES = {"get_weather", "get_time"}
BARE = '{"name": "get_weather", "arguments": {"city": "Zürich"}}'
CLOCK = '{"name": "get_time", "arguments": {}}'
WEATHER = ToolCall(name="get_weather", arguments='{"city": "Zürich"}')
TIME = ToolCall(name="get_time", arguments="{}")

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(words, json_values, max_size=3)


@pytest.mark.parametrize(
    "text",
    [
        BARE,
        f"\n  {BARE}\n",
        BARE.replace("arguments", "parameters"),
        BARE.replace("{", '{"id": "x", "type": "function", ', 1),
        f'{{"type": "function", "function": {BARE}}}',
        f"[{BARE}]",
        f"```json\n{BARE}\n```",
        f"```\n{BARE}```",
        f"``` tool_call \r\n{BARE}\r\n```",
        f"<tool_call>\n{BARE}\n</tool_call>",
        f"<tool_call>{BARE}",
        f"```\n<tool_call>{BARE}</tool_call>\n```",
    ],
)
def test_content_that_is_a_call_as_a_whole_is_one(text: str) -> None:
    assert calls_in_text(text, NAMES) == (WEATHER,)


@pytest.mark.parametrize(
    "text",
    [
        f"[{BARE}, {CLOCK}]",
        f"<tool_call>{BARE}</tool_call>\n<tool_call>\n{CLOCK}\n</tool_call>",
        f"<tool_call>{BARE}</tool_call><tool_call>{CLOCK}",
        f"<tool_call>[{BARE}]</tool_call><tool_call>{CLOCK}</tool_call>",
    ],
)
def test_several_calls_keep_their_order(text: str) -> None:
    assert calls_in_text(text, NAMES) == (WEATHER, TIME)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Sunny.",
        "{}",
        "[]",
        "null",
        '"get_weather"',
        f"Let me look: {BARE}",
        f"{BARE} That is the call.",
        f"{BARE}\n{CLOCK}",
        f"[{BARE}, 3]",
        f"[{BARE}, []]",
        BARE.replace("get_weather", "get_rain"),
        BARE.replace('"get_weather"', "3"),
        BARE.replace('{"city": "Zürich"}', '"{}"'),
        BARE.replace('{"city": "Zürich"}', "null"),
        BARE.replace("{", '{"answer": 42, ', 1),
        BARE.replace("{", '{"parameters": {}, ', 1),
        BARE.replace("{", '{"type": "tool", ', 1),
        BARE.replace("{", '{"name": "get_time", ', 1),
        BARE.replace('"city"', '"city": 1, "city"'),
        BARE.replace('"Zürich"', "NaN"),
        BARE.replace('"Zürich"', "9" * 5000),
        BARE[:-1],
        BARE.replace('"', "'"),
        '{"name": "get_weather"}',
        '{"arguments": {}}',
        f'{{"function": {BARE}, "name": "get_weather"}}',
        "[" * 100_000,
        f"```python\n{BARE}\n```",
        f"```json\n{BARE}\n```\nDone.",
        f"```json\n{BARE}\n```\n```json\n{CLOCK}\n```",
        f"<tool_call>{BARE}</tool_call> Done.",
        f"Look: <tool_call>{BARE}</tool_call>",
        f"<tool_call>{BARE}</tool_call><tool_call></tool_call>",
        "<tool_call>",
        f"<tool_calls>{BARE}</tool_calls>",
    ],
)
def test_anything_else_stays_text(text: str) -> None:
    assert calls_in_text(text, NAMES) == ()


@given(st.text(max_size=200))
def test_ordinary_text_never_becomes_a_call(text: str) -> None:
    assert calls_in_text(text, NAMES) == ()


@given(json_values, st.sampled_from(["{}", "```json\n{}\n```", "<tool_call>{}</tool_call>"]))
def test_a_json_answer_never_becomes_a_call(answer: Any, around: str) -> None:
    assert calls_in_text(around.replace("{}", json.dumps(answer)), NAMES) == ()


@given(
    st.dictionaries(
        st.sampled_from(["name", "arguments", "parameters", "type", "function", "answer"]),
        st.sampled_from(["get_weather", "function", {}, {"city": "Paris"}, None, []]),
        min_size=1,
    )
)
def test_an_answer_with_the_fields_of_a_call_is_one_only_with_a_name_and_one_object(answer: dict[str, Any]) -> None:
    arguments = [answer[key] for key in ("arguments", "parameters") if key in answer]
    called = (
        answer.get("name") == "get_weather"
        and len(arguments) == 1
        and isinstance(arguments[0], dict)
        and not {"answer", "function"} & set(answer)
        and answer.get("type", "function") == "function"
    )
    assert bool(calls_in_text(json.dumps(answer), NAMES)) == called


@given(objects, st.sampled_from(["{}", " {} ", "```json\n{}\n```", "<tool_call>\n{}\n</tool_call>"]))
def test_the_arguments_of_a_call_are_what_the_model_wrote(arguments: dict[str, Any], around: str) -> None:
    text = around.replace("{}", json.dumps({"name": "get_weather", "arguments": arguments}))
    if "<tool_call>" in json.dumps(arguments) or "```" in json.dumps(arguments):
        return
    (call,) = calls_in_text(text, NAMES)
    assert json.loads(call.arguments) == arguments


@given(
    st.sampled_from(
        [
            f"```json\n{BARE}\n```",
            f"``` json \r\n {BARE} \r\n```",
            BARE,
            f"\n<tool_call>{BARE}</tool_call>",
            f"[{BARE}, {CLOCK}]",
        ]
    )
)
def test_each_beginning_of_a_call_may_become_one(text: str) -> None:
    assert calls_in_text(text, NAMES)
    assert all(may_become_calls(text[:size]) for size in range(len(text) + 1))


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("", True),
        ("  {", True),
        ("[", True),
        ("<tool", True),
        ("<p>", False),
        ("``", True),
        ("```js", True),
        ("```py", False),
        ("```json\n", True),
        ("```json\n<", True),
        ("```json\nhello", False),
        ("```json hello", False),
        ("Hello", False),
    ],
)
def test_a_text_is_held_back_only_while_it_may_become_calls(text: str, may: bool) -> None:
    assert may_become_calls(text) is may


@given(st.text(max_size=20), st.text(max_size=20))
def test_what_may_not_become_calls_never_does(beginning: str, rest: str) -> None:
    if not may_become_calls(beginning):
        assert not any(may_become_calls(beginning + rest[:size]) for size in range(len(rest) + 1))
        assert calls_in_text(beginning + rest, NAMES) == ()


# -------------------------------------------------------------------------------------------------- streaming


def streamed(text: str, *, size: int = 3, finish_reason: Any = "stop", **more: Any) -> tuple[list[Delta], ModelReply]:
    """What is passed on while the text arrives, a mark, and what is when it is known; then the reply."""
    seen: list[Delta] = []
    held = HeldText(seen.append, NAMES)
    for start in range(0, len(text), size):
        held(TextPiece(text[start : start + size]))
    seen.append(ReasoningPiece("|"))
    message = AssistantMessage(text=text, **more)
    return seen, held.settle(ModelReply(message=message, finish_reason=finish_reason))


def reported(deltas: list[Delta]) -> str:
    return "".join(each.text for each in deltas)


def test_a_call_is_no_text_for_anybody() -> None:
    deltas, reply = streamed(BARE, reasoning="hm")
    assert reply.message == AssistantMessage(tool_calls=(WEATHER,), reasoning="hm")
    assert reply.finish_reason == "tool_calls"
    assert deltas[-1] == ArgumentsPiece(0, "get_weather", WEATHER.arguments)
    assert reported(deltas) == "|" + WEATHER.arguments


def test_text_held_back_shows_that_the_stream_does_not_stand_still() -> None:
    deltas, _ = streamed(BARE)
    assert deltas[: deltas.index(ReasoningPiece("|"))] == [TextPiece("")] * -(-len(BARE) // 3)


@pytest.mark.parametrize("text", ["Sunny.", "\n\nSunny {", "`x`", "<b>", "```python\nx = {}\n```", "3"])
def test_ordinary_text_is_streamed_as_it_arrives(text: str) -> None:
    deltas, reply = streamed(text)
    assert reported(deltas) == text + "|"
    assert reply.message.text == text


def test_text_that_only_began_like_a_call_comes_at_the_end() -> None:
    text = '{"answer": ' + "4" * 100 + "}"
    deltas, reply = streamed(text)
    assert reported(deltas) == "|" + text
    assert deltas[-1] == TextPiece(text)
    assert (reply.message.text, reply.finish_reason) == (text, "stop")


@pytest.mark.parametrize(
    "more",
    [{"finish_reason": "length"}, {"finish_reason": "content_filter"}, {"tool_calls": (TIME,)}],
)
def test_a_reply_that_was_cut_or_calls_in_its_own_form_keeps_its_text(more: dict[str, Any]) -> None:
    deltas, reply = streamed(BARE, **more)
    assert reply.message.text == BARE
    assert reported(deltas) == "|" + BARE


@given(st.text(max_size=80) | st.sampled_from([BARE, "{" * 70, "```json\n" + " " * 70 + "x"]), st.integers(1, 9))
def test_pieces_joined_are_the_text_that_the_reply_has(text: str, size: int) -> None:
    deltas, reply = streamed(text, size=size)
    assert "".join(each.text for each in deltas if isinstance(each, TextPiece)) == reply.message.text
