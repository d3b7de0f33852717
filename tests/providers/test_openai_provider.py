"""The provider against a real HTTP server. Its faults are in test_openai_faults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import openai
import pytest

from support.asking import request
from support.openai_server import OpenAIServer, Reply, calls, chunk, ended, text
from toolbus.errors import ConfigurationError
from toolbus.messages import (
    AssistantMessage,
    FilePart,
    Message,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
    from_openai,
)
from toolbus.protocols import Delta, Heartbeat, ModelReply, ModelRequest, ModelSettings, TextPiece, ToolSpec
from toolbus.providers import OpenAIProvider
from toolbus.records import replace

WEATHER = ToolSpec(
    name="get_weather",
    description="Current weather in a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CLOCK = ToolSpec(name="get_time")


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(lambda _request: text("Sunny.")) as running:
        yield running


def provider_of(server: OpenAIServer, **options: Any) -> OpenAIProvider:
    return OpenAIProvider("test-model", base_url=server.base_url, **options)


async def ask(server: OpenAIServer, asked: ModelRequest | None = None, **options: Any) -> ModelReply:
    provider = provider_of(server, **options)
    try:
        with anyio.fail_after(30):
            return await provider.respond(asked or request(), lambda _: None)
    finally:
        await provider.aclose()


# ------------------------------------------------------------------------------------------ conversations


async def test_a_whole_tool_calling_conversation_goes_over_the_wire() -> None:
    script = [
        calls(("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"}), size=3),
        text("Sunny in both."),
    ]
    with OpenAIServer(script) as server:
        provider = provider_of(server)
        messages: list[Message] = [UserMessage(content="Weather?")]
        first = await provider.respond(request(*messages, tools=[WEATHER]), lambda _: None)
        minted = tuple(replace(call, call_id=f"minted{number}") for number, call in enumerate(first.message.tool_calls))
        messages.append(replace(first.message, tool_calls=minted))
        messages += [ToolMessage(call_id=each.call_id, name=each.name, content="sun") for each in minted]
        deltas: list[Delta] = []
        second = await provider.respond(request(*messages, tools=[WEATHER], round=1), deltas.append)
        await provider.aclose()
    assert [each.arguments for each in first.message.tool_calls] == ['{"city": "Paris"}', '{"city": "Rome"}']
    assert second.message == AssistantMessage(text="Sunny in both.")
    assert [each for each in deltas if not isinstance(each, Heartbeat)] == [
        TextPiece(each) for each in ("Sunn", "y in", " bot", "h.")
    ]
    assert server.requests[1].messages[2:] == [
        {"role": "tool", "tool_call_id": "call_0", "content": "sun"},
        {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
    ]
    back = from_openai(server.requests[1].messages)
    assert [type(each) for each in back] == [type(each) for each in messages]
    assert server.connections == 1, "the connection is used again"


async def test_a_server_that_does_not_stream_is_understood() -> None:
    call = {"id": "x", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    choice = {"index": 0, "message": {"role": "assistant", "content": "One moment.", "tool_calls": [call]}}
    body = {"model": "m", "choices": [{**choice, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 3}}
    deltas: list[Delta] = []
    with OpenAIServer([Reply(body=body)]) as server:
        provider = provider_of(server)
        reply = await provider.respond(request(), deltas.append)
        await provider.aclose()
    assert reply.message == AssistantMessage(
        text="One moment.",
        tool_calls=(ToolCall(name="get_weather", arguments='{"city": "Paris"}', provider_call_id="x"),),
    )
    assert (reply.usage.input_tokens, reply.model, reply.finish_reason) == (3, "m", "tool_calls")
    assert next(each for each in deltas if each.text) == TextPiece("One moment.")


async def test_a_stream_that_ends_without_its_last_line_and_body_that_stays_open_are_whole() -> None:
    said_done = Reply(chunks=[*text("Sunny.").chunks, "data: [DONE]\n\n"], ending="hang")
    no_blank_line = Reply(chunks=[*text("Sunny.").chunks, "data: [DONE]"], ending="no_done")
    unlabelled = Reply(chunks=text("Sunny.").chunks, headers={"Content-Type": "text/plain"})
    for each in (said_done, no_blank_line, unlabelled, ended(text("Sunny."), "no_done")):
        with OpenAIServer([each]) as server:
            assert (await ask(server)).message.text == "Sunny."


async def test_what_the_emit_function_raises_is_not_the_providers_error(server: OpenAIServer) -> None:
    def broken(_delta: Delta) -> None:
        raise ZeroDivisionError

    provider = provider_of(server)
    with pytest.raises(ZeroDivisionError):
        await provider.respond(request(), broken)
    await provider.aclose()


# -------------------------------------------------------------------------------------------- what is sent


async def test_no_tools_means_no_word_of_tools(server: OpenAIServer) -> None:
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=True)
    await ask(server, request(settings=settings))
    assert server.requests[0].body == {
        "model": "test-model",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_settings_are_sent_in_the_dialect_of_compatible_servers(server: OpenAIServer) -> None:
    settings = ModelSettings(
        temperature=0.5,
        max_output_tokens=100,
        reasoning_effort="low",
        parallel_tool_calls=False,
        tool_choice="auto",
        extra_body={"top_k": 3, "temperature": 0.6},
    )
    await ask(server, request(settings=settings, tools=[WEATHER, CLOCK]), include_usage=False)
    body = server.requests[0].body
    assert {name: value for name, value in body.items() if name not in {"messages", "tools", "model"}} == {
        "stream": True,
        "temperature": 0.6,
        "max_tokens": 100,
        "reasoning_effort": "low",
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "top_k": 3,
    }
    assert body["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "Current weather in a city.",
                "parameters": dict(WEATHER.parameters),
            },
        },
        {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}},
    ]


async def test_settings_are_sent_in_openais_own_dialect(server: OpenAIServer) -> None:
    settings = ModelSettings(max_output_tokens=100, tool_choice="get_time")
    await ask(server, request(settings=settings, tools=[WEATHER, CLOCK]), compatible=False)
    body = server.requests[0].body
    assert body["max_completion_tokens"] == 100
    assert "max_tokens" not in body
    assert len(body["tools"]) == 2
    assert body["tool_choice"] == {"type": "function", "function": {"name": "get_time"}}


@pytest.mark.parametrize(
    ("compatible", "choice", "offered", "sent"),
    [
        (True, None, 2, None),
        (True, "required", 2, "required"),
        (True, "get_time", 1, "required"),
        (True, "none", 0, None),
        (False, "none", 2, "none"),
    ],
)
async def test_a_tool_choice_is_sent_so_that_the_server_keeps_it(
    server: OpenAIServer, compatible: bool, choice: str | None, offered: int, sent: str | None
) -> None:
    settings = ModelSettings(tool_choice=choice, parallel_tool_calls=True)
    await ask(server, request(settings=settings, tools=[WEATHER, CLOCK]), compatible=compatible)
    body = server.requests[0].body
    assert len(body.get("tools", ())) == offered
    assert body.get("tool_choice") == sent
    assert ("parallel_tool_calls" in body) == bool(offered)


async def test_a_tool_choice_that_is_not_offered_is_refused(server: OpenAIServer) -> None:
    with pytest.raises(ConfigurationError, match=r"tool_choice='get_tim' names no tool that is offered \(get_time\)"):
        await ask(server, request(settings=ModelSettings(tool_choice="get_tim"), tools=[CLOCK]))
    assert server.requests == []


async def test_malformed_arguments_in_the_history_do_not_break_servers_that_parse_them(server: OpenAIServer) -> None:
    broken = AssistantMessage(tool_calls=(ToolCall(name="f", arguments='{"a', call_id="1"),), reasoning="hm")
    history = (UserMessage(content="x"), broken, ToolMessage(call_id="1", name="f", content="no"))
    await ask(server, request(*history), reasoning_field="reasoning_content")
    await ask(server, request(*history), compatible=False)
    compatible, own = (each.messages[1] for each in server.requests)
    assert compatible["tool_calls"][0]["function"]["arguments"] == '{"_malformed_arguments":"{\\"a"}'
    assert compatible["reasoning_content"] == "hm"
    assert own["tool_calls"][0]["function"]["arguments"] == '{"a'
    assert "reasoning_content" not in own


async def test_parts_that_are_all_text_are_sent_to_compatible_servers_as_text(server: OpenAIServer) -> None:
    """DeepSeek and others: "invalid type: sequence, expected a string"."""
    note = FilePart.from_bytes(b"hi", "text/plain", "a.txt")
    call = AssistantMessage(tool_calls=(ToolCall(name="f", call_id="c"),))
    result = ToolMessage(call_id="c", name="f", content="one", parts=(note,))
    asked = request(UserMessage(content=(TextPart(text="See:"), note)), call, result)
    await ask(server, asked)
    await ask(server, asked, compatible=False)
    compatible, own = (each.messages for each in server.requests)
    assert compatible[0]["content"] == "See:\n[file a.txt]\nhi\n[end of file a.txt]"
    assert compatible[3]["content"].startswith("[Result 1 above")
    assert [part["type"] for part in own[0]["content"] + own[3]["content"]] == ["text"] * 4


async def test_half_a_character_in_the_history_is_sent_as_a_mark(server: OpenAIServer) -> None:
    await ask(server, request(UserMessage(content="cut \ud83d here")))
    assert server.requests[0].messages == [{"role": "user", "content": "cut ? here"}]


async def test_vendor_data_goes_back_to_the_vendor_that_sent_it() -> None:
    signed = {"index": 0, "id": "x", "function": {"name": "f", "arguments": "{}"}, "extra_content": {"signature": "s"}}
    script = [Reply(chunks=[chunk({"tool_calls": [signed]}, finish_reason="tool_calls")]), text("done")]
    with OpenAIServer(script) as server:
        provider = provider_of(server, vendor="gemini")
        reply = await provider.respond(request(), lambda _: None)
        await provider.respond(request(reply.message), lambda _: None)
        await provider.aclose()
    assert reply.vendor == "gemini"
    assert server.requests[1].messages[0]["tool_calls"][0]["extra_content"] == {"signature": "s"}


# ------------------------------------------------------------------------------------- clients and options


async def test_a_ready_client_is_used_and_left_open(server: OpenAIServer) -> None:
    client = openai.AsyncOpenAI(api_key="sk-given", base_url=server.base_url, default_headers={"x-team": "a"})
    provider = OpenAIProvider("deployment", client=client, vendor="azure")
    assert repr(provider) == f"OpenAIProvider('deployment', api='chat', vendor='azure', base_url='{server.base_url}')"
    reply = await provider.respond(request(), lambda _: None)
    await provider.aclose()
    assert not client.is_closed()
    await client.close()
    assert reply.vendor == "azure"
    assert server.requests[0].headers["x-team"] == "a"
    assert server.requests[0].headers["authorization"] == "Bearer sk-given"


async def test_an_azure_client_sends_to_its_deployment() -> None:
    with OpenAIServer() as server:
        client = openai.AsyncAzureOpenAI(api_key="k", azure_endpoint=server.origin, api_version="2026-10-21")
        provider = OpenAIProvider("my-deployment", client=client)
        with pytest.raises(
            Exception, match=r"no route /openai/deployments/my-deployment/chat/completions\?api-version"
        ):
            await provider.respond(request(), lambda _: None)
        await client.close()


async def test_headers_organization_and_project_are_sent(server: OpenAIServer) -> None:
    await ask(server, organization="org-1", project="proj-1", default_headers={"x-team": "a"})
    headers = server.requests[0].headers
    assert (headers["openai-organization"], headers["openai-project"], headers["x-team"]) == ("org-1", "proj-1", "a")


async def test_what_is_not_given_comes_from_the_environment(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", " sk-environment\n")
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    provider = OpenAIProvider("test-model")
    assert provider.model == "test-model"
    await provider.respond(request(), lambda _: None)
    await provider.aclose()
    assert server.requests[0].headers["authorization"] == "Bearer sk-environment"


@pytest.mark.parametrize(
    ("url", "field"),
    [
        ("https://api.openai.com/v1", "max_completion_tokens"),
        ("https://eu.api.openai.com/v1", "max_completion_tokens"),
        ("https://mine.openai.azure.com/openai", "max_completion_tokens"),
        ("https://mine.openai.azure.us/openai", "max_completion_tokens"),
        ("https://api.openai.com.example.org/v1", "max_tokens"),
        ("https://notapi.openai.com/v1", "max_tokens"),
        ("http://127.0.0.1:8000/v1", "max_tokens"),
    ],
)
def test_the_hosts_name_decides_on_the_dialect(url: str, field: str) -> None:
    from toolbus.providers.openai._chat_request import is_openai, request_body

    body = request_body(
        "m",
        request(settings=ModelSettings(max_output_tokens=7)),
        vendor="openai",
        compatible=not is_openai(url),
        include_usage=True,
        reasoning_field=None,
    )
    assert body[field] == 7


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"model": ""}, "the model's name is empty"),
        ({"timeout_seconds": 0}, "timeout_seconds is 0"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds is nan"),
        ({"timeout_seconds": float("inf")}, "timeout_seconds is inf"),
        ({"max_reply_bytes": 0}, "max_reply_bytes is 0"),
        ({"base_url": "localhost:8000"}, "base_url 'localhost:8000' is not a server's URL"),
        ({"base_url": "http://"}, "is not a server's URL"),
        ({"base_url": "http://host:port/v1"}, "is not a server's URL"),
        ({"api_key": "two words"}, "api_key is not a key"),
        ({"api_key": "schlüssel"}, "api_key is not a key"),
        ({"client": openai.AsyncOpenAI(api_key="k"), "api_key": "k"}, "client= has its own key"),
        ({"client": openai.AsyncOpenAI(api_key="k"), "default_headers": {}}, "client= has its own key"),
        ({"api_key": None}, "there is no API key for OpenAI: set OPENAI_API_KEY"),
    ],
)
def test_options_that_cannot_be_are_refused_at_construction(options: dict[str, Any], problem: str) -> None:
    given: dict[str, Any] = {"model": "m", **({} if "client" in options else {"api_key": "k"}), **options}
    with pytest.raises(ConfigurationError, match=problem):
        OpenAIProvider(given.pop("model"), **given)
