"""The provider against a real HTTP server that streams lines of JSON, and fails as real ones do."""

from __future__ import annotations

import base64
import json
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import anyio
import pytest

from support.asking import everything_about, request
from toolbus.errors import (
    ConfigurationError,
    ContextOverflow,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
    ReplyTooLarge,
)
from toolbus.messages import AssistantMessage, ImagePart, Message, ToolCall, ToolMessage, UserMessage
from toolbus.protocols import Delta, Heartbeat, ModelReply, ModelRequest, ModelSettings, TextPiece, ToolSpec
from toolbus.providers import OllamaProvider, resolve
from toolbus.providers.ollama._errors import OllamaErrors
from toolbus.records import replace
from toolbus.testing.wire import Answer, HttpRequest, LoopbackServer

SECRET = "key-0123456789abcdef"
WEATHER = ToolSpec(name="get_weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})
LAST: dict[str, Any] = {"message": {"content": ""}, "done": True, "done_reason": "stop", "eval_count": 2}


def said(*contents: str) -> list[Any]:
    return [*({"message": {"content": each}} for each in contents), LAST]


def lines(objects: Sequence[Any], **more: Any) -> Answer:
    frames = [each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in objects]
    return Answer(headers={"Content-Type": "application/x-ndjson"}, frames=frames, **more)


def refusal(status: int, body: Any, **headers: str) -> Answer:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json; charset=utf-8", **headers}
    return Answer(status=status, headers=headers, frames=(content,), streamed=False)


def ignore(_delta: Delta) -> None:
    """Listen to nothing."""


class Server(LoopbackServer):
    """Answers from a script, the last one again and again, and keeps what was asked."""

    def __init__(self, *answers: Answer | Callable[[HttpRequest], Answer]) -> None:
        super().__init__(self._next)
        self.requests: list[HttpRequest] = []
        self._answers = answers

    def _next(self, request: HttpRequest) -> Answer:
        self.requests.append(request)
        answer = self._answers[min(len(self.requests), len(self._answers)) - 1]
        return answer(request) if callable(answer) else answer


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(lines(said("Sun", "ny."))) as running:
        yield running


async def ask(
    server: LoopbackServer, asked: ModelRequest | None = None, deltas: list[Delta] | None = None, **options: Any
) -> ModelReply:
    provider = OllamaProvider("qwen3", host=server.origin, **options)
    seen: list[Delta] = [] if deltas is None else deltas
    try:
        with anyio.fail_after(60):
            return await provider.respond(asked or request(), seen.append)
    finally:
        await provider.aclose()


async def failure_of(answer: Answer, **options: Any) -> ProviderError:
    with Server(answer) as server:
        with pytest.raises(ProviderError) as caught:
            await ask(server, **options)
        assert len(server.requests) == 1, "the provider does not retry"
        return caught.value


# ------------------------------------------------------------------------------------------ conversations


async def test_a_whole_tool_calling_conversation_goes_over_the_wire() -> None:
    wire = [{"function": {"name": "get_weather", "arguments": {"city": city}}} for city in ("Paris", "Rome")]
    first = lines([{"message": {"content": "", "thinking": "Two."}}, {"message": {"tool_calls": wire}}, LAST])
    with Server(first, lines(said("Sunny in both."))) as server:
        provider = OllamaProvider("qwen3", host=server.origin)
        messages: list[Message] = [UserMessage(content="Weather?")]
        reply = await provider.respond(request(*messages, tools=[WEATHER]), ignore)
        calls = tuple(replace(call, call_id=f"minted{number}") for number, call in enumerate(reply.message.tool_calls))
        messages.append(replace(reply.message, tool_calls=calls))
        messages += [ToolMessage(call_id=each.call_id, name=each.name, content=f"sun {each.call_id}") for each in calls]
        deltas: list[Delta] = []
        second = await provider.respond(request(*messages, tools=[WEATHER], round=1), deltas.append)
        await provider.aclose()
    assert reply.message.reasoning == "Two."
    assert reply.finish_reason == "tool_calls"
    assert second.message == AssistantMessage(text="Sunny in both.")
    assert [each for each in deltas if not isinstance(each, Heartbeat)] == [TextPiece("Sunny in both.")]
    assert [each.path for each in server.requests] == ["/api/chat"] * 2
    assert server.requests[1].body["messages"] == [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "thinking": "Two.", "tool_calls": wire},
        {"role": "tool", "tool_name": "get_weather", "content": "sun minted0"},
        {"role": "tool", "tool_name": "get_weather", "content": "sun minted1"},
    ]
    assert server.connections == 1, "the connection is used again"


