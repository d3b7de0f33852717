"""The look-up of a provider by its name, and the choice of a name by environment variables.

The module knows the names of all providers and the variables that decide; it imports an adapter only when it is needed.
"""

from __future__ import annotations

import difflib
import os
import reprlib
from typing import cast

from .._option_checks import takes
from ..errors import ConfigurationError
from ..protocols import Provider
from .vendors import VENDORS

DEFAULT_OPENAI_MODEL = "gpt-5-mini"
"""The model of the CLI when OPENAI_API_KEY is set and TOOLBUS_MODEL is not: small, and good at calling tools."""

DEFAULT_ANTHROPIC_MODEL = "claude-haiku-5-5"
"""The model of the CLI when only ANTHROPIC_API_KEY is set: the newest small one in the SDK's list of models."""

VARIABLES = (
    "TOOLBUS_PROVIDER",
    "TOOLBUS_MODEL",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "OLLAMA_HOST",
)
"""The environment variables that decide on the provider; docs/reference/environment.md describes them."""

_RESPONSES = "openai-responses"
_EXTRACTIVE = "extractive"

NAMED = (*VENDORS, _RESPONSES)
"""The words that may be before the colon in a provider's name; the name of the model is after it."""

_KINDS = (
    f"{', '.join(repr(f'{name}:MODEL') for name in NAMED)}, "
    f"'{_EXTRACTIVE}' (not a language model: it quotes files), or a Provider"
)


def resolve(provider: str | Provider) -> Provider:
    """Return the provider with a given name; a `Provider` is returned unchanged.

    A name is that of a vendor in `VENDORS`, a colon, and the name of its model: "groq:llama-3.3-70b-versatile". The key
    and another URL come from the environment variables of the vendor. "openai-responses:MODEL" is for a server with
    OpenAI's Responses API at another URL; "extractive" is the built-in provider that needs neither key nor network.
    Nothing is sent here, so a wrong key or a missing server is only noticed at the first request.

    Raises `ConfigurationError` for any other name, a missing model, key or URL, and `MissingExtra` without the SDK.
    """
    if not isinstance(provider, str):
        given = cast("object", provider)  # without a type checker, callers may give anything
        if isinstance(given, Provider) and not isinstance(given, type):
            if not takes(given.respond, 2):
                raise ConfigurationError(f"{reprlib.repr(given)} is not a provider: it needs respond(request, emit)")
            return given
        if lacking := _lacking(given):
            raise ConfigurationError(f"{reprlib.repr(given)} is not a provider: it has no `{lacking}`")
        several = "; for several, pass providers=[...]; for a script, ScriptedProvider([...])"
        raise ConfigurationError(
            f"{reprlib.repr(given)} is not a provider: pass {_KINDS}{several if type(given) is list else ''}"
        )
    vendor, _, model = provider.strip().partition(":")
    if vendor == _EXTRACTIVE and not model:
        from .extractive import ExtractiveProvider  # noqa: PLC0415 -- the import takes time, and few need it

        return ExtractiveProvider()
    if vendor not in NAMED:
        raise ConfigurationError(f"{no_provider(provider)}: pass {_KINDS}")
    if not model.strip():
        raise ConfigurationError(f"provider {provider!r} names no model: write {vendor}:MODEL")
    return _made(vendor, model.strip())


def _lacking(given: object) -> str:
    """Return the member of `Provider` that an object with the other one lacks; "" for anything else."""
    has_vendor, has_respond = hasattr(given, "vendor"), hasattr(given, "respond")
    if isinstance(given, type) or has_vendor == has_respond:
        return ""
    return "respond" if has_vendor else "vendor"


def _made(vendor: str, model: str) -> Provider:
    if vendor == "anthropic":
        from .anthropic import AnthropicProvider  # noqa: PLC0415

        return AnthropicProvider(model)
    if vendor == "ollama":
        from .ollama import OllamaProvider  # noqa: PLC0415

        return OllamaProvider(model)
    from .openai import OpenAIProvider  # noqa: PLC0415

    if vendor == _RESPONSES:
        return OpenAIProvider(model, api="responses")
    return OpenAIProvider(model, vendor=vendor)


def no_provider(name: str) -> str:
    """Return the beginning of the error text for an unknown name, with the name that was probably meant."""
    vendor, _, model = name.strip().partition(":")
    others = {other: known for known, each in VENDORS.items() for other in each.other_names}
    # Without a colon, the name is probably that of a model, such as "gpt-5-mini", which resembles "gemini".
    near = difflib.get_close_matches(vendor.lower(), [*NAMED, *others], 1, 0.6 if model else 0.75)
    meant = f" (did you mean '{others.get(near[0], near[0])}:{model or 'MODEL'}'?)" if near else ""
    return f"there is no provider {name!r}{meant}"


def choose_from_environment() -> str | None:
    """Return the provider's name that the environment asks for. For the CLI; the library itself never guesses.

    TOOLBUS_PROVIDER comes first. Without it, the name is "openai:" and TOOLBUS_MODEL, or a small model, if
    OPENAI_API_KEY is set; otherwise "anthropic:" and TOOLBUS_MODEL, or a small model, if ANTHROPIC_API_KEY is set;
    otherwise None.
    """
    if chosen := _value("TOOLBUS_PROVIDER"):
        return chosen
    if _value("OPENAI_API_KEY"):
        return f"openai:{_value('TOOLBUS_MODEL') or DEFAULT_OPENAI_MODEL}"
    if _value("ANTHROPIC_API_KEY"):
        return f"anthropic:{_value('TOOLBUS_MODEL') or DEFAULT_ANTHROPIC_MODEL}"
    return None


def missing_provider_message() -> str:
    """Return the error message for a missing provider: the possible names, and the variables with whether they are set.

    The values of the variables are never in it.
    """
    looked_at = ", ".join(f"{name} ({'set' if _value(name) else 'not set'})" for name in VARIABLES)
    return f"no provider was named: pass provider={_KINDS}, or set TOOLBUS_PROVIDER. Looked at: {looked_at}"


def _value(name: str) -> str:
    return os.environ.get(name, "").strip()
