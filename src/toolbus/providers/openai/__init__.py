"""Chat completions and Responses over the official `openai` SDK: OpenAI, Azure, Ollama, vLLM, llama.cpp and the like.

The only module that imports the SDK (extra `openai`), and only when a provider is constructed. The SDK does keys, URLs,
headers and connections; reading the stream is ours, since it must bear what compatible servers send, stop at a size,
and tell a cut stream from a whole one.
"""

from __future__ import annotations

from .._shared.options import MAX_REPLY_BYTES, ApiKey
from ._provider import Api, OpenAIProvider

__all__ = ["MAX_REPLY_BYTES", "Api", "ApiKey", "OpenAIProvider"]
