"""What callers may give as messages and as tools, read into toolbus' own types. Knows no bus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from .core.transcript import validate
from .errors import ConfigurationError
from .messages import Message, UserMessage, from_openai
from .protocols import Provider, ToolSource, ToolSpec
from .tools import Toolish, ToolRegistry

__all__ = ["MessagesLike", "ToolsLike", "provider_list", "read_messages", "split_messages", "tool_source"]

MessagesLike: TypeAlias = Sequence[Message] | Sequence[Mapping[str, Any]]
"""toolbus messages, or OpenAI chat dictionaries."""

ToolsLike: TypeAlias = ToolSource | Iterable[Toolish | ToolSpec]
"""A registry, or tools, functions and specs; of specs alone, the calls are run by somebody else on the bus."""


def provider_list(provider: Provider | Sequence[Provider]) -> tuple[Provider, ...]:
    """The providers to ask, in order: one, or one and those to turn to when it fails."""
    providers = tuple(provider) if isinstance(provider, Sequence) else (provider,)
    if not providers:
        raise ConfigurationError("a request needs a provider")
    return providers


def read_messages(messages: MessagesLike) -> list[Message]:
    """A list of our own, not checked."""
    given: list[Any] = list(messages)
    return from_openai(given) if given and isinstance(given[0], Mapping) else given


def split_messages(
    messages: str | MessagesLike,
) -> tuple[list[Message], UserMessage | None]:
    """The history, and the user's message behind it.

    Raises `InvalidHistory`, and `ConfigurationError` where there is nothing to ask.
    """
    history: list[Message] = [UserMessage(content=messages)] if isinstance(messages, str) else read_messages(messages)
    newest = history[-1] if history else None
    if newest is None or (isinstance(newest, UserMessage) and _is_blank(newest)):
        raise ConfigurationError("there is nothing to ask: the prompt is empty")
    if not any(isinstance(message, UserMessage) for message in history):
        raise ConfigurationError("there is nothing to ask: the history has no user message")
    if len(history) > 1 or not isinstance(newest, UserMessage):
        validate(history)
    if isinstance(newest, UserMessage):
        return history[:-1], newest
    return history, None


def _is_blank(message: UserMessage) -> bool:
    return not message.content or (isinstance(message.content, str) and not message.content.strip())


def tool_source(tools: ToolsLike) -> ToolSource:
    """`tools` as something that says which tools there are now."""
    if hasattr(tools, "specs"):
        return cast("ToolSource", tools)
    given = list(cast("Iterable[Toolish | ToolSpec]", tools))
    specs = [each for each in given if isinstance(each, ToolSpec)]
    if not specs:
        return ToolRegistry(cast("list[Toolish]", given))
    by_name = {each.name: each for each in specs}
    if len(by_name) < len(given):
        raise ConfigurationError("give tools or specs, not both, and each name once")
    return _FixedTools(by_name)


class _FixedTools:
    """Specs alone: their calls are run by whoever listens on the bus."""

    def __init__(self, specs: Mapping[str, ToolSpec]) -> None:
        self.specs = specs
