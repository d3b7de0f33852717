"""The Messages API over the official `anthropic` SDK: Anthropic itself, and servers that speak its API.

The only module that imports the SDK (extra `anthropic`), and only when a provider is constructed. The SDK does keys,
URLs, headers and connections; reading the stream is ours, since it has to stop at a size, tell a cut stream from a
whole one, and pass malformed arguments on.
"""

from __future__ import annotations

from ._provider import AnthropicProvider
from ._request import MAX_OUTPUT_TOKENS, Cache

__all__ = ["MAX_OUTPUT_TOKENS", "AnthropicProvider", "Cache"]
