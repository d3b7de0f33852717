"""Readers of the messages, tools, providers and instructions that callers give, into toolbus's own types. No bus."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from .._option_checks import is_url, kind_of, shown
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
    ToolCall,
    ToolMessage,
    UserMessage,
)
from ..messages.detect import read_dictionaries
from ..protocols import Provider, ToolSource, ToolSpec
from ..tools import ToolContext, ToolLike, ToolRegistry, tool_list

_MESSAGES = (SystemMessage, UserMessage, AssistantMessage, ToolMessage)
_KINDS = frozenset(_MESSAGES)
_STRINGS = {
    SystemMessage: ("text", "message_id"),
    UserMessage: ("content", "message_id"),
    AssistantMessage: ("text", "reasoning", "message_id"),
    ToolMessage: ("content", "call_id", "name", "message_id"),
    ToolCall: ("arguments", "name", "call_id", "provider_call_id"),
}
"""The fields that are strings, the body first. The content of a user's message may also be a list of parts."""
_VENDOR_DATA = (dict, type(None))
_PARTS = (TextPart, ImagePart, FilePart)

Instructions: TypeAlias = str | Callable[[ToolContext[Any]], str | Awaitable[str]]
"""A system prompt, or a function (sync or async) of the context that is called before every call of the model."""

MessagesLike: TypeAlias = Sequence[Message] | Sequence[Mapping[str, Any]]
"""toolbus messages, or dictionaries: OpenAI's chat completions or Responses, Anthropic's, Ollama's, or Vercel's."""

ToolsLike: TypeAlias = ToolSource | Iterable[ToolLike | ToolSpec]
"""A registry, a list of tools and functions, or a list of specs, whose calls are run by an executor on the bus."""


async def read_instructions(instructions: Instructions, context: ToolContext[Any]) -> str:
    """Return the system prompt; empty for None. Raises `TypeError` if a function returns anything but a text."""
    given = instructions(context) if callable(instructions) else instructions
    text: Any = await given if inspect.isawaitable(given) else given
    if text is None:
        return ""
    if not isinstance(text, str):
        raise TypeError(f"instructions gave {kind_of(text)}; pass a string, or a function that returns one")
    return text


