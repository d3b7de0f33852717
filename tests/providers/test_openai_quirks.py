"""What small local models and their servers do to chat completions, and how replies end."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from support.asking import request
from support.openai_server import OpenAIServer, Reply, chunk, status, text
from toolbus import Runtime, tool
from toolbus.errors import ContentFiltered, ProviderUnavailable
from toolbus.messages import AssistantMessage, ImagePart, ToolCall, ToolMessage, Usage, UserMessage
from toolbus.protocols import Delta, ModelReply, ModelRequest, ModelSettings, TextPiece, ToolSpec
from toolbus.providers import OpenAIProvider
from toolbus.testing.wire import WireCall, WireFault, WireReply, WireServer

WEATHER = ToolSpec(name="get_weather")
CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
CHART = ImagePart(url="data:image/png;base64,iVBORw0KGgo=")


async def ask(script: list[Any], asked: ModelRequest | None = None, emit: Any = None, **options: Any) -> ModelReply:
    with OpenAIServer(script) as server:
        provider = OpenAIProvider("m", base_url=server.base_url, **options)
        try:
            with anyio.fail_after(60):
                return await provider.respond(asked or request(), emit or (lambda _: None))
        finally:
            await provider.aclose()


# ----------------------------------------------------------------------------------------------- llama.cpp


@pytest.mark.guarantee("G28")
@pytest.mark.parametrize(
    ("code", "message"),
    [(503, "Loading model"), (500, "The model produced output that does not match the expected format")],
)
async def test_a_server_that_loads_or_could_not_read_its_model_is_asked_again(code: int, message: str) -> None:
    body = {"error": {"code": code, "message": message, "type": "unavailable_error"}}
    with pytest.raises(ProviderUnavailable, match=message) as caught:
        await ask([status(code, body=body)])
    assert (caught.value.status, caught.value.retryable) == (code, True)


@pytest.mark.guarantee("G28")
async def test_arguments_that_the_token_limit_cut_never_run() -> None:
    ran: list[str] = []

    @tool
    def get_weather(city: str = "everywhere") -> str:
        """Current weather."""
        ran.append(city)
        return "sun"

    def cut(arguments: str) -> WireReply:
        return WireReply(calls=(WireCall(name="get_weather", arguments=arguments),), finish_reason="length")

    with WireServer([cut('{"ci'), cut(""), WireReply(text="Sorry.")]) as server:
        provider = OpenAIProvider("m", base_url=server.base_url)
        async with Runtime(provider=provider, tools=[get_weather]) as runtime:
            result = await runtime.run("Weather?")
        await provider.aclose()
        assert server.read(2).problems == ()
    assert result.text == "Sorry."
    assert ran == []
    failures = [each.content for each in result.messages if isinstance(each, ToolMessage)]
    assert len(failures) == 2
    assert all("invalid_arguments" in each for each in failures)


@pytest.mark.parametrize("option", [False, True])
@pytest.mark.parametrize(
    "asked", [request(), request(tools=[WEATHER], settings=ModelSettings(tool_choice="none"))], ids=["no tools", "none"]
)
async def test_a_call_as_text_stays_text_when_no_tool_is_offered(asked: ModelRequest, option: bool) -> None:
    reply = await ask([text(CALL)], asked, calls_in_text=option)
    assert reply.message == AssistantMessage(text=CALL)
    assert reply.finish_reason == "stop"


async def test_a_call_as_text_stays_text_unless_somebody_asks_for_more() -> None:
    asked = request(tools=[WEATHER])
    assert (await ask([text(CALL)], asked)).message.text == CALL
    deltas: list[Delta] = []
    reply = await ask([text(CALL)], asked, deltas.append, calls_in_text=True)
    assert reply.message == AssistantMessage(tool_calls=(ToolCall(name="get_weather", arguments='{"city": "Paris"}'),))
    assert (reply.finish_reason, reply.vendor_finish_reason) == ("tool_calls", "stop")
    assert not any(each.text for each in deltas if isinstance(each, TextPiece))


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_model_that_writes_its_calls_as_text_can_use_tools(api: Any) -> None:
    @tool
    def get_weather(city: str) -> str:
        """Current weather."""
        return f"sunny in {city}"

    script = [WireReply(text=f"```json\n{CALL}\n```"), WireReply(text="Sunny in Paris.")]
    with WireServer(script, dialect="openai" if api == "chat" else "responses") as server:
        provider = OpenAIProvider("m", base_url=server.base_url, api=api, calls_in_text=True)
        pieces: list[str] = []
        async with Runtime(provider=provider, tools=[get_weather]) as runtime:
            session = runtime.start("Weather?")
            pieces = [piece async for piece in session.text()]
            result = await session.result()
        await provider.aclose()
        assert server.read(1).problems == ()
        assert [each.role for each in server.read(1).messages] == ["user", "assistant", "tool"]
    assert result.text == "Sunny in Paris."
    assert "".join(pieces) == "Sunny in Paris."
    assert all(pieces), "signs of life are no pieces of text"


async def test_a_server_that_loads_is_waited_for_by_the_request() -> None:
    with WireServer([WireFault(kind="loading"), WireReply(text="Here.")]) as server:
        provider = OpenAIProvider("m", base_url=server.base_url)
        async with Runtime(provider=provider) as runtime:
            assert (await runtime.run("hi")).text == "Here."
        await provider.aclose()


# -------------------------------------------------------------------------------------------- how replies end


async def test_a_refusal_is_text_and_told() -> None:
    refusal = Reply(chunks=[chunk({"refusal": "I will "}), chunk({"refusal": "not."}), chunk(finish_reason="stop")])
    reply = await ask([refusal])
    assert (reply.message.text, reply.finish_reason, reply.vendor_finish_reason) == ("I will not.", "refusal", "stop")
    in_parts = Reply(chunks=[chunk({"content": [{"type": "refusal", "refusal": "No."}]}, finish_reason="stop")])
    assert (await ask([in_parts])).finish_reason == "refusal"
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    both = Reply(chunks=[chunk({"refusal": "No.", "tool_calls": [call]}, finish_reason="tool_calls")])
    assert (await ask([both])).finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("word", "neutral"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"),
        ("content_filter", "content_filter"),
        ("content_filter: PROHIBITED_CONTENT", "content_filter"),
        ("SAFETY", "content_filter"),
        ("sensitive", "content_filter"),
        ("model_length", "length"),
        ("MAX_TOKENS", "length"),
        ("eos", "other"),
    ],
)
async def test_why_a_reply_ended_is_reported_in_neutral_words(word: str, neutral: str) -> None:
    reply = await ask([text("So far", finish_reason=word)])
    assert (reply.finish_reason, reply.vendor_finish_reason) == (neutral, word)


@pytest.mark.parametrize("said", ["", " \n"])
async def test_a_reply_that_was_withheld_says_so_and_fails_its_request_though_it_is_paid_for(said: str) -> None:
    withheld = text(said, finish_reason="content_filter")
    reply = await ask([withheld])
    assert (reply.finish_reason, reply.message.text.strip()) == ("content_filter", "")
    with OpenAIServer([withheld]) as server:
        provider = OpenAIProvider("m", api_key="k", base_url=server.base_url)
        async with Runtime(provider) as runtime:
            result = await runtime.start("hi").result()
        await provider.aclose()
    assert (result.outcome, result.reason, len(server.requests)) == ("failed", "content_filtered", 1)
    assert isinstance(result.error, ContentFiltered)
    assert not result.error.retryable
    assert result.usage == reply.usage != Usage()


async def test_a_prompt_that_was_withheld_is_an_error_with_the_servers_words() -> None:
    inner = {"code": "ResponsibleAIPolicyViolation"}
    body = {"error": {"code": "content_filter", "message": "The prompt was filtered.", "innererror": inner}}
    with pytest.raises(ContentFiltered, match=r"The prompt was filtered\.") as caught:
        await ask([status(400, body=body)])
    assert (caught.value.status, caught.value.retryable) == (400, False)


async def test_a_call_without_arguments_that_was_withheld_half_way_does_not_become_whole() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}
    reply = await ask([Reply(chunks=[chunk({"tool_calls": [call]}, finish_reason="content_filter")])])
    assert (reply.message.tool_calls[0].arguments, reply.finish_reason) == ("", "content_filter")


async def test_tokens_written_to_the_cache_are_counted() -> None:
    usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 5}}
    reply = await ask([text("hi", usage=usage)])
    assert (reply.usage.cached_tokens, reply.usage.cache_write_tokens) == (1, 5)


# ------------------------------------------------------------------------------------------------- images


async def test_images_of_results_are_seen_by_models_that_can_see_and_told_to_the_others() -> None:
    history = (
        UserMessage(content=(CHART,)),
        AssistantMessage(tool_calls=(ToolCall(name="draw", call_id="c1"),)),
        ToolMessage(call_id="c1", name="draw", content="drawn", parts=(CHART,)),
    )
    with WireServer(lambda _: WireReply(text="I see.")) as server:
        for images in (True, False):
            provider = OpenAIProvider("m", base_url=server.base_url, images=images)
            await provider.respond(request(*history), lambda _: None)
            await provider.aclose()
            assert server.read().problems == ()
    seeing, blind = (each.body["messages"] for each in server.requests)
    assert seeing[3]["content"][0]["text"] == '[Result 1 above, of call "c1", came with 1 attachment:]'
    assert seeing[3]["content"][1] == {"type": "image_url", "image_url": {"url": CHART.url}}
    mark = "[an image, which this model cannot see]"
    assert [each["content"] for each in blind] == [mark, None, f"drawn\n{mark}"]
