"""The provider against a real HTTP server that speaks the Messages API, whole and broken."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import anthropic
import anyio
import pytest
from anthropic.lib.bedrock import AsyncAnthropicBedrock
from anthropic.lib.vertex import AsyncAnthropicVertex

from support.asking import everything_about, request
from toolbus import Runtime
from toolbus.errors import (
    ApplicationError,
    ConfigurationError,
    ContextOverflow,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
    ReplyTooLarge,
)
from toolbus.messages import AssistantMessage, ImagePart, Message, ToolCall, ToolMessage, UserMessage
from toolbus.protocols import Delta, ModelReply, ModelRequest, TextPiece, ToolSpec
from toolbus.providers import AnthropicProvider
from toolbus.records import replace
from toolbus.testing.wire import (
    Answer,
    HttpRequest,
    LoopbackServer,
    WireBreak,
    WireCall,
    WireFault,
    WirePage,
    WireReply,
    WireServer,
    WireStep,
    sse,
)

WEATHER = ToolSpec(name="get_weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})
SECRET = "sk-ant-api03-0123456789abcdef"
SUNNY = WireReply(text="Sunny.")


@pytest.fixture
def server() -> Iterator[WireServer]:
    with WireServer(lambda _request: SUNNY, dialect="anthropic") as running:
        yield running


async def ask(
    provider: AnthropicProvider, asked: ModelRequest | None = None, deltas: list[Delta] | None = None
) -> ModelReply:
    seen: list[Delta] = [] if deltas is None else deltas
    try:
        with anyio.fail_after(30):
            return await provider.respond(asked or request(), seen.append)
    finally:
        await provider.aclose()


async def failure(provider: AnthropicProvider, asked: ModelRequest | None = None) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await ask(provider, asked)
    return caught.value


async def failure_of(step: WireStep, **options: Any) -> ProviderError:
    with WireServer([step], dialect="anthropic") as server:
        error = await failure(AnthropicProvider("m", base_url=server.base_url, **options))
        assert len(server.requests) == 1, "the provider does not retry"
        return error


class Streaming(LoopbackServer):
    """A server that streams these events, an answer for each request, and keeps what it was asked."""

    def __init__(self, *answers: list[Mapping[str, Any]]) -> None:
        self.bodies: list[Any] = []
        self._left = list(answers)
        super().__init__(self._stream)

    def _stream(self, asked: HttpRequest) -> Answer:
        self.bodies.append(asked.body)
        frames = [sse(each, str(each["type"])) for each in self._left.pop(0)]
        return Answer(headers={"Content-Type": "text/event-stream"}, frames=frames)


# ------------------------------------------------------------------------------------------ conversations


async def test_a_whole_tool_calling_conversation_goes_over_the_wire() -> None:
    script = [
        WireReply(
            reasoning="Two cities.",
            opaque_reasoning="AAAA",
            text="One moment.",
            calls=(
                WireCall(name="get_weather", arguments='{"city": "Paris"}', call_id="toolu_1"),
                WireCall(name="get_weather", arguments='{"city": "Rome"}', call_id="toolu_2"),
            ),
        ),
        WireReply(text="Sunny in both."),
    ]
    with WireServer(script, dialect="anthropic") as server:
        provider = AnthropicProvider("test-model", base_url=server.base_url)
        messages: list[Message] = [UserMessage(content="Weather?")]
        first = await provider.respond(request(*messages, tools=[WEATHER]), lambda _: None)
        calls = tuple(replace(call, call_id=f"minted{number}") for number, call in enumerate(first.message.tool_calls))
        messages.append(replace(first.message, tool_calls=calls))
        messages += [ToolMessage(call_id=each.call_id, name=each.name, content="sun") for each in calls]
        deltas: list[Delta] = []
        second = await ask(provider, request(*messages, tools=[WEATHER], round=1), deltas)
        sent = server.read(1)
    assert [each.arguments for each in first.message.tool_calls] == ['{"city": "Paris"}', '{"city": "Rome"}']
    assert first.message.reasoning == "Two cities."
    assert second.message == AssistantMessage(text="Sunny in both.")
    assert "".join(each.text for each in deltas if isinstance(each, TextPiece)) == "Sunny in both."
    assert sent.problems == ()
    assert sent.opaque == ("signature:Two cities.", "AAAA")
    assert [each.call_id for each in sent.messages if isinstance(each, ToolMessage)] == ["toolu_1", "toolu_2"]
    assert server.connections == 1, "the connection is used again"


async def test_requests_share_a_connection_until_the_provider_is_closed(server: WireServer) -> None:
    provider = AnthropicProvider("m", base_url=server.base_url)
    connections: list[int] = []
    for _ in range(2):
        for _ in range(2):
            await provider.respond(request(), lambda _: None)
            connections.append(server.connections)
        await provider.aclose()
    assert connections == [1, 1, 2, 2]


async def test_half_a_character_in_the_history_is_sent_as_a_mark(server: WireServer) -> None:
    await ask(
        AnthropicProvider("m", base_url=server.base_url, cache="off"), request(UserMessage(content="cut \ud83d here"))
    )
    assert server.requests[0].body["messages"] == [{"role": "user", "content": "cut ? here"}]


async def test_what_the_emit_function_raises_is_not_the_providers_error(server: WireServer) -> None:
    def broken(_delta: Delta) -> None:
        raise ZeroDivisionError

    provider = AnthropicProvider("m", base_url=server.base_url)
    with pytest.raises(ZeroDivisionError):
        await provider.respond(request(), broken)
    await provider.aclose()


def paused(text: str) -> list[Mapping[str, Any]]:
    """An answer that the API laid aside while its own search ran."""
    use = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": text}}
    return [
        {"type": "message_start", "message": {"usage": {"input_tokens": 5}, "container": {"id": "container_1"}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": text}},
        {"type": "content_block_start", "index": 1, "content_block": use},
        {"type": "message_delta", "delta": {"stop_reason": "pause_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]


def ended(text: str) -> list[Mapping[str, Any]]:
    return [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": text}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]


async def test_a_turn_that_the_api_pauses_goes_on_and_is_one_reply() -> None:
    deltas: list[Delta] = []
    with Streaming(paused("First. "), paused("Then. "), ended("Done.")) as server:
        search = {"type": "web_search_20250305", "name": "web_search"}
        reply = await ask(
            AnthropicProvider("m", base_url=server.origin, server_tools=[search], cache="off"), deltas=deltas
        )
    bodies = server.bodies
    assert reply.message.text == "First. Then. Done."
    assert "".join(each.text for each in deltas) == reply.message.text
    assert (reply.finish_reason, reply.usage.input_tokens, reply.usage.output_tokens) == ("stop", 10, 4)
    assert [len(each["messages"]) for each in bodies] == [1, 2, 2]
    kinds = [[block["type"] for block in each["messages"][1]["content"]] for each in bodies[1:]]
    assert kinds == [["text", "server_tool_use"], ["text", "server_tool_use"] * 2]
    assert [each.get("container") for each in bodies] == [None, "container_1", "container_1"]
    assert [each["tools"] for each in bodies] == [[search]] * 3


async def test_a_turn_that_pauses_for_ever_is_given_up() -> None:
    with Streaming(*[paused("Again. ")] * 11) as server:
        error = await failure(AnthropicProvider("m", base_url=server.origin))
        assert len(server.bodies) == 11
    assert type(error) is ProviderUnavailable
    assert not error.retryable
    assert "paused its turn 11 times" in str(error)


# ------------------------------------------------------------------------------------- clients and options


async def test_a_ready_client_is_used_and_left_open(server: WireServer) -> None:
    client = anthropic.AsyncAnthropic(auth_token=SECRET, base_url=server.base_url, default_headers={"x-team": "a"})
    provider = AnthropicProvider("m", client=client, vendor="proxy")
    assert repr(provider) == f"AnthropicProvider('m', vendor='proxy', base_url='{server.base_url}')"
    reply = await ask(provider)
    assert not client.is_closed()
    await client.close()
    assert (reply.vendor, provider.vendor, provider.model) == ("proxy", "proxy", "m")
    headers = server.requests[0].headers
    assert (headers["x-team"], headers["authorization"]) == ("a", f"Bearer {SECRET}")


async def test_a_client_for_vertex_sends_to_its_own_route_and_its_token_is_hidden() -> None:
    def answer(asked: HttpRequest) -> Answer:
        return Answer(status=400, frames=[f"{asked.path} {asked.headers}".encode()], streamed=False)

    with LoopbackServer(answer) as server:
        client = AsyncAnthropicVertex(
            region="r", project_id="p", access_token=SECRET, base_url=server.origin, max_retries=0
        )
        error = await failure(AnthropicProvider("m", client=client))
        await client.close()
    assert "/projects/p/locations/r/publishers/anthropic/models/m:streamRawPredict" in str(error)
    assert "Bearer ***" in str(error)
    assert SECRET not in everything_about(error)


def test_a_client_for_bedrock_is_refused() -> None:
    client: Any = AsyncAnthropicBedrock(aws_region="r", aws_access_key="a", aws_secret_key="s")
    with pytest.raises(ConfigurationError, match="client= is for Bedrock"):
        AnthropicProvider("m", client=client)


async def test_what_is_not_given_comes_from_the_environment(
    server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", f" {SECRET}\n")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.base_url)
    await ask(AnthropicProvider("m", default_headers={"anthropic-beta": "later-2026"}))
    headers = server.requests[0].headers
    assert (headers["authorization"], headers["anthropic-beta"]) == (f"Bearer {SECRET}", "later-2026")


async def test_a_callable_key_is_asked_before_each_request(server: WireServer) -> None:
    keys = iter(["key-one", "key-two"])

    async def fresh() -> str:
        await anyio.lowlevel.checkpoint()
        return next(keys)

    provider = AnthropicProvider("m", api_key=fresh, base_url=server.base_url)
    await ask(provider)
    await ask(provider)
    assert [each.headers["authorization"] for each in server.requests] == ["Bearer key-one", "Bearer key-two"]


async def test_a_callable_that_fails_is_the_applications_fault(server: WireServer) -> None:
    async def fresh() -> str:
        raise KeyError(SECRET)

    with pytest.raises(ApplicationError, match="the api_key callable raised KeyError") as caught:
        await ask(AnthropicProvider("m", api_key=fresh, base_url=server.base_url))
    assert SECRET not in str(caught.value)
    assert server.requests == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"model": ""}, "the model's name is empty"),
        ({"timeout_seconds": 0}, "timeout_seconds is 0"),
        ({"max_reply_bytes": 0}, "max_reply_bytes is 0"),
        ({"max_output_tokens": 0}, "max_output_tokens is 0"),
        ({"cache": "5m"}, "cache is '5m'; it must be one of 'auto', '1h', 'off'"),
        ({"base_url": "localhost:8000"}, "base_url 'localhost:8000' is not a server's URL"),
        ({"api_key": "two words"}, "api_key is not a key"),
        ({"client": anthropic.AsyncAnthropic(api_key="k"), "api_key": "k"}, "client= has its own key"),
        ({"client": anthropic.AsyncAnthropic(api_key="k"), "default_headers": {}}, "client= has its own key"),
        ({"api_key": None}, "there is no API key for Anthropic: set ANTHROPIC_API_KEY"),
        ({"api_key": " "}, "there is no API key for Anthropic: set ANTHROPIC_API_KEY"),
    ],
)
def test_options_that_cannot_be_are_refused_at_construction(options: dict[str, Any], problem: str) -> None:
    given: dict[str, Any] = {"model": "m", **({} if "client" in options else {"api_key": "k"}), **options}
    with pytest.raises(ConfigurationError, match=problem):
        AnthropicProvider(given.pop("model"), **given)


def test_one_token_is_enough_for_an_answer() -> None:
    AnthropicProvider("m", api_key="k", max_output_tokens=1)


def test_the_default_server_is_anthropics() -> None:
    assert "base_url='https://api.anthropic.com'" in repr(AnthropicProvider("m", api_key="k"))


# --------------------------------------------------------------------------------------------- faults


async def test_thinking_whose_signature_is_refused_does_not_end_the_conversation() -> None:
    words = "messages.1.content.0: Invalid `signature` in `thinking` block"
    script: list[WireStep] = [
        WireReply(reasoning="Hm.", text="Yes."),
        WireFault(kind="bad_request", message=words),
        WireReply(reasoning="So.", text="No."),
        WireReply(text="Maybe."),
    ]
    with WireServer(script, dialect="anthropic") as server:
        provider = AnthropicProvider("claude-9", base_url=server.base_url, vendor="proxy")
        async with Runtime(provider=provider) as runtime:
            for said in ("Yes.", "No.", "Maybe."):
                assert (await runtime.run("Is it so?", conversation_id="c")).text == said
        await provider.aclose()
        assert [len(server.read(number).opaque) for number in range(4)] == [0, 1, 0, 1]
        assert [each.text for each in server.read(2).messages] == ["Is it so?", "Yes.", "Is it so?"]


SHOT = ImagePart(url="data:image/png;base64,iVBORw0KGgo=")
TOO_LARGE = (
    "messages.2.content.1.image.source.base64.data: At least one of the image dimensions exceed max allowed size for "
    "many-image requests: 2000 pixels"
)


@pytest.mark.parametrize(
    "words",
    [TOO_LARGE, "too many images and documents: 104 + 1 > 100", "Too much media: 0 document pages + 107 images > 100"],
)
async def test_the_images_of_a_long_history_do_not_end_the_conversation(words: str) -> None:
    history: list[Message] = [UserMessage(content="Click on.")]
    for number in range(25):
        call = ToolCall(name="click", arguments="{}", call_id=f"c{number}")
        history += [
            AssistantMessage(tool_calls=(call,)),
            ToolMessage(call_id=call.call_id, name="click", content="", parts=(SHOT,)),
        ]
    script: list[WireStep] = [WireFault(kind="bad_request", message=words), WireReply(text="Done.")]
    with WireServer(script, dialect="anthropic") as server:
        provider = AnthropicProvider("claude-9", base_url=server.base_url)
        async with Runtime(provider=provider) as runtime:
            assert (await runtime.run("And?", history=history)).text == "Done."
        await provider.aclose()
        images = [json.dumps(each.body).count("image/png") for each in server.requests]
    assert images[0] == 25
    assert images[1] <= 20


async def test_too_many_images_in_one_message_are_reported_in_the_servers_words() -> None:
    with WireServer([WireFault(kind="bad_request", message=TOO_LARGE)], dialect="anthropic") as server:
        provider = AnthropicProvider("m", base_url=server.base_url)
        error = await failure(provider, request(UserMessage(content=(SHOT,) * 25)))
    assert type(error) is ProviderRejected
    assert "many-image requests: 2000 pixels" in str(error)


async def test_a_limit_of_rates_tells_how_long_to_wait() -> None:
    error = await failure_of(WireFault(kind="rate_limited", retry_after_seconds=7))
    assert type(error) is ProviderUnavailable
    assert (error.status, error.retryable, error.retry_after_seconds) == (429, True, 7)


async def test_an_overload_is_retryable_and_named() -> None:
    error = await failure_of(WireFault(kind="loading", wording=1))
    assert type(error) is ProviderUnavailable
    assert (error.status, error.retryable) == (529, True)
    assert "anthropic answered 529 (Overloaded): the stub says no" in str(error)


async def test_a_spending_limit_is_not_worth_a_retry() -> None:
    details = {"error_code": "enforced_spend_limit_reached"}
    body = {"type": "error", "error": {"type": "rate_limit_error", "message": "spent", "details": details}}
    headers = {"Content-Type": "application/json", "request-id": "req_7"}
    with LoopbackServer(
        lambda _asked: Answer(status=429, headers=headers, frames=[json.dumps(body).encode()], streamed=False)
    ) as server:
        error = await failure(AnthropicProvider("m", base_url=server.origin))
    assert type(error) is ProviderUnavailable
    assert not error.retryable
    assert str(error).endswith("spent [request req_7]")


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("bad_request", "the stub says no"),
        ("unauthorised", "ANTHROPIC_API_KEY"),
        ("not_found", "check the model's name"),
    ],
)
async def test_what_stays_is_a_rejection_with_a_hint(kind: Any, hint: str) -> None:
    error = await failure_of(WireFault(kind=kind))
    assert type(error) is ProviderRejected
    assert hint in str(error)


@pytest.mark.parametrize(("wording", "limit_tokens"), [(0, 8192), (1, 8192), (2, None)])
async def test_a_history_that_is_too_long_is_an_overflow(wording: int, limit_tokens: int | None) -> None:
    error = await failure_of(WireFault(kind="context_overflow", wording=wording))
    assert isinstance(error, ContextOverflow)
    assert error.limit_tokens == limit_tokens


@pytest.mark.guarantee("G28")
@pytest.mark.parametrize("how", ["cut", "reset", "end"])
@pytest.mark.parametrize("after", [None, 1, 4, 6])
async def test_a_cut_stream_is_an_error_and_never_half_a_reply(how: Any, after: int | None) -> None:
    whole = WireReply(text="One moment.", calls=(WireCall(name="get_weather", arguments='{"city": "Paris"}'),))
    error = await failure_of(WireBreak(reply=whole, how=how, after=after))
    assert type(error) is ProviderUnavailable
    assert error.retryable


@pytest.mark.parametrize("wording", [0, 1])
async def test_an_error_event_inside_an_answer_that_began_well_is_raised(wording: int) -> None:
    error = await failure_of(WireBreak(reply=SUNNY, how="error", after=4, wording=wording))
    assert type(error) is ProviderUnavailable
    assert error.retryable
    assert "the stub broke off" in str(error)


@pytest.mark.parametrize("after", [None, 3])
async def test_a_server_that_falls_silent_is_a_timeout(after: int | None) -> None:
    error = await failure_of(WireBreak(reply=SUNNY, how="stall", after=after), timeout_seconds=0.05)
    assert type(error) is ProviderTimeout
    assert error.retryable


async def test_garbage_and_floods_end_the_reply() -> None:
    assert type(await failure_of(WireBreak(reply=SUNNY, how="garbage"))) is ProviderUnavailable
    assert type(await failure_of(WireBreak(reply=SUNNY, how="flood"))) is ReplyTooLarge
    assert type(await failure_of(WireReply(text="x" * 5000), max_reply_bytes=2000)) is ReplyTooLarge


async def test_a_web_page_is_no_reply() -> None:
    error = await failure_of(WirePage())
    assert type(error) is ProviderRejected
    assert "answered with text/html, which is not a message; check base_url=, which ends before /v1" in str(error)


async def test_a_refused_connection_names_the_url_and_what_to_check() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        error = await failure(AnthropicProvider("m", base_url=url))
    assert type(error) is ProviderUnavailable
    assert str(error).startswith(f"could not reach anthropic at {url} (Connection refused): check the network")


async def test_other_errors_of_the_sdk_are_rejections() -> None:
    from toolbus.providers.anthropic._errors import AnthropicErrors

    errors = AnthropicErrors(vendor="v", where="w", hint="h")
    error = errors.translate(anthropic.AnthropicError("odd"))
    assert type(error) is ProviderRejected
    assert str(error) == "v at w: odd"
    assert errors.translate(KeyError("x")) is None


# ---------------------------------------------------------------------------------------------------- keys


async def secret_key() -> str:
    return SECRET


@pytest.mark.parametrize("place", ["key", "callable", "header", "client", "environment"])
async def test_a_key_is_never_shown(
    place: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("anthropic").setLevel(logging.DEBUG)
    if place == "environment":
        monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", f"x-api-key: {SECRET}")
    with WireServer(
        lambda asked: WireFault(kind="bad_request", message=f"{asked.headers}"), dialect="anthropic"
    ) as own:
        url = own.base_url
        async with anthropic.AsyncAnthropic(api_key=SECRET, base_url=url) as client:
            provider = {
                "key": lambda: AnthropicProvider("m", api_key=SECRET, base_url=url),
                "callable": lambda: AnthropicProvider("m", api_key=secret_key, base_url=url),
                "header": lambda: AnthropicProvider("m", default_headers={"x-api-key": SECRET}, base_url=url),
                "client": lambda: AnthropicProvider("m", client=client),
                "environment": lambda: AnthropicProvider("m", base_url=url),
            }[place]()
            error = await failure(provider)
        assert SECRET in str(own.requests[0].headers)
    assert "***" in str(error)
    assert SECRET not in everything_about(error) + repr(provider)
    assert SECRET not in caplog.text + repr([vars(each) for each in caplog.records])


async def test_an_error_that_tells_nothing_keeps_its_cause() -> None:
    error = await failure_of(WireFault(kind="server_error"), api_key=SECRET)
    assert isinstance(error.__cause__, anthropic.InternalServerError)
