"""The vendors and servers that a provider's name can begin with, as data. `OpenAIProvider` and `resolve` read it.

docs/reference/providers.md has the same table. The module imports no adapter and reads no environment.

Example:
    from toolbus.providers.vendors import VENDORS, Vendor

    vendor: Vendor = VENDORS["mistral"]
    print(vendor.title, vendor.key_variable)  # Mistral MISTRAL_API_KEY
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

__all__ = ["VENDORS", "Vendor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """A vendor of models, or a server that people run themselves.

    `title` is its name for people. `adapter` names the adapter, and the extra with its SDK. `url` is the base URL; it
    is empty for a vendor that gives each customer one of its own. `url_variable` is the environment variable with
    another base URL, to which `url_path` is appended unless the URL ends with it already. `key_variable` is the
    variable of the key; a server with `needs_key=False` works without one. `options` are the defaults that the adapter
    takes from here, because the API needs them; `remarks` explains them and other differences. `source` is the address
    of the vendor's documentation. `tried` is the date of the last test against the vendor itself, or "never": then all
    of the entry is taken from the source.

    `other_names` are names that people type instead of this one, for the suggestion in the error message.
    """

    title: str
    adapter: Literal["openai", "anthropic", "ollama"] = "openai"
    url: str
    url_variable: str
    url_path: str = ""
    key_variable: str
    needs_key: bool = True
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    remarks: str = ""
    source: str
    tried: str = "never"
    other_names: tuple[str, ...] = ()


VENDORS: Mapping[str, Vendor] = MappingProxyType(
    {
        "openai": Vendor(
            title="OpenAI",
            url="https://api.openai.com/v1",
            url_variable="OPENAI_BASE_URL",
            key_variable="OPENAI_API_KEY",
            remarks="by the Responses API; at another URL by chat completions, unless it is `openai-responses:MODEL`",
            source="https://platform.openai.com/docs/api-reference",
            other_names=("gpt", "chatgpt"),
        ),
        "anthropic": Vendor(
            title="Anthropic",
            adapter="anthropic",
            url="https://api.anthropic.com",
            url_variable="ANTHROPIC_BASE_URL",
            key_variable="ANTHROPIC_API_KEY",
            source="https://docs.claude.com/en/api/messages",
            other_names=("claude",),
        ),
        "groq": Vendor(
            title="Groq",
            url="https://api.groq.com/openai/v1",
            url_variable="GROQ_BASE_URL",
            key_variable="GROQ_API_KEY",
            remarks="a call that Groq could not read (`tool_use_failed`) goes back to the model",
            source="https://console.groq.com/docs/openai",
        ),
        "mistral": Vendor(
            title="Mistral",
            url="https://api.mistral.ai/v1",
            url_variable="MISTRAL_BASE_URL",
            key_variable="MISTRAL_API_KEY",
            options=MappingProxyType({"include_usage": False, "mistral_checks": True}),
            remarks="refuses `stream_options`, and sends usage without it; checks ids of calls and the order of roles",
            source="https://docs.mistral.ai/api/",
        ),
        "deepseek": Vendor(
            title="DeepSeek",
            url="https://api.deepseek.com",
            url_variable="DEEPSEEK_BASE_URL",
            key_variable="DEEPSEEK_API_KEY",
            options=MappingProxyType({"reasoning_field": "reasoning_content"}),
            remarks="a model that thinks needs its reasoning back together with its calls, and refuses `tool_choice`",
            source="https://api-docs.deepseek.com/guides/thinking_mode",
        ),
        "xai": Vendor(
            title="xAI",
            url="https://api.x.ai/v1",
            url_variable="XAI_BASE_URL",
            key_variable="XAI_API_KEY",
            source="https://docs.x.ai/developers/quickstart",
            other_names=("grok", "x"),
        ),
        "openrouter": Vendor(
            title="OpenRouter",
            url="https://openrouter.ai/api/v1",
            url_variable="OPENROUTER_BASE_URL",
            key_variable="OPENROUTER_API_KEY",
            options=MappingProxyType({"reasoning_field": "reasoning"}),
            remarks="sends reasoning back, with its signatures to the model that it came from",
            source="https://openrouter.ai/docs/quickstart",
        ),
        "together": Vendor(
            title="Together AI",
            url="https://api.together.ai/v1",
            url_variable="TOGETHER_BASE_URL",
            key_variable="TOGETHER_API_KEY",
            source="https://docs.together.ai/docs/inference/openai-compatibility",
        ),
        "fireworks": Vendor(
            title="Fireworks AI",
            url="https://api.fireworks.ai/inference/v1",
            url_variable="FIREWORKS_BASE_URL",
            key_variable="FIREWORKS_API_KEY",
            remarks="models are named `accounts/fireworks/models/...`",
            source="https://docs.fireworks.ai/tools-sdks/openai-compatibility",
        ),
        "gemini": Vendor(
            title="Gemini",
            url="https://generativelanguage.googleapis.com/v1beta/openai",
            url_variable="GEMINI_BASE_URL",
            key_variable="GEMINI_API_KEY",
            remarks="the OpenAI-compatible API; signatures of calls are sent back, stand-ins for those of other models",
            source="https://ai.google.dev/gemini-api/docs/openai",
            other_names=("google", "google-genai"),
        ),
        "azure": Vendor(
            title="Azure OpenAI",
            url="",
            url_variable="AZURE_OPENAI_ENDPOINT",
            url_path="/openai/v1",
            key_variable="AZURE_OPENAI_API_KEY",
            options=MappingProxyType({"compatible": False}),
            remarks="the v1 API, without `api-version`; MODEL is the name of a deployment",
            source="https://learn.microsoft.com/azure/foundry/openai/api-version-lifecycle",
        ),
        "ollama": Vendor(
            title="Ollama",
            adapter="ollama",
            url="http://127.0.0.1:11434",
            url_variable="OLLAMA_HOST",
            key_variable="OLLAMA_API_KEY",
            needs_key=False,
            remarks="Ollama's own API",
            source="https://docs.ollama.com/api",
            tried="2026-11-29",
        ),
        "vllm": Vendor(
            title="vLLM",
            url="http://127.0.0.1:8000/v1",
            url_variable="VLLM_BASE_URL",
            key_variable="VLLM_API_KEY",
            needs_key=False,
            source="https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html",
            tried="2026-11-29",
        ),
        "llamacpp": Vendor(
            title="llama.cpp",
            url="http://127.0.0.1:8080/v1",
            url_variable="LLAMACPP_BASE_URL",
            key_variable="LLAMA_API_KEY",
            needs_key=False,
            remarks="for models that write calls as text, see `calls_in_text`",
            source="https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
            tried="2026-11-29",
        ),
        "lmstudio": Vendor(
            title="LM Studio",
            url="http://127.0.0.1:1234/v1",
            url_variable="LMSTUDIO_BASE_URL",
            key_variable="LM_API_TOKEN",
            needs_key=False,
            source="https://lmstudio.ai/docs/developer/openai-compat",
        ),
    }
)
"""The vendors by name: see `Vendor` for the fields."""
