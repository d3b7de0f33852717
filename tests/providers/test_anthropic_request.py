"""What is asked of the Messages API: settings, tools, thinking, marks for its cache, and what it would refuse."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from toolbus.errors import ConfigurationError
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
from toolbus.protocols import ModelRequest, ModelSettings, ToolSpec
from toolbus.providers.anthropic import MAX_OUTPUT_TOKENS
from toolbus.providers.anthropic._request import request_body

WEATHER = ToolSpec(
    name="get_weather",
    description="Current weather in a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CLOCK = ToolSpec(name="get_time")
MARK = {"cache_control": {"type": "ephemeral"}}


def body_of(
    *messages: Message,
    model: str = "claude-haiku-5-5",
    tools: Sequence[ToolSpec] = (),
    settings: ModelSettings | None = None,
    **options: Any,
) -> dict[str, Any]:
    asked = ModelRequest(
        messages=messages or (UserMessage(content="hi"),), tools=tools, settings=settings or ModelSettings()
    )
    given: dict[str, Any] = {"max_output_tokens": MAX_OUTPUT_TOKENS, "cache": "off", **options}
    return request_body(model, asked, **given)


def round_of(number: int) -> list[Message]:
    call = ToolCall(name="get_weather", call_id=f"c{number}")
    return [AssistantMessage(tool_calls=(call,)), ToolMessage(call_id=f"c{number}", name="get_weather", content="sun")]


# --------------------------------------------------------------------------------------------- settings


def test_a_plain_question_says_no_more_than_it_must() -> None:
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    assert body_of(SystemMessage(text="Be brief."), UserMessage(content="hi"), settings=settings) == {
        "model": "claude-haiku-5-5",
        "max_tokens": 16_384,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
    }


def test_settings_and_tools_are_sent_in_the_vendors_words() -> None:
    settings = ModelSettings(
        temperature=0.5, max_output_tokens=100, parallel_tool_calls=False, extra_body={"top_k": 3, "temperature": 0.6}
    )
    body = body_of(tools=[WEATHER, CLOCK], settings=settings)
    assert {name: value for name, value in body.items() if name not in {"messages", "model", "stream"}} == {
        "max_tokens": 100,
        "temperature": 0.6,
        "top_k": 3,
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "tools": [
            {
                "name": "get_weather",
                "description": "Current weather in a city.",
                "input_schema": dict(WEATHER.parameters),
            },
            {"name": "get_time", "input_schema": {"type": "object", "properties": {}}},
        ],
    }


@pytest.mark.parametrize(
    ("choice", "parallel", "sent"),
    [
        (None, None, None),
        (None, True, None),
        ("auto", None, {"type": "auto"}),
        ("none", False, {"type": "none"}),
        ("required", None, {"type": "any"}),
        ("required", True, {"type": "any", "disable_parallel_tool_use": False}),
        ("get_time", False, {"type": "tool", "name": "get_time", "disable_parallel_tool_use": True}),
    ],
)
def test_a_tool_choice_is_the_vendors(choice: str | None, parallel: bool | None, sent: Any) -> None:
    settings = ModelSettings(tool_choice=choice, parallel_tool_calls=parallel)
    body = body_of(tools=[WEATHER, CLOCK], settings=settings)
    assert body.get("tool_choice") == sent
    assert len(body["tools"]) == 2


def test_a_tool_choice_that_is_not_offered_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"tool_choice='get_tim' names no tool that is offered \(get_time\)"):
        body_of(tools=[CLOCK], settings=ModelSettings(tool_choice="get_tim"))


def test_a_history_with_calls_goes_with_tools_even_where_none_is_offered() -> None:
    """The API refuses tool_use and tool_result blocks without tools; a last answer is asked for without them."""
    body = body_of(UserMessage(content="hi"), *round_of(1), *round_of(2))
    assert body["tools"] == [{"name": "get_weather", "input_schema": {"type": "object"}}]
    assert body["tool_choice"] == {"type": "none"}
    orphan = body_of(UserMessage(content="hi"), ToolMessage(call_id="x", name="f", content="1"))
    assert [each["name"] for each in orphan["tools"]] == ["unknown"]


def test_the_servers_own_tools_stand_behind_the_requests() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    assert body_of(server_tools=[search])["tools"] == [search]
    body = body_of(UserMessage(content="hi"), *round_of(1), tools=[CLOCK], server_tools=[search])
    assert [each["name"] for each in body["tools"]] == ["get_time", "web_search"]
    last = body_of(UserMessage(content="hi"), *round_of(1), server_tools=[search])
    assert [each["name"] for each in last["tools"]] == ["get_weather", "web_search"]
    assert "tool_choice" not in last


# --------------------------------------------------------------------------------------------- thinking

ADAPTIVE = {"type": "adaptive", "display": "summarized"}


@pytest.mark.parametrize(
    "model", ["claude-haiku-5-5", "claude-opus-4-6", "claude-opus-4-8", "claude-sonnet-5", "claude-fable-5-2", "glm-5"]
)
def test_later_models_are_told_an_effort(model: str) -> None:
    body = body_of(model=model, settings=ModelSettings(reasoning_effort="low"))
    assert (body["thinking"], body["output_config"]) == (ADAPTIVE, {"effort": "low"})


@pytest.mark.parametrize(
    "model",
    [
        "claude-haiku-4-5",
        "claude-haiku-4-5-20251001",
        "claude-opus-4-5-20251101",
        "claude-sonnet-4-20250514",
        "claude-opus-4-1",
        "claude-3-7-sonnet-latest",
        "us.anthropic.claude-sonnet-4-5-v1:0",
    ],
)
def test_earlier_models_are_given_a_budget(model: str) -> None:
    body = body_of(model=model, settings=ModelSettings(reasoning_effort="medium"))
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 6144}
    assert "output_config" not in body


@pytest.mark.parametrize(
    ("effort", "max_tokens", "budget"),
    [("low", None, 2048), ("high", None, 12_288), ("max", None, 14_336), ("high", 4096, 3072), ("high", 2000, None)],
)
def test_a_budget_leaves_room_for_the_answer(effort: str, max_tokens: int | None, budget: int | None) -> None:
    settings = ModelSettings(reasoning_effort=effort, max_output_tokens=max_tokens)
    body = body_of(model="claude-haiku-4-5", settings=settings)
    assert body.get("thinking", {}).get("budget_tokens") == budget


@pytest.mark.parametrize("model", ["claude-haiku-5-5", "claude-haiku-4-5"])
@pytest.mark.parametrize("choice", ["required", "get_time"])
def test_a_forced_call_goes_without_thinking_which_the_api_would_refuse(model: str, choice: str) -> None:
    settings = ModelSettings(reasoning_effort="high", tool_choice=choice)
    assert "thinking" not in body_of(model=model, tools=[CLOCK], settings=settings)


def test_no_thinking_may_be_asked_for() -> None:
    body = body_of(settings=ModelSettings(reasoning_effort="none"))
    assert body["thinking"] == {"type": "disabled"}
    assert "output_config" not in body


# ---------------------------------------------------------------------------------------------- caching


def marks(body: dict[str, Any]) -> list[str]:
    """Where there are marks: in tools, system, and messages by their place."""
    found = [f"tool {place}" for place, tool in enumerate(body.get("tools", ())) if "cache_control" in tool]
    if isinstance(body.get("system"), list):
        found += ["system" for each in body["system"] if "cache_control" in each]
    for place, message in enumerate(body["messages"]):
        content: Any = message["content"]
        blocks: list[dict[str, Any]] = [] if isinstance(content, str) else content
        found += [f"message {place} block {at}" for at, block in enumerate(blocks) if "cache_control" in block]
    return found


def test_each_round_marks_where_the_last_one_ended_and_where_it_ends_itself() -> None:
    history: list[Message] = [SystemMessage(text="Be brief."), UserMessage(content="hi")]
    bodies: list[dict[str, Any]] = []
    for number in range(3):
        bodies.append(body_of(*history, tools=[WEATHER, CLOCK], cache="auto"))
        history += round_of(number)
    assert [marks(each)[:2] for each in bodies] == [["tool 1", "system"]] * 3
    assert [marks(each)[2:] for each in bodies] == [
        ["message 0 block 0"],
        ["message 0 block 0", "message 2 block 0"],
        ["message 2 block 0", "message 4 block 0"],
    ]
    assert bodies[0]["system"] == [{"type": "text", "text": "Be brief.", **MARK}]


def test_what_was_sent_before_is_sent_again_as_it_was_but_for_the_marks() -> None:
    def bare(value: Any) -> Any:
        return json.loads(
            json.dumps(value), object_hook=lambda each: {k: each[k] for k in each if k != "cache_control"}
        )

    history: list[Message] = [UserMessage(content=(TextPart(text="hi"), TextPart(text="there"))), *round_of(1)]
    first = body_of(*history, tools=[WEATHER], cache="auto")
    second = body_of(*history, *round_of(2), tools=[WEATHER], cache="auto")
    assert bare(second["messages"][: len(first["messages"])]) == bare(first["messages"])
    assert bare(second["tools"]) == bare(first["tools"])


def test_a_mark_may_hold_for_an_hour_or_not_be_made() -> None:
    assert body_of(cache="1h")["messages"][0]["content"] == [
        {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    ]
    assert marks(body_of(cache="off", tools=[WEATHER])) == []
    own = ModelSettings(extra_body={"cache_control": {"type": "ephemeral"}})
    assert marks(body_of(cache="auto", tools=[WEATHER], settings=own)) == []


def test_tools_that_are_loaded_later_are_never_marked() -> None:
    """Anthropic answers 400: a tool cannot have both ``defer_loading`` and ``cache_control``."""
    later = {"type": "mcp_toolset", "mcp_server_name": "files", "defer_loading": True}
    assert marks(body_of(cache="auto", tools=[WEATHER], server_tools=[later]))[0] == "tool 0"
    assert not any("tool" in each for each in marks(body_of(cache="auto", server_tools=[later])))


@pytest.mark.parametrize("by", ["claude-haiku-5-5", "kimi-k3", None])
def test_thinking_goes_back_to_the_model_that_signed_it_and_to_no_other(by: str | None) -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    hidden = {"type": "redacted_thinking", "data": "x"}
    kept: dict[str, Any] = {"content": [thinking, hidden, {"type": "text", "text": "ho"}]}
    if by:
        kept["model"] = by
    reply = AssistantMessage(text="ho", vendor_data={"anthropic": kept})
    messages = body_of(UserMessage(content="hi"), reply, UserMessage(content="so?"))["messages"]
    assert messages[1]["content"] == ("ho" if by == "kimi-k3" else kept["content"])


def test_marks_touch_nothing_that_is_shared() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    kept = {"anthropic": {"content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}}
    history = (UserMessage(content="hi"), AssistantMessage(text="ho", vendor_data=kept), UserMessage(content="so?"))
    body_of(*history, server_tools=[search], cache="auto")
    assert search == {"type": "web_search_20250305", "name": "web_search"}
    assert kept == {"anthropic": {"content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}}


# --------------------------------------------------------------------------------- what would be refused


def test_images_and_files_that_the_api_refuses_go_as_a_word_in_their_place() -> None:
    drawing = ImagePart(url="data:image/svg+xml;base64,PHN2Zy8+")
    table = FilePart(
        url="data:application/vnd.ms-excel;base64,AAAA", media_type="application/vnd.ms-excel", name="a.xls"
    )
    picture = ImagePart(url="data:image/png;base64,iVBORw0KGgo=")
    call = AssistantMessage(tool_calls=(ToolCall(name="f", call_id="c"),))
    body = body_of(
        UserMessage(content=(TextPart(text="look"), drawing, picture)),
        call,
        ToolMessage(call_id="c", name="f", content="here", parts=(table, picture)),
    )
    asked, answered = body["messages"][0]["content"], body["messages"][2]["content"][0]["content"]
    assert asked[1] == {"type": "text", "text": "[an image of type image/svg+xml, not shown]"}
    assert answered[1] == {"type": "text", "text": "[the file 'a.xls' of type application/vnd.ms-excel, not shown]"}
    assert [asked[2]["type"], answered[2]["type"]] == ["image", "image"]


@pytest.mark.parametrize(
    "part",
    [
        ImagePart(url="https://example.com/a.svg"),
        ImagePart(url="data:image/JPEG;base64,AAAA"),
        FilePart(url="data:text/csv;base64,YSxi", media_type="text/csv"),
        FilePart(url="data:application/pdf;base64,JVBERi0=", media_type="application/pdf"),
    ],
)
def test_what_the_api_takes_is_sent(part: Any) -> None:
    (block,) = body_of(UserMessage(content=(part,)))["messages"][0]["content"]
    assert block["type"] in {"image", "document"}
