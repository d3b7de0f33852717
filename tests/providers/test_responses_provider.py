"""The Responses API over a real socket. What its events are put together to is in test_responses_stream."""

from __future__ import annotations

from typing import Any

import anyio
import openai
import pytest

from support.asking import request
from toolbus import Runtime, ToolResult, tool
from toolbus.errors import ConfigurationError, ContextOverflow, ProviderError, ProviderRejected, ProviderUnavailable
from toolbus.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    TextPart,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    from_openai_responses,
    without_images,
)
from toolbus.protocols import Delta, ModelReply, ModelRequest, ModelSettings, ReasoningPiece, TextPiece, ToolSpec
from toolbus.providers import OpenAIProvider
from toolbus.providers.openai._chat_request import request_body
from toolbus.providers.openai._responses_request import reasons, response_body
from toolbus.records import replace
from toolbus.testing.wire import WireBreak, WireCall, WireFault, WirePage, WireReply, WireServer, WireStep

WEATHER = ToolSpec(
    name="get_weather",
    description="Current weather in a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CLOCK = ToolSpec(name="get_time")
CHART = ImagePart(url="data:image/png;base64,iVBORw0KGgo=")
ASKS = WireReply(
    text="One moment.",
    reasoning="Paris, I think.",
    calls=(WireCall(name="get_weather", arguments='{"city": "Paris"}', call_id="call_7"),),
)


def provider_of(server: WireServer, **options: Any) -> OpenAIProvider:
    return OpenAIProvider("o9", base_url=server.base_url, api="responses", **options)


async def ask(server: WireServer, asked: ModelRequest | None = None, **options: Any) -> ModelReply:
    provider = provider_of(server, **options)
    try:
        with anyio.fail_after(60):
            return await provider.respond(asked or request(), lambda _: None)
    finally:
        await provider.aclose()


async def body_of(asked: ModelRequest, **options: Any) -> dict[str, Any]:
    with WireServer([WireReply(text="ok")], dialect="responses") as server:
        await ask(server, asked, **options)
    return server.requests[0].body


async def failure_of(step: WireStep, **options: Any) -> ProviderError:
    with WireServer([step], dialect="responses") as server:
        with pytest.raises(ProviderError) as caught:
            await ask(server, **options)
        assert len(server.requests) == 1, "the provider does not retry"
    return caught.value


# ------------------------------------------------------------------------------------------ conversations


@pytest.mark.guarantee("G08")
async def test_reasoning_goes_back_with_each_rounds_results_in_a_whole_request() -> None:
    @tool
    async def get_weather(city: str) -> ToolResult:
        """Current weather."""
        return ToolResult(message=f"Sunny in {city}.")

    script = [ASKS, WireReply(reasoning="And Rome?", calls=ASKS.calls), WireReply(text="Sunny.")]
    with WireServer(script, dialect="responses") as server:
        provider = provider_of(server)
        async with Runtime(provider=provider, tools=[get_weather]) as runtime:
            result = await runtime.run("Weather?")
        await provider.aclose()
        assert result.text == "Sunny."
        assert [server.read(number).problems for number in range(3)] == [(), (), ()]
        assert server.read(2).opaque == ("encrypted:Paris, I think.", "encrypted:And Rome?")
    kinds = [each.get("type", each.get("role")) for each in server.requests[2].body["input"]]
    assert kinds == [
        "user",
        *("reasoning", "message", "function_call", "function_call_output"),
        *("reasoning", "function_call", "function_call_output"),
    ]
    sent = [each for each in server.requests[2].body["input"] if each.get("type") == "function_call"]
    assert [each["id"] for each in sent] == ["fc_2", "fc_1"]
    assert sent[0]["call_id"] == "call_7"
    assert sent[1]["call_id"] != "call_7", "an id that the model uses again is told apart"


@pytest.mark.parametrize(
    "words",
    [
        "The encrypted content gAAA...DQ== could not be verified.",
        "The requested item was created under a different Azure OpenAI resource. Use the same resource.",
    ],
)
async def test_reasoning_that_another_organisation_made_does_not_end_the_conversation(words: str) -> None:
    script = [
        WireReply(reasoning="Hm.", text="Yes."),
        WireFault(kind="bad_request", message=words),
        WireReply(reasoning="So.", text="No."),
        WireReply(text="Maybe."),
    ]
    with WireServer(script, dialect="responses") as server:
        provider = provider_of(server)
        async with Runtime(provider=provider) as runtime:
            for said in ("Yes.", "No.", "Maybe."):
                assert (await runtime.run("Is it so?", conversation_id="c")).text == said
        await provider.aclose()
        assert [server.read(number).opaque for number in range(4)] == [
            (),
            ("encrypted:Hm.",),
            (),
            ("encrypted:So.",),
        ]
        assert [each.text for each in server.read(2).messages] == ["Is it so?", "Yes.", "Is it so?"]


async def test_reasoning_that_openai_has_no_longer_does_not_end_the_conversation() -> None:
    items: list[Any] = [
        {"role": "user", "content": "Is it so?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
    ]
    words = "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false."
    with WireServer(
        [WireFault(kind="bad_request", message=words), WireReply(text="No.")], dialect="responses"
    ) as server:
        provider = provider_of(server)
        async with Runtime(provider=provider) as runtime:
            assert (await runtime.run("Really?", history=from_openai_responses(items))).text == "No."
        await provider.aclose()
        assert [each.get("id") for each in server.requests[0].body["input"]] == [None, "rs_1", "msg_1", None]
        assert [each.get("id") for each in server.requests[1].body["input"]] == [None, None, None]


async def test_a_refusal_of_reasoning_that_was_not_sent_is_a_rejection() -> None:
    error = await failure_of(WireFault(kind="bad_request", message="The encrypted content x could not be verified."))
    assert type(error) is ProviderRejected


async def test_pieces_are_emitted_as_they_arrive() -> None:
    deltas: list[Delta] = []
    with WireServer([ASKS], dialect="responses") as server:
        provider = provider_of(server)
        reply = await provider.respond(request(tools=[WEATHER]), deltas.append)
        await provider.aclose()
    assert "".join(each.text for each in deltas if isinstance(each, TextPiece)) == "One moment."
    assert "".join(each.text for each in deltas if isinstance(each, ReasoningPiece)) == "Paris, I think."
    assert reply.message.tool_calls == (
        ToolCall(name="get_weather", arguments='{"city": "Paris"}', provider_call_id="call_7"),
    )
    assert (reply.finish_reason, reply.vendor, reply.model) == ("tool_calls", "openai", "stub-model-1")


async def test_the_connection_is_used_again() -> None:
    with WireServer(lambda _: WireReply(text="hi"), dialect="responses") as server:
        provider = provider_of(server)
        for _ in range(3):
            await provider.respond(request(), lambda _: None)
        assert server.connections == 1
        await provider.aclose()


async def test_a_history_of_chat_completions_goes_on_with_responses_and_back() -> None:
    with (
        WireServer([ASKS], dialect="responses") as responses,
        WireServer([WireReply(text="ok")], dialect="openai") as chat,
    ):
        message = (await ask(responses)).message
        message = replace(message, tool_calls=(replace(message.tool_calls[0], call_id="m1"), *message.tool_calls[1:]))
        history = (UserMessage(content="x"), message, ToolMessage(call_id="m1", name="get_weather", content="sun"))
        provider = OpenAIProvider("m", base_url=chat.base_url)
        reply = await provider.respond(request(*history), lambda _: None)
        await provider.aclose()
        assert chat.read().problems == ()
    assert reply.message.text == "ok"
    assert chat.requests[0].body["messages"][1] == {
        "role": "assistant",
        "content": "One moment.",
        "tool_calls": [
            {
                "id": "call_7",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
            }
        ],
    }


# -------------------------------------------------------------------------------------------- what is sent


async def test_nothing_is_stored_and_reasoning_comes_encrypted() -> None:
    assert await body_of(request()) == {
        "model": "o9",
        "input": [{"role": "user", "content": "hi"}],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }


@pytest.mark.parametrize(
    ("model", "does"),
    [
        ("gpt-5-mini", True),
        ("o3", True),
        ("gpt-oss-20b", True),
        ("gpt-4.1", False),
        ("gpt-4o-mini", False),
        ("ft:gpt-4o:me", False),
        ("chatgpt-4o-latest", False),
        ("gpt-5-chat-latest", False),
        ("gpt-3.5-turbo", False),
    ],
)
def test_models_that_do_not_reason_are_not_asked_for_reasoning(model: str, does: bool) -> None:
    assert reasons(model) is does


@pytest.mark.parametrize(("model", "goes"), [("gpt-5-mini", True), ("gpt-4.1", False)])
async def test_reasoning_does_not_go_to_a_model_that_refuses_it(model: str, goes: bool) -> None:
    """A conversation that begins with a model that reasons, and goes on with one that does not."""
    with WireServer([ASKS], dialect="responses") as server:
        reply = await ask(server, request(tools=[WEATHER]))
    call = replace(reply.message.tool_calls[0], call_id="c")
    result = ToolMessage(call_id="c", name="get_weather", content="clear")
    asked = request(UserMessage(content="hi"), replace(reply.message, tool_calls=(call,)), result)
    body = response_body(
        model, asked, vendor="openai", compatible=False, encrypted_reasoning=reasons(model), reasoning_summary=None
    )
    kinds = [each.get("type", each.get("role")) for each in body["input"]]
    assert kinds == [
        "user",
        *(["reasoning", "message"] if goes else ["message"]),
        "function_call",
        "function_call_output",
    ]
    assert goes is any("id" in each for each in body["input"])


@pytest.mark.parametrize(("compatible", "sent"), [(False, 16), (True, 5)])
async def test_openai_is_asked_for_as_few_tokens_as_it_accepts(compatible: bool, sent: int) -> None:
    asked = request(settings=ModelSettings(max_output_tokens=5))
    assert (await body_of(asked, compatible=compatible))["max_output_tokens"] == sent


async def test_who_asks_for_reasoning_decides_by_options() -> None:
    assert "include" not in await body_of(request(), encrypted_reasoning=False)
    effort = request(settings=ModelSettings(reasoning_effort="low"))
    assert (await body_of(effort))["reasoning"] == {"effort": "low"}
    assert (await body_of(effort, reasoning_summary="auto"))["reasoning"] == {"effort": "low", "summary": "auto"}
    assert (await body_of(request(), reasoning_summary="concise"))["reasoning"] == {"summary": "concise"}


async def test_settings_and_tools_are_sent_in_the_form_of_responses() -> None:
    settings = ModelSettings(
        temperature=0.5,
        max_output_tokens=100,
        parallel_tool_calls=False,
        tool_choice="get_time",
        extra_body={"store": True, "truncation": "auto"},
    )
    body = await body_of(request(settings=settings, tools=[WEATHER, CLOCK]), compatible=False)
    assert {name: body[name] for name in set(body) - {"model", "input", "stream", "include", "tools"}} == {
        "temperature": 0.5,
        "max_output_tokens": 100,
        "parallel_tool_calls": False,
        "tool_choice": {"type": "function", "name": "get_time"},
        "store": True,
        "truncation": "auto",
    }
    assert body["tools"] == [
        {
            "type": "function",
            "name": "get_weather",
            "description": "Current weather in a city.",
            "parameters": dict(WEATHER.parameters),
            "strict": False,
        },
        {"type": "function", "name": "get_time", "parameters": dict(CLOCK.parameters), "strict": False},
    ]


@pytest.mark.parametrize(
    ("compatible", "choice", "offered", "sent"),
    [
        (True, "get_time", 1, "required"),
        (True, "none", 0, None),
        (False, "none", 2, "none"),
        (False, "auto", 2, "auto"),
    ],
)
async def test_a_tool_choice_is_sent_so_that_the_server_keeps_it(
    compatible: bool, choice: str, offered: int, sent: Any
) -> None:
    settings = ModelSettings(tool_choice=choice, parallel_tool_calls=True)
    body = await body_of(request(settings=settings, tools=[WEATHER, CLOCK]), compatible=compatible)
    assert len(body.get("tools", ())) == offered
    assert body.get("tool_choice") == sent
    assert ("parallel_tool_calls" in body) == bool(offered)


async def test_strict_tools_are_asked_for_in_both_apis() -> None:
    strict = await body_of(request(tools=[CLOCK]), strict_tools=True)
    assert strict["tools"][0]["strict"] is True
    with WireServer([WireReply(text="ok")], dialect="openai") as server:
        provider = OpenAIProvider("m", base_url=server.base_url, strict_tools=True)
        await provider.respond(request(tools=[CLOCK]), lambda _: None)
        await provider.aclose()
    assert server.requests[0].body["tools"][0]["function"]["strict"] is True


async def test_images_and_files_go_in_prompts_and_in_results() -> None:
    report = FilePart(url="data:application/pdf;base64,JVBERi0=", media_type="application/pdf", name="a.pdf")
    history = (
        UserMessage(content=(TextPart(text="See:"), CHART, report)),
        AssistantMessage(tool_calls=(ToolCall(name="f", call_id="c"),)),
        ToolMessage(call_id="c", name="f", content="a chart", parts=(CHART,)),
    )
    seen = await body_of(request(*history))
    image = {"type": "input_image", "image_url": CHART.url, "detail": "auto"}
    assert seen["input"][0]["content"][1] == image
    assert seen["input"][2]["output"] == [{"type": "input_text", "text": "a chart"}, image]
    blind = await body_of(request(*history), images=False)
    assert "input_image" not in str(blind)
    assert blind["input"][2]["output"].startswith("a chart\n[an image")
    assert blind == await body_of(request(*without_images(history)))


@pytest.mark.parametrize(
    ("media_type", "name"), [("application/pdf", "file.pdf"), ("application/x-unheard-of", "file")]
)
async def test_a_file_without_a_name_gets_one_since_openai_refuses_it_otherwise(media_type: str, name: str) -> None:
    file = FilePart(url=f"data:{media_type};base64,JVBERi0=", media_type=media_type)
    call = AssistantMessage(tool_calls=(ToolCall(name="f", call_id="c"),))
    history = (UserMessage(content=(file,)), call, ToolMessage(call_id="c", name="f", content="", parts=(file,)))
    seen = await body_of(request(*history))
    sent = {"type": "input_file", "file_data": file.url, "filename": name}
    assert (seen["input"][0]["content"], seen["input"][2]["output"]) == ([sent], [sent])
    chat = request_body("m", request(*history), vendor="openai", compatible=False)["messages"]
    assert chat[0]["content"] == [{"type": "file", "file": {"file_data": file.url, "filename": name}}]
    assert chat[3]["content"][1] == chat[0]["content"][0]


async def test_an_azure_client_sends_to_its_resource_and_names_its_deployment() -> None:
    with WireServer([], dialect="responses") as server:
        client = openai.AsyncAzureOpenAI(api_key="k", azure_endpoint=server.origin, api_version="2026-10-21")
        provider = OpenAIProvider("my-deployment", client=client, api="responses")
        with pytest.raises(ProviderRejected, match=r"/openai/responses\?api-version"):
            await provider.respond(request(), lambda _: None)
        await client.close()
    assert server.requests[0].body["model"] == "my-deployment"


async def test_half_a_character_in_the_history_is_sent_as_a_mark() -> None:
    body = await body_of(request(UserMessage(content="cut \ud83d here")))
    assert body["input"] == [{"role": "user", "content": "cut ? here"}]


def test_an_api_that_is_none_is_refused_at_construction() -> None:
    with pytest.raises(ConfigurationError, match="api is 'assistants'; it must be 'chat' or 'responses'"):
        OpenAIProvider("m", api_key="k", api="assistants")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------- errors


@pytest.mark.guarantee("G28")
@pytest.mark.parametrize("how", ["cut", "reset", "end"])
async def test_a_cut_stream_is_an_error_and_never_half_a_reply(how: Any) -> None:
    for after in (None, 0, 5, 12):
        error = await failure_of(WireBreak(reply=ASKS, how=how, after=after))
        assert type(error) is ProviderUnavailable
        assert error.retryable


@pytest.mark.parametrize("wording", [0, 1])
async def test_an_error_inside_the_stream_is_raised_with_the_servers_words(wording: int) -> None:
    error = await failure_of(WireBreak(reply=ASKS, how="error", after=3, message="out of memory", wording=wording))
    assert type(error) is ProviderUnavailable
    assert str(error) == "openai broke its reply off: out of memory"


@pytest.mark.parametrize("wording", [0, 1])
async def test_a_transcript_that_is_too_long_is_reported_in_each_way_that_the_server_has(wording: int) -> None:
    assert type(await failure_of(WireFault(kind="context_overflow", wording=wording))) is ContextOverflow


async def test_refusals_of_the_server_are_the_same_errors_as_in_chat() -> None:
    limited = await failure_of(WireFault(kind="rate_limited", retry_after_seconds=7))
    assert (type(limited), limited.retryable, limited.retry_after_seconds) == (ProviderUnavailable, True, 7)
    assert "Responses API (others need api='chat')" in str(await failure_of(WireFault(kind="not_found")))
    assert type(await failure_of(WirePage())) is ProviderRejected
    assert type(await failure_of(WireBreak(reply=ASKS, how="garbage", after=2))) is ProviderUnavailable


async def test_a_reply_that_was_withheld_or_refused_says_so() -> None:
    script = [
        WireReply(finish_reason="content_filter"),
        WireReply(text="So far", finish_reason="content_filter"),
        WireReply(refusal="I will not."),
    ]
    with WireServer(script, dialect="responses") as server:
        withheld, cut, refused = await ask(server), await ask(server), await ask(server)
    assert (withheld.message.text, withheld.message.tool_calls) == ("", ())
    assert withheld.finish_reason == "content_filter"
    assert (cut.message.text, cut.finish_reason) == ("So far", "content_filter")
    assert (refused.message.text, refused.finish_reason) == ("I will not.", "refusal")


@pytest.mark.parametrize("call", [(), (WireCall(name="get_weather", arguments=""),)])
async def test_a_reply_with_as_many_tokens_as_it_may_have_was_cut_off_though_its_server_calls_it_completed(
    call: tuple[WireCall, ...],
) -> None:
    """llama.cpp, Ollama and Transformers end a reply in the same way whether or not the limit has cut it off."""
    cut = WireReply(
        text="The story of", calls=call, finish_reason="stop", usage=Usage(input_tokens=13, output_tokens=5)
    )
    found: list[str] = []
    with WireServer([cut] * 3, dialect="responses") as server:
        for limit in (5, 6, None):
            settings = ModelSettings(max_output_tokens=limit, extra_body={"top_k": 1})
            found.append((await ask(server, request(settings=settings), compatible=True)).finish_reason)
    assert found == ["length", *["tool_calls" if call else "stop"] * 2]


async def test_a_reply_of_nearly_the_limit_is_read_though_the_last_event_repeats_it() -> None:
    long = "x" * 60_000
    with WireServer([WireReply(text=long)], dialect="responses") as server:
        assert (await ask(server, max_reply_bytes=61_000)).message.text == long
