"""What the provider makes of servers that fail, and that keys stay secret while they do."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.lowlevel
import openai
import pytest

from support.asking import everything_about
from support.openai_server import OpenAIServer, Reply, calls, chunk, ended, status, stream_error, text
from toolbus.errors import (
    ApplicationError,
    ConfigurationError,
    ContentFiltered,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
    ReplyTooLarge,
)
from toolbus.messages import UserMessage
from toolbus.protocols import Delta, ModelRequest, ToolSpec
from toolbus.providers import OpenAIProvider
from toolbus.providers._shared.errors import retry_after
from toolbus.providers.openai._errors import OpenAIErrors, ResponsesErrors
from toolbus.records import replace

REQUEST = ModelRequest(messages=[UserMessage(content="hi")])
SECRET = "sk-proj-0123456789abcdef"


async def failure(provider: Any, deltas: list[Delta] | None = None, asked: ModelRequest = REQUEST) -> ProviderError:
    """The error of one request."""
    seen: list[Delta] = [] if deltas is None else deltas
    try:
        with anyio.fail_after(60), pytest.raises(ProviderError) as caught:
            await provider.respond(asked, seen.append)
        return caught.value
    finally:
        await provider.aclose()


async def failure_of(
    reply: Reply, deltas: list[Delta] | None = None, asked: ModelRequest = REQUEST, **options: Any
) -> ProviderError:
    with OpenAIServer([reply]) as server:
        error = await failure(OpenAIProvider("m", base_url=server.base_url, **options), deltas, asked)
        assert len(server.requests) == 1, "the provider does not retry"
        return error


@pytest.mark.parametrize("said", ["", "Let me look. "])
async def test_a_call_that_the_server_could_not_read_and_left_out_is_no_answer(said: str) -> None:
    """mlx_lm.server leaves out a call that is not JSON: only the reason is left of it."""
    lost = text(said, finish_reason="tool_calls")
    error = await failure_of(lost, asked=replace(REQUEST, tools=[ToolSpec(name="get_weather")]))
    assert (type(error), error.retryable) == (ProviderUnavailable, True)
    assert "ended its reply for tool calls, and sent none" in str(error)
    written = text('{"name": "get_weather", "arguments": {}}', finish_reason="tool_calls")
    with OpenAIServer([lost, written]) as server:
        provider = OpenAIProvider("m", base_url=server.base_url, calls_in_text=True)
        assert (await provider.respond(REQUEST, lambda _: None)).message.text == said, "no tool was offered"
        found = await provider.respond(replace(REQUEST, tools=[ToolSpec(name="get_weather")]), lambda _: None)
        assert [call.name for call in found.message.tool_calls] == ["get_weather"]
        await provider.aclose()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that nobody listens on, and that stays ours."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


# ------------------------------------------------------------------------------------------------ statuses


@pytest.mark.parametrize("code", [408, 409, 425, 429, 498, 499, 500, 502, 503, 504, 529, 599])
async def test_statuses_that_may_pass_are_unavailable_and_retryable(code: int) -> None:
    error = await failure_of(status(code, "busy just now"))
    assert type(error) is ProviderUnavailable
    assert (error.status, error.retryable, error.vendor) == (code, True, "openai")
    assert f"openai answered {code} (" in str(error)
    assert str(error).endswith("): busy just now")


@pytest.mark.parametrize("code", [400, 401, 403, 404, 413, 422])
async def test_statuses_that_stay_are_rejections(code: int) -> None:
    error = await failure_of(status(code, "no such thing", headers={"x-request-id": "req_7"}))
    assert type(error) is ProviderRejected
    assert (error.status, error.retryable) == (code, False)
    assert "no such thing" in str(error)
    assert str(error).endswith("[request req_7]")


@pytest.mark.parametrize(
    ("errors", "code", "words", "advice"),
    [
        (OpenAIErrors, 400, "Tools with reasoning_effort [...]. Please use /v1/responses.", "openai-responses:MODEL"),
        (OpenAIErrors, 404, "This model is only supported in v1/responses and [...].", "openai-responses:MODEL"),
        (ResponsesErrors, 400, "The model 'm' is not supported with the Responses API.", "api='chat')"),
        (ResponsesErrors, 400, "Encrypted content is not supported with this model.", "encrypted_reasoning=False"),
        (ResponsesErrors, 404, "Invalid URL (POST /v1/responses)", "that the server has the Responses API"),
    ],
)
def test_a_model_that_has_to_be_asked_in_another_way_is_rejected_with_that_advice(
    errors: type[OpenAIErrors], code: int, words: str, advice: str
) -> None:
    error = errors(vendor="openai", where="w", hint="h").status(code, {}, {"error": {"message": words}})
    assert type(error) is ProviderRejected
    assert advice in str(error).partition(words)[2]


@pytest.mark.parametrize(("code", "hint"), [(401, "check the key"), (404, "check the model's name and base_url=")])
async def test_common_mistakes_come_with_a_hint(code: int, hint: str) -> None:
    assert hint in str(await failure_of(status(code, "no")))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "in the error"}}, "in the error"),
        ({"error": "as text"}, "as text"),
        ({"message": "at the top"}, "at the top"),
        ({"detail": [{"loc": ["body", "model"], "msg": "missing"}]}, '"msg":"missing"'),
        ("plain text", "plain text"),
        ({"errors": [{"message": "in a list"}]}, "in a list"),
        ({"error": {"msg": "under another name"}}, "under another name"),
        ({"code": 1210, "msg": "bad", "success": False}, '"msg":"bad"'),
        ({"error": {"message": "Provider returned error", "metadata": {"raw": {"error": "far away"}}}}, "far away"),
        ({"error": {"message": "x" * 5000}}, "x" * 1000),
    ],
)
async def test_the_servers_own_words_are_found_in_any_shape(body: Any, words: str) -> None:
    error = await failure_of(status(400, body=body))
    assert words in str(error)
    assert len(str(error)) < 1100


@pytest.mark.parametrize("body", ["<html><body>502 Bad Gateway</body></html>", {}, [], {"error": None}, ""])
async def test_a_body_without_words_leaves_the_status(body: Any) -> None:
    assert str(await failure_of(status(502, body=body))) == "openai answered 502 (Bad Gateway)"


async def test_a_quota_that_is_used_up_is_not_worth_a_retry() -> None:
    error = await failure_of(status(429, body={"error": {"message": "pay", "code": "insufficient_quota"}}))
    assert type(error) is ProviderUnavailable
    assert not error.retryable


@pytest.mark.parametrize(("code", "word", "retryable"), [(429, "false", False), (400, "true", True)])
async def test_the_server_may_say_whether_to_retry(code: int, word: str, retryable: bool) -> None:
    assert (await failure_of(status(code, headers={"x-should-retry": word}))).retryable is retryable


async def test_how_long_to_wait_is_reported() -> None:
    error = await failure_of(status(429, headers={"Retry-After": "7"}))
    assert error.retry_after_seconds == 7


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "0"}, 0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT", "date": "Wed, 21 Oct 2026 07:28:30 GMT"}, 0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30),
        ({"retry-after": "Wed, 21 Oct 1998 07:28:00 GMT"}, 0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
    ],
)
def test_a_retry_after_is_seconds_or_a_date_and_nonsense_is_none(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert retry_after(headers) == seconds


@pytest.mark.parametrize(
    ("delay", "headers", "seconds"),
    [
        ("27s", {}, 27),
        ("0.25s", {}, 0.25),
        ("0s", {}, 0),
        ("27s", {"retry-after": "0"}, 0),
        ("-1s", {}, None),
        ("9" * 400 + "s", {}, None),
        (27, {}, None),
    ],
)
def test_the_details_of_google_s_refusals_have_the_time_to_wait(
    delay: Any, headers: dict[str, str], seconds: float | None
) -> None:
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}
    failure = {"@type": "type.googleapis.com/google.rpc.QuotaFailure"}
    body: Any = [{"error": {"code": 429, "message": "Quota exceeded.", "details": [failure, info]}}]
    error = OpenAIErrors(vendor="gemini", where="w", hint="h").status(429, headers, body)
    assert (error.retryable, error.retry_after_seconds) == (True, seconds)


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("Please try again in 6s.", 6),
        ("Please try again in 1.898s. Visit", 1.898),
        ("Please try again in 850ms.", 0.85),
        ("Please try again in 7m12.5s.", 432.5),
        ("Please try again in 1h2m3s.", 3723),
        ("Please try again in 20 seconds.", 20),
        ("Please try again in a while.", None),
        ("Please try again.", None),
    ],
)
def test_the_words_of_a_refusal_have_the_time_to_wait_also_in_a_stream(words: str, seconds: float | None) -> None:
    errors = OpenAIErrors(vendor="v", where="w", hint="h")
    body = {"error": {"message": f"Rate limit reached. {words}", "code": "rate_limit_exceeded"}}
    assert errors.in_stream(body).retry_after_seconds == seconds
    assert errors.status(429, {}, body).retry_after_seconds == seconds
    assert errors.status(429, {"retry-after": "3"}, body).retry_after_seconds == 3


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (403, {"message": "openai/gpt-4 requires moderation. Your input was flagged for violence", "code": 403}),
        (403, "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO"),
        (400, {"type": "invalid_request_error", "message": "Output blocked by content filtering policy"}),
        (400, {"message": "Content Exists Risk", "code": "invalid_request_error"}),
        (400, {"message": "Input data may contain inappropriate content.", "code": "data_inspection_failed"}),
        (400, {"message": "unsafe", "code": "1301"}),
        (400, {"message": "flagged for possible cybersecurity risk", "code": "cyber_policy"}),
    ],
)
def test_a_content_filter_is_known_by_its_code_or_its_words(status: int, error: Any) -> None:
    errors = OpenAIErrors(vendor="v", where="w", hint="h")
    for found in (errors.status(status, {}, {"error": error}), errors.in_stream({"error": error})):
        assert type(found) is ContentFiltered
        assert "check what the key may be used for" not in str(found)


@pytest.mark.parametrize(
    ("status", "words", "kind"),
    [
        (503, "The service of the content filtering policy is down", ProviderUnavailable),
        (403, "The key is disabled: the account violates usage guidelines", ProviderRejected),
    ],
)
def test_the_mention_of_a_content_filter_is_not_its_refusal(status: int, words: str, kind: type[ProviderError]) -> None:
    errors = OpenAIErrors(vendor="v", where="w", hint="h")
    assert type(errors.status(status, {}, {"error": {"message": words}})) is kind


def test_an_unknown_status_has_no_name() -> None:
    error = OpenAIErrors(vendor="v", where="w", hint="h").status(499, {}, None)
    assert str(error) == "v answered 499 (unknown status)"


# ------------------------------------------------------------------------------- streams and connections


@pytest.mark.parametrize("ending", ["cut", "reset", "no_done"])
async def test_a_cut_stream_is_an_error_and_never_half_a_reply(ending: Any) -> None:
    """G28: a cut stream never executes a partial call."""
    whole = calls(("get_weather", {"city": "Paris"}), content="One moment.")
    deltas: list[Delta] = []
    error = await failure_of(ended(whole, ending, after=4), deltas)
    assert type(error) is ProviderUnavailable
    assert error.retryable
    assert "before the reply was whole" in str(error)


@pytest.mark.parametrize("ending", ["cut", "reset"])
async def test_a_connection_broken_before_any_answer_is_unavailable(ending: Any) -> None:
    error = await failure_of(ended(text("x"), ending, before_headers=True))
    assert type(error) is ProviderUnavailable
    assert "broke the connection" in str(error)


async def test_an_empty_stream_is_unavailable() -> None:
    assert type(await failure_of(Reply(ending="no_done"))) is ProviderUnavailable


@pytest.mark.parametrize(
    "reply", [stream_error("out of memory", after=[chunk({"content": "hi"})]), Reply(body={"error": "out of memory"})]
)
async def test_an_error_inside_an_answer_that_began_well_is_raised(reply: Reply) -> None:
    error = await failure_of(reply)
    assert type(error) is ProviderUnavailable
    assert str(error) == "openai broke its reply off: out of memory"


@pytest.mark.parametrize("before_headers", [True, False])
async def test_a_server_that_falls_silent_is_a_timeout(before_headers: bool) -> None:
    hanging = ended(text("Sunny."), "hang", after=2, before_headers=before_headers)
    error = await failure_of(hanging, timeout_seconds=0.05)
    assert type(error) is ProviderTimeout
    assert error.retryable
    assert "no answer in time" in str(error)


async def test_a_web_page_is_no_reply() -> None:
    error = await failure_of(Reply(body="<html>welcome</html>"))
    assert type(error) is ProviderRejected
    assert "answered with text/html" in str(error)
    assert "usually ends in /v1" in str(error)


@pytest.mark.parametrize("body", ["{", "[1]"])
async def test_a_body_that_is_no_object_is_unavailable(body: str) -> None:
    error = await failure_of(Reply(body=body, headers={"Content-Type": "application/json"}))
    assert "sent a body that is not a JSON object" in str(error)


@pytest.mark.parametrize("reply", [text("x" * 5000), Reply(body={"x": "y" * 5000}), Reply(chunks=["x" * 5000])])
async def test_reading_stops_at_the_size_limit(reply: Reply) -> None:
    error = await failure_of(reply, max_reply_bytes=2000)
    assert type(error) is ReplyTooLarge
    assert not error.retryable


async def test_a_refused_connection_names_the_url_and_what_to_check(closed_port: int) -> None:
    url = f"http://127.0.0.1:{closed_port}/v1"
    error = await failure(OpenAIProvider("m", base_url=url))
    assert type(error) is ProviderUnavailable
    assert error.retryable
    assert str(error).startswith(f"could not reach openai at {url} (Connection refused): check")
    assert "check that the server is running, and that base_url= (or OPENAI_BASE_URL) is right" in str(error)


async def test_other_errors_of_the_sdk_are_rejections() -> None:
    error = OpenAIErrors(vendor="v", where="w", hint="h").translate(openai.OpenAIError("odd"))
    assert type(error) is ProviderRejected
    assert str(error) == "v at w: odd"
    assert OpenAIErrors(vendor="v", where="w", hint="h").translate(KeyError("x")) is None


# ---------------------------------------------------------------------------------------------------- keys


async def test_a_key_is_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("openai").setLevel(logging.DEBUG)
    with OpenAIServer([], api_key="another") as server:
        provider = OpenAIProvider("m", api_key=SECRET, base_url=server.base_url)
        assert SECRET not in repr(provider)
        error = await failure(provider)
    assert server.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    assert "Incorrect API key provided: Bearer ***" in str(error)
    assert SECRET not in everything_about(error)
    assert SECRET not in caplog.text
    assert SECRET not in repr([vars(each) for each in caplog.records])


async def test_an_error_that_tells_nothing_keeps_its_cause() -> None:
    error = await failure_of(status(500, "busy"), api_key=SECRET)
    assert isinstance(error.__cause__, openai.InternalServerError)


async def secret_key() -> str:
    return SECRET


@pytest.mark.parametrize("place", ["callable", "header", "client"])
async def test_keys_from_elsewhere_are_hidden_too(place: str) -> None:
    with OpenAIServer(lambda asked: status(400, f"you sent {asked.headers}")) as server:
        url = server.base_url
        async with openai.AsyncOpenAI(api_key=SECRET, base_url=url) as client:
            provider = {
                "callable": lambda: OpenAIProvider("m", api_key=secret_key, base_url=url),
                "header": lambda: OpenAIProvider("m", default_headers={"api-key": SECRET}, base_url=url),
                "client": lambda: OpenAIProvider("m", client=client),
            }[place]()
            error = await failure(provider)
        assert SECRET in str(server.requests[0].headers)
    assert "***" in str(error)
    assert SECRET not in everything_about(error)


async def test_a_password_in_the_url_is_hidden(closed_port: int) -> None:
    provider = OpenAIProvider("m", base_url=f"http://user:{SECRET}@127.0.0.1:{closed_port}/v1")
    assert SECRET not in repr(provider)
    error = await failure(provider)
    assert f"at http://127.0.0.1:{closed_port}/v1" in str(error)
    assert SECRET not in everything_about(error)
    with pytest.raises(ConfigurationError) as caught:
        OpenAIProvider("m", base_url=f"http://user:{SECRET}@host:port/v1")
    assert SECRET not in str(caught.value)
    assert "//***@host" in str(caught.value)


async def test_a_callable_key_is_asked_before_each_request() -> None:
    keys = iter(["key-one", "key-two"])

    async def fresh() -> str:
        await anyio.lowlevel.checkpoint()
        return next(keys)

    with OpenAIServer([text("a"), text("b")]) as server:
        provider = OpenAIProvider("m", api_key=fresh, base_url=server.base_url)
        for _ in range(2):
            await provider.respond(REQUEST, lambda _: None)
        await provider.aclose()
    assert [each.headers["authorization"] for each in server.requests] == ["Bearer key-one", "Bearer key-two"]


async def test_a_callable_that_fails_is_the_applications_fault() -> None:
    async def fresh() -> str:
        raise KeyError(SECRET)

    async def empty() -> str:
        return ""

    with OpenAIServer() as server:
        for ask, kind, words in (
            (fresh, ApplicationError, "the api_key callable raised KeyError"),
            (empty, ConfigurationError, "api_key is not a key"),
        ):
            provider = OpenAIProvider("m", api_key=ask, base_url=server.base_url)
            with pytest.raises(kind, match=words) as caught:
                await provider.respond(REQUEST, lambda _: None)
            await provider.aclose()
            assert SECRET not in str(caught.value)
    assert server.requests == []


def test_a_key_that_cannot_be_sent_is_not_quoted() -> None:
    with pytest.raises(ConfigurationError) as caught:
        OpenAIProvider("m", api_key=f"{SECRET} and more")
    assert SECRET not in str(caught.value)
