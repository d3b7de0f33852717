from __future__ import annotations

import subprocess
import sys
from typing import Any, get_args

import pytest

from toolbus.errors import ConfigurationError, MissingExtra
from toolbus.protocols import Provider
from toolbus.providers import (
    AnthropicProvider,
    OllamaProvider,
    OpenAIProvider,
    ScriptedProvider,
    choose_from_environment,
    missing_provider_message,
    resolve,
)


def test_a_provider_is_returned_as_it_is() -> None:
    provider = ScriptedProvider([])
    assert resolve(provider) is provider


def test_openai_with_a_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    provider = resolve(" openai:gpt-5-mini ")
    assert isinstance(provider, OpenAIProvider)
    assert isinstance(provider, Provider)
    assert repr(provider) == (
        "OpenAIProvider('gpt-5-mini', api='responses', vendor='openai', base_url='https://api.openai.com/v1')"
    )


@pytest.mark.parametrize(
    ("name", "url", "is_by_responses"),
    [
        ("openai:m", "https://eu.api.openai.com/v1", True),
        ("openai:gpt-audio-mini", "https://api.openai.com/v1", False),  # the next ones have only chat completions
        ("openai:gpt-4o-audio-preview", "https://api.openai.com/v1", False),
        ("openai:gpt-4o-mini-search-preview", "https://api.openai.com/v1", False),
        ("openai:gpt-5-search-api", "https://api.openai.com/v1", False),
        ("openai:o4-mini-deep-research", "https://api.openai.com/v1", True),
        ("openai:m", "https://notapi.openai.com.example/v1", False),
        ("openai:m", "https://me.openai.azure.com/openai/v1", False),
        ("openai:m", "http://127.0.0.1:8000/v1", False),
        ("openai-responses:m", "http://127.0.0.1:8000/v1", True),
    ],
)
def test_openai_is_asked_by_responses_and_other_servers_by_chat_completions_unless_the_name_says_otherwise(
    name: str, url: str, is_by_responses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    assert f"api='{'responses' if is_by_responses else 'chat'}'" in repr(resolve(name))


def test_an_api_that_is_given_counts_more_than_the_url() -> None:
    assert "api='chat'" in repr(OpenAIProvider("m", api="chat", api_key="sk-test"))


def test_openai_at_another_server_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1/")
    assert "base_url='http://127.0.0.1:8000/v1'" in repr(resolve("openai:local"))


def test_anthropic_with_a_key_from_the_environment_or_at_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test")
    provider = resolve("anthropic: claude-haiku-5-5")
    assert isinstance(provider, AnthropicProvider)
    assert isinstance(provider, Provider)
    assert provider.model == "claude-haiku-5-5"
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:8000")
    assert "base_url='http://127.0.0.1:8000'" in repr(resolve("anthropic:local"))


def test_anthropic_without_a_key_names_the_variable() -> None:
    with pytest.raises(ConfigurationError, match="set ANTHROPIC_API_KEY, pass api_key=, or name another server"):
        resolve("anthropic:claude-haiku-5-5")


def test_the_default_model_is_in_the_sdks_list() -> None:
    from anthropic.types import ModelParam

    from toolbus.providers._resolve import DEFAULT_ANTHROPIC_MODEL

    assert DEFAULT_ANTHROPIC_MODEL in get_args(get_args(ModelParam)[0])


@pytest.mark.parametrize("key", [None, "", "  "])
def test_openai_without_a_key_names_the_variable(monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    if key is not None:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ConfigurationError, match="set OPENAI_API_KEY, pass api_key=, or name another server"):
        resolve("openai:gpt-5-mini")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        (None, "http://127.0.0.1:11434"),
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        (":8080", "http://127.0.0.1:8080"),
        ("gpu.local", "http://gpu.local:11434"),
        ("gpu.local:1234", "http://gpu.local:1234"),
        ("[::]:1234", "http://[::1]:1234"),
        ("http://gpu.local", "http://gpu.local:80"),
        ("https://gpu.local", "https://gpu.local:443"),
        ("https://gpu.local:8443/ollama/", "https://gpu.local:8443/ollama"),
        ("http://gpu.local:11434/v1", "http://gpu.local:11434"),
    ],
)
def test_ollama_is_where_its_own_variable_says(monkeypatch: pytest.MonkeyPatch, host: str | None, url: str) -> None:
    if host is not None:
        monkeypatch.setenv("OLLAMA_HOST", host)
    provider = resolve("ollama:qwen3:8b")
    assert isinstance(provider, OllamaProvider)
    assert isinstance(provider, Provider)
    assert (provider.vendor, repr(provider)) == ("ollama", f"OllamaProvider('qwen3:8b', host='{url}')")


