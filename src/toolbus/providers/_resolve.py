"""From a provider's name to a provider, and what the environment says about it.

Knows which providers there are and which variables are read; imports an adapter only when it is asked for.
"""

from __future__ import annotations

import os
import reprlib
from typing import cast

from ..errors import ConfigurationError
from ..protocols import Provider

__all__ = [
    "DEFAULT_ANTHROPIC_MODEL",
    "DEFAULT_OPENAI_MODEL",
    "NAMED",
    "VARIABLES",
    "choose_from_environment",
    "missing_provider_message",
    "resolve",
]

DEFAULT_OPENAI_MODEL = "gpt-5-mini"
"""What the CLI asks for when there is a key and no TOOLBUS_MODEL: small, and good with tools."""

DEFAULT_ANTHROPIC_MODEL = "claude-haiku-5-5"
"""The same where the only key is Anthropic's: the newest small one in the SDK's list of models."""

VARIABLES = (
    "TOOLBUS_PROVIDER",
    "TOOLBUS_MODEL",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "OLLAMA_HOST",
)
"""The variables that decide which provider there is, as docs/reference/environment.md has them."""

NAMED = ("openai", "openai-responses", "anthropic", "ollama")
"""What may stand before the colon of a provider's name, and the model behind it."""

_KINDS = (
    f"{', '.join(repr(f'{name}:MODEL') for name in NAMED)}, "
    "'extractive' (no language model: quotes files, offline), or a Provider"
)


def resolve(provider: str | Provider) -> Provider:
    """The provider of that name; a `Provider` is returned as it is.

    "openai:MODEL" is OpenAI's chat completions with OPENAI_API_KEY, or the server at OPENAI_BASE_URL;
    "openai-responses:MODEL" the Responses API there; "anthropic:MODEL" Anthropic with ANTHROPIC_API_KEY, or the server
    at ANTHROPIC_BASE_URL; "ollama:MODEL" the Ollama at OLLAMA_HOST, by default the local one; "extractive" the embedded
    one that needs neither key nor network. Nothing is sent here, so a wrong key or an absent server shows at the first
    request.

    Raises `ConfigurationError` for any other name, a missing model or key, and `MissingExtra` without the SDK.
    """
    if not isinstance(provider, str):
        given = cast("object", provider)  # callers without a type checker give anything
        if isinstance(given, Provider) and not isinstance(given, type):
            return given
        several = "; of several, providers=[...]; of a script, ScriptedProvider([...])"
        raise ConfigurationError(
            f"{reprlib.repr(given)} is no provider: give {_KINDS}{several if type(given) is list else ''}"
        )
    vendor, _, model = provider.strip().partition(":")
    if vendor == "extractive" and not model:
        from .extractive import ExtractiveProvider  # noqa: PLC0415 -- only who asks for it pays for it

        return ExtractiveProvider()
    if vendor not in NAMED:
        raise ConfigurationError(f"there is no provider {provider!r}: give {_KINDS}")
    if not model.strip():
        raise ConfigurationError(f"provider {provider!r} names no model: write {vendor}:MODEL")
    if vendor == "anthropic":
        from .anthropic import AnthropicProvider  # noqa: PLC0415

        return AnthropicProvider(model.strip())
    if vendor == "ollama":
        from .ollama import OllamaProvider  # noqa: PLC0415

        return OllamaProvider(model.strip())
    from .openai import OpenAIProvider  # noqa: PLC0415

    return OpenAIProvider(model.strip(), api="responses" if vendor == "openai-responses" else "chat")


def choose_from_environment() -> str | None:
    """The provider's name that the environment asks for, for the CLI; the library itself never guesses.

    TOOLBUS_PROVIDER wins. Else with OPENAI_API_KEY it is "openai:" and TOOLBUS_MODEL, or a small model; else with
    ANTHROPIC_API_KEY "anthropic:" and the same. Else None.
    """
    if chosen := _value("TOOLBUS_PROVIDER"):
        return chosen
    if _value("OPENAI_API_KEY"):
        return f"openai:{_value('TOOLBUS_MODEL') or DEFAULT_OPENAI_MODEL}"
    if _value("ANTHROPIC_API_KEY"):
        return f"anthropic:{_value('TOOLBUS_MODEL') or DEFAULT_ANTHROPIC_MODEL}"
    return None


def missing_provider_message() -> str:
    """What to tell who named no provider: the kinds there are, and which variables are set. Never their values."""
    looked_at = ", ".join(f"{name} ({'set' if _value(name) else 'not set'})" for name in VARIABLES)
    return f"no provider was named: give provider={_KINDS}, or set TOOLBUS_PROVIDER. Looked at: {looked_at}"


def _value(name: str) -> str:
    return os.environ.get(name, "").strip()