async def test_what_is_sent_is_ours_to_the_last_byte(server: Server) -> None:
    """The SDK's own types would leave `truncate`, and most of the schema, out."""
    nested = {"type": "object", "properties": {"at": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}}
    tool = ToolSpec(name="f", parameters={"type": "object", "properties": {"where": nested}})
    await ask(server, request(tools=[tool]), context_tokens=8192, keep_alive=-1)
    (sent,) = server.requests
    assert sent.body["truncate"] is False
    assert sent.body["options"] == {"num_ctx": 8192}
    assert sent.body["keep_alive"] == -1
    assert sent.body["tools"][0]["function"]["parameters"]["properties"]["where"] == nested
    assert sent.headers["content-type"] == "application/json"
    assert "ollama-python" in sent.headers["user-agent"]
    assert "authorization" not in sent.headers


async def test_an_image_that_is_named_like_a_file_is_not_read_from_the_disk(
    server: Server, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "abcd").write_text("secret")
    monkeypatch.chdir(tmp_path)
    await ask(server, request(UserMessage(content=(ImagePart(url="data:image/png;base64,abcd"),))))
    assert server.requests[0].body["messages"] == [{"role": "user", "content": "", "images": ["abcd"]}]


async def test_a_model_that_cannot_see_reads_a_mark(server: Server) -> None:
    image = ImagePart(url="data:image/png;base64,iVBORw0KGgo=")
    await ask(server, request(UserMessage(content=(image,))), images=False)
    (message,) = server.requests[0].body["messages"]
    assert message == {"role": "user", "content": "[an image, which this model cannot see]"}


async def test_integers_of_any_size_and_half_characters_can_be_sent(server: Server) -> None:
    call = ToolCall(name="f", arguments='{"n": 12345678901234567890123}', call_id="1")
    history = (UserMessage(content="cut \ud83d here"), AssistantMessage(tool_calls=(call,)))
    await ask(server, request(*history, ToolMessage(call_id="1", name="f", content="é")))
    first, second, third = server.requests[0].body["messages"]
    assert first["content"] == "cut ? here"
    assert second["tool_calls"][0]["function"]["arguments"] == {"n": 12345678901234567890123}
    assert third["content"] == "é"


async def test_a_server_that_does_not_stream_is_understood() -> None:
    whole = {"model": "m", "message": {"content": "Sunny."}, "done": True, "done_reason": "length"}
    with Server(refusal(200, whole)) as server:
        reply = await ask(server)
    assert (reply.message.text, reply.model, reply.finish_reason) == ("Sunny.", "m", "length")


async def test_a_last_line_without_its_end_is_whole() -> None:
    with Server(lines([*said("Sunny.")[:-1], json.dumps(LAST).encode()])) as server:
        assert (await ask(server)).message.text == "Sunny."


async def test_a_redirect_is_followed_with_the_body() -> None:
    moved = Answer(status=307, headers={"Location": "/elsewhere/api/chat"}, frames=(b"",), streamed=False)
    with Server(moved, lines(said("Sunny."))) as server:
        assert (await ask(server)).message.text == "Sunny."
    assert [each.path for each in server.requests] == ["/api/chat", "/elsewhere/api/chat"]
    assert server.requests[0].body == server.requests[1].body


async def test_a_redirect_that_drops_the_body_sends_none() -> None:
    moved = Answer(status=301, headers={"Location": "/elsewhere"}, frames=(b"",), streamed=False)
    with (
        Server(moved, refusal(405, {"error": "method not allowed"})) as server,
        pytest.raises(ProviderRejected, match="405"),
    ):
        await ask(server)
    assert [(each.method, each.body) for each in server.requests][1:] == [("GET", None)]


async def test_what_the_emit_function_raises_is_not_the_providers_error(server: Server) -> None:
    def broken(_delta: Delta) -> None:
        raise ZeroDivisionError

    provider = OllamaProvider("qwen3", host=server.origin)
    with pytest.raises(ZeroDivisionError):
        await provider.respond(request(), broken)
    await provider.aclose()


