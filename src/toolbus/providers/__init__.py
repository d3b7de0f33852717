"""The adapters that connect the wire formats of model vendors to `toolbus.protocols.Provider`.

`from toolbus.providers import OpenAIProvider`: each adapter is imported when it is first used, and its SDK when a
provider is constructed. `toolbus.providers.extractive` is not exported here, and has to be imported by that name.

An adapter's package contains the parts that only its vendor has: the body of requests, the frames of streams, errors.
The parts that adapters have in common are in `_shared`, whose docstring says what a new adapter consists of.

The package knows messages and the provider protocol. It must not know sessions, the bus or tools: an adapter sends one
request to one model, and its caller decides on retries, fallbacks, limits and the execution of tool calls.

Invariants:

1. `respond` asks the model once; the retries of the SDKs are off. A retry inside an adapter would be invisible to
   limits, deadlines and events. (Only a turn that Anthropic pauses is continued within `respond`.)
2. A stream that ends before the reply is whole is an error, never a shorter reply. Otherwise a cut-off answer would
   pass as the answer, and half of a tool call would run.
3. Argument text is passed on as the model wrote it, malformed or not. Only the turn machine parses it, so that the
   model gets its own text back together with the error.
4. Reading is bounded, in bytes and in parts of a reply. Otherwise a broken server could fill the memory.
5. No API key appears in an error, in its chain of exceptions, in a repr or in a log. Errors reach users and journals.
6. Under cancellation the connection is closed. If it stayed open, the model would continue to write, at the caller's
   cost.

Example:
    from toolbus.providers import choose_from_environment, missing_provider_message, no_provider, resolve

    print(resolve("extractive").vendor)  # extractive
    name = choose_from_environment()  # such as "openai:gpt-5-mini", or None
    advice = missing_provider_message() if name is None else ""
    print("anthropic" in no_provider("antropic"))  # True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import imported_when_used
from ._resolve import NAMED, choose_from_environment, missing_provider_message, no_provider, resolve
from .vendors import VENDORS, Vendor

if TYPE_CHECKING:
    from .anthropic import AnthropicProvider
    from .ollama import OllamaProvider
    from .openai import OpenAIProvider
    from .scripted import ScriptedProvider

__all__ = [
    "NAMED",
    "VENDORS",
    "AnthropicProvider",
    "OllamaProvider",
    "OpenAIProvider",
    "ScriptedProvider",
    "Vendor",
    "choose_from_environment",
    "missing_provider_message",
    "no_provider",
    "resolve",
]

_MODULES = {
    ".anthropic": ["AnthropicProvider"],
    ".ollama": ["OllamaProvider"],
    ".openai": ["OpenAIProvider"],
    ".scripted": ["ScriptedProvider"],
}

if not TYPE_CHECKING:  # A type checker would take every name that is spelt wrong.
    __getattr__, __dir__ = imported_when_used(__name__, _MODULES)