def provider_list(provider: Provider | Sequence[Provider]) -> tuple[Provider, ...]:
    """Return the providers to ask, in order: the first one, and those to fail over to.

    Raises `ConfigurationError` for anything that is not a provider: a name, a class, an object without `respond`.
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
            f"pass toolbus.providers.resolve({given!r}), or use Runtime(provider={given!r})"
        )
    if isinstance(given, type):
        raise ConfigurationError(f"the provider is the class {given.__name__}; make one of it: {given.__name__}(...)")
    if not callable(getattr(given, "respond", None)):
        raise ConfigurationError(
            f"the provider is {shown(given)}, which has no respond(request, emit): "
            "pass a toolbus.protocols.Provider, or a list of them"
        )


def read_messages(messages: MessagesLike, what: str = "history") -> list[Message]:
    """Return the messages as a new list. The rules of tool calling are not checked.

    `what` is the name of the option in errors. Dictionaries are read as chat completions, unless something in them
    belongs to another API: see `read_dictionaries`. Raises `ConfigurationError` for anything but a list of messages,
    and `InvalidHistory` for a dictionary that is not a message.
    """
    anything: Any = messages  # Callers without a type checker may give anything.
    if isinstance(anything, (str, bytes, Mapping, *_MESSAGES)) or not isinstance(anything, Iterable):
        raise ConfigurationError(
            f"{what} is {shown(cast('object', anything))}; pass a list of messages, such as "
            "[UserMessage(content='Hello')], or of a vendor's dictionaries"
        )
    given = list(cast("Iterable[Any]", anything))
    if _KINDS.issuperset(map(type, given)):  # All are messages, which a loop without calls looks through in no time.
        for index, each in enumerate(given):
            is_plain = type(each.message_id) is str
            if type(each) is AssistantMessage:
                is_plain = is_plain and type(each.text) is str and type(each.reasoning) is str
                is_plain = is_plain and type(each.tool_calls) is tuple and type(each.vendor_data) in _VENDOR_DATA
                for call in each.tool_calls if is_plain else ():
                    is_plain = is_plain and type(call) is ToolCall and type(call.arguments) is str
                    is_plain = is_plain and type(call.name) is type(call.call_id) is type(call.provider_call_id) is str
            elif type(each) is ToolMessage:
                is_plain = is_plain and type(each.content) is str and type(each.call_id) is str
                is_plain = is_plain and type(each.name) is str and each.parts == ()
            else:
                is_plain = is_plain and type(each.text if type(each) is SystemMessage else each.content) is str
            # The prompt is checked by `read_prompt`.
            if not (is_plain or (what == "messages" and index == len(given) - 1 and type(each) is UserMessage)):
                _check_body(each, f"{what}[{index}]")
        return given
    wire = [isinstance(each, Mapping) for each in given]
    if given and all(wire):
        return read_dictionaries(given)
    for index, each in enumerate(given):
        if not isinstance(each, (Mapping, *_MESSAGES)):
            instead = "a message there, such as UserMessage(content='Hello'), or a vendor's dictionary for each message"
            if hasattr(each, "model_dump"):
                instead = "a dictionary of an SDK's object: each.model_dump(exclude_none=True)"
            raise ConfigurationError(f"{what}[{index}] is {shown(each)}; pass {instead}")
    if any(wire):
        raise ConfigurationError(
            f"{what} mixes the two forms: {what}[{wire.index(True)}] is a dictionary and {what}[{wire.index(False)}] "
            "a message; turn the dictionaries into messages, for example with toolbus.messages.from_openai"
        )
    return given


def _check_body(message: Any, where: str) -> None:
    """Raise `ConfigurationError` for a message whose fields have the wrong types, as no constructor checks them."""
    body: Any = message.content if isinstance(message, UserMessage) else None
    has_parts = isinstance(body, (list, tuple))
    if has_parts:
        _check_parts(cast("Sequence[Any]", body), f"{where}: the content")
    names = _STRINGS[type(message)]
    _check_strings(message, where, names[1:] if has_parts else names)
    vendor_data: Any = getattr(message, "vendor_data", None)
    if not isinstance(vendor_data, _VENDOR_DATA):
        raise ConfigurationError(f"{where}: vendor_data is {shown(vendor_data)}; pass a dictionary")
    calls: Any = getattr(message, "tool_calls", ())
    if not (isinstance(calls, (list, tuple)) and all(isinstance(each, ToolCall) for each in cast("list[Any]", calls))):
        raise ConfigurationError(f"{where}: tool_calls is {shown(cast('object', calls))}; pass a tuple of ToolCall")
    for call in cast("Sequence[Any]", calls):
        _check_strings(call, where, _STRINGS[ToolCall])
    parts: Any = getattr(message, "parts", ())
    if not isinstance(parts, (list, tuple)):
        raise ConfigurationError(f"{where}: parts is {shown(parts)}; pass a tuple of ImagePart or FilePart")
    _check_parts(cast("Sequence[Any]", parts), f"{where}: parts")


def _check_parts(parts: Sequence[Any], where: str) -> None:
    for each in parts:
        if not isinstance(each, _PARTS):
            raise ConfigurationError(f"{where} has {shown(each)} in it; pass TextPart(text=...)")
        _check_strings(each, where, each.__struct_fields__)


def _check_strings(given: Any, where: str, names: Sequence[str]) -> None:
    for name in names:
        if not isinstance(found := getattr(given, name), str):
            raise ConfigurationError(f"{where}: {type(given).__name__}.{name} is {shown(found)}; pass a string")


def read_prompt(prompt: PromptLike) -> UserMessage:
    """Return the prompt as a message. Raises `ConfigurationError` if it is empty or not a prompt."""
    content: Any = prompt
    message_id: Any = ""
    if isinstance(prompt, UserMessage):
        content, message_id = prompt.content, prompt.message_id
        if type(message_id) is not str:
            _check_strings(prompt, "the prompt", ("message_id",))
    if isinstance(content, (list, tuple)):
        given = cast("Sequence[Any]", content)
        content = tuple(TextPart(text=each) if isinstance(each, str) else each for each in given)
    _check_content(content)
    message = UserMessage(content=content, message_id=message_id)
    if is_blank(message):
        raise ConfigurationError("there is nothing to ask: the prompt is empty")
    return message


def split_messages(
    messages: str | UserMessage | MessagesLike,
) -> tuple[list[Message], UserMessage | None]:
    """Return the history, and the user's message at its end; None if the history ends with another message.

    Raises `InvalidHistory`, and `ConfigurationError` if there is nothing to ask, or for anything but messages.
    """
    if isinstance(messages, (str, UserMessage)):
        return [], read_prompt(messages)
    history = read_messages(messages, "messages")
    if not history:
        raise ConfigurationError("there is nothing to ask: the prompt is empty")
    if not any(isinstance(message, UserMessage) for message in history):
        raise ConfigurationError("there is nothing to ask: the history has no user message")
    prompt = None
    if isinstance(history[-1], UserMessage):
        prompt = history[-1] = read_prompt(history[-1])
    validate(history)
    return history if prompt is None else history[:-1], prompt


def _check_content(content: Any) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, (list, tuple)):
        raise ConfigurationError(
            f"the prompt is {shown(content)}; pass text, a UserMessage, or a list of texts, images and files"
        )
    for part in cast("Sequence[Any]", content):
        if isinstance(part, _MESSAGES) or (isinstance(part, Mapping) and "role" in part):
            found = shown(cast("object", part))
            raise ConfigurationError(
                f"the prompt is a list with {found} in it; pass the newest question as text or as a "
                "UserMessage, and the earlier messages as history=[...]"
            )
        if not isinstance(part, _PARTS):
            raise ConfigurationError(
                f"the prompt is a list with {shown(cast('object', part))} in it; its parts are text, "
                "TextPart(text=...), ImagePart(...) or FilePart(...)"
            )
        if not isinstance(part, TextPart) and not is_url(part.url):
            kind = type(part).__name__
            raise ConfigurationError(
                f"the url of the {kind} is {shown(part.url)}, and not a URL; for a file, pass "
                f"{kind}.from_bytes(path.read_bytes(), ...)"
            )
    _check_parts(cast("Sequence[Any]", content), "the prompt")


def is_blank(message: UserMessage) -> bool:
    """Return whether a message has nothing in it that could be asked."""
    if isinstance(message.content, str):
        return not message.content.strip()
    return all(isinstance(part, TextPart) and not part.text.strip() for part in message.content)


def tool_source(tools: ToolsLike) -> ToolSource:
    """Return `tools` as a `ToolSource`, which gives the present tools. Raises `ConfigurationError` otherwise."""
    if hasattr(tools, "specs") and not isinstance(tools, type):
        return cast("ToolSource", tools)
    given = tool_list(tools)
    specs = [each for each in given if isinstance(each, ToolSpec)]
    if not specs:
        return ToolRegistry(given)
    by_name = {each.name: each for each in specs}
    if len(by_name) < len(given):
        raise ConfigurationError("pass tools or specs, not both, and each name once")
    return _FixedTools(by_name)


def tool_registry(tools: Iterable[ToolLike] | ToolRegistry) -> ToolRegistry:
    """Return `tools` as a registry: the one given, or a new one. Raises `ConfigurationError` for anything else."""
    return tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools)


class _FixedTools:
    """A tool source of specs only, whose calls are run by whoever listens on the bus."""

    def __init__(self, specs: Mapping[str, ToolSpec]) -> None:
        self.specs = specs
