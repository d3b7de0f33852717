"""What callers may give as messages, tools, providers and instructions, read into toolbus' own types. Knows no bus."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from ..core.transcript import validate
from ..errors import ConfigurationError
from ..messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    PromptLike,
    SystemMessage,
    TextPart,
    ToolMessage,
    UserMessage,
)
from ..messages.detect import read_dictionaries
from ..protocols import Provider, ToolSource, ToolSpec
from ..tools import Tool, ToolContext, Toolish, ToolRegistry

__all__ = [
    "Instructions",
    "MessagesLike",
    "ToolsLike",
    "is_blank",
    "provider_list",
    "read_instructions",
    "read_messages",
    "read_prompt",
    "shown",
    "split_messages",
    "tool_registry",
    "tool_source",
]

_MESSAGES = (SystemMessage, UserMessage, AssistantMessage, ToolMessage)
_PARTS = (TextPart, ImagePart, FilePart)
_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60

Instructions: TypeAlias = str | Callable[[ToolContext[Any]], str | Awaitable[str]]
"""A system prompt, or a function (sync or async) of the context that is asked before every call of the model."""

MessagesLike: TypeAlias = Sequence[Message] | Sequence[Mapping[str, Any]]
"""toolbus messages, or dictionaries of an API: OpenAI's chat completions or Responses, Anthropic's, or Ollama's."""

ToolsLike: TypeAlias = ToolSource | Iterable[Toolish | ToolSpec]
"""A registry, or tools, functions and specs; of specs alone, the calls are run by somebody else on the bus."""


async def read_instructions(instructions: Instructions, context: ToolContext[Any]) -> str:
    """The system prompt; empty for none. Raises `TypeError` where a function gives what is no text."""
    said = instructions(context) if callable(instructions) else instructions
    text: Any = await said if inspect.isawaitable(said) else said
    if text is None:
        return ""
    if not isinstance(text, str):
        raise TypeError(f"instructions gave a {type(text).__name__}; they are text, or a function that gives text")
    return text


def provider_list(provider: Provider | Sequence[Provider]) -> tuple[Provider, ...]:
    """The providers to ask, in order: one, or one and those to turn to when it fails.

    Raises `ConfigurationError` for what is no provider: a name, a class, anything that cannot respond.
    """
    many = isinstance(provider, Sequence) and not isinstance(provider, (str, bytes))
    providers = tuple(cast("Sequence[Provider]", provider)) if many else (cast("Provider", provider),)
    if not providers:
        raise ConfigurationError("a request needs a provider")
    for each in providers:
        _check_provider(each)
    return providers


def _check_provider(given: Any) -> None:
    if isinstance(given, str):
        raise ConfigurationError(
            f"the provider is the name {given!r}, and names are for a Runtime: "
            f"give toolbus.providers.resolve({given!r}), or use Runtime(provider={given!r})"
        )
    if isinstance(given, type):
        raise ConfigurationError(f"the provider is the class {given.__name__}; make one of it: {given.__name__}(...)")
    if not callable(getattr(given, "respond", None)):
        raise ConfigurationError(
            f"the provider is {shown(given)}, which has no respond(request, emit): "
            "give a toolbus.protocols.Provider, or a list of them"
        )


def read_messages(messages: MessagesLike, what: str = "history") -> list[Message]:
    """A list of our own; `what` is what errors call it. That it follows the rules of tool calling is not checked.

    Dictionaries are read as chat completions, unless something in them is of another API: see `read_dictionaries`.
    Raises `ConfigurationError` for what is no list of messages, and `InvalidHistory` for a dictionary that is none.
    """
    anything: Any = messages  # callers without a type checker give that
    if isinstance(anything, (str, bytes, Mapping, *_MESSAGES)) or not isinstance(anything, Iterable):
        raise ConfigurationError(
            f"{what} is {shown(cast('object', anything))}; give a list of messages, such as "
            "[UserMessage(content='Hello')], or of a vendor's dictionaries"
        )
    given = list(cast("Iterable[Any]", anything))
    wire = [isinstance(each, Mapping) for each in given]
    if given and all(wire):
        return read_dictionaries(given)
    for index, each in enumerate(given):
        if not isinstance(each, (Mapping, *_MESSAGES)):
            instead = "a message there, such as UserMessage(content='Hello'), or a vendor's dictionary at each place"
            if hasattr(each, "model_dump"):
                instead = "a dictionary of an SDK's object: each.model_dump(exclude_none=True)"
            raise ConfigurationError(f"{what}[{index}] is {shown(each)}; give {instead}")
    if any(wire):
        raise ConfigurationError(
            f"{what} mixes the two forms: {what}[{wire.index(True)}] is a dictionary and {what}[{wire.index(False)}] "
            "a message; turn the dictionaries into messages with from_openai, say, of toolbus.messages"
        )
    return given


