"""The reference pages say what the code does."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path

import pytest

from toolbus.providers import AnthropicProvider, OllamaProvider, OpenAIProvider

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/environment.md"


def test_every_variable_that_is_read_stands_on_the_page_and_no_other_of_ours() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    read = set(re.findall(r"[\"']((?:TOOLBUS|OPENAI|ANTHROPIC|OLLAMA)_[A-Z_]+)[\"']", source))
    reported = set(re.findall(r"`((?:TOOLBUS|OPENAI|ANTHROPIC|OLLAMA)_[A-Z_]+)`", PAGE.read_text()))
    assert {"TOOLBUS_PROVIDER", "OPENAI_API_KEY"} <= read
    assert read <= reported
    assert {name for name in reported if name.startswith("TOOLBUS_")} <= read


def test_every_option_of_the_openai_provider_is_reported() -> None:
    page = (ROOT / "docs/reference/providers.md").read_text()
    for name in set(signature(OpenAIProvider).parameters) - {"model"}:
        assert f"`{name}`" in page, name


def test_every_option_of_the_anthropic_provider_is_reported() -> None:
    page = (ROOT / "docs/reference/providers.md").read_text()
    for name in set(signature(AnthropicProvider).parameters) - {"model"}:
        assert f"`{name}`" in page, name


def test_every_option_of_the_ollama_provider_is_reported() -> None:
    page = (ROOT / "docs/reference/providers.md").read_text()
    for name in set(signature(OllamaProvider).parameters) - {"model"}:
        assert f"`{name}`" in page, name


def test_the_pages_snippets_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/reference/providers.md").read_text()
    for snippet in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(snippet, "providers.md", "exec"), {"__name__": "snippet"})
    shown = capsys.readouterr().out
    assert "OpenAIProvider('qwen3', api='chat', vendor='openai', base_url='http://127.0.0.1:8000/v1')" in shown
    assert "AssistantMessage(text='Sunny.'" in shown