# ------------------------------------------------------------------------------------------------ statuses


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (404, {"error": "model 'qwen3' not found"}, "model 'qwen3' not found; get it with: ollama pull qwen3"),
        (404, b"404 page not found", "check that host= (or OLLAMA_HOST) is that of an Ollama server"),
        (
            400,
            {"error": "qwen3 does not support tools"},
            "does not support tools; ask it without tools, or use a model",
        ),
        (400, {"error": '"qwen3" does not support thinking'}, "does not support thinking; leave reasoning_effort= out"),
        (
            400,
            {"error": 'think value "high" is not supported for this model'},
            "for this model; leave reasoning_effort= out; a model without such levels thinks by default",
        ),
        (400, {"error": "invalid think value"}, "invalid think value"),
        (401, {"error": "unauthorized"}, "unauthorized; check the key (api_key=, or OLLAMA_API_KEY)"),
        (400, b"\xff garbage", "garbage"),
        (400, [1], "ollama answered 400 (Bad Request)"),
        (400, {"error": 3}, "ollama answered 400 (Bad Request)"),
        (304, b"", "ollama answered 304 (Not Modified)"),
    ],
)
async def test_what_stays_is_a_rejection_with_the_servers_words_and_a_remedy(
    status: int, body: Any, words: str
) -> None:
    error = await failure_of(refusal(status, body))
    assert type(error) is ProviderRejected
    assert (error.status, error.retryable, error.vendor) == (status, False, "ollama")
    assert words in str(error)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (500, "llama runner process has terminated"),
        (502, "bad gateway"),
        (503, "server busy, please try again.  maximum pending requests exceeded"),
        (429, "rate limit"),
    ],
)
async def test_what_may_pass_is_unavailable_and_retryable(status: int, words: str) -> None:
    error = await failure_of(refusal(status, {"error": words}, **{"Retry-After": "7"}))
    assert type(error) is ProviderUnavailable
    assert (error.status, error.retryable, error.retry_after_seconds) == (status, True, 7)
    assert " ".join(words.split()) in str(error)


async def test_a_history_that_does_not_fit_is_a_context_overflow() -> None:
    words = "request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it"
    error = await failure_of(refusal(400, {"error": words}))
    assert isinstance(error, ContextOverflow)
    assert error.limit_tokens == 4096


async def test_of_a_refusal_without_end_the_start_is_read() -> None:
    endless = Answer(status=500, frames=[b"x" * 10_000] * 1000)
    assert len(str(await failure_of(endless))) < 1200


# ------------------------------------------------------------------------------- streams and connections


@pytest.mark.guarantee("G28")
@pytest.mark.parametrize("ending", ["whole", "cut", "reset"])
async def test_a_cut_stream_is_an_error_and_never_half_a_reply(ending: Any) -> None:
    call = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    error = await failure_of(lines([{"message": {"tool_calls": [call]}}], ending=ending))
    assert type(error) is ProviderUnavailable
    assert error.retryable
    assert "before the reply was whole" in str(error)


@pytest.mark.parametrize("ending", ["cut", "reset"])
async def test_a_connection_broken_before_any_answer_is_unavailable(ending: Any) -> None:
    error = await failure_of(lines([], ending=ending, before_headers=True))
    assert type(error) is ProviderUnavailable
    assert "broke the connection" in str(error)


@pytest.mark.parametrize(
    "answer", [lines([*said("hi")[:1], {"error": "no memory"}]), refusal(200, {"error": "no memory"})]
)
async def test_an_error_inside_an_answer_that_began_well_is_raised(answer: Answer) -> None:
    error = await failure_of(answer)
    assert type(error) is ProviderUnavailable
    assert str(error) == "ollama broke its reply off: no memory"


async def test_a_line_of_garbage_is_unavailable() -> None:
    error = await failure_of(lines([*said("hi")[:1], b"\xff\xfe{]\n", LAST]))
    assert type(error) is ProviderUnavailable
    assert "sent a line that is not a JSON object" in str(error)


@pytest.mark.parametrize("stall_after", [-1, 1])
async def test_a_server_that_falls_silent_is_a_timeout(stall_after: int) -> None:
    error = await failure_of(lines(said("Sunny."), stall_after=stall_after), timeout_seconds=0.05)
    assert type(error) is ProviderTimeout
    assert error.retryable


@pytest.mark.parametrize(
    "frames", [[b"x" * 500] * 10, [b'{"message": {"content": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}}\n'] * 100]
)
async def test_reading_stops_at_the_size_of_a_line_and_of_a_reply(frames: list[bytes]) -> None:
    error = await failure_of(lines(frames), max_reply_bytes=2000)
    assert type(error) is ReplyTooLarge
    assert not error.retryable


async def test_the_name_of_a_call_counts_towards_the_size_of_a_reply() -> None:
    called: dict[str, Any] = {"message": {"tool_calls": [{"function": {"name": "n" * 1_600, "arguments": {}}}]}}
    error = await failure_of(lines([json.dumps(called).encode() + b"\n"] * 2), max_reply_bytes=3_000)
    assert type(error) is ReplyTooLarge


