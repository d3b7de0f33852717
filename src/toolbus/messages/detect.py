"""Detection of the API that a list of plain dictionaries belongs to, by contents that only that API accepts. Pure.

Example:
    from toolbus.messages.detect import read_dictionaries

    messages = read_dictionaries([{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hello."}])
    print([message.role for message in messages])  # ['user', 'assistant']
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from ..errors import InvalidHistory
from ._anthropic import from_anthropic
from ._model import Message
from ._ollama import from_ollama
from ._openai import from_openai
from ._responses import from_openai_responses
from ._vercel import from_vercel
from .wire import label

__all__ = ["read_dictionaries"]

_Form: TypeAlias = Literal["openai", "responses", "anthropic", "ollama", "vercel"]

_READ: Mapping[_Form, tuple[str, Callable[[Sequence[Mapping[str, Any]]], list[Message]]]] = {
    "openai": ("OpenAI's chat completions", from_openai),
    "responses": ("OpenAI's Responses", from_openai_responses),
    "anthropic": ("Anthropic's", from_anthropic),
    "ollama": ("Ollama's", from_ollama),
    "vercel": ("Vercel's", from_vercel),
}
"""The forms, most preferred first. The first one that accepts a list reads it; all that accept it read the same."""

_ALL = frozenset[_Form](_READ)
_ANTHROPIC = frozenset[_Form]({"anthropic"})
_RESPONSES = frozenset[_Form]({"responses"})
_OPENAI = frozenset[_Form]({"openai"})
_OLLAMA = frozenset[_Form]({"ollama"})
_VERCEL = frozenset[_Form]({"vercel"})
_CHAT = _OPENAI | _OLLAMA
_BLOCKS = _ALL - _OLLAMA  # in Ollama's form, content is always text

_PARTS: Mapping[str, frozenset[_Form]] = {
    "refusal": _OPENAI | _RESPONSES,
    **dict.fromkeys(("image_url", "input_audio"), _OPENAI),
    **dict.fromkeys(("input_text", "output_text", "input_image", "input_file"), _RESPONSES),
    **dict.fromkeys(("tool_use", "tool_result", "redacted_thinking", "document"), _ANTHROPIC),
    **dict.fromkeys(("server_tool_use", "web_search_tool_result", "search_result"), _ANTHROPIC),
    **dict.fromkeys(("tool-call", "tool-result", "reasoning", "redacted-reasoning", "reasoning-file"), _VERCEL),
    **dict.fromkeys(("tool-approval-request", "tool-approval-response", "custom"), _VERCEL),
}
"""The forms that have a part of a given type. A type that is not listed here is no evidence for any form."""

_PROVIDER_OPTIONS = frozenset({"providerOptions", "experimental_providerMetadata"})
_OF_VERCEL = _PROVIDER_OPTIONS | {"parts", "toolInvocations", "experimental_attachments", "toolCallId"}
"""The fields that only Vercel's messages have."""


def read_dictionaries(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages that the dictionaries represent, read by `from_openai` or the function of another form.

    The list is read as chat completions unless something in it belongs only to another form: a block of type
    `tool_use`, an item of type `function_call`, a field `tool_name`, a field `parts`. Raises `InvalidHistory` with the
    index of a dictionary whose form contradicts those before it, and whatever the function of the form raises.
    """
    forms = _ALL
    for index, message in enumerate(messages):
        if _is_ours(message):
            read = "pydantic.TypeAdapter(list[Message]).validate_python(history)"
            raise InvalidHistory(index, f"it has the fields of a toolbus message; pass message objects: {read}")
        of_this = _ALL.intersection(*_evidence(message))
        if not forms & of_this:
            here, before = (_named(some) for some in (of_this, forms))
            problem = f"it has the form of {here}, and those before it that of {before}" if here else "it mixes forms"
            raise InvalidHistory(index, f"{problem}; read each with its own function of toolbus.messages")
        forms &= of_this
    return next(read for form, (_, read) in _READ.items() if form in forms)(messages)


def _named(forms: frozenset[_Form]) -> str:
    return " or ".join(name for form, (name, _) in _READ.items() if form in forms)


def _is_ours(message: Mapping[str, Any]) -> bool:
    if message.get("role") == "tool":
        return "call_id" in message and "tool_call_id" not in message
    return label(message.get("role")) in {"system", "assistant"} and "text" in message and "content" not in message


def _evidence(message: Mapping[str, Any]) -> Iterator[frozenset[_Form]]:
    """Yield, for each piece of evidence in a message, the forms that the message can have."""
    kind, role, content = message.get("type"), message.get("role"), message.get("content")
    if kind is not None:  # an SDK dumps a reply with a type
        yield _RESPONSES | _ANTHROPIC if kind == "message" else _RESPONSES
    calls: Any = message.get("tool_calls")
    if calls:
        yield _VERCEL if _has(calls, "toolCallId") else _CHAT
    if role == "tool":
        yield _CHAT | _VERCEL
    if not _OF_VERCEL.isdisjoint(message):
        yield _VERCEL
    if role == "developer":
        yield _OPENAI | _RESPONSES
    images: Any = message.get("images")
    bare = isinstance(images, list) and any(isinstance(each, str) for each in cast("list[object]", images))
    if "tool_name" in message or bare or isinstance(message.get("thinking"), str):
        yield _OLLAMA
    if isinstance(content, list):
        yield _BLOCKS
        for part in cast("list[object]", content):
            if isinstance(part, Mapping):
                yield _part(cast("Mapping[str, Any]", part))


def _has(calls: object, name: str) -> bool:
    given = cast("list[object]", calls) if isinstance(calls, list) else []
    return any(isinstance(each, Mapping) and name in each for each in given)


def _part(part: Mapping[str, Any]) -> frozenset[_Form]:
    kind = str(part.get("type"))
    if kind == "image":
        return _VERCEL if "image" in part else _ANTHROPIC
    if kind == "file":
        return _OPENAI if "file" in part else _VERCEL
    if not _PROVIDER_OPTIONS.isdisjoint(part):
        return _VERCEL
    if kind == "thinking":  # in Mistral's chat completions, the field is a list
        return _ANTHROPIC if isinstance(part.get("thinking"), str) else _OPENAI
    return _PARTS.get(kind, _BLOCKS)
