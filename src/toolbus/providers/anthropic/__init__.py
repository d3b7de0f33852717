"""The adapter for the Messages API, over the official `anthropic` SDK: Anthropic itself, and compatible servers.

The SDK (extra `anthropic`) is imported only when a provider is constructed, and handles keys, URLs, headers and
connections. toolbus reads the stream itself, because reading has to stop at a size, to distinguish a cut stream from a
whole one, and to pass malformed arguments on.
"""

from __future__ import annotations

from ._provider import AnthropicProvider
from ._request import MAX_OUTPUT_TOKENS, Cache

__all__ = ["MAX_OUTPUT_TOKENS", "AnthropicProvider", "Cache"]
