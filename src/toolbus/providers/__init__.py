"""Models: adapters of vendors' wire formats to `toolbus.protocols.Provider`.

`from toolbus.providers import OpenAIProvider`: each adapter is imported when it is first used, and its SDK when a
provider is made. `toolbus.providers.extractive` is imported by whoever asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import imported_when_used
from ._resolve import choose_from_environment, missing_provider_message, resolve

if TYPE_CHECKING:
    from .anthropic import AnthropicProvider
    from .ollama import OllamaProvider
    from .openai import OpenAIProvider
    from .scripted import ScriptedProvider

__all__ = [
    "AnthropicProvider",
    "OllamaProvider",
    "OpenAIProvider",
    "ScriptedProvider",
    "choose_from_environment",
    "missing_provider_message",
    "resolve",
]

_HOMES = {
    "AnthropicProvider": ".anthropic",
    "OllamaProvider": ".ollama",
    "OpenAIProvider": ".openai",
    "ScriptedProvider": ".scripted",
}

__getattr__, __dir__ = imported_when_used(__name__, _HOMES, __all__)
