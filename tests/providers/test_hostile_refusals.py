"""Refusals that no real server sends: bodies without an end, errors inside of errors, codes of thousands of digits."""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import httpx2
import pytest

from support.garbage import FRAMES_KNOW_THEIR_CALLERS, garbage
from support.wire_events import ERRORS
from toolbus.errors import ProviderError, ProviderRejected, ProviderUnavailable
from toolbus.messages import UserMessage
from toolbus.protocols import Delta, ModelRequest
from toolbus.providers import AnthropicProvider, OllamaProvider, OpenAIProvider
from toolbus.providers._shared.clients import bound_refusal
from toolbus.testing.wire import Answer, HttpRequest, LoopbackServer

BLOCK = b"x" * 65_536
MANY = 800  # blocks: more than the buffers of a connection hold


def openai(url: str) -> OpenAIProvider:
    return OpenAIProvider("m", base_url=url)


def anthropic(url: str) -> AnthropicProvider:
    return AnthropicProvider("m", base_url=url)


def ollama(url: str) -> OllamaProvider:
    return OllamaProvider("m", host=url)


PROVIDERS = {"openai": openai, "anthropic": anthropic, "ollama": ollama}


class Endless(LoopbackServer):
    """A server that answers with a long body, and counts the blocks that it could send."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(self._refuse)
        self.status = status
        self.headers = {"Content-Type": "application/json", **headers}
        self.sent = 0

    def _refuse(self, _request: HttpRequest) -> Answer:
        status = self.status if self.connections == 1 or self.status != 307 else 400
        return Answer(status=status, headers=self.headers, frames=self._blocks())

    def _blocks(self) -> Iterator[bytes]:
        for _ in range(MANY):
            self.sent += 1
            yield BLOCK


def ignore(_delta: Delta) -> None:
    """Listen to nothing."""


async def failure_of(make: Callable[[str], Any], server: LoopbackServer) -> ProviderError:
    provider = make(server.origin)
    with pytest.raises(ProviderError) as caught:
        await provider.respond(ModelRequest(messages=(UserMessage(content="hi"),)), ignore)
    await provider.aclose()
    return caught.value


@pytest.mark.parametrize("vendor", PROVIDERS)
@pytest.mark.parametrize("status", [400, 307])
async def test_the_body_of_a_refusal_or_a_redirect_is_read_up_to_a_size(vendor: str, status: int) -> None:
    with Endless(status, Location="/elsewhere") as server:
        error = await failure_of(PROVIDERS[vendor], server)
    assert (type(error), error.status) == (ProviderRejected, 400)
    assert f"{vendor} answered 400 (Bad Request): xxx" in str(error)
    assert server.sent < MANY


@pytest.mark.parametrize("vendor", PROVIDERS)
@pytest.mark.parametrize("coding", ["identity", "deflate"])
async def test_the_body_of_a_refusal_of_common_size_is_read_whole(vendor: str, coding: str) -> None:
    body = json.dumps({"error": {"message": "too warm", "padding": "x" * 30_000}}).encode()
    headers = {"Content-Type": "application/json"}
    if coding == "deflate":
        body, headers = zlib.compress(body), {**headers, "Content-Encoding": coding}
    frames = [body[start : start + 10_000] for start in range(0, len(body), 10_000)]
    with LoopbackServer(lambda _: Answer(status=400, headers=headers, frames=frames)) as server:
        error = await failure_of(PROVIDERS[vendor], server)
        assert str(error) == f"{vendor} answered 400 (Bad Request): too warm"


async def test_a_compressed_refusal_is_read_up_to_a_smaller_size() -> None:
    whole = b"x" * 12 * 2**20
    packed = zlib.compress(whole, 1)  # 54 KiB

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(packed), 1024):
            yield packed[start : start + 1024]

    response = httpx2.Response(400, headers={"Content-Encoding": "deflate"}, content=pieces())
    await bound_refusal(response)
    assert len(whole) / 20 < len(await response.aread()) < len(whole) / 2


async def test_a_refusal_ends_at_its_bound_and_not_one_piece_later() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 65_536

    response = httpx2.Response(400, content=pieces())
    await bound_refusal(response)
    assert len(await response.aread()) == 65_536


FAILURES = {
    "refused": Answer(status=429, frames=(b"no",), streamed=False),
    "cut": Answer(frames=(b"{",), ending="cut"),
    "no JSON": Answer(frames=(b"data: no JSON\n\n",), streamed=False),
}


def _same(answer: Answer, _request: HttpRequest) -> Answer:
    return answer


@FRAMES_KNOW_THEIR_CALLERS
@pytest.mark.parametrize("vendor", PROVIDERS)
async def test_a_failed_call_of_a_model_leaves_nothing_to_the_garbage_collector(vendor: str) -> None:
    """What the collector frees late is the request, with its whole history."""
    with LoopbackServer(lambda _: FAILURES["refused"]) as server:
        provider = PROVIDERS[vendor](server.origin)

        async def fail() -> None:
            with suppress(ProviderError):
                await provider.respond(ModelRequest(messages=(UserMessage(content="hi"),)), ignore)
                raise AssertionError("the server has answered")

        await fail()  # what is made only once may have cycles
        left: dict[str, Counter[str]] = {}
        for name, answer in FAILURES.items():
            server.answer = partial(_same, answer)
            with garbage() as left[name]:
                await fail()
        assert not any(left.values()), left
        await provider.aclose()


async def test_refusals_make_no_classes_which_only_the_garbage_collector_frees() -> None:
    """A server that is overloaded refuses thousands of requests."""
    responses = [httpx2.Response(429, content=b"no") for _ in range(2)]
    for each in responses:
        await bound_refusal(each)
    assert type(responses[0].stream) is type(responses[1].stream)


@pytest.mark.parametrize("vendor", PROVIDERS)
async def test_refusals_are_asked_for_in_codings_whose_beginning_can_be_read(
    vendor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The HTTP library asks for all that it knows, and refuses zstd that has no end."""
    for library in ("httpx", "httpx2"):
        monkeypatch.setattr(f"{library}._client.ACCEPT_ENCODING", "gzip, deflate, br, zstd")
    asked: list[str] = []

    def refuse(request: HttpRequest) -> Answer:
        asked.append(request.headers["accept-encoding"])
        return Answer(status=400, frames=(b"no",), streamed=False)

    with LoopbackServer(refuse) as server:
        await failure_of(PROVIDERS[vendor], server)
    assert asked == ["gzip, deflate"]


