"""Models: adapters of vendors' wire formats to `toolbus.protocols.Provider`.

Importing this imports no SDK. `toolbus.providers.extractive` is imported by whoever asks for it.
"""

from ._resolve import choose_from_environment, missing_provider_message, resolve
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