async def test_a_web_page_is_no_reply() -> None:
    error = await failure_of(Answer(headers={"Content-Type": "text/html"}, frames=(b"<html>",), streamed=False))
    assert type(error) is ProviderRejected
    assert "check host= (or OLLAMA_HOST)" in str(error)


async def test_a_server_that_does_not_run_is_named_with_what_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{held.getsockname()[1]}"
        monkeypatch.setenv("OLLAMA_HOST", place)
        provider: Any = resolve("ollama:qwen3")
        with anyio.fail_after(60), pytest.raises(ProviderUnavailable) as caught:
            await provider.respond(request(), ignore)
        await provider.aclose()
    assert caught.value.retryable
    assert str(caught.value) == (
        f"could not reach ollama at http://{place} (Connection refused): "
        "check that Ollama runs (ollama serve), and that OLLAMA_HOST is right"
    )


def test_errors_of_the_sdk_itself_are_translated() -> None:
    import ollama

    errors = OllamaErrors(model="m", where="w", hint="look")
    unreachable = errors.translate(ConnectionError("Failed to connect to Ollama."))
    assert type(unreachable) is ProviderUnavailable
    assert str(unreachable) == "could not reach ollama at w (Failed to connect to Ollama.): look"
    assert type(errors.translate(ollama.RequestError("odd"))) is ProviderRejected
    assert errors.translate(KeyError("x")) is None


# ---------------------------------------------------------------------------------- keys, hosts, options


@pytest.mark.parametrize("place", ["argument", "environment", "header", "host"])
async def test_a_key_is_sent_and_never_shown(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with Server(lambda asked: refusal(400, {"error": f"you sent {asked.headers}"})) as server:
        host, options = server.origin, dict[str, Any]()
        if place == "argument":
            options["api_key"] = SECRET
        elif place == "header":
            options["headers"] = {"x-api-key": SECRET}
        elif place == "host":
            host = host.replace("//", f"//user:{SECRET}@")
        else:
            monkeypatch.setenv("OLLAMA_API_KEY", f" {SECRET}\n")
        provider = OllamaProvider("m", host=host, **options)
        with pytest.raises(ProviderRejected) as caught:
            await provider.respond(request(), ignore)
        await provider.aclose()
    headers = server.requests[0].headers
    expected = {
        "header": headers.get("x-api-key") == SECRET,
        "host": headers.get("authorization") == "Basic " + base64.b64encode(f"user:{SECRET}".encode()).decode(),
    }
    assert expected.get(place, headers.get("authorization") == f"Bearer {SECRET}")
    assert SECRET not in everything_about(caught.value) + repr(provider) + caplog.text
    assert repr(provider) == f"OllamaProvider('m', host='{server.origin}')"


async def test_a_key_that_is_given_goes_before_the_environments(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_API_KEY", "other")
    await ask(server, api_key=SECRET, headers={"x-team": "a"})
    headers = server.requests[0].headers
    assert (headers["authorization"], headers["x-team"]) == (f"Bearer {SECRET}", "a")


async def test_a_path_and_the_compatible_endpoint_of_a_host_are_understood(server: Server) -> None:
    for path in ("/proxy/", "/v1", "/proxy/v1/"):
        provider = OllamaProvider("m", host=server.origin.removeprefix("http://") + path)
        assert provider.model == "m"
        await provider.respond(request(), ignore)
        await provider.aclose()
    assert [each.path for each in server.requests] == ["/proxy/api/chat", "/api/chat", "/proxy/api/chat"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"model": ""}, "the model's name is empty"),
        ({"timeout_seconds": 0}, "timeout_seconds is 0"),
        ({"max_reply_bytes": 0}, "max_reply_bytes is 0"),
        ({"context_tokens": 0}, "context_tokens is 0; it must be a whole number of at least 1"),
        ({"host": "host:port"}, "host is 'host:port', which is not a host"),
        ({"host": "ftp://host"}, "its scheme 'ftp' is neither http nor https"),
        ({"api_key": "two words"}, "api_key is not a key"),
        ({"api_key": ""}, "api_key is not a key"),
    ],
)
def test_options_that_cannot_be_are_refused_at_construction(options: dict[str, Any], problem: str) -> None:
    given: dict[str, Any] = {"model": "m", **options}
    with pytest.raises(ConfigurationError, match=problem):
        OllamaProvider(given.pop("model"), **given)


async def test_a_choice_that_is_not_offered_is_refused_before_anything_is_sent(server: Server) -> None:
    with pytest.raises(ConfigurationError):
        await ask(server, request(settings=ModelSettings(tool_choice="f"), tools=[WEATHER]))
    assert server.requests == []
