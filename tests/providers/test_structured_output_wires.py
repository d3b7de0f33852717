"""Structured output over real sockets: what each vendor's wire is asked for, and what comes of what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from toolbus import Runtime
from toolbus.protocols import Provider
from toolbus.providers import OpenAIProvider
from toolbus.providers.anthropic import AnthropicProvider
from toolbus.providers.ollama import OllamaProvider
from toolbus.testing.wire import WireReply, WireServer

KEY = "sk-not-a-real-key"
MAKERS: dict[str, Callable[[str], Provider]] = {
    "openai": lambda url: OpenAIProvider("stub", api_key=KEY, base_url=url),
    "responses": lambda url: OpenAIProvider("stub", api="responses", api_key=KEY, base_url=url),
    "anthropic": lambda url: AnthropicProvider("stub", api_key=KEY, base_url=url),
    "ollama": lambda url: OllamaProvider("stub", host=url),
}


class Weather(BaseModel):
    city: str
    celsius: int


PARIS = '{"city": "Paris", "celsius": 21}'
WANTED = Weather(city="Paris", celsius=21)


async def ask(server: WireServer, **options: Any) -> Any:
    provider = MAKERS[server.dialect.name](server.base_url)
    try:
        async with Runtime(provider) as runtime:
            return await runtime.run("Weather in Paris?", output=Weather, **options)
    finally:
        await close(provider)


async def close(provider: Any) -> None:
    await provider.aclose()


# ------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("dialect", ["openai", "responses", "anthropic"])
async def test_a_refusal_ends_the_request_at_once_whatever_the_wire(dialect: str) -> None:
    refusal = WireReply(refusal="I cannot help with that.")
    with WireServer(lambda _: refusal, dialect=dialect) as server:
        result = await ask(server)
    assert (result.outcome, result.reason, len(server.requests)) == ("failed", "content_filtered", 1)
