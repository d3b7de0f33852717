"""The models of one runtime: the providers that it was given, and those that it makes from names, and closes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack

from .._option_checks import listed
from ..errors import ConfigurationError
from ..protocols import Provider
from ..providers import missing_provider_message, resolve
from ..status import Narrator


class Models:
    """The providers of one runtime by name. A name is made into a provider once, when it is first used."""

    def __init__(self) -> None:
        self._made: dict[str, Provider] = {}

    def resolve(self, provider: Provider | str) -> Provider:
        """Return a provider, made from a name if it is one. Raises `ConfigurationError` for what is not a provider."""
        if not isinstance(provider, str):
            return resolve(provider)
        if provider not in self._made:
            self._made[provider] = resolve(provider)
        return self._made[provider]

    def given(
        self, provider: Provider | str | None, providers: Sequence[Provider | str] | None
    ) -> tuple[Provider, ...] | None:
        """Return the providers that these two options name, in the order of asking; None if both are None.

        Raises `ConfigurationError`.
        """
        if provider is not None and providers is not None:
            raise ConfigurationError("pass provider=, or providers= with those to turn to when the first one fails")
        if provider is None and providers is None:
            return None
        advice = "pass a list of them, or provider= for one"
        named = [provider] if provider is not None else listed("providers", providers, advice)
        found = tuple(self.resolve(each) for each in named)
        if not found:
            raise ConfigurationError("providers is empty; a request needs a provider")
        return found

    def from_environment(self) -> tuple[Provider, ...]:
        """Return the provider that TOOLBUS_PROVIDER names. Raises `ConfigurationError`, with what was looked at."""
        named = os.environ.get("TOOLBUS_PROVIDER")
        if not named:
            raise ConfigurationError(missing_provider_message())
        return (self.resolve(named),)

    def narrator(self, given: Narrator | Provider | str | None) -> Narrator | None:
        """Return the narrator: the one given, or a new one that asks the given model."""
        if given is None or isinstance(given, Narrator):
            return given
        return Narrator(self.resolve(given))

    def name_of(self, provider: Provider) -> str:
        """Return the name that the provider was made from, or that of its class."""
        return next((name for name, made in self._made.items() if made is provider), type(provider).__name__)

    def close_with(self, stack: AsyncExitStack) -> None:
        """Let the stack close the providers that were made from names."""
        for provider in self._made.values():
            if (close := getattr(provider, "aclose", None)) is not None:
                stack.push_async_callback(close)