@pytest.mark.parametrize("vendor", PROVIDERS)
@pytest.mark.parametrize("key", ["error", "message", "code"])
def test_a_refusal_that_is_nested_deeply_is_the_providers_error(vendor: str, key: str) -> None:
    body: Any = "bad"
    for _ in range(3_000):
        body = {key: body}
    assert type(ERRORS[vendor].status(400, {}, body)) is ProviderRejected
    assert type(ERRORS[vendor].in_stream({"error": body})) is ProviderUnavailable


@pytest.mark.parametrize("code", ["4" * 5_000, "4290", "42", "٤٢٩", "600", "399"])
def test_a_code_that_is_no_status_is_none(code: str) -> None:
    error = ERRORS["openai"].in_stream({"error": {"code": code, "message": "no"}})
    assert (type(error), error.status) == (ProviderUnavailable, None)


@pytest.mark.parametrize("code", [400, "429", 599, "503"])
def test_a_code_that_is_a_status_is_one(code: Any) -> None:
    error = ERRORS["openai"].in_stream({"error": {"code": code, "message": "no"}})
    assert error.status == int(code)


async def test_a_password_in_a_url_is_not_shown_in_clear_either() -> None:
    def refuse(request: HttpRequest) -> Answer:
        given = base64.b64decode(request.headers["authorization"].removeprefix("Basic ")).decode()
        return Answer(status=400, frames=(json.dumps({"error": f"{given} may not"}).encode(),), streamed=False)

    with LoopbackServer(refuse) as server:
        provider = OllamaProvider("m", host=server.origin.replace("//", "//user:the%40word@"))
        with pytest.raises(ProviderRejected, match="user:\\*\\*\\* may not"):
            await provider.respond(ModelRequest(messages=(UserMessage(content="hi"),)), ignore)
        await provider.aclose()
