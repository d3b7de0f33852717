"""Each provider keeps the contract, on its own wire format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from toolbus.protocols import Provider
from toolbus.providers import OpenAIProvider
from toolbus.providers.anthropic import AnthropicProvider
from toolbus.providers.ollama import OllamaProvider
from toolbus.testing import check_provider, provider_checks
from toolbus.testing.wire import DIALECTS

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


async def test_a_provider_speaks_openais_own_dialect_as_well_as_that_of_its_imitators() -> None:
    def make(url: str) -> Provider:
        return MAKERS["openai"](url, compatible=False)

    await check_provider(make, only=["history", "history-with-odd-ids", "tools", "settings", "tool-choice"])


def test_there_is_a_provider_for_each_dialect() -> None:
    assert set(MAKERS) == set(DIALECTS)
