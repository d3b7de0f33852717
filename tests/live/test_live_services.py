"""The contract's live part against real services. Opt-in: `pytest -m live`, with keys in the environment."""

from __future__ import annotations

import os
from typing import Any

import anyio
import pytest
from live_services import VARIABLES, found_now, reported, services

from toolbus.messages import Usage
from toolbus.records import replace
from toolbus.testing import ContractBroken, WireServer, calls, check_live_provider, text
from toolbus.testing.wire import DIALECTS

FOUND = found_now()
PATIENCE_SECONDS = 300


@pytest.mark.live
@pytest.mark.parametrize("service", FOUND or ["none"])
async def test_a_real_service_keeps_the_contract(service: str) -> None:
    if service not in FOUND:
        pytest.fail(f"there is nobody to ask: {reported(os.environ)}")
    provider: Any = FOUND[service]()
    try:
        with anyio.fail_after(PATIENCE_SECONDS):
            await check_live_provider(provider)
    finally:
        await provider.aclose()


# ------------------------------------------------------------------------------- without any service, always

ENVIRONMENTS: dict[str, dict[str, str]] = {
    "openai": {"OPENAI_API_KEY": "sk-not-a-real-key"},
    "responses": {"OPENAI_API_KEY": "sk-not-a-real-key"},
    "anthropic": {"ANTHROPIC_API_KEY": "sk-not-a-real-key"},
    "ollama": {"OLLAMA_HOST": "local"},
}
URLS = {"openai": "OPENAI_BASE_URL", "responses": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL"}
OBLIGING = [
    text("Hello!"),
    calls(("look_up_code", {"city": "Zürich"})),
    text("It is 7319."),
    calls(("look_up_code", {"city": "Paris"}), ("look_up_code", {"city": "Rome"})),
    text("7319 and 7320."),
]


async def check_a_stub(dialect: str, script: Any, monkeypatch: pytest.MonkeyPatch) -> WireServer:
    environment = ENVIRONMENTS[dialect]
    with WireServer(script, dialect=dialect) as server:
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv(URLS.get(dialect, "OLLAMA_HOST"), server.base_url)
        [make] = [make for name, make in services(environment).items() if name.startswith(f"{dialect}:")]
        provider: Any = make()
        try:
            await check_live_provider(provider)
        finally:
            await provider.aclose()
        return server


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_stub_of_an_obliging_service_passes(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = [_counted(step) for step in OBLIGING]
    server = await check_a_stub(dialect, script, monkeypatch)
    assert [server.read(number).problems for number in range(5)] == [()] * 5


async def test_any_vendor_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with WireServer([_counted(step) for step in OBLIGING], dialect="openai") as server:
        monkeypatch.setenv("VLLM_BASE_URL", server.base_url)
        [(name, make)] = services({"TOOLBUS_LIVE_PROVIDERS": " vllm:qwen3 "}).items()
        provider: Any = make()
        await check_live_provider(provider)
        await provider.aclose()
    assert (name, provider.vendor) == ("vllm:qwen3", "vllm")


async def test_a_service_that_does_nothing_right_fails_each_check(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ContractBroken) as caught:
        await check_a_stub("openai", [text("Hello!"), text("No."), text("No.")], monkeypatch)
    assert caught.value.checks == ("live-text", "live-tool-round-trip", "live-parallel-calls")


async def test_a_service_that_is_down_fails_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ContractBroken, match=r"expected: answers(?s:.*)the stub's script has 0 steps"):
        await check_a_stub("openai", [], monkeypatch)


def test_nothing_is_found_where_nothing_is_set_and_no_value_is_reported() -> None:
    assert services({}) == {}
    assert reported({}).startswith("live services: none; looked at OPENAI_API_KEY (not set), ")
    said = reported({"OPENAI_API_KEY": "sk-secret"})
    assert "openai:gpt-5-mini, responses:gpt-5-mini" in said
    assert "secret" not in said


def _counted(step: Any) -> Any:
    return replace(step, usage=Usage(input_tokens=30, output_tokens=10))