def test_the_embedded_one_needs_nothing() -> None:
    provider = resolve("extractive")
    assert isinstance(provider, Provider)
    assert provider.vendor == "extractive"


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1:eleven", "'127.0.0.1:eleven'"),
        ("user:secret@host:x", "'***@host:x'"),
        ("ftp://gpu.local", "'ftp://gpu.local'"),
    ],
)
def test_ollama_at_no_host_is_refused(monkeypatch: pytest.MonkeyPatch, host: str, shown: str) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    with pytest.raises(ConfigurationError) as caught:
        resolve("ollama:qwen3")
    assert f"OLLAMA_HOST is {shown}, which is not a host" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "gpt-5-mini", "nobody:large", "extractive:big", "OpenAI:x"])
def test_an_unknown_name_lists_what_there_is(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve(name)
    assert f"there is no provider {name!r}" in str(caught.value)
    for kind in ("openai:MODEL", "openai-responses:MODEL", "anthropic:MODEL", "ollama:MODEL", "extractive"):
        assert kind in str(caught.value)


@pytest.mark.parametrize("name", ["openai", "openai:", "openai-responses:", "anthropic", "anthropic: ", "ollama: "])
def test_a_name_without_a_model_says_what_to_write(name: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"names no model: write (openai|openai-responses|anthropic|ollama):MODEL"
    ):
        resolve(name)


def test_what_is_neither_name_nor_provider_is_refused() -> None:
    wrong: Any = 3
    with pytest.raises(ConfigurationError, match="3 is not a provider: pass 'openai:MODEL'"):
        resolve(wrong)


@pytest.mark.parametrize(("has", "lacks"), [("vendor", "respond"), ("respond", "vendor")])
def test_a_provider_of_ones_own_that_lacks_a_member_is_refused_with_its_name(has: str, lacks: str) -> None:
    half: Any = type("Half", (), {has: "mine"})()
    with pytest.raises(ConfigurationError, match=f"is not a provider: it has no `{lacks}`"):
        resolve(half)


def test_a_provider_of_ones_own_that_takes_other_arguments_is_refused() -> None:
    class Mine:
        vendor = "mine"

        async def respond(self, request: object) -> None: ...

    mine: Any = Mine()
    with pytest.raises(ConfigurationError, match=r"is not a provider: it needs respond\(request, emit\)$"):
        resolve(mine)


def test_a_models_name_without_a_vendor_is_not_taken_for_another_vendor() -> None:
    with pytest.raises(ConfigurationError, match="there is no provider 'gpt-5-mini': pass 'openai:MODEL'"):
        resolve("gpt-5-mini")


@pytest.mark.parametrize("vendor", ["openai", "anthropic", "ollama"])
def test_without_the_sdk_the_extra_is_named_before_a_key_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, vendor: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setitem(sys.modules, vendor, None)  # importing it raises ImportError
    with pytest.raises(MissingExtra, match=rf"pip install 'toolbus\[{vendor}\]'") as caught:
        resolve(f"{vendor}:some-model")
    assert caught.value.extra == vendor


def test_importing_the_providers_imports_no_sdk() -> None:
    code = (
        "import sys, toolbus.providers; print([n for n in ('openai', 'ollama', 'httpx2', 'httpx') if n in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize(
    ("environment", "chosen"),
    [
        ({}, None),
        ({"OPENAI_API_KEY": " ", "TOOLBUS_PROVIDER": ""}, None),
        ({"TOOLBUS_MODEL": "m", "OLLAMA_HOST": "h", "OPENAI_BASE_URL": "http://h"}, None),
        ({"OPENAI_API_KEY": "k"}, "openai:gpt-5-mini"),
        ({"OPENAI_API_KEY": "k", "TOOLBUS_MODEL": "gpt-5"}, "openai:gpt-5"),
        ({"ANTHROPIC_API_KEY": "k"}, "anthropic:claude-haiku-5-5"),
        ({"ANTHROPIC_API_KEY": "k", "TOOLBUS_MODEL": "claude-opus-5-5"}, "anthropic:claude-opus-5-5"),
        ({"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}, "openai:gpt-5-mini"),
        ({"ANTHROPIC_API_KEY": " ", "ANTHROPIC_BASE_URL": "http://h"}, None),
        ({"OPENAI_API_KEY": "k", "TOOLBUS_PROVIDER": "ollama:qwen3"}, "ollama:qwen3"),
        ({"TOOLBUS_PROVIDER": "extractive"}, "extractive"),
    ],
)
def test_the_environment_chooses(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], chosen: str | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert choose_from_environment() == chosen


def test_what_was_looked_at_is_reported_without_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    message = missing_provider_message()
    assert "OPENAI_API_KEY (set)" in message
    for name in ("TOOLBUS_PROVIDER", "TOOLBUS_MODEL", "OPENAI_BASE_URL", "OLLAMA_HOST"):
        assert f"{name} (not set)" in message
    assert "sk-very-secret" not in message
    assert "openai:MODEL" in message
