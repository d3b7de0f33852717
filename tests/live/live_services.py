"""Which real services the environment has keys or addresses for.

    pytest -m live

| variable | what is asked |
| --- | --- |
| OPENAI_API_KEY, or OPENAI_BASE_URL with TOOLBUS_LIVE_OPENAI_MODEL | chat completions; OpenAI's Responses too |
| ANTHROPIC_API_KEY | Anthropic's Messages API |
| OLLAMA_HOST | Ollama, with TOOLBUS_LIVE_OLLAMA_MODEL or qwen3 |
| TOOLBUS_LIVE_PROVIDERS | names such as "groq:llama-3.3-70b-versatile vllm:qwen3", with the variables that they need |

TOOLBUS_LIVE_OPENAI_MODEL and TOOLBUS_LIVE_ANTHROPIC_MODEL name other models than the defaults of the command line. The
date on which a vendor passed belongs into `tried` of `toolbus.providers.VENDORS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial

from toolbus.protocols import Provider
from toolbus.providers import OpenAIProvider, resolve
from toolbus.providers._resolve import DEFAULT_ANTHROPIC_MODEL, DEFAULT_OPENAI_MODEL

VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "OLLAMA_HOST", "TOOLBUS_LIVE_PROVIDERS")
Make = Callable[[], Provider]


def services(environment: Mapping[str, str]) -> dict[str, Make]:
    """The services that there are, by name and model. Nothing is asked, and no SDK imported."""
    found: dict[str, Make] = {}
    own_server = environment.get("OPENAI_BASE_URL")
    model = environment.get("TOOLBUS_LIVE_OPENAI_MODEL") or DEFAULT_OPENAI_MODEL
    if environment.get("OPENAI_API_KEY") or (own_server and environment.get("TOOLBUS_LIVE_OPENAI_MODEL")):
        found[f"openai:{model}"] = lambda: OpenAIProvider(model, api="chat")
        if not own_server:
            found[f"responses:{model}"] = lambda: OpenAIProvider(model, api="responses")
    if environment.get("ANTHROPIC_API_KEY"):
        claude = environment.get("TOOLBUS_LIVE_ANTHROPIC_MODEL") or DEFAULT_ANTHROPIC_MODEL
        found[f"anthropic:{claude}"] = lambda: _anthropic(claude)
    if environment.get("OLLAMA_HOST"):
        local = environment.get("TOOLBUS_LIVE_OLLAMA_MODEL") or "qwen3"
        found[f"ollama:{local}"] = lambda: _ollama(local)
    found |= {name: partial(resolve, name) for name in environment.get("TOOLBUS_LIVE_PROVIDERS", "").split()}
    return found


def _anthropic(model: str) -> Provider:
    from toolbus.providers.anthropic import AnthropicProvider

    return AnthropicProvider(model)


def _ollama(model: str) -> Provider:
    from toolbus.providers.ollama import OllamaProvider

    return OllamaProvider(model)


def reported(environment: Mapping[str, str]) -> str:
    """Which services were found, and which variables were looked at. Never their values."""
    found = ", ".join(services(environment)) or "none"
    looked_at = ", ".join(f"{name} ({'set' if environment.get(name) else 'not set'})" for name in VARIABLES)
    return f"live services: {found}; looked at {looked_at}"


def found_now() -> dict[str, Make]:
    return services(os.environ)
