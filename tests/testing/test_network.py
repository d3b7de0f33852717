"""Real models are blocked in tests: in this very suite too, whose pytest has toolbus's plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from toolbus import network
from toolbus.errors import ConfigurationError, ProviderError
from toolbus.messages import UserMessage
from toolbus.network import check_allowed, forbid
from toolbus.protocols import Delta, ModelRequest, Provider
from toolbus.providers import AnthropicProvider, OllamaProvider, OpenAIProvider
from toolbus.testing import Harness, WireServer, allow_network_providers, forbid_network_providers, text

AWAY = "https://models.example.com/v1"
PROVIDERS: dict[str, Callable[[str], Provider]] = {
    "openai": lambda url: OpenAIProvider("m", base_url=url),
    "responses": lambda url: OpenAIProvider("m", base_url=url, api="responses"),
    "anthropic": lambda url: AnthropicProvider("m", base_url=url),
    "ollama": lambda url: OllamaProvider("m", host=url),
}


@pytest.fixture(autouse=True)
def blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the plugin has it, and back to whatever it was."""
    monkeypatch.setattr(network, "_objection", None)
    forbid_network_providers()


@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_provider_is_made_but_asks_nobody_on_another_machine(name: str):
    provider = PROVIDERS[name](AWAY)
    with pytest.raises(ConfigurationError, match=r"about to ask \w+ at https://models\.example\.com") as caught:
        await provider.respond(ModelRequest(messages=[UserMessage(content="Hello?")]), lambda _: None)
    assert not isinstance(caught.value, ProviderError)  # so that nothing retries it, or turns to another model
    for way in ("@pytest.mark.allow_network_providers", "toolbus.testing.allow_network_providers()", "--toolbus-allow"):
        assert way in str(caught.value)


@pytest.mark.parametrize("dialect", ["openai", "responses", "anthropic", "ollama"])
async def test_servers_on_this_machine_are_asked(dialect: str):
    with WireServer([text("Hello.")], dialect=dialect) as server:
        provider: Any = PROVIDERS[dialect](server.base_url)
        reply = await provider.respond(ModelRequest(messages=[UserMessage(content="Hello?")]), list[Delta]().append)
        await provider.aclose()
    assert reply.message.text == "Hello."


async def test_a_request_fails_with_the_way_out():
    async with Harness(OpenAIProvider("m", base_url=AWAY)) as harness:
        result = await harness.run("Hello?")
    assert (result.outcome, result.reason, result.rounds) == ("failed", "configuration_error", 1)
    assert "real models are blocked in tests" in str(result.error)


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:11434", True),
        ("http://127.9.9.9", True),
        ("http://localhost:8000/v1", True),
        ("http://models.localhost", True),
        ("http://[::1]:8000", True),
        ("https://api.openai.com/v1", False),
        ("http://192.168.0.2", False),
        ("http://localhost.example.com", False),
        ("http://[2001:db8::1]/v1", False),
        ("", False),
    ],
)
def test_this_machine_is_known_by_its_names_and_addresses(url: str, here: bool):
    if here:
        check_allowed("openai", url)
    else:
        with pytest.raises(ConfigurationError):
            check_allowed("openai", url)


def test_blocks_that_allow_may_overlap_in_any_order():
    first, second = allow_network_providers(), allow_network_providers()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    check_allowed("openai", AWAY)
    second.__exit__(None, None, None)
    with pytest.raises(ConfigurationError):
        check_allowed("openai", AWAY)


def test_in_production_nothing_is_forbidden():
    forbid(None)
    check_allowed("openai", AWAY)
