"""The adapter for chat completions and Responses, over the official `openai` SDK.

It serves OpenAI, Azure, Ollama, vLLM, llama.cpp and other compatible servers. The SDK (extra `openai`) is imported only
when a provider is constructed, and handles keys, URLs, headers and connections. toolbus reads the stream itself,
because reading has to tolerate the deviations of compatible servers, to stop at a size, and to distinguish a cut stream
from a whole one.
"""

from __future__ import annotations

from .._shared.options import MAX_REPLY_BYTES, ApiKey
from ._provider import Api, OpenAIProvider

__all__ = ["MAX_REPLY_BYTES", "Api", "ApiKey", "OpenAIProvider"]