def read_prompt(prompt: PromptLike) -> UserMessage:
    """The prompt as a message. Raises `ConfigurationError` for anything else, and where there is nothing to ask."""
    content: Any = prompt.content if isinstance(prompt, UserMessage) else prompt
    if isinstance(content, (list, tuple)):
        given = cast("Sequence[Any]", content)
        content = tuple(TextPart(text=each) if isinstance(each, str) else each for each in given)
    _check_content(content)
    message = replace(prompt, content=content) if isinstance(prompt, UserMessage) else UserMessage(content=content)
    if is_blank(message):
        raise ConfigurationError("there is nothing to ask: the prompt is empty")
    return message


def split_messages(
    messages: str | UserMessage | MessagesLike,
) -> tuple[list[Message], UserMessage | None]:
    """The history, and the user's message behind it.

    Raises `InvalidHistory`, and `ConfigurationError` where there is nothing to ask or something else than messages.
    """
    if isinstance(messages, (str, UserMessage)):
        return [], read_prompt(messages)
    history = read_messages(messages, "messages")
    if history and isinstance(history[-1], UserMessage):
        history[-1] = read_prompt(history[-1])
    newest = history[-1] if history else None
    if newest is None:
        raise ConfigurationError("there is nothing to ask: the prompt is empty")
    if not any(isinstance(message, UserMessage) for message in history):
        raise ConfigurationError("there is nothing to ask: the history has no user message")
    if len(history) > 1 or not isinstance(newest, UserMessage):
        validate(history)
    if isinstance(newest, UserMessage):
        return history[:-1], newest
    return history, None


def _check_content(content: Any) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, (list, tuple)):
        raise ConfigurationError(
            f"the prompt is {shown(content)}; give text, a UserMessage, or a list of texts, images and files"
        )
    for part in cast("Sequence[Any]", content):
        if isinstance(part, _MESSAGES) or (isinstance(part, Mapping) and "role" in part):
            found = shown(cast("object", part))
            raise ConfigurationError(
                f"the prompt is a list with {found} in it; give the newest question as text or as a "
                "UserMessage, and what was said before as history=[...]"
            )
        if not isinstance(part, _PARTS):
            raise ConfigurationError(
                f"the prompt is a list with {shown(cast('object', part))} in it; its parts are text, "
                "TextPart(text=...), ImagePart(...) or FilePart(...)"
            )


def is_blank(message: UserMessage) -> bool:
    """Whether there is nothing in it that could be asked."""
    if isinstance(message.content, str):
        return not message.content.strip()
    return all(isinstance(part, TextPart) and not part.text.strip() for part in message.content)


def tool_source(tools: ToolsLike) -> ToolSource:
    """`tools` as something that says which tools there are now. Raises `ConfigurationError` for anything else."""
    if hasattr(tools, "specs") and not isinstance(tools, type):
        return cast("ToolSource", tools)
    given = _tool_list(tools)
    specs = [each for each in given if isinstance(each, ToolSpec)]
    if not specs:
        return ToolRegistry(given)
    by_name = {each.name: each for each in specs}
    if len(by_name) < len(given):
        raise ConfigurationError("give tools or specs, not both, and each name once")
    return _FixedTools(by_name)


def tool_registry(tools: Iterable[Toolish] | ToolRegistry) -> ToolRegistry:
    """`tools` as a registry: the one given, or a new one. Raises `ConfigurationError` for anything else."""
    return tools if isinstance(tools, ToolRegistry) else ToolRegistry(_tool_list(tools))


def _tool_list(tools: Any) -> list[Any]:
    """A list of our own. One tool alone, and what only looks like a list of them, is refused."""
    if isinstance(tools, (Tool, ToolSpec)) or callable(tools):
        one: Any = cast("Any", tools)
        name = getattr(one, "name", "") or getattr(one, "__name__", "tool")
        raise ConfigurationError(f"tools is {shown(one)}, one alone; give a list: tools=[{name}]")
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Iterable):
        raise ConfigurationError(
            f"tools is {shown(cast('object', tools))}; give a list of functions, @tool or Tool, or a ToolRegistry"
        )
    return list(cast("Iterable[Any]", tools))


def shown(given: object) -> str:
    """What was given, for a message: its type and a piece of it."""
    if isinstance(given, type):
        return f"the class {given.__name__}"
    name = type(given).__name__
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name} ({_short.repr(given)})"


class _FixedTools:
    """Specs alone: their calls are run by whoever listens on the bus."""

    def __init__(self, specs: Mapping[str, ToolSpec]) -> None:
        self.specs = specs
