"""Each provider keeps the contract, on its own wire format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from toolbus.messages import UserMessage
from toolbus.protocols import ModelRequest, Provider
from toolbus.providers import OpenAIProvider
from toolbus.providers.anthropic import AnthropicProvider
from toolbus.providers.ollama import OllamaProvider
from toolbus.testing import check_provider, provider_checks
from toolbus.testing.wire import DIALECTS, WireReply, WireServer

KEY = "sk-not-a-real-key"
SMALL = 128 * 1024  # bytes, where reading stops: megabytes take their time, and stand in one test


def openai(url: str, **more: Any) -> Provider:
    return OpenAIProvider("stub", api_key=KEY, base_url=url, **more)


def responses(url: str, **more: Any) -> Provider:
    return OpenAIProvider("stub", api="responses", api_key=KEY, base_url=url, **more)


def anthropic(url: str, **more: Any) -> Provider:
    return AnthropicProvider("stub", api_key=KEY, base_url=url, **more)


def ollama(url: str, **more: Any) -> Provider:
    return OllamaProvider("stub", host=url, **more)


MAKERS: dict[str, Callable[..., Provider]] = {each.__name__: each for each in (openai, responses, anthropic, ollama)}


@pytest.mark.guarantee("G28")
@pytest.mark.parametrize("dialect", MAKERS)
async def test_a_provider_keeps_the_contract(dialect: str) -> None:
    def make(url: str) -> Provider:
        return MAKERS[dialect](url, max_reply_bytes=SMALL)

    report = await check_provider(make, dialect=dialect, max_reply_bytes=SMALL)
    lacking = {name for name in provider_checks() if name not in report.passed}
    assert set(report.skipped) == lacking
    assert len(report.passed) > 30


@pytest.mark.repeats("piece after piece")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("dialect", MAKERS)
async def test_a_provider_stops_reading_at_8_mib(dialect: str, anyio_backend: Any) -> None:
    report = await check_provider(MAKERS[dialect], dialect=dialect, only=["size-limit"], patience_seconds=30)
    assert report.passed == ("size-limit",)


@pytest.mark.parametrize("dialect", ["openai", "responses"])
async def test_a_provider_speaks_openais_own_dialect_as_well_as_that_of_its_imitators(dialect: str) -> None:
    def make(url: str) -> Provider:
        return MAKERS[dialect](url, compatible=False)

    only = ["history", "history-with-odd-ids", "tools", "settings", "tool-choice"]
    await check_provider(make, dialect=dialect, only=only)


@pytest.mark.parametrize("dialect", MAKERS)
def test_one_provider_serves_one_event_loop_after_the_other(dialect: str) -> None:
    with WireServer(lambda _: WireReply(text="Sunny."), dialect=dialect) as server:
        provider = MAKERS[dialect](server.base_url)
        closes: Any = provider

        async def once() -> str:
            request = ModelRequest(messages=[UserMessage(content="hi")])
            reply = await provider.respond(request, lambda _: None)
            await closes.aclose()
            await closes.aclose()
            return reply.message.text

        for backend in ("asyncio", "trio", "asyncio"):
            assert anyio.run(once, backend=backend) == "Sunny."
        assert server.connections == 3


def test_there_is_a_provider_for_each_dialect() -> None:
    assert set(MAKERS) == set(DIALECTS)
